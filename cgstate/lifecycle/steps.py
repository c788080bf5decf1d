# Generated from the tables by `python -m cgstate.lifecycle.generate`; do not edit. Tables: fb46dda90b165541fbb9b034f8d483753a2c66e9b90b2c375787e64ce69a6da4
"""The transitions of the four machines as methods: what the runtime's entities inherit.

Each method takes the one row that its guards allow, applies its effects and tells the observer; where no row is allowed it raises
the refusal and has changed nothing. Callers hold the device's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, NoReturn, Protocol, TypeAlias

from cgstate.lifecycle.engine import observe, refusal
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import (
    ComponentEvent,
    EntryEvent,
    EntryState,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolKind,
    PoolState,
)
from cgstate.lifecycle.table import Machine
from cgstate.lifecycle.tables import COMPONENT, ENTRY, MANAGER, POOL

EntryState_BOUND: Final = EntryState.BOUND
EntryState_CAPTURING: Final = EntryState.CAPTURING
EntryState_EAGER: Final = EntryState.EAGER
EntryState_EVICTED: Final = EntryState.EVICTED
EntryState_FAILED: Final = EntryState.FAILED
EntryState_REPLAYING: Final = EntryState.REPLAYING
ManagerState_CAPTURING: Final = ManagerState.CAPTURING
ManagerState_CLOSED: Final = ManagerState.CLOSED
ManagerState_NEW: Final = ManagerState.NEW
ManagerState_POISONED: Final = ManagerState.POISONED
ManagerState_PREPARED: Final = ManagerState.PREPARED
ManagerState_PROFILING: Final = ManagerState.PROFILING
ManagerState_SERVING: Final = ManagerState.SERVING
PoolKind_foreign: Final = PoolKind.foreign
PoolKind_throwaway: Final = PoolKind.throwaway
PoolState_GONE: Final = PoolState.GONE
PoolState_LIVE: Final = PoolState.LIVE
PoolState_MINTED: Final = PoolState.MINTED
PoolState_RECORDING: Final = PoolState.RECORDING
PoolState_RETIRED: Final = PoolState.RETIRED

Observer: TypeAlias = "Callable[[Steps, int, str], None]"
"""Called after each step with the entity, the index of the row taken and the state before."""


class Steps:
    """What every stepping entity has."""

    __slots__ = ("observer",)

    machine: ClassVar[Machine]
    observer: Observer | None

    @property
    def name(self) -> str:
        """What refusals and traces call the entity."""
        raise TypeError("every entity names itself")


class EntryGate(Protocol):
    """What the entry table reads and assigns of the gate."""

    free: bool
    """No capture is open on the device."""


class EntryPool(Protocol):
    """What the entry table reads and assigns of the pool."""

    @property
    def state(self) -> PoolState:
        """State of the pool it records into."""
        ...

    @property
    def kind(self) -> PoolKind:
        """Kind of that pool."""
        ...


class EntryComponent(Protocol):
    """What the entry table reads and assigns of the component."""

    held: int
    """Live + capturing + not yet reclaimed entries of the component."""

    @property
    def capacity(self) -> int:
        """How many of them the component may hold."""
        ...

    bound: int
    """Entries of the component that are bound or replaying."""

    leased: int
    """Entries of the component that are replaying."""

    @property
    def epoch(self) -> int:
        """Moves whenever memory that the component depends on moves."""
        ...

    @property
    def resident(self) -> bool:
        """All memory that the component depends on is resident."""
        ...


class EntryTransaction(Protocol):
    """What the entry table reads and assigns of the transaction."""

    @property
    def committing(self) -> bool:
        """The transaction holds every recording and binds them now."""
        ...


class EntryDomain(Protocol):
    """What the entry table reads and assigns of the domain."""

    capturing: int
    """Entries of the domain that are capturing."""


class EntryManager(Protocol):
    """What the entry table reads and assigns of the manager."""

    @property
    def serving(self) -> bool:
        """The manager has committed and was not released, closed or poisoned since."""
        ...


class EntrySteps(Steps):
    """The lifecycle record of one (component, descriptor)."""

    __slots__ = (
        "state",
        "leases",
        "retiring",
        "failed",
        "recorded",
        "before",
        "noted",
        "unreclaimed",
        "concurrent",
        "gate",
        "pool",
        "component",
        "transaction",
        "domain",
        "manager",
    )

    machine = ENTRY
    state: EntryState
    leases: int
    """Leases held on this entry."""
    retiring: bool
    """Evicted while leased: no new lease, evicted at the last release."""
    failed: bool
    """A launch failed: no new lease, failed at the last release."""
    recorded: bool
    """The open transaction holds this entry's recording."""
    before: EntryState
    """The state that abort returns to."""
    noted: int
    """The component's epoch at capture_begin: addresses are baked in from here on."""
    unreclaimed: int
    """Retired recordings of this entry that are not destroyed yet."""
    concurrent: bool
    """Whether several leases may be held at once."""
    gate: EntryGate
    pool: EntryPool
    component: EntryComponent
    transaction: EntryTransaction
    domain: EntryDomain
    manager: EntryManager

    def reset_variables(self) -> None:
        """Give the state and every own variable its first value."""
        self.observer = None
        self.state = EntryState.EAGER
        self.leases = 0
        self.retiring = False
        self.failed = False
        self.recorded = False
        self.before = EntryState.EAGER
        self.noted = 0
        self.unreclaimed = 0
        self.concurrent = True

    def capture_begin(self, *, blocked: bool) -> None:
        """Notes the epochs whose addresses will be baked in, and takes the gate. An evicted entry's old recording may still wait for the reclaimer; a failed one is tried again when its kind allows."""
        state = self.state
        if state in (EntryState_EAGER, EntryState_EVICTED, EntryState_FAILED):
            if (
                self.gate.free
                and self.pool.state not in (PoolState_RETIRED, PoolState_GONE)
                and self.pool.state is not PoolState_RECORDING
                and self.component.held < self.component.capacity
                and not blocked
            ):
                self.before = self.state
                self.noted = self.component.epoch
                self.gate.free = False
                self.recorded = False
                self.retiring = False
                self.failed = False
                self.component.held += 1
                self.domain.capturing += 1
                self.state = EntryState_CAPTURING
                if self.observer is not None:
                    self.observer(self, 0, state)
                return
        self._refuse(EntryEvent.capture_begin, {"blocked": blocked})

    def may_capture_begin(self, *, blocked: bool) -> bool:
        """Whether `capture_begin` would be taken now; changes nothing."""
        state = self.state
        if state is EntryState_EAGER:
            return (
                self.gate.free
                and self.pool.state not in (PoolState_RETIRED, PoolState_GONE)
                and self.pool.state is not PoolState_RECORDING
                and self.component.held < self.component.capacity
                and not blocked
            )
        if state is EntryState_EVICTED:
            return (
                self.gate.free
                and self.pool.state not in (PoolState_RETIRED, PoolState_GONE)
                and self.pool.state is not PoolState_RECORDING
                and self.component.held < self.component.capacity
                and not blocked
            )
        if state is EntryState_FAILED:
            return (
                self.gate.free
                and self.pool.state not in (PoolState_RETIRED, PoolState_GONE)
                and self.pool.state is not PoolState_RECORDING
                and self.component.held < self.component.capacity
                and not blocked
            )
        return False

    def capture_end(self) -> None:
        """The recording goes to the transaction; the next capture may begin."""
        state = self.state
        if state is EntryState_CAPTURING:
            if not self.recorded:
                self.recorded = True
                self.gate.free = True
                if self.observer is not None:
                    self.observer(self, 1, state)
                return
        self._refuse(EntryEvent.capture_end, {})

    def bind(self) -> None:
        """All entries of the transaction in one step (I1)."""
        state = self.state
        if state is EntryState_CAPTURING:
            if (
                self.recorded
                and self.transaction.committing
                and self.noted == self.component.epoch
                and self.pool.kind is not PoolKind_throwaway
            ):
                self.recorded = False
                self.domain.capturing -= 1
                self.component.bound += 1
                self.state = EntryState_BOUND
                if self.observer is not None:
                    self.observer(self, 2, state)
                return
        self._refuse(EntryEvent.bind, {})

    def may_bind(self) -> bool:
        """Whether `bind` would be taken now; changes nothing."""
        state = self.state
        if state is EntryState_CAPTURING:
            return (
                self.recorded
                and self.transaction.committing
                and self.noted == self.component.epoch
                and self.pool.kind is not PoolKind_throwaway
            )
        return False

    def abort(self) -> None:
        """The transaction gives up, or only profiles: the recording goes to the reclaimer."""
        state = self.state
        if state is EntryState_CAPTURING:
            if self.recorded:
                self.domain.capturing -= 1
                self.unreclaimed += 1
                self.recorded = False
                self.state = self.before
                if self.observer is not None:
                    self.observer(self, 3, state)
                return
            if not self.recorded:
                self.domain.capturing -= 1
                self.unreclaimed += 1
                self.recorded = False
                self.gate.free = True
                self.state = self.before
                if self.observer is not None:
                    self.observer(self, 4, state)
                return
        self._refuse(EntryEvent.abort, {})

    def capture_fail(self) -> None:
        """The attempt failed and was undone; its kind says when to try again."""
        state = self.state
        if state is EntryState_CAPTURING:
            if not self.recorded and self.pool.kind is not PoolKind_throwaway:
                self.domain.capturing -= 1
                self.unreclaimed += 1
                self.recorded = False
                self.gate.free = True
                self.state = EntryState_FAILED
                if self.observer is not None:
                    self.observer(self, 5, state)
                return
            if not self.recorded and self.pool.kind is PoolKind_throwaway:
                self.domain.capturing -= 1
                self.unreclaimed += 1
                self.recorded = False
                self.gate.free = True
                self.state = self.before
                if self.observer is not None:
                    self.observer(self, 6, state)
                return
        self._refuse(EntryEvent.capture_fail, {})

    def acquire(self, *, stream_capturing: bool) -> None:
        """The first lease. BOUND entries are never retiring or failed, so those marks need no guard here."""
        state = self.state
        if state is EntryState_BOUND:
            if self.manager.serving and self.component.resident and self.noted == self.component.epoch and not stream_capturing:
                self.leases += 1
                self.component.leased += 1
                self.state = EntryState_REPLAYING
                if self.observer is not None:
                    self.observer(self, 7, state)
                return
        elif state is EntryState_REPLAYING:
            if (
                self.manager.serving
                and self.component.resident
                and self.noted == self.component.epoch
                and not stream_capturing
                and not self.retiring
                and not self.failed
                and self.concurrent
            ):
                self.leases += 1
                if self.observer is not None:
                    self.observer(self, 8, state)
                return
        self._refuse(EntryEvent.acquire, {"stream_capturing": stream_capturing})

    def may_acquire(self, *, stream_capturing: bool) -> bool:
        """Whether `acquire` would be taken now; changes nothing."""
        state = self.state
        if state is EntryState_BOUND:
            return self.manager.serving and self.component.resident and self.noted == self.component.epoch and not stream_capturing
        if state is EntryState_REPLAYING:
            return (
                self.manager.serving
                and self.component.resident
                and self.noted == self.component.epoch
                and not stream_capturing
                and not self.retiring
                and not self.failed
                and self.concurrent
            )
        return False

    def release(self) -> None:
        """Others still read."""
        state = self.state
        if state is EntryState_REPLAYING:
            if self.leases > 1:
                self.leases -= 1
                if self.observer is not None:
                    self.observer(self, 9, state)
                return
            if self.leases == 1 and not self.retiring and not self.failed:
                self.leases = 0
                self.component.leased -= 1
                self.state = EntryState_BOUND
                if self.observer is not None:
                    self.observer(self, 10, state)
                return
            if self.leases == 1 and self.retiring and not self.failed:
                self.leases = 0
                self.component.leased -= 1
                self.component.bound -= 1
                self.unreclaimed += 1
                self.state = EntryState_EVICTED
                if self.observer is not None:
                    self.observer(self, 11, state)
                return
            if self.leases == 1 and self.failed:
                self.leases = 0
                self.component.leased -= 1
                self.component.bound -= 1
                self.unreclaimed += 1
                self.state = EntryState_FAILED
                if self.observer is not None:
                    self.observer(self, 12, state)
                return
        self._refuse(EntryEvent.release, {})

    def replay_fail(self) -> None:
        """The launch itself raised; this is the lease's release."""
        state = self.state
        if state is EntryState_REPLAYING:
            if self.leases > 1:
                self.leases -= 1
                self.failed = True
                if self.observer is not None:
                    self.observer(self, 13, state)
                return
            if self.leases == 1:
                self.leases = 0
                self.component.leased -= 1
                self.component.bound -= 1
                self.unreclaimed += 1
                self.failed = True
                self.state = EntryState_FAILED
                if self.observer is not None:
                    self.observer(self, 14, state)
                return
        self._refuse(EntryEvent.replay_fail, {})

    def evict(self) -> None:
        """Retiring makes nobody wait; the recording goes to the reclaimer."""
        state = self.state
        if state is EntryState_BOUND:
            if self.domain.capturing == 0:
                self.component.bound -= 1
                self.unreclaimed += 1
                self.state = EntryState_EVICTED
                if self.observer is not None:
                    self.observer(self, 15, state)
                return
        elif state is EntryState_REPLAYING:
            if self.domain.capturing == 0 and not self.retiring:
                self.retiring = True
                if self.observer is not None:
                    self.observer(self, 16, state)
                return
        self._refuse(EntryEvent.evict, {})

    def may_evict(self) -> bool:
        """Whether `evict` would be taken now; changes nothing."""
        state = self.state
        if state is EntryState_BOUND:
            return self.domain.capturing == 0
        if state is EntryState_REPLAYING:
            return self.domain.capturing == 0 and not self.retiring
        return False

    def reclaim(self, *, pool_leases: int, fence_passed: bool) -> None:
        """The reclaimer destroyed one retired recording (I2, I3). The entry itself may be in any state by then."""
        state = self.state
        if self.unreclaimed > 0 and self.gate.free and pool_leases == 0 and fence_passed:
            self.unreclaimed -= 1
            self.component.held -= 1
            if self.observer is not None:
                self.observer(self, 17, state)
            return
        self._refuse(EntryEvent.reclaim, {"pool_leases": pool_leases, "fence_passed": fence_passed})

    def forget(self) -> None:
        """Nothing is left of it but its name."""
        state = self.state
        if state in (EntryState_FAILED, EntryState_EVICTED):
            if self.unreclaimed == 0:
                self.retiring = False
                self.failed = False
                self.state = EntryState_EAGER
                if self.observer is not None:
                    self.observer(self, 18, state)
                return
        self._refuse(EntryEvent.forget, {})

    def _refuse(self, event: EntryEvent, parameters: dict[str, Value]) -> NoReturn:
        env = observe(ENTRY, self, event, parameters)
        raise refusal(ENTRY, env, event, self.name)


