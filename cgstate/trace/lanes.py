"""Who is being recorded: a lane for each living entity, with its name and one object a row to stand for it in the log."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from cgstate.lifecycle.states import ComponentEvent, ComponentState, EntryEvent, EntryState, PoolKind, PoolState
from cgstate.lifecycle.steps import Steps
from cgstate.lifecycle.tables import COMPONENT, ENTRY, MACHINE
from cgstate.runtime.books import Books
from cgstate.runtime.entry import Entry
from cgstate.runtime.pool import Pool
from cgstate.runtime.record import ComponentRecord
from cgstate.trace.records import EntityRecord
from cgstate.trace.rows import LEASES, ROWS, TraceRow, constants

if TYPE_CHECKING:
    from cgstate.lifecycle.expr import Value
    from cgstate.lifecycle.table import Machine

TIMED, BRIEF, FULL = range(3)
"""How a row is logged: a lease with time, thread and stream; what follows it at once with nothing; all else with all there is."""
LENGTH = (4, 1, 6)
"""How many values of the log that takes."""


def _between(machine: Machine, event: StrEnum, source: StrEnum, target: StrEnum) -> int:
    """Index of the row from ``source`` to ``target``."""
    (row,) = (row for row in machine.rows_for(source, event) if row.target == target)
    return machine.rows.index(row)


ACQUIRED = (
    _between(ENTRY, EntryEvent.acquire, EntryState.BOUND, EntryState.REPLAYING),
    _between(COMPONENT, ComponentEvent.first_lease, ComponentState.BOUND, ComponentState.REPLAYING),
)
RELEASED = (
    _between(ENTRY, EntryEvent.release, EntryState.REPLAYING, EntryState.BOUND),
    _between(COMPONENT, ComponentEvent.last_release, ComponentState.REPLAYING, ComponentState.BOUND),
)
"""The rows of an ordinary lease: the entry's, and its component's."""


class RowOf:
    """A row of one entity's table, made beforehand: of what happens at each call it tells all but numbers, as that has one source.

    Attributes:
        lane: Whose.
        row: Which.
        form: `TIMED`, `BRIEF` or `FULL`.
        length: How many values of the log it takes.
        text: What an encoder has made of it, where that is the same each time.
    """

    events = 1

    __slots__ = ("form", "lane", "length", "row", "text")

    def __init__(self, lane: Lane, row: TraceRow) -> None:
        self.lane = lane
        self.row = row
        self.text: str | None = None
        if row.reads:
            self.form = FULL
        else:
            self.form = TIMED if row.row.event in LEASES else BRIEF
        self.length = LENGTH[self.form]


class LeaseOf:
    """The two rows of an ordinary lease, in the place of one: an entry's, and the one that its component takes at once.

    Attributes:
        entry: The entry's row, `TIMED`.
        component: The component's, `BRIEF`.
    """

    events, length = 2, LENGTH[TIMED]

    __slots__ = ("component", "entry")

    def __init__(self, entry: RowOf, component: RowOf) -> None:
        self.entry = entry
        self.component = component


class Lane:
    """What the log keeps of an entity, so that it does not keep the entity itself; logged where that was met.

    Attributes:
        record: How the trace introduces it.
        owners: The lanes of what it belongs to, which have to be introduced before it.
        rows: One a row of its table.
        introduced_by: The encoder that has written its record.
    """

    events, length = 0, 1

    __slots__ = ("introduced_by", "owners", "record", "rows")

    def __init__(self, record: EntityRecord, owners: tuple[Lane, ...]) -> None:
        self.record = record
        self.owners = owners
        self.rows = tuple(RowOf(self, row) for row in ROWS[record.machine])
        self.introduced_by: object = None


class Lanes:
    """The lanes of everything alive.

    What has come to its end is let go of, so that there are no more of them than living entities. Of a closed manager some steps
    are still to come, or none if it was dropped; so it is kept weakly from then on.

    Attributes:
        of: The lane of each entity that is kept.
        rows: The same lanes' rows, for the step that has no time.
        acquired, released: For each entry the rows of an ordinary lease, `ACQUIRED` or `RELEASED`.
    """

    __slots__ = ("_fading", "_names", "acquired", "of", "released", "rows")

    def __init__(self) -> None:
        self.of: dict[Steps, Lane] = {}
        self.rows: dict[Steps, tuple[RowOf, ...]] = {}
        self.acquired: dict[Steps, LeaseOf] = {}
        self.released: dict[Steps, LeaseOf] = {}
        self._fading: WeakKeyDictionary[Steps, Lane] = WeakKeyDictionary()
        self._names: dict[tuple[str, str], Steps | ref[Steps]] = {}

    def get(self, entity: Steps) -> Lane | None:
        """The lane of an entity that was met."""
        return self.of.get(entity) or self._fading.get(entity)

    def name(self, entity: Steps) -> str | None:
        """What the trace calls an entity that was met."""
        lane = self.get(entity)
        return None if lane is None else lane.record.entity

    def meet(self, entity: Steps) -> Iterator[Lane]:
        """Make the lanes of an entity and of whatever it belongs to; yields the new ones, owners first."""
        if self.get(entity) is not None:
            return
        if isinstance(entity, Entry):
            yield from self.meet(entity.component)
            yield self._open(entity, f"{entity.name} (profile)" if entity.domain.kind is PoolKind.throwaway else entity.name)
        else:
            if isinstance(entity, ComponentRecord):
                yield from self.meet(entity.manager)
                self._bury_namesake(entity)
            yield self._open(entity, entity.name)

    def close(self, entity: Steps) -> None:
        """Let go of an entity if it has come to its end; of a manager and all that it had, if it was closed."""
        if isinstance(entity, Entry):
            ended = entity.state is EntryState.EAGER and not entity.unreclaimed
        else:
            ended = isinstance(entity, Pool) and entity.state is PoolState.GONE
        if ended:
            self._drop(entity)
        elif isinstance(entity, Books) and entity.closed():
            self._fade(entity)

    def _fade(self, books: Books) -> None:
        """Keep a closed manager, and what it had, only as long as others do."""
        self._names = {key: holder for key, holder in self._names.copy().items() if self._holder(*key) is not None}
        name = self.name(books)
        mine = [books, *(entity for entity, lane in self.of.copy().items() if lane.record.manager == name)]
        for entity in mine:
            lane = self.of.get(entity)
            self._drop(entity)
            if lane is not None:
                self._fading[entity] = lane
                self._names[lane.record.machine, lane.record.entity] = ref(entity)

    def _open(self, entity: Steps, wanted: str) -> Lane:
        machine = entity.machine.name
        name, number = wanted, 1
        while self._holder(machine, name) is not None:
            number += 1
            name = f"{wanted}#{number}"
        self._names[machine, name] = entity
        owners = tuple(filter(None, map(self.get, self._owners(entity))))
        lane = self.of[entity] = Lane(self._introduce(entity, name, owners), owners)
        self.rows[entity] = lane.rows
        if isinstance(entity, Entry):
            _, component = owners
            self.acquired[entity] = LeaseOf(lane.rows[ACQUIRED[0]], component.rows[ACQUIRED[1]])
            self.released[entity] = LeaseOf(lane.rows[RELEASED[0]], component.rows[RELEASED[1]])
        return lane

    def _owners(self, entity: Steps) -> tuple[Steps, ...]:
        """What an entity belongs to: its manager first, then the component of an entry."""
        if isinstance(entity, Entry):
            return entity.manager, entity.component
        if isinstance(entity, ComponentRecord):
            return (entity.manager,)
        if isinstance(entity, Pool):  # its manager was prepared, before it had pools
            return (next(each for each in (*self.of, *self._fading) if isinstance(each, Books) and entity in each.pools),)
        return ()

    @staticmethod
    def _introduce(entity: Steps, name: str, owners: tuple[Lane, ...]) -> EntityRecord:
        values: dict[str, Value] = {var: getattr(entity, var) for var in constants(MACHINE[entity.machine.name])}
        if isinstance(entity, ComponentRecord):
            values |= {"capacity": entity.capacity, "epoch": entity.epoch, "resident": entity.resident}
        return EntityRecord(
            machine=entity.machine.name,
            entity=name,
            fresh=True,
            manager=owners[0].record.entity if owners else None,
            component=owners[1].record.entity if len(owners) > 1 else None,
            domain=entity.domain.name if isinstance(entity, Entry | Pool) else None,
            device=entity.backend.device if isinstance(entity, Books) else None,
            values=values,
        )

    def _bury_namesake(self, component: ComponentRecord) -> None:
        """A component of this name that its manager does not know any more was made in a profile, and forgotten with it."""
        old = self._holder("component", component.name)
        if isinstance(old, ComponentRecord) and old.manager.components.get(old.component_id) is not old:
            self._drop(old)

    def _holder(self, machine: str, name: str) -> Steps | None:
        """The living entity that has a name."""
        holder = self._names.get((machine, name))
        return holder() if isinstance(holder, ref) else holder

    def _drop(self, entity: Steps) -> None:
        lane = self.of.pop(entity, None) or self._fading.pop(entity, None)
        self.rows.pop(entity, None)
        self.acquired.pop(entity, None)
        self.released.pop(entity, None)
        if lane is not None:
            del self._names[lane.record.machine, lane.record.entity]
