"""``check=True``: after every operation, look at everything and judge it by the invariants. For tests; slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cgstate.errors import InvariantViolation
from cgstate.lifecycle.invariants import Checker as Who
from cgstate.lifecycle.invariants import broken_at, broken_by, broken_in
from cgstate.lifecycle.observations import Destruction, PoolTurns, Work
from cgstate.lifecycle.observations import Turn as TurnView
from cgstate.lifecycle.states import EntryEvent, EntryState, PoolState
from cgstate.lifecycle.steps import EntrySteps, Observer, Steps
from cgstate.lifecycle.world import (
    Act,
    BookView,
    ComponentView,
    DomainView,
    EntryView,
    GateView,
    ManagerView,
    PoolView,
    World,
)
from cgstate.runtime.entry import UNPOOLED
from cgstate.runtime.hotpath import undisturbed
from cgstate.runtime.turn import NO_STREAM

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.pool import Pool
    from cgstate.runtime.reclaimer import Retired
    from cgstate.runtime.turn import Turn


class Checker:
    """Counts leases as an observer, and checks a World of the books whenever an operation is over."""

    def __init__(self, books: Books, also: Observer | None) -> None:
        self.books = books
        self._also = also
        self._sequence = 0
        self._open: dict[Turn, list[TurnView]] = {}
        self._last: WeakKeyDictionary[Turn, TurnView] = WeakKeyDictionary()  # a later pool may have the same name
        self.acquires = 0
        self.releases = 0

    def observe(self, entity: Steps, row: int, state: str) -> None:
        """Count leases given and ended; pass everything on to the user's own observer."""
        if isinstance(entity, EntrySteps):
            match entity.machine.rows[row].event:
                case EntryEvent.acquire:
                    self.acquires += 1
                case EntryEvent.release | EntryEvent.replay_fail:
                    self.releases += 1
                case _:
                    pass
        if self._also is not None:
            self._also(entity, row, state)

    def recount(self) -> None:
        """Whether the last step was counted is not known, as an observer has raised: count anew; the lock is held."""
        self.releases = self.acquires - self.books.leases

    def turn_taken(self, turn: Turn, thread: int, stream: int) -> None:
        """A call has a pool's turn now, perhaps inside another call's eager break; the lock is held."""
        self._sequence += 1
        waited = frozenset({turn.followed, stream})
        view = TurnView(f"turn {self._sequence}", thread, stream, self._sequence, 0, frozenset({Work.replay}), waited)
        if not turn.outer and turn in self._open:  # an interrupt has kept the last one's end from here: begin anew
            del self._open[turn]
            self._last.pop(turn, None)
        self._open.setdefault(turn, []).append(view)

    def turn_ended(self, turn: Turn) -> None:
        """A call gives a pool's turn back; the lock is held.

        Raises:
            InvariantViolation: it was not ordered after the turn before it (I5).
        """
        self._sequence += 1
        views = self._open[turn]
        ended = replace(views[-1], ended=self._sequence)
        last = self._last.get(turn)
        self._last[turn] = ended
        if len(views) > 1:
            del views[-1]
        else:
            del self._open[turn]
        if self._shared(turn):
            return  # what other managers do in it is not seen here
        self._refuse(broken_at(PoolTurns(turn.name, (last, ended) if last is not None else (ended,))))

    def _shared(self, turn: Turn) -> bool:
        """Whether another manager records into the same pool, which is the host engine's."""
        others = (books for books in self.books.gate.managers if books is not self.books)
        return any(pool.turn is turn for books in others for pool in books.pools)

    def destroying(self, retired: Retired, leases: int) -> None:
        """A recording is about to be destroyed; the lock is held.

        Raises:
            InvariantViolation: it is leased or still replaying (I2), or a capture is open (I3).
        """
        try:
            done = retired.fence is not None and all(event.done() for event in retired.fence)
        except Exception:
            return  # the device could not be asked a second time
        self._refuse(broken_at(Destruction(retired.entry.name, leases, done, int(not self.books.gate.free))))

    @staticmethod
    def _refuse(broken: Iterable[object]) -> None:
        found = "; ".join(map(str, broken))
        if found:
            raise InvariantViolation(found)

    def transaction_ended(self, act: Act, before: World) -> None:
        """A transaction ended; the lock is held.

        Raises:
            InvariantViolation: its entries are a mixture, or something else moved with them (I1, I6, I8).
        """
        self._refuse(broken_by(Who.runtime, before, self.world(), act))

    def world(self) -> World:
        """Everything as plain values; the lock is held."""
        return world_of(self.books, acquires=self.acquires, releases=self.releases)

    def look(self) -> None:
        """Check.

        Raises:
            InvariantViolation: an invariant is broken.
        """
        with self.books.gate.lock:
            if self.books.closed() and not self.books.ended():
                return  # closing still returns bytes, or failed to; it looks itself when it is done
            world = self.world()
            self._refuse(wrong_seals(self.books))
            self._seal()
        self._refuse(broken_in(Who.runtime, world))

    def _seal(self) -> None:
        """Seal whatever can be, for the next look: replays of a checked manager do it never, as they take the long way."""
        for entry in self.books.entries():
            if entry.state is EntryState.BOUND and entry.turn.last_handle != NO_STREAM and undisturbed(entry):
                entry.turn.seal(entry)


