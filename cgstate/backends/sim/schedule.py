"""In which order the device runs what is queued: the policies, and the executor that follows one.

Policies are for tests to choose or to write. The executor is called by the device alone, under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from cgstate.backends.sim.errors import DeviceFault
from cgstate.backends.sim.streams import SimEvent, StreamQueue
from cgstate.backends.sim.work import Wait, Work

MAX_QUEUED = 1024
"""Pieces of work that one stream holds; the host that queues more waits, as on the device."""


class Schedule(Protocol):
    """A device schedule."""

    def choose(self, ready: Sequence[StreamQueue]) -> int:
        """Index of the stream whose next kernel runs; ``ready`` is never empty, and begins with who has waited longest."""
        ...

    def ahead(self) -> int:
        """How many kernels the device runs by itself after one more piece of work was queued."""
        ...


class InOrder:
    """Nothing runs until somebody waits; then one kernel of each stream in turn, so replays that overlap interleave (T1)."""

    def choose(self, ready: Sequence[StreamQueue]) -> int:
        """As `Schedule.choose`."""
        return 0

    def ahead(self) -> int:
        """As `Schedule.ahead`."""
        return 0


class Drawn:
    """Any stream may be next, and the device may be ahead of whoever waits for it: both drawn."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, ready: Sequence[StreamQueue]) -> int:
        """As `Schedule.choose`."""
        return self._random.randrange(len(ready))

    def ahead(self) -> int:
        """As `Schedule.ahead`."""
        return self._random.choice((0, 0, 0, 1, 2, 8))


class Executor:
    """Runs queued work. A context that was lost (``on_fault``) drops all of it."""

    def __init__(self, cells: list[float], schedule: Schedule, on_fault: Callable[[int], None]) -> None:
        self._cells = cells
        self._schedule = schedule
        self._on_fault = on_fault
        self._busy: list[StreamQueue] = []

    def submit(self, queue: StreamQueue, work: Work) -> None:
        """Queue ``work``; runs what the schedule wants to run ahead, and waits while the queue is over-full."""
        pending = queue.work
        if not pending:
            self._busy.append(queue)
        pending.append(work)
        ahead = self._schedule.ahead()
        while ahead > 0 and self.step():
            ahead -= 1
        while len(pending) > MAX_QUEUED:
            self.step()

    def step(self) -> bool:
        """Run one kernel of one stream; False when the device is idle."""
        busy = self._busy
        if not busy:
            return False
        if len(busy) == 1:
            queue = busy.pop()
        else:
            ready = [queue for queue in busy if not _blocked(queue)]
            queue = ready[self._schedule.choose(ready)]
            busy.remove(queue)
        pending = queue.work
        try:
            if pending[0].step(self._cells):
                pending.popleft()
        except DeviceFault as fault:
            pending.clear()
            self._on_fault(fault.error_code)
        except BaseException:
            pending.popleft()
            raise
        finally:
            if pending:
                busy.append(queue)
        return True

    def finish(self, queue: StreamQueue) -> None:
        """Run until ``queue`` is idle."""
        while queue.work:
            self.step()

    def finish_event(self, event: SimEvent) -> None:
        """Run until ``event`` has passed, or the context is lost."""
        while not event.passed and self.step():
            pass

    def finish_all(self) -> None:
        """Run until the device is idle."""
        while self.step():
            pass

    def drop_all(self) -> None:
        """Forget everything that is queued."""
        for queue in self._busy:
            queue.work.clear()
        self._busy.clear()


def _blocked(queue: StreamQueue) -> bool:
    head = queue.work[0]
    return type(head) is Wait and not head.event.passed
