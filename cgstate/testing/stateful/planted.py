"""Planted bugs: for each kind of fault that people have met, a way to break the runtime that the walks must find.

Each is a context manager that patches the runtime while it is entered. They keep the harness honest: what finds nothing planted
would find nothing grown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from cgstate.backends.undo import UndoLog
from cgstate.lifecycle.states import ManagerState
from cgstate.runtime import dependency, ending, leasing, manager, memory, residency, sharing
from cgstate.runtime.books import Books
from cgstate.runtime.domain import Domain
from cgstate.runtime.failure import NegativeCache
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.pool import Pool
from cgstate.runtime.reclaimer import Reclaimer
from cgstate.runtime.record import ComponentRecord
from cgstate.runtime.stats import BoundedCounter
from cgstate.runtime.turn import Turn
from cgstate.testing.plantings import Patch, destroys_in_captures, eviction_ignores_leases, suspend_does_not_wait
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.walk import STEPS, steady, walk_once

__all__ = ["PLANTED", "Planted", "examples_until_found"]


@dataclass(frozen=True)
class Planted:
    """One planted bug.

    Attributes:
        kind: The kind of fault, e.g. ``K05``.
        name: What the kind is called.
        story: What is wrong, in words.
        planting: Makes the context manager that breaks the runtime.
    """

    kind: str
    name: str
    story: str
    planting: Callable[[], Patch]


def _retired_pool_is_opened() -> Patch:
    right = Domain.open_pool

    def open_pool(self: Domain, books: Books) -> Pool:
        return self.pool if self.pool is not None else right(self, books)

    return patch.object(Domain, "open_pool", open_pool)


def _dead_pool_records_again() -> Patch:
    return patch.object(Books, "retire_pool", lambda self, pool: None)


def _nothing_is_undone() -> Patch:
    def fail(self: UndoLog) -> None:
        self._run(failed=False)

    return patch.object(UndoLog, "fail", fail)


def _estimate_is_too_low() -> Patch:
    right = memory.profile_memory

    def profile_memory(*args: Any, **keys: Any) -> Any:
        estimate = right(*args, **keys)
        object.__setattr__(estimate, "upper", estimate.lower // 2)
        object.__setattr__(estimate, "lower", estimate.lower // 4)
        return estimate

    return patch.object(memory, "profile_memory", profile_memory)


def _ledger_only_grows() -> Patch:
    right = Pool.measure

    def measure(self: Pool, *, failed: bool = False) -> int:
        before = self._charged
        right(self, failed=failed)
        self._charged = max(before, self._charged)
        return self._charged

    return patch.object(Pool, "measure", measure)


def _destroyed_under_replay() -> Patch:
    return patch.object(Reclaimer, "_passed", lambda self, retired: True)


def _moved_memory_retires_nothing() -> Patch:
    def invalidate(books: Books, dependencies: Any) -> int:
        for each in dependencies:
            each.epoch += 1
        return 0

    return _both(patch.object(manager, "invalidate", invalidate), patch.object(residency, "invalidate", invalidate))


def _suspended_memory_is_used() -> Patch:
    return patch.object(residency, "missing", lambda record: ())


def _outputs_never_expire() -> Patch:
    return patch.object(LeasedOutput, "expired", property(lambda self: False))


def _streams_do_not_wait() -> Patch:
    right = Turn.follow

    def follow(self: Turn, handle: int, backend: Any) -> None:
        self.waits.clear()
        self.last_stream = None
        right(self, handle, backend)

    return patch.object(Turn, "follow", follow)


def _replays_in_captures() -> Patch:
    return patch.object(leasing, "_await_gate", lambda entry, thread: False)


def _evicted_graphs_are_offered() -> Patch:
    right = ComponentRecord.refresh

    def refresh(self: ComponentRecord) -> None:
        before = self.available
        right(self)
        self.available |= before

    return patch.object(ComponentRecord, "refresh", refresh)


def _close_returns_nothing() -> Patch:
    return patch.object(ending, "return_bytes", lambda books, **how: None)


def _failures_are_never_forgotten() -> Patch:
    def remember(self: NegativeCache, component: str, descriptor: Any, failure: Any) -> None:
        self._records[component, descriptor] = failure

    return patch.object(NegativeCache, "remember", remember)


def _every_miss_is_kept() -> Patch:
    def add(self: BoundedCounter, key: Any) -> None:
        self.total += 1
        self._counts[key] += 1

    return patch.object(BoundedCounter, "add", add)


def _refused_close_stops_serving() -> Patch:
    @contextmanager
    def drained(books: Books, event: str, timeout: float | None) -> Iterator[None]:
        ending._refuse_own(books, event, books.thread_id())
        if books.serving and books.state is ManagerState.SERVING:
            books.drain()
        ending.await_leases(books, event, timeout, lambda: books.leases)
        yield

    return patch.object(ending, "drained", drained)


def _epochs_are_not_noted() -> Patch:
    def invalidate(books: Books, dependencies: Any) -> int:
        touched = set()
        for each in dependencies:
            each.epoch += 1
            for record in dependency.dependents(books, (each,)):
                touched |= {entry.domain for entry in record.entries.values()}
        return sum(books.evict_domain(domain, counted=False) for domain in list(touched)[:1])

    return _both(patch.object(manager, "invalidate", invalidate), patch.object(residency, "invalidate", invalidate))


def _breaks_let_nobody_in() -> Patch:
    return patch.object(Turn, "lets_in", lambda *_: False)


def _who_is_inside_is_forgotten() -> Patch:
    return patch.object(sharing, "join_components", lambda *_: None)


def _live_memory_is_shared() -> Patch:
    return patch.object(sharing, "_check", lambda *_: None)


@contextmanager
def _both(one: Any, other: Any) -> Iterator[None]:
    with one, other:
        yield


PLANTED = (
    Planted("K01", "dead pool", "a retired pool is opened again", _retired_pool_is_opened),
    Planted("K01", "dead pool", "a pool whose last graph is gone records again", _dead_pool_records_again),
    Planted("K02", "capture fails", "what a failed capture has done is not undone", _nothing_is_undone),
    Planted("K03", "estimate", "the estimate's upper bound is half of what is needed", _estimate_is_too_low),
    Planted("K04", "ledger", "what a pool is charged never becomes less", _ledger_only_grows),
    Planted("K05", "evicted alive", "graphs are destroyed while the device replays them", _destroyed_under_replay),
    Planted("K05", "evicted alive", "an eviction does not wait for leases", eviction_ignores_leases),
    Planted("K06", "baked address", "nothing is retired when memory moves", _moved_memory_retires_nothing),
    Planted("K06", "baked address", "only one domain is retired when memory moves", _epochs_are_not_noted),
    Planted("K07", "residency", "memory that is suspended is used", _suspended_memory_is_used),
    Planted("K08", "output alias", "lent outputs never expire", _outputs_never_expire),
    Planted("K08", "output alias", "what is live across a break may be overwritten there", _live_memory_is_shared),
    Planted("K09", "stream order", "replays on two streams do not wait for each other", _streams_do_not_wait),
    Planted("K10", "threads", "memory is suspended while another thread holds a lease on it", suspend_does_not_wait),
    Planted("K11", "finaliser", "what is retired is destroyed while a capture is open", destroys_in_captures),
    Planted("K12", "in capture", "a graph may be replayed inside of a capture", _replays_in_captures),
    Planted("K13", "dispatch", "graphs that were evicted are still offered to calls", _evicted_graphs_are_offered),
    Planted("K13", "dispatch", "in an eager break nothing is answered by its graph", _breaks_let_nobody_in),
    Planted("K13", "dispatch", "who is declared inside another is kept apart from it", _who_is_inside_is_forgotten),
    Planted("K15", "teardown", "close gives nothing back", _close_returns_nothing),
    Planted("K16", "unbounded", "every failure is remembered", _failures_are_never_forgotten),
    Planted("K16", "unbounded", "every missed key is counted by itself", _every_miss_is_kept),
    Planted("K17", "sticky state", "a close that was refused leaves the manager draining", _refused_close_stops_serving),
)
"""At least one for each kind that is a lifecycle fault of the runtime."""


def examples_until_found(planted: Planted, seed: int, most: int = 400, bed: type[Bed] = Bed) -> int:
    """How many walks of the default length it takes to find a planted bug, from ``seed`` on; 0 if ``most`` do not."""
    with steady(), planted.planting():
        for number in range(most):
            try:
                walk_once(bed, seed + number, steps=STEPS)
            except Violated:
                return number + 1
    return 0
