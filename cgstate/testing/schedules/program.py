"""What a scheduler runs, and what it decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING

from cgstate.testing.schedules.points import point_name

if TYPE_CHECKING:
    from cgstate.testing.schedules.locks import ScheduledCondition, ScheduledLock


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be run under many schedules; made anew for each.

    Attributes:
        programs: By name; each runs in a thread of its own. A name is one word without ``>``, ``:`` and ``#``.
        finish: Called when all have ended, outside of them: looks at what came of it, and raises if that is wrong.
    """

    programs: Mapping[str, Callable[[], object]]
    finish: Callable[[], object] = field(default=lambda: None)


class Program:
    """One program of a run.

    Attributes:
        number: Its identity as the runtime sees it.
        ident: The thread that it runs in.
        baton: Held by nobody while it may run.
        wants: The lock that it needs in order to go on.
        waits: The condition that it must first be notified of.
        deadline: When it goes on without that, nanoseconds of the scheduler's clock; None: never.
        timed_out: Whether it went on for that reason the last time.
        at: Where it was stopped last, as a kind and a place; see `points.point_name`.
        ended: Whether it has.
    """

    __slots__ = ("at", "baton", "deadline", "ended", "ident", "name", "number", "timed_out", "waits", "wants", "work")

    def __init__(self, name: str, number: int, work: Callable[[], object]) -> None:
        self.name = name
        self.number = number
        self.work = work
        self.ident = 0
        self.baton = threading.Lock()
        self.baton.acquire()
        self.wants: ScheduledLock | None = None
        self.waits: ScheduledCondition | None = None
        self.deadline: int | None = None
        self.timed_out = False
        self.at: tuple[str, CodeType | str | None] = ("start", None)
        self.ended = False

    @property
    def ready(self) -> bool:
        """Whether it can go on at once."""
        return not self.ended and self.waits is None and (self.wants is None or self.wants.owner is None)

    @property
    def may_time_out(self) -> bool:
        """Whether it can go on by a timeout alone."""
        if self.ended or self.deadline is None or self.ready:
            return False
        return self.waits is None or self.wants is None or self.wants.owner is None

    def describe(self) -> str:
        """What it is doing, for a report."""
        place = point_name(*self.at)
        owner = self.wants.owner if self.wants is not None else None
        if self.ended:
            return f"{self.name} has ended"
        if self.waits is not None:
            return f"{self.name} waits to be notified, at {place}"
        if owner is not None:
            return f"{self.name} waits for the lock that {'itself' if owner is self else owner.name} has, at {place}"
        return f"{self.name} can go on, at {place}"


class Decision:
    """A moment at which more than one program could go on.

    Attributes:
        program: Who came to a point there; empty at the start.
        candidates: Who could go on; the first is who does unless the schedule says otherwise.
        costs: What it takes to choose each, in preemptions: 1 for leaving a program that could go on, or letting a timeout pass
            while others could; 0 else.
        chosen: Index of who went on.
    """

    __slots__ = ("_at", "candidates", "chosen", "costs", "program")

    def __init__(
        self, program: str, at: tuple[str, CodeType | str | None], candidates: tuple[str, ...], costs: tuple[int, ...]
    ) -> None:
        self.program = program
        self._at = at
        self.candidates = candidates
        self.costs = costs
        self.chosen = 0

    @property
    def point(self) -> str:
        """Where it was."""
        return point_name(*self._at)

    def same(self, other: Decision) -> bool:
        """Whether both are the same moment of two runs."""
        return (self.program, self._at, self.candidates) == (other.program, other._at, other.candidates)
