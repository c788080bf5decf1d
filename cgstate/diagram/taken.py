"""What a trace has taken: counts by edge and event, and the states that were met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cgstate.lifecycle.table import Machine, Row

if TYPE_CHECKING:
    from cgstate.trace.records import Record


@dataclass(slots=True)
class Taken:
    """Counts of a trace.

    Attributes:
        steps: By machine, event, guards, source and target.
        states: By machine and state, all that an entity was in.
    """

    steps: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    states: set[tuple[str, str]] = field(default_factory=set)

    def count(self, machine: str, row: Row, source: str, target: str) -> int:
        """How often a row led from one state to another."""
        return self.steps[machine, row.event, _guard(row), source, target]

    def of_row(self, machine: Machine, row: Row) -> int:
        """How often a row was taken, wherever it led."""
        return sum(
            count
            for (name, event, guard, source, _), count in self.steps.items()
            if (name, event, guard) == (machine.name, row.event, _guard(row)) and source in row.sources
        )


def _guard(row: Row) -> str:
    """The guards' names, as a trace has them."""
    return " & ".join(guard.name for guard in row.guards)


def taken(records: Iterable[Record]) -> Taken:
    """Count what a trace has taken.

    Raises:
        TraceError: from the records; see `cgstate.trace.read`.
    """
    from cgstate.trace.records import TransitionRecord

    found = Taken()
    for record in records:
        if isinstance(record, TransitionRecord):
            found.steps[record.machine, record.event, record.guard, record.source, record.target] += 1
            found.states |= {(record.machine, record.source), (record.machine, record.target)}
    return found
