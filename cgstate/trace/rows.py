"""What the recorder and the checker need to know of every row, once, derived from the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from cgstate.lifecycle.expr import Var
from cgstate.lifecycle.states import ComponentEvent, EntryEvent
from cgstate.lifecycle.table import Machine, Row
from cgstate.lifecycle.tables import MACHINES

LEASES = frozenset({EntryEvent.acquire, EntryEvent.release})
"""Events of entries that happen at each call: recorded with stream and time, and nothing that costs more."""
FOLLOWERS = frozenset({ComponentEvent.first_lease, ComponentEvent.last_release})
"""Events of components that follow such an event at once, in the same thread."""

TRANSACTIONAL = frozenset(
    {EntryEvent.capture_begin, EntryEvent.capture_end, EntryEvent.bind, EntryEvent.abort, EntryEvent.capture_fail}
)
"""Events of entries that belong to a transaction."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A row of a table as traces know it.

    Attributes:
        machine: The table's name.
        index: Which row.
        row: The row itself.
        guard: Names of its guards, as a record has them.
        reads: Variables that are recorded with it; none for what happens at each call.
        look: Reads these of a live entity.
    """

    machine: str
    index: int
    row: Row
    guard: str
    reads: tuple[str, ...]
    look: Callable[[object], object] | None

    @property
    def target(self) -> str | None:
        """The state that it leads to; None where that hangs on a variable."""
        return None if isinstance(self.row.target, Var) else self.row.target.value


def constants(machine: Machine) -> tuple[str, ...]:
    """Own and related variables that no row of any table assigns: what an entity is born with."""
    assigned = {effect.var.name for row in machine.rows for effect in row.effects}
    assigned |= {
        effect.var.name.removeprefix(f"{machine.name}.")
        for other in MACHINES
        for row in other.rows
        for effect in row.effects
        if effect.var.name.startswith(f"{machine.name}.")
    }
    return tuple(var.name for var, _ in machine.own if var.name not in assigned)


def _trace_row(machine: Machine, index: int, row: Row) -> TraceRow:
    own = {var.name for var, _ in machine.own} | {var.name for var in machine.related}
    reads: tuple[str, ...] = ()
    if not _at_each_call(row.event):
        names = dict.fromkeys(var.name for var in machine.variables_of(row) if var.name in own)
        reads = ("state", *(name for name in names if name != "state"))
    look = attrgetter(*reads) if reads else None
    return TraceRow(machine.name, index, row, " & ".join(guard.name for guard in row.guards), reads, look)


def _at_each_call(event: StrEnum) -> bool:
    return isinstance(event, EntryEvent | ComponentEvent) and (event in LEASES or event in FOLLOWERS)


ROWS: dict[str, tuple[TraceRow, ...]] = {
    machine.name: tuple(_trace_row(machine, index, row) for index, row in enumerate(machine.rows)) for machine in MACHINES
}
"""By machine, in table order."""
