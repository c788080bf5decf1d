"""Room for one more graph: within the component's capacity (I11), and within the manager's byte budget.

Declared descriptors keep their places, also while they are evicted: a graph beyond them has none but the ``max_extra_graphs``.

Victims are lazily captured entries that can go alone, idle ones, the least recently used first. Nobody goes in vain: if all victims
together would not make room, none is evicted. Room is made before the capture, so that the peak is bounded too. A call never waits
for a victim that the device still replays: it is retired, and its place is free at a later miss. An explicit capture waits for it.

Where those that can go alone do not make room for an explicit capture, those go that can go together: the graphs of a pool that
were all made by misses, and are all idle. A miss retires no such pool.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from cgstate.lifecycle.states import EntryState, PoolKind
from cgstate.runtime.domain import LIVE, Domain
from cgstate.runtime.stats import Eviction, Fallback
from cgstate.runtime.vote import Ballot

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import ComponentRecord

SHORT = {Eviction.capacity: Fallback.capacity, Eviction.budget: Fallback.budget}
"""What a call lacks where the eviction that it needs fails."""


def make_place(record: ComponentRecord, descriptor: Hashable) -> Fallback | None:
    """Evict until ``descriptor`` has a place in the component; else why it cannot be had now. The manager is the caller's."""
    books = record.manager
    declared = descriptor in record.declared
    places = record.capacity if declared else record.capacity - len(record.declared)
    books.reclaimer.settle()
    while True:
        with books.gate.lock:
            rivals = [entry for entry in record.entries.values() if declared or entry.descriptor not in record.declared]
            bound = sum(entry.state in LIVE for entry in rivals)
            going = sum(entry.unreclaimed for entry in rivals)
            if record.has_room and bound + going < places:
                break
            victim = min(_victims(rivals), key=_age, default=None) if bound >= places else None
        if victim is None:
            return Fallback.capacity
        refused = _evict(books, [victim], Eviction.capacity)
        if refused is not None:
            return refused
        held = record.held
        books.reclaimer.settle()
        if record.held == held:
            return Fallback.capacity  # the device is still replaying it: one victim will do
    books.reclaimer.drop_pools()
    return None


def may_fit(record: ComponentRecord, descriptor: Hashable) -> bool:
    """Whether evicting every victim would bring a capture within the budget, by all that is known."""
    books = record.manager
    if books.budget.limit is None:
        return True
    below = books.budget.below(record, descriptor)
    with books.gate.lock:
        return _choose(books, books.budget.need(record, descriptor, below))[1] <= 0


def make_bytes(record: ComponentRecord, descriptor: Hashable) -> Fallback | None:
    """Evict, reclaim and flush until the capture fits the budget, by what is known; else why it does not now.

    The manager is the caller's, and what was retired before is given back already.
    """
    books = record.manager
    if books.budget.limit is None:
        return None
    below = books.budget.below(record, descriptor)
    with books.gate.lock:
        need = books.budget.need(record, descriptor, below)
        chosen, short = _choose(books, need)
    if short > 0:
        return Fallback.budget
    refused = _evict(books, chosen, Eviction.budget)
    if refused is not None:
        return refused
    if chosen:
        books.reclaimer.settle()
        books.reclaimer.drop_pools()
    with books.gate.lock:
        return None if books.budget.held() + need <= books.budget.limit else Fallback.budget


def await_bytes(books: Books, need: int, spared: Collection[Domain] = ()) -> bool:
    """Evict and give back until ``need`` bytes fit, before explicit captures that take so much; waits for the device.

    False, and nobody was evicted, if all victims would not make room. The manager is the caller's. Nobody of ``spared`` is evicted.
    """
    if books.budget.limit is None:
        return True
    with books.gate.lock:
        chosen, short = _choose(books, need, spared, together=True)
    if short > 0 or _evict(books, chosen, Eviction.budget) is not None:
        return False
    give_back(books)
    return True


