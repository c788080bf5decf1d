"""Actions as Python functions from state to state: what the walker runs, a few microseconds a step.

A state is a flat tuple, one place a cell. For each valuation of an action's parameters one function is written, with every loop
unrolled and every constant put in, and compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias, cast

from cgstate.lifecycle import states
from cgstate.lifecycle.expr import Add, Among, And, Eq, Expr, Lit, Lt, Not, Or, Value, Var, node
from cgstate.lifecycle.table import Machine
from cgstate.lifecycle.tables import MACHINES
from cgstate.spec.cells import FIELDS, INDEX, OWN, READ, SINGLE, Kind
from cgstate.spec.shape import Shape
from cgstate.spec.statements import Action, Assign, Do, ForEach, Statement, When
from cgstate.spec.system import ACTIONS
from cgstate.spec.terms import Count, Every, Objects, Plus, Total, cell, parts, rebuild

State: TypeAlias = tuple[Value, ...]
Step: TypeAlias = "Callable[[State], State | None]"
At: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Instance:
    """An action with its parameters settled.

    Attributes:
        action: The action.
        at: The parameters.
        step: The state afterwards; None where the action is impossible.
    """

    action: Action
    at: At
    step: Step

    @property
    def label(self) -> str:
        """E.g. ``acquire_e1``; parameters that follow from others are left out."""
        return label(self.action, self.at)


def label(action: Action, at: At) -> str:
    """The name of an action with its parameters settled."""
    free = [name for name, objects in action.parameters if objects.of is None]
    return "_".join([action.name, *(f"{name}{at[name]}" for name in free)])


class System:
    """The system of one shape, ready to run.

    Attributes:
        shape: Its size.
        first: Name and first value of each cell, in the order of a state's places.
        cells: Their names.
        initial: The first state.
        instances: Every action in every valuation of its parameters.
        taken: With ``coverage``, labels of the table rows that were taken, by machine.
    """

    def __init__(
        self,
        shape: Shape,
        machines: Sequence[Machine] = MACHINES,
        actions: Sequence[Action] = ACTIONS,
        read: Mapping[str, Mapping[str, Expr]] = READ,
        *,
        coverage: bool = False,
    ) -> None:
        self.shape = shape
        self.machines = {machine.name: machine for machine in machines}
        self.read = read
        self.first = dict(cells_of(shape))
        self.cells = tuple(self.first)
        self.places = {name: place for place, name in enumerate(self.first)}
        self.initial: State = tuple(self.first.values())
        self.taken: set[tuple[str, str]] = set()
        self.coverage = coverage
        self.instances = tuple(self._instances(actions))

    def env(self, state: State) -> dict[str, Value]:
        """The state with names."""
        return dict(zip(self.cells, state, strict=True))

    def predicate(self, expr: Expr) -> Callable[[State], bool]:
        """A condition without parameters, as a function of the state."""
        source = f"lambda n: bool({_Writer(self, {}).source(expr)})"
        return cast("Callable[[State], bool]", eval(source, dict(_MEMBERS)))

    def step_predicate(self, expr: Expr) -> Callable[[State, State], bool]:
        """A condition over a step, as a function of the states before and after it."""
        source = f"lambda n, after: bool({_Writer(self, {}).source(expr)})"
        return cast("Callable[[State, State], bool]", eval(source, dict(_MEMBERS)))

    @cached_property
    def tidy(self) -> Callable[[State], State]:
        """Gives every cell that nobody reads its first value."""
        names: dict[str, object] = dict(_MEMBERS)
        exec("\n".join([*_Writer(self, {}).tidy(self.read), *_WHOLE]), names)
        return cast("Callable[[State], State]", names["tidied"])

    def _instances(self, actions: Sequence[Action]) -> Iterator[Instance]:
        sources: list[tuple[Action, At]] = []
        lines = _Writer(self, {}).tidy(self.read)
        for action in actions:
            for at in valuations(self.shape, action.parameters):
                lines += _Writer(self, at).function(f"step_{len(sources)}", action)
                sources.append((action, at))
        names: dict[str, object] = {**_MEMBERS, "took": self.taken.add}
        exec(compile("\n".join(lines), f"<system {self.shape.name}>", "exec"), names)
        for number, (action, at) in enumerate(sources):
            yield Instance(action, at, cast("Step", names[f"step_{number}"]))


def cells_of(shape: Shape) -> Iterator[tuple[str, Value]]:
    """Every cell of a shape, with its first value."""
    for kind, fields in FIELDS.items():
        own = INDEX.get(kind, ())[: OWN.get(kind, 0)]
        for at in valuations(shape, own):
            for field, first in fields.items():
                yield cell(kind, field, *map(str, at.values())).name, first


def valuations(shape: Shape, parameters: Sequence[tuple[str, Objects]], at: At | None = None) -> Iterator[At]:
    """Every way to settle parameters, each of which may depend on those before it."""
    at = at or {}
    if not parameters:
        yield at
        return
    (name, objects), *others = parameters
    for member in shape.members(objects, at):
        yield from valuations(shape, others, {**at, name: member})


def at_of(shape: Shape, kind: str, index: Sequence[str]) -> At:
    """The parameters of an object, given its own index: that, and what belongs to it."""
    parameters = INDEX.get(kind, ())
    own = dict(zip((name for name, _ in parameters), map(int, index), strict=False))
    return next(valuations(shape, parameters[len(own) :], own))


def _all_members() -> Iterator[tuple[str, StrEnum]]:
    for kind in (states.EntryState, states.PoolState, states.ManagerState, states.PoolKind, Kind):
        for member in kind:
            yield f"{kind.__name__}_{member.name}", member


_MEMBERS = dict(_all_members())
_WHOLE = ("def tidied(s):", " n = list(s)", " tidy(n)", " return tuple(n)")


class _Writer:
    """Writes one function. ``n`` is the state being changed."""

    def __init__(self, system: System, at: At) -> None:
        self.system = system
        self.at = at

    def function(self, name: str, action: Action) -> list[str]:
        """The whole function."""
        lines = [f"def {name}(s):", " n = list(s)"]
        lines += [f" if not ({self.source(condition)}): return None" for condition in action.require]
        lines += self.statements(action.statements, 1)
        return [*lines, " tidy(n)", " return tuple(n)"]

    def tidy(self, read: Mapping[str, Mapping[str, Expr]]) -> list[str]:
        """The function that gives cells that nobody reads their first values; all are asked first, then set."""
        asked, reset = [], []
        for name, place in self.system.places.items():
            kind, index, field = parts(name)
            condition = read.get(kind, {}).get(field)
            if condition is not None:
                writer = _Writer(self.system, at_of(self.system.shape, kind, index))
                asked.append(f" read_{place} = {writer.source(condition)}")
                reset.append(f" if not read_{place}: n[{place}] = {constant(self.system.first[name])}")
        return ["def tidy(n):", *asked, *reset, " return"]

    def statements(self, statements: Sequence[Statement], depth: int) -> list[str]:
        pad = " " * depth
        lines: list[str] = []
        for statement in statements:
            match statement:
                case Assign(to, value):
                    lines.append(f"{pad}{self.source(to)} = {self.source(value)}")
                case When(condition, then):
                    lines.append(f"{pad}if {self.source(condition)}:")
                    lines += self.statements(then, depth + 1) or [f"{pad} pass"]
                case ForEach(name, objects, then):
                    for member in self.system.shape.members(objects, self.at):
                        lines += _Writer(self.system, {**self.at, name: member}).statements(then, depth)
                case Do():
                    lines += self.do(statement, depth)
        return lines

    def do(self, do: Do, depth: int) -> list[str]:
        pad = " " * depth
        machine = self.system.machines[do.machine]
        lines: list[str] = []
        word = "if"
        state = self.table(do, Var("state", ()))
        for row in machine.rows:
            if row.event is not do.event:
                continue
            conditions = [f"{state} in ({', '.join(map(constant, row.sources))},)"]
            conditions += [f"({self.table(do, guard.expr)})" for guard in row.guards]
            lines.append(f"{pad}{word} {' and '.join(conditions)}:")
            word = "elif"
            targets = [*(self.table(do, effect.var) for effect in row.effects), state]
            target: Expr = row.target if isinstance(row.target, Var) else Lit(row.target)
            values = [*(self.table(do, effect.expr) for effect in row.effects), self.table(do, target)]
            lines.append(f"{pad} {', '.join(targets)} = {', '.join(values)}")
            if self.system.coverage:
                lines.append(f"{pad} took({(machine.name, row.label)!r})")
            lines += self.statements(do.then, depth + 1)
        if not do.optional:
            lines += [f"{pad}else: return None"] if lines else [f"{pad}return None"]
        return lines

    def table(self, do: Do, expr: Expr) -> str:
        """An expression of the stepping machine's table."""
        return self.source(rebuild(expr, lambda var: relocate(do, var)))

    def source(self, expr: Expr) -> str:
        """A term as Python."""
        match expr:
            case Count(name, objects, where):
                return f"({' + '.join(f'bool({each})' for each in self.each(name, objects, where)) or 0})"
            case Every(name, objects, where):
                return f"({' and '.join(f'({each})' for each in self.each(name, objects, where)) or True})"
            case Total(name, objects, of):
                return f"({' + '.join(self.each(name, objects, of)) or 0})"
            case Plus(left, right):
                return f"({self.source(left)} + {self.source(right)})"
        match node(expr):
            case Var(name):
                return self.variable(name)
            case Lit(value):
                return constant(value)
            case Not(operand):
                return f"(not {self.source(operand)})"
            case And(left, right):
                return f"({self.source(left)} and {self.source(right)})"
            case Or(left, right):
                return f"({self.source(left)} or {self.source(right)})"
            case Eq(left, right):
                return f"({self.source(left)} == {self.source(right)})"
            case Lt(left, right):
                return f"({self.source(left)} < {self.source(right)})"
            case Among(operand, values):
                return f"({self.source(operand)} in ({', '.join(map(constant, values))},))"
            case Add(operand, number):
                return f"({self.source(operand)} + {number})"

    def each(self, name: str, objects: Objects, inner: Expr) -> list[str]:
        """A term for each object of a set."""
        return [
            _Writer(self.system, {**self.at, name: member}).source(inner) for member in self.system.shape.members(objects, self.at)
        ]

    def variable(self, name: str) -> str:
        """A cell's place, a constant of the shape, or the number that a parameter stands for."""
        kind, index, field = parts(name)
        if not field:
            return repr(self.at[kind])
        numbers = tuple(self.at[parameter] for parameter in index)
        fixed = self.system.shape.constant(kind, numbers, field.rstrip("'"))
        if fixed is not None:
            return constant(fixed)
        place = self.system.places[cell(kind, field.rstrip("'"), *map(str, numbers)).name]
        return f"after[{place}]" if field.endswith("'") else f"n[{place}]"


def constant(value: Value) -> str:
    """A constant's name or text."""
    return f"{type(value).__name__}_{value.name}" if isinstance(value, StrEnum) else repr(value)


def relocate(do: Do, var: Var) -> Expr:
    """What a variable of the stepping machine's table is in the system."""
    if var.name in do.given:
        return do.given[var.name]
    owner, _, field = var.name.rpartition(".")
    if not owner:
        return cell(do.machine, var.name, *([do.at] if do.at else []))
    if owner in SINGLE:
        return cell(owner, field)
    return cell(owner, field, do.related[owner])
