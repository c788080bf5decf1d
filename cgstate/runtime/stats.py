"""What a manager counts: totals exact, detail bounded (I13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto

from cgstate.lifecycle.states import FailureKind


class Fallback(StrEnum):
    """Why a component call was answered eagerly."""

    miss = auto()
    """No graph for this call, and none may be captured lazily."""
    not_serving = auto()
    """Before the first commit, after `release`, or while draining."""
    closed = auto()
    """The manager was closed."""
    in_capture = auto()
    """The caller's stream is being captured, or this thread is warming up a capture: the work is recorded inline."""
    capture_busy = auto()
    """A lazy capture would have had to wait for other threads, or this one profiles for another manager."""
    capacity = auto()
    """The component holds as many graphs as it may, and none can be evicted now."""
    blocked = auto()
    """An earlier capture of this descriptor failed and may not be tried again yet."""
    rejected = auto()
    """The descriptor cannot be captured."""
    oom = auto()
    """The lazy capture ran out of memory."""
    foreign = auto()
    """Another thread broke the lazy capture."""
    budget = auto()
    """The lazy capture would have exceeded the byte budget, or did."""
    not_admitted = auto()
    """The descriptor was not missed often enough yet."""
    autograd = auto()
    """Autograd would have recorded the call."""
    autocast = auto()
    """The call's autocast is not the one that the graph was captured under."""
    unavailable = auto()
    """The graph was retired, failed or out of epoch when the call came for it."""
    turn_held = auto()
    """The call came from inside another call into the same pool."""
    vote = auto()
    """Another rank did not agree to the capture, to its commit, or to an eviction that it needed."""


class Eviction(StrEnum):
    """Why a graph was retired by choice."""

    asked = auto()
    """By `GraphManager.evict`."""
    capacity = auto()
    """To make place for another graph of the component."""
    budget = auto()
    """To make room in the byte budget."""


OTHER = "other"
"""The bucket of detail that found no place of its own."""


class BoundedCounter:
    """Counts by key for the first ``limit`` keys, the rest under `OTHER`; the total is exact."""

    __slots__ = ("_counts", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._counts: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: Hashable) -> None:
        """Count one."""
        self.total += 1
        if key not in self._counts and len(self._counts) >= self.limit:
            key = OTHER
        self._counts[key] += 1

    def snapshot(self) -> Mapping[Hashable, int]:
        """Counts by key."""
        return dict(self._counts)


@dataclass(frozen=True, slots=True)
class ComponentStats:
    """Counts of one component since it was prepared.

    Attributes:
        hits: Calls answered by a graph, and low-level replays.
        fallbacks: Calls answered eagerly, by reason.
        captures: Graphs bound.
        failures: Failed captures and launches, by kind.
        evicted: Graphs retired by choice, by cause.
        misses: Missed runtime keys, bounded; the rest under ``other``.
    """

    hits: int
    fallbacks: Mapping[Fallback, int]
    captures: int
    failures: Mapping[FailureKind, int]
    evicted: Mapping[Eviction, int]
    misses: Mapping[Hashable, int]

    def summary(self) -> str:
        """One line for a log."""
        share = self.hits / self.calls if self.calls else 0.0
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.fallbacks.items()))
        failures = ", ".join(f"{kind} {count}" for kind, count in sorted(self.failures.items()))
        return (
            f"{self.calls} calls, {share:.1%} by graph, captures {self.captures}, evictions {self.evictions}"
            f"{f', eager: {reasons}' if reasons else ''}{f', failures: {failures}' if failures else ''}"
        )

    @property
    def evictions(self) -> int:
        """Graphs retired by choice."""
        return sum(self.evicted.values())

    @property
    def calls(self) -> int:
        """Hits and fallbacks together."""
        return self.hits + sum(self.fallbacks.values())


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counts of a manager.

    Attributes:
        components: By component id.
        reclaims: Recordings destroyed.
        flushes: Times that retired pools and cached memory were returned to the device.
        reclaimed_bytes: Bytes returned by them.
        stalled_ns: Time spent in them, during which other threads' launches wait (fact S3), nanoseconds.
    """

    components: Mapping[str, ComponentStats]
    reclaims: int
    flushes: int
    reclaimed_bytes: int
    stalled_ns: int


@dataclass(slots=True)
class Counters:
    """The live counters behind a `ComponentStats`; guarded by the device's lock."""

    detail: int
    retired_hits: int = 0
    captures: int = 0
    evicted: Counter[Eviction] = field(default_factory=Counter)
    fallbacks: Counter[Fallback] = field(default_factory=Counter)
    failures: Counter[FailureKind] = field(default_factory=Counter)
    misses: BoundedCounter = field(init=False)

    def __post_init__(self) -> None:
        self.misses = BoundedCounter(self.detail)

    def snapshot(self, live_hits: int) -> ComponentStats:
        """Freeze."""
        return ComponentStats(
            hits=self.retired_hits + live_hits,
            fallbacks=dict(self.fallbacks),
            captures=self.captures,
            failures=dict(self.failures),
            evicted=dict(self.evicted),
            misses=self.misses.snapshot(),
        )
