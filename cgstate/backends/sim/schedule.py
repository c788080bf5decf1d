"""In which order the device runs what is queued: the policies, and the executor that follows one.

Policies are for tests to choose or to write. The executor is called by the device alone, under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from cgstate.backends.sim.blocks import Block
from cgstate.backends.sim.errors import NOT_PERMITTED, DeviceFault, SimAcceleratorError
from cgstate.backends.sim.streams import DRIVER_HANDLE, SimEvent, StreamQueue
from cgstate.backends.sim.work import Launch, Mark, Milestone, Operation, Poison, Release, Wait, Work

MAX_QUEUED = 1024
"""Pieces of work that one stream holds; the host that queues more waits, as on the device."""


class Schedule(Protocol):
    """A device schedule."""

    def choose(self, ready: Sequence[StreamQueue]) -> int:
        """Index of the stream whose next kernel runs; ``ready`` is never empty, and begins with who has waited longest.

        The driver's errands come as streams, too, each with the handle `DRIVER_HANDLE`.
        """
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


_AHEAD = (0, 0, 0, 1, 2, 8)
"""How far the device may be ahead."""


class Drawn:
    """Any stream may be next, and the device may be ahead of whoever waits for it: both drawn."""

    def __init__(self, random: Random) -> None:
        self._next = random.random  # asked with each piece of work: `Random.choice` would take several times as long

    def choose(self, ready: Sequence[StreamQueue]) -> int:
        """As `Schedule.choose`."""
        return int(self._next() * len(ready))

    def ahead(self) -> int:
        """As `Schedule.ahead`."""
        return _AHEAD[int(self._next() * len(_AHEAD))]


class Executor:
    """Runs queued work. A context that was lost (``on_fault``) drops all of it.

    A kernel may queue work, as host code that Python runs in the middle of it may (a destructor), but not wait for any.
    """

    def __init__(self, cells: list[float], schedule: Schedule, on_fault: Callable[[int], None]) -> None:
        self._cells = cells
        self._schedule = schedule
        self._on_fault = on_fault
        self._busy: list[StreamQueue] = []
        self.also_poison: Callable[[int, int], None] | None = None
        """Poisons freed memory as torch sees it, once torch sees any."""
        self._running: StreamQueue | None = None
        self._errands = 0

    @property
    def running(self) -> bool:
        """Whether a kernel is running: then whoever asks is called by it."""
        return self._running is not None

    def submit(self, queue: StreamQueue, work: Work) -> None:
        """Queue ``work``; runs what the schedule wants to run ahead, and waits while the queue is over-full."""
        pending, running = queue.work, self._running
        if not pending and queue is not running:
            self._busy.append(queue)
        pending.append(work)
        if running is not None:
            return
        ahead = self._schedule.ahead()
        while ahead > 0 and self.step():
            ahead -= 1
        while len(pending) > MAX_QUEUED:
            self.step()

    def poison(self, block: Block, start: int, size: int) -> None:
        """Poison the cells of ``block``, which was given back, as soon as what is queued on its stream now has run."""
        pending, poison = block.segment.queue.work, Poison(block, start, size, self.also_poison)
        if not pending:
            poison.step(self._cells)
            return
        pending.append(poison)
        while len(pending) > MAX_QUEUED and self._running is None:
            self.step()

    def submit_release(self, release: Release, operations: Sequence[Operation]) -> None:
        """Let the driver run ``release`` at some step after the launches of ``operations`` that are queued now have ended.

        It has a queue of its own, so the schedule decides when; nothing waits for it (CUDA: ``cudaUserObjectNoDestructorSync``) but
        who asks for the driver's `errands`.
        """
        errand = StreamQueue(DRIVER_HANDLE)
        queues = self._busy if self._running is None else [self._running, *self._busy]
        for queue in queues:
            launches = [at for at, work in enumerate(queue.work) if isinstance(work, Launch) and work.operations is operations]
            if launches:
                end = Milestone()
                queue.work.insert(launches[-1] + 1, Mark(end))
                errand.work.append(Wait(end))
        errand.work.append(release)
        self._busy.append(errand)
        self._errands += 1

    def step(self) -> bool:
        """Run one kernel of one stream, or one errand of the driver; False when the device is idle.

        What a kernel raises goes to whoever moves the clock, and that kernel's launch is over.

        Raises:
            SimAcceleratorError: 800, a kernel is waiting for the device.
        """
        if self._running is not None:
            raise SimAcceleratorError(NOT_PERMITTED)
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
        self._running = queue
        over = True
        try:
            over = pending[0].step(self._cells)
        except DeviceFault as fault:
            self._on_fault(fault.error_code)
        finally:
            self._running = None
            if over and pending:  # a lost context has dropped all of it already
                pending.popleft()
                while pending and type(pending[0]) is Poison:
                    pending.popleft().step(self._cells)
            if pending:
                busy.append(queue)
            elif queue.handle == DRIVER_HANDLE:
                self._errands -= 1
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
        """Run until every stream is idle. The driver's errands are not waited for."""
        while self.running or len(self._busy) > self._errands:
            self.step()

    def errands(self) -> list[StreamQueue]:
        """What the driver has to do, each in a queue of its own."""
        return [queue for queue in self._busy if queue.handle == DRIVER_HANDLE]

    def drop_all(self) -> None:
        """Forget everything that is queued, the driver's errands too."""
        if self._running is not None:
            self._running.work.clear()
        for queue in self._busy:
            queue.work.clear()
        self._busy.clear()
        self._errands = 0


def _blocked(queue: StreamQueue) -> bool:
    head = queue.work[0]
    return type(head) is Wait and not head.milestone.passed
