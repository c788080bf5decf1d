"""The reclaimer: destroys retired recordings once no lease is left, their fence has passed and no capture is open (I2, I3).

There is no background thread. Whoever next releases a lease, captures, reads memory or calls `reclaim` does the work. Retiring and
returning bytes are two acts: dropping a pool and flushing the allocator waits for the device and stalls other threads (fact S3). So
pools are dropped only before a capture, which needs their room, and when bytes are asked for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgstate.backends.base import Event, Graph
from cgstate.errors import describe
from cgstate.lifecycle.states import EntryState, FailureKind, PoolKind, PoolState
from cgstate.runtime.pinned import NOTHING
from cgstate.runtime.pool import Pool
from cgstate.runtime.statics import Statics
from cgstate.runtime.witness import Notice

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
        keep: Buffers, outputs and what was baked in, kept alive until the device is done with them.
        statics: The static inputs alone, which are charged until then.
        fence: Marks that the device must have passed; None while they are not set yet.
        stepped: Whether its entry has it no more in its count: the destruction was begun, and failed if it is still here.
    """

    entry: Entry
    pool: Pool
    graph: Graph | None
    keep: object
    statics: Statics
    fence: tuple[Event, ...] | None = None
    stepped: bool = False


class Reclaimer:
    """The retired recordings of one manager. `queue` and the counts are guarded by the device's lock.

    Attributes:
        blocked: Whether library workspaces could not be cleared when pools were last given back.
    """

    __slots__ = ("blocked", "books", "flushed_bytes", "flushes", "queue", "reclaims", "stalled_ns")

    def __init__(self, books: Books) -> None:
        self.books = books
        self.blocked = False
        self.queue: deque[Retired] = deque()
        self.reclaims = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.stalled_ns = 0

    def retire(self, entry: Entry, pool: Pool, graph: Graph | None, keep: object) -> None:
        """Hand over a recording; the lock is held. Asks the device nothing: an interrupt there would leave half of it undone."""
        self.books.unsettled = True
        self.queue.append(Retired(entry, pool, graph, keep, entry.statics))

    def settle(self) -> None:
        """Destroy what may be destroyed now, of this manager and of dropped ones. Cheap when there is nothing; never waits."""
        self.settle_own()
        orphans = self.books.gate.orphans
        for _ in range(len(orphans)):
            try:
                orphan = orphans.popleft()
            except IndexError:
                return  # another thread is at it
            gone = False
            try:
                gone = orphan(self.books)
            except Exception as error:
                log.warning("%s: burying a dropped manager failed, and is tried again later: %s", self.books.name, describe(error))
            finally:
                if not gone:
                    orphans.append(orphan)

    def settle_own(self) -> None:
        """`settle` for this manager alone."""
        if self.queue:
            with self.books.gate.lock:
                batch = self._take()
            self._destroy(batch)

    def finish(self) -> None:
        """Wait until the device is done with what is retired, and destroy all that nobody leases."""
        gate = self.books.gate
        while True:
            with gate.lock:
                self._await_quiet()
            if not self.await_device():
                return
            with gate.lock:
                self._await_quiet()  # another capture may have begun meanwhile: what cannot be destroyed in it goes after it
                batch = self._take()
            if not self._destroy(batch) or not self.queue:
                return  # done, or what is left is leased and goes with the lease, or cannot be destroyed now

    def _await_quiet(self) -> None:
        """Wait until no capture is open; the lock is held."""
        while not self.books.gate.free:
            self.books.gate.wait()

    def await_device(self) -> bool:
        """Wait until the device is done with what is retired; False when it is lost."""
        with self.books.gate.lock:
            self._mark()
            waiting = [event for retired in self.queue for event in retired.fence or ()]
        try:
            for event in waiting:
                event.synchronize()
        except Exception as error:
            self.books.notice(error)
            if not self.books.lost:
                raise
            return False
        return True

    def drop_pools(self) -> None:
        """Give back the pools that retired and hold no recording any more; nothing if there are none.

        Done before captures, so that the peak is the larger of old and new. Waits for the device and stalls other threads' launches
        (fact S3); the time is counted.
        """
        self._give_back(always=False)

    def flush(self) -> int:
        """`drop_pools`, and return all that the allocator caches to the device in any case; the bytes returned."""
        return self._give_back(always=True)

    def let_go(self) -> None:
        """The device is lost: forget everything without touching it. Backends keep what must not be freed then (fact F7)."""
        with self.books.gate.lock:
            pools, self.books.pools = self.books.pools, []
            self.queue.clear()
            for entry in self.books.entries():
                entry.buffers = entry.output = None
                entry.baked = NOTHING
        for pool in pools:
            try:
                pool.handle.drop()
            except Exception:
                log.exception("%s: letting go of pool %s failed; going on", self.books.name, pool.name)

    def _give_back(self, *, always: bool) -> int:
        books, gate = self.books, self.books.gate
        with gate.lock:
            while True:
                gone = [pool for pool in books.pools if pool.state is PoolState.RETIRED and not pool.graphs]
                uncleared = any(pool.state is PoolState.GONE for each in gate.managers for pool in each.pools)  # closed ones, too
                if not (always or gone or uncleared):
                    return 0
                if gate.free and not gate.destroying:
                    break
                if not gate.free and gate.holder == books.thread_id():
                    return 0  # inside our own open capture: nothing may be freed now
                gate.wait()  # whoever destroys may be at the last graph of a pool: then that is gone, too
            gate.destroying += 1
        started = books.sync.now_ns()
        returned = 0
        try:
            cleared = False
            if gone or uncleared or gate.leftovers:
                if not self._workspaces_are_ours():
                    returned = books.backend.flush()  # what looks like foreign graphs may be their cached remains
                cleared = self._workspaces_are_ours() and books.backend.clear_workspaces()
                self.blocked = not cleared
            self._drop(gone)
            if cleared:  # the streams of what was just dropped are clean, too: nothing came on them since
                with gate.lock:
                    for each in gate.managers:
                        each.workspaces_cleared()
            returned += books.backend.flush()
        finally:
            with gate.lock:
                gate.destroying -= 1  # first, and waiters are told: measuring may raise
                gate.notify()
                self.flushes += 1
                self.flushed_bytes += returned
                if books.witness is not None:
                    books.witness.notice(books, Notice.flushed, returned)
                self.stalled_ns += books.sync.now_ns() - started
                for pool in gone:
                    pool.measure()  # also where dropping it failed
                for each in gate.managers:  # a cleared workspace may have been the last thing in another one's dropped pool
                    each.pools = [pool for pool in each.pools if pool.state is not PoolState.GONE or pool.measure()]
                gate.leftovers = {pool_id: handle for pool_id, handle in gate.leftovers.items() if handle.reserved_bytes()}
        return returned

    def _drop(self, pools: Sequence[Pool]) -> None:
        """End retired pools, going on past whatever raises."""
        books = self.books
        for pool in pools:
            with books.gate.lock:
                if pool.state is not PoolState.RETIRED or pool.graphs:
                    continue  # another thread was faster
            try:
                pool.handle.drop()
            except Exception:
                log.exception("%s: dropping pool %s failed, and is tried again later; going on", books.name, pool.name)
                continue
            with books.gate.lock:
                pool.reclaimed()
                domain = pool.domain
                if domain.pool is pool:
                    domain.pool = None
                    domain.leave_stream(books)
                    books.drop_domain(domain)

    def _take(self) -> list[Retired]:
        """Step the entries of whatever may go now, and keep captures out until `_destroy` is done; the lock is held."""
        books = self.books
        gate = books.gate
        self._mark()
        if not gate.free or not self.queue:
            return []
        batch, left = [], deque[Retired]()
        for retired in self.queue:
            pool = retired.pool
            leases = sum(entry.leases for entry in pool.domain.entries if entry.pool is pool)
            passed = self._passed(retired)
            if passed and not leases and not (pool.domain.adopted and not pool.spent):
                if books.audit is not None:
                    books.audit.destroying(retired, leases)
                if not retired.stepped:
                    retired.entry.reclaim(pool_leases=leases, fence_passed=passed)
                    retired.stepped = True
                batch.append(retired)
            else:
                left.append(retired)
        self.queue = left
        books.unsettled = books.unsettled or bool(left)
        if batch:
            gate.destroying += 1
        return batch

    def _mark(self) -> None:
        """Set the marks that are missing, where they can be set now; the lock is held."""
        for retired in self.queue:
            if retired.fence is None:
                retired.fence = self._fence(retired.pool)

    def _passed(self, retired: Retired) -> bool:
        """Whether the device is done with a recording; the lock is held."""
        try:
            return retired.fence is not None and all(event.done() for event in retired.fence)
        except Exception as error:
            self._lost(error)
            return False

    def _fence(self, pool: Pool) -> tuple[Event, ...] | None:
        try:
            return pool.turn.fence()
        except Exception as error:
            self._lost(error)
            return None

    def _lost(self, error: Exception) -> None:
        """Setting or asking a mark failed. If the device is not lost, whoever settles next tries again: nothing depends on when."""
        if self.books.backend.failure_kind(error) is FailureKind.DEVICE:
            self.books.lose_device()
        else:
            name = self.books.name
            log.warning("%s: asking for the device's progress failed, and is tried again later: %s", name, describe(error))

    def _destroy(self, batch: Sequence[Retired]) -> bool:
        """Destroy outside the lock, going on past whatever raises: captures wait until it is done.

        Returns:
            Whether anything was destroyed. What was not is tried again by whoever settles next.

        Raises:
            BaseException: an interrupt that came meanwhile, at the end.
        """
        if not batch:
            return False
        gate = self.books.gate
        self.books.point("destroy")
        interrupts: list[BaseException] = []
        failed: list[Retired] = []
        for retired in batch:
            retired.keep, retired.statics = None, Statics(None)
            if retired.graph is not None:
                try:
                    retired.graph.destroy()
                except Exception:
                    failed.append(retired)
                    name = self.books.name
                    log.exception(
                        "%s: destroying a graph of %s failed, and is tried again later; going on", name, retired.entry.name
                    )
                except BaseException as interrupt:
                    failed.append(retired)
                    interrupts.append(interrupt)
        with gate.lock:
            gate.destroying -= 1
            gate.notify()
            self.queue.extend(failed)
            self.books.unsettled = self.books.unsettled or bool(failed)
            done = [retired for retired in batch if retired not in failed]
            self.reclaims += sum(retired.graph is not None for retired in done)  # an undone attempt gives nothing back
            for retired in done:
                self._settled(retired)
            for pool in dict.fromkeys(retired.pool for retired in batch):
                pool.measure()  # last: it asks the allocator, and may raise
        if interrupts:
            raise interrupts[0]
        return bool(done)

    def _settled(self, retired: Retired) -> None:
        """After the destruction: the pool's count, the pool's end, the entry's name; the lock is held."""
        pool, entry = retired.pool, retired.entry
        if retired.graph is not None:
            pool.destroyed()
            retired.graph = None
        lazy = not entry.startup
        if lazy and not entry.unreclaimed and entry.state in (EntryState.EVICTED, EntryState.FAILED):
            entry.forget()
        if (
            lazy
            and not entry.unreclaimed
            and entry.state is EntryState.EAGER
            and entry is not self.books.wanted
            and entry.component.entries.get(entry.descriptor) is entry
        ):
            entry.component.drop(entry)

    def _workspaces_are_ours(self) -> bool:
        """Whether the global workspace clear can hurt no live graph (facts W2, W3)."""
        gate = self.books.gate
        with gate.lock:
            managers = list(gate.managers)
            if any(domain.adopted and domain.live for books in managers for domain in books.domains.values()):
                return False
            ours = frozenset(pool.id for books in managers for pool in books.pools if pool.kind is not PoolKind.foreign)
        return not self.books.backend.has_foreign_graphs(ours)
