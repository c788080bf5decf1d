"""What captures take: time and bytes, by how many graphs there are and how far they are kept apart."""

from __future__ import annotations

import time

from cgstate.bench.bed import Bed, Effort
from cgstate.bench.parts import Part, PartName
from cgstate.runtime.entry import Entry
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.transaction import Transaction

ROWS = 32
"""Sizes of the graphs go round from here down to 1."""
EXTRAPOLATED = 100
"""How many graphs the estimate and the extrapolation are compared on."""


def measure(bed: Bed, effort: Effort) -> Part:
    """A row for each isolation and number of graphs."""
    part = Part()
    for isolation, numbers in effort.graphs.items():
        for graphs in numbers:
            row = captured(bed, isolation, graphs, estimated=graphs <= EXTRAPOLATED)
            part.rows.append({"part": PartName.capturing, **row})
    return part


def captured(bed: Bed, isolation: str, graphs: int, *, estimated: bool) -> dict[str, object]:
    """Capture so many graphs in one transaction.

    Bytes are those that the manager holds. ``extrapolated_over_held`` is what two samples promise: free memory before, between and
    after the first two captures, the second taken for all that follow; ``estimate_over_held`` is the manager's upper bound.
    """
    with GraphManager(bed.backend, isolation=isolation, warmup_rounds=1) as manager:
        manager.prepare([])
        row: dict[str, object] = {"isolation": isolation, "graphs": graphs}
        upper = 0
        if estimated:
            with manager.profile() as profile, manager.transaction() as transaction:
                for number in range(graphs):
                    _capture(bed, manager, transaction, number, graphs)
            upper = profile.estimate.upper
        manager.reclaim(flush=True)
        free = [bed.backend.device_memory().free]
        started = time.perf_counter()
        with manager.transaction() as transaction:
            for number in range(graphs):
                _capture(bed, manager, transaction, number, graphs)
                if number < 2:
                    free.append(bed.backend.device_memory().free)
        row["ms_a_graph"] = 1000 * (time.perf_counter() - started) / graphs
        held = manager.memory().total
        row["bytes"] = held
        if estimated:
            row["estimate_over_held"] = upper / held
            row["extrapolated_over_held"] = (free[0] - free[1] + (graphs - 1) * (free[1] - free[2])) / held
        return row


def _capture(bed: Bed, manager: GraphManager, transaction: Transaction, number: int, graphs: int) -> None:
    entry: Entry = manager.entry(f"component {number % 10}", number)
    static = bed.zeros(1 + (graphs - 1 - number) % ROWS)
    transaction.capture(entry, lambda warmup: lambda: bed.model(static))
