"""Captures an entry by its component's routine: the component door on top of `Transaction.capture_entry`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from cgstate.runtime.pinned import by_input
from cgstate.runtime.statics import Statics

if TYPE_CHECKING:
    from cgstate.runtime.capture import Recording
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