def may_retire(entry: Entry, need: int) -> bool:
    """Whether retiring every victim would make room for ``need`` bytes that the capture of ``entry`` will take of its pool."""
    with entry.manager.gate.lock:
        return _choose(entry.manager, need, (entry.domain,), together=True)[1] <= 0


def retire_bytes(entry: Entry) -> bool:
    """Retire what makes room for an explicit capture that has just been recorded, as far as that was not known before.

    False, and nobody was retired, if all victims would not make room. The gate is held: `give_back` comes after the capture's end.
    """
    books = entry.manager
    with books.gate.lock:
        chosen, short = _choose(books, entry.pool.owed() - entry.pool.charged, (entry.domain,), together=True)
    return short <= 0 and _evict(books, chosen, Eviction.budget) is None


def give_back(books: Books) -> None:
    """Return to the device what was retired; waits for it."""
    books.reclaimer.finish()
    books.reclaimer.drop_pools()


def shrink(books: Books) -> int:
    """Evict until the budget holds, or as far as it goes; waits for the device. Returns how many; the manager is the caller's."""
    evicted = 0
    while True:
        give_back(books)
        with books.gate.lock:
            chosen, _ = _choose(books, 0)
        if not chosen or _evict(books, chosen, Eviction.budget) is not None:
            return evicted
        evicted += len(chosen)


def _age(entry: Entry) -> int:
    """When it was used last. `Entry.replay` does not tell, so replays since then count as made now; the lock is held."""
    if entry.hits != entry.counted:
        entry.tick()
    return entry.last_used


def _victims(entries: Iterable[Entry]) -> list[Entry]:
    """Startup entries are no victims, nor is an entry that shares its domain, nor one in use; the lock is held."""
    return [
        entry
        for entry in entries
        if entry.state is EntryState.BOUND
        and not entry.startup
        and entry.domain.kind is PoolKind.per_entry
        and not entry.domain.capturing
    ]


def _generations(books: Books) -> list[list[Entry]]:
    """Victims that share a domain which has no others; the lock is held."""
    generations = []
    for domain in books.domains.values():
        live = [entry for entry in domain.entries if entry.state in LIVE]
        ours = domain.kind in (PoolKind.shared, PoolKind.per_component)
        if ours and live and all(entry.state is EntryState.BOUND and not entry.startup for entry in live):
            generations.append(live)
    return generations


def _choose(books: Books, need: int, spared: Collection[Domain] = (), *, together: bool = False) -> tuple[list[Entry], int]:
    """The fewest least recently used victims without which ``need`` bytes fit, and how many bytes are short even so.

    Bytes that were retired and are not given back yet count as free: they are on their way. The lock is held.

    Args:
        books: The manager's.
        need: Bytes.
        spared: Nobody of these domains goes.
        together: Whether those may go that can only go together, if all others do not make room.
    """
    limit = books.budget.limit
    if limit is None:
        return [], 0
    allowed = limit - need
    short = books.budget.held() - allowed
    chosen: list[Entry] = []
    if short > 0:
        groups = [[victim] for victim in sorted(_victims(books.entries()), key=_age)]
        if together:
            groups += sorted(_generations(books), key=lambda entries: max(map(_age, entries)))
        left = iter(group for group in groups if group[0].domain not in spared)
        while (short := books.budget.held_after(chosen) - allowed) > 0 and (group := next(left, None)) is not None:
            chosen += group
    return chosen, short


def _evict(books: Books, victims: Sequence[Entry], cause: Eviction) -> Fallback | None:
    """Retire all victims, or none: then why, as another rank does not agree, or one is in use by now and the shortage remains."""
    for victim in victims:
        record = victim.component
        if record.collective and not books.vote.agree(Ballot.evict, record.component_id, victim.descriptor):
            return Fallback.vote
    with books.gate.lock:
        if any(victim.leases or not victim.may_evict() for victim in victims):
            return SHORT[cause]
        for victim in victims:
            victim.component.admission.evicted(victim.descriptor, victim.hits)
        for victim in victims:
            books.evict_domain(victim.domain, cause=cause)
    return None
