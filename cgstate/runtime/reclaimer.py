"""The reclaimer: destroys retired recordings once no lease is left, their fence has passed and no capture is open (I2, I3).

There is no background thread. Whoever next releases a lease, captures, reads memory or calls `reclaim` does the work. Retiring and
returning bytes are two acts: dropping a pool and flushing the allocator waits for the device and stalls other threads (fact S3). So
pools are dropped only before a capture, which needs their room, and when bytes are asked for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cgstate.backends.base import Event, Graph, ReleaseMark
from cgstate.errors import ReleasePending, describe
from cgstate.lifecycle.states import EntryState, FailureKind, PoolKind, PoolState
from cgstate.runtime.domain import Home
from cgstate.runtime.pinned import NOTHING
from cgstate.runtime.pool import Pool
from cgstate.runtime.statics import Statics
from cgstate.runtime.witness import Notice

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry

T = TypeVar("T")

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
        gone: Whether it was destroyed.
    """

    entry: Entry
    pool: Pool
    graph: Graph | None
    keep: object
    statics: Statics
    fence: tuple[Event, ...] | None = None
    stepped: bool = False
    gone: bool = False


@dataclass(slots=True, eq=False)
class Return:
    """One return of bytes to the device.

    Attributes:
        marks: Whether somebody wants to wait for the driver's releases, too.
        pools: The pools to give back.
        started: When it began, nanoseconds; who waits for its turn has not begun.
        returned: Bytes that came back so far.
        begun: Whether it keeps captures out, or has done so.
        over: Whether it does so no more.
    """

    marks: bool = False
    pools: Sequence[Pool] = ()
    started: int = 0
    returned: int = 0
    begun: bool = False
    over: bool = False


