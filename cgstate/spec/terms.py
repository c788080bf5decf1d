"""The words of the system model: cells, sets of objects, and counting over them.

The four tables speak of one entity at a time, by names such as ``leases`` and ``gate.free``. The system is many entities: there,
every variable is a **cell**, ``entry[e].leases`` for a parameter ``e``, ``gate.free`` for the one gate. Cells are ordinary `Var`
leaves, so the tables' own expressions become expressions over cells by renaming, and stay data. A primed cell (`then`) is its value
after a step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cgstate.lifecycle.expr import Add, Among, And, Eq, Expr, Lit, Lt, Not, Or, Value, Var, node

Index: TypeAlias = tuple[str, ...]
"""Parameters of a cell, or, once instantiated, numbers as text."""


@dataclass(frozen=True, slots=True)
class Objects:
    """A finite set of objects that a parameter ranges over.

    Attributes:
        kind: ``entry``, ``component``, ``domain``, ``pool``; or ``now`` and ``old``, a domain's two pools one by one.
        of: Only those that belong to this object, given as (kind, parameter); None: all of them.
    """

    kind: str
    of: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Count(Expr):
    """How many objects satisfy a condition."""

    name: str
    objects: Objects
    where: Expr


@dataclass(frozen=True, slots=True)
class Every(Expr):
    """Whether all objects satisfy a condition."""

    name: str
    objects: Objects
    where: Expr


@dataclass(frozen=True, slots=True)
class Total(Expr):
    """The sum of a number over objects."""

    name: str
    objects: Objects
    number: Expr


@dataclass(frozen=True, slots=True)
class Plus(Expr):
    """The sum of two numbers."""

    left: Expr
    right: Expr


def cell(kind: str, field: str, *index: str, domain: tuple[Value, ...] = ()) -> Var:
    """The variable ``field`` of the object of that kind at ``index``; no index: there is only one."""
    return Var(f"{kind}[{','.join(index)}].{field}" if index else f"{kind}.{field}", domain)


def some(name: str, objects: Objects, where: Expr) -> Expr:
    """Whether an object satisfies a condition."""
    return ~Every(name, objects, ~where)


def implies(condition: Expr, consequence: Expr) -> Expr:
    """The consequence, wherever the condition holds."""
    return ~condition | consequence


def then(var: Var) -> Var:
    """The value of a cell after the step."""
    return Var(f"{var.name}'", var.domain, var.doc)


_CELL = re.compile(r"(\w+)\[([\w,]+)\]\.(\w+'?)")


def parts(name: str) -> tuple[str, Index, str]:
    """Kind, index and field of a cell's name; a parameter has no field."""
    match = _CELL.fullmatch(name)
    if match is None:
        kind, _, field = name.partition(".")
        return kind, (), field
    return match[1], tuple(match[2].split(",")), match[3]


def rebuild(expr: Expr, leaf: Callable[[Var], Expr]) -> Expr:
    """The tree with every variable replaced, inside counts as well; ``leaf`` must leave their own parameters alone."""
    match expr:
        case Count(name, objects, where):
            return Count(name, objects, rebuild(where, leaf))
        case Every(name, objects, where):
            return Every(name, objects, rebuild(where, leaf))
        case Total(name, objects, of):
            return Total(name, objects, rebuild(of, leaf))
        case Plus(left, right):
            return Plus(rebuild(left, leaf), rebuild(right, leaf))
    match node(expr):
        case Var() as var:
            return leaf(var)
        case Lit() as literal:
            return literal
        case Not(operand):
            return Not(rebuild(operand, leaf))
        case Among(operand, values):
            return Among(rebuild(operand, leaf), values)
        case Add(operand, number):
            return Add(rebuild(operand, leaf), number)
        case And(left, right):
            return And(rebuild(left, leaf), rebuild(right, leaf))
        case Or(left, right):
            return Or(rebuild(left, leaf), rebuild(right, leaf))
        case Eq(left, right):
            return Eq(rebuild(left, leaf), rebuild(right, leaf))
        case Lt(left, right):
            return Lt(rebuild(left, leaf), rebuild(right, leaf))
