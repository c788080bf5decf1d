"""The acts behind leases and turns: who may replay an entry, and whose call has the pool.

A *lease* keeps an entry from being destroyed; it may be held for long. A *turn* orders the static-input write, the replay and the
clone of one call against every other call into the pool (I5); it covers just these and is never held by an idle lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cgstate.errors import CaptureActive, IllegalTransition, ManagerClosed, ManagerPoisoned, NotResident
from cgstate.lifecycle.states import FailureKind, ManagerState, PoolState
from cgstate.lifecycle.steps import (
    EntryState_BOUND,
    EntryState_EVICTED,
    EntryState_FAILED,
    EntryState_REPLAYING,
)
from cgstate.runtime import pinned, residency
from cgstate.runtime.segments import Segments

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.lease import Lease


def held_already(lease: Lease) -> IllegalTransition:
    """The refusal of a lease that is held to be taken again.

    Raises:
        WrongThread: not by this thread at all.
    """
    entry = lease.entry
    check_thread(entry)
    return IllegalTransition("entry", entry.name, entry.state, "acquire", "this lease is not held already")


def check_thread(entry: Entry) -> None:
    """Refuse a foreign thread, before anything else; nobody owns the manager of an entry that is ``fast``.

    Raises:
        WrongThread: as `Books.check_thread`.
    """
    books = entry.manager
    books.check_thread(books.thread_id())


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
        if entry.gate.dropped:
            entry.gate.end_dropped()
            return acquire(entry, thread)
        raise sharpen(entry, refusal) from None
    component = entry.component
    if component.state is EntryState_BOUND:
        try:
            component.first_lease()
        except BaseException:  # an interrupt
            entry.release()
            raise
    if entry.gate.kept:
        hear_taken(entry)


def hear_taken(entry: Entry) -> None:
    """Raise what an observer has raised while a lease was taken, which is nobody's then; the lock is held.

    What it raises at the end of that lease is heard by whoever asked for it.
    """
    try:
        entry.manager.overhear()
    except BaseException:
        let_go(entry)
        raise


def let_go(entry: Entry) -> None:
    """Give a lease back that nobody has seen; the lock is held."""
    entry.release()
    ended(entry)


def _await_gate(entry: Entry, thread: int) -> bool:
    """A capture is open on the device: whether it is the caller's own stream's; else wait, unless replays may overlap it."""
    gate = entry.gate
    if entry.manager.backend.capturing() or gate.holder == thread:
        return True  # also while this thread warms up: the work must run as it will when it is recorded
    while recording(entry, thread) or (not entry.component.overlaps_capture and gate.blocks_calls(thread)):
        gate.wait()
    return False


def recording(entry: Entry, thread: int) -> bool:
    """Whether another thread captures into the entry's pool: its warm-up writes library workspaces there (W1), as replays do."""
    return entry.pool.state is PoolState.RECORDING and entry.gate.holder != thread


def sharpen(entry: Entry, refusal: IllegalTransition) -> IllegalTransition:
    """Give a refusal the manager's own reason, where that is the cause, and the names of what is not resident."""
    if isinstance(refusal, NotResident):
        return residency.refusal(entry.component, refusal.machine, refusal.entity, refusal.state, refusal.event)
    match entry.manager.state:
        case ManagerState.CLOSED:
            kind: type[IllegalTransition] = ManagerClosed
        case ManagerState.POISONED:
            kind = ManagerPoisoned
        case _:
            return refusal
    return kind(refusal.machine, refusal.entity, refusal.state, refusal.event, f"the manager is not {entry.manager.state}")


def ended(entry: Entry) -> None:
    """What the end of a lease may bring about: retirement, the component's move, a waiting close. Once or twice is the same."""
    state = entry.state
    if state is EntryState_EVICTED or state is EntryState_FAILED:
        entry.manager.retire_recording(entry)
    component = entry.component
    if not component.leased and component.state is EntryState_REPLAYING:
        component.last_release()
    gate = entry.gate
    if gate.waiting:
        gate.changed.notify_all()


