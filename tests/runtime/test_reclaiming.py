"""What the reclaimer does when the device will not have it: nothing is lost, and nothing is done twice (I2, I7, I15)."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimGraph
from cgstate.backends.sim.faults import InjectedFault
from tests.runtime.helpers import Model, reached, running


def pools(model: Model) -> dict[Any, int]:
    return {pool: size for pool, size in model.backend.footprint().pools.items() if size}


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
@pytest.mark.parametrize("error", [InjectedFault("not now"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_graph_that_could_not_be_destroyed_is_destroyed_by_whoever_settles_next(isolation: str, error: BaseException) -> None:
    model = Model()
    manager = model.serving(model.component(), isolation=isolation)
    model.dev.synchronize()
    model.dev.faults.inject("graph_destroy", error=error)
    try:
        manager.evict("net")
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    assert manager.stats().reclaims == 1
    manager.reclaim(flush=True)
    assert manager.stats().reclaims == 2
    assert (pools(model), manager.memory().total) == ({}, 0)
    manager.close()


def test_one_that_can_never_be_destroyed_keeps_its_pool_and_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    net = model.component()
    manager = model.serving(net)
    with monkeypatch.context() as patched:

        def refuse(graph: SimGraph) -> None:
            raise InjectedFault("never")

        patched.setattr(SimGraph, "destroy", refuse)
        manager.evict("net")
        manager.reclaim(flush=True)
        assert manager.stats().reclaims == 0
        [pool] = manager._books.pools
        assert (pool.state, pool.graphs) == ("RETIRED", 2)
        assert manager.memory().total == sum(pools(model).values()) > 0
        manager.capture_and_bind()  # into the next generation
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        manager.close()
        assert sum(pools(model).values()) > 0
    manager.close()
    assert pools(model) == {}


@pytest.mark.parametrize("call", ["stream_record", "stream_capturing", "event_done"])
def test_an_eviction_that_is_interrupted_has_retired_all_or_nothing(call: str) -> None:
    def serve() -> tuple[Model, Any, cgstate.GraphManager]:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        for size in (4, 8):
            net(model.input(size))
        model.dev.synchronize()
        return model, net, manager

    model, _, manager = serve()
    earlier = model.dev.faults.calls[call]
    manager.evict("net")
    calls = model.dev.faults.calls[call] - earlier
    assert calls
    for nth in range(1, calls + 1):
        model, net, manager = serve()
        model.dev.faults.inject(call, nth=nth, error=KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            manager.evict("net")
        states = {manager.entry("net", size).state for size in (4, 8)}
        assert states in ({"BOUND"}, {"EVICTED"})
        assert manager._books.gate.destroying == 0
        manager.capture_and_bind()
        assert net(model.input(3)).tolist() == model.net(model.input(3)).tolist()
        manager.close()
        assert manager.memory().total == 0
        assert pools(model) == {}


def test_a_release_that_waited_while_the_device_was_lost_says_so_and_changes_nothing() -> None:
    model = Model()
    manager = model.manager()
    [(entry, _)] = model.bind(manager, "low")
    books, held = manager._books, threading.Event()

    def lose_it() -> None:
        with entry.lease():
            held.set()
            while not books.draining:
                time.sleep(0.001)
            model.dev.lose()
            with books.gate.lock:
                books.lose_device()

    with running(lose_it):
        reached(held)
        with pytest.raises(cgstate.ManagerPoisoned):
            manager.release()
    assert entry.state == "BOUND"
    manager.close()


def test_the_block_s_own_error_is_seen_though_closing_raises_as_well() -> None:
    model = Model()

    def block() -> None:
        with model.manager() as manager:
            model.bind(manager, "low")
            model.backend.faults.inject("flush")
            raise KeyError("mine")

    with pytest.raises(KeyError) as raised:
        block()
    assert "closing" in raised.value.__notes__[0]
    assert "InjectedFault" in raised.value.__notes__[0]
