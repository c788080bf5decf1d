"""Which rows of the tables a run took, and which of their conditions it saw both hold and fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

from cgstate.errors import IllegalTransition
from cgstate.lifecycle.expr import Value, evaluate, variables
from cgstate.lifecycle.states import EntryState
from cgstate.lifecycle.steps import Steps
from cgstate.lifecycle.table import Guard, Machine, Row
from cgstate.lifecycle.tables import MACHINE, MACHINES
from cgstate.lifecycle.world import World

__all__ = ["TOTAL", "Coverage", "Outcome", "defensive", "every_outcome", "every_row", "out_of_epoch"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a condition of a row can turn out.

    Attributes:
        machine: Name of the machine.
        row: Number of the row in its table.
        guard: The condition.
        holds: Whether it does.
    """

    machine: str
    row: int
    guard: str
    holds: bool

    def __str__(self) -> str:
        row = MACHINE[self.machine].rows[self.row]
        return f"{self.machine}: {'' if self.holds else 'not '}'{self.guard}' in {row.label}"


@dataclass
class Coverage:
    """What was seen so far. Add up what several runs saw with `add`.

    Attributes:
        rows: How often each row was taken, by machine and number.
        failed: Conditions that were seen to fail, by machine, row and name.
    """

    rows: Counter[tuple[str, int]] = field(default_factory=Counter)
    failed: set[tuple[str, int, str]] = field(default_factory=set)

    # -- watching -----------------------------------------------------------------------------------------------------

    def took(self, entity: Steps, row: int, state: str) -> None:
        """An entity took a row of its table from ``state``: an `Observer`."""
        self.rows[entity.machine.name, row] += 1

    def refused(self, refusal: IllegalTransition) -> None:
        """A door refused: the condition that the refusal names has failed, if a table has it."""
        machine = MACHINE.get(refusal.machine)
        if machine is None or not refusal.guard:
            return
        for number, row in enumerate(machine.rows):
            named = any(guard.name == refusal.guard for guard in row.guards)
            if named and row.event == refusal.event and refusal.state in row.sources:
                self.failed.add((machine.name, number, refusal.guard))

    def attempted(self, machine: Machine, event: str, env: Mapping[str, Value]) -> None:
        """An event was refused in a situation that is known."""
        for number, row in enumerate(machine.rows):
            if row.event == event and env["state"] in row.sources:
                for guard in row.guards:
                    if not evaluate(guard.expr, env):
                        self.failed.add((machine.name, number, guard.name))

    def add(self, other: Coverage) -> None:
        """Count what another run saw as well."""
        self.rows.update(other.rows)
        self.failed |= other.failed

    def packed(self) -> dict[str, object]:
        """As JSON, for another process."""
        return {"rows": [[*row, count] for row, count in self.rows.items()], "failed": sorted(map(list, self.failed))}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Coverage:
        """What `packed` made."""
        rows = Counter({(machine, row): count for machine, row, count in packed["rows"]})
        return cls(rows, {(machine, row, guard) for machine, row, guard in packed["failed"]})

    # -- telling ------------------------------------------------------------------------------------------------------

    def rows_missed(self) -> tuple[str, ...]:
        """Rows that were never taken."""
        return tuple(f"{machine.name}: {row.label}" for machine, number, row in every_row() if not self.rows[machine.name, number])

    @property
    def rows_covered(self) -> int:
        """How many rows were taken."""
        return sum(bool(self.rows[machine.name, number]) for machine, number, _ in every_row())

    def outcomes(self) -> frozenset[Outcome]:
        """Outcomes of conditions that were seen: where a row was taken, all its own held, and what contradicts them failed."""
        seen = {Outcome(machine, row, guard, False) for machine, row, guard in self.failed}
        for machine, number, row in every_row():
            if self.rows[machine.name, number]:
                seen |= {Outcome(machine.name, number, guard.name, True) for guard in row.guards}
                seen |= contradicted(machine.name, number)
        return frozenset(seen)

    def outcomes_missed(self) -> tuple[Outcome, ...]:
        """Outcomes that were not seen, but those that no door can bring about."""
        seen = self.outcomes()
        return tuple(outcome for outcome in every_outcome() if outcome not in seen and not defensive(outcome))

    @property
    def percent(self) -> float:
        """How much of the rows, or of the guard outcomes, was seen: the lesser part."""
        wanted = sum(not defensive(outcome) for outcome in every_outcome())
        seen = wanted - len(self.outcomes_missed())
        return 100 * min(self.rows_covered / len(every_row()), seen / wanted)

    def document(self) -> dict[str, object]:
        """For JSON."""
        wanted = [outcome for outcome in every_outcome() if not defensive(outcome)]
        missed = self.outcomes_missed()
        return {
            "rows": len(every_row()),
            "rows_covered": self.rows_covered,
            "rows_missed": list(self.rows_missed()),
            "guard_outcomes": len(wanted),
            "guard_outcomes_covered": len(wanted) - len(missed),
            "guard_outcomes_missed": [str(outcome) for outcome in missed],
        }


