"""Real threads against each other: whoever waits proceeds, whoever may not wait answers, and nothing is destroyed under anybody."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import cgstate
from cgstate.backends.sim import SimTensor, kernels
from cgstate.runtime.sync import THREADING, Condition, Lock, Sync, ThreadingSync
from tests.runtime.helpers import WIDTH, Model, counts, elsewhere, reached, running

LAZY = cgstate.CaptureMode.PRECAPTURE_LAZY
ROUNDS = 12


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Let threads take turns every few bytecodes, not every few milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Recorded(ThreadingSync):
    """`threading`, with the points that were passed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.point = self.names.append


class Stops(ThreadingSync):
    """`threading`, with threads held up at chosen points until the test lets them go on."""

    def __init__(self) -> None:
        self.at = ""
        self.arrived, self.go = threading.Event(), threading.Event()
        self.point = self._pass

    def _pass(self, name: str) -> None:
        if name == self.at:
            self.at = ""
            self.arrived.set()
            reached(self.go)

    def stop(self, name: str) -> None:
        """Hold up the next thread that comes to ``name``."""
        self.arrived.clear()
        self.go.clear()
        self.at = name


def ask(model: Model, net: cgstate.Component[..., SimTensor], size: int, value: float = 1.0) -> None:
    assert net(model.input(size, value)).tolist() == model.net(model.input(size, value)).tolist()


def repeat(work: Callable[[int], object], rounds: int = ROUNDS) -> Callable[[], None]:
    def rounds_of_it() -> None:
        for number in range(rounds):
            work(number)

    return rounds_of_it


