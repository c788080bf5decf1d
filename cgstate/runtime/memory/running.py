"""Capture graphs in a throwaway pool, or run them there unrecorded, and read what the pool holds after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cgstate.errors import CaptureFailed, CGStateError, LiveAcrossBreak, describe
from cgstate.lifecycle.states import FailureKind
from cgstate.runtime.compact import bytes_alone
from cgstate.runtime.failure import clear_frames
from cgstate.runtime.memory.bounds import NEAR, output_at_most
from cgstate.runtime.memory.planning import Plan, Planned, points_of
from cgstate.runtime.memory.scope import Profile, ProfileTransaction, Reading
from cgstate.runtime.routines import capture_by_routine, rehearse_by_routine
from cgstate.runtime.segment_sizes import SMALL_LIMIT

if TYPE_CHECKING:
    from cgstate.backends.base import Backend, MemoryPool, Stream
    from cgstate.backends.undo import UndoLog
    from cgstate.runtime.capture import Attempt, Rehearsal
    from cgstate.runtime.domain import Domain


@dataclass(slots=True)
class Part:
    """One graph that is run, or left out.

    Attributes:
        graph: Which.
        runs: Whether it is run; else a placeholder stands for its output.
        held: Bytes of the placeholder.
    """

    graph: Planned
    runs: bool = True
    held: int = 0

    def once(self, plan: Plan, attempt: Attempt, undo: UndoLog, pool: MemoryPool) -> object:
        """Run it, or hold its output, with memory from ``pool``; what a graph of it would keep."""
        if not self.runs:
            return self.hold(plan, attempt.backend, pool, attempt.stream)
        return rehearse_by_routine(replace(attempt, pool=pool), self.graph.record, self.graph.descriptor, undo).kept

    def hold(self, plan: Plan, backend: Backend, pool: MemoryPool, stream: Stream) -> list[object]:
        """Hold what it will leave lent out, by what others of its component have: in blocks of the kind that theirs are in."""
        known = [graph for graph in plan.graphs if graph.record is self.graph.record and graph.output is not None]
        self.held = left = output_at_most(self.graph.buffers or 0, points_of(known)) if known else 0
        piece = SMALL_LIMIT * backend.mebibyte if all(graph.small for graph in known) else left
        held = []
        while left > 0:
            held.append(backend.hold(pool, stream, min(left, piece)))
            left -= piece
        return held


def sample(profile: Profile, transaction: ProfileTransaction, graph: Planned, domain: Domain) -> None:
    """Capture a graph where ``domain``'s pool would be. What cannot be captured goes into the sample, unless the device is lost."""
    assert graph.record.routine is not None
    entry = profile.entry(graph.record, graph.descriptor, domain)
    try:
        capture_by_routine(transaction, entry, graph.record.routine)
    except (CaptureFailed, LiveAcrossBreak):
        if profile.books.lost:
            raise
    measured = profile.measured[-1]
    graph.after = measured.after
    if measured.sample.error is None:
        graph.has_left(measured.before, measured.after)