def take_turn(entry: Entry, thread: int, *, exclusive: bool) -> None:
    """Wait for the pool's turn and take it, with the lock held; ``exclusive``: other threads' captures are kept out meanwhile.

    Raises:
        CaptureActive: as `await_turn`; the turn is not taken.
    """
    await_turn(entry, thread)
    have_turn(entry, thread, exclusive=exclusive)


def await_turn(entry: Entry, thread: int) -> None:
    """Wait for the pool's turn and order the current stream after the pool's last work, with the lock held.

    Raises:
        CaptureActive: this thread has the turn already, or waiting would never end, or the last stream cannot be marked.
    """
    turn = entry.turn
    gate = entry.gate
    random = gate.random if entry.uses_random else turn
    while turn.owner or random.owner or recording(entry, thread):
        owner = in_the_way(entry, thread)
        if not owner and not recording(entry, thread):
            break  # it is this thread's own, and waits in a break
        if not owner:
            gate.wait()
        elif not gate.wait_for(thread, owner):
            raise CaptureActive("pool", turn.name, entry.pool.state, "replay", "this thread is not inside a call into the pool")
    handle = entry.current_handle(entry.index)
    if handle != turn.last_handle:
        turn.follow(handle, entry.manager.backend)
    if random is not turn and handle != random.last_handle:
        random.follow(handle, entry.manager.backend)


def have_turn(entry: Entry, thread: int, *, exclusive: bool) -> None:
    """Take the turns that `await_turn` has waited for, all or none of them; the lock was held ever since."""
    turn = entry.turn
    also = entry.gate.random if entry.uses_random else None
    turn.take(thread, also, exclusive=exclusive)
    audit = entry.manager.audit
    if audit is not None:
        try:
            audit.turn_taken(turn, thread, turn.last_handle)
        except BaseException:
            turn.give(also, None)
            raise


def in_the_way(entry: Entry, thread: int) -> int:
    """The thread whose call keeps a call of ``thread`` out of the turns it needs: that thread itself, first; 0: nobody's.

    A thread's own call lets in, while it waits in an eager break, what was declared to replay there; and what draws random
    numbers, as far as only these are concerned: on one stream they come in order.
    """
    wanted = [(entry.turn, entry.component.inside)]
    if entry.uses_random:
        wanted.append((entry.gate.random, entry.gate.random.breaking))
    handle = entry.current_handle(entry.index)
    owners = [turn.owner for turn, inside in wanted if turn.owner and not turn.lets_in(thread, handle, inside)]
    return thread if thread in owners else next(iter(owners), 0)


def in_break(entry: Entry) -> bool:
    """Whether the call that has the turn is in an eager break of ``entry``: what is raised then is the routine's own error."""
    return entry.turn.breaking is entry.component


def end_turn(entry: Entry, thread: int, step: Callable[[], None] | None = None) -> bool:
    """Give the turn back if a call of ``thread`` into the entry has it, and take ``step`` with it; the lock is held.

    Returns:
        Whether it had. Else nothing was done: whoever was interrupted while it ended its call may say it again.
    """
    turn, gate = entry.turn, entry.gate
    had = turn.answers(thread, entry.component)
    if had:
        turn.give(gate.random if entry.uses_random else None, step)
    if gate.waiting:
        gate.changed.notify_all()
    audit = entry.manager.audit
    if had and audit is not None:
        audit.turn_ended(turn)
    return had


def end_call(entry: Entry, thread: int) -> None:
    """Give turn and lease of a call back; only what was left if that was broken off before. The lock is held."""
    end_turn(entry, thread, entry.release)
    ended(entry)


def fail_call(entry: Entry, thread: int, error: BaseException) -> None:
    """The launch of a call raised: that is its lease's release, and the entry's failure. The lock is held."""
    if end_turn(entry, thread, entry.replay_fail):
        note_launch(entry, error)
    ended(entry)


