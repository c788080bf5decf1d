"""Walks one machine through everything that can happen to it: what the linter, the goals and the differential tests stand on.

A node is the state with the entity's own variables. Own variables that some row assigns evolve by the rows' effects; those that no
row of any machine assigns are settled at birth, so every value of them is started from; and those that another machine's rows
assign (``component.bound`` by the entry's) may change at any moment. These, the related variables and the event's parameters are
free inputs: an edge exists for every valuation of the ones that the event's rows mention. That allows more than four machines
together can do, never less.

Finite, because numbers stay inside their variable's domain: a step that leads out of it is an edge, and the walk ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from cgstate.lifecycle import engine
from cgstate.lifecycle.engine import Env
from cgstate.lifecycle.expr import Add, Value, Var, variables
from cgstate.lifecycle.table import Machine, Row, Set
from cgstate.lifecycle.tables import MACHINES


@dataclass(frozen=True, slots=True)
class Edge:
    """One event in one situation.

    Attributes:
        env: The situation: state, own variables, and the inputs that the event's rows mention.
        event: The event.
        rows: The rows that are enabled, in table order; the first is the one taken. Empty: the event is refused.
        after: The situation afterwards; the same as ``env`` if refused.
    """

    env: Env
    event: StrEnum
    rows: tuple[Row, ...]
    after: Env

    @property
    def row(self) -> Row | None:
        """The row taken, if any."""
        return self.rows[0] if self.rows else None


@dataclass(frozen=True, slots=True)
class Exploration:
    """All that was found.

    Attributes:
        machine: The machine walked.
        nodes: Every reachable node: the state with the own variables.
        edges: Every event in every node, for every valuation of its inputs.
        births: The nodes started from, a subset of ``nodes``.
    """

    machine: Machine
    nodes: tuple[Env, ...]
    edges: tuple[Edge, ...]
    births: tuple[Env, ...]

    def key_of(self, env: Env) -> tuple[Value, ...]:
        """What tells the node of a situation from the others."""
        return tuple([env[name] for name in self.births[0]])


def explore(machine: Machine, reviewed: Machine | None = None) -> Exploration:
    """The whole of `walk`, kept."""
    edges = tuple(walk(machine, reviewed))
    names = _names(machine)
    nodes = {tuple([edge.env[name] for name in names]): None for edge in edges}
    return Exploration(
        machine,
        nodes=tuple(dict(zip(names, values, strict=True)) for values in nodes),
        edges=edges,
        births=tuple(_births(machine)),
    )


def walk(machine: Machine, reviewed: Machine | None = None) -> Iterator[Edge]:
    """Every edge, breadth first from every way in which an entity can be born.

    Args:
        machine: The machine.
        reviewed: For a mutant, the machine that it was made from, whose rows' variables are inputs as well: otherwise a dropped
            guard would take its variable out of the exploration, and nothing could notice.
    """
    names = _names(machine)
    numbers = [var for var in _evolving(machine) if isinstance(var.domain[0], int)]
    situations = _Situations(machine, reviewed)
    queue = list(_births(machine))
    found = {tuple(node.values()) for node in queue}
    for node in queue:
        for event in machine.events:
            for valuation, rows in situations.of(node, event):
                env = {**node, **valuation}
                after = engine.apply(machine, rows[0], env) if rows else env
                yield Edge(env, event, rows, after)
                key = tuple([after[name] for name in names])
                if rows and key not in found and all(after[var.name] in var.domain for var in numbers):
                    found.add(key)
                    queue.append(dict(zip(names, key, strict=True)))


class _Situations:
    """The valuations of an event's inputs, with the rows that each enables.

    Nodes that agree on the own variables that the guards read share them: most guards read inputs only.
    """

    def __init__(self, machine: Machine, reviewed: Machine | None) -> None:
        self.machine = machine
        self.reviewed_rows = () if reviewed is None else reviewed.rows
        self.inputs: dict[tuple[StrEnum, StrEnum], tuple[list[str], list[Env]]] = {}
        self.answers: dict[tuple[Value, ...], list[tuple[Env, tuple[Row, ...]]]] = {}

    def of(self, node: Env, event: StrEnum) -> list[tuple[Env, tuple[Row, ...]]]:
        state = engine.state_of(self.machine, node)
        if (state, event) not in self.inputs:
            rows = self.machine.rows_for(state, event)
            mentioning = (*rows, *(row for row in self.reviewed_rows if row.event is event))
            read = {var.name for row in rows for guard in row.guards for var in variables(guard.expr)}
            self.inputs[state, event] = sorted(read & node.keys()), _inputs(self.machine, event, mentioning)
        read_of_node, valuations = self.inputs[state, event]
        key = (state, event, *(node[name] for name in read_of_node))
        if key not in self.answers:
            self.answers[key] = [
                (valuation, engine.enabled(self.machine, {**node, **valuation}, event)) for valuation in valuations
            ]
        return self.answers[key]


def _assigned(machine: Machine) -> frozenset[str]:
    return frozenset(effect.var.name for row in machine.rows for effect in row.effects)


def _moved(machine: Machine) -> frozenset[str]:
    """Own variables that rows of the other machines assign."""
    prefix = f"{machine.name}."
    return frozenset(name.removeprefix(prefix) for other in MACHINES for name in _assigned(other) if name.startswith(prefix))


def _evolving(machine: Machine) -> list[Var]:
    assigned = _assigned(machine)
    return [var for var, _ in machine.own if var.name in assigned]


def _settled(machine: Machine) -> list[Var]:
    changing = _assigned(machine) | _moved(machine)
    return [var for var, _ in machine.own if var.name not in changing]


def _names(machine: Machine) -> tuple[str, ...]:
    """What makes a node: the state, then the own variables but those that other machines move."""
    return ("state", *(var.name for var in (*_evolving(machine), *_settled(machine))))


def _births(machine: Machine) -> Iterator[Env]:
    first = engine.initial(machine)
    settled = _settled(machine)
    for values in product(*(var.domain for var in settled)):
        born = first | dict(zip((var.name for var in settled), values, strict=True))
        yield {name: born[name] for name in _names(machine)}


def _inputs(machine: Machine, event: StrEnum, rows: Sequence[Row]) -> list[Env]:
    """Every valuation of what the rows mention and the machine does not hold itself, and of the event's parameters."""
    inside = _names(machine)
    domains: dict[str, tuple[Value, ...]] = {
        var.name: (_middle(var),) for var in (*machine.parameters.get(event, ()), *_all(machine, rows))
    }
    domains |= {var.name: var.domain for var in _decisive(rows)}
    free = {name: domain for name, domain in domains.items() if name not in inside}
    return [dict(zip(free, values, strict=True)) for values in product(*free.values())]


def _all(machine: Machine, rows: Iterable[Row]) -> Iterator[Var]:
    for row in rows:
        yield from machine.variables_of(row)


def _decisive(rows: Iterable[Row]) -> Iterator[Var]:
    """All variables that the rows mention, but those that they only count up or down: their value decides nothing."""
    for row in rows:
        for guard in row.guards:
            yield from variables(guard.expr)
        for effect in row.effects:
            if not _counts(effect):
                yield effect.var
                yield from variables(effect.expr)
        if isinstance(row.target, Var):
            yield row.target


def _counts(effect: Set) -> bool:
    return isinstance(effect.expr, Add) and effect.expr.operand == effect.var


def _middle(var: Var) -> Value:
    """One value from which a step up and a step down both stay in the domain, where there is one."""
    return var.domain[len(var.domain) // 2]
