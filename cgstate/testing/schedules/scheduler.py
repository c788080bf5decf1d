"""The scheduler: programs in threads of their own, of which exactly one runs, until it comes to a point.

At a point everybody who could go on is a candidate, and a `choosing.Chooser` says who does. The thread that gives up wakes the one
that goes on, and sleeps. A program is stopped before it takes a lock, where it waits, at the runtime's named points, when it ends,
and on demand after it gave a lock back; between these it runs undisturbed. Time passes only when a timeout does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from types import CodeType

from cgstate.runtime.sync import Condition, Lock
from cgstate.testing.schedules.choosing import Chooser
from cgstate.testing.schedules.errors import Abandoned, Deadlock, Endless, ScheduleError, Unscheduled
from cgstate.testing.schedules.locks import ScheduledCondition, ScheduledLock
from cgstate.testing.schedules.program import Case, Decision, Program

MAX_STEPS = 20_000
"""Points of one run after which it counts as endless."""
PATIENCE = 60.0
"""Seconds without an end after which a program must be waiting for something else than the scheduler."""
_OUTSIDE = 1


class Scheduler:
    """A `cgstate.runtime.sync.Sync` that decides who runs.

    Before and after `run` it serves the thread that made it, in which everything then simply happens.

    Args:
        chooser: Decides.
        releases: Also stop programs after they gave a lock back: finds what is looked at there without the lock.
        named_points: Tell the runtime that there is somebody who schedules. Without, it takes its hot path, whose only points are
            its locks.

    Attributes:
        abandoned: The run is over for who is still in it: every further step raises `Abandoned`.
        decisions: What there was to decide, in order.
        name: What reports call the thread outside of the programs.
    """

    name = "the thread outside of the programs"

    def __init__(self, chooser: Chooser, *, releases: bool = False, named_points: bool = True) -> None:
        self._chooser = chooser
        self.releases = releases
        self.point: Callable[[str], None] | None = self.pause if named_points else None
        self.abandoned = False
        self.decisions: list[Decision] = []
        self._programs: list[Program] = []
        self._running: Program | None = None
        self._ident = get_ident()
        self._outside = self._ident
        self._baton = threading.Lock()
        self._baton.acquire()
        self._now = 0
        self._steps = 0
        self._error: BaseException | None = None

    # -- what the runtime asks for ------------------------------------------------------------------------------------

    def thread_id(self) -> int:
        """The running program's number."""
        return self._running.number if self._running is not None else _OUTSIDE

    def now_ns(self) -> int:
        """The clock."""
        return self._now

    def lock(self) -> Lock:
        """A lock, free."""
        return ScheduledLock(self)

    def held(self, lock: Lock) -> Callable[[], bool]:
        """Returns whether the running program has ``lock``."""
        assert isinstance(lock, ScheduledLock)
        return lock.owned

    def condition(self, lock: Lock) -> Condition:
        """A condition over a lock made here."""
        assert isinstance(lock, ScheduledLock)
        return ScheduledCondition(self, lock)

    def pause(self, name: str) -> None:
        """A point of that name, for programs that want one of their own. Outside of them it does nothing."""
        if self.abandoned:
            raise Abandoned
        me = self.me()
        if me is not None:
            self.pass_point(me, "point", name)

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, case: Case) -> None:
        """Run the programs of ``case`` to their ends, once.

        Raises:
            Exception: what a program raised first; those that it stops are unwound before.
            Deadlock: nobody could go on.
            Endless: they ran in a circle.
            ScheduleError: they could not be run as asked.
        """
        for name, work in case.programs.items():
            if not name or set(name) & set(" >:#"):
                raise ScheduleError(f"a program's name must be one word without '>', ':' and '#', not {name!r}")
            self._programs.append(Program(name, _OUTSIDE + 1 + len(self._programs), work))
        if not self._programs:
            raise ScheduleError("there is no program to run")
        threads = [threading.Thread(target=self._run, args=(each,), name=each.name, daemon=True) for each in self._programs]
        for program, thread in zip(self._programs, threads, strict=True):
            thread.start()
            assert thread.ident is not None
            program.ident = thread.ident
        self._wake(self._choose(None, ("start", None)))
        if not self._baton.acquire(timeout=PATIENCE):
            self.abandoned = True
            where = "; ".join(program.describe() for program in self._programs)
            raise Unscheduled(
                f"after {PATIENCE:g} s somebody still waits for what is none of the scheduler's locks: {where}; "
                "make locks of your own by `sync.lock()`"
            )
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        self._chooser.check_followed()

    def abandon(self) -> None:
        """Something is wrong: whatever still comes, destructors for instance, gets no lock any more."""
        self.abandoned = True

    def _run(self, me: Program) -> None:
        me.baton.acquire()
        work, me.work = me.work, _nothing  # a manager that it knows may be dropped now, though the manager knows the scheduler
        try:
            if not self.abandoned:
                work()
        except Abandoned:
            pass
        except BaseException as error:
            self._stop(error)
        me.ended = True
        if all(program.ended for program in self._programs):
            self._running, self._ident = None, self._outside
            self._baton.release()
            return
        try:
            following = None if self.abandoned else self._choose(me, ("end", None))
        except Abandoned:
            following = None
        self._wake(following or next(program for program in self._programs if not program.ended))

    def _stop(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self.abandoned = True

    def _wake(self, program: Program) -> None:
        self._running, self._ident = program, program.ident
        program.baton.release()

    # -- points -------------------------------------------------------------------------------------------------------

    def me(self) -> Program | None:
        """The calling program; None outside of them.

        Raises:
            Unscheduled: the caller is some other thread.
        """
        if get_ident() != self._ident:
            raise Unscheduled("a thread that is none of the programs uses the scheduler")
        return self._running

    def pass_point(self, me: Program, kind: str, where: CodeType | str) -> None:
        """Let somebody else go on here, if the schedule says so."""
        self._steps += 1
        me.at = at = (kind, where)
        self._give_way(me, self._choose(me, at))

    def park(
        self,
        me: Program,
        kind: str,
        where: CodeType,
        *,
        wants: ScheduledLock,
        waits: ScheduledCondition | None = None,
        seconds: float | None = None,
    ) -> None:
        """Go on when ``wants`` is free and ``waits`` was notified, or ``seconds`` passed: see `Program.timed_out`."""
        me.at = at = (kind, where)
        me.wants, me.waits = wants, waits
        me.deadline = None if seconds is None else self._now + int(seconds * 1e9)
        me.timed_out = False
        self._give_way(me, self._choose(me, at))
        me.wants = me.deadline = None

    def let_time_pass(self, seconds: float) -> None:
        """Move the clock."""
        self._now += int(seconds * 1e9)

    def _give_way(self, me: Program, following: Program) -> None:
        if following is not me:
            self._wake(following)
            me.baton.acquire()
            if self.abandoned:
                raise Abandoned

    def _choose(self, me: Program | None, at: tuple[str, CodeType | str | None]) -> Program:
        """Who goes on now that ``me`` has come to ``at``."""
        if self._steps > MAX_STEPS:
            self._stop(Endless(f"after {MAX_STEPS} points: {'; '.join(program.describe() for program in self._programs)}"))
            raise Abandoned
        candidates = [program for program in self._programs if program.ready]
        stays = me is not None and me in candidates
        if stays and candidates[0] is not me:
            assert me is not None
            candidates.remove(me)
            candidates.insert(0, me)
        ready = len(candidates)
        candidates += [program for program in self._programs if program.may_time_out]
        if not candidates:
            self._stop(Deadlock("nobody can go on:\n" + "\n".join(f"  {program.describe()}" for program in self._programs)))
            raise Abandoned
        chosen = 0
        if len(candidates) > 1:
            costs = tuple(int(index > 0 and (stays or 0 < ready <= index)) for index in range(len(candidates)))
            decision = Decision(me.name if me is not None else "", at, tuple(program.name for program in candidates), costs)
            self.decisions.append(decision)
            try:
                chosen = decision.chosen = self._chooser.choose(decision)
            except ScheduleError as error:
                if me is None:
                    raise
                self._stop(error)
                raise Abandoned from None
        following = candidates[chosen]
        if chosen >= ready:
            self._time_out(following)
        return following

    def _time_out(self, program: Program) -> None:
        assert program.deadline is not None
        self._now = max(self._now, program.deadline)
        program.timed_out = True
        if program.waits is not None:
            program.waits.waiting.remove(program)
            program.waits = None


def _nothing() -> None:
    pass
