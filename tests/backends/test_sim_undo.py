"""Every failure of a capture, opened through the backend, is undone: footprint as before, and the device works (I12)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Thread

import pytest

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimTensor, captured, kernels
from cgstate.backends.sim.errors import SimError, SimGeneratorError, SimOutOfMemory, SimRecordingError
from cgstate.backends.sim.faults import InjectedFault
from cgstate.backends.undo import UndoLog
from cgstate.lifecycle.states import FailureKind

KIB = 1024
CELLS = KIB // 8
MODE = CaptureErrorMode.thread_local

Body = Callable[[SimDevice], object]


def attempt(backend: SimBackend, body: Body, mode: CaptureErrorMode = MODE) -> tuple[BaseException | None, UndoLog]:
    """One capture in a pool and on a stream of its own, undone if it fails; the error, and the log."""
    pool, stream, undo = backend.new_pool(), backend.new_stream(exclusive=True), UndoLog()
    error: BaseException | None = None
    backend.keep_generator(undo)
    try:
        graph = backend.open_capture(pool, stream, mode, undo)
        body(backend.sim)
        backend.close_capture(graph)
    except Exception as caught:
        error = caught.with_traceback(None)
        error.__context__ = None
    if error is None:
        undo.succeed()
    else:
        undo.fail()
    backend.faults.clear()
    pool.drop()
    stream.close()
    gc.collect()
    backend.flush()
    return error, undo


def works(backend: SimBackend) -> None:
    """Eager work, random numbers and the next capture all succeed."""
    sim = backend.sim
    x = sim.rand(4)
    error, undo = attempt(backend, lambda device: kernels.scale(x, 2.0))
    assert (error, undo.errors) == (None, [])
    assert x.clone().tolist() == x.tolist()
    sim.synchronize()


def nested(device: SimDevice) -> None:
    captured(device, lambda: None, device.new_stream())


def in_a_thread(device: SimDevice) -> None:
    def meddle() -> None:
        with pytest.raises(SimError):
            device.synchronize()

    thread = Thread(target=meddle)
    thread.start()
    thread.join()


def unjoined(device: SimDevice) -> None:
    side = device.new_stream()
    side.wait(device.current_stream().record())
    with device.on_stream(side):
        device.zeros(1)


def outside_event(device: SimDevice) -> None:
    device.current_stream().wait(device.default_stream.record())


def raises(device: SimDevice) -> None:
    device.rand(4)
    raise ZeroDivisionError


def switches_the_stream(device: SimDevice) -> None:
    device.set_stream(device.new_stream())
    raise ZeroDivisionError


FAILURES: dict[str, tuple[Body, FailureKind | None]] = {
    "exception": (raises, None),
    "another stream left current": (switches_the_stream, None),
    "item": (lambda device: device.zeros(1).item(), FailureKind.REJECTED),
    "copy from the host": (lambda device: device.tensor([1.0]), FailureKind.REJECTED),
    "device synchronize": (lambda device: device.synchronize(), FailureKind.REJECTED),
    "nested capture": (nested, FailureKind.REJECTED),
    "library not warm": (lambda device: kernels.matmul(X[device.name], X[device.name]), FailureKind.REJECTED),
    "out of memory": (lambda device: device.zeros(4096 * CELLS), FailureKind.OOM),
    "unjoined side stream": (unjoined, FailureKind.REJECTED),
    "event from outside": (outside_event, FailureKind.REJECTED),
    "another thread": (in_a_thread, FailureKind.FOREIGN),
}

X: dict[str, SimTensor] = {}


@pytest.fixture
def backend() -> SimBackend:
    backend = SimBackend(SimDevice(SimConfig(capacity_bytes=1024 * KIB)))
    X.clear()
    X[backend.device] = backend.sim.zeros(2, 2)
    backend.sim.synchronize()
    return backend


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_capture_leaves_no_trace(backend: SimBackend, name: str) -> None:
    body, kind = FAILURES[name]
    before = backend.footprint()
    error, undo = attempt(backend, body)
    assert error is not None
    assert backend.failure_kind(error) == kind
    assert undo.errors == []
    del error
    gc.collect()
    assert backend.footprint() == before
    assert not backend.sim.captures
    assert backend.sim.streams.exclusive == 0
    works(backend)


def test_a_graph_destroyed_by_the_body_itself_breaks_the_capture_and_is_undone(backend: SimBackend) -> None:
    other, _ = captured(backend.sim, lambda: None, backend.sim.new_stream())
    error, _ = attempt(backend, lambda device: other.destroy())
    assert error is not None
    assert backend.failure_kind(error) is FailureKind.FOREIGN
    works(backend)


def test_a_capture_that_swallows_the_refusal_is_still_known_as_refused(backend: SimBackend) -> None:
    def body(device: SimDevice) -> None:
        with pytest.raises(SimError):
            device.zeros(1).item()

    error, _ = attempt(backend, body)
    assert error is not None
    assert backend.failure_kind(error) is FailureKind.REJECTED


POINTS = [
    "begin_generator",
    "retain_pool",
    "begin_route",
    "retain_host_pool",
    "begin_stream_capture",
    "allocate",
    "launch",
    "end_stream_capture",
    "instantiate",
    "close_capture",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_capture_broken_at_any_step_leaves_no_trace(backend: SimBackend, point: str) -> None:
    before = backend.footprint()
    backend.faults.inject(point)
    error, undo = attempt(backend, lambda device: device.rand(4))
    assert isinstance(error, InjectedFault)
    assert undo.errors == []
    assert backend.footprint() == before
    works(backend)


@pytest.mark.parametrize("call", ["open_capture", "close_capture"])
def test_a_capture_whose_caller_never_learns_the_result_leaves_no_trace(backend: SimBackend, call: str) -> None:
    before = backend.footprint()
    backend.faults.inject(call, when="after")
    error, undo = attempt(backend, lambda device: device.rand(4))
    assert isinstance(error, InjectedFault)
    assert undo.errors == []
    assert backend.footprint() == before
    works(backend)


STEPS = [
    "restore the stream",
    "restore the generator",
    "heal the generator",
    "release the pool",
    "stop routing",
    "end the capture",
]


@pytest.mark.parametrize("step", STEPS)
def test_each_undo_step_heals_something_that_no_other_one_does(backend: SimBackend, step: str) -> None:
    """With one step failing the others still run, and exactly its own harm stays."""
    sim = backend.sim
    backend.faults.inject(f"undo: {step}")
    pool, stream, undo = backend.new_pool(), backend.new_stream(exclusive=True), UndoLog()
    offset = sim.generator.get_state().offset
    backend.keep_generator(undo)
    sim.rand(4)
    backend.open_capture(pool, stream, MODE, undo)
    sim.zeros(1)
    undo.fail()
    assert [name for name, _ in undo.errors] == [step]
    harm = {
        "restore the stream": sim.current_handle() != 0,
        "restore the generator": sim.generator.get_state().offset != offset,
        "heal the generator": sim.generator.capturing and not sim.captures,
        "release the pool": pool.use_count() != 1,
        "stop routing": not _can_route(sim, pool.id),
        "end the capture": bool(sim.captures),
    }
    assert [name for name, harmed in harm.items() if harmed] == [step]


def _can_route(sim: SimDevice, pool_id: tuple[int, int]) -> bool:
    try:
        if not sim.captures:
            captured(sim, lambda: None, sim.new_stream(), pool_id)
    except SimRecordingError:
        return False
    return True


def test_the_graph_that_a_failure_after_the_capture_leaves_is_destroyed(backend: SimBackend) -> None:
    pool, stream, undo = backend.new_pool(), backend.new_stream(exclusive=True), UndoLog()
    graph = backend.open_capture(pool, stream, MODE, undo)
    backend.sim.zeros(1)
    backend.close_capture(graph)
    assert pool.use_count() == 2
    undo.fail()
    assert undo.errors == []
    assert pool.use_count() == 1
    with pytest.raises(SimError, match="without a preceding"):
        graph.replay()


def test_a_success_puts_back_the_stream_and_the_random_numbers_of_the_warm_up(backend: SimBackend) -> None:
    sim = backend.sim
    before, undo = backend.footprint(), UndoLog()
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    backend.keep_generator(undo)
    mark = backend.generator_mark()
    with sim.on_stream(stream):
        sim.rand(4)
    assert backend.generator_mark() != mark
    graph = backend.open_capture(pool, stream, MODE, undo)
    drawn = sim.rand(4)
    backend.close_capture(graph)
    undo.succeed()
    after = backend.footprint()
    assert (after.stream, after.generator, after.capturing) == (before.stream, before.generator, before.capturing)
    graph.replay()
    replayed = drawn.tolist()
    sim.manual_seed(0)
    assert sim.rand(4).tolist() == replayed


def test_a_body_that_leaves_another_stream_current_is_closed_all_the_same(backend: SimBackend) -> None:
    error, undo = attempt(backend, lambda device: device.set_stream(device.new_stream()))
    assert (error, undo.errors, backend.current_handle(backend.index)) == (None, [], 0)


def test_what_is_poisoned_before_is_not_poisoned_by_this_capture(backend: SimBackend) -> None:
    """The undo heals a generator that an earlier, unhealed capture left behind."""
    sim = backend.sim
    with pytest.raises(SimOutOfMemory):
        sim.zeros(4096 * CELLS)
    with pytest.raises(SimError):
        captured(sim, lambda: sim.zeros(1).item(), sim.new_stream())
    sim.set_stream(sim.default_stream)
    with pytest.raises(SimGeneratorError):
        sim.rand(1)
    attempt(backend, raises)
    sim.rand(1)
