"""The graph manager: what a runner holds.

It owns the books (`cgstate.runtime.books`) and is their only strong owner: closing it, or dropping it, ends everything it made.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeVar

from cgstate.backends.base import Backend, CaptureErrorMode
from cgstate.backends.choose import choose
from cgstate.errors import CaptureActive, ConfigError, InvariantViolation, describe
from cgstate.lifecycle.states import ManagerState
from cgstate.lifecycle.steps import Observer
from cgstate.runtime import memory
from cgstate.runtime.books import Books
from cgstate.runtime.check import Checker
from cgstate.runtime.config import ComponentConfig
from cgstate.runtime.dependency import Dependency
from cgstate.runtime.domain import Domain, Isolation
from cgstate.runtime.ending import abandon, drained, forget_everything, refuse_own_lease, retire_everything
from cgstate.runtime.entry import Entry
from cgstate.runtime.gate import gate_of
from cgstate.runtime.memory import MemoryEstimate, MemoryReport
from cgstate.runtime.preparing import AnyComponent, PrepareReport, build, uncovered, validate
from cgstate.runtime.progress import track
from cgstate.runtime.record import ComponentRecord, check_descriptor
from cgstate.runtime.routines import capture_by_routine
from cgstate.runtime.stats import ManagerStats
from cgstate.runtime.sync import THREADING, Sync
from cgstate.runtime.transaction import Transaction, TransactionKind
from cgstate.runtime.vote import AloneInTheWorld, Ballot, RankVote

E = TypeVar("E", bound=StrEnum)

log = logging.getLogger("cgstate")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What `GraphManager.capture_and_bind` did.

    Attributes:
        bound: By component, how many graphs were bound by this call.
        seconds: How long it took.
        memory: What the manager holds now.
        estimate: The last estimate, if there was one.
    """

    bound: Mapping[str, int]
    seconds: float
    memory: MemoryReport
    estimate: MemoryEstimate | None


