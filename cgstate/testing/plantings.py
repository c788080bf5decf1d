"""Ways to break the runtime that both the walks and the schedules must find: each makes a context manager that patches it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from cgstate.lifecycle.states import EntryState
from cgstate.runtime import residency
from cgstate.runtime.entry import Entry
from cgstate.runtime.reclaimer import Reclaimer

__all__ = ["Patch", "destroys_in_captures", "eviction_ignores_leases", "suspend_does_not_wait"]

Patch = AbstractContextManager[Any]


def eviction_ignores_leases() -> Patch:
    """An entry is EVICTED at once, and who leases it is not asked."""
    right = Entry.evict

    def evict(entry: Entry) -> None:
        if entry.state is EntryState.REPLAYING:
            entry.component.leased -= 1
            entry.component.bound -= 1
            entry.unreclaimed += 1
            entry.leases = 0
            entry.state = EntryState.EVICTED
        else:
            right(entry)

    return patch.object(Entry, "evict", evict)


def suspend_does_not_wait() -> Patch:
    """Memory is suspended while calls use it."""
    return patch.object(residency, "await_leases", lambda *_: None)


def destroys_in_captures() -> Patch:
    """The reclaimer takes the gate for free, whatever is being captured."""
    right = Reclaimer._take

    def take(reclaimer: Reclaimer) -> Any:
        gate = reclaimer.books.gate
        free, gate.free = gate.free, True
        try:
            return right(reclaimer)
        finally:
            gate.free = free

    return patch.object(Reclaimer, "_take", take)
