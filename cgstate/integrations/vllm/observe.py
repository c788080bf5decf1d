"""vLLM's other graphs: those of the piecewise and the breakable wrappers, and what becomes of them.

They share a pool with ours and stay vLLM's. They are looked at, counted, and, where a capture fails half way, what it left is taken
out again: vLLM itself would replay some of them, and meet others that have no graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from cgstate.integrations.vllm.probe import Seams

log = logging.getLogger("cgstate")

Snapshot: TypeAlias = Mapping[int, frozenset[Hashable]]
"""By identity of a wrapper: the keys of its entries."""


@dataclass(frozen=True, slots=True)
class WrapperGraphs:
    """What one wrapper holds.

    Attributes:
        kind: ``piecewise`` or ``breakable``.
        pool: The pool that it captures into.
        captured: Entries that have a graph.
        empty: Entries that have none: a capture that was refused, or failed, left them.
        clears: How often its graphs were cleared.
    """

    kind: str
    pool: Hashable
    captured: int
    empty: int
    clears: int


class Wrappers:
    """Every piecewise and breakable wrapper of the process."""

    def __init__(self, seams: Seams) -> None:
        self._kinds = (
            ("piecewise", seams.piecewise, "concrete_cudagraph_entries", "cudagraph"),
            ("breakable", seams.breakable, "entries", "capture"),
        )
        self._clears: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def look(self) -> tuple[WrapperGraphs, ...]:
        """What each holds now."""
        return tuple(
            WrapperGraphs(
                kind=kind,
                pool=wrapper.graph_pool,
                captured=sum(getattr(entry, graph) is not None for entry in entries.values()),
                empty=sum(getattr(entry, graph) is None for entry in entries.values()),
                clears=self._clears.get(wrapper, 0),
            )
            for kind, wrapper, entries, graph in self._each()
        )

    def snapshot(self) -> Snapshot:
        """Which entries there are now."""
        return {id(wrapper): frozenset(entries) for _, wrapper, entries, _ in self._each()}

    def restore(self, before: Snapshot) -> int:
        """Drop every entry that was made since; how many."""
        dropped = 0
        for _, wrapper, entries, _ in self._each():
            for key in set(entries) - before.get(id(wrapper), frozenset()):
                del entries[key]
                dropped += 1
        return dropped

    def counting(self, clear_graphs: Callable[[Any], None]) -> Callable[[Any], None]:
        """``clear_graphs`` of a wrapper class, counted."""

        @wraps(clear_graphs)
        def clear_and_count(wrapper: Any) -> None:
            clear_graphs(wrapper)
            self._clears[wrapper] = self._clears.get(wrapper, 0) + 1
            log.info("vLLM cleared the graphs of a %s", type(wrapper).__name__)

        return clear_and_count

    def _each(self) -> Iterator[tuple[str, Any, dict[Hashable, Any], str]]:
        for kind, wrapper_class, entries, graph in self._kinds:
            for wrapper in list(wrapper_class._all_instances):
                yield kind, wrapper, vars(wrapper)[entries], graph