def wrong_seals(books: Books) -> Iterator[str]:
    """Seals that something has made untrue without breaking them; the lock is held."""
    for entry in books.entries():
        if entry.seal != NO_STREAM and not (undisturbed(entry) and entry.seal == entry.turn.last_handle):
            yield f"{entry.name} is sealed for stream {entry.seal:#x}, and a replay there would have to ask"


def world_of(books: Books, *, acquires: int, releases: int) -> World:
    """Everything of one manager as plain values; the lock is held."""
    entries = dict.fromkeys(books.entries(), True)
    for domain in books.domains.values():
        for entry in domain.entries:
            entries.setdefault(entry, False)
    views = tuple([_entry(entry, known=known) for entry, known in entries.items()])
    holder = next((view.name for view in views if view.records), "" if books.gate.free else "another manager")
    moving = books.gate.destroying > 0  # somebody returns bytes right now, and will measure afterwards
    # Library workspaces in pools that were dropped stay for as long as a foreign graph may need what a clear would take (W2, W3).
    # So does what somebody holds of a static output.
    closed = books.closed()
    kept = {pool for pool in books.pools if closed and pool.state is PoolState.GONE and (books.reclaimer.blocked or pool.lent)}
    pools = tuple([_pool(pool, measured=not moving) for pool in books.pools if pool not in kept])
    sizes = [
        BookView("negative cache", len(books.negative), books.negative.limit),
        BookView("costs", len(books.budget), books.budget.remembered),
    ]
    components = []
    for name, record in books.components.items():
        admission, misses = record.admission, record.counters.misses
        sizes.append(BookView(f"admission of {name}", len(admission), admission.limit))
        sizes.append(BookView(f"misses of {name}", len(misses), misses.limit + 1))
        components.append(
            ComponentView(
                name,
                record.state,
                record.bound,
                record.leased,
                record.held,
                record.capacity,
                record.epoch,
                record.resident,
                record.pure_lazy,
            )
        )
    return World(
        gate=GateView(books.gate.free, holder),
        manager=ManagerView(books.state, books.serving),
        entries=views,
        components=tuple(components),
        pools=pools,
        domains=tuple([DomainView(domain.name, domain.capturing, domain.live) for domain in books.domains.values()]),
        books=tuple(sizes),
        acquires=acquires,
        releases=releases,
        ledger_bytes=sum([pool.charged for pool in pools]),
    )


def _entry(entry: Entry, *, known: bool) -> EntryView:
    return EntryView(
        entry.name if known else f"{entry.name} while profiling",
        entry.component.component_id,
        repr(entry.descriptor),
        entry.domain.name,
        entry.pool.name if entry.pool is not UNPOOLED else "",
        entry.state,
        entry.before,
        entry.leases,
        entry.retiring,
        entry.failed,
        entry.recorded,
        entry.noted,
        entry.unreclaimed,
    )


def _pool(pool: Pool, *, measured: bool) -> PoolView:
    return PoolView(
        pool.name,
        pool.kind,
        pool.state,
        pool.graphs,
        pool.domain.name,
        pool.charged,
        pool.bytes() if measured else None,
    )
