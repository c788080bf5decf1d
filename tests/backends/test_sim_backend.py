"""The backend protocol on the simulated device: handles, nested values, modes, and what it calls a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend, SimDevice, SimTensor, captured, kernels
from cgstate.backends.sim import errors as sim_errors
from cgstate.errors import ConfigError
from cgstate.lifecycle.states import FailureKind


@pytest.fixture
def backend() -> SimBackend:
    return SimBackend()


class Pair(NamedTuple):
    left: SimTensor
    right: SimTensor


@dataclass(frozen=True)
class Output:
    audio: SimTensor
    extras: dict[str, list[SimTensor]]
    name: str


def test_it_is_a_backend_with_a_name_of_its_own() -> None:
    one: Backend = SimBackend()
    two: Backend = SimBackend()
    device = SimDevice()
    assert one.name == "sim"
    assert one.device != two.device
    assert SimBackend(device).device == SimBackend(device).device == device.name


def test_foreign_handles_are_refused(backend: SimBackend) -> None:
    other = SimBackend()
    calls: list[Callable[[], object]] = [
        lambda: backend.adopt_stream("stream"),
        lambda: backend.adopt_stream(other.new_stream(exclusive=False)),
        lambda: backend.on_stream(other.new_stream(exclusive=False)),
        lambda: backend.adopt_pool((0, 0)),
        lambda: backend.adopt_pool((0, 7)),
        lambda: backend.adopt_pool((1, 1)),
        lambda: backend.adopt_pool([0, 1]),
        lambda: backend.prime_workspaces(other.new_pool(), backend.new_stream(exclusive=True)),
        lambda: backend.close_capture(captured(other.sim, lambda: None, other.sim.new_stream())[0]),
    ]
    for call in calls:
        with pytest.raises(ConfigError):
            call()


def test_an_adopted_pool_is_not_ours_to_drop(backend: SimBackend) -> None:
    stream, handle = backend.sim.new_stream(), backend.sim.pool_handle()
    graph, _ = captured(backend.sim, lambda: backend.sim.zeros(1), stream, handle)
    adopted = backend.adopt_pool(handle)
    assert (adopted.id, adopted.use_count()) == (handle, 1)
    adopted.drop()
    assert adopted.use_count() == 1
    assert backend.has_foreign_graphs(frozenset())
    assert not backend.has_foreign_graphs(frozenset({handle}))
    graph.replay()


def test_what_is_cached_in_a_pool_that_nobody_uses_any_more_is_no_foreign_graph(backend: SimBackend) -> None:
    stream, handle = backend.sim.new_stream(), backend.sim.pool_handle()
    graph, output = captured(backend.sim, lambda: backend.sim.zeros(1), stream, handle)
    pool = backend.new_pool()
    backend.prime_workspaces(pool, backend.new_stream(exclusive=True))
    assert backend.has_foreign_graphs(frozenset({handle}))
    pool.drop()
    assert not backend.has_foreign_graphs(frozenset({handle}))
    graph.destroy()
    assert not backend.has_foreign_graphs(frozenset())
    assert backend.footprint().pools.keys() == {handle, pool.id}
    assert output is not None


def test_an_adopted_stream_is_not_ours_to_close(backend: SimBackend) -> None:
    stream = backend.sim.new_stream(exclusive=True)
    adopted = backend.adopt_stream(stream)
    adopted.close()
    with backend.on_stream(adopted):
        assert backend.current_handle(backend.index) == stream.handle
        assert backend.current_stream().handle == stream.handle


def test_a_pool_is_dropped_once(backend: SimBackend) -> None:
    pool = backend.new_pool()
    pool.drop()
    pool.drop()
    assert pool.use_count() == 0


def test_priming_puts_the_workspace_into_the_pool_and_restores_the_stream(backend: SimBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    backend.prime_workspaces(pool, stream)
    size = backend.sim.config.workspace_bytes
    assert pool.reserved_bytes() == {stream.handle: size}
    assert (backend.current_handle(backend.index), pool.use_count()) == (0, 1)
    assert backend.clear_workspaces()
    pool.drop()
    assert backend.flush() == size


def test_nested_values_are_cloned_and_counted_once_a_storage(backend: SimBackend) -> None:
    x, y = backend.sim.tensor([1.0, 2.0]), backend.sim.tensor([3.0])
    value = Output(x, {"more": [y, x.narrow(0, 1, 1)]}, "out")
    copy = backend.clone(value)
    x.zero_()
    assert isinstance(copy, Output)
    assert (copy.audio.tolist(), copy.extras["more"][1].item(), copy.name) == ([1.0, 2.0], 2.0, "out")
    assert backend.nbytes(value) == x.storage.nbytes + y.storage.nbytes
    twice = backend.clone([x, x])
    assert twice[0] is twice[1] is not x
    pair, listed = backend.clone((Pair(x, y), [y]))
    assert isinstance(pair, Pair)
    assert (pair.right.item(), listed[0].item()) == (3.0, 3.0)
    untouched = ("a", {"b": 1})
    assert backend.clone(untouched) is untouched
    assert backend.nbytes(untouched) == 0


def test_gradients_are_on_outside_and_off_while_recording_or_allocating(backend: SimBackend) -> None:
    x = backend.sim.zeros(1)
    assert backend.grad_enabled()
    for mode in (backend.recording_mode, backend.allocating_mode):
        with mode():
            assert not backend.grad_enabled()
    assert backend.grad_enabled()
    assert not backend.requires_grad([x])
    x.requires_grad = True
    assert backend.requires_grad({"x": (x,)})


def test_a_footprint_tells_what_changed(backend: SimBackend) -> None:
    before = backend.footprint()
    assert backend.footprint() == before
    pool = backend.new_pool()
    assert backend.footprint().pools == {pool.id: 0}
    held = backend.sim.rand(4)
    after = backend.footprint()
    assert after.generator != before.generator
    assert (after.allocated, after.reserved) == (held.nbytes, 2048)
    backend.sim.set_stream(backend.new_stream(exclusive=False))
    assert backend.footprint().stream != before.stream
    assert backend.allocated_bytes() == after.allocated


def test_capturing_is_asked_of_the_current_stream(backend: SimBackend) -> None:
    seen: list[bool] = []

    def body() -> None:
        seen.append(backend.capturing())
        with backend.on_stream(backend.sim.default_stream):
            seen.append(backend.capturing())

    captured(backend.sim, body, backend.sim.new_stream())
    assert (seen, backend.capturing()) == ([True, False], False)


def test_a_lost_device_is_reported_once_it_got_there(backend: SimBackend) -> None:
    assert backend.lost() is None
    kernels.embedding(backend.sim.tensor([9.0]), backend.sim.zeros(1, 1))
    error = backend.lost()
    assert isinstance(error, sim_errors.SimAcceleratorError)
    assert backend.failure_kind(error) is FailureKind.DEVICE
    backend.footprint()
    backend.flush()


def test_asking_whether_the_device_is_lost_does_not_break_a_capture(backend: SimBackend) -> None:
    graph, _ = captured(backend.sim, backend.lost, backend.sim.new_stream())
    graph.replay()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sim_errors.SimOutOfMemory(), FailureKind.OOM),
        (sim_errors.SimMemoryError(), FailureKind.DEVICE),
        (sim_errors.SimAcceleratorError(sim_errors.DEVICE_ASSERT), FailureKind.DEVICE),
        (sim_errors.SimAcceleratorError(sim_errors.ILLEGAL_ADDRESS), FailureKind.DEVICE),
        (sim_errors.SimAcceleratorError(sim_errors.CAPTURE_UNSUPPORTED), FailureKind.REJECTED),
        (sim_errors.SimAcceleratorError(sim_errors.CAPTURE_INVALIDATED), FailureKind.FOREIGN),
        (sim_errors.SimLibraryError(), FailureKind.REJECTED),
        (sim_errors.SimInternalAssert(), FailureKind.REJECTED),
        (sim_errors.SimRecordingError(), FailureKind.FOREIGN),
        (sim_errors.SimGeneratorError(), FailureKind.FOREIGN),
        (sim_errors.SimError(), None),
        (ValueError(), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_errors_are_told_apart(backend: SimBackend, error: BaseException, kind: FailureKind | None) -> None:
    assert backend.failure_kind(error) is kind


@pytest.mark.parametrize("before", range(4))
def test_a_replay_in_flight_comes_out_right_though_its_workspace_is_cleared(backend: SimBackend, before: int) -> None:
    dev = backend.sim
    x, weight = dev.rand(4, 4), dev.rand(4, 4)
    right = kernels.matmul(x, weight).tolist()
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    backend.prime_workspaces(pool, stream)
    dev.synchronize()
    graph, output = captured(dev, lambda: kernels.matmul(x, weight), stream, pool.id)
    dev.synchronize()
    with backend.on_stream(stream):
        for _ in range(before):  # what is freed on a stream is poisoned in its order
            kernels.scale(x, 2.0)
    with backend.on_stream(backend.new_stream(exclusive=True)):
        graph.replay()
        assert backend.clear_workspaces()
    dev.synchronize()
    assert output.tolist() == right
