"""The host engine's pool: our graphs record into it, and it stays the engine's (faults of kind K01)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import cgstate
from cgstate.backends.sim import SimBackend, SimDevice, SimGraph, captured, kernels
from cgstate.backends.sim.blocks import PoolId
from cgstate.runtime.foreign import ForeignPool
from tests.runtime.helpers import WIDTH, Model, elsewhere


class Engine:
    """A host engine with a global pool and graphs of its own in it."""

    def __init__(self, dev: SimDevice, pool: PoolId | None = None) -> None:
        self.dev = dev
        self.pool = dev.pool_handle() if pool is None else pool
        self.stream = dev.new_stream()
        self.source = dev.rand(64, WIDTH)
        self.weight = dev.rand(WIDTH, WIDTH)
        self.right = self.work().tolist()
        self.graphs: list[tuple[SimGraph, Any]] = []

    def work(self) -> Any:
        return kernels.tanh(kernels.matmul(self.source, self.weight))

    def capture(self) -> None:
        self.dev.library.workspace()
        with self.dev.on_stream(self.stream):
            self.work()  # its workspace is made outside of the pool
        self.graphs.append(captured(self.dev, self.work, self.stream, self.pool))

    def shut_down(self) -> None:
        for graph, _ in self.graphs:
            graph.destroy()
        self.graphs.clear()

    def check(self) -> None:
        """Its graphs still give the right answers."""
        for graph, output in self.graphs:
            graph.replay()
            assert output.tolist() == self.right


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def engine(model: Model) -> Engine:
    engine = Engine(model.dev)
    engine.capture()
    return engine


def guest(model: Model, engine: Engine, **keys: Any) -> cgstate.GraphManager:
    return model.manager(pool=engine.pool, isolation="foreign", **keys)


def pool_bytes(model: Model, engine: Engine) -> int:
    return model.backend.footprint().pools.get(engine.pool, 0)


class TestSharing:
    def test_graphs_of_both_answer_right(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        net = model.component()
        manager.prepare([net])
        manager.capture_and_bind()
        for size in (3, 4, 7):
            x = model.input(size, float(size))
            assert net(x).tolist() == model.net(x).tolist()
            engine.check()
        assert manager.stats().components["net"].hits == 3
        assert {pool.id for pool in manager._books.pools} == {engine.pool}

    def test_only_components_that_ask_for_it_go_there(self, model: Model, engine: Engine) -> None:
        manager = model.manager(pool=engine.pool)
        inside, outside = model.component("inside"), model.component("outside")
        manager.prepare([inside, outside], {"inside": {"isolation": "foreign"}, "outside": {}})
        manager.capture_and_bind()
        assert [pool.kind for pool in manager._books.pools if pool.id == engine.pool] == ["foreign"]
        assert [pool.name for pool in manager._books.pools] == ["foreign", "shared/1", "workspaces 1"]
        for net in (inside, outside):
            assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()

    def test_it_is_never_retired_and_is_captured_into_again(self, model: Model, engine: Engine) -> None:
        net = model.component(dependencies=("kv",))
        manager = guest(model, engine)
        manager.prepare([net])
        manager.capture_and_bind()
        ends: list[Callable[[], object]] = [lambda: manager.evict("net"), lambda: manager.invalidate("kv"), manager.release]
        for end in ends:
            end()
            manager.reclaim(flush=True)
            [pool] = manager._books.pools
            assert (pool.state, pool.graphs) == ("LIVE", 0)
            assert model.dev.allocator.use_count(engine.pool) == 1
            engine.check()
            manager.capture_and_bind()
            assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        manager.close()
        assert model.dev.allocator.use_count(engine.pool) == 1
        engine.check()
        engine.capture()

    def test_eviction_retires_all_of_ours_and_none_of_theirs_and_returns_nothing(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        manager.prepare([model.component("a", (256,)), model.component("b", (128,))])
        manager.capture_and_bind()
        held = pool_bytes(model, engine)
        assert manager.evict("a") == 2
        manager.reclaim(flush=True)
        assert pool_bytes(model, engine) == held
        engine.check()
        manager.capture_and_bind()
        assert pool_bytes(model, engine) == held, "what is free there serves the next capture"

    def test_no_workspace_is_cleared_while_it_lives(self, model: Model, engine: Engine) -> None:
        """Facts W2, W3: the engine's workspace lies outside of every pool, and its graph has it baked in."""
        own = model.component("own")
        manager = model.manager(pool=engine.pool)
        manager.prepare([own])
        manager.capture_and_bind()
        manager.evict("own")
        manager.reclaim(flush=True)
        for _ in range(8):
            model.dev.zeros(64, WIDTH).fill_(-1.0)
        engine.check()

    @pytest.mark.parametrize("how", ["close", "drop"])
    def test_they_are_cleared_after_it_though_who_left_them_is_gone(self, model: Model, engine: Engine, how: str) -> None:
        manager = model.manager()
        later = model.manager()
        manager.prepare([model.component()])
        manager.profile_memory()
        manager.capture_and_bind()
        if how == "close":
            manager.close()
        del manager
        gc.collect()
        later.reclaim(flush=True)
        assert sum(size for pool, size in model.backend.footprint().pools.items() if pool != engine.pool) > 0
        engine.check()
        engine.shut_down()
        later.reclaim(flush=True)
        assert model.backend.footprint().pools == {}
        assert later._books.gate.leftovers == {}

    def test_they_are_cleared_although_one_lies_in_its_pool_once_nobody_uses_that(self, model: Model, engine: Engine) -> None:
        manager, later = guest(model, engine), model.manager()
        manager.prepare([model.component("guest"), model.component("own")], {"guest": {}, "own": {"isolation": "shared"}})
        manager.capture_and_bind()
        engine.graphs[0] = (engine.graphs[0][0], None)
        del manager
        gc.collect()
        engine.shut_down()
        assert model.backend.footprint().pools[engine.pool] > 0, "our capture stream's, in a pool that no manager knows any more"
        later.reclaim(flush=True)
        assert model.backend.footprint().pools == {}

    def test_profiling_goes_somewhere_else(self, model: Model, engine: Engine) -> None:  # B01, B04
        manager = guest(model, engine)
        manager.prepare([model.component(descriptors=(64, 256))])
        was = (pool_bytes(model, engine), model.dev.allocator.use_count(engine.pool))
        estimate = manager.profile_memory()
        assert (pool_bytes(model, engine), model.dev.allocator.use_count(engine.pool)) == was
        assert estimate.lower > 0
        manager.capture_and_bind()
        report = manager.memory()
        assert report.pools["foreign"] + report.buffers <= estimate.upper
        engine.check()

    def test_captures_on_the_engines_own_stream(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        entry, static = manager.entry("low", 1), model.input(2)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: model.net(static), stream=engine.stream)
        entry.replay()
        assert entry.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]
        manager.evict("low")
        model.dev.synchronize()
        manager.reclaim()
        assert manager._books.pools[0].graphs == 0, "nothing of ours lives there, so that nothing keeps it"
        engine.check()

    @pytest.mark.parametrize("checked", [True, False])
    @pytest.mark.parametrize("own_stream", [True, False])
    def test_two_managers_in_one_pool_never_replay_at_once(
        self, model: Model, engine: Engine, own_stream: bool, checked: bool
    ) -> None:
        managers = [guest(model, engine, check=checked) for _ in range(2)]
        statics = [model.dev.zeros(4, WIDTH) for _ in managers]
        entries = [manager.entry(f"e{number}", 1) for number, manager in enumerate(managers)]
        for manager, entry, static in zip(managers, entries, statics, strict=True):
            with manager.transaction() as tx:
                stream = None if own_stream else engine.stream
                tx.capture(entry, lambda warmup, static=static: lambda: model.net(static), stream=stream)  # type: ignore[misc]
        for number, static in enumerate(statics):
            static.copy_(model.input(4, 0.01 + number / 3))
        model.dev.synchronize()
        right = [model.net(static).tolist() for static in statics]
        streams = [model.dev.new_stream() for _ in entries]
        for _ in range(10):
            for entry, stream in zip(entries, streams, strict=True):
                with model.dev.on_stream(stream):
                    entry.replay()
                    copy = model.backend.clone(entry.output)
                    assert copy.tolist() == right[entries.index(entry)]  # type: ignore[attr-defined]
        with entries[0].lease() as lease:
            lease.replay()
            entries[1].replay()
            with pytest.raises(cgstate.OutputExpired):
                _ = lease.output