class ComponentSteps(Steps):
    """A named call site that runs eagerly or by one of its entries."""

    __slots__ = (
        "state",
        "bound",
        "leased",
        "pure_lazy",
        "before",
    )

    machine = COMPONENT
    state: EntryState
    bound: int
    """Entries that are bound or replaying."""
    leased: int
    """Entries that are replaying."""
    pure_lazy: bool
    """Bound without entries: all of them come lazily."""
    before: EntryState
    """The state that abort returns to."""

    def reset_variables(self) -> None:
        """Give the state and every own variable its first value."""
        self.observer = None
        self.state = EntryState.EAGER
        self.bound = 0
        self.leased = 0
        self.pure_lazy = False
        self.before = EntryState.EAGER

    def begin(self) -> None:
        """A transaction takes it in."""
        state = self.state
        if state in (EntryState_EAGER, EntryState_EVICTED, EntryState_FAILED):
            self.before = self.state
            self.state = EntryState_CAPTURING
            if self.observer is not None:
                self.observer(self, 0, state)
            return
        elif state in (EntryState_BOUND, EntryState_REPLAYING):
            if self.observer is not None:
                self.observer(self, 1, state)
            return
        self._refuse(ComponentEvent.begin, {})

    def commit(self) -> None:
        """Bound together with its siblings (I1)."""
        state = self.state
        if state is EntryState_CAPTURING:
            if self.bound > 0 or self.pure_lazy:
                self.state = EntryState_BOUND
                if self.observer is not None:
                    self.observer(self, 2, state)
                return
        elif state in (EntryState_BOUND, EntryState_REPLAYING):
            if self.observer is not None:
                self.observer(self, 3, state)
            return
        self._refuse(ComponentEvent.commit, {})

    def abort(self) -> None:
        """A sibling failed, or the transaction was given up."""
        state = self.state
        if state is EntryState_CAPTURING:
            self.state = self.before
            if self.observer is not None:
                self.observer(self, 4, state)
            return
        elif state in (EntryState_BOUND, EntryState_REPLAYING):
            if self.observer is not None:
                self.observer(self, 5, state)
            return
        self._refuse(ComponentEvent.abort, {})

    def fail(self) -> None:
        """One of its own entries failed."""
        state = self.state
        if state is EntryState_CAPTURING:
            self.state = EntryState_FAILED
            if self.observer is not None:
                self.observer(self, 6, state)
            return
        elif state in (EntryState_BOUND, EntryState_REPLAYING):
            if self.observer is not None:
                self.observer(self, 7, state)
            return
        self._refuse(ComponentEvent.fail, {})

    def first_lease(self) -> None:
        """In use."""
        state = self.state
        if state is EntryState_BOUND:
            if self.leased > 0:
                self.state = EntryState_REPLAYING
                if self.observer is not None:
                    self.observer(self, 8, state)
                return
        self._refuse(ComponentEvent.first_lease, {})

    def last_release(self) -> None:
        """Idle again."""
        state = self.state
        if state is EntryState_REPLAYING:
            if self.leased == 0 and (self.bound > 0 or self.pure_lazy):
                self.state = EntryState_BOUND
                if self.observer is not None:
                    self.observer(self, 9, state)
                return
            if self.leased == 0 and self.bound == 0 and not self.pure_lazy:
                self.state = EntryState_EVICTED
                if self.observer is not None:
                    self.observer(self, 10, state)
                return
        self._refuse(ComponentEvent.last_release, {})

    def last_retired(self) -> None:
        """Its last entry was retired."""
        state = self.state
        if state is EntryState_BOUND:
            if self.bound == 0 and not self.pure_lazy:
                self.state = EntryState_EVICTED
                if self.observer is not None:
                    self.observer(self, 11, state)
                return
        self._refuse(ComponentEvent.last_retired, {})

    def lazy_bind(self) -> None:
        """Back by a miss."""
        state = self.state
        if state is EntryState_EVICTED:
            if self.bound > 0:
                self.state = EntryState_BOUND
                if self.observer is not None:
                    self.observer(self, 12, state)
                return
        self._refuse(ComponentEvent.lazy_bind, {})

    def forget(self) -> None:
        """Released: as if never captured."""
        state = self.state
        if state in (EntryState_FAILED, EntryState_EVICTED):
            self.state = EntryState_EAGER
            if self.observer is not None:
                self.observer(self, 13, state)
            return
        elif state is EntryState_BOUND:
            if self.bound == 0 and self.pure_lazy:
                self.state = EntryState_EAGER
                if self.observer is not None:
                    self.observer(self, 14, state)
                return
        self._refuse(ComponentEvent.forget, {})

    def _refuse(self, event: ComponentEvent, parameters: dict[str, Value]) -> NoReturn:
        env = observe(COMPONENT, self, event, parameters)
        raise refusal(COMPONENT, env, event, self.name)