def run_parts(
    profile: Profile, transaction: ProfileTransaction, plan: Plan, parts: Sequence[Part], *, warmups: bool = False
) -> Reading | None:
    """Run graphs of a plan in order where its pool would be, unrecorded, and keep what they would keep.

    ``warmups``: all are run, most once more; look at what each warm-up takes.

    Returns:
        What the pool holds in the end; None, with a doubt, if the device raised in between.
    """
    if not parts:
        return profile.reading(plan.domain)
    if not all(part.graph.runs for part in parts):
        return _capture(profile, transaction, plan, parts)
    readings = list[Reading]()

    def run(attempt: Attempt, undo: UndoLog) -> None:
        reading = profile.reading(plan.domain)
        for part in parts:
            if part.runs:
                kept = _run_one(profile, attempt, part.graph, undo)
                transaction.kept.append(kept)
                before, reading = reading, profile.reading(plan.domain)
                if kept is not None:
                    part.graph.has_left(before, reading)
                attempt = replace(attempt, first_block=None)
            else:
                transaction.kept.append(part.hold(plan, attempt.backend, attempt.pool, attempt.stream))
                reading = profile.reading(plan.domain)
        readings.append(reading)

    def look(attempt: Attempt, undo: UndoLog) -> None:
        held = attempt.backend.device_memory().reserved
        for part in parts:
            known = part.graph.output is not None  # and has made what it makes once
            transaction.kept.append(_run_one(profile, replace(attempt, rounds=1) if known else attempt, part.graph, undo))
            now = attempt.backend.device_memory().reserved
            if now > held:  # else the warm-up took no more than others have
                _look_at_warmup(profile, plan, part, attempt, undo)
                now = attempt.backend.device_memory().reserved
            held = now
            attempt = replace(attempt, first_block=None)
        readings.append(profile.reading(plan.domain))

    rehearsing(profile, transaction, plan, parts[0].graph, look if warmups else run)
    reading = readings[0] if readings else None
    parts[-1].graph.after = parts[-1].graph.after or reading or Reading()  # it was looked at, whatever came of it
    return reading


def _capture(profile: Profile, transaction: ProfileTransaction, plan: Plan, parts: Sequence[Part]) -> Reading:
    """`run_parts`, but capture them."""
    backend = profile.books.backend
    for part in parts:
        domain = profile.domain(plan.domain)
        if part.runs or domain.pool is None or domain.stream is None:
            sample(profile, transaction, part.graph, plan.domain)
        else:
            try:
                transaction.kept.append(part.hold(plan, backend, domain.pool.handle, domain.stream))
            except Exception as error:
                _doubt(profile, part.graph, error)
    return profile.reading(plan.domain)


def rehearsing(
    profile: Profile, transaction: ProfileTransaction, plan: Plan, first: Planned, run: Callable[[Attempt, UndoLog], None]
) -> None:
    """Let ``run`` do what it likes where ``first`` would be captured; what it or the device raises is a doubt, unless that is lost.

    Raises:
        CGStateError: the device is lost; or something refuses.
    """
    before = profile.books.backend.device_memory()
    try:
        transaction.rehearse(profile.entry(first.record, first.descriptor, plan.domain), run)
    except Exception as error:
        if isinstance(error, CGStateError) and (profile.books.lost or not isinstance(error, CaptureFailed)):
            raise  # it says so itself; or it refuses
        _doubt(profile, first, error)
    profile.watch(before)


def _look_at_warmup(profile: Profile, plan: Plan, part: Part, attempt: Attempt, undo: UndoLog) -> None:
    """Note what a graph's warm-up, which was the last work on the stream, takes if nothing is free.

    That is no more than all warm-ups so far have left cached. Only where this is more than was noted already, it is run alone.
    """
    backend = attempt.backend
    most = sum(segment.reserved for segment in backend.cached_segments(attempt.stream))
    if most > NEAR * profile.widest:
        alone = partial(part.once, plan, replace(attempt, rounds=0, first_block=None), undo)
        most = bytes_alone(backend, alone, undo)
    profile.widest = max(profile.widest, most)


def _run_one(profile: Profile, attempt: Attempt, graph: Planned, undo: UndoLog) -> Rehearsal | None:
    """Run a graph's work; None, and a doubt, if it cannot be run."""
    try:
        rehearsal = rehearse_by_routine(attempt, graph.record, graph.descriptor, undo)
    except Exception as error:
        _doubt(profile, graph, error)
        return None
    if not rehearsal.settled:
        profile.doubts.append(profile.unsettled(graph.name))
    profile.rehearsed += 1
    return rehearsal


def _doubt(profile: Profile, graph: Planned, error: Exception) -> None:
    """Doubt the estimate, since a graph could not be run.

    Raises:
        CaptureFailed: the device is lost.
    """
    clear_frames(error)  # they hold what was made
    profile.books.notice(error)
    if profile.books.lost:
        raise CaptureFailed(FailureKind.DEVICE, graph.record.component_id, graph.descriptor) from error
    profile.doubts.append(f"{graph.name} could not be run: {describe(error)}")
