"""A lease as users hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgstate.errors import IllegalTransition, OutputExpired
from cgstate.runtime import hotpath, leasing

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry


class Lease:
    """A lease on one entry, as a context manager. Not re-entrant; may be entered again after it ended.

    Where the manager belongs to a thread, entering, replaying, reading and ending raise `WrongThread` in any other, and nothing
    changes: the lease stays held until its thread ends it.

    Attributes:
        entry: The leased entry.
        thread: Thread that holds it; 0 when nobody.
        seen: Token of this lease's last replay; None before it.
    """

    __slots__ = ("entry", "seen", "thread")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.thread = 0
        self.seen: object = None

    __enter__ = hotpath.begin_lease
    __exit__ = hotpath.end_lease

    def replay(self) -> None:
        """Replay on the current stream, in the pool's turn.

        Raises:
            WrongThread: the manager belongs to another thread.
            IllegalTransition: the lease ended; or the entry turned retiring or failed, so that its output is not to be trusted.
            Exception: what the launch raised. The lease is over then.
        """
        entry = self.entry
        if not entry.fast:
            leasing.check_thread(entry)
        if not self.thread:
            raise IllegalTransition("entry", entry.name, entry.state, "replay", "the lease is held")
        leasing.launch_in_turn(entry, entry.manager.thread_id(), self)

    @property
    def output(self) -> object:
        """The static output of the last replay under this lease.

        Raises:
            WrongThread: the manager belongs to another thread.
            OutputExpired: there was no replay yet, the lease is over, the entry is retiring, or its pool replayed since.
        """
        entry = self.entry
        if not entry.fast:
            leasing.check_thread(entry)
        if not self.thread:
            raise OutputExpired(f"this lease on {entry.name} is over, or has not begun")
        if self.seen is None:
            raise OutputExpired(f"nothing was replayed under this lease on {entry.name} yet")
        if entry.retiring:
            raise OutputExpired(f"{entry.name} was retired under this lease; take the output, or a copy, before an eviction")
        if self.seen is not entry.turn.latest:
            raise OutputExpired(f"the output of {entry.name} expired; copy it before the next replay of its pool")
        return entry.output

    def end(self) -> None:
        """Give it back, with the lock held; may be said again. The caller settles afterwards, without the lock."""
        if self.thread:
            self.release()
        self.entry.manager.held_leases.discard(self)
        leasing.ended(self.entry)

    def launched(self) -> None:
        """This lease's replay was the pool's last one; the lock is held."""
        self.seen = object()
        self.entry.turn.lend(self.seen)

    def hold(self) -> None:
        """A lease on the entry was taken for this thread, and is this one from now on; the lock is held."""
        self.thread = self.entry.turn.owner

    def release(self) -> None:
        """The lease and its mark end in one moment; the lock is held."""
        self.entry.release()
        self.thread = 0

    def fail(self) -> None:
        """`release`, as the launch raised; the lock is held."""
        self.entry.replay_fail()
        self.thread = 0