class GraphManager:
    """Owns the CUDA graphs of one model runner on one device.

    Args:
        backend: ``"auto"`` (CUDA if there is one, else the simulator), ``"cuda"``, ``"sim"``, or a backend of your own.
        isolation: How far entries are kept apart unless a component's configuration says otherwise.
        check: Check every invariant that can be seen after each operation; for tests, slow.
        owner_thread: Refuse calls from any thread but the one that made the manager.
        capture_error_mode: How far a capture forbids what other threads do.
        warmup_rounds: The most warm-up rounds before a capture; they end early when a round leaves no allocation behind.
        negative_cache: How many failures are remembered.
        stats_detail: How many missed keys are counted one by one.
        summary_every: After how many graph-answered calls of a component its counts are logged, besides at close; 0: only then.
        vote: Asked before collective components capture by their routine, commit, or evict by a miss.
        sync: Threading primitives; all managers of a device share one.
        observer: Told of every transition, under the device's lock; must be quick and call nothing of the manager.

    Every method but `memory`, `stats` and the properties raises `ManagerClosed` or `ManagerPoisoned` where the manager is, and
    every method raises `WrongThread` in a thread that ``owner_thread`` keeps out.

    Raises:
        ConfigError: an argument is wrong, or the asked-for backend has no device.
    """

    def __init__(
        self,
        backend: str | Backend = "auto",
        *,
        isolation: Isolation | str = Isolation.shared,
        check: bool = False,
        owner_thread: bool = False,
        capture_error_mode: CaptureErrorMode | str = CaptureErrorMode.thread_local,
        warmup_rounds: int = 3,
        negative_cache: int = 256,
        stats_detail: int = 64,
        summary_every: int = 0,
        vote: RankVote | None = None,
        sync: Sync = THREADING,
        observer: Observer | None = None,
    ) -> None:
        counts = {"warmup_rounds": warmup_rounds, "negative_cache": negative_cache, "stats_detail": stats_detail}
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} must be a positive count, not {count!r}")
        if isinstance(summary_every, bool) or not isinstance(summary_every, int) or summary_every < 0:
            raise ConfigError(f"summary_every must be a count, not {summary_every!r}")
        for name, flag in {"check": check, "owner_thread": owner_thread}.items():
            if not isinstance(flag, bool):
                raise ConfigError(f"{name} must be True or False, not {flag!r}")
        if vote is not None and not hasattr(vote, "agree"):
            raise ConfigError(f"vote must have a method agree, not be {vote!r}")
        if observer is not None and not callable(observer):
            raise ConfigError(f"observer must be a function, not {observer!r}")
        device = choose(backend)
        books = self._books = Books(
            f"manager-{next(_numbers)}@{device.device}",
            device,
            gate_of(device.device, sync),
            sync,
            isolation=_enum(Isolation, "isolation", isolation),
            vote=vote if vote is not None else AloneInTheWorld(),
            capture_error_mode=_enum(CaptureErrorMode, "capture_error_mode", capture_error_mode),
            warmup_rounds=warmup_rounds,
            negative_cache=negative_cache,
            stats_detail=stats_detail,
            summary_every=summary_every,
            owner_thread=owner_thread,
            observer=observer,
        )
        if check:
            checker = Checker(books, observer)
            books.audit = checker
            books.unsettled = True
            books.observer = checker.observe
            books.fast = False
        self._components: list[AnyComponent] = []
        self._estimate: MemoryEstimate | None = None
        self._finalizer = weakref.finalize(self, abandon, self._books, self._components)
        self._finalizer.atexit = False  # at interpreter exit the device is not ours any more

    def __repr__(self) -> str:
        return f"<GraphManager {self._books.name} {self.state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def state(self) -> ManagerState:
        """The manager's lifecycle state."""
        return self._books.state

    @property
    def backend(self) -> Backend:
        """The device."""
        return self._books.backend

    # -- preparing ----------------------------------------------------------------------------------------------------

    def prepare(
        self,
        components: Sequence[AnyComponent],
        config: Mapping[str, Mapping[str, object]] | None = None,
    ) -> PrepareReport:
        """Take components, before any device work.

        Args:
            components: The model's call sites.
            config: Component id to ``{"max_extra_graphs": n | "unbounded", "isolation": ..., its own keys}``. Components that are
                not named stay eager; None makes all of them active with defaults.

        Raises:
            ConfigError: duplicate ids, a component that another manager has, or anything wrong in ``config``; nothing was changed.
            IllegalTransition: the manager was prepared already.
        """
        books = self._books
        with books.exclusive("prepare"):
            books.check_open("prepare")
            configs = validate(books, components, config)
            active = [component for component in components if component.component_id in configs]
            records = {component.component_id: build(books, component, configs[component.component_id]) for component in active}
            report = PrepareReport(
                active=tuple(records),
                eager=tuple(component.component_id for component in components if component.component_id not in records),
                uncovered=uncovered(components, records),
            )
            with books.gate.lock:
                books.prepare()
                books.components.update(records)
                for component in active:
                    for name in component.dependencies:
                        books.dependencies.setdefault(name, Dependency(name)).components.add(component.component_id)
            for component in active:
                component.attach(records[component.component_id])
            self._components.extend(active)
        return report

    def profile_memory(self) -> MemoryEstimate:
        """What capturing everything will hold, before it is captured. Leaves nothing behind (I4).

        Raises:
            IllegalTransition: the manager is not PREPARED: nothing prepared yet, or serving already.
            CaptureFailed: the device was lost while profiling.
        """
        books = self._books
        with books.exclusive("profile_begin"):
            books.check_open("profile_begin")
            with books.gate.lock:
                books.profile_begin()
            try:
                self._estimate = memory.estimate(books, self._routine_records())
            finally:
                with books.gate.lock:
                    if books.state is ManagerState.PROFILING:
                        books.profile_end()
            return self._estimate

    # -- capturing ----------------------------------------------------------------------------------------------------

    def capture_and_bind(self, *, progress: bool | None = None) -> CaptureReport:
        """Capture every declared graph that is not bound, then bind all of them, or none (I1).

        After a failure whose kind is REJECTED, say `forget_failures` before the next attempt; the other kinds may be tried again.

        Args:
            progress: Draw a progress bar on stderr; None draws one on a terminal.

        Raises:
            CaptureFailed: one failed; everything is as before, and the failing entry is FAILED.
            IllegalTransition: something refuses; nothing was changed.
        """
        books = self._books
        started = books.sync.now_ns()
        bound: Counter[str] = Counter()
        with self.transaction() as transaction:
            todo: list[Entry] = []
            with books.gate.lock:
                for record in self._routine_records():
                    transaction.include(record)
                    if not record.pure_lazy:
                        todo += [record.entry(d) for d in record.startup_order if d not in record.available]
            for entry in track(todo, "Capturing graphs", show=progress):
                record = entry.component
                assert record.routine is not None
                if record.collective and not books.vote.agree(Ballot.capture, record.component_id, entry.descriptor):
                    raise books.refuse("capture", "all ranks agree")
                capture_by_routine(transaction, entry, record.routine)
                bound[record.component_id] += 1
        seconds = (books.sync.now_ns() - started) / 1e9
        return CaptureReport(dict(bound), seconds, self.memory(), self._estimate)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Capture entries one by one inside the block; they are bound together at its end, or not at all.

        Raises:
            CaptureFailed: from `Transaction.capture`.
            IllegalTransition: another operation of this thread is open, this thread is inside a component call, or the manager is
                closed.
        """
        books = self._books
        with books.exclusive("capture") as thread:
            self._begin(thread)
            transaction = Transaction(books, TransactionKind.explicit)
            try:
                books.reclaimer.settle()
                books.reclaimer.finish()  # what is retired and still in flight would count against the capacity (I11)
                books.reclaimer.drop_pools()  # the peak is the larger of old and new, not their sum
                yield transaction
                if not transaction.committed:
                    transaction.commit()
                with books.gate.lock:
                    books.commit()
            except BaseException as error:
                transaction.abort()
                with books.gate.lock:
                    if books.state is ManagerState.CAPTURING:
                        books.commit() if transaction.committed else books.fail()
                if books.state is not ManagerState.POISONED:
                    try:
                        books.reclaimer.finish()
                        books.reclaimer.flush()
                    except Exception as problem:
                        if isinstance(problem, InvariantViolation):
                            raise
                        error.add_note(
                            f"giving memory back afterwards raised {describe(problem)}"
                        )  # the first error is the one to see
                raise

    def _begin(self, thread: int) -> None:
        books = self._books
        with books.gate.lock:
            books.check_open("capture")
            if books.inside_call(thread):
                raise books.refuse("capture", "this thread is not inside a component call", CaptureActive)
            if books.state is ManagerState.NEW:
                books.prepare()
            books.capture()

    def entry(self, component_id: str, descriptor: Hashable, *, dependencies: Iterable[str] = ()) -> Entry:
        """The entry of a descriptor, for runners with buffers of their own.

        The component is made without a routine on first use; its entries are captured in a `transaction` and replayed by hand.
        The entries of a component that has a routine can be replayed and leased this way as well.

        Args:
            component_id: Any name.
            descriptor: Names the graph by value.
            dependencies: Names of foreign memory that the component's graphs bake in, for `invalidate`; added to those it has.

        Raises:
            ConfigError: not a component id, or a descriptor that names nothing by value.
            ManagerClosed: or `ManagerPoisoned`.
        """
        if not isinstance(component_id, str) or not component_id:
            raise ConfigError(f"a component id must be a non-empty string, not {component_id!r}")
        check_descriptor(component_id, descriptor)
        books = self._books
        books.check_thread(books.thread_id())
        with books.gate.lock:
            books.check_open("entry")
            record = books.components.get(component_id)
            if record is None:
                config = ComponentConfig(isolation=books.isolation)
                record = books.components[component_id] = ComponentRecord(books, component_id, None, config)
            for name in dependencies:
                books.dependencies.setdefault(name, Dependency(name)).components.add(component_id)
            return record.entry(descriptor)

    # -- retiring -----------------------------------------------------------------------------------------------------

    def evict(self, component_id: str, descriptor: Hashable | None = None) -> int:
        """Retire the domain of one entry, or every domain of a component. Makes nobody wait; replays in flight finish.

        Returns:
            How many entries were retired, or marked so while they are leased.

        Raises:
            ConfigError: unknown component or descriptor.
        """
        books = self._books
        with books.exclusive("evict"):
            with books.gate.lock:
                books.check_open("evict")
                record = self._record(component_id)
                if descriptor is not None:
                    check_descriptor(component_id, descriptor)
                if descriptor is not None and descriptor not in record.entries:
                    raise ConfigError(f"{component_id} has no entry {descriptor!r}; it has {sorted(map(repr, record.entries))}")
                domains = {entry.domain for d, entry in record.entries.items() if descriptor is None or d == descriptor}
                return sum(books.evict_domain(domain) for domain in domains)

    def dependency(self, name: str) -> Dependency:
        """A declared dependency.

        Raises:
            ConfigError: no component declared it.
        """
        self._books.check_thread(self._books.thread_id())
        found = self._books.dependencies.get(name) if isinstance(name, str) else None
        if found is None:
            raise ConfigError(f"unknown dependency {name!r}; declared are {sorted(self._books.dependencies)}")
        return found

    def invalidate(self, *names: str) -> int:
        """Say, before it happens, that memory behind these dependencies moves: graphs that baked it in are retired.

        Returns:
            How many entries were retired. `capture_and_bind` captures them anew.

        Raises:
            ConfigError: an unknown dependency; nothing was changed.
        """
        books = self._books
        dependencies = [self.dependency(name) for name in names]
        with books.exclusive("invalidate"):
            with books.gate.lock:
                books.check_open("invalidate")
                touched: set[Domain] = set()
                for dependency in dependencies:
                    dependency.epoch += 1
                    for component_id in dependency.components & books.components.keys():
                        record = books.components[component_id]
                        record.epoch += 1
                        touched |= {entry.domain for entry in record.entries.values()}
                return sum(books.evict_domain(domain, counted=False) for domain in touched)

    def forget_failures(self, component_id: str | None = None) -> None:
        """Forget remembered failures, of one component or of all, so that their descriptors may be tried again."""
        books = self._books
        books.check_thread(books.thread_id())
        with books.gate.lock:
            books.check_open("forget_failures")
            if component_id is not None:
                self._record(component_id)
            books.negative.forget(component_id)

    def reclaim(self, *, flush: bool = False) -> MemoryReport:
        """Destroy what is retired and done with.

        Args:
            flush: Also give pools and cached memory back to the device. Waits for it, and stalls other threads' launches (S3).
        """
        books = self._books
        books.check_thread(books.thread_id())
        books.check_open("reclaim")
        if flush:
            books.refuse_in_capture("reclaim")
            books.reclaimer.finish()
            books.reclaimer.flush()
        return self.memory()

    # -- looking ------------------------------------------------------------------------------------------------------

    def memory(self) -> MemoryReport:
        """What the manager holds now; reclaims first."""
        self._books.check_thread(self._books.thread_id())
        self._books.settle()
        return memory.report(self._books)

    def stats(self) -> ManagerStats:
        """Counts since the manager was made."""
        books = self._books
        books.check_thread(books.thread_id())
        with books.gate.lock:
            return ManagerStats(
                components={name: record.counters.snapshot(record.live_hits) for name, record in books.components.items()},
                reclaims=books.reclaimer.reclaims,
                flushes=books.reclaimer.flushes,
                reclaimed_bytes=books.reclaimer.flushed_bytes,
                stalled_ns=books.reclaimer.stalled_ns,
            )

    # -- the end ------------------------------------------------------------------------------------------------------

    def release(self, timeout: float | None = None) -> None:
        """Retire every graph and give all bytes back; the manager is armed again for `capture_and_bind`.

        Args:
            timeout: Seconds to wait for leases of other threads; None waits for ever.

        Raises:
            LeaseOutstanding: this thread holds a lease, or others outlasted ``timeout``. Nothing was changed; call again.
            IllegalTransition: the manager does not serve.
        """
        books = self._books
        refuse_own_lease(books, "release")
        with books.exclusive("release"):
            books.check_open("release")
            if books.state is not ManagerState.SERVING:
                raise books.refuse("release", "the manager is serving")
            with drained(books, "release", timeout):
                retire_everything(books)
                books.release(leases=books.leases)
            self._return_bytes()

    def close(self, timeout: float | None = None) -> None:
        """`release` for good: components answer eagerly from now on, entries refuse. Idempotent.

        Raises:
            LeaseOutstanding: as `release`; the manager serves on.
            CaptureActive: called inside a transaction of this manager.
        """
        books = self._books
        if books.closed():
            return
        refuse_own_lease(books, "close")
        with books.exclusive("close"):
            if books.closed():
                return  # another thread was faster
            with drained(books, "close", timeout):
                lost = books.state is ManagerState.POISONED
                if not lost:
                    retire_everything(books)
                books.close(leases=books.leases)
            if lost:
                books.reclaimer.let_go()
            else:
                self._return_bytes()
                with books.gate.lock:
                    books.close_streams()
            self._finalizer.detach()
            for name, stats in self.stats().components.items():
                log.info("%s: %s: %s", books.name, name, stats.summary())

    def _return_bytes(self) -> None:
        """Reclaim and flush; waits for replays still running on the device."""
        books = self._books
        books.reclaimer.finish()
        books.reclaimer.flush()
        with books.gate.lock:
            forget_everything(books)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _routine_records(self) -> list[ComponentRecord]:
        return [record for record in self._books.components.values() if record.routine is not None]

    def _record(self, component_id: str) -> ComponentRecord:
        record = self._books.components.get(component_id) if isinstance(component_id, str) else None
        if record is None:
            raise ConfigError(f"unknown component {component_id!r}; there are {sorted(self._books.components)}")
        return record


def _enum(kind: type[E], name: str, value: object) -> E:
    try:
        return kind(str(value))
    except ValueError:
        raise ConfigError(f"{name} must be one of {[member.value for member in kind]}, not {value!r}") from None
