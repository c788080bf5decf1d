"""An interrupt, wherever it comes, leaves I1-I13 true and everything usable.

Each test does one thing again and again, and each time raises `KeyboardInterrupt` at another of the places where CPython may raise
it (`tests.runtime.interrupting`). There is one thread, so whatever would wait, would wait for ever: the lock and the condition that
it is given say so, and nothing here can hang.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import kernels
from cgstate.lifecycle.invariants import Checker as Who
from cgstate.lifecycle.invariants import broken_in
from cgstate.runtime.check import world_of, wrong_seals
from cgstate.runtime.memory.planning import CAPTURED
from cgstate.runtime.sync import ThreadingSync
from tests.runtime.helpers import Model
from tests.runtime.interrupting import Interrupter, described, worth_trying
from tests.runtime.test_foreign import Engine

# -- one thread that cannot wait ------------------------------------------------------------------------------------------


class HangError(AssertionError):
    """The only thread waits for something that nobody will do."""


class AloneCondition:
    def wait(self, timeout: float | None = None) -> bool:
        raise HangError("it waits, and nobody is there to wake it")

    def notify_all(self) -> None:
        pass


class Alone(ThreadingSync):
    """A `cgstate.runtime.sync.Sync` for one thread."""

    def __init__(self) -> None:
        self._time = 0

    def now_ns(self) -> int:
        self._time += 1
        return self._time

    def condition(self, lock: object) -> AloneCondition:
        return AloneCondition()


# -- what is interrupted, and what is asked afterwards --------------------------------------------------------------------


class Bench:
    """A manager on a device of its own, with a component that captures lazily, and two entries of the low-level door."""

    def __init__(
        self,
        *,
        serving: bool = True,
        leased: bool = False,
        model: Model | None = None,
        sizes: tuple[int, ...] = (4, 8),
        **keys: Any,
    ) -> None:
        self.model = model = model or Model()
        kind: Any = cgstate.LeasedComponent if leased else cgstate.Component
        lazy = cgstate.CaptureMode.PRECAPTURE_LAZY
        self.net = kind("net", model.routine((4, 8, 16)), sizes, capture_mode=lazy, dependencies=("kv",))
        self.manager = model.manager(**{"check": False, "isolation": "per_entry", "sync": Alone(), **keys})
        self.books = self.manager._books
        self.inputs = {size: model.input(size) for size in (3, 4, 8, 12)}
        if serving:
            self.prepare()
            self.manager.capture_and_bind()
            self.model.bind(self.manager, "low", "lower")
            for size in (4, 4, 8):
                self.call(size)
            model.dev.synchronize()
            self.manager.reclaim()

    def prepare(self) -> None:
        self.manager.prepare([self.net], {"net": {"max_extra_graphs": 1}})

    def rehearsed(self) -> int:
        """How many graphs an estimate runs without capturing them."""
        self.prepare()
        return self.manager.profile_memory().rehearsed

    def call(self, size: int) -> list[Any]:
        answer = self.net(self.inputs[size])
        if isinstance(answer, cgstate.LeasedOutput):
            with answer:
                return list(answer.copy().tolist())
        return list(answer.tolist())

    def low(self) -> Any:
        return self.manager.entry("low", 2)

    def in_order(self) -> None:
        """Nothing is in progress, and every invariant holds."""
        books, gate = self.books, self.books.gate
        assert not gate.held()
        assert (gate.free, gate.holder, gate.destroying, gate.pending) == (True, 0, 0, 0)
        assert (gate.calls, gate.awaited, gate.waiting) == ({}, {}, 0)
        assert (books.busy, books.draining, books.wanted, books.profile) == (0, False, None, None)
        assert books.state not in ("CAPTURING", "PROFILING")
        assert books.serving == (books.state == "SERVING")
        if not books.closed():
            self.manager.set_budget(None)  # whatever is asked next ends a lease that was about to end
        for turn in [*gate.turns, gate.random]:
            assert (turn.owner, turn.breaking, turn.outer) == (0, None, [])
        for entry in books.entries():
            assert (entry.leases, entry.state in ("EAGER", "BOUND", "EVICTED", "FAILED")) == (0, True)
            assert (entry.graph is not None) == (entry.state == "BOUND")
            assert entry.buffers is None or entry.state == "BOUND"
        for record in books.components.values():
            assert record.state in ("EAGER", "BOUND", "EVICTED", "FAILED")
            assert record.available == {d for d, entry in record.entries.items() if entry.state == "BOUND"}
            assert not record.eager.threads
        assert not books.held_leases
        assert gc.isenabled()
        assert self.model.dev.current_stream() is self.model.dev.default_stream
        if not books.closed() or books.ended():  # else closing is called again, and goes on
            assert list(wrong_seals(books)) == []
            assert list(map(str, broken_in(Who.runtime, world_of(books, acquires=0, releases=0)))) == []

    def goes_on(self) -> None:
        """Everything can be done that could be done before."""
        if not self.books.closed():
            if self.books.state == "NEW":
                self.prepare()
            assert self.net.attached
            for name, dependency in self.books.dependencies.items():
                if dependency.suspended:
                    self.manager.resume(name)
            self.manager.capture_and_bind()
            self.model.bind(self.manager, *(name for name in ("low", "lower") if self.manager.entry(name, 2).state != "BOUND"))
            for size in self.inputs:
                assert self.call(size) == self.model.net(self.inputs[size]).tolist()
            self.manager.entry("net", 4).replay()
            self.low().replay()
            self.manager.evict("net")
        self.manager.close()
        assert self.manager.memory().total == 0
        assert self.books.pools == []


def interrupted(interrupter: Interrupter, act: Callable[[], object]) -> bool:
    """Whether the interrupt came through."""
    try:
        interrupter.run(act)
    except KeyboardInterrupt:
        return True
    return False


def sweep(make: Callable[[], Bench], act: Callable[[Bench], object], *, every: int = 1) -> None:
    """Interrupt ``act`` at each place worth it, or at one of ``every`` so many, each time on a fresh bench."""
    first = make()
    whole = Interrupter()
    whole.run(lambda: act(first))
    first.in_order()
    first.goes_on()
    numbers = worth_trying(whole.places)[::every]
    assert numbers
    for number in numbers:
        bench, interrupter = make(), Interrupter(number)
        try:
            if not interrupted(interrupter, lambda bench=bench: act(bench)):  # type: ignore[misc]  # mypy cannot infer it
                gc.collect()  # it may have closed a generator of the bench before, and what is raised there goes nowhere
                bench, interrupter = make(), Interrupter(number)
                came = interrupted(interrupter, lambda bench=bench: act(bench))  # type: ignore[misc]
                # The first run of a function may come by a place or two more than later ones: the last place is not reached then.
                assert came or number - 2 <= len(interrupter.places) < number, "the interrupt was swallowed"
            bench.in_order()
            bench.goes_on()
        except BaseException as error:
            gc.enable()
            error.add_note(f"interrupted at place {number}: {described(interrupter.places[-1])}")
            raise


# -- the hot path ---------------------------------------------------------------------------------------------------------


def lease(bench: Bench) -> None:
    with bench.low().lease() as lease:
        lease.replay()
        assert lease.output is not None


@pytest.mark.parametrize(
    "keys", [{}, {"observer": lambda *step: None}, {"check": True}], ids=["undisturbed", "observed", "checked"]
)
class TestServing:
    def test_a_replay(self, keys: dict[str, Any]) -> None:
        sweep(lambda: Bench(**keys), lambda bench: bench.low().replay())

    def test_a_lease(self, keys: dict[str, Any]) -> None:
        sweep(lambda: Bench(**keys), lease)

    def test_a_call(self, keys: dict[str, Any]) -> None:
        sweep(lambda: Bench(**keys), lambda bench: bench.call(4))

    def test_a_call_that_hands_out_its_static_output(self, keys: dict[str, Any]) -> None:
        sweep(lambda: Bench(**keys, leased=True), lambda bench: bench.call(4))

    def test_an_eager_call(self, keys: dict[str, Any]) -> None:
        sweep(lambda: Bench(**keys), lambda bench: bench.net(bench.model.input(30)))


class Split(Bench):
    """It has one more entry, whose graph draws random numbers and has an eager break in which a graph of the same pool replays."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(serving=False, isolation="shared", **keys)
        model, manager = self.model, self.manager
        self.prepare()
        manager.capture_and_bind()
        model.bind(manager, "low", "lower")
        static = model.dev.zeros(2, 4)
        model.kept.append(static)
        split, inner = manager.entry("split", 2), manager.entry("inner", 2, inside="split")

        def body() -> Iterator[cgstate.Break]:
            static.copy_(kernels.scale(static, 2.0))
            yield cgstate.Break(inner.replay, at_capture=lambda: None)
            static.copy_(kernels.add(static, model.dev.rand(2, 4)))

        with manager.transaction() as tx:
            tx.capture(split, lambda warmup: body)
            tx.capture(inner, lambda warmup: lambda: static.copy_(kernels.scale(static, 3.0)))
        split.replay()
        model.dev.synchronize()


