"""Leases and turns: who may replay an entry, and whose call has the pool.

A *lease* keeps an entry from being destroyed; it may be held for long. A *turn* orders the static-input write, the replay and the
clone of one call against every other call into the pool (I5); it covers just these and is never held by an idle lease.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from cgstate.errors import CaptureActive, IllegalTransition, ManagerClosed, ManagerPoisoned, OutputExpired
from cgstate.lifecycle.states import FailureKind, ManagerState
from cgstate.lifecycle.steps import (
    EntryState_BOUND,
    EntryState_EVICTED,
    EntryState_FAILED,
    EntryState_REPLAYING,
    lend,
    take_back,
)

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry


class Lease:
    """A lease on one entry, as a context manager. Not re-entrant; may be entered again after it ended."""

    __slots__ = ("_seen", "entry", "thread")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.thread = 0
        self._seen = -1

    def __enter__(self) -> Self:
        entry = self.entry
        books = entry.manager
        if self.thread:
            raise IllegalTransition("entry", entry.name, entry.state, "acquire", "this lease is not held already")
        thread = books.thread_id()
        entry.take_lock()
        try:
            if not (entry.fast and entry.gate.free and lend(entry, entry.component)):
                acquire(entry, thread)
            self.thread = thread
            books.held_leases.add(self)
        finally:
            entry.give_lock()
        return self

    def replay(self) -> None:
        """Replay on the current stream, in the pool's turn.

        Raises:
            IllegalTransition: the lease ended; or the entry turned retiring or failed, so that its output is not to be trusted.
            Exception: what the launch raised. The lease is over then.
        """
        entry = self.entry
        if not self.thread:
            raise IllegalTransition("entry", entry.name, entry.state, "replay", "the lease is held")
        launch_in_turn(entry, entry.manager.thread_id(), self)
        self._seen = entry.pool.replays

    @property
    def output(self) -> object:
        """The static output of the last replay under this lease.

        Raises:
            OutputExpired: there was no replay yet, the lease is over, the entry is retiring, or its pool replayed since.
        """
        entry = self.entry
        if not self.thread or entry.retiring or self._seen != entry.pool.replays:
            raise OutputExpired(f"the output of {entry.name} expired; copy it before the next replay of its pool")
        return entry.output

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.thread:  # a failed launch has ended the lease already
            entry = self.entry
            books = entry.manager
            entry.take_lock()
            try:
                self.thread = 0
                books.held_leases.discard(self)
                release(entry)
            finally:
                entry.give_lock()
            if books.unsettled:
                books.settle()

    def over(self) -> None:
        """Mark the lease as ended; the lock is held."""
        self.thread = 0
        self.entry.manager.held_leases.discard(self)


def acquire(entry: Entry, thread: int) -> None:
    """Take a lease, with the lock held; waits for another thread's capture unless the component may overlap it.

    Raises:
        IllegalTransition: refused; nothing changed.
    """
    capturing = False
    if not entry.fast:
        entry.manager.check_thread(thread)
    if not entry.gate.free:
        capturing = _await_gate(entry, thread)
    try:
        entry.acquire(stream_capturing=capturing)
    except IllegalTransition as refusal:
        raise sharpen(entry, refusal) from None
    component = entry.component
    if component.state is EntryState_BOUND:
        component.first_lease()


def _await_gate(entry: Entry, thread: int) -> bool:
    """A capture is open on the device: whether it is the caller's own stream's; else wait, unless replays may overlap it."""
    gate = entry.gate
    if entry.manager.backend.capturing() or gate.holder == thread:
        return True  # also while this thread warms up: the work must run as it will when it is recorded
    while not entry.component.overlaps_capture and gate.blocks_calls(thread):
        gate.wait()
    return False


def sharpen(entry: Entry, refusal: IllegalTransition) -> IllegalTransition:
    """Give a refusal the manager's own reason, where that is the cause."""
    match entry.manager.state:
        case ManagerState.CLOSED:
            kind: type[IllegalTransition] = ManagerClosed
        case ManagerState.POISONED:
            kind = ManagerPoisoned
        case _:
            return refusal
    return kind(refusal.machine, refusal.entity, refusal.state, refusal.event, f"the manager is not {entry.manager.state}")


