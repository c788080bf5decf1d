"""What to capture in order to know what everything will hold.

In the throwaway pool that stands for a production pool, in production's order: of each component with up to `ALL` graphs all, else
the three largest, then one of each sixteenth of the size before; of many, four more. Only two of a component are captured. Whatever
else is asked of a pool is asked by running graphs unrecorded, which takes a part of the time: the allocator serves a capture as it
serves eager work whose memory comes from the same pool. Where a backend says that it serves work otherwise while it is not
recorded, graphs are captured instead.

Where that cannot bound the rest closely, because outputs grow, no graph is the largest, later ones bring segments for their
temporaries or little is held at all, the whole is rehearsed: all graphs of a component are run, or `SOME` of more than `MOST`, and
placeholders stand for the outputs of the others. From the two largest on where that is all there is, else in a pool of its own,
since the place of a graph in the order counts. Who wants it thorough has all graphs run.

Where later graphs found no place in what larger ones have freed, one block is looked for in which all of them fit; production gets
it as well (`cgstate.runtime.compact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cgstate.lifecycle.states import PoolKind
from cgstate.runtime.memory.alone import bound_alone
from cgstate.runtime.memory.estimate import MemoryEstimate, Sample
from cgstate.runtime.memory.planning import Plan, lazy_headroom, plan_graphs
from cgstate.runtime.memory.scope import profiling
from cgstate.runtime.memory.shared import bound_shared

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.record import ComponentRecord


def profile_memory(books: Books, records: Sequence[ComponentRecord], *, thorough: bool) -> MemoryEstimate:
    """What capturing everything will hold. Leaves nothing behind (I4); ``thorough``: run every graph.

    Raises:
        IllegalTransition: the manager is not PREPARED.
        CaptureFailed: the device was lost in a capture or a run; or of none of the graphs could the static inputs be made.
        Exception: what the device raised elsewhere.
    """
    with profiling(books, shut=True) as profile:
        failed: list[Sample] = []
        plans: dict[Domain, Plan] = {}
        graphs, buffers, rounding = plan_graphs(books, records, failed)
        for record in records:
            record.common_blocks.clear()  # looked for anew: warm-ups are looked at then as well
        for graph in graphs:
            with books.gate.lock:
                domain = books.domain_for(graph.record, graph.descriptor)
            plans.setdefault(domain, Plan(domain, thorough)).graphs.append(graph)
        bounds = [bound_shared(profile, plan) for plan in plans.values() if plan.domain.kind is not PoolKind.per_entry]
        alone = [plan.graphs[0] for plan in plans.values() if plan.domain.kind is PoolKind.per_entry]
        for record in dict.fromkeys(graph.record for graph in alone):
            bounds += bound_alone(profile, [graph for graph in alone if graph.record is record], plans)
        lower = sum(bound.lower for bound in bounds)
        workspaces = sum(bound.workspaces for bound in bounds)
        unmade = tuple(f"static inputs of {each.component}[{each.descriptor}] could not be made: {each.error}" for each in failed)
        lazy, untold = lazy_headroom(records, graphs)
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
