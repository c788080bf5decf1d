"""Threads that meet over a bed's components: whoever comes in between, every call is answered as eager would.

Each is a case for `schedules.explore`; the battery runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from cgstate.errors import NotResident, OutputExpired
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.manager import GraphManager
from cgstate.testing.schedules.program import Case
from cgstate.testing.schedules.scheduler import Scheduler
from cgstate.testing.stateful.bed import Bed, Capabilities
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.subject import Subject, difference, values

__all__ = ["Meeting", "meetings"]


class Met:
    """One run: a manager that has captured a bed's components, and what they have answered since.

    Args:
        bed: Where.
        sync: The scheduler.
    """

    def __init__(self, bed: Bed, sync: Scheduler) -> None:
        self.bed = bed
        bed.backend = bed.make_backend()
        self.subjects = bed.make_components()
        self.manager = GraphManager(bed.backend, check=True, sync=sync)
        self.manager.prepare(
            [subject.component for subject in self.subjects], {subject.name: dict(subject.config) for subject in self.subjects}
        )
        self.manager.capture_and_bind(progress=False)
        self._before = self._eager()
        self._answers: list[tuple[Subject, int, object, object]] = []

    def _eager(self) -> list[list[object]]:
        """What every call must answer now."""
        return [[values(each.component.routine.eager_call(*sample)) for sample in each.samples] for each in self.subjects]

    def call(self, *, backwards: bool = False) -> None:
        """Call every component with every sample, and read each answer; they are compared, and read once more, at the end."""
        calls = [(subject, number) for subject in self.subjects for number in range(len(subject.samples))]
        for subject, number in reversed(calls) if backwards else calls:
            with suppress(NotResident, OutputExpired):  # its memory is away, or another call came before it was read
                answer = subject.component(*subject.samples[number])
                kept = _read(answer) if isinstance(answer, LeasedOutput) else answer
                self._answers.append((subject, number, kept, values(kept)))

    def evict(self) -> None:
        """Evict every component."""
        for subject in self.subjects:
            self.manager.evict(subject.name)

    def capture(self) -> None:
        """Capture whatever is not bound."""
        self.manager.capture_and_bind(progress=False)

    def move(self) -> None:
        """Take away what components depend on, and bring it back elsewhere, all at once."""
        names = sorted({name for subject in self.subjects for name in subject.component.dependencies})
        self.manager.suspend(*names)
        for name in names:
            self.bed.take_away(name)

        def restore() -> None:
            for name in names:
                self.bed.bring_back(name, elsewhere=True)

        self.manager.resume(*names, restore=restore, moved=True)

    def finish(self) -> None:
        """Compare every answer with what eager said before, and says now; close the manager, and see that nothing is left.

        Raises:
            Violated: an answer is wrong or has changed, or bytes are left.
        """
        after = self._eager()
        for subject, number, kept, then in self._answers:
            place = self.subjects.index(subject)
            apart = min(difference(then, right) for right in (self._before[place][number], after[place][number]))
            if not apart <= subject.tolerance:
                raise Violated(f"{subject.name} answered sample {number} otherwise than eager does, by {apart}")
            if difference(values(kept), then):
                raise Violated(f"what {subject.name} answered to sample {number} is something else since")
        self.manager.close()
        if left := self.manager.memory().total:
            raise Violated(f"{left} bytes are left after close")


def _read(lent: LeasedOutput[Any]) -> object:
    with lent:
        return values(lent.value)


Meeting: TypeAlias = Callable[[type[Bed], Scheduler], Case]


def called_twice(bed: type[Bed], sync: Scheduler) -> Case:
    """Two threads call."""
    met = Met(bed(), sync)
    return Case({"one": met.call, "other": lambda: met.call(backwards=True)}, met.finish)


def called_while_evicted(bed: type[Bed], sync: Scheduler) -> Case:
    """One thread calls, another evicts."""
    met = Met(bed(), sync)
    return Case({"caller": met.call, "evictor": met.evict}, met.finish)


def called_while_captured(bed: type[Bed], sync: Scheduler) -> Case:
    """One thread calls, another captures what was evicted."""
    met = Met(bed(), sync)
    met.evict()
    return Case({"caller": met.call, "capturer": met.capture}, met.finish)


def called_while_closed(bed: type[Bed], sync: Scheduler) -> Case:
    """One thread calls, another closes the manager."""
    met = Met(bed(), sync)
    return Case({"caller": met.call, "closer": met.manager.close}, met.finish)


def called_while_moved(bed: type[Bed], sync: Scheduler) -> Case:
    """One thread calls, another moves the memory that components depend on."""
    met = Met(bed(), sync)
    return Case({"caller": met.call, "mover": met.move}, met.finish)


def meetings(can: Capabilities) -> Sequence[Meeting]:
    """Those that a bed with these capabilities can play."""
    always = called_twice, called_while_evicted, called_while_captured, called_while_closed
    return (*always, called_while_moved) if can.dependencies else always
