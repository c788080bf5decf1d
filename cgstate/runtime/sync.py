"""Locks, condition variables, thread identity and clock, as the runtime sees them.

Everything in the runtime that could interleave takes these from a `Sync`, so that a test scheduler can stand in for `threading`
and decide every interleaving. Production pays nothing: the default hands out the C primitives themselves and has no points.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Lock(Protocol):
    """Mutual exclusion. It belongs to the thread that took it; whether that may take it again is not relied upon."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; False when it was not to be had."""
        ...

    def release(self) -> None:
        """Give it back.

        Raises:
            RuntimeError: the caller's thread does not have it.
        """
        ...

    def __enter__(self) -> bool: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...


class Condition(Protocol):
    """Waiting for a change, with its lock held."""

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock up until notified; False when ``timeout`` seconds passed."""
        ...

    def notify_all(self) -> None:
        """Wake everyone who waits."""
        ...


class Sync(Protocol):
    """The threading primitives of one device's runtime."""

    @property
    def thread_id(self) -> Callable[[], int]:
        """Returns the caller's identity, never 0."""
        ...

    @property
    def now_ns(self) -> Callable[[], int]:
        """Returns a monotonic clock, nanoseconds."""
        ...

    @property
    def point(self) -> Callable[[str], None] | None:
        """Called with a name at each linearization point, with no lock held; None when nobody schedules."""
        ...

    def lock(self) -> Lock:
        """A new lock."""
        ...

    def held(self, lock: Lock) -> Callable[[], bool]:
        """Returns whether the caller's thread has ``lock``, which was made here."""
        ...

    def condition(self, lock: Lock) -> Condition:
        """A new condition over a lock made here."""
        ...


class ThreadingSync:
    """The default: `threading` and the monotonic clock."""

    thread_id = staticmethod(threading.get_ident)
    now_ns = staticmethod(time.monotonic_ns)
    point: Callable[[str], None] | None = None

    def lock(self) -> Lock:
        """A `threading.RLock`: of the primitives written in C, the one that knows who has it."""
        return threading.RLock()

    def held(self, lock: Lock) -> Callable[[], bool]:
        """As `Sync.held`."""
        return lock._is_owned  # type: ignore[attr-defined, no-any-return]  # what `threading.Condition` asks, too

    def condition(self, lock: Lock) -> Condition:
        """A condition over a lock made here."""
        return threading.Condition(lock)  # type: ignore[arg-type]  # typeshed wants its own lock type


THREADING = ThreadingSync()
"""One default for all, so that managers of one device agree on it."""