class PoolDomain(Protocol):
    """What the pool table reads and assigns of the domain."""

    @property
    def live(self) -> int:
        """Entries of the domain that are capturing, bound or replaying."""
        ...


class PoolSteps(Steps):
    """A private memory pool, anchored while a manager serves (P3); a retired id is never opened again (P1)."""

    __slots__ = (
        "state",
        "kind",
        "graphs",
        "before",
        "domain",
    )

    machine = POOL
    state: PoolState
    kind: PoolKind
    """Whose pool it is."""
    graphs: int
    """Recordings in it that are not destroyed yet."""
    before: PoolState
    """The state that a failed recording returns to."""
    domain: PoolDomain

    def reset_variables(self) -> None:
        """Give the state and every own variable its first value."""
        self.observer = None
        self.state = PoolState.MINTED
        self.kind = PoolKind.shared
        self.graphs = 0
        self.before = PoolState.MINTED

    def begin(self) -> None:
        """One recording at a time (F5)."""
        state = self.state
        if state in (PoolState_MINTED, PoolState_LIVE):
            self.before = self.state
            self.graphs += 1
            self.state = PoolState_RECORDING
            if self.observer is not None:
                self.observer(self, 0, state)
            return
        self._refuse(PoolEvent.begin, {})

    def end(self) -> None:
        """Recorded."""
        state = self.state
        if state is PoolState_RECORDING:
            self.state = PoolState_LIVE
            if self.observer is not None:
                self.observer(self, 1, state)
            return
        self._refuse(PoolEvent.end, {})

    def fail(self) -> None:
        """Undone; what it grew stays in a pool with others (S4)."""
        state = self.state
        if state is PoolState_RECORDING:
            self.graphs -= 1
            self.state = self.before
            if self.observer is not None:
                self.observer(self, 2, state)
            return
        self._refuse(PoolEvent.fail, {})

    def destroyed(self) -> None:
        """The reclaimer destroyed one recording; the anchor keeps the pool open (P3)."""
        state = self.state
        if state in (PoolState_LIVE, PoolState_RETIRED):
            if self.graphs > 0:
                self.graphs -= 1
                if self.observer is not None:
                    self.observer(self, 3, state)
                return
        self._refuse(PoolEvent.destroyed, {})

    def retire(self) -> None:
        """The last step of its domain's retirement, release or close (I6)."""
        state = self.state
        if state in (PoolState_MINTED, PoolState_LIVE):
            if self.kind is not PoolKind_foreign and self.domain.live == 0:
                self.state = PoolState_RETIRED
                if self.observer is not None:
                    self.observer(self, 4, state)
                return
        self._refuse(PoolEvent.retire, {})

    def reclaimed(self) -> None:
        """The anchor is dropped; the bytes return at the next flush."""
        state = self.state
        if state is PoolState_RETIRED:
            if self.graphs == 0:
                self.state = PoolState_GONE
                if self.observer is not None:
                    self.observer(self, 5, state)
                return
        self._refuse(PoolEvent.reclaimed, {})

    def _refuse(self, event: PoolEvent, parameters: dict[str, Value]) -> NoReturn:
        env = observe(POOL, self, event, parameters)
        raise refusal(POOL, env, event, self.name)


