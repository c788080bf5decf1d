"""What a component's routine has captured, rehearsed or only made: the component door on top of `Transaction.capture_entry`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from cgstate.backends.undo import UndoLog
from cgstate.runtime.capture import Rehearsal, rehearse
from cgstate.runtime.pinned import by_input
from cgstate.runtime.statics import Statics

if TYPE_CHECKING:
    from cgstate.runtime.capture import Attempt, Recording
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import AnyRoutine, ComponentRecord
    from cgstate.runtime.transaction import Transaction


def statics_of(record: ComponentRecord, descriptor: Hashable) -> Statics:
    """Make the static inputs of one graph, only to know what they take."""
    routine = record.routine
    assert routine is not None
    buffers = routine.allocate_buffers(descriptor)
    return Statics(buffers, tuple(routine.pinned_inputs(descriptor, buffers)) if routine.pinned else ())


def capture_by_routine(transaction: Transaction, entry: Entry, routine: AnyRoutine) -> Recording:
    """Allocate the buffers, then warm up and record the routine's forward on them.

    Raises:
        Exception: as `Transaction.capture`.
    """
    entry = transaction.resolve(entry)
    descriptor = entry.descriptor

    def allocate() -> object:
        return routine.allocate_buffers(descriptor)

    def make(warmup: bool) -> Callable[[], object]:
        routine.prepare_for_capture(descriptor, entry.buffers)
        return lambda: routine.forward_for_capture(descriptor, entry.buffers)

    def after() -> None:
        if entry.buffers is not None:
            routine.after_capture(descriptor, entry.buffers)

    return transaction.capture_entry(
        entry,
        make,
        pinned=by_input(routine, entry),
        allocate=allocate,
        inside=lambda: routine.capture_context(descriptor, entry.buffers),
        after=after,
    )


def rehearse_by_routine(attempt: Attempt, record: ComponentRecord, descriptor: Hashable, undo: UndoLog) -> Rehearsal:
    """Do what `capture_by_routine` does, but record nothing; ``undo`` as for `rehearse`.

    Raises:
        BaseException: what the routine raised.
    """
    routine = record.routine
    assert routine is not None
    with attempt.backend.on_stream(attempt.stream), attempt.backend.allocating_mode():
        buffers = routine.allocate_buffers(descriptor)

    def make(warmup: bool) -> Callable[[], object]:
        routine.prepare_for_capture(descriptor, buffers)
        return lambda: routine.forward_for_capture(descriptor, buffers)

    after = UndoLog()
    if buffers is not None:
        after.always("after_capture", lambda: routine.after_capture(descriptor, buffers))
    try:
        rehearsal = rehearse(attempt, make, routine.capture_context(descriptor, buffers), undo)
        after.succeed()
    except BaseException:
        after.fail()
        raise
    return rehearsal
