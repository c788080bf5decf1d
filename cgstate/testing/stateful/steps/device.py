"""The device, the collector and faults: what happens without the manager being asked."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from cgstate.lifecycle.states import ManagerEvent
from cgstate.testing.faults import METHODS, When
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.step import Event, Step

__all__ = ["Advance", "Break", "BreakRoutine", "Collect", "Disagree", "Idle", "Lose"]

OFTEN = 8
"""How many times as often as others the launch of a graph is broken: it has rows of its own in the tables."""
MOST_FAULTS = 2
"""Faults that are planned at once at most."""


@dataclass(frozen=True, repr=False)
class Advance(Step):
    """Let the device do some work."""

    steps: int = 1

    weight: ClassVar[int] = 6

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Little or much."""
        return [cls(steps) for steps in (1, 4, 16)] if play.bed.can.clock else ()

    def run(self, play: Play) -> None:
        """Advance."""
        play.bed.advance(self.steps)


@dataclass(frozen=True, repr=False)
class Idle(Step):
    """Wait for the device, so that the next one who reclaims finds everything done."""

    weight: ClassVar[int] = 2

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """While it is not lost."""
        return (cls(),) if not play.lost else ()

    def run(self, play: Play) -> None:
        """Wait."""
        play.idle()


@dataclass(frozen=True, repr=False)
class Collect(Step):
    """Collect garbage."""

    weight: ClassVar[int] = 1

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Any time."""
        return (cls(),)

    def run(self, play: Play) -> None:
        """Collect the young."""
        gc.collect(0)


@dataclass(frozen=True, repr=False)
class Lose(Step):
    """Lose the device's context."""

    weight: ClassVar[int] = 1
    brings: ClassVar[frozenset[Event]] = frozenset({ManagerEvent.device_lost})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """In runs with faults."""
        return (cls(),) if play.bed.can.loss and play.setup.faulty and not play.lost else ()

    def run(self, play: Play) -> None:
        """Lose it."""
        play.bed.lose()
        play.lost = True


@dataclass(frozen=True, repr=False)
class Break(Step):
    """Let a call of the backend raise, some calls from now."""

    call: str
    when: When = "before"
    nth: int = 1
    memory: bool = False

    weight: ClassVar[int] = 4

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every call that was made so far, steps inside of captures and of their undoing included."""
        if not play.setup.faulty or not play.bed.can.faults or play.pending_faults >= MOST_FAULTS or play.lost:
            return
        injector: Any = play.backend.faults  # type: ignore[attr-defined]  # the capability says so
        for call in (*sorted(injector.calls), *["graph_replay"] * OFTEN):
            if call not in UNBREAKABLE:
                yield from _breaks(call)

    def run(self, play: Play) -> None:
        """Plan it."""
        error: Exception | None = None
        if self.memory:
            from cgstate.backends.sim.errors import SimOutOfMemory

            error = SimOutOfMemory("an injected shortage")
        play.stingy = play.stingy or self.call in RETURNING
        play.stuck = play.stuck or (self.call, self.when) == ("undo: heal the generator", "before")
        injector: Any = play.backend.faults  # type: ignore[attr-defined]  # the capability says so
        injector.inject(self.call, when=self.when, nth=self.nth, error=error)


RETURNING = frozenset(
    {
        "clear_workspaces",
        "event_synchronize",
        "flush",
        "graph_destroy",
        "has_foreign_graphs",
        "pool_drop",
        "stream_close",
        "undo: destroy the graph",
        "undo: end the capture",
        "undo: release the pool",
        "undo: stop routing",
    }
)
"""Calls that give something back, or that this waits in: nobody can, where these fail."""


@cache
def _breaks(call: str) -> tuple[Break, ...]:
    """The ways to break one call."""
    ways = [Break(call, "after")]
    if call not in LASTING:
        ways += [Break(call, "before"), Break(call, "before", 3)]
    if call in ("allocate", "open_capture"):
        ways.append(Break(call, "before", 1, True))
    return tuple(ways)


LASTING = frozenset({"undo: restore the stream", "undo: stop routing", "undo: end the capture"})
"""What nobody makes good once it was left out: later work would run on the capture stream, in its pool or in a capture for ever."""

UNBREAKABLE = frozenset({"footprint", "host_read", "host_write", "pool_reserved_bytes", "synchronize"})
"""Calls that the harness makes itself, or the model's own code; and what only reads the allocator's books."""


@dataclass(frozen=True, repr=False)
class BreakRoutine(Step):
    """Let a method of some routine raise."""

    method: str
    when: When = "before"
    nth: int = 1

    weight: ClassVar[int] = 3

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every method."""
        if play.setup.faulty and play.pending_faults < MOST_FAULTS and not play.lost:
            yield from _BROKEN_ROUTINES

    def run(self, play: Play) -> None:
        """Plan it."""
        play.routine_faults.inject(self.method, when=self.when, nth=self.nth)


_BROKEN_ROUTINES = tuple(
    each for method in METHODS for each in (BreakRoutine(method), BreakRoutine(method, "after"), BreakRoutine(method, "before", 2))
)


@dataclass(frozen=True, repr=False)
class Disagree(Step):
    """Let another rank not agree, some ballots from now."""

    nth: int = 1

    weight: ClassVar[int] = 4

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Soon or later, once at a time."""
        asked = all(subject.component.collective for subject in play.subjects.values())  # components of users are often not
        if play.setup.ranks and asked and not play.ranks.disagree:
            yield from (cls(nth) for nth in (1, 2, 3))

    def run(self, play: Play) -> None:
        """Plan it."""
        play.ranks.disagree = self.nth
