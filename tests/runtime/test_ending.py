"""How managers stop: released, closed, dropped without a word, or with the device lost under them (I6, I7, I15)."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Generator
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import Drawn, SimGraph, SimTensor, captured
from cgstate.backends.sim.errors import SimAcceleratorError
from cgstate.backends.sim.releases import SimReleaseMark
from tests.runtime.helpers import WIDTH, Model, counts, elsewhere, reached, running


class Communicator:
    """What graphs use, and has an owner."""


def ask(model: Model, net: cgstate.Component[..., SimTensor], size: int = 4) -> None:
    assert net(model.input(size)).tolist() == model.net(model.input(size)).tolist()


def pools(model: Model) -> dict[Any, int]:
    return {pool: size for pool, size in model.backend.footprint().pools.items() if size}


def nothing_left(model: Model) -> None:
    model.dev.flush()
    assert pools(model) == {}
    assert model.dev.streams.exclusive == 0


@pytest.fixture(params=["shared", "per_component", "per_entry"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestRelease:
    def test_a_released_manager_is_armed_again(self, isolation: str) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net, isolation=isolation)
        for _ in range(3):
            ask(model, net)
            manager.release()
            assert (manager.state, net.state, manager.memory().total) == ("PREPARED", "EAGER", 0)
            assert pools(model) == {}
            assert manager.entry("net", 4).state == "EAGER"
            ask(model, net)
            manager.capture_and_bind()
            assert (manager.state, net.state) == ("SERVING", "BOUND")
        assert counts(manager) == {"not_serving": 3}
        assert manager.stats().components["net"].hits == 3

    def test_it_can_be_profiled_again(self) -> None:
        model = Model()
        manager = model.serving(model.component())
        manager.release()
        assert manager.profile_memory().graphs == 2

    @pytest.mark.parametrize("state", ["NEW", "PREPARED", "CLOSED"])
    def test_only_a_serving_manager_is_released(self, state: str) -> None:
        model = Model()
        manager = model.manager()
        if state != "NEW":
            manager.prepare([model.component()])
        if state == "CLOSED":
            manager.close()
        with pytest.raises(cgstate.IllegalTransition):
            manager.release()
        assert manager.state == state

    def test_replays_in_flight_are_awaited(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        answer = net(model.input(4))
        manager.release()
        assert answer.tolist() == model.net(model.input(4)).tolist()

    def test_lazy_entries_go_and_come_back(self) -> None:
        model = Model()
        net = model.component("net", (1,), sizes=(1, 2, 3), capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 1}})
        for _ in range(2):
            ask(model, net, 3)
            assert net.available_descriptors == {1, 3}
            manager.release()
            manager.capture_and_bind()
            assert net.available_descriptors == {1}


class TestClose:
    def test_everything_is_returned_and_components_are_eager(self, isolation: str) -> None:
        model = Model()
        net, leased = model.component("net"), model.leased("leased")
        manager = model.serving(net, leased, isolation=isolation)
        ask(model, net)
        leased(model.input(4)).release()
        manager.close()
        assert (manager.state, net.state, manager.memory().total) == ("CLOSED", "EAGER", 0)
        nothing_left(model)
        ask(model, net)
        with leased(model.input(4)) as out:
            assert out.value.tolist() == model.net(model.input(4)).tolist()
        assert counts(manager) == {"closed": 1}

    def test_closing_twice_changes_nothing(self) -> None:
        model = Model()
        manager = model.serving(model.component())
        manager.close()
        stats = manager.stats()
        manager.close()
        assert manager.stats() == stats

    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_manager_that_never_served_is_closed(self, prepared: bool) -> None:
        model = Model()
        net = model.component()
        manager = model.manager()
        if prepared:
            manager.prepare([net])
        manager.close()
        ask(model, net)

    def test_as_a_context_manager_it_closes(self) -> None:
        model = Model()
        with model.manager() as manager:
            manager.prepare([model.component()])
            manager.capture_and_bind()
        assert manager.state == "CLOSED"
        nothing_left(model)

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("what", ["bound", "evicted", "segments", "dropped recordings"])
    def test_it_returns_once_the_driver_has_let_go_of_what_graphs_retained(  # B26
        self, what: str, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = Model(schedule=Drawn(random.Random(seed)))
        begin, begun, released = SimGraph.capture_begin, list[SimGraph](), list[SimGraph]()

        def begin_and_retain(graph: SimGraph, *how: Any) -> None:
            begin(graph, *how)
            graph.retain(partial(released.append, graph))
            begun.append(graph)

        def segments() -> Generator[cgstate.Break, None, SimTensor]:
            yield cgstate.Break(lambda: None)
            return model.net(x)

        monkeypatch.setattr(SimGraph, "capture_begin", begin_and_retain)
        manager, x = model.manager(), model.input(4)
        entry = manager.entry("low", 1)
        with suppress(KeyError), manager.transaction() as tx:
            tx.capture(entry, lambda warmup: segments if what == "segments" else lambda: model.net(x))
            if what == "dropped recordings":
                raise KeyError
        if what != "dropped recordings":
            entry.replay()  # in flight
        if what == "evicted":
            manager.evict("low")
        manager.close()
        assert len(begun) == (2 if what == "segments" else 1)
        assert sorted(map(id, released)) == sorted(map(id, begun))

    @pytest.mark.parametrize("timeout", [0, 0.5])
    def test_a_driver_that_does_not_let_go_in_time_is_told_of_and_another_close_goes_on(
        self, timeout: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        asked: list[float | None] = []

        def late(mark: SimReleaseMark, seconds: float | None) -> bool:
            asked.append(seconds)
            return False

        monkeypatch.setattr(SimReleaseMark, "wait", late)
        for _ in range(2):
            with pytest.raises(cgstate.ReleasePending, match="still holds what graphs of it retained"):
                manager.close(timeout)
            assert (manager.state, net.attached, manager.memory().total) == ("CLOSED", False, 0)
            ask(model, net)
        monkeypatch.undo()
        manager.close(timeout)
        assert asked == [timeout] * 2
        nothing_left(model)

    def test_a_graph_that_was_destroyed_at_the_second_close_is_waited_for_as_well(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model(schedule=Drawn(random.Random(0)))
        begin, destroy, released = SimGraph.capture_begin, SimGraph.destroy, list[int]()

        def begin_and_retain(graph: SimGraph, *how: Any) -> None:
            begin(graph, *how)
            graph.retain(lambda: released.append(1))

        def fail(graph: SimGraph) -> None:
            raise RuntimeError("not now")

        monkeypatch.setattr(SimGraph, "capture_begin", begin_and_retain)
        manager = model.serving(model.component())
        monkeypatch.setattr(SimGraph, "destroy", fail)
        monkeypatch.setattr(SimReleaseMark, "wait", lambda mark, seconds: False)
        with pytest.raises(cgstate.ReleasePending):
            manager.close(0)
        monkeypatch.setattr(SimGraph, "destroy", destroy)
        monkeypatch.undo()
        manager.close()
        assert released == [1, 1]

    @pytest.mark.parametrize("timeout", ["1", -1, True])
    def test_another_close_takes_no_nonsense_either(self, timeout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model()
        manager = model.serving(model.component())
        monkeypatch.setattr(SimReleaseMark, "wait", lambda mark, seconds: False)
        with pytest.raises(cgstate.ReleasePending):
            manager.close(0)
        monkeypatch.undo()
        for _ in range(2):
            with pytest.raises(cgstate.ConfigError, match="timeout must be"):
                manager.close(timeout)
            manager.close()

    def test_a_device_that_is_lost_while_it_waits_for_the_driver_lets_it_close(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model()
        manager = model.serving(model.component())

        def lost(mark: SimReleaseMark, seconds: float | None) -> bool:
            model.dev.lose()
            raise SimAcceleratorError(710)

        monkeypatch.setattr(SimReleaseMark, "wait", lost)
        manager.close()
        assert (manager.state, manager.memory().total) == ("CLOSED", 0)

    def test_what_a_graph_used_goes_after_the_graph(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model()
        order: list[str] = []
        destroy = SimGraph.destroy

        def destroying(graph: SimGraph) -> None:
            destroy(graph)
            order.append("graph")

        monkeypatch.setattr(SimGraph, "destroy", destroying)
        manager = model.manager()

        def capture() -> None:
            communicator = Communicator()
            weakref.finalize(communicator, order.append, "communicator")
            x = model.input(4)
            with manager.transaction() as tx:
                tx.capture(manager.entry("low", 1), lambda warmup: lambda: model.net(x), retain=[communicator])

        capture()
        manager.close()
        assert order == ["graph", "communicator"]

    def test_every_method_of_a_closed_manager_says_so(self) -> None:
        model = Model()
        manager = model.serving(model.component(dependencies=("kv",)))
        entry = manager.entry("net", 4)
        lease = entry.lease()
        manager.close()
        for act in (
            lambda: manager.prepare([]),
            manager.profile_memory,
            manager.capture_and_bind,
            lambda: manager.entry("net", 4),
            lambda: manager.evict("net"),
            lambda: manager.invalidate("kv"),
            manager.forget_failures,
            manager.reclaim,
            manager.release,
            entry.replay,
            lease.__enter__,
        ):
            with pytest.raises(cgstate.ManagerClosed):
                act()
        assert (entry.leases, manager.memory().total) == (0, 0)

    @pytest.mark.parametrize("ending", ["close", "release"])
    @pytest.mark.parametrize("kind", ["lease", "output"])
    def test_an_own_lease_is_refused_at_once_and_nothing_changes(self, ending: str, kind: str) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        held = manager.entry("net", 4).lease() if kind == "lease" else net(model.input(4))
        with held:
            with pytest.raises(cgstate.LeaseOutstanding) as refusal:
                getattr(manager, ending)()
            assert refusal.value.event == ending
            assert (manager.state, net.state) == ("SERVING", "REPLAYING")
            net(model.input(8)).release()
        assert manager.stats().components["net"].fallbacks == {}
        getattr(manager, ending)()
        assert manager.memory().total == 0

    @pytest.mark.parametrize("ending", ["close", "release"])
    def test_leases_of_others_that_outlast_the_timeout_leave_everything_as_it_was(self, ending: str) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        lease = manager.entry("net", 4).lease()
        elsewhere(lease.__enter__)
        with pytest.raises(cgstate.LeaseOutstanding, match="after"):
            getattr(manager, ending)(timeout=0.01)
        assert manager.state == "SERVING"
        ask(model, net, 8)
        assert counts(manager) == {}
        lease.__exit__(None, None, None)
        getattr(manager, ending)(timeout=0.01)
        assert manager.memory().total == 0

    @pytest.mark.parametrize("ending", ["close", "release"])
    def test_it_waits_for_leases_of_others_and_gives_no_new_ones(self, ending: str) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        entry = manager.entry("net", 4)
        lease, draining = entry.lease(), threading.Event()
        elsewhere(lease.__enter__)

        def other() -> None:
            while not manager._books.draining:
                draining.wait(0.001)
            with pytest.raises(cgstate.IllegalTransition, match="serving"):
                entry.replay()
            ask(model, net, 8)
            lease.replay()
            lease.__exit__(None, None, None)

        with running(other):
            getattr(manager, ending)()
        assert counts(manager) == {"not_serving": 1}
        assert manager.memory().total == 0

    def test_an_unbound_component_belongs_to_the_next_manager(self) -> None:
        model = Model()
        net = model.component()
        first = model.serving(net)
        second = model.manager()
        with pytest.raises(cgstate.ConfigError, match="belongs to another manager"):
            second.prepare([net])
        ask(model, net)
        first.close()
        second.prepare([net])
        second.capture_and_bind()
        ask(model, net)
        assert second.stats().components["net"].hits == 1

    def test_a_managers_pools_are_never_anothers(self) -> None:
        model = Model()
        net = model.component()
        seen: set[Any] = set()
        for _ in range(3):
            with model.manager() as manager:
                manager.prepare([net])
                manager.capture_and_bind()
                pool = manager.entry("net", 4).pool.id
                assert pool not in seen
                seen.add(pool)
        nothing_left(model)


class TestDropped:
    def test_a_dropped_manager_leaves_eager_components_and_nothing_else(self, isolation: str) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net, isolation=isolation)
        ask(model, net)
        model.dev.synchronize()
        books = weakref.ref(manager._books)
        del manager
        gc.collect()
        assert (net.state, net.attached, books()) == ("EAGER", False, None)
        ask(model, net)
        nothing_left(model)

    @pytest.mark.parametrize("block", ["transaction", "profile", "mutating"])
    def test_a_manager_lives_as_long_as_its_block(self, block: str) -> None:
        model = Model()
        manager = model.manager(dependencies=("kv",))
        manager.prepare([])
        x, entry = model.input(2), manager.entry("low", 1)
        opened: AbstractContextManager[object]
        match block:
            case "transaction":
                opened = manager.transaction()
            case "profile":
                opened = manager.profile()
            case _:
                opened = manager.mutating("kv")
        with opened as made:
            books = weakref.ref(manager._books)
            del manager
            gc.collect()
            if isinstance(made, cgstate.Transaction):
                made.capture(entry, lambda warmup: lambda: model.net(x))
        del opened, made, entry
        gc.collect()
        assert books() is None
        nothing_left(model)

    def test_its_components_serve_the_next_manager(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        del manager
        gc.collect()
        second = model.serving(net)
        ask(model, net)
        assert second.stats().components["net"].hits == 1

    def test_with_replays_in_flight_the_next_manager_reclaims(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        other = model.manager()
        answer = net(model.input(4))
        with other._books.gate.lock:  # so that the finalizer cannot do it at once
            del manager
            gc.collect()
        other.memory()
        assert pools(model)
        assert answer.tolist() == model.net(model.input(4)).tolist()
        other.memory()
        nothing_left(model)

    def test_without_another_manager_it_waits_for_replays_in_flight(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        answer = net(model.input(4))
        del manager
        gc.collect()
        nothing_left(model)
        assert answer.tolist() == model.net(model.input(4)).tolist()

    def test_inside_a_destruction_of_the_same_thread_it_does_not_deadlock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model()
        dropped = [model.serving(model.component())]
        manager = model.serving(model.component("other"))
        flush, flushed = model.backend.flush, []

        def collecting() -> int:
            dropped.clear()
            gc.collect()
            flushed.append(1)
            return flush()

        monkeypatch.setattr(model.backend, "flush", collecting)
        with running(lambda: manager.reclaim(flush=True)):
            pass
        assert flushed
        manager.close()
        model.dev.synchronize()
        nothing_left(model)

    def test_with_a_lease_held_it_waits_for_the_lease(self) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        out = net(model.input(4))
        del manager
        gc.collect()
        assert pools(model)
        model.dev.synchronize()
        out.release()
        gc.collect()
        nothing_left(model)

    def test_a_kept_entry_refuses(self) -> None:
        model = Model()
        manager = model.serving(model.component())
        entry = manager.entry("net", 4)
        del manager
        gc.collect()
        with pytest.raises(cgstate.ManagerClosed):
            entry.replay()

    @pytest.mark.parametrize("how", ["del", "cycle"])
    def test_inside_an_open_capture_it_breaks_nothing_and_goes_after_it(self, how: str) -> None:
        model = Model()
        net = model.component()
        dropped = [model.serving(net)]
        ask(model, net)
        model.dev.synchronize()
        manager = model.manager()
        entry, static = manager.entry("low", 2), model.dev.zeros(2, WIDTH)
        destroyed: list[int] = []

        def body() -> SimTensor:
            if how == "cycle":
                dropped.append(dropped)  # type: ignore[arg-type]
                dropped[0].loop = dropped  # type: ignore[attr-defined]
            before = model.dev.faults.calls["graph_destroy"]
            dropped.clear()
            gc.collect()
            destroyed.append(model.dev.faults.calls["graph_destroy"] - before)
            return model.net(static)

        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: (lambda: model.net(static)) if warmup else body)
        assert (entry.state, destroyed, net.attached) == ("BOUND", [0], False)
        manager.memory()
        model.dev.synchronize()
        manager.memory()
        assert model.dev.faults.calls["graph_destroy"] == 2
        static.copy_(model.input(2, 3.0))
        entry.replay()
        assert entry.output.tolist() == model.net(model.input(2, 3.0)).tolist()  # type: ignore[attr-defined]
        manager.close()
        nothing_left(model)

    def test_inside_a_locked_section_it_does_not_deadlock(self) -> None:
        model = Model()
        net = model.component()
        dropped = [model.serving(net)]
        model.dev.synchronize()
        seen: list[str] = []

        def drop(entity: object, row: int, state: str) -> None:
            if dropped:
                dropped.clear()
                gc.collect()
                seen.append(state)

        manager = model.manager(observer=drop)
        with running(lambda: model.bind(manager, "low")):
            pass
        assert seen
        assert not net.attached
        manager.memory()
        manager.close()
        nothing_left(model)

    def test_while_another_thread_has_the_lock_it_does_not_wait(self) -> None:
        model = Model()
        manager = model.serving(model.component())
        other = model.manager()
        locked, go = threading.Event(), threading.Event()

        def hold() -> None:
            with other._books.gate.lock:
                locked.set()
                reached(go)

        with running(hold):
            reached(locked)
            del manager
            gc.collect()
            go.set()
        model.dev.synchronize()
        other.memory()
        nothing_left(model)


class TestDeviceLost:
    def test_everything_is_poisoned_and_nothing_runs_eagerly(self) -> None:
        model = Model()
        net, other = model.component("net"), model.component("other")
        manager = model.serving(net, other)
        entry, x = manager.entry("other", 4), model.input(4)
        big = model.input(9)
        model.dev.lose()
        with pytest.raises(SimAcceleratorError):
            net(x)
        assert manager.state == "POISONED"
        launches = model.dev.faults.calls["launch"], model.dev.faults.calls["graph_replay"]
        for act in (
            lambda: net(x),
            lambda: other(x),
            lambda: other(big),
            entry.replay,
            lambda: entry.lease().__enter__(),
            manager.capture_and_bind,
            lambda: manager.evict("net"),
            manager.reclaim,
            manager.release,
            lambda: manager.entry("net", 4),
        ):
            with pytest.raises(cgstate.ManagerPoisoned):
                act()
        assert launches == (model.dev.faults.calls["launch"], model.dev.faults.calls["graph_replay"])
        manager.memory()
        manager.stats()
        manager.close()
        assert manager.state == "CLOSED"
        manager.close()

    @pytest.mark.parametrize("where", ["replay", "eager", "other stream", "reclaim", "capture", "lease"])
    def test_it_is_noticed_wherever_it_shows(self, where: str) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        entry, big, small = manager.entry("net", 4), model.input(9), model.input(4)
        entry.replay()
        side = model.dev.new_stream()
        static = model.dev.zeros(2, WIDTH)
        low = manager.entry("low", 2)
        if where == "reclaim":
            manager.evict("net")
        model.dev.lose()
        with pytest.raises((SimAcceleratorError, cgstate.IllegalTransition, cgstate.CaptureFailed)):  # noqa: PT012 - one of these acts
            match where:
                case "replay":
                    entry.replay()
                case "lease":
                    with entry.lease() as lease:
                        lease.replay()
                case "eager":
                    net(big)
                case "other stream":
                    with model.dev.on_stream(side):
                        net(small)
                case "reclaim":
                    manager.reclaim(flush=True)
                    manager.reclaim()
                case "capture":
                    with manager.transaction() as tx:
                        tx.capture(low, lambda warmup: lambda: model.net(static))
        assert manager.state == "POISONED"
        manager.close()
        assert manager.memory().total == 0

    def test_close_works_with_leases_of_before(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        x = model.input(8)
        with manager.entry("net", 4).lease():
            model.dev.lose()
            with pytest.raises(SimAcceleratorError):
                net(x)
            with pytest.raises(cgstate.LeaseOutstanding):
                manager.close()
        manager.close()
        assert manager.state == "CLOSED"

    def test_a_poisoned_manager_that_is_dropped_is_let_go(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        x = model.input(4)
        model.dev.lose()
        with pytest.raises(SimAcceleratorError):
            net(x)
        books = weakref.ref(manager._books)
        del manager
        gc.collect()
        assert books() is None
        assert not net.attached


@pytest.mark.parametrize("check", [True, False])
def test_what_somebody_holds_at_the_end_is_given_back_once_they_let_go(check: bool) -> None:
    model = Model()
    manager = model.manager(check=check)
    ((entry, _),) = model.bind(manager, "low")
    entry.replay()
    held = entry.output
    manager.close()
    kept = manager.memory().total
    assert kept > 0
    assert held.tolist() is not None
    flushed = model.backend.faults.calls["flush"]
    for _ in range(3):
        assert manager.memory().total == kept
    assert model.backend.faults.calls["flush"] == flushed, "there is nothing to give back, and a flush stalls the device"
    del held
    assert manager.memory().total == 0
    assert model.backend.footprint().pools == {}


def test_a_closed_manager_that_is_looked_at_leaves_the_callers_own_capture_alone() -> None:
    model = Model()
    manager = model.manager(check=False)
    ((entry, _),) = model.bind(manager, "low")
    held = entry.output
    manager.close()
    assert held is not None
    stream, pool = model.backend.new_stream(exclusive=True), model.backend.new_pool()

    def recorded() -> tuple[int, int]:
        nonlocal held
        held = None
        before = model.backend.faults.calls["flush"]
        manager.memory()
        return before, model.backend.faults.calls["flush"]

    graph, (before, after) = captured(model.dev, recorded, stream, pool.id)
    assert before == after
    graph.destroy()
    pool.drop()
    manager.memory()
    assert model.backend.faults.calls["flush"] == after + 1
