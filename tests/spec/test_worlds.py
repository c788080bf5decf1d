"""The system's properties and the lifecycle's own predicates are two formulations of one thing: they agree on every state."""

from __future__ import annotations

from cgstate.lifecycle.invariants import Checker, broken_by, broken_in, unsettled_in
from cgstate.lifecycle.states import ManagerState
from cgstate.lifecycle.world import Act
from cgstate.spec.compiled import State
from cgstate.spec.properties import SETTLED
from cgstate.spec.walk import Graph
from cgstate.spec.world import world_of
from tests.spec.graphs import ONE, TWO, walked

NOT_READ = (ManagerState.POISONED, ManagerState.CLOSED)


def usable(graph: Graph, state: State) -> bool:
    return graph.system.env(state)["manager.state"] not in NOT_READ


def test_the_lifecycles_invariants_hold_in_every_state() -> None:
    for graph, every in ((walked(ONE), 1), (walked(TWO), 41)):
        looked = [world_of(graph.system, state) for state in graph.states[::every] if usable(graph, state)]
        assert len(looked) > 1_000
        assert [violation for world in looked for violation in broken_in(Checker.model, world)] == []


def test_the_lifecycles_step_invariants_hold_for_every_step() -> None:
    graph = walked(ONE)
    looked = 0
    for number, state in enumerate(graph.states):
        if not usable(graph, state):
            continue
        before = world_of(graph.system, state)
        for instance, after in graph.edges(number):
            if usable(graph, graph.states[after]):
                name = instance.action.name
                then = world_of(graph.system, graph.states[after])
                if name == "capture_anew":  # there the pools change places
                    broken = broken_by(Checker.model, before._replace(pools=()), then._replace(pools=()), Act(name))
                else:
                    broken = broken_by(Checker.model, before, then, Act(name))
                assert list(broken) == []
                looked += 1
    assert looked > 10_000


def test_both_agree_on_what_has_settled() -> None:
    graph = walked(ONE)
    at_rest = graph.system.predicate(SETTLED.expr)
    ended = [
        number
        for number, state in enumerate(graph.states)
        if usable(graph, state) and not any(instance.action.progress for instance, _ in graph.edges(number))
    ]
    assert ended
    for number in ended:
        assert at_rest(graph.states[number])
        assert list(unsettled_in(world_of(graph.system, graph.states[number]))) == []


def test_a_broken_state_is_broken_for_both() -> None:
    graph = walked(ONE)
    place = graph.system.places["component[0].held"]
    for state in graph.states[:500]:
        if usable(graph, state):
            wrong = (*state[:place], state[place] + 1, *state[place + 1 :])  # type: ignore[operator]
            assert {str(each.invariant.id) for each in broken_in(Checker.model, world_of(graph.system, wrong))} == {"I11"}
