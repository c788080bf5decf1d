"""What the checkers said of a mutant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto

from cgstate.errors import CGStateError

__all__ = ["Cell", "CheckerName", "Fate", "Outcome", "ReviewedFails", "Tried"]


class ReviewedFails(CGStateError):
    """What was taken for a kill happens without the mutant as well: the reviewed lifecycle itself does not hold."""


class CheckerName(StrEnum):
    """The checkers, from cheap to dear."""

    z3 = auto()
    walker = auto()
    tlc = auto()
    stateful = auto()
    schedules = auto()


class Outcome(StrEnum):
    """What one checker said of one mutant."""

    killed = auto()
    """It noticed."""
    same = auto()
    """It showed that the reachable graph is the reviewed one."""
    passed = auto()
    """It noticed nothing."""
    timed_out = "timed out"
    """It was given up. This is no kill."""
    not_run = "not run"
    """The mutant was settled before."""
    blind = auto()
    """It does not look at what is broken: the tables' checkers know no runtime, and the runtime's no system."""


class Fate(StrEnum):
    """What became of a mutant."""

    killed = auto()
    equivalent = auto()
    survived = auto()
    undecided = auto()
    """Nobody killed it, and somebody ran out of time."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one checker said.

    Attributes:
        outcome: In a word.
        by: The property that broke, or what went wrong; of the rest, nothing.
        seconds: CPU time; of TLC, its own account of wall time.
    """

    outcome: Outcome
    by: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant and its way up.

    Attributes:
        id, operator, subject, story: The mutant's.
        cells: What each checker said.
    """

    id: str
    operator: str
    subject: str
    story: str
    cells: Mapping[CheckerName, Cell] = field(default_factory=dict)

    @property
    def fate(self) -> Fate:
        """What became of it."""
        outcomes = {cell.outcome for cell in self.cells.values()}
        if Outcome.killed in outcomes:
            return Fate.killed
        if Outcome.same in outcomes:
            return Fate.equivalent
        return Fate.undecided if Outcome.timed_out in outcomes else Fate.survived

    @property
    def killer(self) -> tuple[CheckerName, str] | None:
        """Who killed it, and by what."""
        return next(((name, cell.by) for name, cell in self.cells.items() if cell.outcome is Outcome.killed), None)

    @property
    def seconds(self) -> float:
        """What it took."""
        return sum(cell.seconds for cell in self.cells.values())
