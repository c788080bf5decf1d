"""A transaction: capture all, then bind all, or leave everything as it was (I1).

The explicit captures of a manager, one lazy capture and a profile are all transactions; only the first kind moves the manager's own
machine. A transaction runs in one thread, inside `Books.exclusive`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING

from cgstate.backends.base import Event, Stream
from cgstate.backends.undo import UndoLog
from cgstate.errors import (
    BudgetExceeded,
    CaptureActive,
    CaptureFailed,
    CGStateError,
    ConfigError,
    LiveAcrossBreak,
    WrongThread,
    describe,
)
from cgstate.lifecycle.states import EntryState, FailureKind, PoolState
from cgstate.lifecycle.world import Act
from cgstate.runtime import pinned as pins
from cgstate.runtime import residency, sharing
from cgstate.runtime.capture import Attempt, MakeFunction, Recording, record, record_block
from cgstate.runtime.entry import UNPOOLED, Entry
from cgstate.runtime.failure import clear_frames
from cgstate.runtime.pinned import NOTHING, Baked
from cgstate.runtime.vote import Ballot

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.pool import Pool
    from cgstate.runtime.record import ComponentRecord


class TransactionKind(StrEnum):
    """Who asked for it."""

    explicit = auto()
    lazy = auto()
    profile = auto()


@dataclass(slots=True, eq=False)
class Captured:
    """An entry with its recording, not bound yet.

    Attributes:
        grown: Bytes that its pool grew by the capture; they stay there if it is dropped while others live in the pool (fact S4).
    """

    entry: Entry
    recording: Recording
    buffers: object
    baked: Baked
    grown: int = 0


class GateBusy(Exception):
    """A lazy capture would have had to wait; nothing was changed. Internal: becomes an eager answer."""


class Transaction:
    """Collects recordings, and binds or drops them together.

    Attributes:
        committing: True while it binds; the entry table's ``bind`` asks for it.
        committed: Whether it has bound its recordings.
        captured: The recordings so far, in order of capture.
    """

    __slots__ = ("_block", "_books", "_components", "_failed_once", "_open", "captured", "committed", "committing", "kind")

    def __init__(self, books: Books, kind: TransactionKind) -> None:
        self._books = books
        self.kind = kind
        self.committing = False
        self.committed = False
        self.captured: list[Captured] = []
        self._components: dict[str, ComponentRecord] = {}
        self._open = True
        self._failed_once = False
        self._block: Generator[None] | None = None

    # -- capture ------------------------------------------------------------------------------------------------------

    def capture(
        self,
        entry: Entry,
        make_fn: MakeFunction,
        *,
        stream: object = None,
        pinned: Iterable[object] = (),
        retain: Iterable[object] = (),
    ) -> object:
        """Record a graph for ``entry``; it is bound when the transaction commits.

        Args:
            entry: From `GraphManager.entry`.
            make_fn: Called with ``warmup`` outside the graph, before each warm-up round and once more before the capture; returns
                the function to run. Where that is a generator function it yields each `cgstate.Break`, which runs eagerly at each
                replay, and what lies between them is recorded segment by segment.
            stream: A framework stream to capture on; default: the domain's own. A stream of yours may own library workspaces
                outside the pool, so the domain then keeps its bytes until it is retired as a whole.
            pinned: Tensors that the work uses where they are, and functions that return the tensor that is in a place now. Their
                addresses are baked in; on each replay they are compared, and `StaleBinding` is raised if one has moved. The old
                memory is kept until the entry is evicted.
            retain: What else must live as long as the graph. The recorded function does anyway, with all that it closes over.

        Returns:
            What the recorded function returned: the static output.

        Raises:
            IllegalTransition: the entry, its pool or the gate refuses; nothing was changed.
            CaptureFailed: the capture failed and was undone; the first error is the cause.
            LiveAcrossBreak: it leaves something live across an eager break in which other graphs of its pool replay; it was undone,
                and the transaction goes on.
            ConfigError: ``stream`` is not a stream of this device, or is its default stream.
        """
        if isinstance(entry, Entry) and entry.component.routine is not None:
            raise ConfigError(f"{entry.name} is captured by its component's routine; call capture_and_bind")
        adopted = None if stream is None else self._books.backend.adopt_stream(stream)
        if not isinstance(retain, Iterable):
            raise ConfigError(f"retain must be a sequence of objects, not {retain!r}")
        sources = pins.by_position(self._books.backend, pinned)
        return self.capture_entry(entry, make_fn, stream=adopted, pinned=sources, retain=tuple(retain), retain_function=True).output

    def capture_entry(
        self,
        entry: Entry,
        make: MakeFunction,
        *,
        stream: Stream | None = None,
        pinned: Callable[[], Mapping[str, object]] | None = None,
        retain: tuple[object, ...] = (),
        retain_function: bool = False,
        allocate: Callable[[], object] | None = None,
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
        after: Callable[[], None] | None = None,
    ) -> Recording:
        """`capture` with what a routine adds: its buffers, its context and its clean-up."""
        books = self._books
        if not isinstance(entry, Entry) or not callable(make):
            raise ConfigError(f"capture takes an entry and a function that makes the work, not {entry!r} and {make!r}")
        entry, pool, stream = self._open_attempt(entry, stream)
        before = pool.charged
        undo = UndoLog()
        buffers: object = None
        recording: Recording | None = None
        baking = pins.Baking(books.backend, make, pinned, retain=retain, retain_function=retain_function)
        try:
            self._follow(pool, stream)
            books.backend.keep_generator(undo)  # first: buffers may be made of random numbers, too
            if after is not None:
                undo.always("after_capture", after)
            if allocate is not None:
                with books.backend.on_stream(stream), books.backend.allocating_mode():
                    buffers = entry.buffers = allocate()
                    books.backend.check_static(buffers)
            recording = record(self._attempt(pool, stream), baking, inside(), undo)
            entry.baked = baked = baking.finish()
            sharing.check_recording(entry, recording.graph)
            done = self._inspected(entry, stream, undo)
        except BaseException as error:
            self._undo(error, recording, undo)
            failure = self._failed(entry, pool, buffers, error, undo)
            try:
                if failure is None:
                    raise
                raise failure from error
            finally:
                baking.forget()
                failure = buffers = recording = None  # this frame is part of the traceback: keep nothing alive, make no cycle
        self._recorded(Captured(entry, recording, buffers, baked), pool, before, stream, done)
        return recording

    @contextmanager
    def recording(self, entry: Entry, *, stream: object = None, uses_random: bool = False) -> Iterator[None]:
        """Record what the block does for ``entry``, for engines that open their captures by a ``with`` block of their own.

        As `capture`, without a warm-up: the engine has warmed up whatever the block runs, on the same stream. A replay gives no
        output; the block writes it where the engine finds it.

        Args:
            entry: From `GraphManager.entry`.
            stream: A framework stream to capture on; current in the block. Default: the domain's own.
            uses_random: Whether the block draws random numbers.

        Raises:
            IllegalTransition: the entry, its pool or the gate refuses, before the block; nothing was changed.
            CaptureFailed: the block raised, or the capture failed, and it was undone; the first error is the cause.
            ConfigError: ``entry`` has a routine or is of another manager; or ``stream`` cannot be captured.
        """
        books = self._books
        if not isinstance(entry, Entry) or entry.component.routine is not None:
            raise ConfigError(f"only an entry without a routine can be recorded by a block, not {entry!r}")
        adopted = None if stream is None else books.backend.adopt_stream(stream)
        block, outer = self._record_block(entry, adopted, uses_random), self._block
        self._block = block
        try:
            yield from block
        finally:
            self._block = outer

    def _record_block(self, entry: Entry, stream: Stream | None, uses_random: bool) -> Generator[None]:
        """`recording`, waiting while the block runs; closing it then undoes the capture."""
        books = self._books
        entry, pool, stream = self._open_attempt(entry, stream)
        before = pool.charged
        undo = UndoLog()
        recording: Recording | None = None
        try:
            self._follow(pool, stream)
            books.backend.keep_generator(undo)
            with record_block(self._attempt(pool, stream), undo) as graph:
                yield
            recording = Recording(graph, None, uses_random, settled=True)
            done = self._inspected(entry, stream, undo)
        except BaseException as error:
            self._undo(error, recording, undo)
            failure = self._failed(entry, pool, None, error, undo)
            try:
                if failure is None:
                    raise
                raise failure from error
            finally:
                failure = recording = None  # as in `capture_entry`
        self._recorded(Captured(entry, recording, None, NOTHING), pool, before, stream, done)

    # -- the steps of one attempt ---------------------------------------------------------------------------------------

    def _open_attempt(self, entry: Entry, stream: Stream | None) -> tuple[Entry, Pool, Stream]:
        """Check and begin; the entry that is recorded, its pool and its stream. Nothing is changed if anything refuses."""
        books = self._books
        self._check_open("capture")
        if books.backend.capturing():
            raise books.refuse("capture", "the caller's stream is not capturing", CaptureActive)
        if entry.manager is not books:
            raise ConfigError(f"{entry.name} belongs to another manager")
        entry = self.resolve(entry)
        if stream is not None and not stream.handle:
            raise ConfigError("a capture cannot run on the default stream")
        if self.kind is not TransactionKind.lazy and not entry.component.has_room:
            books.reclaimer.finish()  # a lease that ended meanwhile may have left something to wait for
        books.point("capture_begin")
        pool, stream = self._begin(entry, stream)
        return entry, pool, stream

    def _attempt(self, pool: Pool, stream: Stream) -> Attempt:
        books = self._books
        return Attempt(
            books.backend,
            pool.handle,
            stream,
            books.capture_error_mode,
            prime=not pool.domain.adopted,
            rounds=books.warmup_rounds,
        )

    def _inspected(self, entry: Entry, stream: Stream, undo: UndoLog) -> Event:
        """It was recorded: hold it against the budget, do what is always done, and mark the end of its work."""
        done = stream.record()
        if self.kind is not TransactionKind.profile:
            self._books.budget.inspect(entry)
        undo.succeed()
        return done

    def _undo(self, error: BaseException, recording: Recording | None, undo: UndoLog) -> None:
        """Put everything back and let go of what the error's frames hold."""
        if recording is not None:  # recorded, but the steps that always run have raised: what would undo it is forgotten by now
            undo.on_failure("destroy the graph", recording.graph.destroy)
        undo.fail()
        clear_frames(error, *(problem for _, problem in undo.errors))

    def _recorded(self, captured: Captured, pool: Pool, before: int, stream: Stream, done: Event) -> None:
        """Take a recording in, and let the next capture begin."""
        books, entry = self._books, captured.entry
        books.point("capture_end")
        with books.gate.lock:
            entry.capture_end()
            pool.end()
            pool.turn.disturb(stream, done)
            self.captured.append(captured)
            self._release_gate()
            captured.grown = pool.measure() - before
            books.budget.note(entry, captured.grown, alone=not before)

    def resolve(self, entry: Entry) -> Entry:
        """The entry that is recorded for ``entry``: itself.

        Raises:
            ConfigError: the manager has forgotten it, so that what was bound to it could never be retired.
        """
        record = entry.component
        if self._books.components.get(record.component_id) is not record or record.entries.get(entry.descriptor) is not entry:
            raise ConfigError(f"{entry.name} is forgotten; ask the manager for the entry again")
        return entry

    def _begin(self, entry: Entry, stream: Stream | None) -> tuple[Pool, Stream]:
        """Take the gate and step entry, pool and component; nothing is changed if anything refuses."""
        books = self._books
        gate = books.gate
        thread = books.thread_id()
        with gate.lock:
            books.check_open("capture")
            self._await_gate(thread, entry.domain)
            self._check_break(thread, entry)
            residency.check_capture(entry)
            domain, before = entry.domain, entry.pool
            blocked = books.blocked(entry.component, entry.descriptor, explicit=self.kind is not TransactionKind.lazy)
            owner = getattr(entry, "transaction", self)
            entry.transaction = self
            pool = domain.pool  # a retired generation is followed by a new one
            entry.pool = pool if pool is not None and pool.state not in (PoolState.RETIRED, PoolState.GONE) else UNPOOLED
            try:
                if not entry.may_capture_begin(blocked=blocked):
                    entry.capture_begin(blocked=blocked)  # raises the refusal
                if self.kind is not TransactionKind.profile:
                    books.budget.foresee(entry)
                entry.pool = domain.open_pool(books)
                if stream is None:
                    stream = domain.open_stream(books)
                else:
                    domain.adopted = True
            except BaseException as error:
                entry.pool, entry.transaction = before, owner  # it may hold a recording that is not bound yet
                refusal = isinstance(error, CGStateError) and not isinstance(error, BudgetExceeded)
                if refusal or not isinstance(error, Exception):
                    raise
                raise self._not_begun(entry, error) from error
            entry.capture_begin(blocked=blocked)
            entry.pool.begin()
            gate.holder = thread
            if self.kind is TransactionKind.explicit:
                self.include(entry.component)
            return entry.pool, stream

    def _not_begun(self, entry: Entry, error: Exception) -> CaptureFailed:
        """The budget has no room, or the device gave no pool or no stream; no state has moved. The lock is held."""
        books = self._books
        kind = books.kind_of(error)
        self._failed_once = True
        if self.kind is not TransactionKind.profile:
            books.note_failure(entry, kind, error)
        if kind is FailureKind.DEVICE:
            books.lose_device()
        return CaptureFailed(kind, entry.component.component_id, entry.descriptor)

    def _check_open(self, event: str) -> None:
        """Refuse after the end, after a failure (all are bound, or none: I1), and in a foreign thread."""
        books = self._books
        if not self._open:
            raise books.refuse(event, "the transaction is open")
        if self._failed_once and self.kind is not TransactionKind.profile:
            raise books.refuse(event, "no capture of the transaction failed")
        if books.busy != books.thread_id():
            raise WrongThread(
                f"a transaction of {books.name} runs in one thread, {books.busy}; thread {books.thread_id()} called it"
            )

    def _follow(self, pool: Pool, stream: Stream) -> None:
        """Order the capture stream after replays in flight: warm-up writes library workspaces in the pool, and so do they (W1)."""
        with self._books.gate.lock:
            marks = pool.turn.fence()
        if marks is None:
            raise self._books.refuse("capture", "the stream of the pool's last replay is not capturing", CaptureActive)
        for mark in marks:
            stream.wait(mark)

    def _await_gate(self, thread: int, domain: Domain) -> None:
        """Wait until no other thread captures, destroys, replays in the pool, or is inside a component call; the lock is held.

        Raises:
            GateBusy: the capture is lazy, and those never wait.
        """
        gate = self._books.gate
        try:
            while (
                gate.blocks_capture(thread)
                or gate.pending not in (0, thread)
                or (domain.pool is not None and domain.pool.turn.owner not in (0, thread))
            ):
                if self.kind is TransactionKind.lazy:
                    raise GateBusy
                if not gate.pending:
                    gate.pending = thread
                gate.wait()
        finally:
            if gate.pending == thread:
                gate.pending = 0
                gate.notify()

    def _check_break(self, thread: int, entry: Entry) -> None:
        """Refuse to record into a pool while a call of this thread waits there in an eager break; the lock is held.

        What that call has left there is free for the allocator, which knows nothing of replays: a workspace could be made in it.
        Entries that are declared to replay in the break find nothing left.

        Raises:
            GateBusy: the capture is lazy, and those never wait.
            CaptureActive: the capture is not.
        """
        turn = entry.domain.pool.turn if entry.domain.pool is not None else None
        if turn is None or turn.owner != thread or turn.breaking in (None, entry.component.inside):
            return
        if self.kind is TransactionKind.lazy:
            raise GateBusy
        raise self._books.refuse("capture", "this thread is not inside an eager break of the pool's", CaptureActive)

    def _release_gate(self) -> None:
        gate = self._books.gate
        gate.holder = 0
        gate.notify()

    def include(self, record: ComponentRecord) -> None:
        """Take a component in: it is bound at commit, also if none of its entries are (PURE_LAZY); the lock is held."""
        if record.component_id not in self._components:
            record.begin()
            self._components[record.component_id] = record

    def _exclude(self, record: ComponentRecord) -> None:
        """Let go of a component none of whose entries was recorded, after a refusal; the lock is held."""
        if record.component_id in self._components and not any(each.entry.component is record for each in self.captured):
            del self._components[record.component_id]
            if record.state is EntryState.CAPTURING:
                record.abort()

    def _failed(self, entry: Entry, pool: Pool, buffers: object, error: BaseException, undo: UndoLog) -> CaptureFailed | None:
        """Step everything back after the undo log ran; the error to raise, or None to let ``error`` itself go on."""
        books = self._books
        kind = books.kind_of(error)
        if undo.errors and self._device_lost():
            kind = FailureKind.DEVICE
        refused = isinstance(error, LiveAcrossBreak) and self.kind is not TransactionKind.lazy
        ours = isinstance(error, Exception) and not refused
        self._failed_once = self._failed_once or not refused
        with books.gate.lock:
            if ours:
                entry.capture_fail()
                if self.kind is not TransactionKind.profile:
                    books.note_failure(entry, kind, error)
            else:
                entry.abort()  # neither an interrupt nor a refusal is a failure of the entry
            pool.fail()
            books.retire_attempt(entry, buffers)
            if kind is FailureKind.DEVICE:
                books.lose_device()
            if ours and self.kind is TransactionKind.explicit and entry.component.state is EntryState.CAPTURING:
                entry.component.fail()
            if refused:
                self._exclude(entry.component)
            self._release_gate()
            try:
                pool.measure(failed=True)
            except Exception as problem:
                undo.errors.append(("measure the pool", problem))
        if not ours:
            for step, trouble in undo.errors:
                error.add_note(f"while undoing the capture, '{step}' raised {describe(trouble)}")
            return None
        return CaptureFailed(kind, entry.component.component_id, entry.descriptor, tuple(undo.errors))

    def _device_lost(self) -> bool:
        try:
            return self._books.backend.lost() is not None
        except Exception:
            return False  # it could not be asked; the next call will tell

    # -- the end ------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Bind every recording in one step.

        Raises:
            StaleBinding: memory that an entry has baked in moved since; nothing was bound.
            IllegalTransition: a rank disagreed, or the device was lost meanwhile; nothing was bound.
        """
        books = self._books
        self._check_open("commit")
        if self._block is not None:
            raise books.refuse("commit", "no block is being recorded", CaptureActive)
        for captured in self.captured:
            record = captured.entry.component
            if record.collective and not books.vote.agree(Ballot.commit, record.component_id, captured.entry.descriptor):
                raise books.refuse("commit", "all ranks agree")
        books.point("commit")
        with books.gate.lock, self._audited("commit"):
            books.check_open("commit")
            self._open = False
            self.committing = True
            try:
                for captured in self.captured:
                    if not captured.entry.may_bind():
                        captured.entry.bind()  # raises the refusal; nothing is bound yet
                for captured in self.captured:
                    self._bind(captured)
            finally:
                self.committing = False
            for record in {captured.entry.component.component_id: captured.entry.component for captured in self.captured}.values():
                record.refresh()
                if record.state is EntryState.EVICTED:
                    record.lazy_bind()
            for record in self._components.values():
                if record.state is not EntryState.EVICTED:  # in use when it was taken in, it has lost its last entry since
                    record.commit()
            self.captured.clear()  # the entries own the recordings now
            self.committed = True
            books.gate.notify()

    @contextmanager
    def _audited(self, name: str) -> Iterator[None]:
        """Look at the whole before and after the end of the transaction, if somebody audits (I1); the lock is held."""
        audit = self._books.audit
        if audit is None:
            yield
            return
        entries = frozenset(captured.entry.name for captured in self.captured)
        before = audit.world()
        yield
        audit.transaction_ended(Act(name, entries), before)

    def _bind(self, captured: Captured) -> None:
        entry, recording = captured.entry, captured.recording
        entry.bind()
        entry.load(recording.graph, recording.output, captured.buffers, uses_random=recording.uses_random, baked=captured.baked)
        entry.component.counters.captures += 1
        self._books.negative.forget(entry.component.component_id, entry.descriptor)

    def abort(self) -> None:
        """Drop every recording, leaving all states as they were. Idempotent; does nothing after a commit."""
        books = self._books
        if self._block is not None:
            self._block.close()  # else its capture would stay open: nobody could capture, and what waits for its end would hang
        with books.gate.lock, self._audited("abort"):
            self._open = False
            for captured in self.captured:
                entry = captured.entry
                if entry.state is not EntryState.CAPTURING or entry.transaction is not self:
                    continue  # bound
                entry.abort()
                entry.graph = captured.recording.graph
                entry.pool.wasted += captured.grown
                books.retire_attempt(entry, (captured.buffers, captured.recording.output, captured.baked))
            self.captured.clear()
            for record in self._components.values():
                if record.state is EntryState.CAPTURING:
                    record.abort()
            self._components.clear()
            for pool in list(books.pools):
                books.retire_pool(pool)
            books.gate.notify()
