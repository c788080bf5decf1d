"""Whatever an observer raises, and whenever, the step that it was told of is whole, and so is the operation that took the step.

Each test does one thing again and again, and each time another of the observations raises. The error reaches whoever asked for the
thing, once it is in order; nothing else does.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim.errors import SimAcceleratorError
from cgstate.runtime import check
from cgstate.runtime.witness import LeaseWitness, Witness
from tests.runtime.helpers import elsewhere
from tests.runtime.test_interrupts import ACTS, EARLY, Bench, Split, lease, mutate


class DeafError(Exception):
    """An observer could not take what it was told."""


class Ear:
    """Counts what it is told, and raises at one observation after it is armed: from the ``nth`` on at ``times`` of them."""

    def __init__(self) -> None:
        self.heard = 0
        self.nth = 0
        self.times = 1
        self.error: type[BaseException] = DeafError
        self.raised: list[BaseException] = []

    def arm(self, nth: int, error: type[BaseException], times: int = 1) -> None:
        self.heard, self.nth, self.error, self.times = 0, nth, error, times

    def hear(self, *told: object) -> None:
        self.heard += 1
        if self.nth and self.nth <= self.heard < self.nth + self.times:
            error = self.error(f"observation {self.heard}")
            self.raised.append(error)
            raise error


class Plain(Ear):
    """A function."""

    @property
    def observer(self) -> Any:
        return self.hear


class Told(Ear):
    """It is told what is no step, too."""

    step = notice = Ear.hear

    @property
    def observer(self) -> Any:
        return self


class Brief(Told):
    """It is told of leases in one word."""

    acquired = released = Ear.hear


def test_the_ears_are_what_they_are_called() -> None:
    assert not isinstance(Plain(), Witness)
    assert isinstance(Told(), Witness)
    assert not isinstance(Told(), LeaseWitness)
    assert isinstance(Brief(), LeaseWitness)


def hearing(kind: type[Ear], make: Callable[..., Bench] = Bench, **keys: Any) -> Bench:
    """A bench whose manager has an ear."""
    ear: Any = kind()
    bench = make(observer=ear.observer, **keys)
    bench.ear = ear  # type: ignore[attr-defined]  # for `armed`
    return bench


@contextmanager
def armed(bench: Bench, nth: int, error: type[BaseException], times: int = 1) -> Iterator[Ear]:
    """The ear of a bench, armed for the block."""
    ear: Ear = bench.ear  # type: ignore[attr-defined]
    ear.arm(nth, error, times)
    try:
        yield ear
    finally:
        ear.nth = 0


def whole(bench: Bench) -> None:
    """Nothing is kept for later, everything is in order, and everything can be done."""
    assert bench.books.gate.kept == {}
    bench.in_order()
    bench.goes_on()


def tells(bench: Bench, act: Callable[[Bench], object]) -> int:
    """Of how much an observer is told while ``act`` is done."""
    with armed(bench, 0, DeafError) as ear:
        act(bench)
        return ear.heard


def sweep(make: Callable[[], Bench], act: Callable[[Bench], object], error: type[BaseException], *, every: int = 1) -> None:
    """Let one observation after the other raise while ``act`` is done, or one of ``every`` so many."""
    number = tells(make(), act)
    assert number
    for nth in range(1, number + 1, every):
        bench = make()
        try:
            with armed(bench, nth, error) as ear, pytest.raises(error) as caught:
                act(bench)
            assert [caught.value] == ear.raised
            del caught
            gc.collect()
            whole(bench)
        except BaseException as problem:
            problem.add_note(f"observation {nth} of {number} raised")
            raise


def away_and_back(bench: Bench) -> None:
    bench.manager.suspend("kv")
    bench.manager.resume("kv", moved=True)


def anew(bench: Bench) -> None:
    bench.manager.release()
    bench.manager.capture_and_bind()


SERVING: dict[str, Callable[[Bench], object]] = {
    "an entry is replayed": lambda bench: bench.low().replay(),
    "a lease is held": lease,
    "a call is answered": lambda bench: bench.call(4),
    "a miss captures": lambda bench: bench.call(12),
    **{what: act for what, act in ACTS.items() if not what.endswith(("fails", "refused"))},
    "memory comes back": away_and_back,
    "everything is captured anew": anew,
}

ERRORS = pytest.mark.parametrize("error", [DeafError, KeyboardInterrupt])


@ERRORS
@pytest.mark.parametrize("act", SERVING.values(), ids=SERVING.keys())
class TestServingWhile:
    def test_and_a_function_observes(self, act: Callable[[Bench], object], error: type[BaseException]) -> None:
        if act is ACTS["memory goes"]:
            pytest.skip("no transition")
        sweep(lambda: hearing(Plain), act, error)

    def test_and_a_witness_is_told_of_leases_in_one_word(self, act: Callable[[Bench], object], error: type[BaseException]) -> None:
        sweep(lambda: hearing(Brief), act, error)

    def test_and_everything_is_checked(self, act: Callable[[Bench], object], error: type[BaseException]) -> None:
        sweep(lambda: hearing(Told, check=True), act, error)


@ERRORS
def test_a_call_that_is_answered_eagerly(error: type[BaseException]) -> None:
    sweep(lambda: hearing(Told), lambda bench: bench.net(bench.model.input(30)), error)


@ERRORS
@pytest.mark.parametrize("kind", [Plain, Brief])
def test_a_call_that_hands_out_its_static_output(kind: type[Ear], error: type[BaseException]) -> None:
    sweep(lambda: hearing(kind, leased=True), lambda bench: bench.call(4), error)


@ERRORS
@pytest.mark.parametrize("kind", [Plain, Brief])
def test_a_replay_with_an_eager_break(kind: type[Ear], error: type[BaseException]) -> None:
    sweep(lambda: hearing(kind, Split), lambda bench: bench.manager.entry("split", 2).replay(), error)


@ERRORS
@pytest.mark.parametrize("act", EARLY.values(), ids=EARLY.keys())
def test_before_serving_while(act: Callable[[Bench], object], error: type[BaseException]) -> None:
    sweep(lambda: hearing(Told, serving=False, isolation="shared", check=True), act, error)


def test_an_operation_is_done_in_full() -> None:
    bench = hearing(Told)
    with armed(bench, 1, DeafError) as ear:
        with pytest.raises(DeafError):
            bench.manager.evict("net")
        told = ear.heard
    assert [bench.manager.entry("net", size).state for size in (4, 8)] == ["EVICTED", "EVICTED"]
    other = hearing(Told)
    assert tells(other, lambda bench: bench.manager.evict("net")) == told


@pytest.mark.parametrize(
    "opened",
    [lambda manager: manager.mutating("kv"), lambda manager: manager.transaction()],
    ids=["mutating", "a transaction"],
)
def test_no_block_begins_behind_an_error_that_nobody_has_seen(
    opened: Callable[[cgstate.GraphManager], AbstractContextManager[object]],
) -> None:
    bench = hearing(Told)
    with armed(bench, 10**6, DeafError) as ear, opened(bench.manager):
        told = ear.heard
    assert told
    for nth in range(1, told + 1):
        bench, begun = hearing(Told), False
        with armed(bench, nth, DeafError), pytest.raises(DeafError), opened(bench.manager):
            begun = True
        assert not begun
        whole(bench)


def test_the_first_error_is_raised_and_an_interrupt_goes_before_it() -> None:
    bench = hearing(Told)
    with armed(bench, 1, DeafError, times=100) as ear:
        with pytest.raises(DeafError, match=r"observation 1$"):
            bench.manager.release()
        assert len(ear.raised) > 1
    whole(bench)

    class Late(Told):
        def hear(self, *told: object) -> None:
            self.error = DeafError if self.heard < 3 else KeyboardInterrupt
            super().hear(*told)

        step = notice = hear

    bench = hearing(Late)
    with armed(bench, 2, DeafError, times=4) as ear:
        with pytest.raises(KeyboardInterrupt, match=r"observation 4$"):
            bench.manager.release()
        assert [type(each) for each in ear.raised] == [DeafError, DeafError, KeyboardInterrupt, KeyboardInterrupt]
    whole(bench)


# -- what the operation raises itself -------------------------------------------------------------------------------------


def failing(bench: Bench) -> None:
    with bench.manager.transaction() as tx:
        tx.capture(bench.manager.entry("bad", 1), lambda warmup: lambda: 1 / 0)


def launching(bench: Bench) -> None:
    def broken() -> None:
        raise ValueError("not today")

    low = bench.low()
    launch, low.launch = low.launch, broken
    try:
        low.replay()
    finally:
        if low.graph is not None:  # it came to no launch
            low.launch = launch


def holding(bench: Bench) -> None:
    with bench.low().lease():
        raise ValueError("not today")


def copying(bench: Bench) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ValueError("not today")

    caller = bench.net.caller
    copy, caller.copy = caller.copy, broken
    try:
        bench.call(3)
    finally:
        caller.copy = copy


FAILING: dict[str, tuple[Callable[[Bench], object], type[Exception]]] = {
    "a capture fails": (failing, cgstate.CaptureFailed),
    "a launch fails": (launching, ValueError),
    "a call fails": (copying, ValueError),
    "a block fails that holds a lease": (holding, ValueError),
}


@pytest.mark.parametrize("kind", [Told, Brief])
@pytest.mark.parametrize(("act", "raised"), FAILING.values(), ids=FAILING.keys())
def test_an_observer_hides_no_error_of_the_operation(
    act: Callable[[Bench], object], raised: type[Exception], kind: type[Ear]
) -> None:
    def done(bench: Bench) -> BaseException:
        with pytest.raises((raised, DeafError)) as caught:
            act(bench)
        return caught.value

    number = tells(hearing(kind), done)
    seen = []
    for nth in range(1, number + 1):
        bench = hearing(kind)
        with armed(bench, nth, DeafError):
            error = done(bench)
        seen.append(type(error))
        assert type(error) is DeafError or f"meanwhile an observer raised DeafError: observation {nth}" in error.__notes__
        del error
        whole(bench)
    assert raised in seen
    assert kind is Told or seen[-1] is raised


@pytest.mark.parametrize("kind", [Told, Brief])
def test_nor_that_of_a_block_that_has_a_leased_output(kind: type[Ear]) -> None:
    bench = hearing(kind, leased=True)
    output = bench.net(bench.model.input(4))
    with armed(bench, 1, DeafError), pytest.raises(ValueError, match="not today") as caught, output:
        raise ValueError("not today")
    assert caught.value.__notes__ == ["meanwhile an observer raised DeafError: observation 1"]
    whole(bench)


@pytest.mark.parametrize(("act", "raised"), FAILING.values(), ids=FAILING.keys())
def test_an_interrupt_in_an_observer_goes_before_an_error(act: Callable[[Bench], object], raised: type[Exception]) -> None:
    def done(bench: Bench) -> None:
        with suppress(raised):
            act(bench)

    number = tells(hearing(Told), done)
    for nth in range(1, number + 1):
        bench = hearing(Told)
        with armed(bench, nth, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            act(bench)
        whole(bench)


@ERRORS
def test_a_broken_invariant_reaches_the_caller_whatever_else_is_raised(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = hearing(Told, check=True)
    with monkeypatch.context() as patch:
        patch.setattr(check, "broken_in", lambda *ignored: ["I0 is broken"])
        for nth, act in ((3, lambda: bench.low().replay()), (1, lambda: bench.call(4)), (1, lambda: bench.manager.evict("net"))):
            with armed(bench, nth, error), pytest.raises(cgstate.InvariantViolation, match="I0") as caught:
                act()
            assert caught.value.__notes__ == [f"meanwhile an observer raised {error.__name__}: observation {nth}"]
    del caught
    whole(bench)


def test_a_lost_device_is_noticed_in_an_observer() -> None:
    bench = hearing(Told)

    class Losing(BaseException):
        def __new__(cls, text: str) -> Any:
            bench.model.dev.lose()
            try:
                bench.model.dev.synchronize()
            except Exception as error:
                return error
            raise AssertionError("it was not lost")

    with armed(bench, 1, Losing) as ear, pytest.raises(SimAcceleratorError) as caught:
        bench.manager.evict("net")
    assert [caught.value] == ear.raised
    assert bench.manager.state == "POISONED"
    bench.manager.close()
    assert bench.manager.state == "CLOSED"


@ERRORS
@pytest.mark.parametrize("act", ["close", "release", "suspend"])
def test_nothing_waits_for_others_with_an_error_that_nobody_has_seen(act: str, error: type[BaseException]) -> None:
    bench = hearing(Told)
    held = bench.manager.entry("net", 4).lease()
    elsewhere(held.__enter__)
    with armed(bench, 1, error), pytest.raises(error):  # else it hangs, as nobody ends the lease meanwhile
        getattr(bench.manager, act)(*(["kv"] if act == "suspend" else []))
    assert bench.manager.state == "SERVING"
    elsewhere(lambda: held.__exit__(None, None, None))
    whole(bench)


# -- whose it is ------------------------------------------------------------------------------------------------------------


@ERRORS
def test_inside_of_a_capture_nobody_is_told_before_it_ends(error: type[BaseException]) -> None:
    bench = hearing(Told)
    ran: list[object] = []

    def work() -> object:
        ran.append(bench.net(bench.inputs[4]))
        ran.append(elsewhere(bench.manager.memory))
        return ran[0]

    with armed(bench, 2, error) as ear:
        with pytest.raises(error, match=r"observation 2$"), bench.manager.transaction() as tx:
            tx.capture(bench.manager.entry("outer", 1), lambda warmup: work)
        assert len(ear.raised) == 1
    assert len(ran) >= 2
    del ran[:]
    whole(bench)


def test_another_thread_is_not_told() -> None:
    bench = hearing(Told)
    bench.books.gate.kept[-1] = DeafError("of a thread that is still at it")
    bench.low().replay()
    lease(bench)
    bench.call(12)
    bench.net(bench.model.input(30))
    bench.manager.evict("net")
    assert list(bench.books.gate.kept) == [-1]
    bench.books.gate.kept.clear()
    whole(bench)


def test_what_a_dropped_manager_raises_in_its_finalizer_is_not_kept_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    bench = hearing(Told)
    books, gate = bench.books, bench.books.gate
    with armed(bench, 1, DeafError):
        bench.manager = bench.net = None  # type: ignore[assignment]
        gc.collect()
    assert [type(each.exc_value) for each in told] == [DeafError]
    assert gate.kept == {}
    assert books.ended()


# -- everything, in a row ---------------------------------------------------------------------------------------------------


def the_day(bench: Bench, error: type[BaseException]) -> int:
    """All that can be done, one after the other, whatever the last one has raised; how often something did."""
    manager, books = bench.manager, bench.books
    raised = 0

    def do(act: Callable[[], object], *, when: bool = True) -> None:
        nonlocal raised
        if when:
            try:
                act()
            except error:
                raised += 1
                bench.in_order()
                assert books.gate.kept == {}

    do(bench.prepare)
    do(manager.profile_memory)
    do(manager.capture_and_bind)
    for _ in range(2):
        do(lambda: bench.model.bind(manager, "low"), when=manager.entry("low", 2).state != "BOUND")
        do(lambda: bench.call(4))
        do(lambda: bench.call(12))
        do(lambda: bench.net(bench.model.input(30)))
        do(lambda: lease(bench), when=bench.low().state == "BOUND")
        do(lambda: manager.evict("net"))
        do(manager.capture_and_bind)
        do(lambda: manager.suspend("kv"))
        do(lambda: manager.resume("kv", moved=True), when=manager.dependency("kv").resident is False)
        do(lambda: mutate(bench), when=manager.dependency("kv").resident)
        do(lambda: manager.reclaim(flush=True))
        do(manager.capture_and_bind)
        do(manager.release, when=manager.state == "SERVING")
        do(manager.capture_and_bind)
    return raised


@ERRORS
@pytest.mark.parametrize(("kind", "checked", "every"), [(Plain, False, 3), (Brief, False, 2), (Told, True, 4)])
def test_a_whole_day(kind: type[Ear], checked: bool, every: int, error: type[BaseException]) -> None:
    def make() -> Bench:
        return hearing(kind, serving=False, check=checked)

    number = tells(make(), lambda bench: the_day(bench, error))
    assert number > 100
    for nth in range(1, number + 1, every):
        bench = make()
        try:
            with armed(bench, nth, error) as ear:
                raised = the_day(bench, error)
            assert raised == len(ear.raised) <= 1
            whole(bench)
        except BaseException as problem:
            problem.add_note(f"observation {nth} of {number} raised")
            raise


def test_the_check_goes_on_where_an_interrupt_has_kept_it_from_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(check=True)
    streams = [bench.model.dev.new_stream() for _ in range(3)]
    audit: Any = bench.books.audit
    right = audit.turn_ended

    def interrupted(*turn: object) -> None:
        raise KeyboardInterrupt

    for stream, instead in zip(streams, (right, interrupted, right), strict=True):
        monkeypatch.setattr(audit, "turn_ended", instead)
        with bench.model.dev.on_stream(stream), suppress(KeyboardInterrupt):
            bench.low().replay()
    whole(bench)
