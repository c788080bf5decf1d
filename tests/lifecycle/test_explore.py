from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from cgstate.errors import IllegalTransition
from cgstate.lifecycle import (
    COMPONENT,
    ENTRY,
    MANAGER,
    POOL,
    EntryEvent,
    EntryState,
    Machine,
    PoolEvent,
    PoolKind,
    PoolState,
    engine,
)
from cgstate.lifecycle import tables as t
from cgstate.lifecycle.explore import Exploration, explore, walk
from cgstate.lifecycle.expr import Value
from tests.lifecycle.planting import plant, row_of, without_guard


def test_every_edge_is_what_the_interpreter_says(exploration: Exploration) -> None:
    for edge in exploration.edges:
        if edge.row is None:
            with pytest.raises(IllegalTransition):
                engine.step(exploration.machine, edge.env, edge.event)
            assert edge.after == edge.env
        else:
            assert engine.step(exploration.machine, edge.env, edge.event) == (edge.row, edge.after)


def test_every_event_is_tried_in_every_node(exploration: Exploration) -> None:
    tried = {(exploration.key_of(edge.env), edge.event) for edge in exploration.edges}
    assert tried == set(product(map(exploration.key_of, exploration.nodes), exploration.machine.events))


def test_a_random_walk_never_leaves_the_explored_nodes(exploration: Exploration) -> None:
    machine = exploration.machine
    nodes = set(map(exploration.key_of, exploration.nodes))
    numbers = {var.name: var.domain for var, _ in machine.own if isinstance(var.domain[0], int)}
    chance = random.Random(machine.name)
    moved = 0
    env = dict(exploration.births[0])
    for _ in range(10_000):
        event = chance.choice(list(machine.events))
        inputs = [*machine.related, *machine.parameters.get(event, ()), *(var for var, _ in machine.own if var.name not in env)]
        situation: dict[str, Value] = {**env, **{var.name: chance.choice(var.domain) for var in inputs}}
        try:
            _, after = engine.step(machine, situation, event)
        except IllegalTransition:
            continue
        if all(after[name] in domain for name, domain in numbers.items()):
            moved += 1
            env = {name: after[name] for name in env}
            assert exploration.key_of(env) in nodes
        if machine.states(str(env["state"])) in machine.final:
            env = dict(chance.choice(exploration.births))
    assert moved > 100


def test_a_step_out_of_a_domain_is_an_edge_and_no_node() -> None:
    exploration = explore(ENTRY)
    beyond = [edge for edge in exploration.edges if edge.after["leases"] == t.leases.domain[-1] + 1]  # type: ignore[operator]
    assert beyond
    assert {node["leases"] for node in exploration.nodes} == set(t.leases.domain)


def test_what_no_row_assigns_is_settled_at_birth() -> None:
    assert {birth["kind"] for birth in explore(POOL).births} == set(PoolKind)
    for edge in explore(POOL).edges:
        assert edge.env["kind"] is edge.after["kind"]


def test_what_another_machine_assigns_may_change_at_any_moment() -> None:
    exploration = explore(COMPONENT)
    assert "bound" not in exploration.births[0]
    assert "leased" not in exploration.births[0]
    assert {edge.env["bound"] for edge in exploration.edges if "bound" in edge.env} == set(t.bound.domain)


def test_all_valuations_of_what_decides_are_tried() -> None:
    edges = [edge for edge in explore(POOL).edges if edge.event is PoolEvent.retire and edge.env["state"] is PoolState.LIVE]
    assert {edge.env["domain.live"] for edge in edges} == set(t.domain_live.domain)


def test_what_a_row_only_counts_gets_one_value() -> None:
    begins = [edge for edge in walk(ENTRY) if edge.event is EntryEvent.capture_begin and edge.env["state"] is EntryState.EAGER]
    assert {edge.env["domain.capturing"] for edge in begins} == {1}
    assert {edge.env["component.held"] for edge in begins} == set(t.held.domain), "a guard compares it"


def test_a_dropped_guard_leaves_its_variable_in_the_exploration_of_the_mutant() -> None:
    retire = row_of(POOL, PoolEvent.retire, PoolState.RETIRED)
    mutant = plant(POOL, retire, without_guard("no live entry in its domain"))

    def seen(reviewed: Machine | None) -> set[Value]:
        return {edge.env["domain.live"] for edge in walk(mutant, reviewed) if "domain.live" in edge.env}

    assert seen(None) == set()
    assert seen(POOL) == set(t.domain_live.domain)


def test_the_first_enabled_row_is_taken() -> None:
    doubled = replace(MANAGER, rows=(*MANAGER.rows, replace(MANAGER.rows[0], doc="again")))
    edges = [edge for edge in explore(doubled).edges if len(edge.rows) > 1]
    assert edges
    assert all(edge.row is MANAGER.rows[0] for edge in edges)


def test_the_six_states_are_all_entered() -> None:
    assert {node["state"] for node in explore(ENTRY).nodes} == set(EntryState)