class ManagerSteps(Steps):
    """Owns components, entries and pools of one device. Lazy capture moves nothing here."""

    __slots__ = (
        "state",
        "serving",
        "before",
    )

    machine = MANAGER
    state: ManagerState
    serving: bool
    """Has committed and was not released, closed or poisoned since."""
    before: ManagerState
    """The state that a failed transaction returns to."""

    def reset_variables(self) -> None:
        """Give the state and every own variable its first value."""
        self.observer = None
        self.state = ManagerState.NEW
        self.serving = False
        self.before = ManagerState.PREPARED

    def prepare(self) -> None:
        """Components and configuration are accepted."""
        state = self.state
        if state is ManagerState_NEW:
            self.state = ManagerState_PREPARED
            if self.observer is not None:
                self.observer(self, 0, state)
            return
        self._refuse(ManagerEvent.prepare, {})

    def profile_begin(self) -> None:
        """Into a throwaway pool; nothing made here can be bound."""
        state = self.state
        if state is ManagerState_PREPARED:
            self.state = ManagerState_PROFILING
            if self.observer is not None:
                self.observer(self, 1, state)
            return
        self._refuse(ManagerEvent.profile_begin, {})

    def profile_end(self) -> None:
        """Everything made inside is gone (I4)."""
        state = self.state
        if state is ManagerState_PROFILING:
            self.state = ManagerState_PREPARED
            if self.observer is not None:
                self.observer(self, 2, state)
            return
        self._refuse(ManagerEvent.profile_end, {})

    def capture(self) -> None:
        """An explicit transaction. What is bound already goes on serving."""
        state = self.state
        if state in (ManagerState_PREPARED, ManagerState_SERVING):
            self.before = self.state
            self.state = ManagerState_CAPTURING
            if self.observer is not None:
                self.observer(self, 3, state)
            return
        self._refuse(ManagerEvent.capture, {})

    def commit(self) -> None:
        """All bound."""
        state = self.state
        if state is ManagerState_CAPTURING:
            self.serving = True
            self.state = ManagerState_SERVING
            if self.observer is not None:
                self.observer(self, 4, state)
            return
        self._refuse(ManagerEvent.commit, {})

    def fail(self) -> None:
        """All undone."""
        state = self.state
        if state is ManagerState_CAPTURING:
            self.state = self.before
            if self.observer is not None:
                self.observer(self, 5, state)
            return
        self._refuse(ManagerEvent.fail, {})

    def drain(self) -> None:
        """release() and close() begin by refusing new leases."""
        state = self.state
        if state is ManagerState_SERVING:
            if self.serving:
                self.serving = False
                if self.observer is not None:
                    self.observer(self, 6, state)
                return
        self._refuse(ManagerEvent.drain, {})

    def undrain(self) -> None:
        """Leases outlasted the wait: serving goes on as if nothing had been asked."""
        state = self.state
        if state is ManagerState_SERVING:
            if not self.serving:
                self.serving = True
                if self.observer is not None:
                    self.observer(self, 7, state)
                return
        self._refuse(ManagerEvent.undrain, {})

    def release(self, *, leases: int) -> None:
        """Everything retired; armed again."""
        state = self.state
        if state is ManagerState_SERVING:
            if leases == 0:
                self.serving = False
                self.state = ManagerState_PREPARED
                if self.observer is not None:
                    self.observer(self, 8, state)
                return
        self._refuse(ManagerEvent.release, {"leases": leases})

    def device_lost(self) -> None:
        """The context is lost for the process (F7); nothing is ever run on it again."""
        state = self.state
        if state in (
            ManagerState_NEW,
            ManagerState_PREPARED,
            ManagerState_PROFILING,
            ManagerState_CAPTURING,
            ManagerState_SERVING,
            ManagerState_POISONED,
        ):
            self.serving = False
            self.state = ManagerState_POISONED
            if self.observer is not None:
                self.observer(self, 9, state)
            return
        self._refuse(ManagerEvent.device_lost, {})

    def close(self, *, leases: int) -> None:
        """For good. An open transaction or profile ends first."""
        state = self.state
        if state in (ManagerState_NEW, ManagerState_PREPARED, ManagerState_SERVING, ManagerState_POISONED):
            if leases == 0:
                self.serving = False
                self.state = ManagerState_CLOSED
                if self.observer is not None:
                    self.observer(self, 10, state)
                return
        self._refuse(ManagerEvent.close, {"leases": leases})

    def _refuse(self, event: ManagerEvent, parameters: dict[str, Value]) -> NoReturn:
        env = observe(MANAGER, self, event, parameters)
        raise refusal(MANAGER, env, event, self.name)


