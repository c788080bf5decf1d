"""The first block of a pool: its temporaries share one segment, what that needs is found by trial, and trials leave nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimTensor
from cgstate.backends.sim.errors import SimOutOfMemory
from cgstate.backends.sim.faults import InjectedFault
from cgstate.backends.sim.memory import ITEM_BYTES
from cgstate.backends.undo import UndoLog
from cgstate.runtime.compact import FirstBlock, smallest_block
from tests.runtime.shapes import Shape, Shaped, linear

KIB = 1024
STACK = Shape(
    [linear(each) for each in (16, 16, 32, 32, 64, 64)],
    [linear(1)],
    [8 * 2**power for power in range(6)],
    alive=2,
    inputs=linear(1),
)
"""Layers that each make two tensors twice as large as the layer before."""
HUGE = Shape([linear(16), linear(64), linear(64)], [linear(1)], [64, 128, 192, 256], alive=2, inputs=linear(1))
"""A small temporary in front of two large ones, which are alive together: there is no block in which all fit as closely."""
SMALL = Shape([linear(1)] * 3, [linear(1)], [1, 2, 4])


class Bench:
    """A prepared manager of a component ``c``, its device, and how often the work was run outside of captures."""

    def __init__(
        self,
        shape: Shape = STACK,
        *,
        order: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        self.device = SimDevice(SimConfig(capacity_bytes=1 << 30))
        self.backend = SimBackend(self.device)
        self.shape = shape
        self.routine = Shaped(self.device, shape)
        self.rounds = 0
        self.during: Callable[[int], object] = lambda round: None
        forward = self.routine.forward_for_capture

        def counted(descriptor: int, buffers: SimTensor) -> object:
            if self.device.current_stream().queue.capture is None:
                self.rounds += 1
                self.during(self.rounds)
            return forward(descriptor, buffers)

        self.routine.forward_for_capture = counted  # type: ignore[method-assign]
        key = None if order is None else {size: -place for place, size in enumerate(order)}.__getitem__
        self.manager = cgstate.GraphManager(self.backend, **{"check": True, **options})
        self.manager.prepare([cgstate.Component("c", self.routine, list(shape.descriptors), capture_order_key=key)])

    @property
    def blocks(self) -> dict[Any, int]:
        """What is known of first blocks."""
        return self.manager._books.components["c"].blocks

    def held(self) -> int:
        """Bytes held once all is captured."""
        return self.manager.capture_and_bind(progress=False).memory.total

    @contextmanager
    def leaves_nothing(self) -> Iterator[None]:
        """The block changes neither memory, generator, stream nor pools; what is cached outside of pools is returned first."""
        self.backend.flush()
        before = self.backend.footprint()
        yield
        self.manager.reclaim(flush=True)
        self.backend.flush()
        assert self.backend.footprint() == before


@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
def test_a_set_takes_less_with_a_first_block(isolation: str) -> None:
    assert Bench(isolation=isolation).held() < 0.9 * Bench(isolation=isolation, compact=False).held()


def test_all_temporaries_of_the_first_graph_share_one_segment() -> None:
    bench = Bench()
    bench.held()
    (pool,) = bench.manager._books.pools
    large = [segment for segment in pool.handle.segments() if not segment.small and segment.live < segment.reserved]
    assert [segment.reserved for segment in large] == [bench.blocks[256]]


def test_no_order_takes_less_than_largest_first() -> None:
    sizes = list(STACK.descriptors)
    rng = random.Random(0)
    orders = [sorted(sizes), *(rng.sample(sizes, len(sizes)) for _ in range(8))]
    largest_first = Bench(order=sorted(sizes, reverse=True), check=False).held()
    assert largest_first <= min(Bench(order=order, check=False).held() for order in orders)


def test_where_no_smaller_block_does_nothing_is_taken_on_top() -> None:
    bench = Bench(HUGE)
    assert bench.held() <= Bench(HUGE, compact=False).held()


@pytest.mark.parametrize("shape", [STACK, HUGE])
@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
def test_the_estimate_holds_what_is_captured(shape: Shape, isolation: str) -> None:
    bench = Bench(shape, isolation=isolation)
    bench.manager.profile_memory()
    comparison = bench.manager.capture_and_bind(progress=False).comparison
    assert comparison is not None
    assert comparison.within, str(comparison)
    assert comparison.ratio <= 1.10


# -- when it is looked for ----------------------------------------------------------------------------------------------


def test_what_a_profile_has_found_serves_every_later_generation() -> None:
    bench = Bench()
    bench.manager.profile_memory()
    known = dict(bench.blocks)
    assert known[256] > 0
    bench.rounds = 0
    first = bench.held()
    assert bench.rounds == len(STACK.descriptors)  # a warm-up each, and nothing else
    bench.manager.evict("c")
    bench.manager.reclaim(flush=True)
    assert bench.held() == first
    assert bench.blocks == known


def test_nothing_is_tried_where_the_warm_up_needed_no_two_large_segments() -> None:
    bench = Bench(SMALL)
    bench.held()
    assert bench.rounds == len(SMALL.descriptors)
    assert bench.blocks == {4: 0}


def test_it_can_be_switched_off() -> None:
    bench = Bench(compact=False)
    bench.held()
    assert bench.rounds == len(STACK.descriptors)
    assert bench.blocks == {}


def test_a_miss_never_waits_for_trials() -> None:
    backend = SimBackend()
    stream, pool = backend.new_stream(exclusive=True), backend.new_pool()
    known: dict[Any, int] = {}
    first = FirstBlock(known, 256, may_search=False)
    first.make(backend, pool, stream, lambda: pytest.fail("the work was run"), UndoLog())
    assert known == {}
    assert pool.segments() == []


def test_a_size_that_was_not_seen_to_fit_is_not_used() -> None:
    backend = SimBackend(SimDevice(SimConfig(capacity_bytes=1 << 30)))
    stream = backend.new_stream(exclusive=True)
    rounds = 0
    filled: list[int] = []

    def run() -> None:
        nonlocal rounds
        rounds += 1
        filled.append(sum(size > 0 for size in backend.footprint().pools.values()))
        hold = [backend.sim.empty(20 * backend.mebibyte // ITEM_BYTES * rounds) for _ in range(2)]
        hold.clear()

    with backend.on_stream(stream):
        assert smallest_block(backend, stream, run, UndoLog()) == 0
    assert rounds > 2
    assert filled == [0] + [1] * (rounds - 1)  # the block of this trial, and nothing of those before


def test_the_work_is_run_at_most_six_times_more() -> None:
    bench = Bench()
    bench.held()
    assert 2 < bench.rounds - len(STACK.descriptors) <= 6


def test_a_pool_that_was_captured_into_gets_no_block() -> None:
    bench = Bench()
    bench.held()
    assert set(bench.blocks) == {256}


def test_work_with_eager_breaks_gets_no_block() -> None:
    device = SimDevice()

    def body() -> Iterator[cgstate.Break]:
        first = device.empty(30 * KIB)
        yield cgstate.Break(lambda: None)
        second = device.empty(30 * KIB)
        del first, second

    manager = cgstate.GraphManager(SimBackend(device), check=True)
    entry = manager.entry("broken", 1)
    with manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: body)
    assert manager._books.components["broken"].blocks == {}
    manager.close()


def test_what_is_known_of_an_entry_is_forgotten_with_it() -> None:
    device = SimDevice()
    manager = cgstate.GraphManager(SimBackend(device), check=True)
    manager.prepare([])
    with manager.profile(), manager.transaction() as transaction:
        own = manager.entry("own", 1)
        shaped = Shaped(device, STACK)
        transaction.capture(own, lambda warmup: lambda: shaped.forward_for_capture(256, device.empty(1)))
        assert own.component.blocks[1] > 0
    assert own.component.blocks == {}
    manager.close()


# -- what goes wrong ----------------------------------------------------------------------------------------------------


def test_without_memory_for_a_trial_the_capture_goes_on_without_a_block() -> None:
    bench = Bench()
    normal = Bench(compact=False).held()

    def fill(number: int) -> None:
        if number == 4:
            raise SimOutOfMemory("full")

    bench.during = fill
    assert bench.held() == normal
    assert bench.blocks == {}


def test_without_memory_for_the_block_the_capture_goes_on_without() -> None:
    bench = Bench()
    bench.manager.profile_memory()
    bench.backend.faults.inject("hold", error=SimOutOfMemory("full"))
    assert bench.held() == Bench(compact=False).held()


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("number", range(2, 8))
def test_what_the_work_raises_in_a_trial_goes_on_and_leaves_nothing(number: int, raised: BaseException) -> None:
    bench = Bench()

    def fail(current: int) -> None:
        if current == number:
            bench.device.empty(20 * KIB)
            raise raised

    bench.during = fail
    with bench.leaves_nothing(), pytest.raises((cgstate.CaptureFailed, KeyboardInterrupt)) as failure:
        bench.held()
    assert raised in (failure.value, failure.value.__cause__)
    bench.during = lambda round: None
    assert bench.held() < Bench(compact=False).held()


def _calls() -> list[tuple[str, int]]:
    bench = Bench()
    before = bench.backend.faults.calls.copy()
    bench.held()
    made = bench.backend.faults.calls - before
    names = ["allocating_from", "cached_segments", "flush", "hold", "new_pool", "pool_drop", "pool_segments"]
    return [(name, nth) for name in names for nth in range(1, min(made[name], 8) + 1)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "nth"), _calls())
def test_any_call_of_the_device_may_fail(call: str, nth: int, when: str) -> None:
    bench = Bench()
    bench.backend.faults.inject(call, nth=nth, when=when)  # type: ignore[arg-type]
    try:
        bench.held()
    except (cgstate.CaptureFailed, InjectedFault) as error:
        error.with_traceback(None)
    bench.backend.faults.clear()
    if bench.manager.state is cgstate.ManagerState.SERVING:
        bench.manager.release()
    bench.manager.reclaim(flush=True)
    bench.backend.flush()
    if (call, when) != ("pool_drop", "before"):  # the pool that nobody dropped goes with its last handle
        assert bench.backend.footprint().pools == {}
    assert bench.held() <= Bench(compact=False).held()
    bench.manager.close()
