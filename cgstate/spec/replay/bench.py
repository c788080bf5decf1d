"""One runtime on one simulated device, driven action by action, and read back cell by cell.

Doors. `prepare`, the transactions, profiles, evictions, invalidations, suspending, release and close go through `GraphManager`;
leases and launches through `Lease`; captures of others through a second manager on the device; what the device does is its clock,
and what fails is injected. A lazy transaction is opened as `cgstate.runtime.lazy` opens it, without the question whether there is
room. Besides, three things are told step by step that the runtime does on its own: reclaiming (`held`), and to forget an entry.
That the device is lost is said to the manager alone, so that operations in progress can still be brought to either end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import cgstate
from cgstate.backends.sim import SimBackend, SimDevice, SimTensor, kernels
from cgstate.backends.sim.errors import DEVICE_ASSERT, SimAcceleratorError
from cgstate.backends.sim.streams import SimEvent, StreamQueue
from cgstate.backends.sim.work import Launch, Mark
from cgstate.errors import CGStateError
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import ManagerState, PoolState
from cgstate.runtime.books import Books
from cgstate.runtime.entry import Entry
from cgstate.runtime.lease import Lease
from cgstate.runtime.memory import Profile
from cgstate.runtime.routines import capture_by_routine
from cgstate.runtime.transaction import Transaction, TransactionKind
from cgstate.spec.cells import LIVE, NOBODY, Kind
from cgstate.spec.compiled import Instance, State, System
from cgstate.spec.replay.actors import Actor, PausingSync
from cgstate.spec.replay.held import HeldReclaimer

if TYPE_CHECKING:
    from cgstate.runtime.pool import Pool
    from cgstate.runtime.reclaimer import Retired

WIDTH, SIZE = 2, 2
MEMORY = "memory"
"""The dependency of every component."""


class GivenUp(Exception):
    """What a driven operation is ended with, where it is not to succeed."""


class Refused(CGStateError):
    """The runtime did not do what the model does."""


class _Late:
    """A device schedule that runs launches of graphs last."""

    def choose(self, ready: Sequence[StreamQueue]) -> int:
        """As `Schedule.choose`."""
        return next((at for at, queue in enumerate(ready) if not isinstance(queue.work[0], Launch)), 0)

    def ahead(self) -> int:
        """As `Schedule.ahead`."""
        return 0


class Bench:
    """A runtime in its first state.

    Args:
        system: The model; its shape has one component with one entry, and a profile.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.device = SimDevice(schedule=_Late())
        self.backend = SimBackend(self.device)
        self.sync = PausingSync()
        self.weight = self.device.rand(WIDTH, WIDTH)
        self.input = self.device.zeros(SIZE, WIDTH)
        self.launches = self.device.new_stream(exclusive=True)
        self.manager, self.books, self.reclaimer = self._manager()
        self.others, _, _ = self._manager()
        routine = cgstate.BucketedRoutine(self._body, lambda size: (self.device.zeros(size, WIDTH),))
        self.component = cgstate.Component(
            "component", routine, [SIZE], capture_mode=cgstate.CaptureMode.PRECAPTURE, overlaps_capture=True, dependencies=[MEMORY]
        )
        self.routine = routine
        self.kind = Kind.NONE
        self.transaction: Transaction | None = None
        self.profile: Profile | None = None
        self.profiled: Entry | None = None
        self.runner: Actor | None = None  # the transaction
        self.waiter: Actor | None = None  # release, close, suspend
        self.launching: Actor | None = None
        self.foreign: Actor | None = None
        self.foreign_number = 0
        self.old: Pool | None = None
        self.leases: list[Lease] = []
        self.launched_lease: Lease | None = None
        self.order: Entry | None = None  # what the transaction shall capture next
        self.paused_body = False
        self.device.synchronize()

    def _manager(self) -> tuple[cgstate.GraphManager, Books, HeldReclaimer]:
        manager = cgstate.GraphManager(
            self.backend, sync=self.sync, dependencies=[MEMORY], warmup_rounds=1, capture_error_mode="relaxed"
        )
        books = manager._books
        reclaimer = books.reclaimer = HeldReclaimer(books, self._finishing)
        return manager, books, reclaimer

    # -- inside operations ----------------------------------------------------------------------------------------------

    def _body(self, x: SimTensor) -> SimTensor:
        actor = Actor.current()
        if actor is not None and not self.paused_body:
            self.paused_body = True
            actor.pause("capturing")
        return kernels.matmul(x, self.weight)

    def _finishing(self) -> None:
        """The runtime waits for the reclaimer: at the end of a profile the model does so step by step."""
        actor = Actor.current()
        if actor is not None and actor is self.runner and self.kind is Kind.CLEARING:
            actor.pause("clearing")

    # -- taking a step --------------------------------------------------------------------------------------------------

    def take(self, instance: Instance, ahead: Sequence[str] = ()) -> None:
        """Do what an action of the model says.

        Args:
            instance: The action.
            ahead: Names of the actions that follow, where it matters: a manager that drains does so for one of two ends.

        Raises:
            Refused: the runtime did something else.
        """
        name = instance.action.name
        if name == "drain":
            self.do_drain(next((each for each in ahead if each in ("close", "release_all", "undrain")), "release_all"))
        else:
            numbers = [instance.at[parameter] for parameter, objects in instance.action.parameters if objects.of is None]
            act: Callable[..., None] = getattr(self, f"do_{name}")
            act(*numbers)
        self._run_what_is_not_held()

    def _run_what_is_not_held(self) -> None:
        """Let the device run everything but launches of graphs, and what comes after them on their stream."""
        device, held = self.device, list(self.launches.queue.work)
        if not any(isinstance(work, Launch) for work in held):
            while device.step():
                pass
            return
        behind = {id(work.milestone) for work in held if isinstance(work, Mark)}
        for event in self._marks():
            if not event.passed and id(event) not in behind:
                device.run_until(event)

    def _marks(self) -> list[SimEvent]:
        marks = [event for retired in self.reclaimer.queue for event in retired.fence or ()]
        marks += [event for pool in self.books.pools for _, event in pool.turn.waits]
        return [event for event in marks if isinstance(event, SimEvent)]

    # -- transactions

    def do_prepare(self) -> None:
        """See the action."""
        self.manager.prepare([self.component])

    def _open(self, kind: Kind, work: Callable[[Actor], None]) -> None:
        self.kind = kind
        self.runner = Actor(work)
        self.runner.start()
        self._expect(self.runner, "ready")

    def do_begin(self) -> None:
        """See the action."""

        def work(actor: Actor) -> None:
            with self.manager.transaction() as transaction:
                self._obey(actor, transaction)

        self._open(Kind.EXPLICIT, work)

    def do_begin_lazy(self) -> None:
        """See the action."""
        books = self.books

        def work(actor: Actor) -> None:
            with books.gate.lock:
                if not books.try_exclusive(books.thread_id()):
                    raise Refused("the manager is busy")
            transaction = Transaction(books, TransactionKind.lazy)
            try:
                self._obey(actor, transaction)
                transaction.commit()
            finally:
                transaction.abort()
                with books.gate.lock:
                    books.busy = 0
                    books.gate.notify()
                books.settle()

        self._open(Kind.LAZY, work)

    def do_begin_profile(self) -> None:
        """See the action."""

        def work(actor: Actor) -> None:
            with self.manager.profile() as self.profile:
                with self.profile.transaction() as transaction:
                    self._obey(actor, transaction)

        self._open(Kind.PROFILE, work)

    def _obey(self, actor: Actor, transaction: Transaction) -> None:
        """Capture each time one is told to; end when told to."""
        self.transaction = transaction
        while True:
            actor.pause("ready")
            if self.order is None:
                return
            entry, self.order = self.order, None
            with suppress(cgstate.CaptureFailed, KeyboardInterrupt):
                capture_by_routine(transaction, entry, self.routine)

    def do_capture(self, e: int) -> None:
        """See the action."""
        runner = self._running(self.runner)
        with self.books.gate.lock:
            entry = self.books.components["component"].entry(SIZE)
        if self.profile is not None and self.system.shape.profiled(e):
            self.profiled = entry = self.profile.stand_in(entry)
        self.order, self.paused_body = entry, False
        runner.resume()
        self._expect(runner, "capturing")

    def do_capture_anew(self, e: int) -> None:
        """See the action."""
        before = self._pools()[0] if not self.system.shape.profiled(e) else None
        self.do_capture(e)
        if before is not None and before.state is PoolState.RETIRED:
            self.old = before

    def do_end_capture(self, e: int) -> None:
        """See the action."""
        runner = self._running(self.runner)
        runner.resume()
        self._expect(runner, "ready")

    def do_fail_capture(self, e: int) -> None:
        """See the action."""
        self._break(GivenUp("the routine raised"))

    def do_interrupt_capture(self, e: int) -> None:
        """See the action."""
        self._break(KeyboardInterrupt())

    def _break(self, error: BaseException) -> None:
        runner = self._running(self.runner)
        runner.resume(error)
        self._expect(runner, "ready")
        self.books.negative.forget()  # a remembered failure forbids attempts; in the model it does not

    def do_commit(self) -> None:
        """See the action."""
        runner = self._running(self.runner)
        runner.resume()
        self._over(runner)
        if runner.error is not None:
            raise Refused(f"commit raised {runner.error!r}") from runner.error
        self.runner, self.kind, self.transaction = None, Kind.NONE, None

    def do_abort(self) -> None:
        """See the action."""
        runner = self._running(self.runner)
        if self.kind is Kind.PROFILE:
            self.kind = Kind.CLEARING
            runner.resume(None)
            self._expect(runner, "clearing")
            self.transaction = None
            return
        runner.resume(GivenUp("no commit"))
        self._over(runner)
        if not isinstance(runner.error, GivenUp):
            raise Refused(f"abort ended with {runner.error!r}")
        self.runner, self.kind, self.transaction = None, Kind.NONE, None

    def do_end_profile(self) -> None:
        """See the action."""
        runner = self._running(self.runner)
        self.kind = Kind.NONE
        runner.resume()
        self._over(runner)
        if runner.error is not None:
            raise Refused(f"the profile ended with {runner.error!r}") from runner.error
        self.runner = self.profile = self.profiled = None

    # -- leases

    def _entry(self) -> Entry:
        return self.books.components["component"].entries[SIZE]

    def do_acquire(self, e: int) -> None:
        """See the action."""
        lease = self._entry().lease()
        lease.__enter__()
        self.leases.append(lease)

    def do_launch(self, e: int) -> None:
        """See the action."""
        lease = self.launched_lease = self.leases[-1]

        def work(actor: Actor) -> None:
            with self.device.on_stream(self.launches):
                lease.replay()

        self.launching = Actor(work)
        self.launching.start()
        self._expect(self.launching, "launch")

    def do_launched(self, e: int) -> None:
        """See the action."""
        launching = self._running(self.launching)
        launching.resume()
        self._over(launching)
        if launching.error is not None:
            raise Refused(f"the launch raised {launching.error!r}") from launching.error
        self.launching = self.launched_lease = None

    def do_fail_launch(self, e: int) -> None:
        """See the action."""
        launching = self._running(self.launching)
        self.device.faults.inject("graph_replay", error=GivenUp("the launch"))
        launching.resume()
        self._over(launching)
        if not isinstance(launching.error, GivenUp):
            raise Refused(f"the launch ended with {launching.error!r}")
        assert self.launched_lease is not None
        self.leases.remove(self.launched_lease)
        self.launching = self.launched_lease = None
        self.books.negative.forget()

    def do_release(self, e: int) -> None:
        """See the action."""
        lease = next(each for each in self.leases if each is not self.launched_lease)
        self.leases.remove(lease)
        lease.__exit__(None, None, None)

    # -- retiring

    def do_evict(self, d: int) -> None:
        """See the action."""
        self.manager.evict("component")

    def _reclaim(self, e: int, *, graph: bool) -> None:
        entry = self.profiled if self.system.shape.profiled(e) else self._entry()
        one = next(each for each in self.reclaimer.queue if each.entry is entry and (each.graph is not None) == graph)
        if not self.reclaimer.reclaim(one):
            raise Refused("the reclaimer may not destroy it yet")

    def do_reclaim_graphs_now(self, e: int) -> None:
        """See the action."""
        self._reclaim(e, graph=True)

    def do_reclaim_attempts_now(self, e: int) -> None:
        """See the action."""
        self._reclaim(e, graph=False)

    def do_drop_pool(self, p: int) -> None:
        """See the action."""
        pool = self._pools()[p]
        if pool is None:
            raise Refused("there is no such pool")
        self.reclaimer.drop(pool)

    def do_forget(self, e: int) -> None:
        """See the action."""
        with self.books.gate.lock:
            self._entry().forget()

    def do_invalidate(self) -> None:
        """See the action."""
        self.manager.invalidate(MEMORY)

    def _wait(self, operation: Callable[[], None]) -> None:
        def work(actor: Actor) -> None:
            self.sync.patient.add(actor)
            operation()

        self.waiter = Actor(work)
        self.waiter.start()
        self._expect(self.waiter, "waiting")

    def _let_wait_end(self, error: BaseException | None = None) -> None:
        waiter = self._running(self.waiter)
        self.sync.patient.discard(waiter)
        waiter.resume(error)
        self._over(waiter)
        self.waiter = None
        if (waiter.error is None) != (error is None):
            raise Refused(f"it ended with {waiter.error!r}")

    def do_suspend(self) -> None:
        """See the action."""
        self.kind = Kind.SUSPENDING
        self._wait(lambda: self.manager.suspend(MEMORY, timeout=1.0))

    def do_suspended(self) -> None:
        """See the action."""
        self._let_wait_end()
        self.kind = Kind.NONE

    def do_give_up_suspending(self) -> None:
        """See the action."""
        self._let_wait_end(KeyboardInterrupt())
        self.kind = Kind.NONE

    def do_resume(self) -> None:
        """See the action."""
        self.manager.resume(MEMORY)

    # -- the end

    def do_drain(self, why: str) -> None:
        """See the action."""
        self._wait(lambda: (self.manager.close if why == "close" else self.manager.release)(timeout=1.0))

    def do_undrain(self) -> None:
        """See the action."""
        self._let_wait_end(KeyboardInterrupt())

    def do_release_all(self) -> None:
        """See the action."""
        self._let_wait_end()

    def do_close(self) -> None:
        """See the action."""
        if self.waiter is not None and self.books.state is not ManagerState.POISONED:
            self._let_wait_end()
            return
        if self.waiter is not None:
            self._let_wait_end(KeyboardInterrupt())  # what was waited for is beside the point now
        self.manager.close()

    # -- the environment

    def do_device_done(self, p: int) -> None:
        """See the action."""
        while self.device.step():
            pass

    def do_lose_device(self) -> None:
        """See the action."""
        self.books.notice(SimAcceleratorError(DEVICE_ASSERT))

    def do_foreign_capture(self) -> None:
        """See the action."""
        self.foreign_number += 1
        entry = self.others.entry("other", self.foreign_number)

        def make(warmup: bool) -> Callable[[], object]:
            actor = Actor.current()
            assert actor is not None
            actor.pause("capturing")
            return lambda: None

        def work(actor: Actor) -> None:
            with self.others.transaction() as transaction:
                transaction.capture(entry, make)

        self.foreign = Actor(work)
        self.foreign.start()
        self._expect(self.foreign, "capturing")

    def do_foreign_capture_ends(self) -> None:
        """See the action."""
        foreign = self._running(self.foreign)
        foreign.resume(GivenUp("the other one"))
        self._over(foreign)
        self.foreign = None

    @staticmethod
    def _running(actor: Actor | None) -> Actor:
        if actor is None:
            raise Refused("nothing is in progress")
        return actor

    @staticmethod
    def _expect(actor: Actor, at: str) -> None:
        if actor.at != at:
            raise Refused(f"it should be {at}, and is {actor.at or f'over, with {actor.error!r}'}") from actor.error

    @staticmethod
    def _over(actor: Actor) -> None:
        if not actor.ended:
            raise Refused(f"it should be over, and is {actor.at}")

    def end(self) -> None:
        """Bring every operation to an end, and let go of the device."""
        self.sync.patient.clear()
        for actor in (self.launching, self.foreign, self.runner, self.waiter):
            while actor is not None and not actor.ended:
                actor.resume(GivenUp("the end"))

    # -- reading back ---------------------------------------------------------------------------------------------------

    def _pools(self) -> tuple[Pool | None, ...]:
        """The pool in use, the one before, the one of the profile."""
        record = self.books.components.get("component")
        entry = record.entries.get(SIZE) if record is not None else None
        in_use, profiles = (each.domain.pool if each is not None else None for each in (entry, self.profiled))
        kept = self.books.pools  # of a lost device, none is
        return tuple(pool if pool in kept else None for pool in (in_use, self.old, profiles))

    def state(self) -> State:
        """Everything as cells, tidied."""
        cells = dict(self.system.first)
        books, record = self.books, self.books.components.get("component")
        cells["manager.state"], cells["manager.serving"], cells["manager.before"] = books.state, books.serving, books.before
        cells["transaction.kind"] = self.kind
        cells["transaction.failed"] = self.transaction is not None and self.transaction.failed
        cells["gate.free"], cells["gate.foreign"] = books.gate.free, self.foreign is not None
        cells["component[0].resident"] = not books.dependencies[MEMORY].suspended
        if record is not None:
            for field in ("state", "bound", "leased", "before", "held", "resident"):
                cells[f"component[0].{field}"] = getattr(record, field)
            entry = record.entries.get(SIZE)
            for number, each in enumerate((entry, self.profiled)):
                if each is not None:
                    self._read_entry(cells, number, each)
            stale = entry is not None and entry.state in LIVE and entry.noted != record.epoch
            cells["component[0].epoch"], cells["entry[0].noted"] = int(stale), 0
            cells["entry[0].holders"] = len(self.leases)
        cells["domain[0].turn"] = 0 if self.launching is not None else NOBODY
        return self.system.tidy(tuple(cells[name] for name in self.system.cells))

    def _read_entry(self, cells: dict[str, Value], number: int, entry: Entry) -> None:
        for field in ("state", "leases", "retiring", "failed", "recorded", "before", "unreclaimed"):
            cells[f"entry[{number}].{field}"] = getattr(entry, field)
        cells[f"domain[{number}].capturing"] = entry.domain.capturing
        in_use, old, profiles = self._pools()
        for slot, pool in ((0, in_use), (1, old)) if not number else ((2, profiles),):
            if pool is not None and pool.state is not PoolState.GONE:
                for field in ("state", "graphs", "before"):
                    cells[f"pool[{slot}].{field}"] = getattr(pool, field)
                cells[f"pool[{slot}].running"] = slot == 0 and self._running_now()
        for each in self.reclaimer.queue:
            if each.entry is entry:
                slot = 2 if number else int(each.pool is old)
                what = "graphs" if each.graph is not None else "attempts"
                count = cells[f"left[{number},{slot}].{what}"]
                assert isinstance(count, int)
                cells[f"left[{number},{slot}].{what}"] = count + 1
                cells[f"left[{number},{slot}].running"] = cells[f"left[{number},{slot}].running"] or not _passed(each)

    def _running_now(self) -> bool:
        return any(isinstance(work, Launch) for work in self.launches.queue.work)


def _passed(retired: Retired) -> bool:
    return retired.fence is not None and all(isinstance(event, SimEvent) and event.passed for event in retired.fence)
