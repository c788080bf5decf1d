"""What a component's routine has captured, rehearsed or only made: the component door on top of `Transaction.capture_entry`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Hashable
from typing import TYPE_CHECKING

from cgstate.backends.undo import UndoLog
from cgstate.errors import ConfigError
from cgstate.nested import hiding
from cgstate.routine import BucketedRoutine
from cgstate.runtime.capture import Rehearsal, rehearse
from cgstate.runtime.pinned import by_input
from cgstate.runtime.statics import Statics

if TYPE_CHECKING:
    from cgstate.breaks import Body
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
        return _work(entry.component, descriptor, lambda: entry.buffers, warmup=warmup)

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


def _work(record: ComponentRecord, descriptor: Hashable, buffers: Callable[[], object], *, warmup: bool) -> Callable[[], object]:
    """The routine's work on its buffers; while warming up, its output is looked at before anything is recorded.

    ``buffers`` are asked for each time: what the work raises must not keep them alive.
    """
    routine, tensor = record.routine, record.manager.backend.tensor
    assert routine is not None
    tensors = (tensor, getattr(sys.modules.get("torch"), "Tensor", tensor))  # the simulator runs both kinds

    def work() -> object:
        return routine.forward_for_capture(descriptor, buffers())

    def checked(output: object) -> object:
        kind = hiding(output, tensors)
        if kind is not None:
            raise ConfigError(
                f"the output of {record.name}[{descriptor!r}] has tensors inside an object of class {kind.__qualname__}: nobody "
                "could clone or trim them. Return tuples, lists, dicts or dataclasses, register the class with torch's pytree, "
                "or override output_after_replay"
            )
        return output

    def look() -> object:
        output = work()
        return _checked_body(output, checked) if isinstance(output, Generator) else checked(output)

    own = getattr(routine.output_after_replay, "__func__", None) is not BucketedRoutine.output_after_replay
    return work if own or not warmup else look


def _checked_body(body: Body, checked: Callable[[object], object]) -> Body:
    return checked((yield from body))


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
        return _work(record, descriptor, lambda: buffers, warmup=warmup)

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
