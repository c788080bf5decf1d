"""The manager's books: what entries, components and pools point to. They outlive the `GraphManager` that users hold.

`GraphManager` is the only strong owner of a serving set; when it is dropped, its finalizer abandons the books, and what they still
hold goes to the capture gate, whence the next reclaimer on the device takes it (I3: a finalizer destroys nothing).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cgstate.backends.base import Backend, CaptureErrorMode, MemoryPool, Stream
from cgstate.errors import (
    BudgetExceeded,
    CaptureActive,
    IllegalTransition,
    InvariantViolation,
    LeaseOutstanding,
    LiveAcrossBreak,
    ManagerClosed,
    ManagerPoisoned,
    WrongThread,
    describe,
)
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import EntryState, FailureKind, ManagerState, PoolKind, PoolState
from cgstate.lifecycle.steps import ManagerSteps, Observer, Steps
from cgstate.runtime.budget import Budget
from cgstate.runtime.dependency import DependencyRecord
from cgstate.runtime.domain import Domain, Home, Isolation
from cgstate.runtime.failure import Failure, NegativeCache, clear_frames
from cgstate.runtime.foreign import ForeignPool
from cgstate.runtime.gate import CaptureGate, Spare
from cgstate.runtime.mending import mend
from cgstate.runtime.pool import Pool
from cgstate.runtime.reclaimer import Reclaimer
from cgstate.runtime.stats import Eviction
from cgstate.runtime.sync import Sync
from cgstate.runtime.vote import RankVote
from cgstate.runtime.witness import LeaseWitness, Notice, Witness

if TYPE_CHECKING:
    from cgstate.runtime.check import Checker
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.lease import Lease
    from cgstate.runtime.memory import Profile
    from cgstate.runtime.record import ComponentRecord

log = logging.getLogger("cgstate")


class Books(ManagerSteps):
    """State and belongings of one manager. Fields are guarded by the device's lock (``gate.lock``).

    Attributes:
        busy: Thread that has the manager for an operation that must not overlap another (`exclusive`); 0 when nobody.
        draining: Whether `busy` waits for leases to end.
        given_back: Whether closing has given everything back.
        lost: Whether the device's context is lost; stays so when the manager is closed.
        unsettled: Whether `settle` would find something to do; a hint that is read without the lock.
        fast: Whether replays may take the short way: nobody observes, checks, schedules, or owns a thread.
        clock: Counts uses of entries of components with lazy captures, to say which one was used how recently.
        driver_bytes: The most that profiles saw the driver take for a graph.
        compact: Whether fresh pools get a first block.
        foreign: The host engine's pool, if one was given.
        observer: Told of every transition of every machine.
        witness: Told of what is no transition as well; None if the observer is a plain function.
        told: The witness, where it takes ordinary leases in one word, and nobody is to be kept out of them.
        audit: Looks at every turn and destruction, and at everything after each operation: ``check=True``; None otherwise.
        profile: The open profile; captures of its thread go to it.
        wanted: The entry that a lazy capture is about: not to be forgotten, though nothing be left of its last recording.
        idle_streams: Exclusive capture streams whose workspaces were cleared, to be used again.
        spent_streams: Exclusive capture streams that may still own a workspace (facts W3, W5).
    """

    __slots__ = (
        "__weakref__",
        "_name",
        "audit",
        "backend",
        "budget",
        "busy",
        "capture_error_mode",
        "clock",
        "compact",
        "components",
        "dependencies",
        "domains",
        "draining",
        "driver_bytes",
        "fast",
        "foreign",
        "gate",
        "given_back",
        "held_leases",
        "idle_streams",
        "isolation",
        "lost",
        "negative",
        "owner_thread",
        "pools",
        "profile",
        "reclaimer",
        "spent_streams",
        "stats_detail",
        "summary_every",
        "sync",
        "thread_id",
        "told",
        "unsettled",
        "vote",
        "wanted",
        "warmup_rounds",
        "witness",
    )

    def __init__(
        self,
        name: str,
        backend: Backend,
        gate: CaptureGate,
        sync: Sync,
        *,
        isolation: Isolation,
        foreign: MemoryPool | None,
        vote: RankVote,
        capture_error_mode: CaptureErrorMode,
        warmup_rounds: int,
        compact: bool,
        negative_cache: int,
        stats_detail: int,
        summary_every: int,
        budget_bytes: int | None,
        owner_thread: bool,
        observer: Observer | None,
        witness: Witness | None,
    ) -> None:
        self.reset_variables()
        self._name = name
        self.backend = backend
        self.gate = gate
        self.sync = sync
        self.thread_id: Callable[[], int] = sync.thread_id
        self.isolation = isolation
        self.foreign = foreign
        self.vote = vote
        self.capture_error_mode = capture_error_mode
        self.warmup_rounds = warmup_rounds
        self.compact = compact
        self.stats_detail = stats_detail
        self.summary_every = summary_every
        self.owner_thread = self.thread_id() if owner_thread else 0
        self.observer = observer
        self.keep = gate.keep
        self.witness = witness
        self.told = witness if isinstance(witness, LeaseWitness) and not owner_thread else None
        self.audit: Checker | None = None
        self.unsettled = False
        self.fast = observer is None and not owner_thread and sync.point is None
        self.busy = 0
        self.clock = 0
        self.lost = False
        self.draining = False
        self.driver_bytes = 0
        self.given_back = False
        self.components: dict[str, ComponentRecord] = {}
        self.dependencies: dict[str, DependencyRecord] = {}
        self.domains: dict[Hashable, Domain] = {}
        self.pools: list[Pool] = []
        self.profile: Profile | None = None
        self.wanted: Entry | None = None
        self.idle_streams: list[Stream] = []
        self.spent_streams: list[Stream] = []
        self.held_leases: set[Lease] = set()
        self.negative = NegativeCache(negative_cache)
        self.budget = Budget(self, budget_bytes, negative_cache)
        self.reclaimer = Reclaimer(self)
        with gate.lock:
            gate.managers.add(self)

    @property
    def name(self) -> str:
        """What refusals call the manager."""
        return self._name

    def unseal(self) -> None:
        """A step of the manager begins or ends serving."""
        self.gate.unseal()

    def closed(self) -> bool:
        """Whether the manager was closed."""
        return self.state is ManagerState.CLOSED

    def ended(self) -> bool:
        """Whether the manager was closed and has given everything back."""
        return self.given_back

    # -- who may do what now ------------------------------------------------------------------------------------------

    def check_thread(self, thread: int) -> None:
        """Refuse a foreign thread.

        Raises:
            WrongThread: the manager belongs to one thread, and this is another.
        """
        if self.owner_thread and thread != self.owner_thread:
            raise WrongThread(f"{self.name} belongs to thread {self.owner_thread}; thread {thread} called it")

    def check_caller(self) -> None:
        """Refuse who must not call now.

        Raises:
            WrongThread: as `check_thread`.
            Reentered: a signal handler or a finalizer has broken in on cgstate in this thread.
        """
        self.check_thread(self.thread_id())
        self.gate.refuse_reentry()

    def check_open(self, event: str) -> None:
        """Refuse what a closed or poisoned manager cannot do.

        Raises:
            ManagerClosed: it was closed.
            ManagerPoisoned: its device is lost.
        """
        if self.state is ManagerState.CLOSED:
            raise ManagerClosed("manager", self.name, self.state, event, "the manager is not closed")
        if self.state is ManagerState.POISONED:
            raise ManagerPoisoned("manager", self.name, self.state, event, "the device is not lost")

    @contextmanager
    def exclusive(self, event: str) -> Iterator[int]:
        """Have the manager alone for one operation, and notice if the device is lost in it; yields the thread.

        Raises:
            CaptureActive: this thread has it already, or is inside a component call: waiting would never end.
            WrongThread: see `check_thread`.
            Reentered: it is called from inside of another operation of this thread.
        """
        self.check_caller()
        with self.heard(), self._alone(event) as thread:
            self.hear()
            yield thread

    @contextmanager
    def _alone(self, event: str) -> Iterator[int]:
        """`exclusive`, but for what observers raise."""
        thread = self.thread_id()
        gate = self.gate
        mine = False
        try:
            with gate.lock:
                gate.end_dropped()
                self.end_forgotten()
                self._refuse_nested(event, thread)
                while self.busy:
                    self._refuse_endless(event, thread)
                    gate.wait()
                self.busy = thread
                mine = True
            yield thread
        except Exception as error:
            self.notice(error)
            raise
        finally:
            if mine:
                self.busy = 0  # before anything is called
                self.left()

    def left(self) -> None:
        """The manager was left by who had it alone: tell who waits for it, and reclaim. The lock is not held."""
        try:
            self.gate.tell()
        except BaseException:  # an interrupt; whoever sleeps must not go on sleeping
            self.gate.tell()
            raise
        self._settle()

    def _refuse_nested(self, event: str, thread: int) -> None:
        if self.busy == thread:
            guard = "no other operation of this thread is open on the manager"
        elif not self.gate.free and self.gate.holder == thread:
            guard = "no capture of this thread is open on the device"
        else:
            return
        raise CaptureActive("manager", self.name, self.state, event, guard)

    def profile_of_another(self, thread: int) -> Profile | None:
        """The profile that another manager of the device has open in ``thread``; the lock is held.

        What that thread captured there for this manager would be real, and missing in the estimate.
        """
        others = (books.profile for books in self.gate.managers if books is not self)
        return next((profile for profile in others if profile is not None and profile.thread == thread), None)

    def refuse_in_profile(self, thread: int) -> None:
        """Refuse a capture of ``thread`` that is to be bound, inside the profile of another manager; the lock is held.

        Raises:
            CaptureActive: it has such a profile open.
        """
        profile = self.profile_of_another(thread)
        if profile is not None:
            guard = f"the profile of {profile.books.name} to have ended, which is open in this thread"
            raise self.refuse("capture", guard, CaptureActive)

    def refuse_in_capture(self, event: str) -> None:
        """Refuse what waits for the capture gate, from inside a capture of this thread.

        Raises:
            CaptureActive: it has the gate itself.
        """
        with self.gate.lock:
            if not self.gate.free and self.gate.holder == self.thread_id():
                raise self.refuse(event, "no capture of this thread is open on the device", CaptureActive)

    def _refuse_endless(self, event: str, thread: int) -> None:
        """Whoever has the manager may wait for this thread: then this thread must not wait for them."""
        if self.inside_call(thread):
            raise self.refuse(event, "this thread is not inside a component call", CaptureActive)
        if self.draining and self.holds_lease(thread):
            raise self.refuse(event, "this thread holds no lease", LeaseOutstanding)

    def inside_call(self, thread: int) -> bool:
        """Whether a component call of ``thread`` is in progress; the lock is held."""
        return self.gate.in_call(thread)

    def holds_lease(self, thread: int) -> bool:
        """Whether ``thread`` itself keeps leases from ending; the lock is held."""
        return self.inside_call(thread) or any(lease.thread == thread for lease in self.held_leases)

    def end_forgotten(self) -> None:
        """End the leases that nobody but these books knows of: an interrupt came just before they would have ended.

        The lock is held.
        """
        leases = list(self.held_leases)
        for lease, references in zip(leases, _references(leases), strict=True):
            if references == ALONE:
                lease.end()

    def try_exclusive(self, thread: int) -> bool:
        """Have the manager alone without waiting; the lock is held."""
        if self.busy:
            return False
        self.busy = thread
        return True

    # -- belongings ---------------------------------------------------------------------------------------------------

    @property
    def leases(self) -> int:
        """Leases held on any entry."""
        return sum(entry.leases for entry in self.entries())

    def entries(self) -> Iterator[Entry]:
        """Every entry of every component."""
        for record in self.components.values():
            yield from record.entries.values()

    def routine_records(self) -> list[ComponentRecord]:
        """Components that capture by their routine."""
        return [record for record in self.components.values() if record.routine is not None]

    def domain_for(self, record: ComponentRecord, descriptor: Hashable) -> Domain:
        """The domain that an entry belongs to for its whole life; the lock is held."""
        key, name, kind = self._place(record.outermost, descriptor)
        return self.domains.get(key) or self.new_domain(key, name, kind)

    def known_domain(self, record: ComponentRecord, descriptor: Hashable) -> Domain | None:
        """`domain_for`, if there is one; the lock is held."""
        return self.domains.get(self._place(record.outermost, descriptor)[0])

    @staticmethod
    def _place(record: ComponentRecord, descriptor: Hashable) -> tuple[Hashable, str, PoolKind]:
        """Key, name and kind of a domain."""
        match record.config.isolation:
            case Isolation.shared:
                return (), "shared", PoolKind.shared
            case Isolation.per_component:
                return (record.component_id,), record.component_id, PoolKind.per_component
            case Isolation.per_entry:
                return (record.component_id, descriptor), f"{record.component_id}[{descriptor!r}]", PoolKind.per_entry
            case Isolation.foreign:
                return "foreign", "foreign", PoolKind.foreign

    def new_domain(self, key: Hashable, name: str, kind: PoolKind) -> Domain:
        """A domain under ``key``. Components and descriptors choose names freely, so its own is made unique; the lock is held."""
        taken = {domain.name for domain in self.domains.values()} | {pool.domain.name for pool in self.pools}
        while name in taken:
            name += "'"
        domain = self.domains[key] = Domain(key, name, kind)
        return domain

    def homes(self) -> Iterator[Home]:
        """Where workspaces are that could not be cleared with their pools; the lock is held."""
        for pool in self.pools:
            if isinstance(pool.domain, Home) and pool.domain.kept:
                yield pool.domain

    def leave_homes(self) -> list[Pool]:
        """Give up those that nobody uses, and say which pools have retired so; the lock is held."""
        mine = [pool for pool in self.pools if isinstance(pool.domain, Home) and pool.domain.guest is None]
        for pool in mine:
            if isinstance(pool.domain, Home):
                pool.domain.kept = False
            self.retire_pool(pool)
        return mine

    def hand_on(self, pools: Sequence[Pool]) -> None:
        """Leave homes that cannot be given back to the device's next manager; the lock is held."""
        spares = [*self.gate.spares, *(Spare(pool.handle, pool.domain.stream) for pool in pools if pool.domain.stream is not None)]
        rest = [pool for pool in self.pools if pool not in pools]
        self.gate.hand_on(spares)
        self.pools = rest  # nothing is called in between: an interrupt finds them in one place
        for pool in pools:
            pool.reclaimed()

    def drop_domain(self, domain: Domain) -> None:
        """Forget a domain without entries, or whose profile has ended, unless something is left of it; the lock is held."""
        if domain.ended:
            domain.entries = {entry for entry in domain.entries if entry.unreclaimed}
        if not domain.entries and domain.pool is None:
            self.domains.pop(domain.key, None)
            domain.leave_stream(self)

    # -- retirement ---------------------------------------------------------------------------------------------------

    def retire_recording(self, entry: Entry) -> None:
        """An entry has become EVICTED or FAILED: hand its recording over and follow up; the lock is held.

        Goes on where an interrupt has broken it off.
        """
        pool, record = entry.pool, entry.component
        record.counters.retired_hits += entry.hits
        entry.hits = 0
        if entry.graph is not None:
            self.reclaimer.retire(entry, pool, entry.graph, (entry.buffers, entry.output, entry.baked))
        entry.unload()
        record.refresh()
        if record.state is EntryState.BOUND and not record.bound and not record.pure_lazy:
            record.last_retired()
        self.retire_pool(pool)

    def retire_attempt(self, entry: Entry, keep: object) -> None:
        """A capture was undone or given up: what is left of it goes to the reclaimer; the lock is held."""
        self.reclaimer.retire(entry, entry.pool, entry.graph, keep)
        entry.unload()

    def retire_pool(self, pool: Pool) -> None:
        """Retire a pool of ours whose domain has nothing live in it any more; the lock is held."""
        if pool.kind is PoolKind.foreign or pool.state not in (PoolState.MINTED, PoolState.LIVE) or pool.domain.live:
            return
        pool.retire()

    def evict_domain(self, domain: Domain, *, counted: bool = True, cause: Eviction = Eviction.asked) -> int:
        """Retire every bound entry of a domain in one step; the lock is held, no entry is CAPTURING. Returns how many."""
        retired = 0
        try:
            for entry in list(domain.entries):
                if not entry.may_evict():
                    continue
                entry.evict()
                retired += 1
                if counted:
                    entry.component.counters.evicted[cause] += 1
                if entry.state is EntryState.EVICTED:
                    self.retire_recording(entry)
                else:
                    entry.component.refresh()  # leased, and gives no further lease
        except Exception:
            raise
        except BaseException:  # an interrupt: the domain goes as a whole
            for entry in domain.entries:
                if entry.may_evict():
                    entry.evict()
            mend(self)
            raise
        return retired

    def workspaces_cleared(self) -> None:
        """Every library workspace is gone, so that spent streams are clean again; the lock is held."""
        self.idle_streams.extend(self.spent_streams)
        self.spent_streams.clear()
        if self.state is ManagerState.CLOSED:
            self.close_streams()

    def part(self) -> None:
        """The end: tell the gate in which dropped pools something is left, and give idle streams back; the lock is held."""
        self.gate.leftovers.update({pool.id: pool.handle for pool in self.pools if pool.state is PoolState.GONE})
        self.close_streams()

    def close_streams(self) -> None:
        """After the end: give idle capture streams back; the lock is held.

        One that may still own a workspace is never given to others (W5). What is left in the host engine's pool is the engine's.
        """
        for pool in self.pools:
            if isinstance(pool, ForeignPool):
                pool.hand_over()
                pool.domain.leave_stream(self)
        while self.idle_streams:
            self.idle_streams.pop().close()

    # -- failures -----------------------------------------------------------------------------------------------------

    def note_failure(self, entry: Entry, kind: FailureKind, error: BaseException) -> None:
        """Remember a failure of an entry; the lock is held."""
        record = entry.component
        record.counters.failures[kind] += 1
        text = describe(error)
        if not isinstance(error, BudgetExceeded):  # the budget itself remembers what the graph took
            self.negative.remember(record.component_id, entry.descriptor, Failure(kind, text, self.reclaimer.reclaims))
        log.warning("%s: %s failed (%s): %s", self.name, entry.name, kind, text)

    def blocked(self, record: ComponentRecord, descriptor: Hashable, *, explicit: bool) -> bool:
        """Whether a remembered failure forbids an attempt now; the lock is held."""
        failure = self.negative.get(record.component_id, descriptor)
        return failure is not None and failure.blocks(reclaimed=self.reclaimer.reclaims, explicit=explicit)

    def notice(self, error: BaseException) -> None:
        """An error came from outside a capture: if it says that the device is lost, it is. The lock is not held."""
        with self.gate.lock:
            self.judge(error)

    def judge(self, error: BaseException) -> None:
        """`notice`, with the lock held."""
        if isinstance(error, Exception) and self.backend.failure_kind(error) is FailureKind.DEVICE:
            self.lose_device()

    def kind_of(self, error: BaseException) -> FailureKind:
        """What an error raised while capturing means."""
        if isinstance(error, BudgetExceeded):
            return FailureKind.BUDGET
        if isinstance(error, LiveAcrossBreak):
            return FailureKind.REJECTED
        return self.backend.failure_kind(error) or FailureKind.USER

    def lose_device(self) -> None:
        """The context is lost: nothing is ever run on it again; the lock is held."""
        self.lost = True
        if self.state not in (ManagerState.CLOSED, ManagerState.POISONED):
            self.device_lost()
            log.error("%s: the device context is lost; the manager is POISONED", self.name)

    # -- who is told --------------------------------------------------------------------------------------------------

    def watch(self, entity: Steps) -> None:
        """Let the observer be told of an entity's steps."""
        entity.keep = self.gate.keep
        entity.observer = self.observer

    def tell(self, entity: Steps, what: Notice, value: Value) -> None:
        """Tell the witness, if there is one, of what is no transition; the lock is held."""
        if self.witness is not None:
            try:
                self.witness.notice(entity, what, value)
            except BaseException as error:
                self.gate.keep(error)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Behind the block, which leaves everything whole, raise what an observer has raised in it."""
        try:
            yield
        except BaseException as error:
            self.hear(error)
            raise
        self.hear()

    def hear(self, error: BaseException | None = None) -> None:
        """Raise what an observer has raised in the midst of this thread's steps, now that they are whole. The lock is not held.

        Not inside of a capture of this thread, which would have to fail for it: that is heard when it has ended.

        Args:
            error: What the operation itself has raised, and the caller goes on with. Only an interrupt is raised instead.
        """
        gate = self.gate
        if gate.kept and not gate.held():  # else a signal handler has broken in
            with gate.lock:
                self.overhear(error)

    def overhear(self, error: BaseException | None = None) -> None:
        """`hear`, with the lock held."""
        gate, thread = self.gate, self.thread_id()
        kept = gate.kept.get(thread)
        if kept is None or (not gate.free and gate.holder == thread):
            return
        try:
            self.judge(kept)
            del gate.kept[thread]  # behind what may raise, and be observed itself
            clear_frames(kept)  # of what was going on in the step's callers, it must keep nothing alive
            if error is None or (not isinstance(kept, Exception) and _gives_way(error)):
                raise kept
            error.add_note(f"meanwhile an observer raised {describe(kept)}")
        finally:
            kept = error = None  # this frame is part of the traceback: keep nothing alive, make no cycle

    # -- after every operation ----------------------------------------------------------------------------------------

    def settle(self, error: BaseException | None = None) -> None:
        """Reclaim what can be reclaimed now, check if asked to, and `hear`. Called without the lock."""
        with self.heard():
            self._settle()
            self.hear(error)

    def _settle(self) -> None:
        """`settle`, but for what observers raise."""
        self.unsettled = self.audit is not None
        if self.gate.kept:  # looked at behind the above: see `CaptureGate.keep`
            self.unsettled = True
        if self.gate.dropped:
            with self.gate.lock:
                self.gate.end_dropped()
        if self.state is not ManagerState.POISONED:
            self.reclaimer.settle()
        if self.given_back and self.pools and not self.lost:
            self.reclaimer.flush_rest()
        if self.audit is not None:
            self.audit.look()

    def point(self, name: str) -> None:
        """Tell a scheduler, if there is one, that a linearization point is next; the lock is not held."""
        if self.sync.point is not None:
            self.sync.point(name)

    def refuse(self, event: str, guard: str, kind: type[IllegalTransition] = IllegalTransition) -> IllegalTransition:
        """A refusal of the manager, to be raised."""
        return kind("manager", self.name, self.state, event, guard)


def _gives_way(error: BaseException) -> bool:
    """Whether an interrupt goes before an error that is raised already."""
    return isinstance(error, Exception | GeneratorExit) and not isinstance(error, InvariantViolation)


def _references(objects: Sequence[object]) -> list[int]:
    return [sys.getrefcount(each) for each in objects]


_only = {object()}
ALONE = _references(list(_only))[0]
"""References, by our way of counting, to an object that only one set has."""
