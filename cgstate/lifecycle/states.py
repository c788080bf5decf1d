"""The words of the lifecycle: states, events, kinds.

All are `StrEnum`: their members are plain strings to logs, JSON and other tools, and hash at C speed.
"""

from __future__ import annotations

from enum import StrEnum, auto


class UpperStrEnum(StrEnum):
    """A `StrEnum` whose values are its member names, as states are written everywhere."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
        return name


class EntryState(UpperStrEnum):
    """States of a graph entry, and of a component: both machines have exactly these six."""

    EAGER = auto()
    CAPTURING = auto()
    BOUND = auto()
    REPLAYING = auto()
    EVICTED = auto()
    FAILED = auto()


ComponentState = EntryState


class PoolState(UpperStrEnum):
    """States of a private memory pool."""

    MINTED = auto()
    RECORDING = auto()
    LIVE = auto()
    RETIRED = auto()
    GONE = auto()


class ManagerState(UpperStrEnum):
    """States of a graph manager."""

    NEW = auto()
    PREPARED = auto()
    PROFILING = auto()
    CAPTURING = auto()
    SERVING = auto()
    POISONED = auto()
    CLOSED = auto()


class EntryEvent(StrEnum):
    """What can happen to an entry."""

    capture_begin = auto()
    capture_end = auto()
    bind = auto()
    abort = auto()
    capture_fail = auto()
    acquire = auto()
    release = auto()
    replay_fail = auto()
    evict = auto()
    reclaim = auto()
    forget = auto()


class ComponentEvent(StrEnum):
    """What can happen to a component."""

    begin = auto()
    commit = auto()
    abort = auto()
    fail = auto()
    first_lease = auto()
    last_release = auto()
    last_retired = auto()
    lazy_bind = auto()
    forget = auto()


class PoolEvent(StrEnum):
    """What can happen to a pool."""

    begin = auto()
    end = auto()
    fail = auto()
    destroyed = auto()
    retire = auto()
    reclaimed = auto()


class ManagerEvent(StrEnum):
    """What can happen to a manager."""

    prepare = auto()
    profile_begin = auto()
    profile_end = auto()
    capture = auto()
    commit = auto()
    fail = auto()
    drain = auto()
    undrain = auto()
    release = auto()
    device_lost = auto()
    close = auto()


class PoolKind(StrEnum):
    """Whose pool it is, and what may be bound from it."""

    shared = auto()
    per_component = auto()
    per_entry = auto()
    throwaway = auto()
    foreign = auto()


class FailureKind(UpperStrEnum):
    """Why a capture failed, and so when a retry makes sense.

    REJECTED: the descriptor cannot be captured; not again while its record is kept.
    USER: the routine raised; propagates, retry by explicit call.
    OOM: out of memory; retry after something was reclaimed.
    FOREIGN: another thread broke the capture; retry at once.
    BUDGET: over the byte budget; retry after bytes came back.
    DEVICE: the context is lost; the manager is POISONED.
    """

    REJECTED = auto()
    USER = auto()
    OOM = auto()
    FOREIGN = auto()
    BUDGET = auto()
    DEVICE = auto()
