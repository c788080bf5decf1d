"""A sealed entry replays without asking other objects: so a seal is broken before anything that they would say against it is seen.

The device's lock judges: each time it is given up, the tables themselves are asked about every entry that is sealed.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimTensor
from cgstate.lifecycle import generate
from cgstate.lifecycle.expr import Value, evaluate, variables
from cgstate.lifecycle.states import EntryEvent, EntryState
from cgstate.lifecycle.tables import ENTRY, MACHINES
from cgstate.runtime.books import Books
from cgstate.runtime.entry import Entry
from cgstate.runtime.gate import CaptureGate
from cgstate.runtime.sync import THREADING, ThreadingSync
from cgstate.runtime.turn import NO_STREAM, Turn
from tests.runtime.helpers import WIDTH, Model, elsewhere, reached, running

STEPS = frozenset({"capture_begin", "capture_end", "abort", "capture_fail"})
SERVING = frozenset({"commit", "drain", "undrain", "release", "device_lost", "close"})


class Judge(ThreadingSync):
    """Hands out locks that look at every seal of the device when they are given up.

    Attributes:
        gate: The device's gate, once there is one.
        seen: Seals that were looked at.
        wrong: What the tables say against a seal that was not broken.
        steps: Table steps that broke seals while there were any.
    """

    def __init__(self) -> None:
        self.gate: CaptureGate | None = None
        self.seen = 0
        self.wrong: list[str] = []
        self.steps: set[str] = set()

    def lock(self) -> Any:
        return JudgedLock(self)

    @property
    def sealed(self) -> list[Entry]:
        assert self.gate is not None
        return [entry for books in self.gate.managers for entry in books.entries() if entry.seal != NO_STREAM]

    def look(self) -> None:
        if self.gate is None:
            return
        for entry in self.sealed:
            self.seen += 1
            self.wrong += against(entry)


class JudgedLock:
    """A lock whose release is a look."""

    def __init__(self, judge: Judge) -> None:
        self._lock = threading.RLock()
        self._is_owned = THREADING.held(self._lock)
        self._judge = judge

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._judge.look()
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def against(entry: Entry) -> list[str]:
    """What speaks against an undisturbed replay of an entry, as far as it is not the entry's own state."""
    (row,) = ENTRY.rows_for(EntryState.BOUND, EntryEvent.acquire)
    turn = entry.turn
    env: dict[str, Value] = {"stream_capturing": False}
    for guard in row.guards:
        for var in variables(guard.expr):
            owner: Any = entry
            *path, name = var.name.split(".")
            for part in path:
                owner = getattr(owner, part)
            if var.name not in env:
                env[var.name] = getattr(owner, name)
    facts = {
        **{guard.name: bool(evaluate(guard.expr, env)) for guard in row.guards},
        "it has a graph": entry.graph is not None and entry.state in (EntryState.BOUND, EntryState.REPLAYING),
        "it is one launch that nobody watches": entry.fast,
        "no capture is open": entry.gate.free,
        "nobody has the turn": turn.owner == 0,
        "the turn is its pool's": turn is entry.pool.turn,
        "the stream is that of the last work": entry.seal == turn.last_handle,
        "nobody holds an output": turn.latest is None,
        "its turn knows of the seal": entry in turn.sealed,
    }
    return [f"{entry.name}: {name}" for name, holds in facts.items() if not holds]


