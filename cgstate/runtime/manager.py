"""The graph manager: what a runner holds.

It owns the books (`cgstate.runtime.books`) and is their only strong owner: closing it, or dropping it, ends everything it made.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from cgstate.backends.base import Backend, CaptureErrorMode
from cgstate.backends.choose import choose
from cgstate.errors import ConfigError, describe
from cgstate.lifecycle.states import ManagerState
from cgstate.lifecycle.steps import Observer
from cgstate.runtime import ending, explicit, memory, residency, sharing
from cgstate.runtime.arguments import check_counts, check_flags, member
from cgstate.runtime.books import Books
from cgstate.runtime.budget import parse_budget
from cgstate.runtime.check import Checker
from cgstate.runtime.config import ComponentConfig
from cgstate.runtime.dependency import Dependency, checked_names, declare, declared, invalidate
from cgstate.runtime.domain import Isolation
from cgstate.runtime.entry import Entry
from cgstate.runtime.explicit import CaptureReport
from cgstate.runtime.gate import gate_of
from cgstate.runtime.memory import MemoryEstimate, MemoryReport, Profile
from cgstate.runtime.preparing import AnyComponent, PrepareReport, prepare
from cgstate.runtime.record import ComponentRecord, check_descriptor
from cgstate.runtime.room import shrink
from cgstate.runtime.stats import ManagerStats
from cgstate.runtime.sync import THREADING, Sync
from cgstate.runtime.transaction import Transaction
from cgstate.runtime.vote import AloneInTheWorld, RankVote
from cgstate.runtime.witness import Witness

log = logging.getLogger("cgstate")
_numbers = itertools.count(1)


class GraphManager:
    """Owns the CUDA graphs of one model runner on one device.

    Args:
        backend: ``"auto"`` (CUDA if there is one, else the simulator), ``"cuda"``, ``"sim"``, or a backend of your own.
        isolation: How far entries are kept apart unless a component's configuration says otherwise.
        pool: Id of a pool of the host engine's (on CUDA also a `torch.cuda.MemPool`) for the components whose isolation is
            ``foreign``. The engine keeps it open, with a graph of its own in it, as long as the manager captures into it; a capture
            into a pool that was closed raises `PoolRetired`. Replays of ours there are ordered with each other, not with the
            engine's.
        check: Check every invariant that can be seen after each operation; for tests, slow.
        owner_thread: Refuse calls, replays, and whatever is done with leases and leased outputs, from any thread but the one that
            made the manager.
        capture_error_mode: How far a capture forbids what other threads do.
        warmup_rounds: The most warm-up rounds before a capture; they end early when a round leaves no allocation behind.
        compact: Look for the one block of memory that the first graph of a pool needs, so that its temporaries share it instead of
            taking a segment each. Where a warm-up has left two large segments or more, the work is run up to six times more before
            the first capture into the pool, and the allocator's cache returned after each; a profile does it for the capture that
            follows, and a miss never does. Not done for work with eager breaks, on a stream of yours, or in a ``pool`` of the
            engine's.
        dependencies: Names of foreign memory that `invalidate` and `suspend` shall know, whether or not a component names them.
        negative_cache: How many failures are remembered; and of how many descriptors what they cost, and a component's misses.
        stats_detail: How many missed keys are counted one by one.
        summary_every: After how many graph-answered calls of a component its counts are logged, besides at close; 0: only then.
        budget_bytes: The most bytes that the manager may hold, as `memory` counts them; None: no limit. See `set_budget`.
        vote: Asked before collective components capture by their routine, commit, or evict to make room.
        sync: Threading primitives; all managers of a device share one.
        observer: Told of every transition, under the device's lock, in the midst of steps: must be quick, and call nothing of the
            manager. What it raises, an interrupt among it, stops no step, and reaches the caller once the operation, or one capture
            of it, is over: the first error alone, and as a note where the operation has failed itself. A function, or a
            `cgstate.runtime.witness.Witness`, which is told more, such as the recorders of `cgstate.trace`.

    Every method but `memory`, `stats`, `dependency` and the properties raises `ManagerClosed` or `ManagerPoisoned` where it is, and
    every method raises `WrongThread` in a thread that ``owner_thread`` keeps out.

    Raises:
        ConfigError: an argument is wrong, or the asked-for backend has no device.
    """

    def __init__(
        self,
        backend: str | Backend = "auto",
        *,
        isolation: Isolation | str = Isolation.shared,
        pool: object = None,
        check: bool = False,
        owner_thread: bool = False,
        capture_error_mode: CaptureErrorMode | str = CaptureErrorMode.thread_local,
        warmup_rounds: int = 3,
        compact: bool = True,
        dependencies: Iterable[str] = (),
        negative_cache: int = 256,
        stats_detail: int = 64,
        summary_every: int = 0,
        budget_bytes: int | None = None,
        vote: RankVote | None = None,
        sync: Sync = THREADING,
        observer: Observer | Witness | None = None,
    ) -> None:
        check_counts(least=1, warmup_rounds=warmup_rounds, negative_cache=negative_cache, stats_detail=stats_detail)
        check_counts(least=0, summary_every=summary_every)
        check_flags(check=check, owner_thread=owner_thread, compact=compact)
        if vote is not None and not hasattr(vote, "agree"):
            raise ConfigError(f"vote must have a method agree, not be {vote!r}")
        witness = observer if isinstance(observer, Witness) else None
        told = observer.step if isinstance(observer, Witness) else observer
        if told is not None and not callable(told):
            raise ConfigError(f"observer must be a function or a witness, not {observer!r}")
        known = checked_names("dependencies", dependencies)
        chosen = member(Isolation, "isolation", isolation)
        if chosen is Isolation.foreign and pool is None:
            raise ConfigError("isolation is foreign, and no pool is given")
        device = choose(backend)
        books = self._books = Books(
            f"manager-{next(_numbers)}@{device.device}",
            device,
            gate_of(device.device, sync),
            sync,
            isolation=chosen,
            foreign=None if pool is None else device.adopt_pool(pool),
            vote=vote if vote is not None else AloneInTheWorld(),
            capture_error_mode=member(CaptureErrorMode, "capture_error_mode", capture_error_mode),
            warmup_rounds=warmup_rounds,
            compact=compact,
            negative_cache=negative_cache,
            stats_detail=stats_detail,
            summary_every=summary_every,
            budget_bytes=parse_budget(budget_bytes),
            owner_thread=owner_thread,
            observer=told,
            witness=witness,
        )
        if check:
            checker = Checker(books, told)
            books.audit = checker
            books.unsettled = True
            books.observer = checker.observe
            books.fast, books.told = False, None
        declare(books, known)
        self._components: list[AnyComponent] = []
        self._estimate: MemoryEstimate | None = None
        self._finalizer = weakref.finalize(self, ending.abandon, self._books, self._components)
        self._finalizer.atexit = False  # at interpreter exit the device is not ours any more

    def __repr__(self) -> str:
        return f"<GraphManager {self._books.name} {self.state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Exception as problem:
            if error is None:
                raise
            error.add_note(f"closing {self._books.name} afterwards raised {describe(problem)}")  # the first error is the one to see

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
            config: Component id to a mapping of ``max_extra_graphs``, ``isolation``, ``admit_after``, ``thrash_protection`` (see
                `cgstate.runtime.config.ComponentConfig`) and its own keys. Components that are not named stay eager; None makes
                all of them active with defaults.

        Raises:
            ConfigError: duplicate ids, a component that another manager has or is preparing, or anything wrong in ``config``;
                nothing was changed, but for what a `Routine.configure` has taken before another one refused.
            IllegalTransition: the manager was prepared already.
            CaptureActive: another operation of this thread is open on the manager, a profile for one.
        """
        return prepare(self._books, components, config, self._components)

    def profile_memory(self, *, thorough: bool = False) -> MemoryEstimate:
        """What capturing everything will hold, before it is captured. Leaves nothing behind (I4).

        Captures two graphs of each component in throwaway pools, and runs as many more as closeness asks for, without recording
        them. Beside graphs that cgstate does not know, library workspaces stay where the captures to come will use them;
        they are part of the estimate, as far as the same thread captures.

        Args:
            thorough: Run every graph. Takes longer, more than half of what capturing them will take; the bounds are as close as
                can be then, also where the outputs of many graphs are most of what is held.

        Raises:
            IllegalTransition: the manager is not PREPARED: nothing prepared yet, or serving already.
            CaptureFailed: the device was lost in a capture or a run; or of none of the graphs could the static inputs be made.
            Exception: what the device raised elsewhere; if it is lost, the manager is POISONED in any case.
            ConfigError: ``thorough`` is neither True nor False.
        """
        check_flags(thorough=thorough)
        self._estimate = memory.profile_memory(self._books, self._books.routine_records(), thorough=thorough)
        return self._estimate

    @contextmanager
    def profile(self) -> Iterator[Profile]:
        """Measure what the captures of this thread take inside the block, and leave nothing of them (I4).

        For runners with buffers of their own: every `transaction` of the block, and `capture_and_bind`, records into throwaway
        pools, one for each pool that production would have, also for entries and components that are made inside. Nothing is
        bound, and what was made inside is forgotten. `Profile.estimate` tells afterwards what it took. Let go of static outputs
        before the block ends: a tensor that is held keeps its memory.

        Components with a routine are prepared before. Other managers of the device replay as ever, and capture nothing for this
        thread: their captures raise `CaptureActive`, their misses are eager, counted `capture_busy`; profiles of their own they may
        have. What they capture in other threads meanwhile makes the estimate untrusted.

        Raises:
            IllegalTransition: the manager is not PREPARED: say ``prepare([])`` where there are no components; or it serves already.
            CaptureActive: another operation of this thread is open, or it is inside a component call.
        """
        with memory.profiling(self._books) as profile:  # the manager lives as long as the block
            yield profile

    # -- capturing ----------------------------------------------------------------------------------------------------

    def capture_and_bind(self, *, progress: bool | None = None) -> CaptureReport:
        """Capture every declared graph that is not bound, then bind all of them, or none (I1).

        After a failure whose kind is REJECTED, say `forget_failures` before the next attempt; the other kinds may be tried again.

        Args:
            progress: Draw a progress bar on stderr; None draws one on a terminal.

        Raises:
            CaptureFailed: one failed; everything is as before, and the failing entry is FAILED.
            IllegalTransition: something refuses; nothing was changed.
            ConfigError: ``progress`` is neither None, True nor False.
        """
        if progress is not None:
            check_flags(progress=progress)
        return explicit.capture_and_bind(self._books, self._estimate, progress=progress)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Capture entries one by one inside the block; they are bound together at its end, or not at all.

        Raises:
            CaptureFailed: from `Transaction.capture`.
            IllegalTransition: another operation of this thread is open, this thread is inside a component call, or the manager is
                closed.
        """
        with explicit.transaction(self._books) as transaction:  # the manager lives as long as the block
            yield transaction

    def entry(
        self, component_id: str, descriptor: Hashable, *, dependencies: Iterable[str] = (), inside: str | None = None
    ) -> Entry:
        """The entry of a descriptor, for runners with buffers of their own.

        The component is made without a routine on first use; its entries are captured in a `transaction` and replayed by hand.
        The entries of a component that has a routine can be replayed and leased this way as well.

        Args:
            component_id: Any name.
            descriptor: Names the graph by value.
            dependencies: Names of foreign memory that the component's graphs bake in, for `invalidate` and `suspend`; added to
                those it has.
            inside: Component in whose eager breaks the component's graphs replay: they share its pool and capture stream. Said when
                the component is made; None: it has a domain of its own, as the isolation says.

        Raises:
            ConfigError: not a component id, a descriptor that names nothing by value, or no sequence of names; or ``inside`` names
                no component that can be shared with, or another one than before.
            LiveAcrossBreak: a recording of the outer component leaves something live across a break.
            LeaseOutstanding: the component is in use, and one of the dependencies is suspended.
            ManagerClosed: or `ManagerPoisoned`.
        """
        if not isinstance(component_id, str) or not component_id:
            raise ConfigError(f"a component id must be a non-empty string, not {component_id!r}")
        check_descriptor(component_id, descriptor)
        names = checked_names(f"dependencies of {component_id}", dependencies)
        books = self._books
        books.check_caller()
        with books.gate.lock:
            books.check_open("entry")
            record = books.components.get(component_id)
            if record is None:
                config = ComponentConfig(isolation=books.isolation)
                record = ComponentRecord(books, component_id, None, config)
            if inside is not None:
                sharing.declare(books, record, inside)
            books.components[component_id] = record
            residency.depend(record, names)
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
            if descriptor is not None:
                check_descriptor(component_id, descriptor)
            with books.gate.lock:
                books.check_open("evict")
                record = self._record(component_id)
                if descriptor is not None and descriptor not in record.entries:
                    raise ConfigError(f"{component_id} has no entry {descriptor!r}; it has {sorted(map(repr, record.entries))}")
                domains = {entry.domain for d, entry in record.entries.items() if descriptor is None or d == descriptor}
                return sum(books.evict_domain(domain) for domain in domains)

    def dependency(self, name: str) -> Dependency:
        """A declared dependency, as it is now.

        Raises:
            ConfigError: nobody declared it.
        """
        books = self._books
        books.check_caller()
        with books.gate.lock:
            return declared(books, (name,))[0].snapshot()

    def invalidate(self, *names: str) -> int:
        """Say, before it happens, that memory behind these dependencies moves: graphs that baked it in are retired.

        Returns:
            How many entries were retired. `capture_and_bind` captures them anew.

        Raises:
            ConfigError: an unknown dependency; nothing was changed.
        """
        books = self._books
        with books.exclusive("invalidate"):
            with books.gate.lock:
                books.check_open("invalidate")
                return invalidate(books, declared(books, names))

    @contextmanager
    def mutating(self, *names: str, timeout: float | None = None) -> Iterator[int]:
        """Let memory behind these dependencies move inside the block, whichever way: grown, shrunk, reloaded, swapped.

        Waits as `suspend` does, then retires the graphs that baked the memory in, before the block runs. Inside it, calls that
        depend on the memory raise `NotResident`; afterwards, also after an exception, they are answered eagerly until
        `capture_and_bind` captures anew, once. The block gets the number of retired entries.

        Args:
            names: Dependencies.
            timeout: Seconds to wait for leases of other threads; None waits for ever.

        Raises:
            ConfigError, LeaseOutstanding, CaptureActive, IllegalTransition: as `suspend`.
        """
        with residency.mutating(self._books, names, timeout) as retired:  # the manager lives as long as the block
            yield retired

    # -- residency ----------------------------------------------------------------------------------------------------

    def suspend(self, *names: str, timeout: float | None = None) -> None:
        """Say that memory behind these dependencies is about to go for a while; all of them, or none.

        From here on, calls and replays of components that depend on any of them raise `NotResident`. Returns when none of them is
        in progress any more, on the host and on the device: then the memory may go. What else a block of your own launched on it
        is yours to wait for.

        Args:
            names: Dependencies.
            timeout: Seconds to wait for leases and calls of other threads; None waits for ever.

        Raises:
            ConfigError: an unknown dependency, or none. Nothing was changed.
            IllegalTransition: one of them is suspended already. Nothing was changed.
            LeaseOutstanding: this thread holds a lease, or is inside a call; or others outlasted ``timeout``. Nothing was changed.
            CaptureActive: the caller's stream is capturing, or that of the last replay. Nothing was changed.
        """
        residency.suspend(self._books, names, timeout)

    def resume(self, *names: str, restore: Callable[[], object] | None = None, moved: bool | Iterable[str] = False) -> int:
        """Say that memory behind suspended dependencies is there again; all of them, or none.

        A component is answered again once everything that it depends on is resident. Graphs go on where memory came back in
        its place with its content; `capture_and_bind` captures those anew that were retired.

        Args:
            names: Suspended dependencies.
            restore: Brings the memory back; called while it is still suspended. What it raises goes to the caller, and everything
                stays suspended, to be tried again.
            moved: Whether, or which of them, came back in another place or without its content: graphs that baked it in are
                retired before the first call. Where only ``restore`` can tell, restore first, and call this afterwards.

        Returns:
            How many entries were retired.

        Raises:
            ConfigError: an unknown dependency, or none, or ``moved`` names others. Nothing was changed.
            IllegalTransition: one of them is not suspended. Nothing was changed.
        """
        return residency.resume(self._books, names, restore, moved)

    def forget_failures(self, component_id: str | None = None) -> None:
        """Forget remembered failures and what graphs cost, of one component or of all: their descriptors may be tried again."""
        books = self._books
        books.check_caller()
        with books.gate.lock:
            books.check_open("forget_failures")
            if component_id is not None:
                self._record(component_id)
            books.negative.forget(component_id)
            books.budget.forget(component_id)

    @property
    def budget_bytes(self) -> int | None:
        """The most bytes that may be held; None: no limit."""
        return self._books.budget.limit

    def set_budget(self, budget_bytes: int | None) -> int:
        """Change the byte budget, also while serving; where more is held, evict lazy graphs that can go alone.

        Evicting waits for the device and returns the bytes to it (fact S3). What still does not fit stays, and nothing more is
        captured then. A capture that does not fit evicts first, as above: an explicit one waits for that, and if it is in vain
        fails with kind BUDGET and `BudgetExceeded` as its cause; a miss never waits, and is else eager. What a graph took is
        remembered, so that none is captured only to be refused again, until it fits or `forget_failures` is called. What grows a
        pool with live graphs is refused by what a warm-up round takes, before it does; what an attempt has grown all the same, as
        the round took less, stays charged there (fact S4) until all graphs of the pool are evicted.

        Args:
            budget_bytes: The most bytes that may be held, as `memory` counts them; None: no limit.

        Returns:
            How many graphs were evicted.

        Raises:
            ConfigError: not a positive number of bytes, nor None; nothing was changed.
        """
        limit = parse_budget(budget_bytes)
        books = self._books
        with books.exclusive("set_budget"):
            with books.gate.lock:
                books.check_open("set_budget")
                books.budget.limit = limit
            return shrink(books)

    def reclaim(self, *, flush: bool = False) -> MemoryReport:
        """Destroy what is retired and done with.

        Args:
            flush: Also give pools and cached memory back to the device. Waits for it, and stalls other threads' launches (S3).

        Raises:
            ConfigError: ``flush`` is neither True nor False.
        """
        check_flags(flush=flush)
        books = self._books
        books.check_caller()
        books.check_open("reclaim")
        if flush:
            books.refuse_in_capture("reclaim")
            with books.heard():
                books.reclaimer.finish()
                books.reclaimer.flush()
        return self.memory()

    # -- looking ------------------------------------------------------------------------------------------------------

    def memory(self) -> MemoryReport:
        """What the manager holds now; reclaims first."""
        self._books.check_caller()
        self._books.settle()
        return memory.report(self._books)

    def stats(self) -> ManagerStats:
        """Counts since the manager was made."""
        books = self._books
        books.check_caller()
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

        Beside graphs that cgstate does not know, library workspaces cannot be given back, and wait for the next captures.

        Args:
            timeout: Seconds to wait for leases of other threads; None waits for ever.

        Raises:
            LeaseOutstanding: this thread holds a lease, or others outlasted ``timeout``. Nothing was changed; call again.
            IllegalTransition: the manager does not serve.
        """
        ending.release(self._books, timeout)

    def close(self, timeout: float | None = None) -> None:
        """`release` for good: components answer eagerly from now on, entries refuse. Idempotent.

        When it returns, every graph is destroyed and all that it used is let go of: its memory, what ``retain`` was given, and what
        libraries such as NCCL have retained in it, which the driver releases later than the graph. So their owners may end.

        If giving bytes back fails, the manager is closed all the same; another call goes on with what is left.

        Args:
            timeout: Seconds to wait for leases of other threads, and then for the driver; None waits for ever.

        Raises:
            LeaseOutstanding: as `release`; the manager serves on.
            ReleasePending: the driver has not let go of something in time. The manager is closed; call again.
            CaptureActive: called inside a transaction of this manager.
        """
        books = self._books
        if ending.close(books, timeout):
            if books.ended():
                self._finalizer.detach()
            for name, stats in self.stats().components.items():
                log.info("%s: %s: %s", books.name, name, stats.summary())

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _record(self, component_id: str) -> ComponentRecord:
        record = self._books.components.get(component_id) if isinstance(component_id, str) else None
        if record is None:
            raise ConfigError(f"unknown component {component_id!r}; there are {sorted(self._books.components)}")
        return record