class TestTogether:
    """Everything at once, with every invariant checked after each operation."""

    @pytest.mark.parametrize("check", [True, False])
    @pytest.mark.parametrize("act", ["evict", "invalidate", "reclaim", "release"])
    def test_replays_stay_right_under(self, act: str, check: bool) -> None:
        model = Model()
        net = model.component(dependencies=("kv",))
        manager = model.serving(net, check=check)

        def disturb(number: int) -> None:
            match act:
                case "evict":
                    manager.evict("net")
                case "invalidate":
                    manager.invalidate("kv")
                case "reclaim":
                    manager.reclaim(flush=True)
                case "release":
                    manager.release()
            while True:
                with suppress(cgstate.IllegalTransition):  # what was retired is still leased
                    manager.capture_and_bind()
                    return

        def call(number: int) -> None:
            ask(model, net, 4 + number % 5, number)

        with running(repeat(disturb), repeat(call), repeat(call)):
            pass
        assert set(counts(manager)) <= {"miss", "unavailable", "not_serving"}
        manager.close()
        assert manager.memory().total == 0

    @pytest.mark.parametrize("check", [True, False])
    def test_low_level_replays_stay_right_under_eviction(self, check: bool) -> None:
        model = Model()
        manager = model.manager(check=check)
        [(entry, static)] = model.bind(manager, "low")
        other, other_static = manager.entry("low", 7), model.input(3)
        static.copy_(model.input(2, 4.0))
        model.dev.synchronize()
        right = model.net(static).tolist()

        def disturb(number: int) -> None:
            with manager.transaction() as tx:
                tx.capture(other, lambda warmup: lambda: model.net(other_static))
            manager.evict("low")
            with suppress(cgstate.IllegalTransition), manager.transaction() as tx:  # still leased
                tx.capture(entry, lambda warmup: lambda: model.net(static))

        def replay(number: int) -> None:
            with suppress(cgstate.IllegalTransition, cgstate.OutputExpired), entry.lease() as lease:
                lease.replay()
                copy: SimTensor = lease.output.clone()
                assert copy.tolist() == right
            with suppress(cgstate.IllegalTransition):
                entry.replay()

        with running(repeat(disturb), repeat(replay), repeat(replay)):
            pass
        manager.close()
        assert manager.memory().total == 0

    def test_close_under_replay(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        start = threading.Barrier(3)

        def calls() -> None:
            start.wait()
            repeat(lambda number: ask(model, net, 4, number))()

        with running(calls, calls):
            start.wait()
            manager.close()
        assert set(counts(manager)) <= {"closed", "not_serving", "unavailable"}
        assert manager.memory().total == 0

    def test_two_managers_capture_on_one_device_in_turn(self) -> None:
        model = Model()
        nets = [model.component(name) for name in "ab"]
        managers = [model.serving(net) for net in nets]

        def rounds(manager: cgstate.GraphManager, net: cgstate.Component[..., SimTensor], name: str) -> Callable[[], None]:
            def once(number: int) -> None:
                manager.evict(name)
                manager.capture_and_bind()
                ask(model, net, 4, number)

            return repeat(once)

        with running(*[rounds(m, n, name) for m, n, name in zip(managers, nets, "ab", strict=True)]):
            pass
        for manager in managers:
            manager.close()
            assert manager.memory().total == 0

    def test_drawing_replays_and_captures_keep_out_of_each_others_way(self) -> None:
        """A graph that draws random numbers cannot be replayed while a capture is open (fact S2): it must never fail for that."""
        model = Model()
        manager = model.manager()
        static = model.dev.zeros(2, WIDTH)
        draws = manager.entry("draws", 2)
        with manager.transaction() as tx:
            tx.capture(draws, lambda warmup: lambda: kernels.add(model.net(static), model.dev.rand(2, WIDTH)))

        def capture(number: int) -> None:
            with manager.transaction() as tx:
                tx.capture(manager.entry("other", number), lambda warmup: lambda: model.net(static))

        def replay(number: int) -> None:
            draws.replay()
            with draws.lease() as lease:
                lease.replay()

        with running(repeat(capture), repeat(replay), repeat(replay)):
            pass
        assert draws.state == "BOUND"
        assert manager.stats().components["draws"].failures == {}

    def test_lazy_captures_of_two_components_at_once(self) -> None:
        model = Model()
        nets = [model.component(name, (1,), sizes=(1, 2, 3, 4), capture_mode=LAZY) for name in "ab"]
        config = {name: {"max_extra_graphs": 1, "isolation": "per_entry"} for name in "ab"}
        manager = model.serving(*nets, config=config)

        def calls(net: cgstate.Component[..., SimTensor]) -> Callable[[], None]:
            return repeat(lambda number: ask(model, net, 1 + number % 4, number))

        with running(*[calls(net) for net in nets * 2]):
            pass
        for name in "ab":
            assert set(counts(manager, name)) <= {"capture_busy", "capacity", "unavailable", "not_admitted"}
        manager.close()
        assert manager.memory().total == 0


class TestInterleavings:
    """One thread held up at a point, another one run past it."""

    @pytest.fixture
    def sync(self) -> Stops:
        return Stops()

    @pytest.mark.parametrize("point", ["copy", "launch"])
    @pytest.mark.parametrize("act", ["evict", "invalidate"])
    def test_retiring_between_resolution_and_launch_waits_for_the_call(self, sync: Stops, point: str, act: str) -> None:
        model = Model()
        net = model.component(dependencies=("kv",))
        manager = model.serving(net, sync=sync)
        sync.stop(point)
        with running(lambda: ask(model, net, 4, 3.0)):
            reached(sync.arrived)
            assert (manager.evict("net") if act == "evict" else manager.invalidate("kv")) == 2
            manager.memory()
            entry = manager.entry("net", 4)
            assert (entry.state, entry.graph is not None) == ("REPLAYING", True)
            sync.go.set()
        assert entry.state == "EVICTED"
        assert counts(manager) == {}

    def test_a_retired_graph_in_a_lease_of_a_waiting_replay_is_not_launched(self, sync: Stops) -> None:
        """The lease was good when the replay began to wait for the turn, and is not when the turn comes."""
        model = Model()
        manager = model.manager(sync=sync)
        [(entry, _)] = model.bind(manager, "low")
        refused: list[str] = []

        def wait_for_the_turn() -> None:
            with entry.lease() as lease:
                try:
                    lease.replay()
                except cgstate.IllegalTransition as refusal:
                    refused.append(refusal.guard)

        sync.stop("launch")
        with running(lambda: entry.replay()):
            reached(sync.arrived)
            with running(wait_for_the_turn):
                while not manager._books.gate.waiting:
                    sync.arrived.wait(0.001)
                manager.evict("low")
                sync.go.set()
        assert refused == ["not retiring"]

    def test_no_capture_into_a_pool_begins_while_somebody_has_its_turn(self, sync: Stops) -> None:
        model = Model()
        manager = model.manager(sync=sync)
        [(entry, static)] = model.bind(manager, "low")
        other = manager.entry("low", 1)
        opened = model.dev.faults.calls["open_capture"]

        def capture() -> None:
            with manager.transaction() as tx:
                tx.capture(other, lambda warmup: lambda: model.net(static))

        sync.stop("launch")
        with running(entry.replay):
            reached(sync.arrived)
            with running(capture):
                while not manager._books.gate.waiting:
                    sync.arrived.wait(0.001)
                assert (other.state, model.dev.faults.calls["open_capture"]) == ("EAGER", opened)
                sync.go.set()
        assert other.state == "BOUND"

    def test_another_threads_replay_expires_what_a_lease_read_last(self, sync: Stops) -> None:
        model = Model()
        manager = model.manager(sync=sync)
        (mine, _), (theirs, _) = model.bind(manager, "mine", "theirs")
        with mine.lease() as lease:
            lease.replay()
            elsewhere(theirs.replay)
            with pytest.raises(cgstate.OutputExpired):
                _ = lease.output
            lease.replay()
            assert lease.output is not None

    def test_no_capture_opens_during_a_destruction(self, sync: Stops) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net, sync=sync)
        model.dev.synchronize()
        sync.stop("destroy")
        opened = model.dev.faults.calls["open_capture"]
        with running(lambda: manager.evict("net")):
            reached(sync.arrived)
            static = model.dev.zeros(2, WIDTH)
            second = cgstate.GraphManager(model.backend, check=True, sync=sync)
            low = second.entry("low", 1)

            def capture() -> None:
                with second.transaction() as tx:
                    tx.capture(low, lambda warmup: lambda: model.net(static))

            with running(capture):
                while not second._books.gate.waiting:
                    sync.arrived.wait(0.001)
                assert model.dev.faults.calls["open_capture"] == opened
                sync.go.set()
        assert low.state == "BOUND"

    def test_a_call_that_waits_for_a_lost_capture_is_not_answered_on_the_dead_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model()
        sync = Stops()
        net = model.component("net", (4,))
        manager = model.serving(net, sync=sync)
        answers: list[object] = []
        eager = model.dev.faults.calls["launch"]

        def call() -> None:
            with pytest.raises(cgstate.ManagerPoisoned):
                answers.append(net(x))

        def capture() -> None:
            def body() -> SimTensor:
                model.dev.lose()
                return model.net(static)

            with pytest.raises(cgstate.CaptureFailed), manager.transaction() as tx:
                tx.capture(manager.entry("low", 1), lambda warmup: (lambda: model.net(static)) if warmup else body)

        static, x = model.dev.zeros(2, WIDTH), model.input(9)
        sync.stop("commit")
        gate_held, go = threading.Event(), threading.Event()
        right = model.net

        def slow(value: SimTensor) -> SimTensor:
            gate_held.set()
            reached(go)
            return right(value)

        monkeypatch.setattr(model, "net", slow)
        with running(capture):
            reached(gate_held)
            with running(call):
                while not manager._books.gate.waiting:
                    sync.arrived.wait(0.001)
                go.set()
        assert (manager.state, answers) == ("POISONED", [])
        assert model.dev.faults.calls["launch"] >= eager


