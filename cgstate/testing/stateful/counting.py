"""How calls were answered, by the runtime's own count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cgstate.runtime.stats import Fallback
from cgstate.testing.stateful.play import Play

__all__ = ["Counts", "counted", "counts"]

Counts: TypeAlias = tuple[int, Mapping[Fallback, int]]
"""Answers by a graph, and eager ones by their reason."""


def counts(play: Play, component: str) -> Counts:
    """What a component has counted so far."""
    record = play.books.components.get(component)
    if record is None:
        return 0, {}
    return record.counters.retired_hits + record.live_hits, dict(record.counters.fallbacks)


def counted(before: Counts, after: Counts) -> Counts:
    """What came in between; reasons that did not are left out."""
    reasons = {reason: count - before[1].get(reason, 0) for reason, count in after[1].items()}
    return after[0] - before[0], {reason: count for reason, count in reasons.items() if count}
