"""An isolation domain: the smallest set of entries closed under sharing a pool or a capture stream; the unit of eviction.

Entries of a domain stand and fall together, because whoever records first leaves library workspaces and free blocks that the others
bake in (facts W1-W5, P6). A domain has one pool at a time; when all its entries are retired the pool retires with them, and the
next capture opens a new generation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

from cgstate.backends.base import Stream
from cgstate.errors import ConfigError
from cgstate.lifecycle.states import EntryState, PoolKind, PoolState
from cgstate.runtime.foreign import ForeignPool
from cgstate.runtime.gate import Spare
from cgstate.runtime.pool import Pool

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry


class Isolation(StrEnum):
    """How far entries are kept apart.

    shared: one pool for all; eviction retires the whole generation and a miss at capacity stays eager.
    per_component: one pool a component.
    per_entry: one pool and one exclusive capture stream an entry, so that one can be evicted alone; costs about 32 MiB each (W1).
    foreign: the pool that the manager was given, the host engine's; eviction retires all of ours there and returns nothing.
    """

    shared = "shared"
    per_component = "per_component"
    per_entry = "per_entry"
    foreign = "foreign"


class Domain:
    """A set of entries that retire together.

    Attributes:
        home: Where the workspaces of the capture stream are, if that is not the pool.
        key: What the books know it by.
        capturing: How many of its entries are CAPTURING; assigned by the entry table's effects.
        stream: The capture stream, used for nothing else.
        adopted: Raw handles of users' streams that were captured on; their workspaces may lie anywhere.
        compact: Whether its pools may get a first block; not where others have memory in them.
        ended: Whether it stood for another one in a profile that is over.
    """

    __slots__ = (
        "adopted",
        "capturing",
        "compact",
        "ended",
        "entries",
        "generation",
        "home",
        "key",
        "kind",
        "name",
        "pool",
        "stream",
    )

    def __init__(self, key: Hashable, name: str, kind: PoolKind) -> None:
        self.key = key
        self.name = name
        self.kind = kind
        self.entries: set[Entry] = set()
        self.capturing = 0
        self.pool: Pool | None = None
        self.stream: Stream | None = None
        self.home: Home | None = None
        self.adopted: set[int] = set()
        self.compact = kind is not PoolKind.foreign
        self.ended = False
        self.generation = 0

    @property
    def leases(self) -> int:
        """Leases held on any of its entries."""
        return sum(entry.leases for entry in self.entries)

    @property
    def live(self) -> int:
        """Entries that are CAPTURING, BOUND or REPLAYING."""
        return sum(entry.state in LIVE for entry in self.entries)

    def check_adoption(self, books: Books, stream: Stream) -> None:
        """Refuse to capture on a user's stream whose library workspace is baked into graphs of another pool; the lock is held.

        Replays of two pools are not ordered, so they would overwrite it under each other (facts T1, W1).

        Raises:
            ConfigError: there are such graphs.
        """
        if self.kind is PoolKind.throwaway:
            return  # never replayed
        for manager in books.gate.managers:
            for other in manager.domains.values():
                bakes = other.live or any(entry.unreclaimed for entry in other.entries)
                if other is not self and stream.handle in other.adopted and bakes and not self._shares_pool(books, other):
                    raise ConfigError(
                        f"the stream {stream.handle:#x} was captured on for pool {other.name} of {manager.name}, and its library "
                        f"workspace is in graphs there: captures for {self.name} of {books.name} need another stream, or none"
                    )

    def _shares_pool(self, books: Books, other: Domain) -> bool:
        """Whether both record into one pool of the host engine's."""
        if self.kind is not PoolKind.foreign or books.foreign is None or not isinstance(other.pool, ForeignPool):
            return False
        return other.pool.id == books.foreign.id

    def open_pool(self, books: Books) -> Pool:
        """The pool to record into: the current generation's, or a fresh one.

        Raises:
            PoolRetired: it is the host engine's, and nobody keeps it open.
        """
        if self.kind is PoolKind.foreign:
            return self._open_foreign(books)
        pool = self.pool
        if pool is None or pool.state in (PoolState.RETIRED, PoolState.GONE):
            self.generation += 1
            pool = Pool(f"{self.name}/{self.generation}", self.kind, books.backend.new_pool(), self)
            books.watch(pool)
            books.pools.append(pool)
            books.gate.turns.add(pool.turn)
            self.leave_stream(books)  # the retired generation may still have its workspaces for it
            self.pool = pool
        return pool

    def _open_foreign(self, books: Books) -> Pool:
        """The engine's own pool, which is there before and after our graphs."""
        assert books.foreign is not None
        pool = self.pool if isinstance(self.pool, ForeignPool) else ForeignPool(self.name, books.foreign, self)
        pool.check_open()
        if self.pool is None:
            pool.turn = next((other.turn for other in _foreign_pools(books) if other.id == pool.id), pool.turn)
            self.pool = pool
            books.watch(pool)
            books.pools.append(pool)
            books.gate.turns.add(pool.turn)
        return pool

    def open_stream(self, books: Books) -> Stream:
        """The capture stream of this generation: exclusive, and without a workspace yet, so that it is born in this pool (W2, W3).

        torch's own streams share handles (S1), so whoever else used one may own the workspace that the graphs would bake in (W5).
        While graphs of others keep workspaces from being cleared, it is one that has a home: else each generation would leave one.
        """
        if self.stream is None:
            if self.kind is not PoolKind.foreign and books.reclaimer.guests():
                home = next((home for home in books.homes() if home.guest is None), None) or Home.open(books)
                home.guest, self.home, self.stream = self.pool, home, home.stream
            else:
                self.stream = idle_stream(books)
        assert self.stream is not None
        return self.stream

    def leave_stream(self, books: Books) -> None:
        """Use it no more: unless it has a home, its library workspace may be anybody's until the next clear; the lock is held."""
        stream, home = self.stream, self.home
        self.stream = self.home = None
        if home is None and stream is not None:
            books.spent_streams.append(stream)