class Reclaimer:
    """The retired recordings of one manager. `queue` and the counts are guarded by the device's lock.

    Attributes:
        blocked: Whether library workspaces could not be cleared when pools were last given back.
        mark: Where the driver will have let go of what the destroyed graphs retained; None while nobody waits for that.
    """

    __slots__ = ("blocked", "books", "flushed_bytes", "flushes", "mark", "queue", "reclaims", "stalled_ns")

    def __init__(self, books: Books) -> None:
        self.books = books
        self.blocked = False
        self.mark: ReleaseMark | None = None
        self.queue: deque[Retired] = deque()
        self.reclaims = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.stalled_ns = 0

    def retire(self, entry: Entry, pool: Pool, graph: Graph | None, keep: object) -> None:
        """Hand over a recording; the lock is held. Asks the device nothing: an interrupt there would leave half of it undone."""
        self.books.unsettled = True
        retired = Retired(entry, pool, graph, keep, entry.statics)
        entry.graph = None  # with the next line: as long as the entry has it, an interrupt has kept it from here
        self.queue.append(retired)

    def lacks(self, entry: Entry) -> bool:
        """Whether an interrupt has kept a retired recording of the entry from here; the lock is held."""
        return entry.unreclaimed > sum(retired.entry is entry and not retired.stepped for retired in self.queue)

    def settle(self) -> None:
        """Destroy what may be destroyed now, of this manager and of dropped ones. Cheap when there is nothing; never waits."""
        self.settle_own()
        orphans = self.books.gate.orphans
        for _ in range(len(orphans)):
            orphan, gone = None, False
            try:
                with self.books.gate.lock:
                    if not orphans:
                        return  # another thread is at it
                    orphan = orphans[0]
                    del orphans[0]
                gone = orphan(self.books)
            except Exception as error:
                log.warning("%s: burying a dropped manager failed, and is tried again later: %s", self.books.name, describe(error))
            finally:
                if orphan is not None and not gone:
                    orphans.append(orphan)

    def settle_own(self) -> None:
        """`settle` for this manager alone."""
        if self.queue:
            self._go_round()

    def finish(self) -> None:
        """Wait until the device is done with what is retired, and destroy all that nobody leases."""
        gate = self.books.gate
        while True:
            with gate.lock:
                self._await_quiet()
            if not self.await_device():
                return
            # Another capture may have begun meanwhile: what cannot be destroyed in it goes after it.
            if not self._go_round(wait=True) or not self.queue:
                return  # done, or what is left is leased and goes with the lease, or cannot be destroyed now

    def _await_quiet(self) -> None:
        """Wait until no capture is open; the lock is held."""
        while not self.books.gate.free:
            self.books.gate.wait()

    def _go_round(self, *, wait: bool = False) -> bool:
        """Destroy what may be destroyed now; ``wait``: first wait until no capture is open. Whether anything was destroyed."""
        batch: list[Retired] = []
        try:
            with self.books.gate.lock:
                if wait:
                    self._await_quiet()
                batch = self._take()
            return self._destroy(batch)
        except BaseException:  # an interrupt, or the device cannot be asked how much is left: what was begun is ended
            self._conclude(batch, [pool for pool in self.books.pools if pool.state is not PoolState.RECORDING])
            raise

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

    def flush(self, *, mark: bool = False) -> int:
        """`drop_pools`, and return all that the allocator caches to the device in any case; the bytes returned.

        ``mark``: `await_releases` comes next.
        """
        return self._give_back(always=True, mark=mark)

    def await_releases(self, timeout: float | None) -> None:
        """After a flush that has marked it: wait until the driver has let go of what destroyed graphs retained.

        Raises:
            ReleasePending: it has not, after ``timeout`` seconds.
        """
        mark = self.mark
        if mark is None:
            return
        if self._ask(lambda: mark.wait(timeout)) is False:
            raise ReleasePending(f"{self.books.name}: the driver still holds what graphs of it retained, after {timeout} s")
        self.mark = None

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Ask the device; None when it is lost, which the books know then."""
        try:
            return question()
        except Exception as error:
            self.books.notice(error)
            if not self.books.lost:
                raise
            return None

    def flush_rest(self) -> None:
        """After the end: flush what was held then and is no more. Waits for no capture, and leaves the caller's own alone."""
        books, gate = self.books, self.books.gate
        with gate.lock:
            due = gate.free and any(pool.state is PoolState.GONE and not pool.lent for pool in books.pools)
        if due and not books.backend.capturing():
            self.flush()

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

    def _give_back(self, *, always: bool, mark: bool = False) -> int:
        work = Return(mark)
        try:
            if self._begin_return(work, always=always):
                self._return(work)
                self._end_return(work)
        except BaseException:
            self._end_return(work)  # what is left of it, if an interrupt came in between
            raise
        return work.returned

    def _begin_return(self, work: Return, *, always: bool) -> bool:
        """Wait until it may begin, and keep captures out from then on; False if there is nothing to do, or not now."""
        books, gate = self.books, self.books.gate
        with gate.lock:
            while True:
                retired = [pool for pool in books.pools if pool.state is PoolState.RETIRED and not pool.graphs]
                work.pools = [pool for pool in retired if not isinstance(pool.domain, Home)]
                if not (always or work.pools or self._uncleared() or self._idle_homes()):
                    return False
                if gate.free and not gate.destroying:
                    break
                if not gate.free and gate.holder == books.thread_id():
                    return False  # inside our own open capture: nothing may be freed now
                gate.wait()  # whoever destroys may be at the last graph of a pool: then that is gone, too
            work.started = books.sync.now_ns()
            gate.destroying += 1
            work.begun = True
        return True

    def _idle_homes(self) -> bool:
        """Whether homes of workspaces can go now: nobody uses them, and nothing keeps them; the lock is held."""
        idle = any(isinstance(pool.domain, Home) and pool.domain.guest is None for pool in self.books.pools)
        return idle and (self.books.closed() or not self.guests())

    def _uncleared(self) -> bool:
        """Whether a pool was dropped with a workspace in it, of a closed manager too; the lock is held."""
        return any(pool.state is PoolState.GONE for each in self.books.gate.managers for pool in each.pools)

    def _return(self, work: Return) -> None:
        """Clear workspaces where that harms nobody, drop the pools, flush the allocator."""
        books, gate = self.books, self.books.gate
        with gate.lock:
            clear = bool(work.pools or gate.leftovers or gate.spares or self._uncleared() or any(books.homes()))
        cleared = False
        if clear:
            if not self._workspaces_are_ours():
                work.returned = books.backend.flush()  # what looks like foreign graphs may be their cached remains
            cleared = self._workspaces_are_ours() and books.backend.clear_workspaces()
            self.blocked = not cleared
        self._drop(work.pools)
        if cleared or books.closed():
            with gate.lock:
                homes = books.leave_homes()
                work.pools = [*work.pools, *homes]
                if not cleared:
                    books.hand_on(homes)
            self._drop(homes)
        if cleared:
            self._drop_spares()
            with gate.lock:  # the streams of what was just dropped are clean, too: nothing came on them since
                for each in gate.managers:
                    each.workspaces_cleared()
        work.returned += books.backend.flush()
        if work.marks:  # anew, though an old one be pending: what could not be destroyed then may be now
            self.mark = self._ask(books.backend.mark_releases)

    def _end_return(self, work: Return) -> None:
        """Let captures begin again, and measure what is left; nothing for one that was never begun."""
        books, gate = self.books, self.books.gate
        with gate.lock:
            if not work.begun:
                return
            lasted = books.sync.now_ns() - work.started
            if not work.over:
                work.over = True
                gate.destroying -= 1  # first, and waiters are told: measuring may raise
                self.flushes += 1
                self.flushed_bytes += work.returned
                self.stalled_ns += lasted
                gate.notify()
                books.tell(books, Notice.flushed, work.returned)
            for pool in work.pools:
                pool.measure()  # also where dropping it failed
            for each in gate.managers:  # a cleared workspace may have been the last thing in another one's dropped pool
                each.pools = [pool for pool in each.pools if pool.state is not PoolState.GONE or pool.measure()]
            gate.leftovers = {pool_id: handle for pool_id, handle in gate.leftovers.items() if handle.reserved_bytes()}

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
                domain = pool.domain
                for home in books.homes():
                    if home.guest is pool:
                        home.guest = None
                if domain.pool in (pool, None):  # None: an interrupt has kept it from going on
                    domain.pool = None
                    domain.leave_stream(books)
                    books.drop_domain(domain)
                pool.reclaimed()

    def _drop_spares(self) -> None:
        """End the homes that ended managers have handed on; what they held is cleared."""
        gate = self.books.gate
        with gate.lock:
            spares = gate.spares
            gate.hand_on([])
        for spare in spares:
            try:
                spare.handle.drop()
                spare.stream.close()
            except Exception:
                log.exception("%s: dropping pool %s failed; going on", self.books.name, spare.handle)

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
        if left:
            books.unsettled = True
        self.queue = left  # from here on nothing is called: an interrupt comes before the batch is taken, or finds it taken
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

    def _destroy(self, batch: list[Retired]) -> bool:
        """Destroy outside the lock, going on past whatever raises: captures wait until it is done.

        Returns:
            Whether anything was destroyed. What was not is tried again by whoever settles next.

        Raises:
            BaseException: an interrupt that came meanwhile, at the end.
        """
        if not batch:
            return False
        self.books.point("destroy")
        interrupts: list[BaseException] = []
        for retired in batch:
            try:
                try:
                    if retired.graph is not None:
                        retired.graph.destroy()
                finally:
                    retired.keep, retired.statics = None, Statics(None)  # after the graph, which has used it
                retired.gone = True
            except Exception:
                name = self.books.name
                log.exception("%s: destroying a graph of %s failed, and is tried again later; going on", name, retired.entry.name)
            except BaseException as interrupt:
                interrupts.append(interrupt)
        destroyed = any(retired.gone for retired in batch)
        self._conclude(batch, tuple(dict.fromkeys(retired.pool for retired in batch)))
        if interrupts:
            raise interrupts[0]
        return destroyed

    def _conclude(self, batch: list[Retired], pools: Sequence[Pool]) -> None:
        """Take what was not destroyed back into the queue, let captures begin again, and measure ``pools``.

        Empties the batch as it goes, so that it may be said again after an interrupt.
        """
        gate = self.books.gate
        with gate.lock:
            while batch:
                retired = batch[-1]
                if retired.gone:
                    self._settled(retired)
                else:
                    self.books.unsettled = True
                del batch[-1]
                if not batch:
                    gate.destroying -= 1
                if not retired.gone:
                    self.queue.append(retired)  # behind the deletions: an interrupt may follow a call, and must find both done
            gate.notify()
            for pool in pools:
                pool.measure()  # last: it asks the allocator, and may raise

    def _settled(self, retired: Retired) -> None:
        """After the destruction: the pool's count, the pool's end, the entry's name; the lock is held."""
        pool, entry = retired.pool, retired.entry
        if retired.graph is not None:
            pool.destroyed()
            retired.graph = None
            self.reclaims += 1  # an undone attempt gives nothing back
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
        with self.books.gate.lock:
            return not self.guests()

    def guests(self) -> bool:
        """Whether there may be graphs whose workspaces are in no pool of ours; the lock is held."""
        managers = list(self.books.gate.managers)
        for domain in [domain for books in managers for domain in books.domains.values()]:
            if domain.live and (domain.adopted or domain.home is not None):
                return True
        ours = {pool.id for books in managers for pool in books.pools if pool.kind is not PoolKind.foreign}
        ours |= {spare.handle.id for spare in self.books.gate.spares}
        return self.books.backend.has_foreign_graphs(frozenset(ours))
