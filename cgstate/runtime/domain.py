"""An isolation domain: the smallest set of entries closed under sharing a pool or a capture stream; the unit of eviction.

Entries of a domain stand and fall together, because whoever records first leaves library workspaces and free blocks that the others
bake in (facts W1-W5, P6). A domain has one pool at a time; when all its entries are retired the pool retires with them, and the
next capture opens a new generation.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import TYPE_CHECKING

from cgstate.backends.base import Stream
from cgstate.lifecycle.states import EntryState, PoolKind, PoolState
from cgstate.runtime.foreign import ForeignPool
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
        key: What the books know it by.
        capturing: How many of its entries are CAPTURING; assigned by the entry table's effects.
        stream: The capture stream, used for nothing else.
        adopted: Whether a user's stream was captured on, whose workspaces may lie anywhere.
        compact: Whether its pools may get a first block; not where others have memory in them.
    """

    __slots__ = ("adopted", "capturing", "compact", "entries", "generation", "key", "kind", "name", "pool", "stream")

    def __init__(self, key: Hashable, name: str, kind: PoolKind) -> None:
        self.key = key
        self.name = name
        self.kind = kind
        self.entries: set[Entry] = set()
        self.capturing = 0
        self.pool: Pool | None = None
        self.stream: Stream | None = None
        self.adopted = False
        self.compact = kind is not PoolKind.foreign
        self.generation = 0

    @property
    def leases(self) -> int:
        """Leases held on any of its entries."""
        return sum(entry.leases for entry in self.entries)

    @property
    def live(self) -> int:
        """Entries that are CAPTURING, BOUND or REPLAYING."""
        return sum(entry.state in LIVE for entry in self.entries)

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
            pool.observer = books.observer
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
            self.pool = pool
            pool.observer = books.observer
            books.pools.append(pool)
            books.gate.turns.add(pool.turn)
        return pool

    def open_stream(self, books: Books) -> Stream:
        """The capture stream of this generation: exclusive, and without a workspace yet, so that it is born in this pool (W2, W3).

        torch's own streams share handles (S1), so whoever else used one may own the workspace that the graphs would bake in (W5).
        """
        if self.stream is None:
            self.stream = books.idle_streams.pop() if books.idle_streams else books.backend.new_stream(exclusive=True)
        return self.stream

    def leave_stream(self, books: Books) -> None:
        """Use it no more: its library workspace may be anybody's until the next clear; the lock is held."""
        stream, self.stream = self.stream, None
        if stream is not None:
            books.spent_streams.append(stream)


LIVE = frozenset({EntryState.CAPTURING, EntryState.BOUND, EntryState.REPLAYING})
