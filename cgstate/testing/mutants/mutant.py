"""What a mutant is: one thing broken in the tables, in the system that is composed of them, or in the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cgstate.lifecycle.table import Machine, Row
from cgstate.lifecycle.tables import MACHINE, MACHINES
from cgstate.spec.statements import Action
from cgstate.spec.system import ACTIONS
from cgstate.testing.plantings import Patch

__all__ = ["Mutant", "RuntimeMutant", "SystemMutant", "TableMutant"]


@dataclass(frozen=True, slots=True)
class TableMutant:
    """One row of a table is changed.

    Attributes:
        id: ``machine/row/operator/detail``; a row is called by its event, and numbered where the event has several.
        operator: Name of the operator that made it.
        subject: The row's label.
        story: What is different, in words.
        machine: The changed table.
        row: The row as it was.
    """

    id: str
    operator: str
    subject: str
    story: str
    machine: Machine
    row: Row

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The four tables, the changed one among them."""
        return tuple(self.machine if each.name == self.machine.name else each for each in MACHINES)

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions, as they are."""
        return ACTIONS

    @property
    def reviewed(self) -> Machine:
        """The table that it was made from."""
        return MACHINE[self.machine.name]


@dataclass(frozen=True, slots=True)
class SystemMutant:
    """A fault that people have met, planted in what the runtime does in one piece: actions of the system are changed.

    Attributes:
        id: ``system/kind/story``.
        operator: ``system-fault``.
        subject: The kind of fault.
        story: What is wrong, in words.
        actions: All actions, the changed ones among them, in the same order.
    """

    id: str
    operator: str
    subject: str
    story: str
    actions: tuple[Action, ...]

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The tables, as they are."""
        return MACHINES


@dataclass(frozen=True, slots=True)
class RuntimeMutant:
    """A fault that people have met, planted in the runtime.

    Attributes:
        id: ``runtime/kind/story``, or ``race/kind/story`` for one that shows only where threads meet.
        operator: ``runtime-fault`` or ``race``.
        subject: The kind of fault.
        story: What is wrong, in words.
        planting: Makes the context manager that breaks the runtime while it is entered.
        case: Of a race, the schedules' case that should find it.
    """

    id: str
    operator: str
    subject: str
    story: str
    planting: Callable[[], Patch]
    case: Callable[..., Any] | None = None


Mutant: TypeAlias = TableMutant | SystemMutant | RuntimeMutant