TOTAL = Coverage()
"""What all runs of this process have seen together."""


@cache
def every_row() -> tuple[tuple[Machine, int, Row], ...]:
    """All rows of all tables."""
    return tuple((machine, number, row) for machine in MACHINES for number, row in enumerate(machine.rows))


@cache
def every_outcome() -> tuple[Outcome, ...]:
    """Both outcomes of every condition."""
    return tuple(
        Outcome(machine.name, number, guard.name, holds)
        for machine, number, row in every_row()
        for guard in row.guards
        for holds in (True, False)
    )


def defensive(outcome: Outcome) -> bool:
    """Whether only a defect of the runtime could bring it about, so that no run is asked for it."""
    return not outcome.holds and (outcome.machine, outcome.row, outcome.guard) in _defensive()


@cache
def _defensive() -> frozenset[tuple[str, int, str]]:
    return frozenset(
        (machine.name, number, guard.name)
        for machine, number, row in every_row()
        for guard in row.guards
        if (machine.name, str(row.event), guard.name) in DEFENSIVE or (machine.name, row.label, guard.name) in DEFENSIVE
    )


DEFENSIVE: Mapping[tuple[str, str, str], str] = {
    ("entry", "bind", "epochs still current"): "memory moves by operations that exclude transactions",
    (
        "entry",
        "BOUND --acquire[manager serving & dependencies resident & epochs current & caller's stream not capturing]--> REPLAYING",
        "epochs current",
    ): "graphs are retired in the step in which memory moves",
}
"""Conditions that only a broken runtime can make fail, by machine, event (or label of the row) and name; each with the reason.

Both say the same of a World, and each step of each run is held against it: `out_of_epoch`.
"""


def out_of_epoch(world: World) -> Iterator[str]:
    """Entries that are CAPTURING or BOUND and have noted another epoch than their component's: there are none."""
    epochs = {component.name: component.epoch for component in world.components}
    for entry in world.entries:
        if entry.state in (EntryState.CAPTURING, EntryState.BOUND) and entry.noted != epochs.get(entry.component, entry.noted):
            yield f"{entry.name} is {entry.state}, and what it has baked in has moved"


@cache
def contradicted(machine: str, number: int) -> frozenset[Outcome]:
    """What must have failed where a row was taken: conditions of the rows beside it that exclude one of its own."""
    table = MACHINE[machine]
    row = table.rows[number]
    beside = [
        (other, each)
        for other, each in enumerate(table.rows)
        if each is not row and each.event is row.event and set(each.sources) & set(row.sources)
    ]
    return frozenset(
        Outcome(machine, other, guard.name, False) for other, each in beside for guard in each.guards if _exclude(row.guards, guard)
    )


def _exclude(held: Iterable[Guard], guard: Guard) -> bool:
    """Whether a condition fails wherever those in ``held`` hold."""
    return any(not any(_valuations(one, guard)) for one in held)


def _valuations(one: Guard, other: Guard) -> Iterator[bool]:
    """For every valuation of their variables, whether both hold."""
    domains = {var.name: var.domain for guard in (one, other) for var in variables(guard.expr)}
    for values in product(*domains.values()):
        env = dict(zip(domains, values, strict=True))
        yield bool(evaluate(one.expr, env)) and bool(evaluate(other.expr, env))