class TestBytes:
    def test_what_our_captures_grew_is_charged_and_the_rest_is_apart(self, model: Model, engine: Engine) -> None:
        before = pool_bytes(model, engine)
        assert before > 0
        manager = guest(model, engine)
        net = model.component(descriptors=(128, 256))
        manager.prepare([net])
        assert manager.memory().total == 0
        manager.capture_and_bind()
        grown = pool_bytes(model, engine) - before
        report = manager.memory()
        assert grown > 0
        assert report.total - report.buffers == grown
        assert report.foreign == {"foreign": pool_bytes(model, engine)}
        assert report.pools == {"foreign": grown}
        engine.capture()  # what the engine grows is the engine's
        assert manager.memory().total == report.total

    def test_what_is_left_there_is_charged_until_the_end(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        manager.prepare([model.component(descriptors=(128, 256))])
        manager.capture_and_bind()
        held = manager.memory()
        manager.evict("net")
        manager.reclaim(flush=True)
        assert manager.memory().total == held.total - held.buffers
        manager.close()
        assert manager.memory().total == 0

    def test_what_a_failed_attempt_grew_is_charged_too(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        entry, static = manager.entry("low", 1), model.input(256)
        before = pool_bytes(model, engine)

        def work() -> Any:
            model.net(static)
            if model.backend.capturing():
                raise ValueError
            return static

        with pytest.raises(cgstate.CaptureFailed), manager.transaction() as tx:
            tx.capture(entry, lambda warmup: work)
        report = manager.memory()
        assert report.total == report.stranded == pool_bytes(model, engine) - before > 0
        engine.check()

    def test_what_could_not_be_measured_is_charged_with_the_next_capture(
        self, model: Model, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manager = guest(model, engine)
        model.bind(manager, "low", size=1)
        pool = manager.entry("low", 1).pool
        assert isinstance(pool, ForeignPool)
        charged, held = pool.charged, pool.bytes()
        pool.check_open()
        with monkeypatch.context() as patch:
            patch.setattr(ForeignPool, "bytes", lambda pool: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                pool.measure()
            patch.setattr(ForeignPool, "bytes", lambda pool: held + 512)  # what the first capture grew
            pool.check_open()
            patch.setattr(ForeignPool, "bytes", lambda pool: held + 512 + 1024)  # and the second
            assert pool.measure() == charged + 512 + 1024

    @pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a live graph"])
    def test_what_a_capture_grew_that_was_dropped_with_its_transaction_is_stranded(
        self, model: Model, engine: Engine, beside: bool
    ) -> None:
        manager = guest(model, engine)
        inside, own = model.component("inside", (256,)), model.component("own")
        manager.prepare([inside, own], {"inside": {}, "own": {"isolation": "per_entry"}})
        if beside:
            model.bind(manager, "low", size=1)
        held = manager.memory()
        assert held.stranded == 0
        before = pool_bytes(model, engine)
        model.backend.faults.inject("new_pool")
        with pytest.raises(cgstate.CaptureFailed, match="own"):
            manager.capture_and_bind()
        manager.reclaim(flush=True)
        report = manager.memory()
        assert report.stranded == report.total - held.total == pool_bytes(model, engine) - before > 0
        manager.capture_and_bind()
        assert pool_bytes(model, engine) == before + report.stranded, "it serves the next capture"
        assert manager.memory().stranded < report.stranded
        for net in (inside, own):
            assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        engine.check()

    def test_what_serves_no_graph_any_more_is_stranded_until_the_end(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        manager.prepare([model.component(descriptors=(128, 256))])
        manager.capture_and_bind()
        held = manager.memory()
        assert held.stranded == 0
        manager.evict("net")
        manager.reclaim(flush=True)
        assert manager.memory().stranded == sum(held.pools.values()) > 0
        manager.close()
        assert manager.memory().stranded == 0


class TestRetired:
    def test_a_pool_that_its_owner_let_go_is_refused_and_the_generator_is_unharmed(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        net = model.component()
        manager.prepare([net])
        engine.shut_down()
        model.dev.flush()
        before = model.backend.footprint()
        for _ in range(2):
            with pytest.raises(cgstate.PoolRetired, match="its owner keeps it open"):
                manager.capture_and_bind()
            assert model.backend.footprint() == before
            assert (manager.state, net.state) == ("PREPARED", "EAGER")
        model.dev.rand(2)
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        manager.close()

    def test_so_is_one_that_nobody_has_opened_yet(self, model: Model) -> None:
        engine = Engine(model.dev)
        manager = guest(model, engine)
        manager.prepare([model.component()])
        with pytest.raises(cgstate.PoolRetired):
            manager.capture_and_bind()
        engine.capture()
        manager.capture_and_bind()
        engine.check()

    def test_our_graphs_keep_it_open_but_not_beyond_their_end(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        net = model.component()
        manager.prepare([net])
        manager.capture_and_bind()
        engine.shut_down()
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        manager.evict("net")
        model.dev.synchronize()
        manager.reclaim()
        with pytest.raises(cgstate.PoolRetired):
            manager.capture_and_bind()

    def test_one_that_is_closed_during_the_warm_up_is_named_as_the_cause(self, model: Model, engine: Engine) -> None:
        manager = guest(model, engine)
        entry, static = manager.entry("low", 1), model.input(2)

        def make(warmup: bool) -> Any:
            if not warmup:
                engine.shut_down()
            return lambda: model.net(static)

        with pytest.raises(cgstate.CaptureFailed) as failure, manager.transaction() as tx:
            tx.capture(entry, make)
        assert isinstance(failure.value.__cause__, cgstate.PoolRetired)
        assert not model.dev.generator.capturing
        model.dev.rand(2)

    def test_a_miss_is_answered_eagerly(self, model: Model, engine: Engine) -> None:
        net = model.component(descriptors=(4,), sizes=(4,), capture_mode=cgstate.CaptureMode.PURE_LAZY)
        manager = guest(model, engine)
        manager.prepare([net])
        manager.capture_and_bind()
        engine.shut_down()
        for _ in range(2):
            assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        assert manager.stats().components["net"].fallbacks[cgstate.Fallback.unavailable] == 2


class TestBadInput:
    @pytest.mark.parametrize("pool", [3, "pool", (0, 0), (1, 1), (0, 99), [0, 1], object()])
    def test_what_is_no_pool_is_refused(self, model: Model, pool: object) -> None:
        with pytest.raises(cgstate.ConfigError):
            model.manager(pool=pool)

    def test_foreign_isolation_needs_a_pool(self, model: Model, engine: Engine) -> None:
        with pytest.raises(cgstate.ConfigError, match="no pool is given"):
            model.manager(isolation="foreign")
        manager = model.manager()
        net = model.component()
        with pytest.raises(cgstate.ConfigError, match="given no pool"):
            manager.prepare([net], {"net": {"isolation": "foreign"}})
        manager.prepare([net])


class TestManagers:
    """A second manager in the process, and one after the first was dropped in any way."""  # B02

    def test_two_managers_and_the_engine_share_the_pool(self, model: Model, engine: Engine) -> None:
        nets = [model.component(name) for name in "ab"]
        managers = [guest(model, engine) for _ in nets]
        for manager, net in zip(managers, nets, strict=True):
            manager.prepare([net])
            manager.capture_and_bind()
        for size in (4, 7):
            for net in nets:
                assert net(model.input(size)).tolist() == model.net(model.input(size)).tolist()
            engine.check()
        managers[0].close()
        assert nets[1](model.input(4)).tolist() == model.net(model.input(4)).tolist()
        engine.check()
        engine.capture()

    @pytest.mark.parametrize("foreign", [False, True], ids=["own pool", "foreign pool"])
    @pytest.mark.parametrize("how", ["close", "del", "cycle", "exception", "thread end", "in flight"])
    def test_the_next_one_works_after_the_first_is_gone(self, model: Model, engine: Engine, how: str, foreign: bool) -> None:
        net = model.component()

        def make() -> cgstate.GraphManager:
            manager = guest(model, engine) if foreign else model.manager()
            manager.prepare([net])
            manager.capture_and_bind()
            net(model.input(4))
            return manager

        def lose() -> None:
            manager = make()
            if how == "close":
                manager.close()
            elif how == "cycle":
                manager.self = manager  # type: ignore[attr-defined]
            elif how == "exception":
                raise KeyError
            if how != "in flight":
                model.dev.synchronize()

        if how == "exception":
            with pytest.raises(KeyError):
                lose()
        elif how == "thread end":
            elsewhere(lose)
        else:
            lose()
        gc.collect()
        assert net.state == "EAGER"
        again = make()
        x = model.input(3)
        assert net(x).tolist() == model.net(x).tolist()
        assert again.stats().components["net"].hits == 2
        engine.check()
        again.close()
        engine.capture()
        engine.check()


class Pools(RuleBasedStateMachine):
    """Engines and managers come and go, capture, reset, purge, profile: nothing but `PoolRetired` ever says that a pool is dead."""

    @initialize(own=st.booleans())
    def start(self, own: bool) -> None:
        self.model = Model()
        self.engines = [Engine(self.model.dev)]
        self.manager: cgstate.GraphManager | None = None
        self.held: list[Any] = []
        self.restart(own=own, isolation="shared")

    @property
    def engine(self) -> Engine:
        return self.engines[-1]

    def is_open(self, engine: Engine) -> bool:
        return self.model.dev.allocator.use_count(engine.pool) > 0

    @rule()
    def new_pool(self) -> None:
        if len(self.engines) < 4:
            self.engines.append(Engine(self.model.dev))

    @rule(isolation=st.sampled_from(["shared", "per_component", "per_entry"]), own=st.booleans())
    def restart(self, own: bool, isolation: str) -> None:
        """By a close, or by dropping it."""
        if self.manager is not None and own:
            self.manager.close()
        self.host = self.engine
        self.net = self.model.component("net", (4, 8))
        self.other = self.model.component("other", (4,), dependencies=("kv",))
        self.manager = self.model.manager(pool=self.host.pool)
        self.manager.prepare([self.net, self.other], {"net": {"isolation": "foreign"}, "other": {"isolation": isolation}})

    @rule()
    def engine_captures(self) -> None:
        engine = self.engine
        if self.is_open(engine) or not self.ever(engine):
            engine.capture()

    def ever(self, engine: Engine) -> bool:
        """Whether anybody has opened the pool, on the device or on its host twin: then it is open, or dead for good.

        Each side forgets a pool that nobody uses once it is flushed, and a block still held keeps one side alone from forgetting.
        """
        allocator = self.model.dev.allocator
        return engine.pool in allocator._pools or engine.pool in allocator._host_uses

    @rule()
    def engine_resets(self) -> None:
        self.engine.shut_down()

    @rule()
    def capture(self) -> None:
        assert self.manager is not None
        self.model.dev.synchronize()
        self.manager.reclaim()  # retired graphs of ours, still to be destroyed, would keep the pool open until the capture begins
        if self.is_open(self.host):
            self.manager.capture_and_bind()
        elif self.net.is_bound:
            raise AssertionError("a bound graph keeps its pool open")
        else:
            with pytest.raises(cgstate.PoolRetired):
                self.manager.capture_and_bind()

    @rule(what=st.sampled_from(["net", "other"]))
    def reset(self, what: str) -> None:
        assert self.manager is not None
        self.manager.evict(what)

    @rule()
    def move(self) -> None:
        assert self.manager is not None
        self.manager.invalidate("kv")

    @rule()
    def purge(self) -> None:
        assert self.manager is not None
        gc.collect()
        self.manager.reclaim(flush=True)
        self.model.dev.flush_host()

    @rule()
    def hold_block(self) -> None:
        if self.engine.graphs and len(self.held) < 3:
            self.held.append(self.engine.graphs[-1][1])

    @precondition(lambda self: self.manager is not None and self.manager.state == "PREPARED")
    @rule()
    def profile(self) -> None:
        assert self.manager is not None
        self.purge()
        before = self.model.backend.footprint()
        uses = [self.model.dev.allocator.use_count(engine.pool) for engine in self.engines]
        self.manager.profile_memory()
        after = self.model.backend.footprint()
        assert (after.stream, after.generator) == (before.stream, before.generator)
        assert after.pools.items() >= before.pools.items()
        if not any(engine.graphs for engine in self.engines) and not self.held:  # else library workspaces stay where they were made
            assert after.pools == before.pools
        assert [self.model.dev.allocator.use_count(engine.pool) for engine in self.engines] == uses

    @rule(size=st.sampled_from([3, 4, 8]))
    def call(self, size: int) -> None:
        for net in (self.net, self.other):
            x = self.model.input(size)
            assert net(x).tolist() == self.model.net(x).tolist()

    @invariant()
    def everybody_is_right(self) -> None:
        if getattr(self, "manager", None) is None:
            return
        assert not self.model.dev.generator.capturing
        for engine in self.engines:
            engine.check()
            assert self.model.dev.allocator.use_count(engine.pool) >= len(engine.graphs)

    def teardown(self) -> None:
        manager = getattr(self, "manager", None)
        if manager is not None:
            manager.close()
            self.everybody_is_right()
            for engine in self.engines:
                engine.shut_down()
            again = self.model.manager()
            again.reclaim(flush=True)
            left = self.model.backend.footprint().pools
            if not any(left.get(engine.pool) for engine in self.engines):  # nothing is in the way of a workspace clear any more
                assert manager.memory().total == again.memory().total == 0


def test_pools_of_engines_and_managers_in_any_order() -> None:
    run_state_machine_as_test(Pools, settings=settings(max_examples=25, stateful_step_count=25, deadline=None))


def test_a_backend_says_of_a_dead_pool_what_it_is() -> None:
    from cgstate.backends.base import CaptureErrorMode
    from cgstate.backends.undo import UndoLog

    device = SimDevice()
    backend = SimBackend(device)
    engine = Engine(device)
    engine.capture()
    engine.shut_down()
    undo = UndoLog()
    with pytest.raises(cgstate.PoolRetired):
        backend.open_capture(backend.adopt_pool(engine.pool), engine.stream, CaptureErrorMode.thread_local, undo)
    undo.fail()
    assert not device.generator.capturing
    device.rand(2)
