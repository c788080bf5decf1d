"""Every failure of a capture or of a call leaves everything as it was, is told truthfully, and does not stay (I1, I12)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from threading import Thread

import pytest

from cgstate import (
    CaptureActive,
    CaptureFailed,
    Component,
    ConfigError,
    FailureKind,
    Fallback,
    GraphManager,
    IllegalTransition,
    ManagerPoisoned,
    ManagerState,
    Transaction,
)
from cgstate.backends.base import Footprint
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimStream, SimTensor, captured, kernels
from cgstate.backends.sim.errors import SimAcceleratorError, SimError, SimOutOfMemory
from cgstate.backends.sim.faults import Faults, InjectedFault
from cgstate.backends.sim.schedule import InOrder
from cgstate.backends.sim.streams import StreamQueue
from cgstate.lifecycle.states import PoolKind
from tests.runtime.failing import KIB, Bench, Toy

WORKSPACE = SimConfig().workspace_bytes
ERRORS = [ValueError, KeyboardInterrupt]
IN_CAPTURE = [
    "allocate_buffers",
    "prepare_for_capture",
    "context enter",
    "warmup",
    "capture",
    "context exit",
    "after_capture",
]


def as_before(after: Footprint, before: Footprint) -> bool:
    """Whether nothing was left behind; library workspaces that are in nobody's way may have been given back, too."""
    gone = before.allocated - after.allocated
    return (
        gone % WORKSPACE == 0 <= gone
        and before.reserved >= after.reserved
        and replace(after, allocated=before.allocated, reserved=before.reserved) == before
    )


# -- the routine raises -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", IN_CAPTURE)
def test_a_routine_that_raises_at_startup_leaves_nothing_behind(method: str, error: type[BaseException], isolation: str) -> None:
    bench = Bench("a", "b", isolation=isolation).prepared()
    before, states = bench.footprint(), bench.states()
    raised = error("boom")
    bench.routines["b"].fail(method, raised, nth=2)
    if error is ValueError:
        with pytest.raises(CaptureFailed) as failure:
            bench.manager.capture_and_bind()
        assert failure.value.__cause__ is raised
        assert (failure.value.kind, failure.value.component, failure.value.cleanup) == (
            FailureKind.USER,
            "b",
            () if method != "after_capture" else (("after_capture", raised),),
        )
        descriptor = failure.value.descriptor
        assert bench.states() == {**states, "b": "FAILED", f"b[{descriptor}]": "FAILED"}
    else:
        with pytest.raises(error) as interrupt:
            bench.manager.capture_and_bind()
        assert interrupt.value is raised
        assert bench.states() == states
    bench.quiet()
    assert bench.footprint() == before
    bench.answers(3)
    report = bench.manager.capture_and_bind()
    assert dict(report.bound) == {"a": 3, "b": 3}
    bench.answers()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", IN_CAPTURE)
