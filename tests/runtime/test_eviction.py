"""Eviction and capacity: who goes, when the bytes go, and that whoever stays is right (I2, I7, I11, facts W1-W5)."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import ExitStack
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimConfig, SimTensor
from cgstate.runtime.vote import Ballot
from tests.runtime.helpers import WIDTH, Model, counts

LAZY = cgstate.CaptureMode.PRECAPTURE_LAZY
RULES = [SimConfig(), SimConfig(clear_workspaces_on_destroy=True)]
RULE_NAMES = ["explicit clear", "clear on destroy"]


def thrash(
    model: Model, extra: int = 2, *, collective: bool = False, **keys: Any
) -> tuple[cgstate.GraphManager, cgstate.Component[..., SimTensor]]:
    """A component with two startup graphs and room for ``extra`` lazy ones, each evictable alone."""
    net = model.component("net", (1, 2), sizes=(1, 2, 3, 4, 5, 6), capture_mode=LAZY, collective=collective)
    return model.serving(net, config={"net": {"max_extra_graphs": extra, "isolation": "per_entry"}}, **keys), net


def ask(model: Model, net: cgstate.Component[..., SimTensor], size: int) -> None:
    """Call, and compare with eager; the device is idle afterwards."""
    assert net(model.input(size, size)).tolist() == model.net(model.input(size, size)).tolist()
    model.dev.synchronize()


def pools(model: Model) -> dict[Any, int]:
    return {pool: size for pool, size in model.backend.footprint().pools.items() if size}


class TestDomains:
    @pytest.mark.parametrize(
        ("isolation", "gone"),
        [("shared", {"a[4]", "a[8]", "b[4]", "b[8]"}), ("per_component", {"a[4]", "a[8]"}), ("per_entry", {"a[4]"})],
    )
    def test_a_domain_retires_as_a_whole_and_no_other_does(self, isolation: str, gone: set[str]) -> None:
        model = Model()
        manager = model.serving(model.component("a"), model.component("b"), isolation=isolation)
        assert manager.evict("a", 4) == len(gone)
        entries = [manager.entry(name, size) for name in "ab" for size in (4, 8)]
        assert {entry.name for entry in entries if entry.state == "EVICTED"} == gone
        assert {entry.name for entry in entries if entry.state == "BOUND"} == {e.name for e in entries} - gone

    def test_an_evicted_component_is_eager_and_the_next_transaction_brings_it_back(self) -> None:
        model = Model()
        a = model.component("a")
        manager = model.serving(a)
        manager.evict("a")
        assert (a.state, a.available_descriptors) == ("EVICTED", frozenset())
        ask(model, a, 4)
        assert counts(manager, "a") == {"miss": 1}
        manager.capture_and_bind()
        ask(model, a, 4)
        assert (a.state, manager.stats().components["a"].hits) == ("BOUND", 1)

    def test_a_new_generation_has_a_new_pool(self) -> None:
        model = Model()
        manager = model.serving(model.component("a"))
        entry = manager.entry("a", 4)
        first = entry.pool
        manager.evict("a")
        manager.capture_and_bind()
        assert entry.pool is not first
        assert (first.state, entry.pool.state) == ("GONE", "LIVE")
        assert entry.pool.id != first.id

    @pytest.mark.parametrize("unknown", [("b", None), ("a", 5)])
    def test_what_is_unknown_is_a_config_error(self, unknown: tuple[str, int | None]) -> None:
        model = Model()
        manager = model.serving(model.component("a"))
        with pytest.raises(cgstate.ConfigError):
            manager.evict(*unknown)
        assert manager.entry("a", 4).state == "BOUND"

    def test_eviction_inside_a_transaction_is_refused(self) -> None:
        model = Model()
        manager = model.serving(model.component("a"))
        with manager.transaction():
            for act in (lambda: manager.evict("a"), lambda: manager.invalidate(), manager.release, manager.close):
                with pytest.raises(cgstate.CaptureActive):
                    act()
        assert manager.entry("a", 4).state == "BOUND"

    @pytest.mark.parametrize("act", ["evict", "invalidate", "release", "close", "transaction", "reclaim"])
    def test_nothing_that_ends_graphs_runs_inside_a_capture(self, act: str) -> None:
        model = Model()
        manager = model.serving(model.component("a"))
        static = model.dev.zeros(2, WIDTH)
        refused: list[bool] = []

        def attempt() -> None:
            match act:
                case "evict":
                    manager.evict("a")
                case "invalidate":
                    manager.invalidate()
                case "release":
                    manager.release()
                case "close":
                    manager.close()
                case "transaction":
                    with manager.transaction():
                        pass
                case "reclaim":
                    manager.reclaim(flush=True)

        def body() -> SimTensor:
            with pytest.raises(cgstate.CaptureActive):
                attempt()
            manager.memory()
            manager.stats()
            refused.append(True)
            return model.net(static)

        with manager.transaction() as tx:
            tx.capture(manager.entry("low", 1), lambda warmup: body)
        assert refused
        assert manager.entry("low", 1).state == manager.entry("a", 4).state == "BOUND"


class TestInFlight:
    def test_retiring_waits_for_nothing_and_replays_in_flight_finish(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        answers = [net(model.input(size)) for size in (4, 8)]
        before = model.dev.faults.calls.copy()
        manager.evict("net")
        spent = model.dev.faults.calls - before
        assert not {"stream_synchronize", "event_synchronize", "synchronize", "flush", "pool_drop"} & set(spent)
        assert manager.entry("net", 4).unreclaimed == 1
        assert [answer.tolist() for answer in answers] == [model.net(model.input(size)).tolist() for size in (4, 8)]
        manager.memory()
        assert manager.entry("net", 4).unreclaimed == 0

    def test_bytes_come_back_only_when_asked_for(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        held = manager.memory().total
        manager.evict("net")
        model.dev.synchronize()
        report = manager.reclaim()
        assert report.pools == {}
        assert 0 < sum(report.retired.values()) <= held
        assert pools(model)
        assert manager.reclaim(flush=True).total == 0
        assert pools(model) == {}

    @pytest.mark.parametrize("act", ["evict", "invalidate"])
    def test_capturing_anew_waits_for_replays_in_flight(self, act: str) -> None:
        """What is retired counts against the capacity until the device is done with it, so the capture has to wait."""
        model = Model()
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        answer = net(model.input(4))
        assert (manager.evict("net") if act == "evict" else manager.invalidate("kv")) == 2
        manager.capture_and_bind()
        assert answer.tolist() == model.net(model.input(4)).tolist()
        ask(model, net, 8)
        assert manager.stats().components["net"].hits == 2

    def test_the_peak_of_capturing_anew_is_one_generation(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        one = max(pools(model).values())
        for _ in range(3):
            net(model.input(8))
            manager.evict("net")
            manager.capture_and_bind()
            assert sum(pools(model).values()) <= one

    def test_a_lease_keeps_a_retired_graph_and_capturing_anew_says_so(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net, isolation="per_entry")
        with manager.entry("net", 4).lease() as lease:
            lease.replay()
            manager.evict("net")
            with pytest.raises(cgstate.IllegalTransition):
                manager.capture_and_bind()
            assert manager.state == "SERVING"
        model.dev.synchronize()
        manager.capture_and_bind()
        assert net.available_descriptors == {4, 8}

    def test_a_lease_keeps_every_graph_of_its_domain(self) -> None:
        model = Model()
        manager = model.serving(model.component())
        small, large = manager.entry("net", 4), manager.entry("net", 8)
        with large.lease() as lease:
            lease.replay()
            manager.evict("net")
            model.dev.synchronize()
            manager.reclaim(flush=True)
            assert (small.state, small.unreclaimed, large.state) == ("EVICTED", 1, "REPLAYING")
        model.dev.synchronize()
        manager.memory()
        assert (small.unreclaimed, large.unreclaimed) == (0, 0)


class TestCapacity:
    def test_lazy_entries_are_evicted_least_recently_used_first(self) -> None:
        model = Model()
        manager, net = thrash(model)
        for size in (3, 4, 3):
            ask(model, net, size)
        assert net.available_descriptors == {1, 2, 3, 4}
        ask(model, net, 5)  # retires 4
        manager.memory()
        assert net.available_descriptors == {1, 2, 3}
        ask(model, net, 5)
        assert net.available_descriptors == {1, 2, 3, 5}
        assert manager.stats().components["net"].evictions == 1

    @pytest.mark.parametrize("how", ["replay", "lease"])
    def test_replays_by_hand_are_use(self, how: str) -> None:
        model = Model()
        manager, net = thrash(model, check=False)  # so that replays are sealed
        for size in (3, 4):
            ask(model, net, size)
        entry = manager.entry("net", 3)
        if how == "replay":
            for _ in range(3):
                entry.replay()
        else:
            with entry.lease() as lease:
                lease.replay()
        model.dev.synchronize()
        ask(model, net, 5)
        manager.memory()
        assert net.available_descriptors == {1, 2, 3}
        ask(model, net, 5)  # in its place, and 3 is the older one again
        ask(model, net, 6)
        manager.memory()
        assert net.available_descriptors == {1, 2, 5}

    def test_a_leased_replay_tells_when_it_was(self) -> None:
        model = Model()
        manager, net = thrash(model)
        for size in (3, 4):
            ask(model, net, size)
        with manager.entry("net", 4).lease() as lease:
            lease.replay()
        ask(model, net, 3)
        ask(model, net, 5)
        manager.memory()
        assert net.available_descriptors == {1, 2, 3}

    def test_startup_entries_are_no_victims(self) -> None:
        model = Model()
        manager, net = thrash(model, extra=1)
        for size in (3, 4, 4, 5, 5, 6, 6):
            ask(model, net, size)
        assert {1, 2} < net.available_descriptors
        assert len(net.available_descriptors) == 3
        assert all(manager.entry("net", size).pool.id for size in (1, 2))

    def test_one_victim_at_a_time_however_often_it_is_asked_for(self) -> None:
        model = Model()
        manager, net = thrash(model, extra=3)
        for size in (3, 4, 5):
            ask(model, net, size)
        late = [net(model.input(size)) for size in (3, 4, 5)]  # in flight: none of them can go now
        for _ in range(3):
            net(model.input(6))
        assert manager.stats().components["net"].evictions == 1
        assert len(net.available_descriptors) == 4
        assert [x.tolist() for x in late] == [model.net(model.input(size)).tolist() for size in (3, 4, 5)]

    def test_the_peak_never_passes_the_capacity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model()
        peaks: list[int] = []
        manager, net = thrash(model, extra=1)
        record = manager._books.components["net"]
        capture_begin = model.backend.open_capture
        one = max(pools(model).values())

        def watched(*args: Any) -> Any:
            peaks.append(record.held)
            assert sum(pools(model).values()) <= one * record.capacity
            return capture_begin(*args)

        monkeypatch.setattr(model.backend, "open_capture", watched)
        for size in (3, 4, 4, 5, 5, 3, 3, 6, 6):
            ask(model, net, size)
        assert len(peaks) >= 4
        assert max(peaks) <= record.capacity == 3

    def test_what_is_not_reclaimed_yet_counts(self) -> None:
        model = Model()
        manager, net = thrash(model, extra=1)
        ask(model, net, 3)
        answer = net(model.input(3))  # in flight
        manager.evict("net", 3)
        assert net(model.input(4)).tolist() is not None
        assert counts(manager)["capacity"] == 1
        assert answer.tolist() == model.net(model.input(3)).tolist()
        ask(model, net, 4)
        assert 4 in net.available_descriptors

    def test_an_entry_in_use_is_no_victim(self) -> None:
        model = Model()
        manager, net = thrash(model, extra=1)
        ask(model, net, 3)
        with manager.entry("net", 3).lease():
            ask(model, net, 4)
            assert counts(manager) == {"capacity": 1}
            assert 3 in net.available_descriptors

    def test_a_victim_that_comes_into_use_meanwhile_stays(self) -> None:
        class Vote:
            def agree(self, ballot: Ballot, component: str, descriptor: Hashable) -> bool:
                if ballot is Ballot.evict:
                    leases.enter_context(manager.entry(component, descriptor).lease())
                return True

        model, leases = Model(), ExitStack()
        manager, net = thrash(model, extra=1, vote=Vote(), collective=True)
        ask(model, net, 3)
        with leases:
            ask(model, net, 4)
            assert counts(manager) == {"capacity": 1}
            assert 3 in net.available_descriptors
        assert manager.stats().components["net"].evictions == 0

    @pytest.mark.parametrize("isolation", ["shared", "per_component"])
    def test_without_isolation_a_miss_at_capacity_is_eager_and_evicts_nobody(self, isolation: str) -> None:
        model = Model()
        net = model.component("net", (2,), sizes=(2, 4, 6), capture_mode=LAZY)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 1, "isolation": isolation}})
        for size in (4, 6, 4, 6):
            ask(model, net, size)
        assert net.available_descriptors == {2, 4}
        assert counts(manager) == {"capacity": 2}
        assert manager.stats().components["net"].evictions == 0

    def test_churn_leaves_nothing_behind(self) -> None:
        model = Model()
        manager, net = thrash(model, extra=1)

        def round_trip() -> tuple[int, int, int, int]:
            for size in (3, 3, 4, 4, 5, 5, 6, 6):
                ask(model, net, size)
            manager.reclaim(flush=True)
            books = manager._books
            return len(books.domains), len(books.pools), model.dev.streams.exclusive, model.dev.reserved_bytes()

        settled = [round_trip() for _ in range(6)][2:]
        assert len(set(settled)) == 1, settled


class TestInvalidate:
    def test_entries_that_depend_on_it_go_with_their_domains(self) -> None:
        model = Model()
        kv, free = model.component("kv", dependencies=("cache",)), model.component("free")
        manager = model.serving(kv, free, isolation="per_component")
        assert manager.invalidate("cache") == 2
        assert (kv.state, free.state) == ("EVICTED", "BOUND")
        manager.capture_and_bind()
        assert (kv.state, manager.dependency("cache").epoch) == ("BOUND", 1)
        ask(model, kv, 4)

    def test_a_lease_over_an_invalidation_refuses_to_replay(self) -> None:
        model = Model()
        manager = model.serving(model.component(dependencies=("cache",)))
        with manager.entry("net", 4).lease() as lease:
            manager.invalidate("cache")
            with pytest.raises(cgstate.IllegalTransition):
                lease.replay()
            with pytest.raises(cgstate.IllegalTransition):
                manager.entry("net", 4).replay()

    def test_the_new_graph_bakes_the_new_address(self) -> None:
        model = Model()
        held = {"weight": model.weight}
        net = model.component("net", (4,), dependencies=("weight",), call=lambda x: model.net(x))
        manager = model.serving(net)
        ask(model, net, 4)
        manager.invalidate("weight")
        held.clear()
        model.weight = model.dev.rand(WIDTH, WIDTH)
        manager.capture_and_bind()
        ask(model, net, 4)
        assert manager.stats().components["net"].hits == 2

    def test_an_unknown_dependency_changes_nothing(self) -> None:
        model = Model()
        manager = model.serving(model.component(dependencies=("cache",)))
        with pytest.raises(cgstate.ConfigError, match="unknown dependency"):
            manager.invalidate("cache", "weights")
        assert (manager.entry("net", 4).state, manager.dependency("cache").epoch) == ("BOUND", 0)


@pytest.mark.parametrize("config", RULES, ids=RULE_NAMES)
class TestWorkspaces:
    """Whoever is evicted, survivors write into nobody's memory: everything that is freed is filled with sentinels (W2, W3, W5)."""

    def sentinels(self, model: Model, pattern: float) -> list[SimTensor]:
        model.dev.synchronize()
        sizes = [model.config_cells, 512, 64, 16, 8, 4]
        return [model.dev.tensor([pattern] * size) for size in sizes for _ in range(4)]

    def check(self, model: Model, sentinels: list[SimTensor], pattern: float) -> None:
        model.dev.synchronize()
        assert all(set(tensor.tolist()) == {pattern} for tensor in sentinels)  # type: ignore[arg-type]

    @pytest.mark.parametrize("flush", [False, True])
    @pytest.mark.parametrize("victim", [4, 8])
    def test_survivors_of_an_eviction_are_right_and_hurt_nobody(self, config: SimConfig, victim: int, flush: bool) -> None:
        model = Model(config=config)
        net = model.component()
        manager = model.serving(net, isolation="per_entry")
        for size in (4, 8):
            ask(model, net, size)
        survivor = 12 - victim
        manager.evict("net", victim)
        manager.reclaim(flush=flush)
        sentinels = self.sentinels(model, 77.0)
        for _ in range(2):
            answer = net(model.input(survivor, 3.0))
            self.check(model, sentinels, 77.0)
            assert answer.tolist() == model.net(model.input(survivor, 3.0)).tolist()
        assert manager.entry("net", survivor).state == "BOUND"
        assert manager.stats().components["net"].hits == 4

    def test_churn_over_many_lazy_entries_hurts_nobody(self, config: SimConfig) -> None:
        model = Model(config=config)
        manager, net = thrash(model, extra=2)
        for size in (3, 4, 5, 5, 6, 6, 3, 3, 4, 4, 5, 5):
            ask(model, net, size)
            sentinels = self.sentinels(model, float(size))
            for other in sorted(net.available_descriptors):  # type: ignore[type-var]
                ask(model, net, int(str(other)))
            self.check(model, sentinels, float(size))
        assert manager.stats().components["net"].evictions >= 2

    def test_a_retired_generation_gives_its_workspaces_back(self, config: SimConfig) -> None:
        model = Model(config=config)
        before = model.dev.reserved_bytes()
        manager = model.serving(model.component())
        manager.evict("net")
        manager.reclaim(flush=True)
        model.dev.flush()
        assert manager.memory().total == 0
        assert model.dev.reserved_bytes() <= before + config.workspace_bytes  # the default stream's own

    def test_another_managers_graphs_survive_the_clear(self, config: SimConfig) -> None:
        model = Model(config=config)
        a, b = model.component("a"), model.component("b")
        first, second = model.serving(a), model.serving(b)
        ask(model, b, 4)
        first.evict("a")
        first.reclaim(flush=True)
        first.close()
        sentinels = self.sentinels(model, 5.0)
        ask(model, b, 4)
        ask(model, b, 8)
        self.check(model, sentinels, 5.0)
        assert second.stats().components["b"].hits == 3

    def test_a_generation_that_begins_before_the_last_one_is_gone_has_workspaces_of_its_own(self, config: SimConfig) -> None:
        model = Model(config=config)
        manager = model.manager()
        [(low, static)] = model.bind(manager, "low")
        other = manager.entry("low", 1)
        with ExitStack() as held:
            lease = held.enter_context(low.lease())
            lease.replay()
            manager.evict("low")
            with manager.transaction() as tx:
                held.close()  # the pool retires here; its recording is still in flight
                tx.capture(other, lambda warmup: lambda: model.net(static))
        assert other.pool is not low.pool
        model.dev.synchronize()
        manager.reclaim(flush=True)
        sentinels = self.sentinels(model, 4.0)
        other.replay()
        self.check(model, sentinels, 4.0)
        assert other.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]

    def test_an_entry_that_comes_back_while_its_old_graph_is_in_flight_has_a_workspace_of_its_own(self, config: SimConfig) -> None:
        model = Model(config=config)
        manager, net = thrash(model, extra=2)
        ask(model, net, 3)
        late = net(model.input(3, 3))
        manager.evict("net", 3)
        assert net(model.input(3, 3)).tolist() == late.tolist()
        assert manager.stats().components["net"].captures == 4
        model.dev.synchronize()
        manager.reclaim(flush=True)
        sentinels = self.sentinels(model, 4.0)
        ask(model, net, 3)
        self.check(model, sentinels, 4.0)

    @pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
    def test_streams_of_others_with_workspaces_of_their_own_are_not_captured_on(self, config: SimConfig, isolation: str) -> None:
        model = Model(config=config)
        for _ in range(32):  # all handles that the framework has (S1)
            with model.dev.on_stream(model.dev.new_stream()):
                model.net(model.input(2))
        a, b = model.component("a"), model.component("b")
        first, second = model.serving(a, isolation=isolation), model.serving(b, isolation=isolation)
        first.evict("a")
        model.dev.synchronize()
        first.reclaim(flush=True)
        sentinels = self.sentinels(model, 4.0)
        ask(model, b, 4)
        self.check(model, sentinels, 4.0)
        assert second.stats().components["b"].hits == 1

    def test_a_clear_by_one_manager_is_seen_in_the_books_of_another(self, config: SimConfig) -> None:
        model = Model(config=config)
        first, second = model.serving(model.component("a")), model.serving(model.component("b"))
        low, static, stream = first.entry("low", 4), model.input(4), model.dev.new_stream()
        with first.transaction() as tx:  # while it lives nothing may be cleared
            tx.capture(low, lambda warmup: lambda: model.net(static), stream=stream)
        second.evict("b")
        model.dev.synchronize()
        second.reclaim(flush=True)
        first.evict("a")
        model.dev.synchronize()
        first.reclaim(flush=True)
        assert first.memory().total == second.memory().total == 0

    def test_an_adopted_stream_keeps_its_workspace_while_its_graphs_live(self, config: SimConfig) -> None:
        model = Model(config=config)
        manager = model.serving(model.component("net"), isolation="per_component")
        stream, static = model.dev.new_stream(), model.input(4, 2.0)
        low = manager.entry("low", 4)
        with manager.transaction() as tx:
            tx.capture(low, lambda warmup: lambda: model.net(static), stream=stream)
        manager.evict("net")
        manager.reclaim(flush=True)
        sentinels = self.sentinels(model, 9.0)
        low.replay()
        self.check(model, sentinels, 9.0)
        assert low.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]
