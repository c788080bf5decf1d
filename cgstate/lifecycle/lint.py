"""Judges a table: what no reviewer should have to look for.

`lint` explores a machine and returns findings, `check` raises them. The tests run `check` on the four tables before anything else;
nothing at run time does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from cgstate.errors import TableError
from cgstate.lifecycle import engine
from cgstate.lifecycle.explore import Exploration, explore
from cgstate.lifecycle.expr import Var, evaluate, variables
from cgstate.lifecycle.table import Machine, Row


class Code(StrEnum):
    """What can be wrong with a table."""

    dead_row = "dead-row"
    undeclared_overlap = "undeclared-overlap"
    idle_overlap = "idle-overlap"
    unreachable_state = "unreachable-state"
    trap_state = "trap-state"
    unused_variable = "unused-variable"
    effect_order = "effect-order"
    idle_guard = "idle-guard"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: What kind of thing.
        machine: Name of the machine.
        subject: The row, state or variable.
        text: What is wrong with it.
    """

    code: Code
    machine: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.code} in {self.machine}: {self.subject}: {self.text}"


def lint(machine: Machine) -> tuple[Finding, ...]:
    """Everything that is wrong with one table, in table order by kind."""
    exploration = explore(machine)
    return (
        *_dead_rows(exploration),
        *_overlaps(exploration),
        *_unreachable_states(exploration),
        *_trap_states(exploration),
        *_unused_variables(machine),
        *_effect_order(machine),
        *_idle_guards(exploration),
    )


def check(machines: Iterable[Machine]) -> None:
    """Refuse tables with findings.

    Raises:
        TableError: with a line for each finding.
    """
    findings = [finding for machine in machines for finding in lint(machine)]
    if findings:
        raise TableError("\n".join(map(str, findings)))


def _dead_rows(exploration: Exploration) -> Iterator[Finding]:
    """A row nobody can take, from one of its sources at least."""
    machine = exploration.machine
    enabled = {(id(row), edge.env["state"]) for edge in exploration.edges for row in edge.rows}
    for row in machine.rows:
        for source in row.sources:
            if (id(row), source) not in enabled:
                yield Finding(Code.dead_row, machine.name, row.label, f"is never enabled in {source}")


def _overlaps(exploration: Exploration) -> Iterator[Finding]:
    machine = exploration.machine
    happening: dict[frozenset[str], None] = {}
    for edge in exploration.edges:
        if len(edge.rows) > 1:
            happening |= dict.fromkeys(frozenset({a.label, b.label}) for a, b in combinations(edge.rows, 2))
    declared = dict.fromkeys(map(frozenset, sorted(machine.overlaps)))
    for pair in happening.keys() - declared.keys():
        yield Finding(Code.undeclared_overlap, machine.name, " and ".join(sorted(pair)), "are enabled together")
    for pair in declared.keys() - happening.keys():
        yield Finding(Code.idle_overlap, machine.name, " and ".join(sorted(pair)), "are declared to overlap and never do")


def _unreachable_states(exploration: Exploration) -> Iterator[Finding]:
    machine = exploration.machine
    reached = {node["state"] for node in exploration.nodes}
    for state in machine.states:
        if state not in reached:
            yield Finding(Code.unreachable_state, machine.name, state, "is never entered")


def _trap_states(exploration: Exploration) -> Iterator[Finding]:
    """A state that is entered, not final, and never left."""
    machine = exploration.machine
    reached = {node["state"] for node in exploration.nodes}
    left = {edge.env["state"] for edge in exploration.edges if edge.after["state"] != edge.env["state"]}
    for state in machine.states:
        if state in reached - left - machine.final:
            yield Finding(Code.trap_state, machine.name, state, "is entered and never left, and is not declared final")


def _unused_variables(machine: Machine) -> Iterator[Finding]:
    used = {var.name for row in machine.rows for var in machine.variables_of(row)}
    for var in (*(var for var, _ in machine.own), *machine.related):
        if var.name not in used:
            yield Finding(Code.unused_variable, machine.name, var.name, "no row reads or assigns it")
    for event, parameters in machine.parameters.items():
        local = {var.name for row in machine.rows if row.event is event for var in machine.variables_of(row)}
        for var in parameters:
            if var.name not in local:
                yield Finding(Code.unused_variable, machine.name, f"{event}({var.name})", "no row of the event reads it")


def _effect_order(machine: Machine) -> Iterator[Finding]:
    """A row whose meaning would depend on the order of its effects: the generated code assigns one after the other."""
    for row in machine.rows:
        assigned: set[str] = set()
        for effect in row.effects:
            touched = {effect.var.name, *(var.name for var in variables(effect.expr))}
            yield from (_disorder(machine, row, name) for name in sorted(touched & assigned))
            assigned.add(effect.var.name)
        if isinstance(row.target, Var) and row.target.name in assigned:
            yield _disorder(machine, row, row.target.name)


def _disorder(machine: Machine, row: Row, name: str) -> Finding:
    return Finding(Code.effect_order, machine.name, row.label, f"uses {name} after an effect of its own assigned it")


def _idle_guards(exploration: Exploration) -> Iterator[Finding]:
    """A guard that cannot say no: never false where the row's other guards hold, so that without it nothing would change."""
    machine = exploration.machine
    idle = {id(row): list(row.guards) for row in machine.rows if row.guards}
    for edge in exploration.edges:
        for row in machine.rows_for(engine.state_of(machine, edge.env), edge.event):
            if idle.get(id(row)):
                refusing = [guard for guard in row.guards if not evaluate(guard.expr, edge.env)]
                if len(refusing) == 1 and refusing[0] in idle[id(row)]:
                    idle[id(row)].remove(refusing[0])
    for row in machine.rows:
        for guard in idle.get(id(row), ()):
            yield Finding(Code.idle_guard, machine.name, row.label, f"guard '{guard.name}' never says no by itself")
