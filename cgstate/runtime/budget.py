"""The byte budget: what the manager may hold, what it holds, and what a capture is known to take.

Charged are the segments of every pool that was not given back (live, stranded, retired), as they were last measured, and static
inputs (I7). A refusal is remembered by its reason alone, the bytes that the graph takes: it ends the moment that those bytes fit,
neither later nor earlier, and lasts where one graph is larger than the whole budget.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgstate.errors import BudgetExceeded, ConfigError
from cgstate.lifecycle.states import PoolKind, PoolState
from cgstate.runtime.domain import Isolation
from cgstate.runtime.statics import Statics, static_bytes

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.pool import Pool
    from cgstate.runtime.record import ComponentRecord


@dataclass(frozen=True, slots=True)
class Growth:
    """By how many bytes a capture was expected to grow a pool, and the pool, its bytes and what was dropped there then."""

    grown: int
    pool: str
    charged: int
    drops: int

    def now(self, pool: Pool) -> int:
        """What is left of it: what the pool grew since may be free for it.

        Of another pool nothing is known, nor of one in which a recording was dropped since: its blocks are free.
        """
        if (pool.name, pool.drops) != (self.pool, self.drops):
            return 0
        return max(0, self.grown - max(0, pool.charged - self.charged))


@dataclass(frozen=True, slots=True)
class Cost:
    """What a graph takes at least, bytes.

    Attributes:
        pool: Of an empty pool, as measured; 0 while it was captured only beside others, whose free blocks it may have used.
        buffers: Its static inputs, as far as no other graph has them; 0 where that was not asked, since there was no budget.
        beside: Of a pool with others in it, where it was refused for that.
    """

    pool: int
    buffers: int
    beside: Growth | None = None

    def grows(self, pool: Pool) -> int:
        """By how many bytes it grows a pool with others in it, at least: all that is there may be free for it."""
        return max(self.pool - pool.charged, 0 if self.beside is None else self.beside.now(pool), 0)


OVER = frozenset({PoolState.RETIRED, PoolState.GONE})


def offers(pool: Pool) -> bool:
    """Whether the next capture there may find blocks that others of ours have freed."""
    return pool.state not in OVER and bool(pool.charged or pool.graphs)


class Budget:
    """One manager's budget, and the costs that it has seen.

    Attributes:
        limit: The budget in bytes; None: no limit.
        remembered: How many costs are kept, the oldest forgotten first.
    """

    __slots__ = ("_books", "_costs", "_sharing", "limit", "remembered")

    def __init__(self, books: Books, limit: int | None, remembered: int) -> None:
        self._books = books
        self._costs: OrderedDict[tuple[str, Hashable], Cost] = OrderedDict()
        self._sharing: set[str] = set()
        """Components of which graphs were seen that share static inputs: who has them first does not say who has them later."""
        self.limit = limit
        self.remembered = remembered

    def __len__(self) -> int:
        return len(self._costs)

    def held(self, *, without: Entry | None = None) -> int:
        """Bytes charged now, except for the static inputs of ``without``; the lock is held."""
        books = self._books
        return sum(pool.charged for pool in books.pools) + static_bytes(books.backend, self._statics({without}))

    def held_after(self, victims: Collection[Entry]) -> int:
        """Bytes that stay charged when these entries, each with a pool of its own, and all that is retired are given back.

        The lock is held.
        """
        books = self._books
        going = {victim.pool for victim in victims}
        pools = sum(pool.charged for pool in books.pools if pool.state is not PoolState.RETIRED and pool not in going)
        return pools + static_bytes(books.backend, self._statics(victims, retired=False))

    def _statics(self, without: Collection[Entry | None], *, retired: bool = True) -> list[Statics]:
        books = self._books
        live = [entry.statics for entry in books.entries() if entry.buffers is not None and entry not in without]
        return [*live, *(each.statics for each in books.reclaimer.queue)] if retired else live

    # -- what is known of costs ---------------------------------------------------------------------------------------

    def note(self, entry: Entry, grown: int, *, alone: bool, beside: Growth | None = None) -> None:
        """Remember what a capture took; the lock is held.

        Args:
            entry: Whose capture; it has its buffers.
            grown: By how many bytes its pool grew.
            alone: Whether the pool held nothing before.
            beside: What it was expected to take, where it was refused for that.
        """
        key = entry.component.component_id, entry.descriptor
        known = self._costs.pop(key, None)
        if not alone or entry.pool.kind is PoolKind.foreign:
            grown = known.pool if known is not None else 0
        buffers = 0
        if self.limit is not None:
            buffers = self._alone(entry)
            if buffers < static_bytes(self._books.backend, [entry.statics]):
                self._sharing.add(entry.component.component_id)
        self._costs[key] = Cost(grown, buffers, beside)
        while len(self._costs) > self.remembered:
            self._costs.popitem(last=False)

    def _alone(self, entry: Entry) -> int:
        """Bytes of its static inputs that no other graph has: all of them are looked at for that."""
        others, backend = self._statics({entry}), self._books.backend
        return static_bytes(backend, [*others, entry.statics]) - static_bytes(backend, others)

    def forget(self, component_id: str | None = None) -> None:
        """Forget costs, of one component or all: the next attempt measures anew. The lock is held."""
        for key in [key for key in self._costs if component_id is None or key[0] == component_id]:
            del self._costs[key]

    def below(self, record: ComponentRecord, descriptor: Hashable) -> frozenset[Hashable]:
        """The smaller descriptors that `need` may go by. Asks the component's order, which is the user's: the lock is not held."""
        if self.limit is None:
            return frozenset()
        name = record.component_id
        with self._books.gate.lock:
            others = [] if (name, descriptor) in self._costs else [other for component, other in self._costs if component == name]
        return record.smaller(others, descriptor)

    def need(self, record: ComponentRecord, descriptor: Hashable, below: Collection[Hashable] = ()) -> int:
        """Bytes that capturing ``descriptor`` now takes at least, by what it or one of those ``below`` took; 0 if nothing is known.

        Never more than it takes: a guess that is too high would refuse for good what fits. The lock is held.
        """
        return sum(self._parts(record, descriptor, below))

    def need_all(self, entries: Iterable[Entry]) -> int:
        """Bytes that capturing all of these now takes at least, by what each of them took; the lock is held."""
        pools: dict[Domain, int] = {}
        statics = 0
        for entry in entries:
            pool, buffers = self._parts(entry.component, entry.descriptor)
            pools[entry.domain] = max(pools.get(entry.domain, 0), pool)
            statics += buffers
        return sum(pools.values()) + statics

    def _parts(self, record: ComponentRecord, descriptor: Hashable, below: Collection[Hashable] = ()) -> tuple[int, int]:
        """`need` of the pool, and for static inputs."""
        name = record.component_id
        known = self._costs.get((name, descriptor))
        costs = [self._costs[name, other] for other in below if (name, other) in self._costs] if known is None else [known]
        domain = self._books.known_domain(record, descriptor)
        met = domain.pool if domain is not None else None
        if met is not None and (met.kind is PoolKind.foreign or offers(met)):
            pool = max((cost.grows(met) for cost in costs), default=0)
        elif record.isolation is Isolation.foreign:
            pool = 0
        else:
            pool = max((cost.pool for cost in costs), default=0)  # it will be the first in its pool
        return pool, 0 if name in self._sharing else max((cost.buffers for cost in costs), default=0)

    # -- refusals -----------------------------------------------------------------------------------------------------

    def foresee(self, entry: Entry, below: Collection[Hashable]) -> None:
        """Refuse a capture that is known not to fit, before it begins; ``below`` as for `need`. The lock is held.

        Raises:
            BudgetExceeded: it does not fit.
        """
        if self.limit is not None:
            self._refuse(entry.name, self.need(entry.component, entry.descriptor, below), self.held())

    def foresee_all(self, graphs: int, need: int) -> None:
        """Refuse a set of captures that takes ``need`` bytes at least, before the first begins. The lock is held.

        Raises:
            BudgetExceeded: it does not fit.
        """
        if self.limit is not None:
            self._refuse(f"the set of {graphs} graphs", need, self.held())

    def allows(self, grown: int) -> bool:
        """Whether so many bytes more may be held; takes the lock."""
        with self._books.gate.lock:
            return self.limit is None or self.held() + grown <= self.limit

    def expect(self, entry: Entry, grown: int) -> None:
        """Refuse a capture that by its warm-up will grow its pool by ``grown`` bytes; the gate is held, the lock is not.

        Raises:
            BudgetExceeded: it will not fit. What it was to take is remembered.
        """
        if self.limit is None or not grown:
            return
        books, pool = self._books, entry.pool
        with books.gate.lock:
            have, both = self.held(without=entry), self.held()
            if both + grown > self.limit:
                self.note(entry, 0, alone=False, beside=Growth(grown, pool.name, pool.charged, pool.drops))
            self._refuse(entry.name, both - have + grown, have)

    def inspect(self, entry: Entry) -> None:
        """Refuse a recording that was just made, by what it really took; the capture gate is held, the lock is not.

        Raises:
            BudgetExceeded: it does not fit. What it took is remembered.
        """
        if self.limit is None:
            return
        books, pool = self._books, entry.pool
        with books.gate.lock:
            before, have, both = pool.charged, self.held(without=entry), self.held()
            grown = pool.owed() - before
            if both + grown > self.limit:
                self.note(entry, grown, alone=not before)
            self._refuse(entry.name, both - have + grown, have)

    def _refuse(self, entity: str, need: int, have: int) -> None:
        if self.limit is not None and have + need > self.limit:
            raise BudgetExceeded(entity, need, have, self.limit)


def parse_budget(budget_bytes: object) -> int | None:
    """A budget from the outside.

    Raises:
        ConfigError: not a positive number of bytes, nor None.
    """
    if budget_bytes is None:
        return None
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int) or budget_bytes <= 0:
        raise ConfigError(f"budget_bytes must be None or a positive number of bytes, not {budget_bytes!r}")
    return budget_bytes
