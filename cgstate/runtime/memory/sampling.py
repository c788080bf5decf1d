"""What to capture in order to know what everything will hold.

In the throwaway pool that stands for a production pool, in production's order: of each component the three largest graphs, then one
of each sixteenth of the size before; of many, four more. Only two of a component are captured. Whatever else is asked of a pool is
asked by running graphs unrecorded, which takes a part of the time: the allocator serves a capture as it serves eager work whose
memory comes from the same pool. Where a backend says that it serves work otherwise while it is not recorded, graphs are captured
instead.

Where that cannot bound the rest closely, because outputs grow, no graph is the largest, later ones bring segments for their
temporaries or little is held at all, the whole is rehearsed: all graphs of a component are run, or `SOME` of more than `MOST`, and
placeholders stand for the outputs of the others. From the two largest on where that is all there is, else in a pool of its own,
since the place of a graph in the order counts. Who wants it thorough has all graphs run.

Where later graphs found no place in what larger ones have freed, one block is looked for in which all of them fit; production gets
it as well (`cgstate.runtime.compact`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from cgstate.backends.undo import UndoLog
from cgstate.errors import CaptureFailed, CGStateError, LiveAcrossBreak, describe
from cgstate.lifecycle.states import FailureKind, PoolKind
from cgstate.runtime.compact import bytes_alone, smallest_common_block
from cgstate.runtime.domain import Isolation
from cgstate.runtime.failure import clear_frames
from cgstate.runtime.memory.bounds import (
    NEAR,
    STRAY,
    Peak,
    Point,
    output_at_most,
    pool_at_least,
    pool_at_most,
)
from cgstate.runtime.memory.estimate import MemoryEstimate, Sample
from cgstate.runtime.memory.scope import Profile, ProfileTransaction, Reading, profiling
from cgstate.runtime.routines import capture_by_routine, rehearse_by_routine, statics_of
from cgstate.runtime.segment_sizes import GRANULE, LARGE_SEGMENT, OWN_LIMIT, SMALL_LIMIT, segments_for
from cgstate.runtime.statics import Statics, static_bytes, static_sizes

if TYPE_CHECKING:
    from cgstate.backends.base import Backend, MemoryPool, Stream
    from cgstate.runtime.books import Books
    from cgstate.runtime.capture import Attempt, Rehearsal
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.record import ComponentRecord

MOST = 16
"""Graphs of one component that are all run in a rehearsal."""
SOME = 10
"""Graphs of one component that are run in a rehearsal where there are more, give or take one."""
FEW = 3
"""Graphs of one component that are always run, largest first: where the temporaries of one do not fit into blocks that those of a
larger one have freed, it is mostly the third at the latest; in its memory the next ones fit."""
CAPTURED = 2
"""Graphs of one component that are captured, to see that they can be, and what the driver takes."""
STEP = 16
"""How much smaller, in bytes of static inputs, the next graph to be run after the `FEW` largest is."""


@dataclass(slots=True, eq=False)
class Planned:
    """One graph that will be captured.

    Attributes:
        record: Its component.
        descriptor: Which.
        buffers: Bytes of its static inputs, whoever else has them; None where they could not be made.
        runs: Whether running it takes the memory that capturing it takes.
        output: What it has left lent out when it was captured or run; None before, or if that failed.
        small: Whether that is in segments for small allocations only.
        after: What the pool held after it, where that was looked at.
        grown: Bytes of large segments that it has brought for its temporaries.
    """

    record: ComponentRecord
    descriptor: Hashable
    buffers: int | None
    runs: bool
    output: int | None = None
    small: bool = False
    after: Reading | None = None
    grown: int = 0

    def has_left(self, before: Reading, after: Reading) -> None:
        """It was captured or run, and the pool held ``before`` and ``after`` it."""
        large = after.large_live - after.workspaces - before.large_live + before.workspaces
        self.output, self.small, self.after = after.lent_since(before), not large, after
        self.grown = max(0, after.large - before.large - max(0, after.large_live - before.large_live))

    @property
    def name(self) -> str:
        """E.g. ``decoder[64]``."""
        return f"{self.record.component_id}[{self.descriptor!r}]"


@dataclass(slots=True)
class Bound:
    """What one production pool will hold: bytes at least and at most, library workspaces included and apart.

    Attributes:
        peak: What those graphs alone have held that were run.
    """

    lower: int = 0
    upper: int = 0
    workspaces: int = 0
    peak: int = 0

    @property
    def far(self) -> bool:
        """Whether the upper bound is too far from what was seen."""
        return self.upper > NEAR * self.peak

    def narrowed(self, rehearsed: Bound | None, plan: _Plan) -> Bound:
        """By a rehearsal, if it came to its end: wholly if that was thorough, else with the slack that any estimate has."""
        if rehearsed is None:
            return self
        if plan.thorough:
            return Bound(rehearsed.lower, rehearsed.upper, self.workspaces, self.peak)
        return Bound(max(rehearsed.lower, self.lower), max(rehearsed.upper, int(NEAR * self.peak)), self.workspaces, self.peak)


@dataclass(slots=True)
class _Plan:
    """The graphs of one production domain, in order of capture.

    Attributes:
        thorough: Whether all of them are run.
    """

    domain: Domain
    thorough: bool
    graphs: list[Planned] = field(default_factory=list)

    def components(self) -> Iterator[list[Planned]]:
        """The graphs of each component, in order."""
        for record in dict.fromkeys(graph.record for graph in self.graphs):
            yield [graph for graph in self.graphs if graph.record is record]


def profile_memory(books: Books, records: Sequence[ComponentRecord], *, thorough: bool) -> MemoryEstimate:
    """What capturing everything will hold. Leaves nothing behind (I4); ``thorough``: run every graph.

    Raises:
        IllegalTransition: the manager is not PREPARED.
        CaptureFailed: the device was lost in a capture or a run; or of none of the graphs could the static inputs be made.
        Exception: what the device raised elsewhere.
    """
    with profiling(books, shut=True) as profile:
        failed: list[Sample] = []
        plans: dict[Domain, _Plan] = {}
        graphs, buffers, rounding = _planned(books, records, failed)
        for record in records:
            record.common_blocks.clear()  # looked for anew: warm-ups are looked at then as well
        for graph in graphs:
            with books.gate.lock:
                domain = books.domain_for(graph.record, graph.descriptor)
            plans.setdefault(domain, _Plan(domain, thorough)).graphs.append(graph)
        bounds = [_shared(profile, plan) for plan in plans.values() if plan.domain.kind is not PoolKind.per_entry]
        alone = [plan.graphs[0] for plan in plans.values() if plan.domain.kind is PoolKind.per_entry]
        for record in dict.fromkeys(graph.record for graph in alone):
            bounds += _alone(profile, [graph for graph in alone if graph.record is record], plans)
        lower = sum(bound.lower for bound in bounds)
        workspaces = sum(bound.workspaces for bound in bounds)
        unmade = tuple(f"static inputs of {each.component}[{each.descriptor}] could not be made: {each.error}" for each in failed)
        lazy, untold = _lazy(records, graphs)
        return MemoryEstimate(
            lower=lower + buffers,
            upper=sum(bound.upper for bound in bounds) + buffers,
            parts={"pools": lower - workspaces, "workspaces": workspaces, "buffers": buffers},
            samples=(*profile.samples, *failed),
            graphs=len(graphs),
            driver=profile.driver_bytes() * len(graphs),
            lazy=lazy,
            seconds=profile.seconds,
            distrust=(*profile.distrust(), *unmade),
            lazy_untold=untold,
            rehearsed=profile.rehearsed,
            widest=profile.widest,
            rounding=rounding,
        )


# -- pools that graphs share --------------------------------------------------------------------------------------------


def _shared(profile: Profile, plan: _Plan) -> Bound:
    """Bound a pool of several graphs, with one block for all if they take less with it."""
    bound = _measured(profile, plan)
    return _with_common_block(profile, plan, bound) if _in_the_way(plan) else bound


def _in_the_way(plan: _Plan) -> bool:
    """Whether later graphs found no place in what larger ones have freed, and one block for all may be looked for."""
    first, *others = plan.graphs
    if not all(graph.runs for graph in plan.graphs) or any(graph.record.collective for graph in plan.graphs):
        return False
    if first.descriptor not in first.record.blocks:
        return False  # switched off, or not to be had: breaks, an engine's pool, no memory for trials
    unit = first.record.manager.backend.mebibyte
    return sum(graph.grown for graph in others) > max((NEAR - 1) * _peak(plan).large, LARGE_SEGMENT * unit)


def _with_common_block(profile: Profile, plan: _Plan, without: Bound) -> Bound:
    """Bound the pool again with a block in which all graphs fit, and let production have it, if that is less.

    The block is found by those that a rehearsal runs; whether the others fit as well is seen by running all.
    """
    record, first = plan.graphs[0].record, plan.graphs[0].descriptor
    size = _common_block(profile, plan)
    if not size:
        return without
    record.common_blocks[first] = size
    kept = False
    try:
        rehearsed = _rehearse(profile, replace(plan, thorough=True), warmups=True)
        if rehearsed is None or rehearsed.upper >= without.upper:
            return without
        kept = True
        return replace(rehearsed, workspaces=without.workspaces)
    finally:
        if not kept:
            del record.common_blocks[first]


def _common_block(profile: Profile, plan: _Plan) -> int:
    """Bytes of a first block in which all graphs fit that a rehearsal would run; 0 if there is none."""
    parts = [part for graphs in plan.components() for part in _parts(plan, graphs)]
    record, first = plan.graphs[0].record, plan.graphs[0].descriptor
    peak = _peak(plan)
    found = [0]

    def search(attempt: Attempt, undo: UndoLog) -> None:
        low = record.blocks[first] or OWN_LIMIT * attempt.backend.mebibyte
        unrecorded = replace(attempt, rounds=0, first_block=None)  # all were warmed up
        runs = [partial(part.once, plan, unrecorded, undo) for part in parts]
        with attempt.backend.on_stream(attempt.stream):
            found[0] = smallest_common_block(attempt.backend, attempt.stream, runs, low, peak.large - peak.workspaces, undo)

    with profile.apart() as transaction:
        _rehearsing(profile, transaction, plan, plan.graphs[0], search)
    return found[0]


def _measured(profile: Profile, plan: _Plan) -> Bound:
    """Bound a pool of several graphs as it would be."""
    unit = profile.books.backend.mebibyte
    components = list(plan.components())
    with profile.apart() as transaction:
        for graphs in components:
            ranks = _spread(graphs)
            for rank in ranks[:CAPTURED]:
                _sample(profile, transaction, graphs[rank], plan.domain)
            bound = _bound(plan, unit)
            whole = len(components) == 1 and (plan.thorough or (len(graphs) > FEW and (bound.far or _at_large(plan, graphs))))
            # Where some more would hardly narrow it, go on with all, which is the rehearsal itself.
            parts = _parts(plan, graphs)[CAPTURED:] if whole else [_Part(graphs[rank]) for rank in ranks[CAPTURED:]]
            reading = _run(profile, transaction, plan, parts)
            if whole:
                return bound.narrowed(_rehearsed(profile, plan, parts, reading), plan)
    bound = _bound(plan, unit)
    close = not bound.far and not plan.thorough and not any(_at_large(plan, graphs) for graphs in components if len(graphs) > FEW)
    return bound if close else bound.narrowed(_rehearse(profile, plan), plan)


def _bound(plan: _Plan, unit: int) -> Bound:
    """Bound a pool by what was run in it so far."""
    peak = _peak(plan)
    others = dict(_outputs(plan))
    lower = pool_at_least(peak, unit) if others else peak.reserved
    return Bound(lower, pool_at_most(peak, others.values(), unit), peak.workspaces, peak.reserved)


def _at_large(plan: _Plan, graphs: Sequence[Planned]) -> bool:
    """Whether the whole of a component is to be rehearsed whatever was measured.

    No graph may be much smaller than the others: then nothing says which one has the largest temporaries. Or those that were run
    say that it is not the first, as later ones found no place in what it has freed. Or all ranks may have to run the same graphs in
    the same order, whatever each of them measures: the graphs of a collective component wait for each other.
    """
    sizes = [graph.buffers for graph in graphs if graph.buffers is not None]
    alike = bool(sizes) and min(sizes) * STRAY >= max(sizes) / STRAY
    rising = sum(graph.grown for graph in graphs[1:]) > (NEAR - 1) * _peak(plan).large
    return alike or rising or graphs[0].record.collective


def _spread(graphs: Sequence[Planned]) -> list[int]:
    """Which graphs of a component to run first, in order."""
    last = len(graphs) - 1
    ranks = list(range(min(FEW, len(graphs))))
    if len(graphs) > MOST:
        return sorted({*ranks, last // 4, last // 2, last * 3 // 4, last})
    for rank in range(FEW, len(graphs)):
        if (graphs[rank].buffers or 0) * STEP <= (graphs[ranks[-1]].buffers or 0):
            ranks.append(rank)
    return ranks


def _rehearse(profile: Profile, plan: _Plan, *, warmups: bool = False) -> Bound | None:
    """Rehearse all in a fresh pool; None if that did not come to its end. ``warmups``: look at what each warm-up takes."""
    parts = [part for graphs in plan.components() for part in _parts(plan, graphs)]
    with profile.apart() as transaction:
        reading = _run(profile, transaction, plan, parts, warmups=warmups)
    return _rehearsed(profile, plan, parts, reading)


def _parts(plan: _Plan, graphs: Sequence[Planned]) -> list[_Part]:
    """How a component takes part in a rehearsal: of many graphs some, and placeholders for the others."""
    last = len(graphs) - 1
    chosen = {round(rank * last / (SOME - 1)) for rank in range(SOME)} | set(range(CAPTURED))
    every = plan.thorough or len(graphs) <= MOST
    return [_Part(graph, runs=every or rank in chosen) for rank, graph in enumerate(graphs)]


def _rehearsed(profile: Profile, plan: _Plan, parts: Sequence[_Part], reading: Reading | None) -> Bound | None:
    """What the pool will hold, by what it held at the end of a rehearsal."""
    if reading is None:
        return None
    if all(part.runs for part in parts):
        return Bound(reading.reserved, reading.reserved)
    held = {part.graph: part.held for part in parts if not part.runs}
    if sum(held.values()) > (NEAR - 1) * reading.reserved:
        taken = sum(graph.output is not None for graph in plan.graphs)
        few = f"only {taken} of {len(plan.graphs)} graphs were run"
        profile.doubts.append(f"outputs are much of it, and {few}; a thorough profile runs them all")
    # More is known of outputs now: what was held for them far in excess, and is not free as well, will not be there.
    excess = sum(held.get(graph, 0) - size for graph, size in _outputs(plan)) - (reading.reserved - reading.live)
    likely = reading.reserved - max(0, excess - int((STRAY - 1) * reading.reserved))
    return Bound(0, max(int(STRAY * likely), likely + GRANULE * profile.books.backend.mebibyte))


def _peak(plan: _Plan) -> Peak:
    """The pool after the last graph that was run in it."""
    readings = [graph.after for graph in plan.graphs if graph.after is not None and graph.output is not None]
    last = max(readings, key=lambda reading: reading.reserved, default=None)
    return Peak(0, 0, 0) if last is None else Peak(last.small, last.large, last.workspaces)


def _outputs(plan: _Plan) -> Iterator[tuple[Planned, int]]:
    """Each graph that was not run, with what it leaves lent out at most."""
    for graphs in plan.components():
        points = _points(graphs)
        for graph in graphs:
            if graph.output is None and points:
                yield graph, output_at_most(graph.buffers or 0, points)


def _points(graphs: Sequence[Planned]) -> list[Point]:
    return [Point(graph.buffers or 0, graph.output) for graph in graphs if graph.output is not None]


# -- graphs with a pool each --------------------------------------------------------------------------------------------


def _alone(profile: Profile, graphs: Sequence[Planned], plans: dict[Domain, _Plan]) -> list[Bound]:
    """Bound graphs of one component that have a pool each: measured, or between the next larger and the next smaller measured one.

    Measures the widest gap in the middle until the bounds are near.
    """
    own = {plan.graphs[0]: plan for plan in plans.values()}

    def measure(rank: int) -> None:
        graph, known = graphs[rank], sum(each.after is not None for each in graphs)
        with profile.apart() as transaction:
            if known < CAPTURED:
                _sample(profile, transaction, graph, own[graph].domain)
            else:
                _run(profile, transaction, own[graph], [_Part(graph)])

    unit = profile.books.backend.mebibyte
    granule, step = GRANULE * unit, (LARGE_SEGMENT - OWN_LIMIT) * unit
    first = {0, len(graphs) // 2, len(graphs) - 1}
    every = graphs[0].record.collective or any(plan.thorough for plan in own.values())
    for rank in range(len(graphs)) if every else sorted(first):
        measure(rank)
    while True:
        known = [(rank, graph.after) for rank, graph in enumerate(graphs) if graph.after is not None]
        bounds = [Bound(after.reserved, after.reserved, after.workspaces) for _, after in known]
        widest, gap = 0, 0
        for (rank, one), (next_rank, other) in pairwise(known):
            sizes = sorted((one.reserved, other.reserved))
            workspaces = min(one.workspaces, other.workspaces)
            between = next_rank - rank - 1
            bounds += [Bound(sizes[0], sizes[1], workspaces)] * between
            if between:
                # Rounding makes a smaller graph's pool the larger one now and then: 20 MiB to share, instead of 10 of its own.
                stray = max(granule * between, step if sizes[0] < sizes[1] else 0)
                bounds.append(Bound(-max(stray, step), stray))
            if (sizes[1] - sizes[0]) * between > gap:
                widest, gap = (rank + next_rank) // 2, (sizes[1] - sizes[0]) * between
        sizes = [one.reserved for _, one in known]
        if any(other > one + granule for one, other in pairwise(sizes)) and len(known) < min(len(graphs), MOST):
            measure(next(rank for rank, graph in enumerate(graphs) if graph.after is None))  # a larger one takes less: no order
        elif not gap or sum(bound.upper for bound in bounds) <= NEAR * sum(bound.lower for bound in bounds):
            return bounds
        else:
            measure(widest)


# -- one graph ----------------------------------------------------------------------------------------------------------


def _sample(profile: Profile, transaction: ProfileTransaction, graph: Planned, domain: Domain) -> None:
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


@dataclass(slots=True)
class _Part:
    """One graph that is run, or left out.

    Attributes:
        graph: Which.
        runs: Whether it is run; else a placeholder stands for its output.
        held: Bytes of the placeholder.
    """

    graph: Planned
    runs: bool = True
    held: int = 0

    def once(self, plan: _Plan, attempt: Attempt, undo: UndoLog, pool: MemoryPool) -> object:
        """Run it, or hold its output, with memory from ``pool``; what a graph of it would keep."""
        if not self.runs:
            return self.hold(plan, attempt.backend, pool, attempt.stream)
        return rehearse_by_routine(replace(attempt, pool=pool), self.graph.record, self.graph.descriptor, undo).kept

    def hold(self, plan: _Plan, backend: Backend, pool: MemoryPool, stream: Stream) -> list[object]:
        """Hold what it will leave lent out, by what others of its component have: in blocks of the kind that theirs are in."""
        known = [graph for graph in plan.graphs if graph.record is self.graph.record and graph.output is not None]
        self.held = left = output_at_most(self.graph.buffers or 0, _points(known)) if known else 0
        piece = SMALL_LIMIT * backend.mebibyte if all(graph.small for graph in known) else left
        held = []
        while left > 0:
            held.append(backend.hold(pool, stream, min(left, piece)))
            left -= piece
        return held


def _capture(profile: Profile, transaction: ProfileTransaction, plan: _Plan, parts: Sequence[_Part]) -> Reading:
    """`_run`, but capture them."""
    backend = profile.books.backend
    for part in parts:
        domain = profile.domain(plan.domain)
        if part.runs or domain.pool is None or domain.stream is None:
            _sample(profile, transaction, part.graph, plan.domain)
        else:
            try:
                transaction.kept.append(part.hold(plan, backend, domain.pool.handle, domain.stream))
            except Exception as error:
                _doubt(profile, part.graph, error)
    return profile.reading(plan.domain)


def _run(
    profile: Profile, transaction: ProfileTransaction, plan: _Plan, parts: Sequence[_Part], *, warmups: bool = False
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

    _rehearsing(profile, transaction, plan, parts[0].graph, look if warmups else run)
    reading = readings[0] if readings else None
    parts[-1].graph.after = parts[-1].graph.after or reading or Reading()  # it was looked at, whatever came of it
    return reading


def _look_at_warmup(profile: Profile, plan: _Plan, part: _Part, attempt: Attempt, undo: UndoLog) -> None:
    """Note what a graph's warm-up, which was the last work on the stream, takes if nothing is free.

    That is no more than all warm-ups so far have left cached. Only where this is more than was noted already, it is run alone.
    """
    backend = attempt.backend
    most = sum(segment.reserved for segment in backend.cached_segments(attempt.stream))
    if most > NEAR * profile.widest:
        alone = partial(part.once, plan, replace(attempt, rounds=0, first_block=None), undo)
        most = bytes_alone(backend, alone, undo)
    profile.widest = max(profile.widest, most)


def _rehearsing(
    profile: Profile, transaction: ProfileTransaction, plan: _Plan, first: Planned, run: Callable[[Attempt, UndoLog], None]
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


def _planned(books: Books, records: Sequence[ComponentRecord], failed: list[Sample]) -> tuple[list[Planned], int, int]:
    """The startup graphs, the bytes of all their static inputs, and what their segments may be larger than these.

    They are made once each, counted together, and dropped.

    Raises:
        CaptureFailed: there are graphs, and of none of them could the static inputs be made; the first error is the cause.
    """
    backend = books.backend
    graphs, made = list[Planned](), list[Statics]()
    nothing: CaptureFailed | None = None
    undo = UndoLog()
    try:
        backend.keep_generator(undo)
        for record in records:
            for descriptor in () if record.pure_lazy else record.startup_order:
                size, runs = None, False
                try:
                    with backend.allocating_mode():
                        made.append(statics_of(record, descriptor))
                    nothing = None
                    size, runs = static_bytes(backend, made[-1:]), backend.serves_unrecorded(made[-1].buffers)
                except Exception as error:
                    books.notice(error)
                    if books.lost:
                        raise
                    if not failed and not made:
                        nothing = CaptureFailed(books.kind_of(error), record.component_id, descriptor)
                        nothing.__cause__ = error
                    failed.append(Sample(record.component_id, repr(descriptor), 0, 0, 0, 0, 0.0, True, describe(error)))
                graphs.append(Planned(record, descriptor, size, runs))
        if nothing is not None:
            raise nothing
        total, segments = static_bytes(backend, made), segments_for(static_sizes(backend, made), backend.mebibyte)
        made.clear()
        undo.succeed()
    except BaseException:
        made.clear()  # the error keeps this frame
        undo.fail()
        raise
    return graphs, total, segments - total


def _lazy(records: Sequence[ComponentRecord], graphs: Sequence[Planned]) -> tuple[int, tuple[str, ...]]:
    """Bytes that misses may add, each like the largest sample of its component, and of which components that cannot be told."""
    total = 0
    untold = []
    for record in records:
        startup = 0 if record.pure_lazy else len(record.startup_order)
        extra = record.capacity - startup
        if not record.allows_lazy or not extra:
            continue
        costs = [_cost(graph) for graph in graphs if graph.record is record and graph.output is not None]
        if record.config.max_extra_graphs == "unbounded" or not costs:
            untold.append(record.component_id)
        else:
            total += extra * max(costs)
    return total, tuple(untold)


def _cost(graph: Planned) -> int:
    """Bytes that one more graph like it takes."""
    alone = graph.record.isolation is Isolation.per_entry
    taken = graph.after.reserved if alone and graph.after is not None else graph.output or 0
    return (graph.buffers or 0) + taken
