"""The reclaimer: destroys retired recordings once no lease is left, their fence has passed and no capture is open (I2, I3).

There is no background thread. Whoever next releases a lease, captures, reads memory or calls `reclaim` does the work. Retiring and
returning bytes are two acts: dropping a pool and flushing the allocator waits for the device and stalls other threads (fact S3), so
`flush` is done only when asked for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgstate.backends.base import Event, Graph
from cgstate.lifecycle.states import EntryState, PoolState
from cgstate.runtime.domain import Isolation
from cgstate.runtime.pool import Pool

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry

log = logging.getLogger("cgstate")


@dataclass(slots=True, eq=False)
class Retired:
    """What is left of one attempt or recording.

    Attributes:
        entry: Whose it was; that entry may be in any state by now.
        pool: The pool it was recorded in.
        graph: The recording; None when the attempt was undone.
        keep: Buffers and outputs, kept alive until the device is done with them.
        fence: Marks that the device must have passed; None while they could not be set yet.
    """

    entry: Entry
    pool: Pool
    graph: Graph | None
    keep: object
    fence: tuple[Event, ...] | None


class Reclaimer:
    """The retired recordings of one manager. `queue` and the counts are guarded by the device's lock."""

    __slots__ = ("books", "flushed_bytes", "flushes", "queue", "reclaims", "stalled_ns", "unflushed")

    def __init__(self, books: Books) -> None:
        self.books = books
        self.queue: deque[Retired] = deque()
        self.reclaims = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.stalled_ns = 0
        self.unflushed = False

    def retire(self, entry: Entry, pool: Pool, graph: Graph | None, keep: object) -> None:
        """Hand over a recording; the lock is held."""
        self.queue.append(Retired(entry, pool, graph, keep, pool.fence()))

    def settle(self) -> None:
        """Destroy what may be destroyed now. Cheap when there is nothing; never waits."""
        if not self.queue and not self.books.gate.orphans:
            return
        gate = self.books.gate
        with gate.lock:
            orphans = list(gate.orphans)
            batch = self._take()
        self._destroy(batch)
        for orphan in orphans:
            if orphan():
                gate.orphans.remove(orphan)

    def flush(self) -> int:
        """Return what retired pools still cache to the device; the bytes returned. Waits for the device (S3)."""
        books = self.books
        gate = books.gate
        with gate.lock:
            while not gate.free or gate.destroying:
                if gate.holder == books.thread_id() and not gate.free:
                    return 0  # inside our own open capture: nothing may be freed now
                gate.wait()
            gate.destroying += 1
        started = books.sync.now_ns()
        try:
            if self.unflushed and self._workspaces_are_ours() and books.backend.clear_workspaces():
                self.unflushed = False
                with gate.lock:
                    books.workspaces_cleared()
            returned = books.backend.flush()
        finally:
            with gate.lock:
                gate.destroying -= 1
                gate.notify()
        with gate.lock:
            self.flushes += 1
            self.flushed_bytes += returned
            self.stalled_ns += books.sync.now_ns() - started
        return returned

    def _take(self) -> list[Retired]:
        """Step the entries of whatever may go now, and keep captures out until `_destroy` is done; the lock is held."""
        gate = self.books.gate
        if not gate.free or not self.queue:
            return []
        batch, left = [], deque[Retired]()
        for retired in self.queue:
            pool = retired.pool
            if retired.fence is None:
                retired.fence = pool.fence()
            leases = sum(entry.leases for entry in pool.domain.entries if entry.pool is pool)
            passed = retired.fence is not None and all(event.done() for event in retired.fence)
            if passed and not leases and not (pool.domain.adopted and pool.state is not PoolState.RETIRED):
                retired.entry.reclaim(pool_leases=leases, fence_passed=passed)
                batch.append(retired)
            else:
                left.append(retired)
        self.queue = left
        if batch:
            gate.destroying += 1
        return batch

    def _destroy(self, batch: Sequence[Retired]) -> None:
        """Destroy outside the lock, going on past whatever raises."""
        if not batch:
            return
        gate = self.books.gate
        point = self.books.sync.point
        if point is not None:
            point("destroy")
        for retired in batch:
            retired.keep = None
            if retired.graph is not None:
                try:
                    retired.graph.destroy()
                except Exception:
                    log.exception("destroying a graph of %s failed; going on", retired.entry.name)
        with gate.lock:
            gate.destroying -= 1
            self.reclaims += len(batch)
            for retired in batch:
                self._settled(retired)
            gate.notify()

    def _settled(self, retired: Retired) -> None:
        """After the destruction: the pool's count, the pool's end, the entry's name; the lock is held."""
        pool, entry = retired.pool, retired.entry
        if retired.graph is not None:
            pool.destroyed()
            retired.graph = None
        self.end_pool(pool)
        lazy = not entry.startup
        if lazy and not entry.unreclaimed and entry.state in (EntryState.EVICTED, EntryState.FAILED):
            entry.forget()
        if lazy and not entry.unreclaimed and entry.state is EntryState.EAGER and entry.component.entries.get(entry.descriptor) is entry:
            entry.component.drop(entry)

    def end_pool(self, pool: Pool) -> None:
        """Drop a retired pool's anchor when nothing of it is left; the lock is held."""
        if pool.state is not PoolState.RETIRED or pool.graphs:
            return
        pool.reclaimed()
        books = self.books
        domain = pool.domain
        if domain.pool is pool:
            domain.pool = None
            domain.primed = False
            if domain.kind.value == Isolation.per_entry and domain.stream is not None:
                # Its library workspace may still be keyed by this handle: reused only after a clear (facts W3, W5).
                books.spent_streams.append(domain.stream)
                domain.stream = None
        self.unflushed = True
        pool.handle.drop()

    def _workspaces_are_ours(self) -> bool:
        """Whether the global workspace clear can hurt no live graph (facts W2, W3)."""
        books = self.books
        if any(domain.adopted and domain.live for domain in books.domains.values()):
            return False
        return not books.backend.has_foreign_graphs(frozenset(pool.id for pool in books.pools))
