"""What a pool of several graphs will hold, with one block for all of them if they take less with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cgstate.runtime.compact import FINEST, smallest_common_block
from cgstate.runtime.memory.bounds import NEAR, STRAY, Bound, pool_at_least, pool_at_most
from cgstate.runtime.memory.planning import CAPTURED, FEW, MOST, SOME, Plan, Planned, at_large, outputs_of, peak_of, spread
from cgstate.runtime.memory.running import Part, rehearsing, run_parts, sample
from cgstate.runtime.memory.scope import Profile, Reading
from cgstate.runtime.segment_sizes import GRANULE, LARGE_SEGMENT, OWN_LIMIT

if TYPE_CHECKING:
    from cgstate.backends.undo import UndoLog
    from cgstate.runtime.capture import Attempt


def bound_shared(profile: Profile, plan: Plan) -> Bound:
    """Bound a pool of several graphs, with one block for all if they take less with it."""
    bound = _measured(profile, plan)
    return _with_common_block(profile, plan, bound) if _in_the_way(plan) else bound


def _in_the_way(plan: Plan) -> bool:
    """Whether later graphs found no place in what larger ones have freed, and one block for all may be looked for."""
    first, *others = plan.graphs
    if not all(graph.runs for graph in plan.graphs) or any(graph.record.collective for graph in plan.graphs):
        return False
    if first.descriptor not in first.record.blocks:
        return False  # switched off, or not to be had: breaks, an engine's pool, no memory for trials
    unit = first.record.manager.backend.mebibyte
    return sum(graph.grown for graph in others) > max((NEAR - 1) * peak_of(plan).large, LARGE_SEGMENT * unit)


def _with_common_block(profile: Profile, plan: Plan, without: Bound) -> Bound:
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


def _common_block(profile: Profile, plan: Plan) -> int:
    """Bytes of a first block in which all graphs fit that a rehearsal would run; 0 if there is none.

    Looked for with those that found no place without it, and what the others leave; then tried with the others.
    """
    parts = [part for graphs in plan.components() for part in _parts(plan, graphs)]
    grown = [replace(part, runs=part.runs and (part is parts[0] or part.graph.grown > 0)) for part in parts]
    record, first = plan.graphs[0].record, plan.graphs[0].descriptor
    peak = peak_of(plan)
    found = [0]

    def search(attempt: Attempt, undo: UndoLog) -> None:
        low = record.blocks[first] or OWN_LIMIT * attempt.backend.mebibyte
        unrecorded = replace(attempt, rounds=0, first_block=None)  # all were warmed up
        high = peak.large - peak.workspaces
        some, every = ([partial(part.once, plan, unrecorded, undo) for part in chosen] for chosen in (grown, parts))
        look = partial(smallest_common_block, attempt.backend, attempt.stream)
        with attempt.backend.on_stream(attempt.stream):
            size = look(some, low, high, undo)
            found[0] = size and look(every, size - size // FINEST, high, undo, guess=size)

    with profile.apart() as transaction:
        rehearsing(profile, transaction, plan, plan.graphs[0], search)
    return found[0]


def _measured(profile: Profile, plan: Plan) -> Bound:
    """Bound a pool of several graphs as it would be."""
    unit = profile.books.backend.mebibyte
    components = list(plan.components())
    with profile.apart() as transaction:
        for graphs in components:
            ranks = spread(graphs)
            for rank in ranks[:CAPTURED]:
                sample(profile, transaction, graphs[rank], plan.domain)
            bound = _bound(plan, unit)
            whole = len(components) == 1 and (plan.thorough or (len(graphs) > FEW and (bound.far or at_large(plan, graphs))))
            # Where some more would hardly narrow it, go on with all, which is the rehearsal itself.
            parts = _parts(plan, graphs)[CAPTURED:] if whole else [Part(graphs[rank]) for rank in ranks[CAPTURED:]]
            reading = run_parts(profile, transaction, plan, parts)
            if whole:
                return bound.narrowed(_rehearsed(profile, plan, parts, reading), thorough=plan.thorough)
    bound = _bound(plan, unit)
    close = not bound.far and not plan.thorough and not any(at_large(plan, graphs) for graphs in components if len(graphs) > FEW)
    return bound if close else bound.narrowed(_rehearse(profile, plan), thorough=plan.thorough)


def _bound(plan: Plan, unit: int) -> Bound:
    """Bound a pool by what was run in it so far."""
    peak = peak_of(plan)
    others = dict(outputs_of(plan))
    lower = pool_at_least(peak, unit) if others else peak.reserved
    return Bound(lower, pool_at_most(peak, others.values(), unit), peak.workspaces, peak.reserved)


def _rehearse(profile: Profile, plan: Plan, *, warmups: bool = False) -> Bound | None:
    """Rehearse all in a fresh pool; None if that did not come to its end. ``warmups``: look at what each warm-up takes."""
    parts = [part for graphs in plan.components() for part in _parts(plan, graphs)]
    with profile.apart() as transaction:
        reading = run_parts(profile, transaction, plan, parts, warmups=warmups)
    return _rehearsed(profile, plan, parts, reading)


def _parts(plan: Plan, graphs: Sequence[Planned]) -> list[Part]:
    """How a component takes part in a rehearsal: of many graphs some, and placeholders for the others."""
    last = len(graphs) - 1
    chosen = {round(rank * last / (SOME - 1)) for rank in range(SOME)} | set(range(CAPTURED))
    every = plan.thorough or len(graphs) <= MOST
    return [Part(graph, runs=every or rank in chosen) for rank, graph in enumerate(graphs)]


def _rehearsed(profile: Profile, plan: Plan, parts: Sequence[Part], reading: Reading | None) -> Bound | None:
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
    excess = sum(held.get(graph, 0) - size for graph, size in outputs_of(plan)) - (reading.reserved - reading.live)
    likely = reading.reserved - max(0, excess - int((STRAY - 1) * reading.reserved))
    return Bound(0, max(int(STRAY * likely), likely + GRANULE * profile.books.backend.mebibyte))
