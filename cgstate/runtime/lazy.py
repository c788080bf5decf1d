"""Lazy capture: what a miss may do about itself.

A component call never waits for others in order to capture: if the manager, the gate or another thread is in the way, the answer is
eager and counted. It may flush what was retired to make room (`cgstate.runtime.room`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, assert_never

from cgstate.errors import CaptureFailed, IllegalTransition, ManagerPoisoned, describe
from cgstate.lifecycle.states import EntryState, FailureKind, ManagerState
from cgstate.runtime.capturing import GateBusy
from cgstate.runtime.failure import Failure
from cgstate.runtime.record import check_descriptor
from cgstate.runtime.room import make_bytes, make_place, may_fit
from cgstate.runtime.routines import capture_by_routine
from cgstate.runtime.stats import Fallback
from cgstate.runtime.transaction import Transaction, TransactionKind
from cgstate.runtime.vote import Ballot

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import AnyRoutine, ComponentRecord

USABLE = frozenset({EntryState.BOUND, EntryState.REPLAYING})


def capture_on_miss(
    record: ComponentRecord,
    routine: AnyRoutine,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    runtime_key: Hashable,
) -> Entry | Fallback:
    """The entry to use after all, or why the call is answered eagerly.

    Raises:
        Exception: what the routine itself raised while capturing.
        ManagerPoisoned: the device was lost while capturing.
    """
    books = record.manager
    refused = _shut(record)
    if refused is not None:
        return refused
    descriptor = _wanted(record, routine, args, kwargs, runtime_key)
    if descriptor is None:
        return Fallback.miss
    refused = _examine(record, routine, descriptor)
    if refused is not None:
        return refused
    thread = books.thread_id()
    mine = False
    try:
        with books.gate.lock:
            entry = record.entries.get(descriptor)
            if entry is not None and entry.state in USABLE:
                return entry  # another thread was faster
            refused = _shut(record)
            if refused is not None:
                return refused  # another thread has released the manager, or closed it
            gate = books.gate
            if not record.resident:
                return Fallback.unavailable  # eager is refused as well then
            if not gate.free or gate.blocks_capture(thread) or gate.pending or books.profile_of_another(thread) is not None:
                return Fallback.capture_busy
            if not books.try_exclusive(thread):
                return Fallback.capture_busy
            mine = True
        return _capture(record, routine, descriptor)
    finally:
        if mine:
            books.busy = 0  # before anything is called
            books.left()


def _shut(record: ComponentRecord) -> Fallback | None:
    """Why no miss of the component captures as manager and component are now; None if one may."""
    books = record.manager
    if not books.serving:
        return Fallback.closed if books.state is ManagerState.CLOSED else Fallback.not_serving
    if not record.allows_lazy:
        return Fallback.miss
    if record.state in (EntryState.FAILED, EntryState.CAPTURING, EntryState.EAGER):
        return Fallback.blocked  # its startup capture is still owed; an explicit capture brings it back
    return None


def _wanted(
    record: ComponentRecord,
    routine: AnyRoutine,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    runtime_key: Hashable,
) -> Hashable | None:
    """A declared descriptor that is not bound now and serves the call, else one that the routine makes."""
    if not record.declared <= record.available:
        declared = routine.resolve_runtime(args, kwargs, record.declared).descriptor
        if declared is not None:
            return declared  # type: ignore[no-any-return]  # the routine's own descriptor type
    return routine.make_lazy_descriptor(runtime_key)


def _examine(record: ComponentRecord, routine: AnyRoutine, descriptor: Hashable) -> Fallback | None:
    """Whether an attempt makes sense at all."""
    books = record.manager
    check_descriptor(record.component_id, descriptor)
    with books.gate.lock:
        if books.blocked(record, descriptor, explicit=False):
            return Fallback.blocked
    try:
        routine.validate_descriptor(descriptor)
    except Exception as error:
        with books.gate.lock:
            record.counters.failures[FailureKind.REJECTED] += 1
            failure = Failure(FailureKind.REJECTED, describe(error), books.reclaimer.reclaims)
            books.negative.remember(record.component_id, descriptor, failure)
        return Fallback.rejected
    with books.gate.lock:
        if not record.admission.admits(descriptor):
            return Fallback.not_admitted
    if not may_fit(record, descriptor):
        return Fallback.budget
    if record.collective and not books.vote.agree(Ballot.capture, record.component_id, descriptor):
        return Fallback.vote
    return None


def _capture(record: ComponentRecord, routine: AnyRoutine, descriptor: Hashable) -> Entry | Fallback:
    """Make room, capture, bind; the manager is ours."""
    books = record.manager
    refused = make_place(record, descriptor) or make_bytes(record, descriptor)
    if refused is not None:
        return refused
    transaction = Transaction(books, TransactionKind.lazy)
    try:
        with books.gate.lock:
            entry = books.wanted = record.entry(descriptor)
        capture_by_routine(transaction, entry, routine)
        transaction.commit()
        with books.gate.lock:
            record.admission.captured(descriptor)
            entry.counted = entry.hits
            entry.last_used = books.clock  # before its first replay it is no older than the others
        return entry
    except GateBusy:
        return Fallback.capture_busy
    except CaptureFailed as failure:
        return _answer(record, failure)
    except IllegalTransition:
        return Fallback.vote if transaction.outvoted else Fallback.unavailable  # the world moved on between begin and commit
    finally:
        try:
            _leave(record, transaction, descriptor)
        except Exception:
            raise
        except BaseException:  # an interrupt
            _leave(record, transaction, descriptor)
            raise


def _leave(record: ComponentRecord, transaction: Transaction, descriptor: Hashable) -> None:
    """Whatever became of it: nothing of the capture is open, or left where it was not bound. May be said again."""
    books = record.manager
    try:
        transaction.abort()
    finally:
        with books.gate.lock:
            books.wanted = None
            entry = record.entries.get(descriptor)
            if entry is not None and entry.state is EntryState.EAGER and not entry.startup and not entry.unreclaimed:
                record.drop(entry)
    if entry is None or entry.state not in USABLE:
        books.reclaimer.settle()
        books.reclaimer.drop_pools()


def _answer(record: ComponentRecord, failure: CaptureFailed) -> Fallback:
    """What a failed lazy capture means to the call."""
    match FailureKind(failure.kind):
        case FailureKind.USER:
            raise failure.__cause__ or failure
        case FailureKind.DEVICE:
            manager = record.manager
            raise ManagerPoisoned("manager", manager.name, manager.state, "call", "the device is not lost") from failure.__cause__
        case FailureKind.REJECTED:
            return Fallback.rejected
        case FailureKind.OOM:
            return Fallback.oom
        case FailureKind.FOREIGN:
            return Fallback.foreign
        case FailureKind.BUDGET:
            return Fallback.budget
        case other:
            assert_never(other)