class TestEndless:
    """Waits that would never end are refused instead."""

    def hold(self, entry: cgstate.Entry, act: Callable[[], object]) -> None:
        """With a lease of its own, run ``act``, which has to refuse."""
        with entry.lease():
            self.leased.set()
            reached(self.go)
            with pytest.raises(cgstate.LeaseOutstanding):
                act()

    @pytest.fixture(autouse=True)
    def _events(self) -> None:
        self.leased, self.go = threading.Event(), threading.Event()

    @pytest.mark.parametrize("act", ["evict", "close", "release", "capture_and_bind"])
    def test_who_holds_a_lease_does_not_wait_for_who_waits_for_it(self, act: str) -> None:
        model = Model()
        manager = model.serving(model.component())
        acts: dict[str, Callable[[], object]] = {
            "evict": lambda: manager.evict("net"),
            "close": manager.close,
            "release": manager.release,
            "capture_and_bind": manager.capture_and_bind,
        }
        with running(lambda: self.hold(manager.entry("net", 4), acts[act])):
            reached(self.leased)
            with running(manager.release):
                while not manager._books.draining:
                    self.leased.wait(0.001)
                self.go.set()
        assert manager.state == "PREPARED"

    def test_who_is_inside_a_call_does_not_wait_for_a_capture_that_waits_for_the_call(self) -> None:
        model = Model()
        managers: list[cgstate.GraphManager] = []

        def work(x: SimTensor) -> SimTensor:
            if x.shape[0] == 9:
                self.leased.set()
                while not managers[0]._books.gate.pending:
                    self.leased.wait(0.001)
                with pytest.raises(cgstate.CaptureActive):
                    managers[0].evict("net")
            return model.net(x)

        net = model.component(call=work)
        managers.append(model.serving(net))
        managers[0].evict("net")
        model.dev.synchronize()
        with running(lambda: ask(model, net, 9)):
            reached(self.leased)
            managers[0].capture_and_bind()
        assert net.available_descriptors == {4, 8}

    def test_a_capture_that_is_refused_after_waiting_lets_the_others_go_on(self) -> None:
        model = Model()
        inside, go = threading.Event(), threading.Event()

        def work(x: SimTensor) -> SimTensor:
            if x.shape[0] == 9:
                inside.set()
                reached(go)
            return model.net(x)

        net = model.component(call=work)
        manager = model.serving(net)
        gate, done = manager._books.gate, threading.Event()

        def late() -> None:
            ask(model, net, 8)
            done.set()

        with running(lambda: ask(model, net, 9)):
            reached(inside)

            def refused() -> None:
                with manager.transaction() as tx:
                    with pytest.raises(cgstate.IllegalTransition):
                        tx.capture_entry(manager.entry("net", 4), lambda warmup: lambda: None)
                    reached(done)  # the transaction stays open: only the refusal itself can have let the call go on

            with running(refused):
                while not gate.pending:
                    inside.wait(0.001)
                with running(late):
                    while gate.waiting < 2:
                        inside.wait(0.001)
                    go.set()


