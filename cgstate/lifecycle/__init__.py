"""The lifecycle as data: states, the four tables, their invariants, and what runs, checks and shows them.

Imports nothing from the other rooms, and neither torch nor any other framework. Start reading at `tables`.
"""

from cgstate.errors import IllegalTransition
from cgstate.lifecycle.states import (
    ComponentEvent,
    ComponentState,
    EntryEvent,
    EntryState,
    FailureKind,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolKind,
    PoolState,
)
from cgstate.lifecycle.table import Guard, Machine, Row, Set
from cgstate.lifecycle.tables import COMPONENT, ENTRY, MACHINES, MANAGER, POOL, table_hash

__all__ = [
    "COMPONENT",
    "ENTRY",
    "MACHINES",
    "MANAGER",
    "POOL",
    "ComponentEvent",
    "ComponentState",
    "EntryEvent",
    "EntryState",
    "FailureKind",
    "Guard",
    "IllegalTransition",
    "Machine",
    "ManagerEvent",
    "ManagerState",
    "PoolEvent",
    "PoolKind",
    "PoolState",
    "Row",
    "Set",
    "table_hash",
]
