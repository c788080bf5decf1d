"""Beside graphs of others no library workspace is cleared (W2, W3): theirs are safe, and ours are used again."""

from __future__ import annotations

import gc
from random import Random
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import Drawn, kernels
from cgstate.runtime import gate as gate_module
from cgstate.runtime.domain import Home
from cgstate.runtime.reclaimer import Reclaimer
from tests.runtime.helpers import Model
from tests.runtime.test_foreign import Engine

SIZES = (4, 8, 16)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def engine(model: Model) -> Engine:
    """Graphs of the host engine's, captured before ours and still alive."""
    engine = Engine(model.dev)
    engine.capture()
    return engine


def serving(model: Model, isolation: str = "per_entry", **keys: Any) -> cgstate.GraphManager:
    return model.serving(model.component("net", SIZES), isolation=isolation, **keys)


def recapture(manager: cgstate.GraphManager) -> None:
    manager.evict("net")
    manager.reclaim(flush=True)
    manager.capture_and_bind()


@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
def test_captures_again_and_again_hold_no_more(model: Model, engine: Engine, isolation: str) -> None:
    manager = serving(model, isolation)
    held, reserved = manager.memory().total, model.backend.footprint().reserved
    for _ in range(5):
        recapture(manager)
        assert manager.memory().total == held
        assert model.backend.footprint().reserved <= reserved
    engine.check()
    manager.close()


def test_alone_workspaces_are_in_the_pools_and_go_with_them(model: Model) -> None:
    manager = serving(model)
    assert not list(manager._books.homes())
    assert {pool.workspaces for pool in manager.memory().details} == {model.dev.config.workspace_bytes}
    manager.evict("net")
    manager.reclaim(flush=True)
    assert manager.memory().total == 0
    manager.close()


def test_homes_are_given_back_when_the_others_are_gone(model: Model, engine: Engine) -> None:
    manager = serving(model)
    assert len(list(manager._books.homes())) == len(SIZES)
    manager.evict("net")
    manager.reclaim(flush=True)
    assert manager.memory().total == len(SIZES) * model.dev.config.workspace_bytes
    engine.shut_down()
    manager.reclaim(flush=True)
    assert manager.memory().total == 0
    assert not list(manager._books.homes())
    manager.capture_and_bind()
    assert not list(manager._books.homes()), "nothing keeps them from being cleared now"
    manager.close()


def test_nothing_is_cleared_while_one_is_in_use(model: Model, engine: Engine) -> None:
    manager = serving(model)
    engine.shut_down()
    manager.evict("net", 8)
    manager.reclaim(flush=True)
    assert len(list(manager._books.homes())) == len(SIZES)
    sentinel = model.dev.tensor([[7.0] * 64 for _ in range(64)])  # over whatever is free
    expected = sentinel.tolist()
    net = manager._books.components["net"]
    for size in (4, 16):
        net.entries[size].replay()
    model.dev.synchronize()
    assert sentinel.tolist() == expected
    manager.close()
    assert model.backend.footprint().pools == {}


def test_survivors_stay_right_while_one_is_captured_anew(model: Model, engine: Engine) -> None:
    net = model.component("net", SIZES)
    manager = model.serving(net, isolation="per_entry")
    for _ in range(3):
        manager.evict("net", 8)
        manager.reclaim(flush=True)
        for size in SIZES:
            assert net(model.input(size)).tolist() == model.net(model.input(size)).tolist()
        manager.capture_and_bind()
    engine.check()
    manager.close()


@pytest.mark.parametrize("dropped", [False, True], ids=["closed", "dropped"])
def test_one_manager_after_the_other_uses_the_same(model: Model, engine: Engine, dropped: bool) -> None:
    reserved = 0
    for _ in range(4):
        manager = serving(model)
        gate = manager._books.gate
        recapture(manager)
        reserved = reserved or model.backend.footprint().reserved
        assert model.backend.footprint().reserved <= reserved
        if not dropped:
            manager.close()
        del manager
        gc.collect()
        assert len(gate.spares) == len(SIZES)
    engine.shut_down()
    serving(model).close()
    assert gate.spares == []
    assert model.backend.footprint().pools == {}