class Bench:
    """Two components and two low-level entries in one pool, the entries sealed."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.model = Model()
        self.static = self.model.dev.zeros(2, WIDTH)
        self.net = self.model.component("net", (4,), dependencies=("kv",))
        self.handed = self.model.leased("handed", (4,))
        self.manager = self.model.serving(self.net, self.handed, sync=judge, check=False, dependencies=("weights",))
        judge.gate = self.manager._books.gate
        self.entry = self.manager.entry("low", 2, dependencies=("weights",))
        self.other = self.manager.entry("other", 2)
        with self.manager.transaction() as tx:
            for entry in (self.entry, self.other):
                tx.capture(entry, lambda warmup: self.work)
        self.seal()

    def work(self) -> SimTensor:
        return self.model.net(self.static)

    def seal(self) -> None:
        for entry in (self.entry, self.other, self.entry, self.other):
            entry.replay()
        assert set(self.judge.sealed) == {self.entry, self.other}

    def capture(self, body: Callable[[], object] | None = None) -> None:
        with self.manager.transaction() as tx:
            tx.capture(self.manager.entry("third", 2), lambda warmup: self.work if warmup or body is None else body)

    def lose(self) -> None:
        self.model.dev.lose()
        with pytest.raises(RuntimeError):
            self.entry.replay()


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    judge = Judge()
    for kind in (Entry, Books):
        monkeypatch.setattr(kind, "unseal", _telling(judge, kind.unseal))
    return judge


def _telling(judge: Judge, unseal: Callable[[Any], None]) -> Callable[[Any], None]:
    def told(entity: Any) -> None:
        if judge.gate is not None and judge.sealed:
            judge.steps.add(sys._getframe(1).f_code.co_name)
        unseal(entity)

    return told


# -- every way of the runtime to put something in the way of a replay --------------------------------------------------------


def capture(bench: Bench) -> None:
    def body() -> SimTensor:
        assert not bench.judge.sealed
        with pytest.raises(cgstate.CaptureActive):
            bench.entry.replay()
        return bench.work()

    bench.capture(body)


def capture_of_another_manager(bench: Bench) -> None:
    second = cgstate.GraphManager(bench.model.backend, sync=bench.judge)

    def body() -> SimTensor:
        assert not bench.judge.sealed
        return bench.work()

    with second.transaction() as tx:
        tx.capture(second.entry("theirs", 1), lambda warmup: bench.work if warmup else body)
    second.close()


def capture_of_another_thread(bench: Bench) -> None:
    elsewhere(lambda: capture(bench))


def failed_capture(bench: Bench) -> None:
    def body() -> SimTensor:
        raise ValueError("no")

    with pytest.raises(cgstate.CaptureFailed):
        bench.capture(body)


def interrupted_capture(bench: Bench) -> None:
    def body() -> SimTensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.capture(body)


def profile_of_another_manager(bench: Bench) -> None:
    second = cgstate.GraphManager(bench.model.backend, sync=bench.judge)
    second.prepare([bench.model.component("more", (2,))])
    second.profile_memory()
    second.close()


def suspend(bench: Bench) -> None:
    bench.manager.suspend("weights")
    with pytest.raises(cgstate.NotResident):
        bench.entry.replay()
    bench.manager.resume("weights")
    bench.seal()


def memory_that_moves(bench: Bench) -> None:
    with bench.manager.mutating("weights"):
        assert not bench.judge.sealed
    with pytest.raises(cgstate.IllegalTransition):
        bench.entry.replay()


def invalidate(bench: Bench) -> None:
    bench.manager.invalidate("weights")
    with pytest.raises(cgstate.IllegalTransition):
        bench.entry.replay()


def invalidate_under_a_lease(bench: Bench) -> None:
    with bench.entry.lease():
        bench.manager.invalidate("weights")
        with pytest.raises(cgstate.IllegalTransition):
            bench.entry.replay()


def evict(bench: Bench) -> None:
    bench.manager.evict("low", 2)
    with pytest.raises(cgstate.IllegalTransition):
        bench.entry.replay()


def evict_and_capture_anew(bench: Bench) -> None:
    bench.manager.evict("low", 2)
    bench.manager.reclaim(flush=True)
    with bench.manager.transaction() as tx:
        for entry in (bench.entry, bench.other):
            tx.capture(entry, lambda warmup: bench.work)
    assert not bench.judge.sealed
    bench.seal()


def lease(bench: Bench) -> None:
    with bench.entry.lease() as held:
        assert bench.entry.state == "REPLAYING"
        bench.entry.replay()
        held.replay()
        assert held.output is not None
        assert not bench.judge.sealed
        bench.other.replay()
        with pytest.raises(cgstate.OutputExpired):
            _ = held.output


def call(bench: Bench) -> None:
    held, go = threading.Event(), threading.Event()
    launch = bench.manager.entry("net", 4).launch

    def slow() -> None:
        held.set()
        reached(go)
        launch()

    bench.manager.entry("net", 4).launch = slow
    with running(lambda: bench.net(bench.model.input(4))):
        reached(held)
        assert not bench.judge.sealed
        with running(bench.entry.replay):  # has to wait for the turn
            while not bench.manager._books.gate.waiting:
                go.wait(0.001)
            go.set()


def output_that_is_handed_out(bench: Bench) -> None:
    with bench.handed(bench.model.input(4)) as output:
        assert not bench.judge.sealed
        _ = output.value
        bench.entry.replay()
        with pytest.raises(cgstate.OutputExpired):
            _ = output.value


def another_stream(bench: Bench) -> None:
    stream = bench.model.dev.new_stream()
    with bench.model.backend.on_stream(stream):
        bench.entry.replay()
        bench.entry.replay()
        assert bench.judge.sealed
        assert bench.entry.seal == stream.handle
    bench.other.replay()
    assert bench.other.seal != stream.handle


def close(bench: Bench) -> None:
    bench.manager.close()
    with pytest.raises(cgstate.ManagerClosed):
        bench.entry.replay()


def release(bench: Bench) -> None:
    bench.manager.release()
    with pytest.raises(cgstate.IllegalTransition):
        bench.entry.replay()


def refused_close(bench: Bench) -> None:
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.other.lease():
            held.set()
            reached(go)

    with running(hold):
        reached(held)
        with pytest.raises(cgstate.LeaseOutstanding):
            bench.manager.close(timeout=0.001)
        go.set()
    bench.seal()


def lost_device(bench: Bench) -> None:
    bench.lose()
    for entry in (bench.entry, bench.other):
        with pytest.raises(cgstate.ManagerPoisoned):
            entry.replay()


def lost_device_in_an_eager_call(bench: Bench) -> None:
    x = bench.model.input(9)
    bench.model.dev.lose()
    with pytest.raises(RuntimeError):
        bench.net(x)
    with pytest.raises(cgstate.ManagerPoisoned):
        bench.entry.replay()


def failed_launch(bench: Bench) -> None:
    def fails() -> None:
        raise ValueError("no")

    bench.entry.launch = fails
    with pytest.raises(ValueError, match="no"):
        bench.entry.replay()
    assert bench.entry.state == "FAILED"
    with pytest.raises(cgstate.IllegalTransition):
        bench.entry.replay()


def dropped_manager(bench: Bench) -> None:
    entry = bench.entry
    del bench.manager
    gc.collect()
    with pytest.raises(cgstate.IllegalTransition):
        entry.replay()


WAYS = (
    capture,
    capture_of_another_manager,
    capture_of_another_thread,
    failed_capture,
    interrupted_capture,
    profile_of_another_manager,
    suspend,
    memory_that_moves,
    invalidate,
    invalidate_under_a_lease,
    evict,
    evict_and_capture_anew,
    lease,
    call,
    output_that_is_handed_out,
    another_stream,
    close,
    release,
    refused_close,
    lost_device,
    lost_device_in_an_eager_call,
    failed_launch,
    dropped_manager,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_seal_outlives_what_the_tables_say_against_a_replay(judge: Judge, way: Callable[[Bench], None]) -> None:
    bench = Bench(judge)
    way(bench)
    assert judge.seen > 0
    assert judge.wrong == []


def test_the_ways_take_every_step_that_may_turn_a_guard_of_a_replay(judge: Judge) -> None:
    for way in WAYS:
        judge.gate = None
        way(Bench(judge))
    assert judge.steps >= {"capture_begin", "drain", "device_lost"}, "the steps that refuse replays"
    assert judge.steps <= STEPS | SERVING | {"note_move", "note_resident"}
    assert {"note_move", "note_resident"} <= judge.steps


def test_the_tables_say_which_steps_break_seals() -> None:
    found = {machine.name: {row.event.value for row in machine.rows if generate.unseals(machine, row)} for machine in MACHINES}
    assert found == {"entry": STEPS, "component": set(), "pool": set(), "manager": SERVING}


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (capture, "no capture is open"),
        (suspend, "dependencies resident"),
        (invalidate, "epochs current"),
        (close, "manager serving"),
        (lost_device_in_an_eager_call, "manager serving"),
        (call, "nobody has the turn"),
        (lease, "nobody holds an output"),
        (another_stream, "the stream is that of the last work"),
        (evict, "it has a graph"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_the_judge_notices_a_seal_that_is_not_broken(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, way: Callable[[Bench], None], said: str
) -> None:
    bench = Bench(judge)
    monkeypatch.setattr(Turn, "unseal", lambda turn: None)
    with suppress(Exception, pytest.fail.Exception), running():
        way(bench)
    assert any(said in complaint for complaint in judge.wrong), judge.wrong


def test_a_checked_manager_refuses_a_seal_that_something_made_untrue() -> None:
    model = Model()
    net = model.component("net", (4,), dependencies=("kv",))
    manager = model.serving(net)
    net(model.input(4))
    entry = manager.entry("net", 4)
    manager.memory()
    assert entry.seal != NO_STREAM
    entry.component.epoch += 1
    with pytest.raises(cgstate.InvariantViolation, match="is sealed for stream"):
        manager.memory()
    entry.component.epoch -= 1
    manager.close()


def test_a_sealed_replay_looks_at_no_other_object() -> None:
    code = Entry.replay.__code__
    locked = {"acquire_lock", "release_lock"}
    sealed = {"fast", "state", "EntryState_BOUND", "current_handle", "index", "seal", "launch", "hits"}
    otherwise = {"replay_and_seal", "BaseException", "RuntimeError", "leasing", "launch_failed", "lease", "replay", "__exit__"}
    assert set(code.co_names) == locked | sealed | otherwise


def test_replays_of_many_entries_of_one_pool_stay_sealed() -> None:
    bench = Bench(Judge())
    for _ in range(3):
        for entry in (bench.entry, bench.other):
            seal = entry.seal
            entry.replay()
            assert entry.seal == seal != NO_STREAM
    assert len(bench.entry.turn.sealed) == 2
    bench.manager.close()
    assert bench.entry.turn.sealed == []


def test_what_changes_nothing_breaks_no_seal() -> None:
    bench = Bench(Judge())
    manager = bench.manager
    seals = {entry: entry.seal for entry in bench.judge.sealed}
    manager.entry("low", 2, dependencies=("weights",)).replay()
    manager.memory()
    manager.stats()
    manager.reclaim()
    manager.dependency("weights")
    with bench.other.lease():
        pass
    assert {entry: entry.seal for entry in bench.judge.sealed} == seals


def test_a_call_that_is_interrupted_while_it_breaks_seals_has_taken_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(turn: Turn) -> None:
        raise KeyboardInterrupt

    bench = Bench(Judge())
    entry = bench.manager.entry("net", 4)
    bench.net(bench.model.input(4))
    entry.replay()
    with monkeypatch.context() as patch:
        patch.setattr(Turn, "unseal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.net(bench.model.input(4))
    assert (entry.state, entry.leases, entry.turn.owner) == ("BOUND", 0, 0)
    bench.manager.close()
