"""A sample of the long run: nothing is left behind by a replay or a call, on the device or on the host.

`benchmarks.simulator` does a million of each.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

import cgstate
from cgstate.backends.sim import SimBackend, SimDevice, SimTensor, kernels
from cgstate.backends.sim.schedule import MAX_QUEUED

TIMES = MAX_QUEUED + 100
"""So many that the device's queue is full in between."""


@pytest.fixture
def doors() -> Iterator[dict[str, Callable[[], object]]]:
    """The two ways to replay, into one manager."""
    backend = SimBackend()
    device = backend.sim
    static, weight, x = device.zeros(8), device.rand(4, 4), device.rand(3, 4)

    def make(warmup: bool) -> Callable[[], SimTensor]:
        return lambda: static.copy_(kernels.relu(static))

    routine = cgstate.BucketedRoutine(lambda x: kernels.relu(kernels.matmul(x, weight)), lambda size: (device.zeros(size, 4),))
    component = cgstate.Component("model", routine, [4])
    with cgstate.GraphManager(backend) as manager:
        manager.prepare([component])
        manager.capture_and_bind(progress=False)
        entry = manager.entry("chain", 1)
        with manager.transaction() as transaction:
            transaction.capture(entry, make)
        yield {
            "replay": entry.replay,
            "call": lambda: component(x),
            "settle": device.synchronize,
            "books": lambda: books(device),
        }


def books(device: SimDevice) -> tuple[int, ...]:
    memory = device.memory
    return (
        device.reserved_bytes(),
        device.allocated_bytes(),
        memory.driver_bytes,
        len(memory.cells),
        len(device.default_stream.queue.work),
        device.allocator.epoch,
    )


@pytest.mark.parametrize("door", ["replay", "call"])
def test_a_run_leaves_no_object_and_no_byte_behind(doors: dict[str, Callable[[], object]], door: str) -> None:
    once, settle, look = doors[door], doors["settle"], doors["books"]

    def run() -> tuple[object, int]:
        for _ in range(TIMES):
            once()
        settle()
        gc.collect()
        return look(), len(gc.get_objects())

    run()
    earlier = run()
    assert run() == earlier