def launch_in_turn(entry: Entry, thread: int, lease: Lease) -> None:
    """Launch a leased entry in the pool's turn."""
    gate, books = entry.gate, entry.manager
    gate.refuse_reentry()
    launching: bool | None = None  # the turn is not taken yet
    try:
        with gate.lock:
            _take_turn_of_lease(entry, thread)
            launching = False
        if entry.baked.pins:
            pinned.check(entry)
        entry.turn.latest = None  # what was handed out expires even if the launch raises: it may have begun
        point = books.sync.point
        if point is not None:
            point("launch")
        launching = True
        entry.launch()
        launching = False
        with gate.lock:
            entry.hits += 1
            if entry.component.allows_lazy:
                entry.tick()
            lease.launched()
            end_turn(entry, thread)
    except BaseException as error:
        if launching is not None:
            try:
                _break_off(entry, thread, lease, error, launching=launching)
            except Exception:
                raise
            except BaseException:  # an interrupt came before its end
                _break_off(entry, thread, lease, error, launching=launching)
                raise
        raise


def _break_off(entry: Entry, thread: int, lease: Lease, error: BaseException, *, launching: bool) -> None:
    """Something raised in the turn of a leased replay: only the launch itself fails the entry, and an eager break is none of it."""
    books = entry.manager
    with entry.gate.lock:
        if launching and not in_break(entry):
            if end_turn(entry, thread, lease.fail):
                note_launch(entry, error)
            books.held_leases.discard(lease)
            ended(entry)
        else:
            end_turn(entry, thread)
            books.judge(error)
    if launching:
        books.settle(error)
    else:
        books.hear(error)


def _take_turn_of_lease(entry: Entry, thread: int) -> None:
    """Take the turn for a lease that may be old: the world may have moved on since it was given, and while waiting."""
    gate = entry.gate
    if not gate.free and _await_gate(entry, thread):
        raise CaptureActive("entry", entry.name, entry.state, "replay", "caller's stream not capturing")
    _check_lease(entry)
    excluding = waiting = _keeps_captures_out(entry)
    if waiting:
        gate.enter_call(thread)  # no capture may open before it is launched (fact S2)
    try:
        await_turn(entry, thread)
        _check_lease(entry)
        if waiting:
            gate.leave_call(thread)  # the turn says it from here on
            waiting = False
        have_turn(entry, thread, exclusive=excluding)
    except BaseException as error:
        if waiting:
            gate.leave_call(thread)
            gate.notify()
        entry.manager.judge(error)
        raise


def _keeps_captures_out(entry: Entry) -> bool:
    """Whether a replay must not overlap another thread's capture: it draws random numbers, or has breaks that run eagerly."""
    return entry.uses_random or (isinstance(entry.graph, Segments) and not entry.component.overlaps_capture)


def _check_lease(entry: Entry) -> None:
    """Refuse a replay under a lease that was given before the entry, or the device, went bad."""
    if entry.manager.state is ManagerState.POISONED:
        raise ManagerPoisoned("entry", entry.name, entry.state, "replay", "the manager is not POISONED")
    if entry.retiring or entry.failed:
        guard = "not retiring" if entry.retiring else "not failed"
        raise IllegalTransition("entry", entry.name, entry.state, "replay", guard)


def launch_failed(entry: Entry, error: BaseException) -> None:
    """The launch of the hot path raised: make the lease visible that it was too short to show. The lock is held."""
    try:
        _show_failure(entry, error)
    except Exception:
        raise
    except BaseException:  # an interrupt came before its end
        _show_failure(entry, error)
        raise


def _show_failure(entry: Entry, error: BaseException) -> None:
    """What `launch_failed` does; goes on where an interrupt has broken it off."""
    if entry.state is EntryState_BOUND:
        entry.acquire(stream_capturing=False)
    component = entry.component
    if component.state is EntryState_BOUND:
        component.first_lease()
    if entry.state is EntryState_REPLAYING:
        entry.replay_fail()
    note_launch(entry, error)
    ended(entry)


def note_launch(entry: Entry, error: BaseException) -> None:
    """Remember that a launch raised; the lock is held."""
    books = entry.manager
    kind = books.backend.failure_kind(error)
    if kind is FailureKind.DEVICE:
        books.lose_device()
    books.note_failure(entry, kind or FailureKind.USER, error)
    entry.component.refresh()
