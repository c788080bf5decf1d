"""cgstate: the lifecycle of CUDA graphs, explicit.

A `GraphManager` owns the graphs of a model runner. `Component`s are the model's call sites; each runs a `Routine`, eagerly or by
one of its captured graphs. Everything that may happen to a graph is a row of a table (`cgstate.lifecycle`), and what the tables do
not allow is refused by a typed error that changes nothing.
"""

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cgstate.backends.base import Backend, CaptureErrorMode
    from cgstate.breaks import Break, run_eagerly
    from cgstate.errors import (
        BudgetExceeded,
        CaptureActive,
        CaptureFailed,
        CGStateError,
        ConfigError,
        IllegalTransition,
        InvariantViolation,
        LeaseOutstanding,
        LiveAcrossBreak,
        ManagerClosed,
        ManagerPoisoned,
        NotResident,
        OutputExpired,
        PoolRetired,
        Reentered,
        ReleasePending,
        StaleBinding,
        TableError,
        WrongThread,
    )
    from cgstate.lifecycle.states import ComponentState, EntryState, FailureKind, ManagerState, PoolKind, PoolState
    from cgstate.routine import BucketedRoutine, Resolution, Routine, by_shape
    from cgstate.runtime.component import CaptureMode, Component, LeasedComponent
    from cgstate.runtime.dependency import Dependency
    from cgstate.runtime.domain import Isolation
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.explicit import CaptureReport
    from cgstate.runtime.lease import Lease
    from cgstate.runtime.leased import LeasedOutput
    from cgstate.runtime.manager import GraphManager
    from cgstate.runtime.memory import (
        Comparison,
        ComponentMemory,
        EntryMemory,
        ForeignMemory,
        MemoryEstimate,
        MemoryReport,
        PoolMemory,
        Profile,
        Sample,
        StreamMemory,
    )
    from cgstate.runtime.preparing import PrepareReport
    from cgstate.runtime.stats import ComponentStats, Eviction, Fallback, ManagerStats
    from cgstate.runtime.sync import Sync, ThreadingSync
    from cgstate.runtime.transaction import Transaction
    from cgstate.runtime.vote import AloneInTheWorld, Ballot, RankVote

logging.getLogger("cgstate").addHandler(logging.NullHandler())  # silent unless the application configures logging

__version__ = "0.1.0.dev0"

__all__ = [
    "AloneInTheWorld",
    "Backend",
    "Ballot",
    "Break",
    "BucketedRoutine",
    "BudgetExceeded",
    "CGStateError",
    "CaptureActive",
    "CaptureErrorMode",
    "CaptureFailed",
    "CaptureMode",
    "CaptureReport",
    "Comparison",
    "Component",
    "ComponentMemory",
    "ComponentState",
    "ComponentStats",
    "ConfigError",
    "Dependency",
    "Entry",
    "EntryMemory",
    "EntryState",
    "Eviction",
    "FailureKind",
    "Fallback",
    "ForeignMemory",
    "GraphManager",
    "IllegalTransition",
    "InvariantViolation",
    "Isolation",
    "Lease",
    "LeaseOutstanding",
    "LeasedComponent",
    "LeasedOutput",
    "LiveAcrossBreak",
    "ManagerClosed",
    "ManagerPoisoned",
    "ManagerState",
    "ManagerStats",
    "MemoryEstimate",
    "MemoryReport",
    "NotResident",
    "OutputExpired",
    "PoolKind",
    "PoolMemory",
    "PoolRetired",
    "PoolState",
    "PrepareReport",
    "Profile",
    "RankVote",
    "Reentered",
    "ReleasePending",
    "Resolution",
    "Routine",
    "Sample",
    "StaleBinding",
    "StreamMemory",
    "Sync",
    "TableError",
    "ThreadingSync",
    "Transaction",
    "WrongThread",
    "by_shape",
    "run_eagerly",
]

_HOMES = {
    "cgstate.backends.base": "Backend CaptureErrorMode",
    "cgstate.breaks": "Break run_eagerly",
    "cgstate.errors": (
        "BudgetExceeded CaptureActive CaptureFailed CGStateError ConfigError IllegalTransition InvariantViolation LeaseOutstanding "
        "LiveAcrossBreak ManagerClosed ManagerPoisoned NotResident OutputExpired PoolRetired Reentered ReleasePending StaleBinding "
        "TableError WrongThread"
    ),
    "cgstate.lifecycle.states": "ComponentState EntryState FailureKind ManagerState PoolKind PoolState",
    "cgstate.routine": "BucketedRoutine Resolution Routine by_shape",
    "cgstate.runtime.component": "CaptureMode Component LeasedComponent",
    "cgstate.runtime.dependency": "Dependency",
    "cgstate.runtime.domain": "Isolation",
    "cgstate.runtime.entry": "Entry",
    "cgstate.runtime.lease": "Lease",
    "cgstate.runtime.leased": "LeasedOutput",
    "cgstate.runtime.explicit": "CaptureReport",
    "cgstate.runtime.manager": "GraphManager",
    "cgstate.runtime.memory": (
        "Comparison ComponentMemory EntryMemory ForeignMemory MemoryEstimate MemoryReport PoolMemory Profile Sample StreamMemory"
    ),
    "cgstate.runtime.preparing": "PrepareReport",
    "cgstate.runtime.stats": "ComponentStats Eviction Fallback ManagerStats",
    "cgstate.runtime.sync": "Sync ThreadingSync",
    "cgstate.runtime.transaction": "Transaction",
    "cgstate.runtime.vote": "AloneInTheWorld Ballot RankVote",
}
"""Where each public name lives; the imports above say the same to type checkers."""

_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name on first use: ``import cgstate`` costs nothing, and the generators run before what they generate."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'cgstate' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
