"""Guards and effects as data: small expression trees over typed variables, never lambdas.

Because a guard is data, one table yields the engine, the generated steps, the `transitions` view, the model checkers' input, the
diagrams and the mutants. This file knows nothing of any machine.

A variable is named from the point of view of the entity that steps: ``leases`` is its own, ``gate.free`` belongs to a related
object. Expressions are built with operators: ``~a``, ``a & b``, ``a | b``, ``n + 1``, ``n - 1``, and with `Expr.eq`, `Expr.lt`,
`Expr.among` (``==`` stays structural equality, as trees are compared and hashed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never

Value: TypeAlias = bool | int | str
"""What a variable holds; states and kinds are `StrEnum` members."""


class Expr:
    """Base of the tree: operators build bigger trees."""

    __slots__ = ()

    def __invert__(self) -> Not:
        return Not(self)

    def __and__(self, other: Expr) -> And:
        return And(self, other)

    def __or__(self, other: Expr) -> Or:
        return Or(self, other)

    def __add__(self, number: int) -> Add:
        return Add(self, number)

    def __sub__(self, number: int) -> Add:
        return Add(self, -number)

    def eq(self, other: Expr | Value) -> Eq:
        """Equal values."""
        return Eq(self, _lift(other))

    def lt(self, other: Expr | Value) -> Lt:
        """Strictly smaller numbers."""
        return Lt(self, _lift(other))

    def among(self, *values: StrEnum) -> Among:
        """One of the given enum members."""
        return Among(self, values)


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A typed variable.

    Attributes:
        name: Its path from the stepping entity, e.g. ``leases`` or ``gate.free``.
        domain: The values that finite explorations give it, in order; for a number, a small initial segment.
        doc: What it means.
    """

    name: str
    domain: tuple[Value, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Lit(Expr):
    """A constant."""

    value: Value


@dataclass(frozen=True, slots=True)
class Not(Expr):
    """Negation."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class And(Expr):
    """Conjunction."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Or(Expr):
    """Disjunction."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Eq(Expr):
    """Equality of two values."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Lt(Expr):
    """Strict order of two numbers."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Among(Expr):
    """Membership in a constant set of enum members."""

    operand: Expr
    values: tuple[StrEnum, ...]


@dataclass(frozen=True, slots=True)
class Add(Expr):
    """A number plus a constant."""

    operand: Expr
    number: int


Node: TypeAlias = Var | Lit | Not | And | Or | Eq | Lt | Among | Add


def _lift(value: Expr | Value) -> Expr:
    return value if isinstance(value, Expr) else Lit(value)


def node(expr: Expr) -> Node:
    """Narrow to the closed union, so that a ``match`` over it can be exhaustive."""
    if isinstance(expr, Var | Lit | Not | And | Or | Eq | Lt | Among | Add):
        return expr
    raise TypeError(f"not an expression node: {expr!r}")


def variables(expr: Expr) -> Iterator[Var]:
    """Every variable of a tree, left to right, with repetitions."""
    match node(expr):
        case Var() as var:
            yield var
        case Lit():
            return
        case Not(operand) | Among(operand, _) | Add(operand, _):
            yield from variables(operand)
        case And(left, right) | Or(left, right) | Eq(left, right) | Lt(left, right):
            yield from variables(left)
            yield from variables(right)
        case other:
            assert_never(other)


def evaluate(expr: Expr, env: Mapping[str, Value]) -> Value:
    """The value of a tree where ``env`` gives every variable."""
    match node(expr):
        case Var(name):
            return env[name]
        case Lit(value):
            return value
        case Not(operand):
            return not evaluate(operand, env)
        case And(left, right):
            return bool(evaluate(left, env)) and bool(evaluate(right, env))
        case Or(left, right):
            return bool(evaluate(left, env)) or bool(evaluate(right, env))
        case Eq(left, right):
            return evaluate(left, env) == evaluate(right, env)
        case Lt(left, right):
            return _number(evaluate(left, env)) < _number(evaluate(right, env))
        case Among(operand, values):
            return evaluate(operand, env) in values
        case Add(operand, number):
            return _number(evaluate(operand, env)) + number
        case other:
            assert_never(other)


def _number(value: Value) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"a number is needed, not {value!r}")


def python(expr: Expr, parameters: frozenset[str] = frozenset(), root: str = "self") -> str:
    """The tree as Python source; own and related variables hang on ``root``, event parameters stand alone."""

    def walk(tree: Expr) -> str:
        match node(tree):
            case Var(name):
                return name if name in parameters else f"{root}.{name}"
            case Lit(value):
                return constant(value)
            case Not(Eq(left, Lit(StrEnum() as value))):
                return f"{walk(left)} is not {constant(value)}"
            case Not(Among(operand, values)):
                return f"{walk(operand)} not in {_members(values)}"
            case Not(And() as operand):
                return f"not ({walk(operand)})"
            case Not(operand):
                return f"not {walk(operand)}"
            case And(left, right):
                return f"{walk(left)} and {walk(right)}"
            case Or(left, right):
                return f"({walk(left)} or {walk(right)})"
            case Eq(left, right):
                same = "is" if isinstance(right, Lit) and isinstance(right.value, StrEnum) else "=="
                return f"{walk(left)} {same} {walk(right)}"
            case Lt(Lit(value), right):
                return f"{walk(right)} > {constant(value)}"
            case Lt(left, right):
                return f"{walk(left)} < {walk(right)}"
            case Among(operand, values):
                return f"{walk(operand)} in {_members(values)}"
            case Add(operand, number):
                return f"{walk(operand)} {'+' if number >= 0 else '-'} {abs(number)}"
            case other:
                assert_never(other)

    return walk(expr)


def _members(values: tuple[StrEnum, ...]) -> str:
    return f"({', '.join(map(constant, values))}{',' if len(values) == 1 else ''})"


def constant(value: Value) -> str:
    """The name of a constant in generated source: enum members are module globals there, which is three times faster."""
    if isinstance(value, StrEnum):
        return f"{type(value).__name__}_{value.name}"
    return repr(value)
