"""What breaks in on cgstate in the same thread, a signal handler or a finalizer, is refused if it calls cgstate."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from cgstate.runtime.turn import NO_STREAM
from tests.runtime.helpers import Model


class Bench:
    """A component and an entry of the low-level door that serve; `broken_in` by a signal handler while an entry is launched."""

    def __init__(self, observer: Any = None) -> None:
        self.model = model = Model()
        self.net = model.component("net", (4,), capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
        self.manager = manager = model.manager(observer=observer, check=False)
        manager.prepare([self.net], {"net": {"max_extra_graphs": 1}})
        manager.capture_and_bind()
        (self.low, _), (self.other, _) = model.bind(manager, "low", "other")
        self.low.replay()
        self.low.replay()  # the first one came behind a capture; this one is sealed
        self.lease = self.other.lease()
        self.input = model.input(4)

    def in_section(self, act: Callable[[], object]) -> None:
        """Do ``act`` in a signal handler that runs while this thread has the device's lock."""
        answers: list[BaseException | None] = []

        def handler(*_: object) -> None:
            try:
                act()
            except BaseException as error:
                answers.append(error)
            else:
                answers.append(None)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with self.manager._books.gate.lock:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        (answer,) = answers
        if answer is not None:
            raise answer


def leased(bench: Bench) -> None:
    with bench.lease:
        pass


DOORS: dict[str, Callable[[Bench], object]] = {
    "a call": lambda bench: bench.net(bench.input),
    "a lease": leased,
    "a replay that is not sealed": lambda bench: bench.other.replay(),
    "eviction": lambda bench: bench.manager.evict("net"),
    "capture": lambda bench: bench.model.bind(bench.manager, "more"),
    "release": lambda bench: bench.manager.release(),
    "an entry": lambda bench: bench.manager.entry("new", 1),
    "memory": lambda bench: bench.manager.memory(),
    "stats": lambda bench: bench.manager.stats(),
    "reclaiming": lambda bench: bench.manager.reclaim(flush=True),
    "forgetting": lambda bench: bench.manager.forget_failures(),
    "close": lambda bench: bench.manager.close(),
}


@pytest.mark.parametrize("observer", [None, lambda *step: None], ids=["undisturbed", "observed"])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
def test_a_call_from_a_signal_handler_is_refused_and_changes_nothing(door: Callable[[Bench], object], observer: Any) -> None:
    bench = Bench(observer)
    before = [(entry.name, entry.state, entry.leases) for entry in bench.manager._books.entries()], bench.manager.state
    with pytest.raises(cgstate.Reentered, match="signal handler"):
        bench.in_section(lambda: door(bench))
    assert before == ([(e.name, e.state, e.leases) for e in bench.manager._books.entries()], bench.manager.state)
    assert not bench.manager._books.gate.held()
    door(bench)  # cured
    bench.manager.close()


def test_a_replay_under_a_lease_is_refused_too() -> None:
    bench = Bench()
    with bench.lease, pytest.raises(cgstate.Reentered):
        bench.in_section(bench.lease.replay)
    assert not bench.manager._books.gate.held()


def test_a_lease_that_ends_inside_is_ended_by_whoever_comes_next() -> None:
    bench = Bench()
    first, second = bench.other.lease(), bench.other.lease()
    with first:
        with second:
            bench.in_section(lambda: first.__exit__(None, None, None))
            assert bench.other.leases == 2
            bench.manager.memory()
            assert (bench.other.leases, bench.other.state) == (1, "REPLAYING")
        assert bench.other.leases == 0
    assert (bench.other.leases, bench.other.state) == (0, "BOUND")


def test_a_copy_of_a_leased_output_is_refused() -> None:
    model = Model()
    net = model.leased("net", (4,))
    manager = model.serving(net)
    with net(model.input(4)) as output, manager._books.gate.lock, pytest.raises(cgstate.Reentered):
        output.copy()
    manager.close()


def test_nothing_is_sealed_from_inside() -> None:
    """A section that has broken a seal is about to change what the seal vouched for."""
    bench = Bench()
    assert bench.low.seal != NO_STREAM
    bench.low.turn.fence()
    with pytest.raises(cgstate.Reentered):
        bench.in_section(bench.low.replay)
    assert bench.low.seal == NO_STREAM
    bench.low.replay()
    assert bench.low.seal != NO_STREAM


def test_a_sealed_replay_from_inside_is_as_good_as_one_before() -> None:
    bench = Bench()
    hits = bench.low.hits
    bench.in_section(bench.low.replay)
    assert (bench.low.hits, bench.low.seal != NO_STREAM) == (hits + 1, True)


def test_a_signal_that_comes_in_the_launch_finds_the_lock_held() -> None:
    bench = Bench()
    launch, caught = bench.low.launch, []

    def interrupted() -> None:
        launch()
        try:
            bench.in_section(bench.manager.close)
        except cgstate.Reentered as error:
            caught.append(error)

    bench.low.launch = interrupted
    bench.low.replay()
    assert len(caught) == 1
    bench.low.launch = launch
    bench.manager.close()
