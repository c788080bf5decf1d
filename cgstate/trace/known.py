"""What a trace lets one know: the variables of every entity, as far as they were told or follow from the rows taken.

An entity's known variables are a tuple in the order of its layout, so that whole situations can be compared and remembered. What is
not known is `UNKNOWN`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import EntryState
from cgstate.lifecycle.tables import MACHINE
from cgstate.trace.records import EntityRecord

UNKNOWN: Final = None
Known: TypeAlias = Value | None
Values: TypeAlias = tuple[Known, ...]

_TABLED = {name: ("state", *(var.name for var, _ in machine.own)) for name, machine in MACHINE.items()}

LAYOUT: dict[str, tuple[str, ...]] = {
    **_TABLED,
    "component": (*_TABLED["component"], "held", "capacity", "epoch", "resident"),
    "domain": ("capturing", "live"),
    "gate": ("free",),
}
"""Names of the known variables, by kind of object: those of the tables, and those that other tables know of it."""

FIRST: dict[str, dict[str, Value]] = {
    name: {"state": machine.initial.value, **{var.name: first for var, first in machine.own}} for name, machine in MACHINE.items()
}
FIRST["component"]["held"] = 0
"""First values of the variables that an entity is not introduced with."""

LIVE = frozenset({EntryState.CAPTURING.value, EntryState.BOUND.value, EntryState.REPLAYING.value})
USABLE = frozenset({EntryState.BOUND.value, EntryState.REPLAYING.value})


class Thing:
    """Something with known variables.

    Attributes:
        kind: Its layout.
        name: Its name.
        values: What is known of it.
    """

    __slots__ = ("kind", "name", "values")

    def __init__(self, kind: str, name: str, values: Mapping[str, Known]) -> None:
        self.kind = kind
        self.name = name
        self.values: Values = tuple(values.get(var, UNKNOWN) for var in LAYOUT[kind])

    def get(self, var: str) -> Known:
        """One of its variables."""
        return self.values[LAYOUT[self.kind].index(var)]

    def put(self, var: str, value: Known) -> None:
        """Set one."""
        index = LAYOUT[self.kind].index(var)
        self.values = (*self.values[:index], value, *self.values[index + 1 :])

    @property
    def state(self) -> Known:
        """Its state."""
        return self.values[0]


class Device:
    """The device of some managers: its gate, and what has happened there since everything was last at rest.

    Attributes:
        gate: The capture gate.
        holder: The entry whose capture is open, where that is known.
        recording: Pools that are RECORDING.
        restless: Whether anything of what follows may not be at rest.
        moved: Components that a step may have left half way.
        thinned: Domains of which an entry was evicted.
        binding: Transactions of which an entry was bound.
        clock: Time of the last event.
    """

    __slots__ = ("binding", "clock", "gate", "holder", "moved", "name", "recording", "restless", "thinned")

    def __init__(self, name: str, *, whole: bool) -> None:
        self.name = name
        self.restless = False
        self.gate = Thing("gate", name, {"free": True} if whole else {})
        self.holder: Entity | None = None
        self.recording: set[Entity] = set()
        self.moved: set[Entity] = set()
        self.thinned: set[Domain] = set()
        self.binding: set[Transaction] = set()
        self.clock = 0


class Domain(Thing):
    """A domain of one manager, and its entries."""

    __slots__ = ("entries",)

    def __init__(self, name: str, *, whole: bool) -> None:
        super().__init__("domain", name, {"capturing": 0, "live": 0} if whole else {})
        self.entries: set[Entity] = set()


class Transaction:
    """A transaction, by what its entries did.

    Attributes:
        captured: Entries whose recording it holds, or whose capture is open.
        bound, dropped, failed: What became of the others.
    """

    __slots__ = ("bound", "captured", "dropped", "failed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.captured: set[Entity] = set()
        self.bound = 0
        self.dropped = 0
        self.failed = 0

    @property
    def profiles(self) -> bool:
        """Whether nothing of it is ever bound."""
        return self.name.startswith("profile/")


class Entity(Thing):
    """An entity of a trace.

    Attributes:
        machine: Its table's name.
        manager: Its manager; itself for a manager.
        component: An entry's component; itself for all others.
        domain: The domain of an entry or a pool.
        pool: The pool that an entry last recorded into.
        device: Where its manager is.
        retired: Pools of an entry's recordings that are not reclaimed yet, oldest first.
        leases: Leases held on entries of a manager, or of a pool.
        reclaimed: Recordings of a pool that entries have given up for good, and that are not destroyed yet.
        lost: Whether a manager's device was lost.
    """

    __slots__ = ("component", "device", "domain", "leases", "lost", "machine", "manager", "pool", "reclaimed", "retired")

    def __init__(self, record: EntityRecord, device: Device, manager: Entity | None, *, whole: bool) -> None:
        first: Mapping[str, Known] = FIRST[record.machine] if whole and record.fresh else {}
        super().__init__(record.machine, record.entity, {**first, **record.values})
        self.machine = record.machine
        self.device = device
        self.manager: Entity = self if manager is None else manager
        self.component: Entity = self
        self.domain: Domain | None = None
        self.pool: Entity | None = None
        self.retired: list[Entity | None] = []
        self.leases = 0
        self.reclaimed = 0
        self.lost = False

    @property
    def live(self) -> bool:
        """Whether an entry's recording is needed."""
        return self.values[0] in LIVE

    @property
    def usable(self) -> bool:
        """Whether calls may use it."""
        return self.values[0] in USABLE


Coverage: TypeAlias = Counter[tuple[str, int]]
"""How often each row, by machine and index, was taken."""