def test_a_replay_with_an_eager_break() -> None:
    sweep(Split, lambda bench: bench.manager.entry("split", 2).replay())


class Beside(Bench):
    """Graphs of somebody else keep library workspaces from being cleared."""

    def __init__(self, **keys: Any) -> None:
        model = Model()
        self.engine = Engine(model.dev)
        self.engine.capture()
        super().__init__(model=model, **keys)

    def goes_on(self) -> None:
        self.engine.shut_down()
        super().goes_on()


def again(bench: Bench) -> None:
    bench.manager.evict("net", 4)
    bench.manager.reclaim(flush=True)
    bench.manager.capture_and_bind()


def test_captures_beside_graphs_of_others() -> None:
    sweep(lambda: Beside(serving=False), prepare_and_capture, every=3)
    sweep(Beside, again, every=2)


def test_the_end_beside_graphs_of_others() -> None:
    whole = Beside()
    whole.manager.close()
    left = len(whole.books.gate.spares)
    assert left > 0

    class Ends(Beside):
        def goes_on(self) -> None:
            self.manager.close()
            spares = self.books.gate.spares
            assert len({spare.handle.id for spare in spares}) == len(spares) == left
            assert all(spare.handle.use_count() for spare in spares)
            super().goes_on()

    sweep(Ends, lambda bench: bench.manager.close())


