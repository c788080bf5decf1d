"""What an action is made of, as data: steps of the machines, and notes of what no table speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from cgstate.lifecycle.expr import Expr, Var
from cgstate.spec.terms import Objects


@dataclass(frozen=True, slots=True)
class Do:
    """One machine takes an event; the whole action is impossible where its table refuses.

    Attributes:
        machine: Name of the machine.
        event: The event.
        at: Parameter of the entity that steps; empty for the one manager.
        related: By kind, the parameter of the related object: ``{"component": "c"}``.
        given: What the caller brings along: parameters of the event, and related variables that the action itself knows.
        optional: Where the table refuses, nothing happens and the action goes on, past ``then``.
        then: What follows a step that was taken.
    """

    machine: str
    event: StrEnum
    at: str = ""
    related: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Expr] = field(default_factory=dict)
    optional: bool = False
    then: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Assign:
    """A cell takes a value."""

    to: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class When:
    """Only if a condition holds."""

    condition: Expr
    then: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class ForEach:
    """For each object of a set, in order of number; also the way to name the one object that another belongs to."""

    name: str
    objects: Objects
    then: tuple[Statement, ...]


Statement: TypeAlias = "Do | Assign | When | ForEach"


@dataclass(frozen=True, slots=True)
class Action:
    """What happens in one piece.

    Attributes:
        name: E.g. ``commit``.
        parameters: Name and range of each.
        require: Conditions beside those of the tables.
        statements: What happens, in order; each sees what those before it did.
        doc: Why, or who does it.
        progress: It ends something that was begun: it happens some day if it stays possible (weak fairness, I15).
    """

    name: str
    parameters: tuple[tuple[str, Objects], ...]
    require: tuple[Expr, ...]
    statements: tuple[Statement, ...]
    doc: str
    progress: bool = False
