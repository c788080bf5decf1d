"""A `World`: what can be seen of one device at one moment, as plain frozen values.

The runtime, the model walker and the tests each build Worlds from what they have; `invariants` judges them. Nothing here knows
where a World came from. Take one only where nobody is in the middle of a step: under the device's lock, between two acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cgstate.lifecycle.states import ComponentState, EntryState, ManagerState, PoolKind, PoolState

_BOUND = frozenset({EntryState.BOUND, EntryState.REPLAYING})
_LIVE = _BOUND | {EntryState.CAPTURING}


class EntryView(NamedTuple):
    """One entry.

    Attributes:
        name: E.g. ``decoder[64]``; unique in its World.
        component: Name of its component.
        descriptor: ``repr`` of its descriptor.
        domain: Name of its domain.
        pool: Name of the pool it records or last recorded into; empty before the first time.
        state, before, leases, retiring, failed, recorded, noted, unreclaimed: See the entry table.
    """

    name: str
    component: str
    descriptor: str
    domain: str
    pool: str
    state: EntryState
    before: EntryState
    leases: int
    retiring: bool
    failed: bool
    recorded: bool
    noted: int
    unreclaimed: int

    @property
    def records(self) -> bool:
        """Whether its capture is open right now."""
        return self.state is EntryState.CAPTURING and not self.recorded

    @property
    def bound(self) -> bool:
        """Whether it has a graph that calls may use: BOUND or REPLAYING."""
        return self.state in _BOUND

    @property
    def live(self) -> bool:
        """Whether a recording of it is needed: CAPTURING, BOUND or REPLAYING."""
        return self.state in _LIVE


class ComponentView(NamedTuple):
    """One component; see the component table and, for ``held``, ``capacity``, ``epoch`` and ``resident``, the entry table."""

    name: str
    state: ComponentState
    bound: int
    leased: int
    held: int
    capacity: int
    epoch: int
    resident: bool
    pure_lazy: bool


class PoolView(NamedTuple):
    """One pool.

    Attributes:
        name: Unique in its World.
        kind, state, graphs: See the pool table.
        domain: Name of its domain.
        charged: Bytes that the ledger charges for it: live, stranded, and retired but not given back.
        measured: Bytes of its own segments as the allocator tells them (P5); None if nobody asked.
    """

    name: str
    kind: PoolKind
    state: PoolState
    graphs: int
    domain: str
    charged: int
    measured: int | None


class DomainView(NamedTuple):
    """One domain: how many of its entries are CAPTURING, and how many are CAPTURING, BOUND or REPLAYING."""

    name: str
    capturing: int
    live: int


class GateView(NamedTuple):
    """The capture gate.

    Attributes:
        free: No capture is open on the device.
        holder: Name of the entry whose capture is open; empty when free. Another manager's entry may hold it too.
    """

    free: bool
    holder: str


class ManagerView(NamedTuple):
    """The manager; see the manager table."""

    state: ManagerState
    serving: bool


class BookView(NamedTuple):
    """One book that must stay bounded: statistics, the negative cache, a trace."""

    name: str
    size: int
    limit: int


class World(NamedTuple):
    """Everything of one manager and its device.

    Attributes:
        acquires: Leases ever given.
        releases: Leases ever ended, by release or by a failed launch.
        ledger_bytes: Bytes charged in all.
        outside_bytes: The part of them that is in no pool: buffers and workspaces.
    """

    gate: GateView
    manager: ManagerView
    entries: tuple[EntryView, ...] = ()
    components: tuple[ComponentView, ...] = ()
    pools: tuple[PoolView, ...] = ()
    domains: tuple[DomainView, ...] = ()
    books: tuple[BookView, ...] = ()
    acquires: int = 0
    releases: int = 0
    ledger_bytes: int = 0
    outside_bytes: int = 0

    def of_component(self, name: str) -> list[EntryView]:
        """The entries of a component."""
        return [entry for entry in self.entries if entry.component == name]

    def of_domain(self, name: str) -> list[EntryView]:
        """The entries of a domain."""
        return [entry for entry in self.entries if entry.domain == name]

    def of_pool(self, name: str) -> list[EntryView]:
        """The entries that record, or last recorded, into a pool."""
        return [entry for entry in self.entries if entry.pool == name]


@dataclass(frozen=True, slots=True)
class Act:
    """What happened between two Worlds: one step of a machine, or one public call under the device's lock.

    Attributes:
        name: E.g. ``commit`` or ``evict``.
        transaction: Names of the entries of the transaction that ended by it; empty if none did.
    """

    name: str
    transaction: frozenset[str] = frozenset()
