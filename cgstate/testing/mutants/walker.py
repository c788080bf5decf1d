"""The explicit-state checker: every reachable state of a mutant, beside the reviewed ones.

A mutant's graph is first held against the reviewed one. In each reviewed state only the actions that take the changed event can
step otherwise. Where none of them ever does, both graphs are the same, by induction from the first state: the same states, and the
same steps between them. Where one does, the mutant is walked from its first state, until a property breaks.

The same is done for the changed table by itself, where everything that belongs to other objects is free: the system has no foreign
pool, no component without entries, and nobody who is blocked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from cgstate.lifecycle import engine, rules
from cgstate.lifecycle import explore as tables
from cgstate.lifecycle.table import Machine
from cgstate.spec.compiled import System
from cgstate.spec.shape import Shape
from cgstate.spec.statements import Do, ForEach, Statement, When
from cgstate.spec.walk import Counterexample, Graph, never_taken, unreached, unsettled, walk
from cgstate.testing.mutants.mutant import SystemMutant, TableMutant
from cgstate.testing.mutants.verdict import ReviewedFails

__all__ = ["SHAPES", "Found", "GivenUp", "alone", "differing", "differs_alone", "in_system"]

SHAPES = (
    Shape((1,), threads=2),
    Shape((2,), threads=2, profile=False),
    Shape((1, 1), threads=1, profile=False),
)
"""One entry and a profile; two entries of a component, and two leases; two components."""
LIMIT = 400_000
"""States after which a walk of a mutant is given up; the reviewed systems have a quarter of that."""


@dataclass(frozen=True, slots=True)
class Found:
    """What breaks.

    Attributes:
        property: Its name.
        way: The actions that lead there, as few as possible.
    """

    property: str
    way: tuple[str, ...] = ()


class GivenUp(Exception):
    """A mutant has more states than `LIMIT`, and the first of them break nothing."""


@cache
def reviewed(shape: Shape) -> Graph:
    """The reviewed graph of a shape, walked once a process.

    Raises:
        ReviewedFails: it breaks a property itself, so that nothing can be learned from what mutants break.
    """
    graph = walk(System(shape))
    if graph.broken is not None:
        raise ReviewedFails(f"the reviewed tables break {graph.broken.property.name} in {shape.name}")
    return graph


def differing(mutant: TableMutant | SystemMutant) -> Iterator[Shape]:
    """The shapes in which a mutant can do something else than the reviewed system; smallest first."""
    for shape in SHAPES:
        graph, system = reviewed(shape), System(shape, mutant.machines, mutant.actions)
        pairs = [
            (mine.step, its.step)
            for mine, its in zip(system.instances, graph.system.instances, strict=True)
            if mine.action != its.action
            or (isinstance(mutant, TableMutant) and takes(mine.action.statements, mutant.machine, mutant.row.event))
        ]
        if any(mine(state) != its(state) for state in graph.states for mine, its in pairs):
            yield shape


def takes(statements: tuple[Statement, ...], machine: Machine, event: StrEnum) -> bool:
    """Whether an action has a machine take an event."""
    for each in statements:
        match each:
            case Do(name, its, then=then):
                if (name, its) == (machine.name, event) or takes(then, machine, event):
                    return True
            case When(then=then) | ForEach(then=then):
                if takes(then, machine, event):
                    return True
    return False


def in_system(mutant: TableMutant | SystemMutant, shape: Shape) -> Found | None:
    """What a mutant breaks in the system of a shape: a property, a goal, coming to rest, or that each action can happen.

    Raises:
        GivenUp: it has too many states.
        ReviewedFails: the reviewed tables miss the same goal.
    """
    graph = walk(System(shape, mutant.machines, mutant.actions), keep_edges=True, limit=LIMIT)
    if graph.broken is not None:
        return _found(graph.broken)
    if not graph.complete:
        raise GivenUp(f"more than {LIMIT} states in {shape.name}")
    for broken in (*unreached(graph), *unsettled(graph)):
        _assure_goals(shape)
        return _found(broken)
    missing = [name for name in never_taken(graph) if name not in never_taken(reviewed(shape))]
    return Found(f"{missing[0]} can happen") if missing else None


@cache
def _assure_goals(shape: Shape) -> None:
    graph = walk(System(shape), keep_edges=True)
    for broken in (*unreached(graph), *unsettled(graph)):
        raise ReviewedFails(f"the reviewed tables miss {broken.property.name} in {shape.name}")


def _found(broken: Counterexample) -> Found:
    return Found(broken.property.name, broken.steps)


# -- one table alone ----------------------------------------------------------------------------------------------------


def differs_alone(mutant: TableMutant) -> bool:
    """Whether the changed table takes another step than the reviewed one, in any situation that either can come into."""
    for edge in tables.walk(mutant.reviewed, mutant.machine):
        if edge.event is mutant.row.event:
            rows = engine.enabled(mutant.machine, edge.env, edge.event)
            after = engine.apply(mutant.machine, rows[0], edge.env) if rows else edge.env
            if bool(rows) is not bool(edge.rows) or after != edge.after:
                return True
    return False


def alone(mutant: TableMutant) -> Found | None:
    """What the changed table breaks by itself, and the reviewed one does not: a rule of steps or of refusals, or a goal.

    Raises:
        ReviewedFails: the reviewed table breaks something itself.
    """
    words = _wrong(tables.explore(mutant.machine, mutant.reviewed))
    if words is not None:
        itself = _wrong(tables.explore(mutant.reviewed, mutant.machine))
        if itself is not None:
            raise ReviewedFails(itself)
    return None if words is None else Found(words)


def _wrong(exploration: tables.Exploration) -> str | None:
    for broken in (rules.wrong_refusals, rules.broken_steps, rules.missed_goals):
        for words in broken(exploration):
            return words
    return None