def is_ready(entry: EntrySteps) -> bool:
    """Whether `acquire` would take an idle entry, on a stream that is not capturing."""
    return (
        entry.state is EntryState_BOUND
        and entry.manager.serving
        and entry.component.resident
        and entry.noted == entry.component.epoch
    )


def lend(entry: EntrySteps, component: ComponentSteps) -> bool:
    """`acquire` on an idle entry and `first_lease` on its component, in one; tells no observer.

    False, with nothing changed, where that is not the row to take.
    """
    if (
        entry.state is EntryState_BOUND
        and entry.manager.serving
        and entry.component.resident
        and entry.noted == entry.component.epoch
    ):
        entry.leases += 1
        entry.component.leased += 1
        entry.state = EntryState_REPLAYING
        if component.state is EntryState_BOUND and component.leased > 0:
            component.state = EntryState_REPLAYING
        return True
    return False


def take_back(entry: EntrySteps, component: ComponentSteps) -> bool:
    """`release` to idle and `last_release` to bound, in one; tells no observer.

    False, with nothing changed, where that is not the row to take.
    """
    if entry.state is EntryState_REPLAYING and entry.leases == 1 and not entry.retiring and not entry.failed:
        entry.leases = 0
        entry.component.leased -= 1
        entry.state = EntryState_BOUND
        if component.state is EntryState_REPLAYING and component.leased == 0 and (component.bound > 0 or component.pure_lazy):
            component.state = EntryState_BOUND
        return True
    return False