def test_one_that_somebody_has_cleared_is_charged_for_all_that_it_holds(model: Model, engine: Engine) -> None:
    manager = serving(model)
    gate = manager._books.gate
    manager.close()
    assert len(gate.spares) == len(SIZES)
    model.backend.clear_workspaces()
    later = model.manager()
    later.prepare([model.component("net", SIZES)])
    model.backend.faults.inject("prime_workspaces")
    with pytest.raises(cgstate.CaptureFailed, match="InjectedFault"):
        later.capture_and_bind()
    assert later.memory().total == model.dev.config.workspace_bytes
    later.close()


def test_what_the_last_manager_leaves_waits_for_the_next(model: Model, engine: Engine) -> None:
    """Nobody else could give it back: the workspaces cannot be cleared yet."""
    reserved = set()
    for _ in range(3):
        serving(model).close()
        gc.collect()
        reserved.add(model.backend.footprint().reserved)
    assert len(reserved) == 1
    engine.shut_down()
    serving(model).close()
    assert model.backend.footprint().pools == {}
    assert model.backend.device not in gate_module._kept


def test_a_generation_that_still_runs_keeps_its_home(model: Model, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = serving(model, "shared")
    (home,) = manager._books.homes()
    old = home.guest
    with monkeypatch.context() as patch:
        patch.setattr(Reclaimer, "_passed", lambda reclaimer, retired: False)
        manager.evict("net")
        model.bind(manager, "other")
        assert home.guest is old
        assert len(list(manager._books.homes())) == 2
    manager.reclaim(flush=True)
    assert home.guest is None
    manager.evict("other")
    manager.capture_and_bind()
    assert len(list(manager._books.homes())) == 2
    manager.close()


@pytest.mark.parametrize("seed", range(40))
def test_answers_in_flight_are_right_whatever_is_captured_meanwhile(seed: int) -> None:
    model = Model(schedule=Drawn(Random(seed)))
    Engine(model.dev).capture()
    net = model.component("net", (4, 8), capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY, dependencies=("kv",))
    manager = model.manager(isolation="shared", check=False)
    manager.prepare([net], {"net": {"max_extra_graphs": 4}})
    manager.capture_and_bind()
    inputs = model.input(8, 3.0), model.input(8, -5.0)
    right = [model.net(x).tolist() for x in inputs]
    model.dev.synchronize()
    answers = []
    for x in inputs:
        with model.dev.on_stream(model.dev.new_stream()):
            answers.append(net(x))
        manager.invalidate("kv")
    model.dev.synchronize()
    assert [answer.tolist() for answer in answers] == right
    manager.close()


def test_homes_that_nothing_needs_are_no_reason_to_refuse(model: Model, engine: Engine) -> None:
    net = model.component("net", (4, 8), capture_mode=cgstate.CaptureMode.PURE_LAZY)
    manager = model.manager(isolation="per_entry")
    manager.prepare([net])
    manager.capture_and_bind()
    for size in (4, 8):
        net(model.input(size))
    manager.evict("net")
    model.dev.synchronize()
    manager.reclaim(flush=True)
    engine.shut_down()
    held = manager.memory().total
    assert held == 2 * model.dev.config.workspace_bytes
    manager.set_budget(held - 1)
    for _ in range(3):
        net(model.input(8))
    assert net.available_descriptors == {8}
    manager.close()


def test_a_leased_graph_keeps_its_home_from_the_next_manager(model: Model, engine: Engine) -> None:
    manager = serving(model, "shared")
    gate = manager._books.gate
    entry = manager._books.components["net"].entries[4]
    lease = entry.lease()
    with lease:
        with pytest.raises(cgstate.LeaseOutstanding):
            manager.close(timeout=0.0)
        assert gate.spares == []
    manager.close()
    assert len(gate.spares) == 1


@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
def test_the_estimate_counts_them(model: Model, engine: Engine, isolation: str) -> None:
    manager = model.manager(isolation=isolation)
    manager.prepare([model.component("net", SIZES)])
    for _ in range(2):  # the first profile makes them, the second finds them
        estimate = manager.profile_memory()
        assert estimate.trusted
    report = manager.capture_and_bind()
    assert report.comparison is not None
    assert report.comparison.within
    assert report.comparison.actual == manager.memory().total
    recapture(manager)
    assert manager.memory().total == report.comparison.actual
    manager.close()


def test_a_profile_leaves_no_more_than_the_last_one(model: Model, engine: Engine) -> None:
    manager = model.manager(isolation="per_entry")
    manager.prepare([model.component("net", SIZES)])
    manager.profile_memory()
    reserved = model.backend.footprint().reserved
    manager.profile_memory()
    assert model.backend.footprint().reserved == reserved
    manager.close()


def test_a_budget_forgets_what_graphs_took_with_a_workspace_each(model: Model) -> None:
    net = model.component("net", (4,))
    manager = model.serving(net, isolation="per_entry")
    full = manager.memory().total
    manager.evict("net")
    manager.reclaim(flush=True)
    engine = Engine(model.dev)
    engine.capture()
    manager.capture_and_bind()  # from here on a workspace is there, and stays
    manager.evict("net")
    manager.reclaim(flush=True)
    manager.set_budget(full)
    manager.capture_and_bind()
    assert manager.memory().total <= full
    manager.close()


def test_a_budget_forgets_it_of_graphs_that_were_not_captured_since(model: Model) -> None:
    manager = model.manager(isolation="per_entry")
    model.bind(manager, "one")
    full = manager.memory().total
    model.bind(manager, "another")
    for name in ("one", "another"):
        manager.evict(name)
    manager.reclaim(flush=True)
    engine = Engine(model.dev)
    engine.capture()
    model.bind(manager, "one")  # from here on a workspace is there, and stays
    manager.evict("one")
    manager.reclaim(flush=True)
    manager.set_budget(full)
    model.bind(manager, "another")
    assert manager.memory().total <= full
    engine.check()
    manager.close()


@pytest.mark.parametrize(
    ("call", "nth"),
    [("has_foreign_graphs", 1), *((call, nth) for call in ("new_pool", "new_stream", "prime_workspaces") for nth in (1, 2, 3))],
)
def test_what_the_device_refuses_leaves_nothing_behind(call: str, nth: int) -> None:
    model = Model()
    faults = model.backend.faults
    engine = Engine(model.dev)
    engine.capture()
    manager = model.manager(isolation="per_entry")
    manager.prepare([model.component("net", SIZES)])
    faults.inject(call, nth=nth)
    with pytest.raises(cgstate.CaptureFailed, match="InjectedFault"):
        manager.capture_and_bind()
    assert not faults.pending()
    manager.capture_and_bind()
    assert len(list(manager._books.homes())) == len(SIZES)
    assert not manager.memory().retired
    manager.close()
    engine.check()


def test_a_component_inside_another_shares_its_home(model: Model, engine: Engine) -> None:
    manager = model.manager(isolation="per_component")
    outer, inner = manager.entry("outer", 2), manager.entry("inner", 2, inside="outer")
    static = model.dev.zeros(2, 4)

    def body() -> Any:
        static.copy_(kernels.scale(static, 2.0))
        yield cgstate.Break(inner.replay, at_capture=lambda: None)
        static.copy_(kernels.matmul(static, model.weight))

    with manager.transaction() as tx:
        tx.capture(outer, lambda warmup: body)
        tx.capture(inner, lambda warmup: lambda: static.copy_(kernels.matmul(static, model.weight)))
    (home,) = manager._books.homes()
    assert isinstance(home, Home)
    assert home.guest is outer.domain.pool is inner.domain.pool
    manager.close()
