"""Threads that a run plays by itself: one at a time, each only as far as a step goes.

The runtime asks its `Sync` who is calling, so a lease can be taken by one thread and be in the way of another without a second real
thread. Whoever would have to wait learns at once that time has passed; who would wait for ever has found a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from weakref import WeakValueDictionary

__all__ = ["PlayedSync", "WaitsForEver", "sync_of"]


class WaitsForEver(AssertionError):
    """A step waits without a time limit for something that no other thread will do."""


class PlayedSync:
    """`cgstate.runtime.sync.Sync` for one real thread.

    Attributes:
        thread: Who calls now, from 1.
        now: The clock, nanoseconds; waiting moves it.
        point: Nobody schedules.
        meanwhile: What another thread does while one waits; None: nothing.
    """

    point: Callable[[str], None] | None = None

    def __init__(self) -> None:
        self.thread = 1
        self.now = 0
        self.meanwhile: Callable[[], None] | None = None

    @property
    def thread_id(self) -> Callable[[], int]:
        """As `Sync.thread_id`."""
        return lambda: self.thread

    @property
    def now_ns(self) -> Callable[[], int]:
        """As `Sync.now_ns`; each look takes a microsecond."""
        return self._tick

    def _tick(self) -> int:
        self.now += 1000
        return self.now

    def as_thread(self, thread: int) -> AbstractContextManager[None]:
        """Let the block be called by another thread."""
        return _AsThread(self, thread)

    @contextmanager
    def while_waiting(self, act: Callable[[], None]) -> Iterator[None]:
        """Let another thread do ``act``, once, when the block has to wait."""
        self.meanwhile = act
        try:
            yield
        finally:
            self.meanwhile = None

    def lock(self) -> PlayedLock:
        """As `Sync.lock`."""
        return PlayedLock()

    def held(self, lock: object) -> Callable[[], bool]:
        """As `Sync.held`."""
        assert isinstance(lock, PlayedLock)
        return lock.owned

    def condition(self, lock: object) -> PlayedCondition:
        """As `Sync.condition`."""
        return PlayedCondition(self, lock)


class _AsThread:
    """Another thread calls, for a block; a generator would take several times as long, and every call is made in one."""

    __slots__ = ("_before", "_sync", "_thread")

    def __init__(self, sync: PlayedSync, thread: int) -> None:
        self._sync = sync
        self._thread = thread

    def __enter__(self) -> None:
        self._before, self._sync.thread = self._sync.thread, self._thread

    def __exit__(self, *_: object) -> None:
        self._sync.thread = self._before


_syncs: WeakValueDictionary[str, PlayedSync] = WeakValueDictionary()


def sync_of(device: str) -> PlayedSync:
    """The sync of all runs that play on ``device``.

    The managers of a device share one, and what a run leaves to the garbage collector still counts among them.
    """
    sync = _syncs.get(device)
    if sync is None:
        sync = _syncs[device] = PlayedSync()
    return sync


class PlayedLock:
    """A lock that only one thread ever wants: taking it twice is a deadlock."""

    def __init__(self) -> None:
        self.held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `Lock.acquire`."""
        if self.held:
            if blocking and timeout < 0:
                raise WaitsForEver("a thread takes the device's lock that it has already")
            return False
        self.held = True
        return True

    def owned(self) -> bool:
        """Whether it is taken, by the one thread that there is."""
        return self.held

    def release(self) -> None:
        """As `Lock.release`."""
        if not self.held:
            raise RuntimeError("the device's lock is given back by a thread that has not taken it")
        self.held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class PlayedCondition:
    """A condition whose wait ends when its time is over."""

    def __init__(self, sync: PlayedSync, lock: object) -> None:
        self._sync = sync
        self._lock = lock

    def wait(self, timeout: float | None = None) -> bool:
        """As `Condition.wait`."""
        sync, lock = self._sync, self._lock
        act, sync.meanwhile = sync.meanwhile, None
        if act is not None:
            assert isinstance(lock, PlayedLock)
            lock.release()
            try:
                act()
            finally:
                lock.acquire()
            return True
        if timeout is None:
            raise WaitsForEver("nobody will end what a thread waits for")
        sync.now += int(timeout * 1e9) + 1
        return False

    def notify_all(self) -> None:
        """As `Condition.notify_all`."""
