from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

import cgstate
from cgstate.lifecycle.states import ComponentState, EntryState
from cgstate.spec.compiled import System
from cgstate.spec.replay.actors import Actor, Stuck
from cgstate.spec.replay.drive import replay
from cgstate.spec.replay.tour import tour
from cgstate.spec.shape import Shape
from cgstate.spec.system import ACTIONS
from cgstate.spec.walk import walk
from tests.runtime.helpers import Model, before
from tests.spec.graphs import ONE, walked

SMALL = Shape((1,), threads=1)


def test_a_tour_takes_every_step_and_every_path_is_one() -> None:
    graph = walked(SMALL)
    taken = set()
    for path in tour(graph):
        at = 0
        for place, after in path:
            assert (place, after) in zip(graph.out[at][0::2], graph.out[at][1::2], strict=True)
            taken.add((at, place, after))
            at = after
    assert len(taken) == graph.steps


def test_the_runtime_goes_where_the_model_goes() -> None:
    """A part of what `cgstate spec replay` does; it takes every step."""
    graph = walked(ONE)
    result = replay(graph, paths=itertools.islice(tour(graph), 0, 400, 4))
    assert result.differences == ()
    assert result.paths == 100
    assert result.edges > 500


def test_where_the_model_is_wrong_the_runtime_differs() -> None:
    forgetful = [replace(each, statements=each.statements[1:]) if each.name == "drop_pool" else each for each in ACTIONS]
    graph = walk(System(SMALL, actions=forgetful), invariants=(), steps=(), keep_edges=True)
    result = replay(graph, paths=itertools.islice(tour(graph), 300))
    (difference,) = result.differences
    assert difference.steps[-1].startswith("drop_pool")


def test_what_the_model_allows_and_the_runtime_refuses_is_a_difference() -> None:
    asked = next(each for each in ACTIONS if each.name == "launch").require
    blind = [replace(each, require=(*asked[:3], *asked[5:])) if each.name == "launch" else each for each in ACTIONS]
    graph = walk(System(SMALL, actions=blind), invariants=(), steps=(), keep_edges=True)
    result = replay(graph, paths=itertools.islice(tour(graph), 2_000))
    (difference,) = result.differences
    assert difference.steps[-1] == "launch_e0"
    assert "not retiring" in difference.words[0]


def test_an_operation_that_never_comes_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgstate.spec.replay.actors.PATIENCE", 0.05)
    over = threading.Event()

    def work(actor: Actor) -> None:
        over.wait(10)

    actor = Actor(work)
    with pytest.raises(Stuck, match="neither paused nor ended"):
        actor.start()
    over.set()


def test_a_component_that_loses_its_last_entry_during_a_commit_does_not_break_it() -> None:
    """The model let it happen; the runtime bound half of the transaction."""
    model = Model()
    lost = model.component("lost", (4,), overlaps_capture=True)
    captured = model.component("captured", (4,), overlaps_capture=True)
    acts: list[Callable[[], None]] = []

    def launch_fails_elsewhere() -> None:
        if acts:
            acts.pop()()

    before(captured, "prepare_for_capture", launch_fails_elsewhere)
    manager = model.serving(lost, captured, isolation="per_entry")
    manager.evict("captured")
    entry = manager.entry("lost", 4)

    def fail() -> None:
        lease = entry.lease()
        lease.__enter__()
        model.dev.faults.inject("graph_replay")
        with pytest.raises(Exception, match="graph_replay"):
            lease.replay()

    def elsewhere() -> None:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()

    acts.append(elsewhere)
    manager.capture_and_bind()
    assert entry.state is EntryState.FAILED
    assert manager.entry("captured", 4).state is EntryState.BOUND
    components = manager._books.components
    assert components["lost"].state is ComponentState.EVICTED
    assert components["captured"].state is ComponentState.BOUND
    assert manager.state is cgstate.ManagerState.SERVING
