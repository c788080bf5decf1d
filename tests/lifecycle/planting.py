"""Plants faults in the tables: one row changed, everything else as reviewed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from cgstate.lifecycle import Guard, Machine, Row, Set
from cgstate.lifecycle.expr import Expr, Var

Change = Callable[[Row], Row]


def row_of(machine: Machine, event: StrEnum, target: StrEnum | str, nth: int = 0) -> Row:
    """The row of an event with a target; a returning row's target is named ``before`` or ``state``."""
    name = target.value if isinstance(target, StrEnum) else target
    rows = [row for row in machine.rows if row.event is event and name == _name(row.target)]
    return rows[nth]


def _name(target: StrEnum | Var) -> str:
    return target.name if isinstance(target, Var) else target.value


def plant(machine: Machine, row: Row, *changes: Change) -> Machine:
    """The machine with one row changed."""
    changed = row
    for change in changes:
        changed = change(changed)
    assert changed != row, "the change changes nothing"
    return replace(machine, rows=tuple(changed if other is row else other for other in machine.rows))


def drop(machine: Machine, *rows: Row) -> Machine:
    """The machine without some rows."""
    return replace(machine, rows=tuple(row for row in machine.rows if row not in rows))


def without_guard(name: str) -> Change:
    return lambda row: replace(row, guards=tuple(guard for guard in row.guards if guard.name != name))


def with_guard(name: str, expr: Expr) -> Change:
    return lambda row: replace(row, guards=(*row.guards, Guard(name, expr)))


def without_effect(var: Var) -> Change:
    return lambda row: replace(row, effects=tuple(effect for effect in row.effects if effect.var != var))


def with_effect(var: Var, expr: Expr) -> Change:
    return lambda row: replace(row, effects=(*row.effects, Set(var, expr)))


def towards(target: StrEnum | Var) -> Change:
    return lambda row: replace(row, target=target)


def also_from(*sources: StrEnum) -> Change:
    return lambda row: replace(row, sources=(*row.sources, *sources))


def not_from(*sources: StrEnum) -> Change:
    return lambda row: replace(row, sources=tuple(source for source in row.sources if source not in sources))
