from __future__ import annotations

from dataclasses import replace

import pytest

from cgstate.errors import ConfigError
from cgstate.lifecycle import MACHINES
from cgstate.spec.cells import gate_foreign
from cgstate.spec.compiled import System
from cgstate.spec.shape import Shape
from cgstate.spec.symmetry import Canonical
from cgstate.spec.system import ACTIONS
from cgstate.spec.walk import never_taken, successors, unreached, unsettled, walk
from tests.spec.graphs import BOTH, ONE, TWO, walked

ONLY_PURE_LAZY = {("component", "BOUND --forget[all entries come lazily, and none is left]--> EAGER")}
"""Rows that need a component bound without entries, which the model has not: `tests/lifecycle` takes them."""


@pytest.mark.parametrize("shape", [ONE, TWO, BOTH], ids=lambda shape: shape.name)
def test_everything_holds_that_should_and_can_be_reached_and_comes_to_rest(shape: Shape) -> None:
    graph = walked(shape)
    assert graph.complete
    assert graph.broken is None
    assert list(unreached(graph)) == []
    assert list(unsettled(graph)) == []


def test_every_action_is_taken_and_every_row_of_every_table() -> None:
    graphs = walked(ONE), walked(TWO)
    assert set(never_taken(graphs[0])) & set(never_taken(graphs[1])) == set()
    rows = {(machine.name, row.label) for machine in MACHINES for row in machine.rows}
    assert rows - graphs[0].system.taken - graphs[1].system.taken == ONLY_PURE_LAZY


def test_merging_what_nobody_reads_changes_nothing() -> None:
    shape = Shape((1,), threads=1, profile=False)
    whole = walk(System(shape, read={}), invariants=(), steps=(), keep_edges=True)
    merged = walked(shape)
    tidy = merged.system.tidy
    merges = [merged.numbers[tidy(state)] for state in whole.states]
    assert set(merges) == set(range(len(merged.states)))
    assert len(whole.states) > len(merged.states)
    for number, merge in enumerate(merges):
        steps = {(instance.label, merges[after]) for instance, after in whole.edges(number)}
        assert steps == {(instance.label, after) for instance, after in merged.edges(merge)}


def test_symmetry_keeps_one_of_each_set_of_alike_states() -> None:
    plain = walked(TWO)
    canonical = Canonical(plain.system)
    folded = walk(System(TWO), symmetry=True)
    assert folded.complete
    assert set(folded.states) == {canonical.of(state) for state in plain.states}
    assert len(folded.states) < 0.6 * len(plain.states)


def test_a_renamed_state_takes_renamed_steps() -> None:
    plain = walked(TWO)
    canonical = Canonical(plain.system)
    for state in list(plain.states)[::97]:
        there = {canonical.of(after) for _, after in successors(plain.system, state)}
        assert there == {canonical.of(after) for _, after in successors(plain.system, canonical.of(state))}


def test_a_counterexample_is_as_short_as_can_be() -> None:
    actions = [replace(a, require=(~gate_foreign,)) if a.name == "foreign_capture" else a for a in ACTIONS]
    graph = walk(System(ONE, actions=actions))
    assert graph.broken is not None
    assert graph.broken.property.name == "I3_quiet_capture"
    assert graph.broken.steps[-1] == "foreign_capture"
    assert len(graph.broken.steps) == 4, "prepared, a transaction is open, it captures, and so does another"


def test_a_walk_that_reaches_its_limit_says_so_and_proves_nothing() -> None:
    graph = walk(System(ONE), limit=100, keep_edges=True)
    assert not graph.complete
    with pytest.raises(ValueError, match="whole graph"):
        list(unsettled(graph))


@pytest.mark.parametrize("entries", [(), (0,), (1, 0)])
def test_a_system_without_entries_is_refused(entries: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Shape(entries)
