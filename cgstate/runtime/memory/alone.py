"""What graphs with a pool each will hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cgstate.runtime.domain import Domain
from cgstate.runtime.memory.bounds import NEAR, Bound
from cgstate.runtime.memory.planning import CAPTURED, MOST, Plan, Planned
from cgstate.runtime.memory.running import Part, run_parts, sample
from cgstate.runtime.memory.scope import Profile
from cgstate.runtime.segment_sizes import GRANULE, LARGE_SEGMENT, OWN_LIMIT


def bound_alone(profile: Profile, graphs: Sequence[Planned], plans: dict[Domain, Plan]) -> list[Bound]:
    """Bound graphs of one component that have a pool each: measured, or between the next larger and the next smaller measured one.

    Measures the widest gap in the middle until the bounds are near.
    """
    own = {plan.graphs[0]: plan for plan in plans.values()}

    def measure(rank: int) -> None:
        graph, known = graphs[rank], sum(each.after is not None for each in graphs)
        with profile.apart() as transaction:
            if known < CAPTURED:
                sample(profile, transaction, graph, own[graph].domain)
            else:
                run_parts(profile, transaction, own[graph], [Part(graph)])

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
