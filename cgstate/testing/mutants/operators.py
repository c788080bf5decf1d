"""Ways to break one row of a table, as data: each operator says what it changes, and yields every change of that kind.

An operator knows nothing of the lifecycle, only of rows, guards and effects; so whoever adds a row gets its mutants with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from cgstate.lifecycle.expr import Add, Among, And, Eq, Expr, Lit, Lt, Not, Or, Var, node, python
from cgstate.lifecycle.table import Guard, Machine, Row, Set
from cgstate.lifecycle.tables import MACHINES
from cgstate.testing.mutants.mutant import TableMutant

__all__ = ["OPERATORS", "Operator", "bent", "row_name", "slug", "table_mutants"]

Change: TypeAlias = "tuple[str, str, Row | None]"
"""What is changed, in a word for the id; the same in a sentence; the row afterwards, None where it is gone."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A kind of mutation.

    Attributes:
        name: Its part of a mutant's id.
        doc: What it does to a row, in words.
        changes: Every change of that kind to a row of a machine.
    """

    name: str
    doc: str
    changes: Callable[[Machine, Row], Iterator[Change]]


def table_mutants(machines: Sequence[Machine] = MACHINES) -> Iterator[TableMutant]:
    """Every mutant of every row, in table order."""
    for machine in machines:
        for row in machine.rows:
            name = row_name(machine, row)
            for operator in OPERATORS:
                for detail, story, changed in operator.changes(machine, row):
                    rows = tuple(new for old in machine.rows if (new := changed if old is row else old) is not None)
                    parts = (machine.name, name, operator.name, *([detail] if detail else []))
                    yield TableMutant("/".join(parts), operator.name, row.label, story, replace(machine, rows=rows), row)


def row_name(machine: Machine, row: Row) -> str:
    """``capture_end``, or ``release-2`` for the second row of an event that has several."""
    same = [each for each in machine.rows if each.event is row.event]
    return row.event.value if len(same) == 1 else f"{row.event.value}-{1 + next(n for n, each in enumerate(same) if each is row)}"


def slug(words: str) -> str:
    """Words as a part of an id."""
    return "-".join(re.findall(r"[A-Za-z0-9_.]+", words.replace("'", "")))


# -- rows ---------------------------------------------------------------------------------------------------------------


def _drop_row(machine: Machine, row: Row) -> Iterator[Change]:
    yield "", "the row is gone", None


def _retarget(machine: Machine, row: Row) -> Iterator[Change]:
    for state in machine.states:
        stays = row.target == Var("state", tuple(machine.states)) and row.sources == (state,)
        if row.target != state and not stays:
            yield state.value, f"it leads to {state}", replace(row, target=state)


def _add_source(machine: Machine, row: Row) -> Iterator[Change]:
    for state in machine.states:
        if state not in row.sources:
            yield state.value, f"it may be taken from {state} too", replace(row, sources=(*row.sources, state))


def _drop_source(machine: Machine, row: Row) -> Iterator[Change]:
    if len(row.sources) > 1:
        for state in row.sources:
            left = tuple(each for each in row.sources if each is not state)
            yield state.value, f"it may not be taken from {state}", replace(row, sources=left)


# -- guards -------------------------------------------------------------------------------------------------------------


def _with_guards(row: Row, position: int, *guards: Guard) -> Row:
    return replace(row, guards=(*row.guards[:position], *guards, *row.guards[position + 1 :]))


def _drop_guard(machine: Machine, row: Row) -> Iterator[Change]:
    for position, guard in enumerate(row.guards):
        yield slug(guard.name), f"the guard '{guard.name}' is gone", _with_guards(row, position)


def _negate_guard(machine: Machine, row: Row) -> Iterator[Change]:
    for position, guard in enumerate(row.guards):
        opposite = replace(guard, expr=~guard.expr)
        yield slug(guard.name), f"the guard '{guard.name}' asks for the opposite", _with_guards(row, position, opposite)


def _bend_guard(machine: Machine, row: Row) -> Iterator[Change]:
    names = frozenset(var.name for var in machine.parameters.get(row.event, ()))
    for position, guard in enumerate(row.guards):
        for number, other in enumerate(bent(guard.expr), 1):
            story = f"the guard '{guard.name}' asks for: {python(other, names, root=machine.name)}"
            yield f"{slug(guard.name)}-{number}", story, _with_guards(row, position, replace(guard, expr=other))


def bent(expr: Expr) -> Iterator[Expr]:
    """A condition that is slightly another one: a bound moved by one, one side of a connective gone, one member of a set gone."""
    match node(expr):
        case Lt(left, right):
            yield Lt(left, Add(right, 1))
            yield Lt(left, Add(right, -1))
        case Eq(left, Lit(int() as number)) if not isinstance(number, bool):
            yield Eq(left, Lit(number + 1))
        case Among(operand, values) if len(values) > 1:
            for value in values:
                yield Among(operand, tuple(each for each in values if each is not value))
        case Not(operand):
            yield from (Not(each) for each in bent(operand))
        case And(left, right) | Or(left, right) as both:
            yield left
            yield right
            yield from (type(both)(each, right) for each in bent(left))
            yield from (type(both)(left, each) for each in bent(right))


# -- effects ------------------------------------------------------------------------------------------------------------


def _with_effects(row: Row, position: int, *effects: Set) -> Row:
    return replace(row, effects=(*row.effects[:position], *effects, *row.effects[position + 1 :]))


def _drop_effect(machine: Machine, row: Row) -> Iterator[Change]:
    for position, effect in enumerate(row.effects):
        yield slug(effect.var.name), f"{effect.var.name} is not assigned", _with_effects(row, position)


def _change_effect(machine: Machine, row: Row) -> Iterator[Change]:
    names = frozenset(var.name for var in machine.parameters.get(row.event, ()))
    for position, effect in enumerate(row.effects):
        for number, expr in enumerate(_other_values(effect), 1):
            story = f"{effect.var.name} becomes {python(expr, names, root=machine.name)}"
            yield f"{slug(effect.var.name)}-{number}", story, _with_effects(row, position, replace(effect, expr=expr))


def _other_values(effect: Set) -> Iterator[Expr]:
    match node(effect.expr):
        case Add(operand, number):
            yield Add(operand, -number)
            yield Add(operand, 2 * number)
        case Lit(bool() as truth):
            yield Lit(not truth)
        case Lit(int() as number):
            yield Lit(number + 1)
        case _ if isinstance(effect.var.domain[0], StrEnum):
            yield from map(Lit, effect.var.domain)
        case Var():
            yield Add(effect.expr, 1)


OPERATORS = (
    Operator("drop-row", "a row is gone", _drop_row),
    Operator("retarget", "a row leads to another state", _retarget),
    Operator("add-source", "a row may be taken from one more state", _add_source),
    Operator("drop-source", "a row may be taken from one state less", _drop_source),
    Operator("drop-guard", "a guard is gone", _drop_guard),
    Operator("negate-guard", "a guard asks for the opposite", _negate_guard),
    Operator("bend-guard", "a guard asks for slightly more or less", _bend_guard),
    Operator("drop-effect", "a variable keeps its value", _drop_effect),
    Operator("change-effect", "a variable gets another value", _change_effect),
)
"""Every kind, in the order of ids."""