def test_a_failed_recapture_leaves_the_siblings_serving(method: str, error: type[BaseException]) -> None:
    bench = Bench("a", "b", isolation="per_entry").serving()
    bench.manager.evict("b", 8)
    before, states, uses = bench.footprint(), bench.states(), bench.uses()
    bench.routines["b"].fail(method, error("boom"))
    with pytest.raises((CaptureFailed, KeyboardInterrupt)):
        bench.manager.capture_and_bind()
    bench.quiet()
    after = {"b[8]": "FAILED"} if error is ValueError else {}
    assert bench.states() == {**states, **after}
    assert bench.footprint() == before
    assert bench.uses() == uses
    bench.answers()
    bench.manager.capture_and_bind()
    bench.answers()
    assert bench.states()["b[8]"] == "BOUND"


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", [*IN_CAPTURE, "make_lazy_descriptor"])
def test_a_routine_that_raises_in_a_lazy_capture_is_heard_and_leaves_nothing(
    method: str, error: type[BaseException], isolation: str
) -> None:
    bench = Bench.lazily(isolation=isolation).serving()
    bench.answers(4)
    x = bench.device.rand(8, 4)
    before, states, uses = bench.footprint(), bench.states(), bench.uses()
    raised = error("boom")
    bench.routine.fail(method, raised)
    with pytest.raises(error) as caught:
        bench.component(x)
    assert caught.value is raised
    del caught
    raised.__traceback__ = None
    bench.quiet()
    after = bench.footprint()
    if isolation == "shared":  # what the attempt grew stays in the pool that the sibling lives in, free and charged
        assert bench.manager.memory().total >= sum(after.pools.values())
        after = replace(after, pools=before.pools, reserved=before.reserved)
    assert as_before(after, before)
    assert bench.states() == states
    assert bench.uses() == uses
    assert bench.component(x).tolist() == bench.routine.work(x).tolist()
    bench.answers(3, 4, 8)
    bench.manager.forget_failures()
    assert bench.component(x).tolist() == bench.routine.work(x).tolist()
    assert 8 in bench.component.available_descriptors


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", ["copy_runtime_inputs", "output_after_replay", "resolve_runtime", "validate_runtime_inputs"])
def test_a_routine_that_raises_in_a_call_keeps_its_graph(method: str, error: type[BaseException]) -> None:
    bench = Bench().serving()
    bench.answers(4)
    before, states = bench.footprint(), bench.states()
    raised = error("boom")
    bench.routine.fail(method, raised)
    x = bench.device.rand(4, 4)
    with pytest.raises(error) as caught:
        bench.component(x)
    assert caught.value is raised
    del caught, x
    raised.__traceback__ = None
    bench.quiet()
    assert bench.states() == states
    assert bench.footprint().allocated == before.allocated
    bench.answers()
    assert bench.manager.stats().components["toy"].failures == {}


@pytest.mark.parametrize("error", ERRORS)
def test_an_eager_call_that_raises_lets_captures_through_afterwards(error: type[BaseException]) -> None:
    bench = Bench().serving()
    bench.routine.fail("eager_call", error("boom"))
    with pytest.raises(error):
        bench.component(bench.device.rand(40, 4))
    bench.quiet()
    assert bench.manager.stats().components["toy"].fallbacks == {Fallback.miss: 1}
    bench.answers()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", ["validate_descriptor", *IN_CAPTURE])
def test_a_routine_that_raises_while_profiling_leaves_nothing(method: str, error: type[BaseException]) -> None:
    bench = Bench("a", "b").prepared()
    before, states = bench.footprint(), bench.states()
    bench.routines["a"].fail(method, error("boom"))
    if error is ValueError:
        estimate = bench.manager.profile_memory()
        assert estimate.trusted is (method == "validate_descriptor")  # profiling trusts what prepare has validated
    elif method == "validate_descriptor":
        bench.manager.profile_memory()
    else:
        with pytest.raises(KeyboardInterrupt):
            bench.manager.profile_memory()
    bench.routines["a"].cure()
    bench.quiet()
    assert bench.states() == states
    assert bench.footprint() == before
    assert bench.manager.stats().components["a"].failures == {}
    bench.manager.capture_and_bind()
    bench.answers()


class CallersFirst(InOrder):
    """Whatever the caller has queued on the default stream runs first."""

    def choose(self, ready: Sequence[StreamQueue]) -> int:
        """As `Schedule.choose`."""
        return next((place for place, queue in enumerate(ready) if queue.handle == 0), 0)


class Scribbles(Toy):
    """Writes its input while warming up, and raises."""

    def forward_for_capture(self, descriptor: int, buffers: SimTensor) -> object:
        self.address = buffers.data_ptr()
        buffers.copy_(self.device.tensor([[7.0] * 4] * descriptor))
        raise ValueError("boom")


def test_what_a_failed_warm_up_still_writes_is_not_anybody_elses_yet() -> None:
    device = SimDevice(schedule=CallersFirst())
    routine = Scribbles(device)
    manager = GraphManager(SimBackend(device), check=True)
    manager.prepare([Component("toy", routine, [64])])
    with pytest.raises(CaptureFailed):
        manager.capture_and_bind()
    x = device.zeros(64, 4)
    assert x.data_ptr() == routine.address, "the caller's stream has the memory back"
    device.synchronize()
    assert x.tolist() == [[0.0] * 4] * 64


