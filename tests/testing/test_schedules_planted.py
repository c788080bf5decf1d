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
    def try_exclusive(books: Books, thread: int) -> bool:
        books.busy = thread
        return True

    patch.setattr(Books, "try_exclusive", try_exclusive)


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


CASE = {case.__name__: case for case in CASES}
# How many schedules it takes, with slack for a runtime that has a few points more or less.
SLACK = 2
PLANTED: list[tuple[Patch, str, int]] = [
    (eviction_ignores_leases, "evict_under_replay", 6),
    (a_lease_looks_at_its_marks_before_it_has_the_lock, "evict_under_lease", 265),
    (a_lease_ends_without_the_lock, "close_under_lease", 5),
    (the_gate_is_looked_at_before_the_lock_is_taken, "capture_against_capture", 233),
    (nobody_waits_for_the_turn, "replay_against_replay", 4),
    (streams_do_not_wait_for_each_other, "replay_against_replay", 1),
    (changes_are_not_announced, "capture_against_call", 4),
    (the_end_of_a_lease_is_not_announced, "close_under_lease", 8),
    (close_does_not_wait, "close_under_replay", 6),
    (suspend_does_not_wait, "suspend_under_call", 78),
    (two_have_the_manager_alone, "lazy_miss_against_lazy_miss", 6),
    (captures_begin_during_a_destruction, "reclaim_against_capture", 180),
    (a_waiting_replay_does_not_look_at_its_lease_again, "evict_under_lease", 6),
]


@pytest.mark.parametrize(("plant", "case", "within"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_the_battery_finds(plant: Patch, case: str, within: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(ScheduleFailed) as found:
        check_case(CASE[case])
    assert found.value.number <= SLACK * within
    with pytest.raises(ScheduleFailed) as again:
        replay(on_stage(CASE[case]), found.value.schedule)
    assert type(again.value.__cause__) is type(found.value.__cause__)
    assert again.value.schedule == found.value.schedule


def test_every_planted_bug_is_looked_for() -> None:
    planted = {value for value in globals().values() if getattr(value, "__annotations__", {}).get("patch") == "pytest.MonkeyPatch"}
    assert planted == {plant for plant, _, _ in PLANTED}
