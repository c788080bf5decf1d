"""An action of one shape, unrolled: conditions, and for each cell that changes its new value, as terms over the cells before.

Where branches meet, a cell's value is an `If`; what is used more than once gets a name, in order of need. Terms are simplified on
the way, so that a row that cannot be taken after the one before it leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cgstate.lifecycle.expr import Add, Among, And, Eq, Expr, Lit, Lt, Not, Or, Value, Var, node
from cgstate.lifecycle.table import Machine, Row
from cgstate.lifecycle.tables import MACHINES
from cgstate.spec.cells import READ
from cgstate.spec.compiled import At, at_of, cells_of, label, relocate, valuations
from cgstate.spec.shape import Shape
from cgstate.spec.statements import Action, Assign, Do, ForEach, Statement, When
from cgstate.spec.terms import Count, Every, Objects, Plus, Total, cell, parts, rebuild

YES, NO = Lit(True), Lit(False)
LONG = 10
"""Quantified terms above this size get a name, because they are used again."""


@dataclass(frozen=True, slots=True)
class If(Expr):
    """One of two values."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True, slots=True)
class Named:
    """A term with a name, for those after it.

    Attributes:
        name: E.g. ``x3``.
        term: The term.
        comment: What it means.
    """

    name: str
    term: Expr
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Needed:
    """A condition without which the action is impossible.

    Attributes:
        condition: The condition.
        rows: Labels of the rows of which one must be taken.
    """

    condition: Expr
    rows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unrolled:
    """An action in one valuation of its parameters.

    Attributes:
        label: Its name.
        action: The action.
        require: Conditions over the cells alone, cheap ones first.
        named: Terms used below, each over cells and earlier names.
        possible: Conditions over cells and names, with the rows that they stand for: no table refuses.
        changes: New values of cells; others keep theirs.
    """

    label: str
    action: Action
    require: tuple[Expr, ...]
    named: tuple[Named, ...]
    possible: tuple[Needed, ...]
    changes: Mapping[str, Expr]


class Unroller:
    """Unrolls the actions of one shape, and conditions over it."""

    def __init__(self, shape: Shape, machines: Sequence[Machine] = MACHINES, read: Mapping[str, Mapping[str, Expr]] = READ) -> None:
        self.shape = shape
        self.machines = {machine.name: machine for machine in machines}
        self.first: dict[str, Value] = dict(cells_of(shape))
        self.domains = {name: _domain(first) for name, first in self.first.items() if isinstance(first, bool | StrEnum)}
        self.read: dict[str, tuple[Expr, At]] = {}
        self.readers: dict[str, set[str]] = {}
        for name in self.first:
            kind, index, its = parts(name)
            condition = read.get(kind, {}).get(its)
            if condition is not None:
                self.read[name] = condition, at_of(shape, kind, index)
                for var in names_in(self.condition(*self.read[name])):
                    self.readers.setdefault(var, set()).add(name)

    def actions(self, actions: Iterable[Action]) -> Iterator[Unrolled]:
        """Every action in every valuation."""
        for action in actions:
            for at in valuations(self.shape, action.parameters):
                yield _Run(self, at).unrolled(action)

    def condition(self, expr: Expr, at: At | None = None) -> Expr:
        """A condition over the cells of the shape, primed ones included."""
        return _Run(self, at or {}, naming=False).term(expr)


