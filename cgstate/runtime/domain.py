"""An isolation domain: the smallest set of entries closed under sharing a pool or a capture stream; the unit of eviction.

Entries of a domain stand and fall together, because whoever records first leaves library workspaces and free blocks that the others
bake in (facts W1-W5, P6). A domain has one pool at a time; when all its entries are retired the pool retires with them, and the
next capture opens a new generation.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from cgstate.backends.base import Stream
from cgstate.lifecycle.states import EntryState, PoolKind, PoolState
from cgstate.runtime.pool import Pool

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry


class Isolation(StrEnum):
    """How far entries are kept apart.

    shared: one pool for all; eviction retires the whole generation and a miss at capacity stays eager.
    per_component: one pool a component.
    per_entry: one pool and one exclusive capture stream an entry, so that one can be evicted alone; costs about 32 MiB each (W1).
    """

    shared = "shared"
    per_component = "per_component"
    per_entry = "per_entry"


class Domain:
    """A set of entries that retire together.

    Attributes:
        capturing: How many of its entries are CAPTURING; assigned by the entry table's effects.
        stream: The capture stream, used for nothing else.
        adopted: Whether a user's stream was captured on, whose workspaces may lie anywhere.
    """

    __slots__ = ("adopted", "capturing", "entries", "generation", "kind", "name", "pool", "stream")

    def __init__(self, name: str, kind: PoolKind) -> None:
        self.name = name
        self.kind = kind
        self.entries: set[Entry] = set()
        self.capturing = 0
        self.pool: Pool | None = None
        self.stream: Stream | None = None
        self.adopted = False
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
        """The pool to record into: the current generation's, or a fresh one."""
        pool = self.pool
        if pool is None or pool.state in (PoolState.RETIRED, PoolState.GONE):
            self.generation += 1
            pool = Pool(f"{self.name}/{self.generation}", self.kind, books.backend.new_pool(), self)
            pool.observer = books.observer
            books.pools.append(pool)
            books.gate.turns.add(pool.turn)
            self.pool = pool
        return pool

    def open_stream(self, books: Books) -> Stream:
        """The capture stream: exclusive where entries are kept apart, since torch's own streams share handles (S1, W5)."""
        if self.stream is None:
            if self.kind is PoolKind.per_entry and books.idle_streams:
                self.stream = books.idle_streams.pop()
            else:
                self.stream = books.backend.new_stream(exclusive=self.kind is PoolKind.per_entry)
        return self.stream


LIVE = frozenset({EntryState.CAPTURING, EntryState.BOUND, EntryState.REPLAYING})
