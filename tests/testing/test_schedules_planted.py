"""The battery finds planted concurrency bugs: each is one that the code could really have, and there is a case that shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cgstate.lifecycle.states import EntryState
from cgstate.runtime import ending, leasing, residency
from cgstate.runtime.books import Books
from cgstate.runtime.entry import Entry
from cgstate.runtime.gate import CaptureGate
from cgstate.runtime.lease import Lease
from cgstate.runtime.reclaimer import Reclaimer
from cgstate.runtime.transaction import Transaction
from cgstate.runtime.turn import Turn
from cgstate.testing.schedules import ScheduleFailed, replay
from cgstate.testing.schedules.battery import CASES, check_case, on_stage

Patch = Callable[[pytest.MonkeyPatch], None]


def eviction_ignores_leases(patch: pytest.MonkeyPatch) -> None:
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

    patch.setattr(Entry, "evict", evict)


def a_lease_looks_at_its_marks_before_it_has_the_lock(patch: pytest.MonkeyPatch) -> None:
    def end(lease: Lease, *_: object) -> None:
        entry = lease.entry
        evicted = entry.retiring
        entry.manager.point("look")
        with entry.gate.lock:
            entry.retiring = evicted
            lease.end()
        entry.manager.settle()

    patch.setattr(Lease, "__exit__", end)


def a_lease_ends_without_the_lock(patch: pytest.MonkeyPatch) -> None:
    def end(lease: Lease, *_: object) -> None:
        lease.end()
        lease.entry.manager.settle()

    patch.setattr(Lease, "__exit__", end)


def the_gate_is_looked_at_before_the_lock_is_taken(patch: pytest.MonkeyPatch) -> None:
    right = Transaction._await_gate

    def await_gate(transaction: Transaction, *args: Any) -> None:
        right(transaction, *args)
        lock = transaction._books.gate.lock
        lock.release()
        lock.acquire()

    patch.setattr(Transaction, "_await_gate", await_gate)


def nobody_waits_for_the_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leasing, "in_the_way", lambda entry, thread: 0)


def streams_do_not_wait_for_each_other(patch: pytest.MonkeyPatch) -> None:
    def follow(turn: Turn, handle: int, backend: Any) -> None:
        turn.waits.clear()
        turn.last_stream = backend.current_stream()
        turn.last_handle = handle

    patch.setattr(Turn, "follow", follow)


def changes_are_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CaptureGate, "notify", lambda gate: None)


def the_end_of_a_lease_is_not_announced(patch: pytest.MonkeyPatch) -> None:
    def ended(entry: Entry) -> None:
        waiting, entry.gate.waiting = entry.gate.waiting, 0
        try:
            right(entry)
        finally:
            entry.gate.waiting = waiting

    right = leasing.ended
    patch.setattr(leasing, "ended", ended)


def close_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ending, "await_leases", lambda *_: None)


def suspend_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(residency, "await_leases", lambda *_: None)


def two_have_the_manager_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Books, "try_exclusive", lambda books, thread: True)


def graphs_are_destroyed_during_a_capture(patch: pytest.MonkeyPatch) -> None:
    right = Reclaimer._take

    def take(reclaimer: Reclaimer) -> list[Any]:
        gate = reclaimer.books.gate
        free, gate.free = gate.free, True
        try:
            return right(reclaimer)
        finally:
            gate.free = free

    patch.setattr(Reclaimer, "_take", take)


def captures_begin_during_a_destruction(patch: pytest.MonkeyPatch) -> None:
    right = CaptureGate.blocks_capture

    def blocks(gate: CaptureGate, thread: int) -> bool:
        destroying, gate.destroying = gate.destroying, 0
        try:
            return right(gate, thread)
        finally:
            gate.destroying = destroying

    patch.setattr(CaptureGate, "blocks_capture", blocks)


def a_waiting_replay_does_not_look_at_its_lease_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leasing, "_check_lease", lambda entry: None)
