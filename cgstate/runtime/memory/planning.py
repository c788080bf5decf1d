"""The graphs that will be captured, in order, and what is known of each: which to run, and what the others leave at most."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cgstate.backends.undo import UndoLog
from cgstate.errors import CaptureFailed, describe
from cgstate.runtime.domain import Isolation
from cgstate.runtime.memory.bounds import NEAR, STRAY, Peak, Point, output_at_most
from cgstate.runtime.memory.estimate import Sample
from cgstate.runtime.memory.scope import Reading
from cgstate.runtime.routines import statics_of
from cgstate.runtime.segment_sizes import segments_for
from cgstate.runtime.statics import Statics, static_bytes, static_sizes

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.record import ComponentRecord

MOST = 16
"""Graphs of one component that are all run in a rehearsal."""
SOME = 10
"""Graphs of one component that are run in a rehearsal where there are more, give or take one."""
FEW = 3
"""Graphs of one component that are always run, largest first: where the temporaries of one do not fit into blocks that those of a
larger one have freed, it is mostly the third at the latest; in its memory the next ones fit."""
ALL = 8
"""Up to how many graphs of one component are all run in any case: it takes little, and leaves nothing to be concluded."""
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
class Plan:
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


def plan_graphs(books: Books, records: Sequence[ComponentRecord], failed: list[Sample]) -> tuple[list[Planned], int, int]:
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


def at_large(plan: Plan, graphs: Sequence[Planned]) -> bool:
    """Whether the whole of a component is to be rehearsed whatever was measured.

    No graph may be much smaller than the others: then nothing says which one has the largest temporaries. Or those that were run
    say that it is not the first, as later ones found no place in what it has freed. Or all ranks may have to run the same graphs in
    the same order, whatever each of them measures: the graphs of a collective component wait for each other.
    """
    sizes = [graph.buffers for graph in graphs if graph.buffers is not None]
    alike = bool(sizes) and min(sizes) * STRAY >= max(sizes) / STRAY
    rising = sum(graph.grown for graph in graphs[1:]) > (NEAR - 1) * peak_of(plan).large
    return alike or rising or graphs[0].record.collective


def spread(graphs: Sequence[Planned]) -> list[int]:
    """Which graphs of a component to run first, in order."""
    last = len(graphs) - 1
    ranks = list(range(len(graphs) if len(graphs) <= ALL else FEW))
    if len(graphs) > MOST:
        return sorted({*ranks, last // 4, last // 2, last * 3 // 4, last})
    for rank in range(FEW, len(graphs)):
        if (graphs[rank].buffers or 0) * STEP <= (graphs[ranks[-1]].buffers or 0):
            ranks.append(rank)
    return ranks


def peak_of(plan: Plan) -> Peak:
    """The pool after the last graph that was run in it."""
    readings = [graph.after for graph in plan.graphs if graph.after is not None and graph.output is not None]
    last = max(readings, key=lambda reading: reading.reserved, default=None)
    return Peak(0, 0, 0) if last is None else Peak(last.small, last.large, last.workspaces)


def outputs_of(plan: Plan) -> Iterator[tuple[Planned, int]]:
    """Each graph that was not run, with what it leaves lent out at most."""
    for graphs in plan.components():
        points = points_of(graphs)
        for graph in graphs:
            if graph.output is None and points:
                yield graph, output_at_most(graph.buffers or 0, points)


def points_of(graphs: Sequence[Planned]) -> list[Point]:
    """What is known of a component's graphs that were run."""
    return [Point(graph.buffers or 0, graph.output) for graph in graphs if graph.output is not None]


def lazy_headroom(records: Sequence[ComponentRecord], graphs: Sequence[Planned]) -> tuple[int, tuple[str, ...]]:
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
