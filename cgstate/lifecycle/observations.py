"""What no World shows: things that take time, and things outside the books.

Each class is one kind of observation, made by whoever saw it: a destruction, a profile, the calls into a pool, a failed capture,
the answer to a call, a comparison of outputs. `invariants` judges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import TypeAlias

Footprint: TypeAlias = Mapping[str, object]
"""Named readings of everything that must come back: pools, bytes, entries, streams, generator, counters."""


@dataclass(frozen=True, slots=True)
class Destruction:
    """A graph or buffer was destroyed.

    Attributes:
        what: Its name.
        leases: Leases held, at that moment, on entries that it shares memory with.
        replays_done: Whether the device had finished its last replay.
        captures_open: Captures open on the device at that moment, whoever opened them.
    """

    what: str
    leases: int
    replays_done: bool
    captures_open: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile ran.

    Attributes:
        before: Footprint before it.
        after: Footprint after it.
        bound: Names of entries that are bound to something profiled.
    """

    before: Footprint
    after: Footprint
    bound: tuple[str, ...] = ()


class Work(StrEnum):
    """What one call does in a pool."""

    write = auto()
    replay = auto()
    clone = auto()


@dataclass(frozen=True, slots=True)
class Turn:
    """One call's turn in a pool.

    Attributes:
        call: Name or number of the call.
        thread: The thread.
        stream: The stream its work went to.
        began: Sequence number when the turn was taken.
        ended: Sequence number when it was given back.
        work: What was done in it.
        waited_for: Streams whose work in the pool this turn's stream waits for on the device.
    """

    call: str
    thread: int
    stream: int
    began: int
    ended: int
    work: frozenset[Work]
    waited_for: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PoolTurns:
    """All turns that were taken in one pool, in any order."""

    pool: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class FailedCapture:
    """A capture failed and was undone.

    Attributes:
        entry: Name of the entry.
        before: Footprint before the attempt.
        after: Footprint after it.
        stranded: By name of the reading, the growth that is charged as stranded: allowed in a pool with other live entries (S4).
        eager_works: Whether eager work succeeded afterwards.
        next_capture_works: Whether the next capture did.
    """

    entry: str
    before: Footprint
    after: Footprint
    stranded: Mapping[str, int] = field(default_factory=dict)
    eager_works: bool = True
    next_capture_works: bool = True


class Outcome(StrEnum):
    """How a component call can end."""

    graph = auto()
    eager = auto()
    routine_error = auto()
    not_resident = auto()
    stale_binding = auto()
    launch_error = auto()
    manager_poisoned = auto()
    other_error = auto()


class Obstacle(StrEnum):
    """Why there was no graph for a call, where the answer must be eager."""

    miss = auto()
    gate_busy = auto()
    manager_closed = auto()
    rejected = auto()
    oom = auto()
    foreign = auto()
    budget = auto()


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """A component call was answered.

    Attributes:
        component: Name of the component.
        outcome: How the call ended.
        obstacle: What stood in the way of a graph, if one of those did.
        counted: The reason under which the statistics counted it as eager; empty if they did not.
        as_eager: Whether the returned value is what eager returns; None if it raised, or nobody compared.
    """

    component: str
    outcome: Outcome
    obstacle: Obstacle | None = None
    counted: str = ""
    as_eager: bool | None = None


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """A graph's output was compared with eager's, for inputs other than those captured with.

    Attributes:
        entry: Name of the entry.
        repeatable: Whether the eager call, run twice from the same generator and mutable state, gives the same bits.
        bitwise: Whether graph and eager agree bit for bit on the same padded shapes.
        padded_error: Their largest difference there.
        unpadded_error: The largest difference from the unpadded eager call.
        tolerance: What the routine states.
    """

    entry: str
    repeatable: bool
    bitwise: bool
    padded_error: float
    unpadded_error: float
    tolerance: float
