"""Planted races: for each, the case of the battery that must find it.

Each is a context manager that patches the runtime while it is entered: something that the code could really have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from cgstate.runtime import ending, leasing
from cgstate.runtime.books import Books
from cgstate.runtime.capturing import Capture
from cgstate.runtime.entry import Entry
from cgstate.runtime.gate import CaptureGate
from cgstate.runtime.lease import Lease
from cgstate.runtime.turn import Turn
from cgstate.testing.plantings import Patch, destroys_in_captures, eviction_ignores_leases, suspend_does_not_wait
from cgstate.testing.schedules import cases
from cgstate.testing.schedules.battery import check_case
from cgstate.testing.schedules.errors import ScheduleFailed

__all__ = ["RACES", "PlantedRace", "schedules_until_found"]


@dataclass(frozen=True)
class PlantedRace:
    """One planted race.

    Attributes:
        kind: The kind of fault, e.g. ``K05``.
        name: What the kind is called.
        story: What is wrong, in words.
        case: The case that finds it.
        planting: Makes the context manager that breaks the runtime.
    """

    kind: str
    name: str
    story: str
    case: Callable[..., Any]
    planting: Callable[[], Patch]


def schedules_until_found(planted: PlantedRace) -> int:
    """How many schedules its case takes, of those with at most two preemptions; 0 if none of them shows it."""
    with planted.planting():
        try:
            check_case(planted.case)
        except ScheduleFailed as failed:
            return failed.number
    return 0


def _marks_are_looked_at_before_the_lock_is_taken() -> Patch:
    def end(lease: Lease, *_: object) -> None:
        entry = lease.entry
        evicted = entry.retiring
        entry.manager.point("look")
        with entry.gate.lock:
            entry.retiring = evicted
            lease.end()
        entry.manager.settle()

    return patch.object(Lease, "__exit__", end)


def _a_lease_ends_without_the_lock() -> Patch:
    def end(lease: Lease, *_: object) -> None:
        lease.end()
        lease.entry.manager.settle()

    return patch.object(Lease, "__exit__", end)


def _the_gate_is_looked_at_before_the_lock_is_taken() -> Patch:
    right = Capture._await_gate

    def await_gate(capture: Capture, *args: Any) -> None:
        right(capture, *args)
        lock = capture.entry.manager.gate.lock
        lock.release()
        lock.acquire()

    return patch.object(Capture, "_await_gate", await_gate)


def _nobody_waits_for_the_turn() -> Patch:
    return patch.object(leasing, "in_the_way", lambda entry, thread: 0)


def _streams_do_not_wait_for_each_other() -> Patch:
    def follow(turn: Turn, handle: int, backend: Any) -> None:
        turn.waits.clear()
        turn.last_stream = backend.current_stream()
        turn.last_handle = handle

    return patch.object(Turn, "follow", follow)


def _changes_are_not_announced() -> Patch:
    return patch.object(CaptureGate, "notify", lambda gate: None)


def _the_end_of_a_lease_is_not_announced() -> Patch:
    right = leasing.ended

    def ended(entry: Entry) -> None:
        waiting, entry.gate.waiting = entry.gate.waiting, 0
        try:
            right(entry)
        finally:
            entry.gate.waiting = waiting

    return patch.object(leasing, "ended", ended)


def _close_does_not_wait() -> Patch:
    return patch.object(ending, "await_leases", lambda *_: None)


def _two_have_the_manager_alone() -> Patch:
    def try_exclusive(books: Books, thread: int) -> bool:
        books.busy = thread
        return True

    return patch.object(Books, "try_exclusive", try_exclusive)


def _captures_begin_during_a_destruction() -> Patch:
    right = CaptureGate.blocks_capture

    def blocks(gate: CaptureGate, thread: int) -> bool:
        destroying, gate.destroying = gate.destroying, 0
        try:
            return right(gate, thread)
        finally:
            gate.destroying = destroying

    return patch.object(CaptureGate, "blocks_capture", blocks)


def _a_waiting_replay_does_not_look_again() -> Patch:
    return patch.object(leasing, "_check_lease", lambda entry: None)


RACES = (
    PlantedRace("K05", "evicted alive", "an eviction does not wait for leases", cases.evict_under_replay, eviction_ignores_leases),
    PlantedRace(
        "K05",
        "evicted alive",
        "who ends a lease looks for an eviction before the lock is taken",
        cases.evict_under_lease,
        _marks_are_looked_at_before_the_lock_is_taken,
    ),
    PlantedRace(
        "K05",
        "evicted alive",
        "a replay that had to wait does not look at its lease again",
        cases.evict_under_lease,
        _a_waiting_replay_does_not_look_again,
    ),
    PlantedRace("K07", "residency", "suspending does not wait for calls", cases.suspend_under_call, suspend_does_not_wait),
    PlantedRace(
        "K09",
        "stream order",
        "replays on two streams do not wait for each other",
        cases.replay_against_replay,
        _streams_do_not_wait_for_each_other,
    ),
    PlantedRace("K10", "threads", "calls into one pool do not take turns", cases.replay_against_replay, _nobody_waits_for_the_turn),
    PlantedRace("K10", "threads", "a lease ends without the lock", cases.close_under_lease, _a_lease_ends_without_the_lock),
    PlantedRace(
        "K10",
        "threads",
        "the gate is looked at before the lock is taken",
        cases.capture_against_capture,
        _the_gate_is_looked_at_before_the_lock_is_taken,
    ),
    PlantedRace("K10", "threads", "waiters are not woken", cases.capture_against_call, _changes_are_not_announced),
    PlantedRace(
        "K10", "threads", "two have a manager for themselves", cases.lazy_miss_against_lazy_miss, _two_have_the_manager_alone
    ),
    PlantedRace(
        "K11",
        "finaliser",
        "what is retired is destroyed while a capture is open",
        cases.lease_ends_under_capture,
        destroys_in_captures,
    ),
    PlantedRace(
        "K11",
        "finaliser",
        "a capture begins during a destruction",
        cases.reclaim_against_capture,
        _captures_begin_during_a_destruction,
    ),
    PlantedRace("K15", "teardown", "closing does not wait for replays", cases.close_under_replay, _close_does_not_wait),
    PlantedRace(
        "K15",
        "teardown",
        "closing is not told of a lease's end",
        cases.close_under_lease,
        _the_end_of_a_lease_is_not_announced,
    ),
)
"""Those kinds that show where threads meet."""
