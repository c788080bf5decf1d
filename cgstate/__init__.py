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
    from cgstate.errors import (
        CaptureActive,
        CaptureFailed,
        CGStateError,
        ConfigError,
        IllegalTransition,
        InvariantViolation,
        LeaseOutstanding,
        ManagerClosed,
        ManagerPoisoned,
        NotResident,
        OutputExpired,
        PoolRetired,
        StaleBinding,
        TableError,
        WrongThread,
    )
    from cgstate.lifecycle.states import ComponentState, EntryState, FailureKind, ManagerState, PoolKind, PoolState
    from cgstate.routine import BucketedRoutine, Resolution, Routine
    from cgstate.runtime.component import CaptureMode, Component, LeasedComponent
    from cgstate.runtime.dependency import Dependency
    from cgstate.runtime.domain import Isolation
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.lease import Lease
    from cgstate.runtime.leased import LeasedOutput
    from cgstate.runtime.manager import CaptureReport, GraphManager
    from cgstate.runtime.memory import MemoryEstimate, MemoryReport, Sample
    from cgstate.runtime.preparing import PrepareReport
    from cgstate.runtime.stats import ComponentStats, Fallback, ManagerStats
    from cgstate.runtime.sync import Sync, ThreadingSync
    from cgstate.runtime.transaction import Transaction
    from cgstate.runtime.vote import AloneInTheWorld, Ballot, RankVote

logging.getLogger("cgstate").addHandler(logging.NullHandler())  # silent unless the application configures logging

__version__ = "0.1.0.dev0"

__all__ = [
    "AloneInTheWorld",
    "Backend",
    "Ballot",
    "BucketedRoutine",
    "CGStateError",
    "CaptureActive",
    "CaptureErrorMode",
    "CaptureFailed",
    "CaptureMode",
    "CaptureReport",
    "Component",
    "ComponentState",
    "ComponentStats",
    "ConfigError",
    "Dependency",
    "Entry",
    "EntryState",
    "FailureKind",
    "Fallback",
    "GraphManager",
    "IllegalTransition",
    "InvariantViolation",
    "Isolation",
    "Lease",
    "LeaseOutstanding",
    "LeasedComponent",
    "LeasedOutput",
    "ManagerClosed",
    "ManagerPoisoned",
    "ManagerState",
    "ManagerStats",
    "MemoryEstimate",
    "MemoryReport",
    "NotResident",
    "OutputExpired",
    "PoolKind",
    "PoolRetired",
    "PoolState",
    "PrepareReport",
    "RankVote",
    "Resolution",
    "Routine",
    "Sample",
    "StaleBinding",
    "Sync",
    "TableError",
    "ThreadingSync",
    "Transaction",
    "WrongThread",
]

_ROOMS = (
    "cgstate.errors",
    "cgstate.lifecycle.states",
    "cgstate.backends.base",
    "cgstate.routine",
    "cgstate.runtime.sync",
    "cgstate.runtime.vote",
    "cgstate.runtime.manager",
    "cgstate.runtime.component",
    "cgstate.runtime.leased",
)
"""Where the public names are found, in this order. The last ones import most of the runtime."""


def __getattr__(name: str) -> object:
    """Import a public name on first use: ``import cgstate`` costs nothing, and the generators run before what they generate."""
    if name in __all__:
        for room in _ROOMS:
            module = importlib.import_module(room)
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 'cgstate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