@pytest.mark.parametrize("error", ERRORS)
def test_a_rejected_lazy_descriptor_is_eager_and_an_interrupt_goes_through(error: type[BaseException]) -> None:
    bench = Bench.lazily().serving()
    bench.routine.fail("validate_descriptor", error("boom"))
    x = bench.device.rand(8, 4)
    if error is ValueError:
        assert bench.component(x).tolist() == bench.routine.work(x).tolist()
        assert bench.manager.stats().components["toy"].fallbacks == {Fallback.rejected: 1}
    else:
        with pytest.raises(error):
            bench.component(x)
    bench.quiet()
    bench.answers()


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("method", IN_CAPTURE)
def test_an_error_that_cannot_be_printed_does_not_hold_the_gate(method: str) -> None:
    bench = Bench().prepared()
    before = bench.footprint()
    bench.routine.fail(method, Mute())
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert isinstance(failure.value.__cause__, Mute)
    assert str(failure.value)
    bench.quiet()
    assert bench.footprint() == before
    bench.manager.capture_and_bind()
    bench.answers()


def test_a_rejection_that_cannot_be_printed_is_answered_eagerly() -> None:
    bench = Bench.lazily().serving()
    bench.routine.fail("validate_descriptor", Mute())
    bench.answers(8)
    bench.quiet()