class TestOwner:
    def test_a_manager_with_an_owner_refuses_every_other_thread_and_changes_nothing(self) -> None:
        model = Model()
        net, leased = model.component("net"), model.leased("leased")
        manager = model.serving(net, leased, owner_thread=True)
        entry = manager.entry("net", 4)
        x = model.input(4)
        acts: list[Callable[[], object]] = [
            lambda: net(x),
            lambda: leased(x),
            entry.replay,
            lambda: entry.lease().__enter__(),
            lambda: manager.entry("net", 4),
            lambda: manager.evict("net"),
            manager.invalidate,
            manager.capture_and_bind,
            manager.transaction().__enter__,
            manager.profile_memory,
            lambda: manager.prepare([]),
            manager.memory,
            manager.reclaim,
            manager.forget_failures,
            manager.release,
            manager.close,
        ]

        def foreign() -> None:
            for act in acts:
                with pytest.raises(cgstate.WrongThread):
                    act()

        elsewhere(foreign)
        assert (manager.state, entry.state, entry.leases) == ("SERVING", "BOUND", 0)
        ask(model, net, 4)

    def test_a_lease_is_of_the_owner_alone_and_stays_held_until_it_ends_it(self) -> None:
        model = Model()
        manager = model.serving(model.component("net"), owner_thread=True, check=False)
        entry = manager.entry("net", 4)
        lease, other = entry.lease(), entry.lease()
        with lease:
            lease.replay()
            hits = entry.hits
            acts: list[Callable[[], object]] = [
                lease.__enter__,
                other.__enter__,
                lease.replay,
                lambda: lease.output,
                lambda: lease.__exit__(None, None, None),
            ]

            def foreign() -> None:
                for act in acts:
                    with pytest.raises(cgstate.WrongThread):
                        act()

            elsewhere(foreign)
            assert (entry.hits, entry.leases, entry.state) == (hits, 1, "REPLAYING")
            assert lease.output is entry.output
        assert (entry.leases, entry.state.value) == (0, "BOUND")
        elsewhere(lambda: lease.__exit__(None, None, None))  # it is over: nothing is left to be refused
        manager.close(timeout=0)

    @pytest.mark.parametrize("end", ["released by its owner", "dropped elsewhere"])
    def test_a_leased_output_is_of_the_owner_alone(self, end: str) -> None:
        model = Model()
        leased = model.leased()
        manager = model.serving(leased, owner_thread=True, check=False)
        entry = manager.entry("net", 4)
        x = model.input(4)
        outputs = [leased(x)]

        def foreign() -> None:
            for act in (lambda: outputs[0].value, outputs[0].copy, outputs[0].release):
                with pytest.raises(cgstate.WrongThread):
                    act()
            with pytest.raises(cgstate.WrongThread), outputs[0]:
                pass

        elsewhere(foreign)
        assert outputs[0].value.tolist() == model.net(x).tolist()
        assert entry.leases == 1
        if end == "dropped elsewhere":
            elsewhere(outputs.clear)
            manager.memory()  # whoever comes next ends it
        else:
            outputs[0].release()
        assert (entry.leases, entry.state) == (0, "BOUND")
        manager.close(timeout=0)


