"""Outputs handed out without a copy: they know when they are not theirs any more."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

from cgstate.errors import CaptureActive, OutputExpired
from cgstate.runtime import leasing
from cgstate.runtime.lease import Lease

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry

R = TypeVar("R")
log = logging.getLogger("cgstate")


class LeasedOutput(Generic[R]):
    """The static output of a graph, under a lease.

    Read it with `value` before the next replay of any entry of its pool, or take a copy with `copy`; then `release` it, or use it
    as a context manager. Until then its entry cannot be destroyed. An eager answer is wrapped as well, and never expires.

    Where the manager belongs to a thread, only that one reads, copies or releases it; it may be dropped in any.
    """

    __slots__ = ("_entry", "_lease", "_seen", "_value")

    def __init__(self, value: R, entry: Entry | None, lease: Lease | None) -> None:
        self._value: R | None = value
        self._entry = entry
        self._lease = lease
        self._seen = object()
        if entry is not None:
            entry.turn.lend(self._seen)

    @classmethod
    def own(cls, value: object) -> LeasedOutput[object]:
        """Wrap an eager answer."""
        return LeasedOutput(value, None, None)

    @classmethod
    def of(cls, value: object, entry: Entry, thread: int) -> LeasedOutput[object]:
        """Wrap a static output; the lease of the call that ``thread`` has the turn for becomes this output's, and the turn ends.

        The lock is held.
        """
        lease = Lease(entry)
        output = LeasedOutput(value, entry, lease)
        entry.manager.held_leases.add(lease)
        leasing.end_turn(entry, thread, lease.hold)
        return output

    @property
    def expired(self) -> bool:
        """Whether the memory may hold something else by now."""
        entry = self._entry
        if entry is None:
            return False
        return self._lease is None or not self._lease.thread or entry.retiring or entry.turn.latest is not self._seen

    @property
    def value(self) -> R:
        """The output itself, on the stream it was computed on.

        Raises:
            WrongThread: the manager belongs to another thread.
            OutputExpired: another replay of its pool came, its entry is retiring, or it was released.
        """
        entry = self._entry
        if entry is not None:
            if not entry.fast:
                leasing.check_thread(entry)
            if self.expired:
                if entry.retiring and self._lease is not None:
                    raise OutputExpired(
                        f"{entry.name} was retired under this lease; take the output, or a copy, before an eviction"
                    )
                raise OutputExpired(
                    f"the output of {entry.name} expired; copy it before the next replay of its pool, or clone outputs"
                )
        return cast(R, self._value)

    def copy(self) -> R:
        """A copy of your own, made on the current stream; replays of the pool wait for it. Does not release.

        Raises:
            WrongThread, OutputExpired: as `value`.
            CaptureActive: the current stream, or this thread, is capturing: a copy made there would run at each replay.
        """
        entry = self._entry
        if entry is None or self.expired:
            return self.value
        backend = entry.manager.backend
        thread = entry.manager.thread_id()
        entry.manager.check_thread(thread)
        entry.gate.refuse_reentry()
        taken = False
        try:
            with entry.gate.lock:
                if backend.capturing() or (not entry.gate.free and entry.gate.holder == thread):
                    raise CaptureActive("entry", entry.name, entry.state, "copy", "caller's stream not capturing")
                leasing.take_turn(entry, thread, exclusive=False)
                taken = True
            copy = backend.clone(self.value)
            with entry.gate.lock:
                leasing.end_turn(entry, thread)
        except BaseException:
            if taken:
                with entry.gate.lock:
                    leasing.end_turn(entry, thread)
            raise
        return copy

    def release(self) -> None:
        """End the lease. Idempotent.

        Raises:
            WrongThread: the manager belongs to another thread; nothing was changed.
        """
        lease = self._lease
        if lease is not None and not lease.entry.fast:
            leasing.check_thread(lease.entry)
        self._value = None if self._entry is not None else self._value
        if lease is not None:
            lease.__exit__(None, None, None)
            self._lease = None  # last: until it is over, it can be ended again

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None:  # may run anywhere, under the device's lock too: whoever comes next ends the lease
            name = lease.entry.manager.name
            log.warning("%s: a leased output of %s was dropped without release", name, lease.entry.name)
            gate = lease.entry.gate
            gate.dropped.append(lease.end)
            lease.entry.manager.unsettled = True
            if gate.waiting and not gate.held() and gate.lock.acquire(blocking=False):
                gate.notify()
                gate.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        lease = self._lease
        if lease is not None and error is not None:
            lease.__exit__(kind, error, trace)  # which is told: what an observer raises must not hide it
        self.release()