def test_the_last_clear() -> None:
    def make() -> Beside:
        bench = Beside()
        bench.engine.shut_down()
        bench.manager.release()
        return bench

    sweep(make, lambda bench: bench.manager.reclaim(flush=True))


def test_a_miss_that_captures() -> None:
    sweep(Bench, lambda bench: bench.call(12))


# -- the manager ----------------------------------------------------------------------------------------------------------


def reclaim(bench: Bench) -> None:
    bench.manager.evict("net", 4)
    bench.manager.reclaim(flush=True)


def mutate(bench: Bench) -> None:
    with bench.manager.mutating("kv"):
        pass


def transaction(bench: Bench) -> None:
    bench.manager.evict("low")
    bench.model.bind(bench.manager, "low")


def block(bench: Bench) -> None:
    with bench.manager.transaction() as tx, tx.recording(bench.manager.entry("block", 1)):
        bench.model.net(bench.inputs[4])


def profile(bench: Bench) -> None:
    bench.prepare()
    bench.manager.profile_memory()


def profile_block(bench: Bench) -> None:
    bench.prepare()
    with bench.manager.profile():
        bench.model.bind(bench.manager, "other")


def prepare_and_capture(bench: Bench) -> None:
    bench.prepare()
    bench.manager.capture_and_bind()


def failing_capture(bench: Bench) -> None:
    with suppress(cgstate.CaptureFailed), bench.manager.transaction() as tx:
        tx.capture(bench.manager.entry("bad", 1), lambda warmup: lambda: 1 / 0)


def failing_call(bench: Bench) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ValueError("not today")

    caller = bench.net.caller
    copy, caller.copy = caller.copy, broken
    try:
        with suppress(ValueError):
            bench.call(3)  # which is padded: inputs of the very size are copied by another function
    finally:
        caller.copy = copy


def failing_launch(bench: Bench) -> None:
    low = bench.low()

    def broken() -> None:
        raise ValueError("not today")

    launch, low.launch = low.launch, broken
    try:
        with suppress(ValueError):
            low.replay()
    finally:
        if low.graph is not None:  # it was interrupted before it could fail
            low.launch = launch


def failing_lease(bench: Bench) -> None:
    bench.manager.evict("low")
    with suppress(cgstate.IllegalTransition), bench.low().lease():
        pass


ACTS: dict[str, Callable[[Bench], object]] = {
    "a domain is evicted": lambda bench: bench.manager.evict("net", 4),
    "retired graphs are reclaimed": reclaim,
    "memory moves": lambda bench: bench.manager.invalidate("kv"),
    "memory goes": lambda bench: bench.manager.suspend("kv"),
    "memory changes": mutate,
    "an entry is captured": transaction,
    "a block is recorded": block,
    "a capture fails": failing_capture,
    "a call fails": failing_call,
    "a launch fails": failing_launch,
    "a lease is refused": failing_lease,
    "everything is released": lambda bench: bench.manager.release(),
    "everything is closed": lambda bench: bench.manager.close(),
}

EARLY: dict[str, Callable[[Bench], object]] = {
    "memory is profiled": profile,
    "a block is profiled": profile_block,
    "everything is captured": prepare_and_capture,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
def test_serving_while(act: Callable[[Bench], object]) -> None:
    sweep(Bench, act)


@pytest.mark.parametrize("act", EARLY.values(), ids=EARLY.keys())
def test_before_serving_while(act: Callable[[Bench], object]) -> None:
    sweep(lambda: Bench(serving=False, isolation="shared"), act, every=3)  # most of it is capturing, as above


def test_before_serving_while_graphs_are_run_to_know_what_they_will_hold() -> None:
    sizes = (4, 8, 12, 20)
    assert Bench(serving=False, isolation="shared", sizes=sizes).rehearsed() == len(sizes) - CAPTURED
    sweep(lambda: Bench(serving=False, isolation="shared", sizes=sizes), profile, every=2)