class TestSync:
    def test_the_points_of_a_capture_and_a_call_come_in_order(self) -> None:
        model, sync = Model(), Recorded()
        net = model.component("net", (4,))
        manager = model.serving(net, sync=sync)
        assert sync.names == ["capture_begin", "capture_end", "commit"]
        sync.names.clear()
        ask(model, net, 4)
        assert sync.names == ["copy", "launch"]
        sync.names.clear()
        manager.entry("net", 4).replay()
        assert sync.names == ["launch"]
        sync.names.clear()
        manager.evict("net")
        assert sync.names == [], "it is still in flight"
        model.dev.synchronize()
        manager.memory()
        assert sync.names == ["destroy"]

    def test_no_lock_is_held_at_a_point(self) -> None:
        model = Model()
        locks: list[Lock] = []
        free: list[bool] = []

        class Watching(ThreadingSync):
            def lock(self) -> Lock:
                locks.append(super().lock())
                return locks[-1]

        def point(name: str) -> None:
            for lock in locks:
                free.append(lock.acquire(blocking=False))
                if free[-1]:
                    lock.release()

        sync = Watching()
        sync.point = point
        net = model.component("net", (4,))
        manager = model.serving(net, sync=sync)
        ask(model, net, 4)
        manager.evict("net")
        manager.close()
        assert len(free) >= 5
        assert all(free)

    def test_managers_of_one_device_share_one_sync(self) -> None:
        model = Model()
        first = model.manager(sync=THREADING)
        with pytest.raises(cgstate.ConfigError, match="another sync"):
            model.manager(sync=Recorded())
        assert first.state == "NEW"

    def test_a_sync_needs_only_what_its_protocol_says(self) -> None:
        class Minimal:
            point = None
            thread_id = staticmethod(threading.get_ident)

            def __init__(self) -> None:
                self.now_ns = iter(range(0, 10**9, 1000)).__next__

            def lock(self) -> Lock:
                return threading.RLock()

            def held(self, lock: Lock) -> Callable[[], bool]:
                return THREADING.held(lock)

            def condition(self, lock: Lock) -> Condition:
                return THREADING.condition(lock)

        sync: Sync = Minimal()
        model = Model()
        net = model.component()
        manager = model.serving(net, sync=sync)
        ask(model, net, 4)
        manager.close(timeout=1)