def release(entry: Entry) -> None:
    """Give a lease back, with the lock held. The caller settles the reclaimer afterwards, without the lock."""
    if entry.fast and take_back(entry, entry.component):
        if entry.gate.waiting:
            entry.gate.changed.notify_all()
        return
    entry.release()
    ended(entry)


def ended(entry: Entry) -> None:
    """What the end of a lease may bring about: retirement, the component's move, a waiting close."""
    state = entry.state
    if state is EntryState_EVICTED or state is EntryState_FAILED:
        entry.manager.retire_recording(entry)
    component = entry.component
    if not component.leased and component.state is EntryState_REPLAYING:
        component.last_release()
    gate = entry.gate
    if gate.waiting:
        gate.changed.notify_all()


def take_turn(entry: Entry, thread: int) -> None:
    """Wait for the pool's turn and order the current stream after the pool's last work, with the lock held.

    Raises:
        CaptureActive: this thread has the turn already, or the last stream cannot be marked; the turn is not taken.
    """
    turn = entry.turn
    gate = entry.gate
    random = gate.random if entry.uses_random else turn
    while turn.owner or random.owner:
        if thread in (turn.owner, random.owner):
            raise CaptureActive("pool", turn.name, entry.pool.state, "replay", "this thread is not inside a call into the pool")
        gate.wait()
    handle = entry.current_handle()
    if handle != turn.last_handle:
        turn.follow(handle, entry.manager.backend)
    if random is not turn:
        if handle != random.last_handle:
            random.follow(handle, entry.manager.backend)
        random.owner = thread
    turn.owner = thread
    audit = entry.manager.audit
    if audit is not None:
        audit.turn_taken(turn, thread, handle)


def end_turn(entry: Entry) -> None:
    """Give the turn back, with the lock held."""
    audit = entry.manager.audit
    if audit is not None:
        audit.turn_ended(entry.turn)
    entry.turn.owner = 0
    gate = entry.gate
    if entry.uses_random:
        gate.random.owner = 0
    if gate.waiting:
        gate.changed.notify_all()


def launch_in_turn(entry: Entry, thread: int, lease: Lease) -> None:
    """Launch a leased entry in the pool's turn."""
    with entry.gate.lock:
        if entry.retiring or entry.failed:
            guard = "not retiring" if entry.retiring else "not failed"
            raise IllegalTransition("entry", entry.name, entry.state, "replay", guard)
        take_turn(entry, thread)
    point = entry.manager.sync.point
    if point is not None:
        point("launch")
    try:
        entry.launch()
    except BaseException as error:
        with entry.gate.lock:
            end_turn(entry)
            lease.over()
            launch_raised(entry, error)
        entry.manager.settle()
        raise
    with entry.gate.lock:
        entry.pool.replays += 1
        entry.hits += 1
        end_turn(entry)


def replay(entry: Entry) -> None:
    """`Entry.replay` the long way: a lease of its own around one launch in the turn."""
    with Lease(entry) as lease:
        lease.replay()


def launch_failed(entry: Entry, error: BaseException) -> None:
    """The launch of the hot path raised: make the lease visible that it was too short to show. The lock is held."""
    entry.acquire(stream_capturing=False)
    component = entry.component
    if component.state is EntryState_BOUND:
        component.first_lease()
    launch_raised(entry, error)


def launch_raised(entry: Entry, error: BaseException) -> None:
    """A leased entry's launch raised: that is the lease's release, and the entry's failure. The lock is held."""
    entry.replay_fail()
    books = entry.manager
    kind = books.backend.failure_kind(error)
    books.note_failure(entry, kind or FailureKind.USER, error)
    ended(entry)
    if kind is FailureKind.DEVICE:
        books.lose_device()