@dataclass
class _Run:
    """One action being unrolled.

    Attributes:
        now: Values of the cells that have changed so far.
        under: What holds where we are, inside branches.
        named: Terms with names, in order.
        names: The same by term.
        possible: What the action cannot do without.
        may_be: What cells can have held before, as far as conditions so far say more than their type.
        naming: Whether terms get names at all.
    """

    owner: Unroller
    at: At
    naming: bool = True
    now: dict[str, Expr] = field(default_factory=dict)
    under: Expr = YES
    named: list[Named] = field(default_factory=list)
    names: dict[Expr, Expr] = field(default_factory=dict)
    possible: list[Needed] = field(default_factory=list)
    may_be: dict[str, frozenset[Value]] = field(default_factory=dict)

    def unrolled(self, action: Action) -> Unrolled:
        """The action."""
        require: list[Expr] = []
        self.naming = False
        for each in action.require:
            condition = self.term(each)
            require += conjuncts(condition)
            self.assume(condition)
        self.naming = True
        name = label(action, self.at)
        self.run(action.statements)
        self.tidy()
        changes = {name: value for name, value in self.now.items() if not self.keeps(name, value)}
        named = _needed(self.named, [*(each.condition for each in self.possible), *changes.values()])
        return Unrolled(
            name,
            action,
            tuple(each for each in dict.fromkeys(require) if not is_yes(each)),
            named,
            tuple(self.possible),
            changes,
        )

    def keeps(self, name: str, value: Expr) -> bool:
        """Whether a cell has its value already."""
        return value == Var(name, ()) or (isinstance(value, Lit) and self.may_be.get(name) == frozenset({value.value}))

    def assume(self, condition: Expr) -> None:
        """The action is impossible where this does not hold, so it does."""
        for each in conjuncts(condition):
            match each:
                case Var(name):
                    self.restrict(name, frozenset({True}))
                case Not(Var(name)):
                    self.restrict(name, frozenset({False}))
                case Eq(Var(name), Lit(value)):
                    self.restrict(name, frozenset({value}))
                case Among(Var(name), values):
                    self.restrict(name, frozenset(values))
                case Not(Eq(Var(name), Lit(value))) if name in self.owner.domains:
                    self.restrict(name, self.owner.domains[name] - {value})
                case Not(Among(Var(name), values)) if name in self.owner.domains:
                    self.restrict(name, self.owner.domains[name] - frozenset(values))

    def restrict(self, name: str, values: frozenset[Value]) -> None:
        if name in self.owner.domains:
            self.may_be[name] = self.may_be.get(name, self.owner.domains[name]) & values

    # -- statements -----------------------------------------------------------------------------------------------------

    def run(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            match statement:
                case Assign(to, value):
                    self.assign(to, self.term(value))
                case When(condition, then):
                    self.branch(self.term(condition), then)
                case ForEach(name, objects, then):
                    at = self.at
                    for member in self.owner.shape.members(objects, at):
                        self.at = {**at, name: member}
                        self.run(then)
                    self.at = at
                case Do():
                    self.do(statement)

    def branch(self, condition: Expr, then: Sequence[Statement]) -> None:
        outer = self.under
        self.under = conjunction(outer, self.name(condition))
        if not is_no(self.under):
            self.run(then)
        self.under = outer

    def do(self, do: Do) -> None:
        """One of the rows: the first that is enabled, as the engine takes it."""
        rows = list(self.rows(do))
        if len(rows) > 1 or do.optional:
            rows = [(row, self.name(holds, f"{do.machine}: {row.label}")) for row, holds in rows]
        if not do.optional:
            rows = self.demand(do, rows)
        taken, changes = self.changes(do, rows)
        for to, value in changes.items():
            self.assign(to, value)
        if do.then:
            self.branch(taken, do.then)

    def changes(self, do: Do, rows: Sequence[tuple[Row, Expr]]) -> tuple[Expr, Mapping[Var, Expr]]:
        """Whether a row is taken, and what the cells that any of them assigns are then; all read what was before."""
        effects = []
        for row, _ in rows:
            target: Expr = row.target if isinstance(row.target, Var) else Lit(row.target)
            assigned = {_cell(relocate(do, effect.var)): self.table(do, effect.expr) for effect in row.effects}
            effects.append(assigned | {_state(do): self.table(do, target)})
        before = {to: self.variable(Var(self.cell(to), ())) for each in effects for to in each}
        taken: Expr = NO
        values = dict(before)
        for (_, holds), assigned in zip(reversed(rows), reversed(effects), strict=True):  # an earlier row has the last word
            taken = disjunction(taken, holds)
            values = {to: choice(holds, assigned.get(to, before[to]), value) for to, value in values.items()}
        return taken, values

    def rows(self, do: Do) -> Iterator[tuple[Row, Expr]]:
        """The rows that may be taken here, and when: its sources, its guards."""
        for row in self.owner.machines[do.machine].rows:
            if row.event is do.event:
                holds = self.term(_state(do).among(*row.sources))
                for guard in row.guards:
                    holds = conjunction(holds, self.table(do, guard.expr))
                if not is_no(holds):
                    yield row, holds

    def demand(self, do: Do, rows: list[tuple[Row, Expr]]) -> list[tuple[Row, Expr]]:
        """One of the rows must be taken: so the last one is where no other is."""
        needed: Expr = NO
        for _, holds in reversed(rows):
            needed = disjunction(holds, needed)
        needed = disjunction(negation(self.under), needed)
        if not is_yes(needed):
            self.possible.append(Needed(needed, tuple(row.label for row, _ in rows)))
        if is_yes(self.under):
            self.assume(needed)
            self.assume(self.term(_state(do).among(*(source for row, _ in rows for source in row.sources))))
        return [*rows[:-1], (rows[-1][0], YES)] if rows else []

    def table(self, do: Do, expr: Expr) -> Expr:
        return self.term(rebuild(expr, lambda var: relocate(do, var)))

    def assign(self, to: Var, value: Expr) -> None:
        name = self.cell(to)
        self.now[name] = self.name(choice(self.under, value, self.variable(Var(name, ()))))

    def tidy(self) -> None:
        """What nobody reads is set back; only where something it hangs on has changed, since it was tidy before."""
        touched = set(self.now) | {reader for name in self.now for reader in self.owner.readers.get(name, ())}
        resets = {}
        for name in self.owner.first:
            if name in touched and name in self.owner.read:
                expr, self.at = self.owner.read[name]
                condition = self.term(expr)
                before = self.variable(Var(name, ()))
                resets[name] = choice(condition, before, Lit(self.owner.first[name]))
        self.now |= resets

    # -- terms ----------------------------------------------------------------------------------------------------------

    def name(self, term: Expr, comment: str = "") -> Expr:
        """The term itself where it is short, else a name for it."""
        if not self.naming or size(term) <= 2:
            return term
        if term not in self.names:
            var = Var(f"x{len(self.named) + 1}", ())
            self.named.append(Named(var.name, term, comment))
            self.names[term] = var
        return self.names[term]

    def cell(self, var: Var) -> str:
        kind, index, its = parts(var.name)
        return cell(kind, its, *(str(self.at[name]) if name in self.at else name for name in index)).name

    def term(self, expr: Expr) -> Expr:
        """A term with everything put in: members, parameters, constants of the shape, what cells hold now."""
        match expr:
            case Count(name, objects, where):
                numbers = [choice(each, Lit(1), Lit(0)) for each in self.each(name, objects, where)]
                return total(numbers)
            case Every(name, objects, where):
                result: Expr = YES
                for each in self.each(name, objects, where):
                    result = conjunction(result, each)
                return self.name(result) if size(result) > LONG else result
            case Total(name, objects, of):
                return total(self.each(name, objects, of))
            case If(condition, yes, no):
                return choice(self.term(condition), self.term(yes), self.term(no))
            case Plus(left, right):
                return total([self.term(left), self.term(right)])
        match node(expr):
            case Var() as var:
                return self.variable(var)
            case Lit() as literal:
                return literal
            case Not(operand):
                return negation(self.term(operand))
            case And(left, right):
                return conjunction(self.term(left), self.term(right))
            case Or(left, right):
                return disjunction(self.term(left), self.term(right))
            case Eq(left, right):
                return self.compare(Eq, self.term(left), self.term(right))
            case Lt(left, right):
                return self.compare(Lt, self.term(left), self.term(right))
            case Among(operand, values):
                return self.among(self.term(operand), frozenset(values))
            case Add(operand, number):
                return plus(self.term(operand), number)

    def each(self, name: str, objects: Objects, inner: Expr) -> list[Expr]:
        at = self.at
        found = []
        for member in self.owner.shape.members(objects, at):
            self.at = {**at, name: member}
            found.append(self.term(inner))
        self.at = at
        return found

    def variable(self, var: Var) -> Expr:
        kind, index, its = parts(var.name)
        if not its:
            return Lit(self.at[kind]) if kind in self.at else var
        numbers = tuple(self.at[name] if name in self.at else int(name) for name in index)
        fixed = self.owner.shape.constant(kind, numbers, its.rstrip("'"))
        if fixed is not None:
            return Lit(fixed)
        name = cell(kind, its, *map(str, numbers)).name
        if name not in self.now and len(self.may_be.get(name, ())) == 1:
            return Lit(next(iter(self.may_be[name])))
        return self.now.get(name, Var(name, ()))

    def looked_up(self, term: Expr) -> Expr:
        """The term behind a name."""
        if isinstance(term, Var) and term.name.startswith("x") and term.name[1:].isdigit():
            return self.named[int(term.name[1:]) - 1].term
        return term

    def compare(self, how: type[Eq] | type[Lt], left: Expr, right: Expr) -> Expr:
        if left == right and not isinstance(left, Lit):
            return Lit(how is Eq)
        match self.looked_up(left), right:
            case Lit(one), Lit(other):
                return Lit(one == other) if how is Eq else Lit(one < other)  # type: ignore[operator]
            case If(condition, yes, no), Lit():
                then, otherwise = self.compare(how, yes, right), self.compare(how, no, right)
                if isinstance(then, Lit) or isinstance(otherwise, Lit):
                    return choice(condition, then, otherwise)
            case Add(operand, number), Lit(int() as other) if not isinstance(other, bool):
                return self.compare(how, operand, Lit(other - number))
            case Var(name), Lit(StrEnum() as state) if how is Eq and name in self.owner.domains:
                return self.among(left, frozenset({state}))
        if isinstance(left, Lit) and not isinstance(right, Lit) and how is Eq:
            return self.compare(Eq, right, left)
        return how(left, right)

    def among(self, operand: Expr, values: frozenset[Value]) -> Expr:
        match self.looked_up(operand):
            case Lit(value):
                return Lit(value in values)
            case Var(name) if name in self.owner.domains:
                can_be = self.may_be.get(name, self.owner.domains[name])
                values &= can_be
                if not values or values == can_be:
                    return Lit(bool(values))
            case If(condition, yes, no):
                then, otherwise = self.among(yes, values), self.among(no, values)
                if isinstance(then, Lit) or isinstance(otherwise, Lit):
                    return choice(condition, then, otherwise)
        if len(values) == 1:
            return Eq(operand, Lit(next(iter(values))))
        return Among(operand, tuple(sorted(values)))  # type: ignore[arg-type]


def _state(do: Do) -> Var:
    return _cell(relocate(do, Var("state", ())))


def _cell(expr: Expr) -> Var:
    assert isinstance(expr, Var), "effects assign to cells"
    return expr


def _domain(first: bool | StrEnum) -> frozenset[Value]:
    return frozenset({True, False}) if isinstance(first, bool) else frozenset(type(first))


# -- simplification ------------------------------------------------------------------------------------------------------


def is_yes(term: Expr) -> bool:
    """Whether a term is TRUE; a number is not."""
    return isinstance(term, Lit) and term.value is True


def is_no(term: Expr) -> bool:
    """Whether a term is FALSE; a number is not."""
    return isinstance(term, Lit) and term.value is False


def conjunction(left: Expr, right: Expr) -> Expr:
    """Both."""
    if is_no(left) or is_yes(right):
        return left
    if is_no(right) or is_yes(left) or left == right:
        return right
    known = set(conjuncts(left))
    for each in conjuncts(right):
        if negation(each) in known:
            return NO
    return left if known >= set(conjuncts(right)) else And(left, right)


def disjunction(left: Expr, right: Expr) -> Expr:
    """At least one."""
    return negation(conjunction(negation(left), negation(right)))


def negation(term: Expr) -> Expr:
    """Not."""
    match term:
        case Lit(value):
            return Lit(not value)
        case Not(operand):
            return operand
        case And(left, right):
            return Or(negation(left), negation(right))
        case Or(left, right):
            return And(negation(left), negation(right))
    return Not(term)


def choice(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """One of two values."""
    if is_yes(condition) or (yes == no and repr(yes) == repr(no)):
        return yes
    if is_no(condition):
        return no
    if is_yes(yes):
        return disjunction(condition, no)
    if is_no(yes):
        return conjunction(negation(condition), no)
    if is_no(no):
        return conjunction(condition, yes)
    if is_yes(no):
        return disjunction(negation(condition), yes)
    if isinstance(no, If) and no.condition == condition:
        return choice(condition, yes, no.no)
    return If(condition, yes, no)


def conjuncts(term: Expr) -> Iterator[Expr]:
    """The conditions that a conjunction consists of."""
    if isinstance(term, And):
        yield from conjuncts(term.left)
        yield from conjuncts(term.right)
    else:
        yield term


def plus(term: Expr, number: int) -> Expr:
    """A number more."""
    match term:
        case Lit(int() as value):
            return Lit(value + number)
        case Add(operand, other):
            return plus(operand, other + number)
    return Add(term, number) if number else term


def total(numbers: Sequence[Expr]) -> Expr:
    """The sum."""
    fixed = sum(each.value for each in numbers if isinstance(each, Lit) and isinstance(each.value, int))
    others = [each for each in numbers if not isinstance(each, Lit)]
    if not others:
        return Lit(fixed)
    result = others[0]
    for each in others[1:]:
        result = Plus(result, each)
    return plus(result, fixed)


def children(term: Expr) -> tuple[Expr, ...]:
    """The parts of a term."""
    match term:
        case If(condition, yes, no):
            return condition, yes, no
        case Plus(left, right):
            return left, right
    match node(term):
        case Not(operand) | Among(operand, _) | Add(operand, _):
            return (operand,)
        case And(left, right) | Or(left, right) | Eq(left, right) | Lt(left, right):
            return left, right
    return ()


def size(term: Expr) -> int:
    """How many nodes a term has."""
    return 1 + sum(map(size, children(term)))


def names_in(term: Expr) -> Iterator[str]:
    """The cells and names in a term."""
    if isinstance(term, Var):
        yield term.name
    for child in children(term):
        yield from names_in(child)


def _needed(named: Sequence[Named], roots: Iterable[Expr]) -> tuple[Named, ...]:
    """The names that the roots need, in order."""
    by_name = {each.name: each for each in named}
    queue = [name for root in roots for name in names_in(root)]
    wanted = set()
    while queue:
        name = queue.pop()
        if name in by_name and name not in wanted:
            wanted.add(name)
            queue += names_in(by_name[name].term)
    return tuple(each for each in named if each.name in wanted)
