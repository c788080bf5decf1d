"""Ends what an interrupt has broken off, by what the machines say.

An interrupt can come wherever a function is called: between two steps of a sequence that belongs together, but never within a step,
which calls nothing once it assigns. So the machines are always true to themselves, and what else should be the case follows from
them: whose recording is the reclaimer's, which state a component is in, which pool has nothing live in it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgstate.lifecycle.states import EntryState

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.record import ComponentRecord

RETIRED = frozenset({EntryState.EAGER, EntryState.EVICTED, EntryState.FAILED})


def mend(books: Books) -> None:
    """Bring everything in line with the machines; changes nothing where it is. The lock is held."""
    owners = {*books.entries()}
    for domain in books.domains.values():
        owners |= domain.entries
    for entry in owners:
        if entry.state in RETIRED:
            entry.component.counters.retired_hits += entry.hits
            entry.hits = 0
            if books.reclaimer.lacks(entry):
                books.reclaimer.retire(entry, entry.pool, entry.graph, (entry.buffers, entry.output, entry.baked))
            entry.unload()
    for record in books.components.values():
        settle(record)
    for pool in list(books.pools):
        books.retire_pool(pool)
    books.gate.notify()


def settle(record: ComponentRecord) -> None:
    """Move a component to where its entries are, and take a new snapshot of them; the lock is held."""
    record.refresh()
    if record.state is EntryState.BOUND and record.leased:
        record.first_lease()
    if record.state is EntryState.REPLAYING and not record.leased:
        record.last_release()
    if record.state is EntryState.BOUND and not record.bound and not record.pure_lazy:
        record.last_retired()
    if record.state is EntryState.EVICTED and record.bound:
        record.lazy_bind()
