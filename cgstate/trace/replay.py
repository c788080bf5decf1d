"""Replays one row on what is known: do its guards hold, what follows, and does the step satisfy the step properties?

A situation is evaluated by the tables' own expressions once, and remembered: a trace has few distinct ones. Whatever hangs on an
unknown variable is passed over, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from cgstate.lifecycle.expr import Expr, Value, Var, evaluate
from cgstate.lifecycle.properties import StepProperty, step_of
from cgstate.lifecycle.rules import STEP_PROPERTIES
from cgstate.lifecycle.tables import MACHINE
from cgstate.trace.known import LAYOUT, UNKNOWN, Known, Values
from cgstate.trace.rows import ROWS, TraceRow

REMEMBERED = 50_000
"""Situations that are remembered, in this process; of more, those that were met last."""

RELATED = ("gate", "pool", "component", "domain", "manager")
"""What an entity's table may know besides the entity itself, in the order of a situation."""

INVARIANT_OF_GUARD: dict[tuple[str, str], str] = {
    ("entry", "gate free"): "I3",
    ("entry", "pool not retired"): "I6",
    ("entry", "pool not recording"): "I3",
    ("entry", "within capacity"): "I11",
    ("entry", "transaction holds its recording"): "I1",
    ("entry", "transaction commits"): "I1",
    ("entry", "epochs still current"): "I8",
    ("entry", "pool not a throwaway"): "I4",
    ("entry", "manager serving"): "I8",
    ("entry", "dependencies resident"): "I8",
    ("entry", "epochs current"): "I8",
    ("entry", "not retiring"): "I8",
    ("entry", "not failed"): "I8",
    ("entry", "other leases left"): "I10",
    ("entry", "last lease"): "I10",
    ("entry", "no lease on its pool"): "I2",
    ("component", "an entry is leased"): "I10",
    ("component", "no entry leased"): "I10",
    ("pool", "no live entry in its domain"): "I6",
    ("pool", "the pool is ours"): "I6",
    ("pool", "every recording destroyed"): "I6",
    ("manager", "no lease held"): "I10",
}
"""The invariant that a guard keeps, where a trace shows both."""


class Situation(NamedTuple):
    """What is known when a row is taken.

    Attributes:
        machine, row: Which row.
        target: The state that it is said to have led to.
        own, gate, pool, component, domain, manager: Known variables of the entity and of what it is related to; empty where it is
            related to none.
        parameters: Known facts that the caller brought along.
        told: What the record tells about the variables afterwards.
    """

    machine: str
    row: int
    target: str
    own: Values
    gate: Values
    pool: Values
    component: Values
    domain: Values
    manager: Values
    parameters: tuple[tuple[str, Value], ...]
    told: tuple[tuple[str, Value], ...]


Complaint: TypeAlias = tuple[str, str]
"""Which rule is broken, and how."""


class Outcome(NamedTuple):
    """What follows from a situation: the known variables afterwards, and what is wrong."""

    own: Values
    gate: Values
    component: Values
    domain: Values
    complaints: tuple[Complaint, ...]


@lru_cache(REMEMBERED)
def take(*situation: Any) -> Outcome:
    """Take the row of a `Situation`, given by its fields."""
    return _evaluate(Situation(*situation))


_PROPERTIES: dict[str, tuple[StepProperty, ...]] = {
    name: tuple(rule for rule in STEP_PROPERTIES if rule.machine == name) for name in MACHINE
}


def _evaluate(situation: Situation) -> Outcome:
    machine, row = MACHINE[situation.machine], ROWS[situation.machine][situation.row]
    complaints: list[Complaint] = []
    told = dict(situation.told)
    assigned = {effect.var.name for effect in row.row.effects}
    before = _environment(situation)
    seen = {name: value for name, value in told.items() if name not in assigned}  # the step has left these as they were
    for name, value in seen.items():
        if before.setdefault(name, value) != value:
            complaints.append(("values", f"{name} is {value}, and {before[name]} follows from the trace"))
    for guard in row.row.guards:
        if _value(guard.expr, before) is False:
            rule = INVARIANT_OF_GUARD.get((machine.name, guard.name), "table")
            complaints.append((rule, f"{row.row.event} needs: {guard.name}"))
    after = before | seen
    for effect in row.row.effects:
        name, follows = effect.var.name, _value(effect.expr, before)
        after.pop(name, None)
        if follows is not UNKNOWN:
            after[name] = follows
            if name in told and told[name] != follows:
                complaints.append(("values", f"{name} is {told[name]}, and {follows} follows from the trace"))
        if name in told:
            after[name] = told[name]
    target = _value(row.row.target, before) if isinstance(row.row.target, Var) else row.row.target.value
    if target is not UNKNOWN and target != situation.target:
        complaints.append(("table", f"{row.row.event} leads to {target} here, not to {situation.target}"))
    after["state"] = situation.target
    step = step_of(before, row.row.event, after)
    for property_ in _PROPERTIES[machine.name]:
        complaints.extend(("step", found) for found in property_.violations(step))
    return Outcome(
        _values(machine.name, "", after, situation.own),
        _values("gate", "gate.", after, situation.gate),
        _values("component", "component.", after, situation.component),
        _values("domain", "domain.", after, situation.domain),
        tuple(complaints),
    )


def _environment(situation: Situation) -> dict[str, Value]:
    """What is known, by the names that the table gives it."""
    parts: Mapping[str, tuple[str, Values]] = {
        "": (situation.machine, situation.own),
        **{f"{kind}.": (kind, values) for kind, values in zip(RELATED, situation[4:9], strict=True) if values},
    }
    known: dict[str, Value] = {}
    for prefix, (kind, values) in parts.items():
        for name, value in zip(LAYOUT[kind], values, strict=True):
            if value is not UNKNOWN:
                known[prefix + name] = value
    known.update(situation.parameters)
    return known


def _values(kind: str, prefix: str, known: Mapping[str, Value], were: Values) -> Values:
    """The variables of one object, out of an environment; empty where the row has no such object."""
    return tuple(known.get(prefix + name, UNKNOWN) for name in LAYOUT[kind]) if were else were


def _value(expr: Expr, known: Mapping[str, Value]) -> Known:
    """The value of a tree, or `UNKNOWN` where it hangs on a variable that is not known."""
    try:
        return evaluate(expr, known)
    except KeyError:
        return UNKNOWN


def find(machine: str) -> dict[tuple[str, str, str, str], TraceRow]:
    """The rows of a machine by event, source, target and guard; a row that returns to an earlier state has several targets."""
    found: dict[tuple[str, str, str, str], TraceRow] = {}
    for row in ROWS[machine]:
        for source in row.row.sources:
            targets = row.row.target.domain if isinstance(row.row.target, Var) else (row.row.target,)
            if isinstance(row.row.target, Var) and row.row.target.name == "state":
                targets = (source,)
            for target in targets:
                found[row.row.event.value, source.value, str(target), row.guard] = row
    return found
