"""Locks and condition variables whose every wait is the scheduler's decision."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from cgstate.testing.schedules.errors import Abandoned, Deadlock
from cgstate.testing.schedules.points import caller

if TYPE_CHECKING:
    from cgstate.testing.schedules.program import Program
    from cgstate.testing.schedules.scheduler import Scheduler


class ScheduledLock:
    """A `cgstate.runtime.sync.Lock`; taking it is a point, and giving it back where the scheduler says so.

    Attributes:
        owner: The program that has it; the scheduler stands for the thread outside of the programs; None: free.
    """

    __slots__ = ("_scheduler", "owner")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.owner: Program | Scheduler | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; False when it was not to be had."""
        return self._take(sys._getframe(1), blocking, timeout if timeout >= 0 else None)

    def owned(self) -> bool:
        """Whether whoever asks has it; once the run was given up, nobody has."""
        return not self._scheduler.abandoned and self.owner is (self._scheduler.me() or self._scheduler)

    def release(self) -> None:
        """Give it back.

        Raises:
            RuntimeError: the caller does not have it.
        """
        self._give(sys._getframe(1))

    def __enter__(self) -> bool:
        return self._take(sys._getframe(1), True, None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None:
        self._give(sys._getframe(1))

    def _take(self, frame: FrameType, blocking: bool, seconds: float | None) -> bool:
        scheduler = self._scheduler
        if scheduler.abandoned:
            if blocking:
                raise Abandoned
            return False
        me = scheduler.me()
        if me is None:
            return self._take_outside(blocking)
        where = caller(frame)
        scheduler.pass_point(me, "lock", where)
        if self.owner is not None:
            if not blocking:
                return False
            scheduler.park(me, "lock", where, wants=self, seconds=seconds)
            if me.timed_out:
                return False
        self.owner = me
        return True

    def _take_outside(self, blocking: bool) -> bool:
        if self.owner is None:
            self.owner = self._scheduler
            return True
        if blocking:
            raise Deadlock(f"outside of the programs a lock is wanted that {self.owner.name} has, and never gives back")
        return False

    def _give(self, frame: FrameType) -> None:
        scheduler = self._scheduler
        if scheduler.abandoned:
            self.owner = None
            return
        me = scheduler.me()
        if self.owner is not (me or scheduler):
            raise RuntimeError("a lock is given back by who does not have it")
        self.owner = None
        if me is not None and scheduler.releases:
            scheduler.pass_point(me, "unlock", caller(frame))


class ScheduledCondition:
    """A `cgstate.runtime.sync.Condition`. Nobody wakes up by chance; a timeout may pass whenever the scheduler says so."""

    __slots__ = ("_lock", "_scheduler", "waiting")

    def __init__(self, scheduler: Scheduler, lock: ScheduledLock) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self.waiting: list[Program] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock up until notified; False when ``timeout`` seconds passed.

        Raises:
            RuntimeError: the caller does not have the lock.
        """
        scheduler, lock = self._scheduler, self._lock
        if scheduler.abandoned:
            raise Abandoned
        me = scheduler.me()
        self._check(me)
        if me is None:
            if timeout is None:
                raise Deadlock("outside of the programs something is waited for that nobody will do")
            scheduler.let_time_pass(timeout)
            return False
        lock.owner = None
        self.waiting.append(me)
        scheduler.park(me, "wait", caller(sys._getframe(1)), wants=lock, waits=self, seconds=timeout)
        lock.owner = me
        return not me.timed_out

    def notify_all(self) -> None:
        """Wake everyone who waits.

        Raises:
            RuntimeError: the caller does not have the lock.
        """
        if not self._scheduler.abandoned:
            self._check(self._scheduler.me())
        for program in self.waiting:
            program.waits = None
        self.waiting.clear()

    def _check(self, me: Program | None) -> None:
        if self._lock.owner is not (me or self._scheduler):
            raise RuntimeError("a condition is used by who does not have its lock")
