"""The profiling scope: while it is open every capture of its thread is measured, and nothing of it is left afterwards (I4).

An entry that is captured in the scope stays as it is; a stand-in is recorded for it, in a throwaway pool and on a stream of its own
for each domain that production would have. All recordings live until the scope ends, as the real ones would, so that a pool grows
as the real one will.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from cgstate.backends.base import DeviceMemory
from cgstate.backends.undo import UndoLog
from cgstate.errors import CaptureActive, CaptureFailed, LiveAcrossBreak, describe
from cgstate.lifecycle.states import ManagerState, PoolKind
from cgstate.runtime import residency
from cgstate.runtime.domain import LIVE, Domain
from cgstate.runtime.entry import Entry
from cgstate.runtime.failure import clear_frames
from cgstate.runtime.memory.estimate import MemoryEstimate, Sample
from cgstate.runtime.segment_sizes import segments_for
from cgstate.runtime.statics import static_bytes, static_sizes
from cgstate.runtime.transaction import Transaction, TransactionKind

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.capture import Attempt, MakeFunction, Recording
    from cgstate.runtime.record import ComponentRecord

FIRST_USE = 512
"""MiB that the first capture of a component may take outside the allocator: libraries load their kernels then."""
LATER_USE = 64
"""The same for each later capture; the driver took up to 230 KiB for a graph (fact P9), newly met kernels take more."""
GIVEN_BACK = 8
"""MiB that may come back from outside the allocator while a graph is captured; more was given back by another process."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a throwaway pool holds, bytes by size class.

    Attributes:
        small: Segments for small allocations.
        large: The other segments.
        small_live: Lent out of the small ones.
        large_live: Lent out of the others.
        workspaces: Library workspaces among these.
    """

    small: int = 0
    large: int = 0
    small_live: int = 0
    large_live: int = 0
    workspaces: int = 0

    @property
    def reserved(self) -> int:
        """All segments."""
        return self.small + self.large

    @property
    def live(self) -> int:
        """All that is lent out."""
        return self.small_live + self.large_live

    def lent_since(self, before: Reading) -> int:
        """Bytes that are lent out more than ``before``, to others than libraries."""
        return max(0, self.live - self.workspaces - before.live + before.workspaces)


@dataclass(frozen=True, slots=True)
class Measured:
    """One capture of the scope: the sample that users see, and what its pool held before and after."""

    sample: Sample
    before: Reading
    after: Reading


class ProfileTransaction(Transaction):
    """A transaction inside a profile. Its commit drops what was recorded, at the end of the profile.

    Attributes:
        kept: What graphs that were only rehearsed would keep.
    """

    __slots__ = ("_profile", "kept")

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.books, TransactionKind.profile)
        self._profile = profile
        self.kept: list[object] = []

    @property
    def teaches(self) -> bool:
        """As of the profile."""
        return self._profile.teaches

    def resolve(self, entry: Entry) -> Entry:
        """The stand-in of ``entry``."""
        if entry.domain.kind is PoolKind.throwaway:
            return entry
        return self._profile.stand_in(super().resolve(entry))

    def capture_entry(self, entry: Entry, make: MakeFunction, **options: Any) -> Recording:
        """As `Transaction.capture_entry`, and measured."""
        if not isinstance(entry, Entry) or entry.manager is not self._profile.books:
            return super().capture_entry(entry, make, **options)  # which refuses it
        stand_in = self.resolve(entry)
        with self._profile.measuring(stand_in) as outcome:
            recording = super().capture_entry(stand_in, make, **options)
            outcome.settled = recording.settled
        return recording

    def rehearse(self, entry: Entry, run: Callable[[Attempt, UndoLog], None]) -> None:
        """Let ``run`` do what it likes where a stand-in would be recorded, and when: the gate is held. Nothing is recorded.

        What it appends to `kept` is kept as long as the recordings.

        Raises:
            IllegalTransition: the entry, its pool or the gate refuses.
            CaptureFailed: the device gave no pool or no stream.
            BaseException: what ``run``, or the device, raised.
        """
        capture, backend = self._prepared(entry, None), self.books.backend
        try:
            capture.begin(None)
            capture.follow()
            backend.keep_generator(capture.undo)
            attempt, caller = capture.attempt, backend.current_stream()
            attempt.stream.wait(caller.record())  # inputs and weights may still be on their way
            if attempt.prime:
                backend.prime_workspaces(attempt.workspaces, attempt.stream)
            run(attempt, capture.undo)
            caller.wait(attempt.stream.record())
            capture.undo.succeed()
        finally:
            if self.current is capture:
                capture.give_up()
        for _, problem in capture.undo.errors:  # of what ends it
            raise problem

    @contextmanager
    def recording(self, entry: Entry, *, stream: object = None, uses_random: bool = False) -> Iterator[None]:
        """As `Transaction.recording`, and measured."""
        if isinstance(entry, Entry) and entry.manager is self._profile.books:
            entry = self.resolve(entry)
            with self._profile.measuring(entry), super().recording(entry, stream=stream, uses_random=uses_random):
                yield
        else:
            with super().recording(entry, stream=stream, uses_random=uses_random):  # which refuses it
                yield

    def include(self, record: ComponentRecord) -> None:
        """Components keep their states: nothing of them is bound."""

    def commit(self) -> None:
        """Take no further capture. Nothing is bound, whatever was recorded."""
        self._check_open("commit")
        self._open = False

    def end(self) -> None:
        """`commit`, whether or not that was said already."""
        self._open = False


@dataclass(slots=True)
class _Outcome:
    """What only the capture itself can tell."""

    settled: bool = True


class Profile:
    """An open profile; get it from `GraphManager.profile`. All but `estimate`, `samples` and `pool_id` belongs to the runtime.

    Attributes:
        books: The manager's.
        thread: Whose captures are profiled.
        measured: Every capture so far.
        doubts: What else speaks against an estimate.
        rehearsed: How many graphs were run without being recorded.
        widest: Bytes that the warm-up of one graph took at most, where that was looked at.
        teaches: Whether the budget remembers what its captures took: only routines record the same later, a caller may profile
            anything under a name.
    """

    __slots__ = (
        "_domains",
        "_estimate",
        "_open",
        "_started",
        "_taken",
        "_transactions",
        "books",
        "doubts",
        "measured",
        "rehearsed",
        "teaches",
        "thread",
        "widest",
    )

    def __init__(self, books: Books, thread: int, *, shut: bool) -> None:
        self.books = books
        self.thread = thread
        self.measured: list[Measured] = []
        self.doubts: list[str] = []
        self.rehearsed = 0
        self.widest = 0
        self._domains: dict[Domain, Domain] = {}
        self._transactions: list[ProfileTransaction] = []
        self.teaches = shut
        self._open = shut  # a signal handler must not capture between the captures of an estimate
        self._taken: list[int] = []
        self._started = books.sync.now_ns()
        self._estimate: MemoryEstimate | None = None

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was captured so far."""
        return tuple(each.sample for each in self.measured)

    @property
    def estimate(self) -> MemoryEstimate:
        """What holding all that was captured in the block takes, if it is captured in the same order.

        Raises:
            IllegalTransition: the block has not ended, or ended by an exception.
        """
        if self._estimate is None:
            raise self.books.refuse("estimate", "the profile has ended, and without an error")
        return self._estimate

    # -- captures -----------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[ProfileTransaction]:
        """Capture inside the block; what was recorded lives until the profile ends, unless the block raises.

        Raises:
            CaptureActive: another one is open, or this thread is inside a component call.
        """
        books = self.books
        transaction = ProfileTransaction(self)
        mine = False
        try:
            with books.gate.lock:
                books.check_open("capture")
                if self._open:
                    raise books.refuse("capture", "no other operation of this thread is open on the manager", CaptureActive)
                if books.inside_call(self.thread):
                    raise books.refuse("capture", "this thread is not inside a component call", CaptureActive)
                self._open = mine = True
            self._transactions.append(transaction)
            yield transaction
        except BaseException:
            transaction.abort()
            raise
        finally:
            if mine:
                self._open = False
            transaction.end()

    @contextmanager
    def apart(self) -> Iterator[ProfileTransaction]:
        """A transaction with pools and streams of its own, which are gone when the block ends."""
        around, self._domains = self._domains, {}
        transaction, undo = ProfileTransaction(self), UndoLog()
        ending = False
        try:
            yield transaction
            self._clear(undo, [transaction])
            ending = True
            undo.succeed()
        except BaseException as error:
            if ending and isinstance(error, Exception):
                raise
            clear_frames(error)  # where it comes from an undo step they hold what was recorded
            again = UndoLog()  # an interrupt may have kept a step from what it does
            self._clear(again, [transaction])
            again.fail()
            raise
        finally:
            self._domains = around

    def stand_in(self, entry: Entry) -> Entry:
        """What is recorded in place of ``entry``; the same for the same entry."""
        return self.entry(entry.component, entry.descriptor, entry.domain)

    def entry(self, record: ComponentRecord, descriptor: Hashable, production: Domain) -> Entry:
        """An entry that nobody else sees, in the throwaway domain that stands for ``production``."""
        domain = self.domain(production)
        with self.books.gate.lock:
            for entry in domain.entries:
                if entry.component is record and entry.descriptor == descriptor:
                    return entry
            entry = Entry(record, descriptor, startup=False)
            entry.domain = domain
            domain.entries.add(entry)
            return entry

    def domain(self, production: Domain) -> Domain:
        """The throwaway domain that stands for ``production``."""
        books = self.books
        with books.gate.lock:
            domain = self._domains.get(production)
            if domain is None:
                domain = self._domains[production] = books.new_domain(("profile", object()), "profile", PoolKind.throwaway)
                domain.compact = production.compact
            return domain

    def reading(self, production: Domain) -> Reading:
        """What the throwaway pool that stands for ``production``'s holds."""
        return _reading(self.domain(production))

    def pool_id(self) -> Hashable:
        """Id of the throwaway pool that stands for the ``shared`` one; it is opened now, if it is not yet.

        For graphs of the host engine's that will share their pool with ours: what they leave free there serves ours, in the profile
        as later. They have to be gone when the profile ends.

        Raises:
            IllegalTransition: the profile has ended.
        """
        books = self.books
        with books.gate.lock:
            if books.profile is not self:
                raise books.refuse("pool_id", "the profile has not ended")
            production = books.domains.get(()) or books.new_domain((), "shared", PoolKind.shared)
        domain = self.domain(production)
        with books.gate.lock:
            domain.compact = False  # what the engine's graphs leave is there first
            return domain.open_pool(books).id

    # -- measuring ----------------------------------------------------------------------------------------------------

    @contextmanager
    def measuring(self, entry: Entry) -> Iterator[_Outcome]:
        """Make a sample of the capture of a stand-in inside the block, also of one that fails; none of one that was not begun."""
        books = self.books
        before, memory, started = _reading(entry.domain), books.backend.device_memory(), books.sync.now_ns()
        outcome = _Outcome()
        error: CaptureFailed | LiveAcrossBreak | None = None
        try:
            yield outcome
        except (CaptureFailed, LiveAcrossBreak) as failure:
            if books.lost:
                raise
            error = failure
        seconds = (books.sync.now_ns() - started) / 1e9
        after = _reading(entry.domain)
        self._taken.append(_taken_elsewhere(memory, books.backend.device_memory()))
        sample = Sample(
            component=entry.component.component_id,
            descriptor=repr(entry.descriptor),
            pool_bytes=after.reserved,
            grown_bytes=max(0, after.reserved - before.reserved),
            output_bytes=after.lent_since(before),
            buffer_bytes=static_bytes(books.backend, [entry.statics]),
            seconds=seconds,
            settled=outcome.settled,
            error=None if error is None else str(error),
        )
        self.measured.append(Measured(sample, before, after))
        if error is not None:
            raise error

    def disturb(self, manager: str) -> None:
        """Doubt the estimate: another thread captures for ``manager`` meanwhile; the lock is held."""
        doubt = f"{manager} captured in another thread meanwhile"
        if doubt not in self.doubts:
            self.doubts.append(doubt)

    def watch(self, before: DeviceMemory) -> None:
        """Doubt the estimate if another process has allocated since the device's memory was as ``before``."""
        taken = _taken_elsewhere(before, self.books.backend.device_memory())
        if not self._plausible(taken, LATER_USE):
            self.doubts.append(_of_others(taken))

    def _plausible(self, taken: int, most: int) -> bool:
        """Whether the driver and libraries may have taken that many bytes, at most ``most`` MiB."""
        unit = self.books.backend.mebibyte
        return -GIVEN_BACK * unit <= taken <= most * unit

    def driver_bytes(self) -> int:
        """What one graph takes outside the allocator: the middle of all but the first, which meets every library as the first.

        Never less than earlier profiles saw: a later graph may get what the driver has kept of theirs (fact P8). More than a
        graph takes was another process's, or a library's, and is not remembered.
        """
        books, middle = self.books, int(median(self._taken[1:] or self._taken or [0]))
        if middle <= LATER_USE * books.backend.mebibyte:
            books.driver_bytes = max(books.driver_bytes, middle)
        return max(books.driver_bytes, middle)

    @property
    def seconds(self) -> float:
        """Since the profile began."""
        return (self.books.sync.now_ns() - self._started) / 1e9

    def unsettled(self, name: str) -> str:
        """The doubt about a graph whose warm-up did not settle."""
        return f"the warm-up of {name} did not settle in {self.books.warmup_rounds} rounds"

    def distrust(self) -> tuple[str, ...]:
        """What speaks against an estimate from these samples."""
        reasons = []
        for sample in self.samples:
            name = f"{sample.component}[{sample.descriptor}]"
            if sample.error is not None:
                reasons.append(f"{name} could not be captured: {sample.error}")
            elif not sample.settled:
                reasons.append(self.unsettled(name))
        met: set[str] = set()
        for sample, taken in zip(self.samples, self._taken, strict=True):
            most = LATER_USE if sample.component in met else FIRST_USE
            met.add(sample.component)
            if not self._plausible(taken, most):
                reasons.append(_of_others(taken))
        return (*reasons, *self.doubts)

    def conclude(self) -> None:
        """Estimate from the samples alone: what was captured is what will be."""
        readings = [_reading(domain) for domain in self._domains.values() if domain.live]
        pools, workspaces = sum(each.reserved for each in readings), sum(each.workspaces for each in readings)
        captured = [sample for sample in self.samples if sample.error is None]
        made = [entry.statics for domain in self._domains.values() for entry in domain.entries if entry.state in LIVE]
        backend = self.books.backend
        buffers = static_bytes(backend, made)
        self._estimate = MemoryEstimate(
            lower=pools + buffers,
            upper=pools + buffers,
            parts={"pools": pools - workspaces, "workspaces": workspaces, "buffers": buffers},
            samples=self.samples,
            graphs=len(captured),
            driver=self.driver_bytes() * len(captured),
            lazy=0,
            seconds=self.seconds,
            distrust=self.distrust(),
            rounding=segments_for(static_sizes(backend, made), backend.mebibyte) - buffers,
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def clear(self, undo: UndoLog) -> None:
        """Register what ends the profile: nothing made in it is left."""
        self._clear(undo, self._transactions)

    def _clear(self, undo: UndoLog, transactions: Sequence[ProfileTransaction]) -> None:
        """What is registered last is done first."""
        books, domains = self.books, list(self._domains.values())

        def drop() -> None:
            with books.gate.lock:
                for domain in domains:
                    domain.ended = True
                    books.drop_domain(domain)  # unless the device failed us, and something of it is still there

        def retire() -> None:
            with books.gate.lock:
                for domain in domains:
                    if domain.pool is not None:
                        books.retire_pool(domain.pool)

        def flush() -> None:
            books.reclaimer.flush()

        undo.always("drop the profile's domains", drop)
        undo.always("give the profile's memory back", flush)
        undo.always("wait for what was profiled", books.reclaimer.finish)
        undo.always("retire the profile's pools", retire)
        for transaction in transactions:
            undo.always("drop what was recorded", transaction.abort)
            undo.always("drop what was rehearsed", transaction.kept.clear)


class _Before:
    """What the books knew when a profile began."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._components = {record: set(record.entries) for record in books.components.values()}
        self._dependencies = {name: set(each.components) for name, each in books.dependencies.items()}
        self._domains = set(books.domains.values())
        self._streams = list(books.idle_streams)
        reclaimer = books.reclaimer
        self._counts = reclaimer.reclaims, reclaimer.flushes, reclaimer.flushed_bytes, reclaimer.stalled_ns

    def restore(self) -> None:
        """Forget what was made since."""
        books = self._books
        with books.gate.lock:
            for record in list(books.components.values()):
                for descriptor in record.entries.keys() - self._components.get(record, set()):
                    record.drop(record.entries[descriptor])
                if record not in self._components:
                    del books.components[record.component_id]
            for name in list(books.dependencies):
                if name in self._dependencies:
                    books.dependencies[name].components &= self._dependencies[name]
                else:
                    del books.dependencies[name]
            residency.refresh(books.components.values())
            for domain in set(books.domains.values()) - self._domains:
                books.drop_domain(domain)
            for stream in [stream for stream in books.idle_streams if not any(stream is known for known in self._streams)]:
                books.idle_streams.remove(stream)
                stream.close()
            reclaimer = books.reclaimer
            reclaimer.reclaims, reclaimer.flushes, reclaimer.flushed_bytes, reclaimer.stalled_ns = self._counts


@contextmanager
def profiling(books: Books, *, shut: bool = False) -> Iterator[Profile]:
    """Profile in the block; the manager is PROFILING, and has this thread's captures for nothing else.

    ``shut``: nor for a `Profile.transaction`; the block captures by `Profile.apart` alone.

    Raises:
        IllegalTransition: the manager is not PREPARED, or busy with something of this thread.
        Exception: what the block raised, or else the first error of the cleaning up, which is done in any case.
    """
    with books.exclusive("profile_begin") as thread:

        def end() -> None:
            with books.gate.lock:
                books.profile = None
                if books.state is ManagerState.PROFILING:
                    books.profile_end()

        def clear(undo: UndoLog) -> None:
            undo.always("end the profile", end)
            undo.always("forget what was made in the profile", before.restore)
            profile.clear(undo)

        profile, undo = Profile(books, thread, shut=shut), UndoLog()
        begun = ending = False
        try:
            with books.gate.lock:
                books.check_open("profile_begin")
                if books.inside_call(thread):
                    raise books.refuse("profile_begin", "this thread is not inside a component call", CaptureActive)
                before = _Before(books)
                books.profile_begin()
                begun = True
                books.profile = profile
            books.hear()
            yield profile
            profile.conclude()
            clear(undo)
            ending = True
            undo.succeed()
        except BaseException as error:
            if not begun or (ending and isinstance(error, Exception)):
                raise
            clear_frames(error)
            again = UndoLog()
            clear(again)
            again.fail()
            for step, trouble in again.errors:
                error.add_note(f"while ending the profile, '{step}' raised {describe(trouble)}")
            raise


def _reading(domain: Domain) -> Reading:
    """What the domain's pool, and the home of its workspaces, hold now; nothing where none is open."""
    if domain.pool is None or not domain.live:
        return Reading()
    places = [place.pool.handle for place in (domain, domain.home) if place is not None and place.pool is not None]
    segments = [segment for place in places for segment in place.segments()]
    return Reading(
        small=sum(segment.reserved for segment in segments if segment.small),
        large=sum(segment.reserved for segment in segments if not segment.small),
        small_live=sum(segment.live for segment in segments if segment.small),
        large_live=sum(segment.live for segment in segments if not segment.small),
        workspaces=sum(place.workspace_bytes() for place in places),
    )


def _taken_elsewhere(before: DeviceMemory, after: DeviceMemory) -> int:
    """Bytes that left the device and that the allocator does not have: the driver's, the libraries', or another process's."""
    return (before.free - after.free) - (after.reserved - before.reserved)


def _of_others(taken: int) -> str:
    return f"another process {'took' if taken > 0 else 'gave back'} about {abs(taken)} bytes meanwhile"
