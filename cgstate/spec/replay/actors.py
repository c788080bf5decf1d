"""Operations of the runtime that can be stopped half way: each runs in a thread of its own, and only one thread runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cgstate.runtime.sync import Lock, ThreadingSync

PATIENCE = 20.0
"""Seconds after which an operation that neither pauses nor ends is taken for a deadlock."""


class Stuck(Exception):
    """An operation neither paused nor ended."""


class Actor:
    """One operation.

    Attributes:
        at: Where it has paused; empty while it runs, and when it has ended.
        error: What it ended with, if not well.
    """

    _of = threading.local()

    def __init__(self, work: Callable[[Actor], None]) -> None:
        self.at = ""
        self.error: BaseException | None = None
        self._work = work
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False
        self._raise: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @classmethod
    def current(cls) -> Actor | None:
        """The operation that this thread runs; None in the main one."""
        return getattr(cls._of, "actor", None)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended

    def start(self) -> None:
        """Run until it pauses or ends.

        Raises:
            Stuck: it does neither.
        """
        self._thread.start()
        self._wait()

    def resume(self, error: BaseException | None = None) -> None:
        """Go on until the next pause or the end; ``error`` is raised where it has paused.

        Raises:
            Stuck: it does neither.
        """
        self._raise, self.at = error, ""
        self._go.release()
        self._wait()

    def pause(self, at: str) -> None:
        """Stop here; called by the operation itself."""
        self.at = at
        self._paused.release()
        self._go.acquire()
        error, self._raise = self._raise, None
        if error is not None:
            raise error

    def _wait(self) -> None:
        if not self._paused.acquire(timeout=PATIENCE):
            raise Stuck(f"neither paused nor ended after {PATIENCE} s")

    def _run(self) -> None:
        Actor._of.actor = self
        try:
            self._work(self)
        except BaseException as error:
            self.error = error
        finally:
            self._ended = True
            self._paused.release()


class PausingCondition:
    """Waiting is a pause."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock up, pause, take it back."""
        actor = Actor.current()
        if actor is None:
            raise Stuck("the main thread would have to wait")
        self._lock.release()
        try:
            actor.pause("waiting")
        finally:
            self._lock.acquire()
        return True

    def notify_all(self) -> None:
        """Nothing: who waits looks again when it is resumed."""


class PausingSync(ThreadingSync):
    """A `Sync` whose operations pause at the points of `launch`, where they wait, and, if they are `patient`, before they look."""

    def __init__(self) -> None:
        self._lock: Lock | None = None
        self.patient: set[Actor] = set()

    def lock(self) -> Lock:
        """The device's lock; there is one."""
        self._lock = super().lock()
        return self._lock

    def condition(self, lock: Lock) -> PausingCondition:
        """A condition over it."""
        return PausingCondition(lock)

    def now_ns(self) -> int:
        """Time stands still. Release, close and suspend ask for it, with the lock held, before they look whether leases are held.

        Their wait begins there, so a patient one pauses as if it had to wait, lock given up.
        """
        actor = Actor.current()
        if actor in self.patient and self._lock is not None:
            self._lock.release()
            try:
                assert actor is not None
                actor.pause("waiting")
            finally:
                self._lock.acquire()
        return 0

    def point(self, name: str) -> None:
        """Between the turn and the launch."""
        actor = Actor.current()
        if actor is not None and name == "launch":
            actor.pause(name)