@pytest.mark.parametrize("chained", ["cause", "context", "group"])
def test_memory_held_by_an_error_behind_the_error_comes_back(chained: str) -> None:
    bench = Bench().prepared()
    before = bench.footprint()

    def deep() -> None:
        kept = bench.device.zeros(64, 4)
        raise KeyError(kept.shape)

    def body(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
        try:
            deep()
        except KeyError as error:
            if chained == "cause":
                raise ValueError("outer") from error
            if chained == "group":
                raise ExceptionGroup("outer", [error]) from None
            raise ValueError("outer")  # noqa: B904  # the implicit context is what is tested

    bench.routine.body = body
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    bench.routine.cure()
    assert bench.footprint() == before, "while the error is still held"
    assert failure.value.__cause__ is not None
    bench.manager.capture_and_bind()
    bench.answers()


def test_memory_held_by_an_error_of_the_clean_up_comes_back() -> None:
    bench = Bench().prepared()
    before = bench.footprint()
    bench.routine.fail("capture", ValueError("first"))
    second = ValueError("second")
    bench.routine.fail("after_capture", second)
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert str(failure.value.__cause__) == "first"
    assert failure.value.cleanup == (("after_capture", second),)
    assert "second" in str(failure.value)
    assert bench.footprint() == before
    bench.quiet()


def test_an_interrupt_tells_what_went_wrong_in_its_clean_up() -> None:
    bench = Bench().prepared()
    bench.routine.fail("capture", KeyboardInterrupt())
    bench.routine.fail("after_capture", ValueError("second"))
    with pytest.raises(KeyboardInterrupt) as interrupt:
        bench.manager.capture_and_bind()
    assert "second" in "".join(interrupt.value.__notes__)
    bench.quiet()


@pytest.mark.parametrize("where", ["allocate_buffers", "prepare_for_capture", "after_capture"])
def test_a_failed_capture_restores_random_numbers_drawn_by_any_method(where: str) -> None:
    bench = Bench().prepared()
    bench.routine.fail("capture", ValueError("boom"))
    method = getattr(bench.routine, where)

    def drawing(*args: object) -> object:
        bench.device.rand(4)
        return method(*args)

    setattr(bench.routine, where, drawing)
    before = bench.footprint()
    with pytest.raises(CaptureFailed):
        bench.manager.capture_and_bind()
    assert bench.footprint() == before


@pytest.mark.parametrize("where", ["allocate_buffers", "prepare_for_capture", "after_capture", "forward_for_capture"])
def test_a_successful_capture_does_not_move_the_callers_random_numbers(where: str) -> None:
    bench = Bench().prepared()
    method = getattr(bench.routine, where)

    def drawing(*args: object) -> object:
        bench.device.rand(4)
        return method(*args)

    setattr(bench.routine, where, drawing)
    before = bench.footprint().generator
    bench.manager.profile_memory()
    assert bench.footprint().generator == before
    bench.manager.capture_and_bind()
    assert bench.footprint().generator == before


def test_a_context_that_swallows_the_error_does_not_bind_what_is_broken() -> None:
    bench = Bench().prepared()
    bench.routine.capture_context = lambda descriptor, buffers: suppress(Exception)  # type: ignore[method-assign]
    before = bench.footprint()
    bench.routine.fail("capture", ValueError("swallowed"))
    with pytest.raises(CaptureFailed):
        bench.manager.capture_and_bind()
    bench.quiet()
    gc.collect()  # the swallowed error is in a cycle with its own frames
    assert bench.footprint() == before
    bench.faults.inject("close_capture")
    with pytest.raises(CaptureFailed):
        bench.manager.capture_and_bind()
    bench.quiet()
    assert bench.footprint() == before
    bench.manager.capture_and_bind()
    bench.answers()


# -- the device, and what bodies do to it -------------------------------------------------------------------------------


def reads(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    buffers.narrow(0, 0, 1).narrow(1, 0, 1).item()


def swallows_a_read(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    with suppress(SimError):
        reads(routine, descriptor, buffers)


def fills_the_device(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    routine.device.zeros(4096 * KIB // 8)


def another_thread_waits(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    def wait() -> None:
        with pytest.raises(SimError):
            routine.device.synchronize()

    thread = Thread(target=wait)
    thread.start()
    thread.join()


def nests(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    captured(routine.device, lambda: None, routine.device.new_stream())


def switches_the_stream(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    routine.device.set_stream(routine.device.new_stream())
    raise ValueError("on another stream")


def draws_and_raises(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    routine.device.rand(8)
    raise ValueError("after a draw")


def leaves_a_side_stream(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    device = routine.device
    side = device.new_stream()
    side.wait(device.current_stream().record())
    with device.on_stream(side):
        kernels.relu(buffers)


BODIES: dict[str, tuple[Callable[[Toy, int, SimTensor], object], FailureKind]] = {
    "item": (reads, FailureKind.REJECTED),
    "an item that is swallowed": (swallows_a_read, FailureKind.REJECTED),
    "out of memory": (fills_the_device, FailureKind.OOM),
    "a foreign thread waits": (another_thread_waits, FailureKind.FOREIGN),
    "nested capture": (nests, FailureKind.REJECTED),
    "stream switched": (switches_the_stream, FailureKind.USER),
    "random numbers drawn": (draws_and_raises, FailureKind.USER),
    "unjoined stream": (leaves_a_side_stream, FailureKind.REJECTED),
}


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize("name", BODIES)
def test_what_a_body_breaks_is_undone_and_told_apart(name: str, mode: str) -> None:
    body, kind = BODIES[name]
    bench = Bench("a", "b", isolation="per_component", capture_error_mode=mode).prepared()
    before = bench.footprint()
    bench.routines["b"].body = body
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert failure.value.kind == kind
    bench.routines["b"].cure()
    bench.quiet()
    assert bench.footprint() == before
    bench.answers(3)
    bench.device.rand(3)
    bench.manager.forget_failures()
    bench.manager.capture_and_bind()
    bench.answers()


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
@pytest.mark.parametrize("name", BODIES)
def test_what_a_body_breaks_in_a_lazy_capture_is_answered_eagerly_unless_it_is_the_users(name: str, isolation: str) -> None:
    body, kind = BODIES[name]
    bench = Bench.lazily(isolation=isolation).serving()
    bench.answers(4)
    x = bench.device.rand(8, 4)
    before, states, uses = bench.footprint(), bench.states(), bench.uses()
    bench.routine.body = body
    if kind is FailureKind.USER:
        with pytest.raises(ValueError, match=r"stream|draw"):
            bench.component(x)
    else:
        assert bench.component(x).tolist() == bench.routine.work(x).tolist()
        assert bench.manager.stats().components["toy"].fallbacks == {Fallback(kind.lower()): 1}
    assert bench.manager.stats().components["toy"].failures == {kind: 1}
    bench.routine.cure()
    bench.quiet()
    after = bench.footprint()
    if isolation == "shared":
        after = replace(after, pools=before.pools, reserved=before.reserved)
    assert as_before(after, before)
    assert (bench.states(), bench.uses()) == (states, uses)
    bench.answers(1, 4)
    bench.manager.forget_failures()
    bench.answers(8)
    assert 8 in bench.component.available_descriptors


def test_a_foreign_graph_destroyed_by_the_body_fails_the_capture_cleanly() -> None:
    bench = Bench().prepared()
    theirs, _ = captured(bench.device, lambda: kernels.relu(bench.routine.weight), bench.device.new_stream())
    before = bench.footprint()
    bench.routine.body = lambda routine, descriptor, buffers: theirs.destroy()
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert failure.value.kind in (FailureKind.FOREIGN, FailureKind.REJECTED)
    bench.routine.cure()
    bench.quiet()
    after = bench.footprint()
    assert (after.stream, after.generator) == (before.stream, before.generator)
    bench.manager.forget_failures()
    bench.manager.capture_and_bind()
    bench.answers()


@pytest.mark.parametrize(
    "act",
    [
        lambda manager: manager.capture_and_bind(),
        lambda manager: manager.profile_memory(),
        lambda manager: manager.close(),
        lambda manager: manager.release(),
        lambda manager: manager.evict("toy"),
        lambda manager: manager.transaction().__enter__(),
    ],
    ids=["capture_and_bind", "profile_memory", "close", "release", "evict", "transaction"],
)
def test_a_manager_called_from_inside_its_own_capture_refuses(act: Callable[[GraphManager], object]) -> None:
    bench = Bench().prepared()
    before = bench.footprint()
    bench.routine.body = lambda routine, descriptor, buffers: act(bench.manager)
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert isinstance(failure.value.__cause__, CaptureActive)
    bench.routine.cure()
    bench.quiet()
    assert bench.footprint() == before
    bench.manager.capture_and_bind()
    bench.answers()


# -- the device is lost -------------------------------------------------------------------------------------------------


def loses(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    routine.device.lose()
    routine.device.zeros(1)


def test_a_device_lost_in_a_startup_capture_poisons_the_manager() -> None:
    bench = Bench("a", "b").prepared()
    bench.routines["a"].body = loses
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert failure.value.kind == FailureKind.DEVICE
    assert bench.manager.state is ManagerState.POISONED
    bench.quiet()
    for component in bench.components.values():
        with pytest.raises((ManagerPoisoned, SimAcceleratorError)):
            component(bench.routine.weight)
    with pytest.raises(ManagerPoisoned):
        bench.manager.capture_and_bind()
    bench.manager.close()
    assert str(bench.manager.state) == "CLOSED"


def test_a_device_lost_in_a_lazy_capture_is_raised_and_never_answered_on_a_dead_context() -> None:
    bench = Bench.lazily().serving()
    x = bench.device.rand(8, 4)
    bench.routine.body = loses
    with pytest.raises(ManagerPoisoned):
        bench.component(x)
    eager = bench.routine.calls["eager_call"]
    with pytest.raises(ManagerPoisoned):
        bench.component(x)
    assert bench.routine.calls["eager_call"] == eager
    bench.quiet()
    with pytest.raises(ManagerPoisoned):
        bench.manager.entry("toy", 4).replay()
    bench.manager.close()


def test_a_device_lost_while_profiling_poisons_the_manager() -> None:
    bench = Bench().prepared()
    bench.routine.body = loses
    with pytest.raises(CaptureFailed):
        bench.manager.profile_memory()
    assert bench.manager.state is ManagerState.POISONED
    bench.quiet()
    bench.manager.close()


def test_a_device_lost_in_an_eager_call_is_noticed() -> None:
    bench = Bench().serving()
    x = bench.device.rand(40, 4)
    bench.device.lose()
    with pytest.raises(SimAcceleratorError):
        bench.component(x)
    assert bench.manager.state is ManagerState.POISONED
    bench.quiet()
    bench.manager.close()


def test_a_device_lost_before_a_launch_poisons_the_manager() -> None:
    bench = Bench().serving()
    entry = bench.manager.entry("toy", 4)
    bench.device.lose()
    with pytest.raises(SimAcceleratorError):
        entry.replay()
    assert bench.manager.state is ManagerState.POISONED
    with pytest.raises(ManagerPoisoned):
        entry.replay()
    bench.quiet()
    bench.manager.close()


# -- launches fail ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
@pytest.mark.parametrize("door", ["component", "replay", "lease"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_launch_fails_that_entry_alone(door: str, when: str, isolation: str, error: type[BaseException]) -> None:
    bench = Bench(isolation=isolation).serving()
    x = bench.device.rand(4, 4)
    entry = bench.manager.entry("toy", 4)
    raised = error("launch")
    bench.faults.inject("graph_replay", when=when, error=raised)  # type: ignore[arg-type]

    def leased() -> None:
        with entry.lease() as lease:
            lease.replay()

    doors = {"component": lambda: bench.component(x), "replay": entry.replay, "lease": leased}
    with pytest.raises(error) as caught:
        doors[door]()
    assert caught.value is raised
    bench.quiet()
    assert entry.state == "FAILED"
    assert bench.states()["toy"] == "BOUND"
    assert 4 not in bench.component.available_descriptors
    with pytest.raises(IllegalTransition):
        entry.replay()
    bench.answers()  # 4 rows now go to the graph of 8
    bench.manager.capture_and_bind()
    assert entry.state == "BOUND"
    bench.answers()


# -- every call of the backend fails ------------------------------------------------------------------------------------


def calls_of(scenario: Callable[[Bench], object], make: Callable[[], Bench]) -> list[tuple[str, int]]:
    """Which backend calls the scenario makes, how often each."""
    bench = make()
    before = bench.faults.calls.copy()
    scenario(bench)
    made = bench.faults.calls - before
    return sorted(made.items())


def startup() -> Bench:
    return Bench("a", "b", descriptors=(4, 8), isolation="per_component").prepared()


def capture(bench: Bench) -> None:
    bench.manager.capture_and_bind()


def lazily() -> Bench:
    bench = Bench.lazily(isolation="per_entry").serving()
    bench.device.rand(8, 4)
    return bench


def miss(bench: Bench) -> None:
    bench.component(bench.routine.weight.new_zeros((8, 4)))


def failing() -> Bench:
    bench = startup()
    bench.routines["b"].fail("capture", ValueError("first"))
    return bench


def failing_capture(bench: Bench) -> None:
    with pytest.raises((CaptureFailed, InjectedFault)) as failure:
        bench.manager.capture_and_bind()
    if not isinstance(failure.value, CaptureFailed):
        failure.value.with_traceback(None)  # it has this frame, which has it: a call's own error may hold what the call had
    elif isinstance(failure.value.__cause__, ValueError):
        assert str(failure.value.__cause__) == "first"


def profiled(bench: Bench) -> None:
    bench.manager.profile_memory()


def capture_more(bench: Bench, door: Callable[[], AbstractContextManager[Transaction]]) -> None:
    entry = bench.manager.entry("own", 1)
    with door() as transaction:
        transaction.capture(entry, lambda warmup: lambda: bench.device.zeros(4))


def profile_more(bench: Bench) -> None:
    with bench.manager.profile() as profile:
        capture_more(bench, profile.transaction)


SCENARIOS = {
    "startup": (startup, capture),
    "lazy": (lazily, miss),
    "failing": (failing, failing_capture),
    "profile": (startup, profiled),
    "profile block": (startup, profile_more),
}
CASES = [
    (scenario, call, nth)
    for scenario, (make, act) in SCENARIOS.items()
    for call, count in calls_of(act, make)
    for nth in (range(1, count + 1) if call == "pool_reserved_bytes" else sorted({1, count}))  # which only audits ask so often
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("scenario", "call", "nth"), CASES)
def test_any_backend_call_may_fail(scenario: str, call: str, nth: int, when: str) -> None:
    make, act = SCENARIOS[scenario]
    bench = make()
    before, states = bench.footprint(), bench.states()
    bench.faults.inject(call, nth=nth, when=when)  # type: ignore[arg-type]
    raised: BaseException | None = None
    try:
        act(bench)
    except (CaptureFailed, InjectedFault) as error:
        # What a failed capture held must come back even while its error is held; a call's own error may hold what the call had.
        raised = error if isinstance(error, CaptureFailed) else error.with_traceback(None)
        for step in error.cleanup if isinstance(error, CaptureFailed) else ():
            assert isinstance(step[1], InjectedFault | ValueError)
    bench.faults.clear()
    for routine in bench.routines.values():
        routine.cure()
    if call.startswith("undo: "):
        # Nobody can stand in for the step that puts something back: what is asked is that the others ran, and that it is told.
        if isinstance(raised, CaptureFailed) and when == "before":
            assert any(f"undo: {name}" == call for name, _ in raised.cleanup)
        bench.device.set_stream(bench.device.default_stream)
        bench.quiet_books()
        return
    bench.quiet()
    assert bench.device.current_stream() is bench.device.default_stream
    left_behind = when == "before" and call in ("graph_destroy", "pool_drop")  # it was not destroyed, so it is still there
    if raised is not None:
        after = bench.footprint()
        assert (after.stream, after.generator, after.capturing) == (before.stream, before.generator, before.capturing)
        if scenario.startswith("profile"):
            assert left_behind or after == before
            assert bench.states() == states
        elif isinstance(raised, CaptureFailed):
            assert left_behind or after == before
            failed = {name for name, state in bench.states().items() if states.get(name) != state}
            assert failed <= {raised.component, f"{raised.component}[{raised.descriptor!r}]"}
    bench.manager.forget_failures()
    if scenario != "lazy":
        bench.manager.capture_and_bind()
    bench.answers(1, 4, 8)
    if not left_behind:
        assert all(domain.kind is not PoolKind.throwaway for domain in bench.books.domains.values())
        bench.manager.close()
        assert bench.manager.memory().total == 0


def serving() -> Bench:
    return Bench("a", "b", descriptors=(4, 8), component={"dependencies": ("kv",)}).serving()


def sleep(bench: Bench) -> None:
    bench.manager.suspend("kv")
    bench.manager.resume("kv")


def leased(bench: Bench) -> None:
    with bench.manager.entry("a", 4).lease() as lease:
        lease.replay()


LOSSES: dict[str, tuple[Callable[[], Bench], Callable[[Bench], object]]] = {
    "startup": (startup, capture),
    "lazy": (lazily, miss),
    "profile": (startup, profiled),
    "thorough profile": (startup, lambda bench: bench.manager.profile_memory(thorough=True)),
    "profile block": (startup, profile_more),
    "transaction": (serving, lambda bench: capture_more(bench, bench.manager.transaction)),
    "evict": (serving, lambda bench: bench.manager.evict("a")),
    "invalidate": (serving, lambda bench: bench.manager.invalidate("kv")),
    "suspend": (serving, sleep),
    "replay": (serving, lambda bench: bench.manager.entry("a", 4).replay()),
    "lease": (serving, leased),
    "release": (serving, lambda bench: bench.manager.release()),
}


@pytest.mark.parametrize("scenario", LOSSES)
def test_whatever_a_lost_device_raises_poisons_the_manager(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, act = LOSSES[scenario]
    noticed = 0
    for call, count in calls_of(act, make):
        for nth in sorted({1, (count + 1) // 2, count}):
            bench = make()
            left = [nth]

            def lose(name: str, bench: Bench = bench, call: str = call, left: list[int] = left) -> None:
                if name == call:
                    left[0] -= 1
                    if not left[0]:
                        bench.device.lose()
                Faults.before(bench.faults, name)

            monkeypatch.setattr(bench.faults, "before", lose)
            try:
                act(bench)
            except (CaptureFailed, ManagerPoisoned, SimAcceleratorError):
                own = scenario == "lazy" and bench.manager.state is ManagerState.SERVING  # the bench's own input was refused
                assert own or bench.manager.state is ManagerState.POISONED, f"{call} {nth}"
                bench.quiet_books()
            noticed += bench.manager.state is ManagerState.POISONED
            bench.manager.close()
    assert noticed >= 2


def test_an_audit_that_cannot_look_hides_no_failure_and_keeps_nothing_from_its_end() -> None:
    notes = list[str]()
    for nth in range(1, dict(calls_of(failing_capture, failing))["pool_reserved_bytes"] + 1):
        bench = failing()
        states = bench.states()
        bench.faults.inject("pool_reserved_bytes", nth=nth)
        with pytest.raises((CaptureFailed, InjectedFault)) as failure:
            bench.manager.capture_and_bind()
        if isinstance(failure.value, CaptureFailed):
            notes += getattr(failure.value, "__notes__", [])
        else:
            assert states.items() <= bench.states().items(), "the failure of b is hidden"
    assert any("ending the transaction raised InjectedFault" in note for note in notes)


def test_an_audit_that_cannot_look_at_the_end_of_a_miss_leaves_no_half_of_it() -> None:
    def fail(bench: Bench) -> None:
        bench.routine.fail("capture", ValueError("first"))
        with suppress(ValueError, InjectedFault):
            miss(bench)

    for nth in range(1, dict(calls_of(fail, lazily))["pool_reserved_bytes"] + 1):
        bench = lazily()
        bench.faults.inject("pool_reserved_bytes", nth=nth)
        fail(bench)
        bench.routine.cure()
        bench.quiet_books()
        assert (bench.books.wanted, bench.faults.pending()) == (None, 0)
        bench.manager.forget_failures()
        bench.answers(8)
        bench.manager.close()


@pytest.mark.parametrize("first", ["close_capture", "open_capture", "prime_workspaces", "stream_wait"])
@pytest.mark.parametrize(
    "second",
    [
        "undo: destroy the graph",
        "undo: restore the stream",
        "undo: heal the generator",
        "undo: release the pool",
        "undo: stop routing",
        "undo: end the capture",
        "undo: restore the generator",
    ],
)
def test_two_failures_at_once_keep_the_first_and_tell_of_the_second(first: str, second: str) -> None:
    bench = Bench().prepared()
    error = InjectedFault("first")
    bench.faults.inject(first, error=error, when="after" if first == "open_capture" else "before")
    bench.faults.inject(second)
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert failure.value.__cause__ is error
    opened = first in ("close_capture", "open_capture")
    if opened or second == "undo: restore the generator":
        assert [f"undo: {name}" for name, _ in failure.value.cleanup] == [second]
    bench.faults.clear()
    bench.device.set_stream(bench.device.default_stream)
    bench.quiet_books()


def test_a_driver_that_cannot_make_a_pool_for_want_of_memory_is_answered_eagerly() -> None:
    for call in ("new_pool", "new_stream"):
        bench = Bench.lazily(isolation="per_entry").serving()
        states = bench.states()
        bench.faults.inject(call, error=SimOutOfMemory("full"))
        bench.answers(8)
        assert bench.manager.stats().components["toy"].fallbacks == {Fallback.oom: 1}
        bench.quiet()
        assert bench.states() == states


def test_the_default_stream_is_never_captured_on() -> None:
    bench = Bench().serving()
    entry = bench.manager.entry("own", 1)
    states = bench.states()
    stream: SimStream = bench.device.default_stream
    with pytest.raises(ConfigError):
        with bench.manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: lambda: None, stream=stream)
    bench.quiet()
    assert bench.states() == states


def test_a_graph_whose_clean_up_failed_is_destroyed_at_once_and_not_by_the_garbage_collector() -> None:
    bench = Bench().prepared()
    bench.routine.fail("after_capture", ValueError("boom"))
    destroyed = bench.faults.calls["graph_destroy"]
    with pytest.raises(CaptureFailed):
        bench.manager.capture_and_bind()
    assert bench.faults.calls["graph_destroy"] == destroyed + 1


def test_garbage_collection_is_off_in_a_capture_and_on_again_after_a_failure() -> None:
    bench = Bench().prepared()
    seen: list[bool] = []
    bench.routine.body = lambda *_: seen.append(gc.isenabled())
    bench.manager.capture_and_bind()
    assert seen == [False] * 3
    bench.manager.release()
    assert gc.isenabled()
    bench.routine.fail("capture", ValueError())
    with pytest.raises(CaptureFailed):
        bench.manager.capture_and_bind()
    assert gc.isenabled()


def test_a_backend_failure_in_a_call_gives_lease_turn_and_gate_back() -> None:
    scenario_calls = calls_of(lambda bench: bench.component(bench.routine.weight), lambda: Bench().serving())
    for call, count in scenario_calls:
        for nth in range(1, count + 1):
            bench = Bench().serving()
            bench.faults.inject(call, nth=nth)
            with suppress(InjectedFault):
                bench.component(bench.routine.weight)
            bench.faults.clear()
            bench.quiet()
            bench.answers(1, 4, 8)


def test_the_backend_of_a_test_is_the_simulator() -> None:
    assert isinstance(Bench().manager.backend, SimBackend)