def _foreign_pools(books: Books) -> Iterator[ForeignPool]:
    """Pools of the host engine's that managers of the device record into: who shares one shares its turn as well."""
    return (pool for manager in books.gate.managers for pool in manager.pools if isinstance(pool, ForeignPool))


class Home(Domain):
    """A capture stream with a pool for its library workspaces alone: a domain without entries, for one domain after the other.

    Graphs bake the workspace in, so it has to live as long as they do (W3). In their own pool it does, and goes with it at the next
    clear. But no clear comes while graphs of others live, and a retired pool's workspace stays for good.

    Attributes:
        guest: The pool whose graphs have the workspaces baked in; None when there is none: the next one may have it.
        kept: Whether it is to be used again.
        known: Bytes of workspaces when the pool was last measured; -1 before.
    """

    __slots__ = ("guest", "kept", "known")

    def __init__(self, name: str) -> None:
        super().__init__(object(), name, PoolKind.shared)
        self.guest: Pool | None = None
        self.kept = True
        self.known = -1

    @property
    def live(self) -> int:
        """As of a domain: its pool is not to be retired while this is not 0."""
        return int(self.kept)

    @classmethod
    def open(cls, books: Books) -> Home:
        """A new one; the lock is held."""
        taken = {pool.domain.name for pool in books.pools}
        home = cls(next(name for name in map("workspaces {}".format, count(1)) if name not in taken))
        gate = books.gate
        spare = gate.spares[-1] if gate.spares else Spare(books.backend.new_pool(), idle_stream(books))
        home.stream = spare.stream
        home.pool = Pool(home.name, home.kind, spare.handle, home)
        books.watch(home.pool)
        home.measure()
        books.budget.forget()  # what graphs took with a workspace each is too much from now on
        pools = [*books.pools, home.pool]
        gate.hand_on(gate.spares[:-1])
        books.pools = pools  # nothing is called in between: an interrupt finds it in one place
        return home

    def measure(self) -> None:
        """Charge for the workspaces, if there are others than before: all segments of the process are looked at for that."""
        assert self.pool is not None
        held = self.pool.handle.workspace_bytes()
        if held != self.known:
            self.pool.measure()
            self.known = held


def idle_stream(books: Books) -> Stream:
    """An exclusive stream without a workspace; the lock is held."""
    return books.idle_streams.pop() if books.idle_streams else books.backend.new_stream(exclusive=True)


LIVE = frozenset({EntryState.CAPTURING, EntryState.BOUND, EntryState.REPLAYING})
