"""Tables and terms as z3: a world with any number of objects, and the world after a row.

Objects are uninterpreted sorts, variables are functions over them. A row steps one object; everything it does not assign is as
before, for every object there is. An entry that begins to capture may do so in any pool of its domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, TypeAlias

import z3  # type: ignore[import-untyped]  # it ships no types

from cgstate.lifecycle.expr import Add, Among, And, Eq, Expr, Lit, Lt, Not, Or, Value, Var, node
from cgstate.lifecycle.table import Machine, Row
from cgstate.lifecycle.tables import ENTRY, MACHINES, POOL
from cgstate.spec.cells import LIVE
from cgstate.spec.terms import Objects, parts

Term: TypeAlias = Any
"""A z3 term; z3 has no types of its own."""
Cells: TypeAlias = Mapping[str, Callable[..., Term]]
"""By ``kind.field``, the variable as a function of its objects."""

SORTS = {kind: z3.DeclareSort(kind.capitalize()) for kind in ("entry", "component", "domain", "pool")}
component_of = z3.Function("component_of", SORTS["entry"], SORTS["component"])
domain_of = z3.Function("domain_of", SORTS["entry"], SORTS["domain"])
domain_of_pool = z3.Function("domain_of_pool", SORTS["pool"], SORTS["domain"])


@cache
def _sort(states: type[StrEnum]) -> tuple[Any, dict[str, Term]]:
    sort, members = z3.EnumSort(states.__name__, [f"{member.value}" for member in states])
    return sort, dict(zip((member.value for member in states), members, strict=True))


def constant(value: Value) -> Term:
    """A constant."""
    match value:
        case StrEnum():
            return _sort(type(value))[1][value.value]
        case bool():
            return z3.BoolVal(value)
        case int():
            return z3.IntVal(value)
    raise TypeError(f"{value!r} is no value of a table")


def sort_of(domain: tuple[Value, ...]) -> Any:
    """The sort of a variable, from the values that explorations give it."""
    match domain[0]:
        case StrEnum() as member:
            return _sort(type(member))[0]
        case bool():
            return z3.BoolSort()
    return z3.IntSort()


def variables() -> Iterator[tuple[str, str, tuple[Value, ...]]]:
    """Every variable of every table: the kind of object it belongs to, its name there, its values."""
    seen = set()
    for machine in MACHINES:
        yield machine.name, "state", tuple(machine.states)
        for var, _ in machine.own:
            seen.add((machine.name, var.name))
            yield machine.name, var.name, var.domain
    for machine in MACHINES:
        for var in machine.related:
            kind, _, name = var.name.partition(".")
            if (kind, name) not in seen and (kind, name) != ("pool", "state"):
                seen.add((kind, name))
                yield kind, name, var.domain


@dataclass
class World:
    """All variables at one moment.

    Attributes:
        cells: The variables.
        pool_of: The pool that an entry records into, or last did.
    """

    cells: dict[str, Callable[..., Term]] = field(default_factory=dict)
    pool_of: Callable[[Term], Term] = lambda entry: entry

    @classmethod
    def any(cls) -> World:
        """An arbitrary one."""
        cells: dict[str, Callable[..., Term]] = {}
        for kind, name, domain in variables():
            if kind in SORTS:
                cells[f"{kind}.{name}"] = z3.Function(f"{kind}.{name}", SORTS[kind], sort_of(domain))
            else:
                cells[f"{kind}.{name}"] = _fixed(z3.Const(f"{kind}.{name}", sort_of(domain)))
        return cls(cells, z3.Function("pool_of", SORTS["entry"], SORTS["pool"]))

    @classmethod
    def first(cls) -> World:
        """Every object as it is made, and nothing captured."""
        world = cls.any()
        for machine in MACHINES:
            firsts: dict[str, Value] = {"state": machine.initial, **{var.name: value for var, value in machine.own}}
            if machine is POOL:
                del firsts["kind"]
            for name, value in firsts.items():
                world.cells[f"{machine.name}.{name}"] = _always(constant(value))
        for name, value in (("gate.free", True), ("component.held", 0), ("domain.capturing", 0), ("component.epoch", 0)):
            world.cells[name] = _always(constant(value))
        return world

    def related(self, kind: str, machine: Machine, at: Term) -> tuple[Term, ...]:
        """The object of ``kind`` that belongs to the stepping one, as arguments of its variables."""
        if kind not in SORTS:
            return ()
        if kind == machine.name:
            return (at,)
        if machine.name == ENTRY.name:
            return ({"component": component_of, "domain": domain_of, "pool": self.pool_of}[kind](at),)
        return (domain_of_pool(at),)


def _fixed(value: Term) -> Callable[..., Term]:
    return lambda: value


def _always(value: Term) -> Callable[..., Term]:
    return lambda *_: value


@dataclass
class Step:
    """A row, taken by one object.

    Attributes:
        machine: Whose table.
        row: The row.
        at: The object that steps; None for the manager.
        before: The world before.
        after: The world after.
        taken: That the row is enabled, and none before it in the table.
        parameters: The event's parameters by name.
        assigned: The variables that the row assigns, as ``kind.field``.
    """

    machine: Machine
    row: Row
    at: Term
    before: World
    after: World
    taken: Term
    parameters: Mapping[str, Term]
    assigned: frozenset[str]


@dataclass
class Situation:
    """An event comes to an object, in an arbitrary world.

    Attributes:
        machine: Whose table.
        at: The object that may step; None for the manager.
        before: The world.
        parameters: The event's parameters by name.
        given: What is known of the situation.
    """

    machine: Machine
    at: Term
    before: World
    parameters: Mapping[str, Term]
    given: list[Term]

    def value(self, var: Var) -> Term:
        """A variable of the table, as the stepping object sees it."""
        if var.name in self.parameters:
            return self.parameters[var.name]
        owner, _, name = var.name.rpartition(".")
        kind = owner or self.machine.name
        return self.before.cells[f"{kind}.{name}"](*self.before.related(kind, self.machine, self.at))

    def enabled(self, row: Row) -> Term:
        """Whether a row of the event may be taken."""
        guards = (term(guard.expr, self.value) for guard in row.guards)
        return z3.And(term(Var("state", ()).among(*row.sources), self.value), *guards)


def situation(machine: Machine, event: StrEnum) -> Situation:
    """The event comes to an arbitrary object."""
    before = World.any()
    at = z3.Const(machine.name, SORTS[machine.name]) if machine.name in SORTS else None
    parameters = {var.name: z3.Const(var.name, sort_of(var.domain)) for var in machine.parameters.get(event, ())}
    given = []
    if machine.name == ENTRY.name and event.value == "capture_begin":
        chosen, known = z3.Const("chosen", SORTS["pool"]), before.pool_of
        before = World(before.cells, lambda entry: z3.If(entry == at, chosen, known(entry)))
        given.append(domain_of_pool(chosen) == domain_of(at))
    return Situation(machine, at, before, parameters, given)


def step(machine: Machine, row: Row) -> Step:
    """An object takes a row, in an arbitrary world."""
    here = situation(machine, row.event)
    before, at = here.before, here.at
    earlier = [other for other in machine.rows[: machine.rows.index(row)] if other.event is row.event]
    conditions = [*here.given, here.enabled(row), *(z3.Not(here.enabled(other)) for other in earlier)]
    changes: dict[str, tuple[tuple[Term, ...], Term]] = {}
    target: Expr = row.target if isinstance(row.target, Var) else Lit(row.target)
    for var, expr in [*((effect.var, effect.expr) for effect in row.effects), (Var("state", ()), target)]:
        owner, _, name = var.name.rpartition(".")
        kind = owner or machine.name
        changes[f"{kind}.{name}"] = before.related(kind, machine, at), term(expr, here.value)
    changed = {name: _changed(before.cells[name], *change) for name, change in changes.items()}
    after = World({**before.cells, **changed}, before.pool_of)
    return Step(machine, row, at, before, after, z3.And(*conditions), here.parameters, frozenset(changes))


def is_live(world: World, entry: Term) -> Term:
    """Whether a recording of the entry is needed."""
    return z3.Or(*(world.cells["entry.state"](entry) == constant(state) for state in LIVE))


def _changed(was: Callable[..., Term], at: tuple[Term, ...], new: Term) -> Callable[..., Term]:
    if not at:
        return lambda: new
    return lambda other: z3.If(other == at[0], new, was(other))


def term(expr: Expr, value: Callable[[Var], Term]) -> Term:
    """An expression, where ``value`` gives its variables."""

    def walk(tree: Expr) -> Term:
        match node(tree):
            case Var() as var:
                return value(var)
            case Lit(fixed):
                return constant(fixed)
            case Not(operand):
                return z3.Not(walk(operand))
            case And(left, right):
                return z3.And(walk(left), walk(right))
            case Or(left, right):
                return z3.Or(walk(left), walk(right))
            case Eq(left, right):
                return walk(left) == walk(right)
            case Lt(left, right):
                return walk(left) < walk(right)
            case Among(operand, values):
                subject = walk(operand)
                return z3.Or(*(subject == constant(each) for each in values))
            case Add(operand, number):
                return walk(operand) + number

    return walk(expr)


def over_cells(expr: Expr, world: World, at: Mapping[str, Term]) -> Term:
    """A condition over cells, with its parameters put in."""

    def value(var: Var) -> Term:
        kind, index, name = parts(var.name)
        if not name:
            return at[kind]
        return world.cells[f"{kind}.{name}"](*(at[parameter] for parameter in index))

    return term(expr, value)


def settle(parameters: tuple[tuple[str, Objects], ...], world: World, given: Mapping[str, Term]) -> dict[str, Term]:
    """What the parameters of a lemma stand for: given objects, and what belongs to them in a world."""
    at = dict(given)
    for name, objects in parameters:
        if objects.of is not None:
            _, owner = objects.of
            at[name] = world.pool_of(at[owner])
    return at
