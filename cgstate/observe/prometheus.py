"""A Prometheus collector: what a manager counts and holds, read when it is scraped.

Needs `prometheus_client`: ``pip install 'cgstate[metrics]'``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from cgstate.lifecycle.states import ManagerState
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.memory import MemoryReport
from cgstate.runtime.stats import ComponentStats, ManagerStats

Family = CounterMetricFamily | GaugeMetricFamily
Split = Callable[[ComponentStats], Iterable[tuple[str, int]]]

_PLAIN: Mapping[str, tuple[str, Callable[[ComponentStats], int]]] = {
    "hits": ("Calls answered by a graph, and low-level replays", lambda counts: counts.hits),
    "captures": ("Graphs bound", lambda counts: counts.captures),
}
_SPLIT: Mapping[str, tuple[str, str, Split]] = {
    "fallbacks": ("Calls answered eagerly", "reason", lambda counts: counts.fallbacks.items()),
    "failures": ("Failed captures and launches", "kind", lambda counts: counts.failures.items()),
    "evictions": ("Graphs retired by choice", "cause", lambda counts: counts.evicted.items()),
}
_TOTALS: Mapping[str, tuple[str, Callable[[ManagerStats], float]]] = {
    "reclaims": ("Recordings destroyed", lambda stats: stats.reclaims),
    "flushes": ("Times that cached memory was given back to the device", lambda stats: stats.flushes),
    "reclaimed_bytes": ("Bytes given back to the device", lambda stats: stats.reclaimed_bytes),
    "stalled_seconds": ("Time spent giving back, in which other threads' launches wait", lambda stats: stats.stalled_ns / 1e9),
}
_PARTS: Mapping[str, Callable[[MemoryReport], int]] = {
    "live": lambda report: sum(report.pools.values()) - report.stranded,
    "stranded": lambda report: report.stranded,
    "retired": lambda report: sum(report.retired.values()),
    "buffers": lambda report: report.buffers,
}
"""What the bytes that a manager holds are; together they are `MemoryReport.total`."""


class ManagerCollector(Collector):
    """Reads one manager at each scrape; register it with a registry of `prometheus_client`.

    It keeps the manager alive no longer than others do, and reports nothing once it has gone.

    Args:
        manager: The manager. One made with ``owner_thread=True`` cannot be scraped, since that is done by another thread.
        name: The value of the label ``manager``, unique in the registry.
    """

    def __init__(self, manager: GraphManager, name: str) -> None:
        self._manager = weakref.ref(manager)
        self.name = name

    def describe(self) -> Iterable[Family]:
        """Nothing: two collectors may be in one registry, told apart by their label."""
        return ()

    def collect(self) -> Iterator[Family]:
        """The metrics, as they are now.

        Raises:
            WrongThread: the manager keeps other threads out.
        """
        manager = self._manager()
        if manager is None:
            return
        stats, report = manager.stats(), manager.memory()
        yield from self._components(stats)
        for name, (text, read) in _TOTALS.items():
            family = CounterMetricFamily(f"cgstate_{name}", text, labels=["manager"])
            family.add_metric([self.name], read(stats))
            yield family
        yield from self._held(report)
        state = GaugeMetricFamily("cgstate_state", "1 for the state that the manager is in", labels=["manager", "state"])
        for each in ManagerState:
            state.add_metric([self.name, each.value], each is manager.state)
        yield state

    def _components(self, stats: ManagerStats) -> Iterator[Family]:
        for name, (text, count) in _PLAIN.items():
            family = CounterMetricFamily(f"cgstate_{name}", text, labels=["manager", "component"])
            for component, counts in stats.components.items():
                family.add_metric([self.name, component], count(counts))
            yield family
        for name, (text, label, split) in _SPLIT.items():
            family = CounterMetricFamily(f"cgstate_{name}", text, labels=["manager", "component", label])
            for component, counts in stats.components.items():
                for key, number in split(counts):
                    family.add_metric([self.name, component, str(key)], number)
            yield family

    def _held(self, report: MemoryReport) -> Iterator[Family]:
        held = GaugeMetricFamily("cgstate_held_bytes", "Bytes that the manager holds", labels=["manager", "part"])
        for part, size in _PARTS.items():
            held.add_metric([self.name, part], size(report))
        yield held
        graphs = GaugeMetricFamily("cgstate_graphs", "Graphs that are live", labels=["manager", "component"])
        for component in report.components:
            graphs.add_metric([self.name, component.component], component.entries)
        yield graphs
