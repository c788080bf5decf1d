"""A transaction: capture all, then bind all, or leave everything as it was (I1).

The explicit captures of a manager, one lazy capture and a profile are all transactions; only the first kind moves the manager's own
machine. A transaction runs in one thread, inside `Books.exclusive`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum, auto
from typing import TYPE_CHECKING

from cgstate.backends.base import Stream
from cgstate.errors import CaptureActive, ConfigError, WrongThread
from cgstate.lifecycle.states import EntryState
from cgstate.lifecycle.world import Act
from cgstate.runtime import pinned as pins
from cgstate.runtime import sharing
from cgstate.runtime.capture import MakeFunction, Recording, record, record_block
from cgstate.runtime.capturing import Capture
from cgstate.runtime.entry import Entry
from cgstate.runtime.mending import mend
from cgstate.runtime.room import give_back
from cgstate.runtime.vote import Ballot

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.record import ComponentRecord


class TransactionKind(StrEnum):
    """Who asked for it."""

    explicit = auto()
    lazy = auto()
    profile = auto()


class Transaction:
    """Collects recordings, and binds or drops them together.

    Attributes:
        books: The manager's.
        kind: Who asked for it.
        committing: True while it binds; the entry table's ``bind`` asks for it.
        committed: Whether it has bound its recordings.
        captured: The recordings so far, in order of capture.
        evicts: Whether lazy graphs may be evicted for one of its captures: of an explicit one, unless the whole will not fit.
        current: The capture that was begun and has not ended.
        failed: Whether a capture failed, or was interrupted: nothing can be bound any more.
        outvoted: Whether another rank did not agree to its commit.
    """

    __slots__ = (
        "_block",
        "_components",
        "_open",
        "books",
        "captured",
        "committed",
        "committing",
        "current",
        "evicts",
        "failed",
        "kind",
        "outvoted",
    )

    def __init__(self, books: Books, kind: TransactionKind) -> None:
        self.books = books
        self.kind = kind
        self.committing = False
        self.committed = False
        self.captured: list[Capture] = []
        self.evicts = self.explicit
        self.current: Capture | None = None
        self.failed = False
        self.outvoted = False
        self._components: dict[str, ComponentRecord] = {}
        self._open = True
        self._block: Generator[None] | None = None

    @property
    def explicit(self) -> bool:
        """Whether the manager's own machine moves with it."""
        return self.kind is TransactionKind.explicit

    @property
    def lazy(self) -> bool:
        """Whether a miss asked for it, which never waits."""
        return self.kind is TransactionKind.lazy

    @property
    def profiles(self) -> bool:
        """Whether it only measures: nothing of it is bound, and no failure remembered."""
        return self.kind is TransactionKind.profile

    @property
    def teaches(self) -> bool:
        """Whether the budget remembers what its captures took."""
        return True

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
                addresses and layouts are baked in; on each replay they are compared, and `StaleBinding` is raised if one has moved
                or is another view of its memory. The old memory is kept until the entry is evicted.
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
        adopted = None if stream is None else self.books.backend.adopt_stream(stream)
        if not isinstance(retain, Iterable):
            raise ConfigError(f"retain must be a sequence of objects, not {retain!r}")
        sources = pins.by_position(self.books.backend, pinned)
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
        books = self.books
        if not isinstance(entry, Entry) or not callable(make):
            raise ConfigError(f"capture takes an entry and a function that makes the work, not {entry!r} and {make!r}")
        baking = pins.Baking(books.backend, make, pinned, retain=retain, retain_function=retain_function)
        capture = self._prepared(entry, stream)
        entry, undo = capture.entry, capture.undo
        try:
            capture.begin(stream)
            capture.follow()
            books.backend.keep_generator(undo)  # first: buffers may be made of random numbers, too
            if after is not None:
                undo.always("after_capture", after)
            if allocate is not None:
                undo.on_failure("let the caller's stream wait for the capture stream", capture.lead)
                with books.backend.allocating_mode():
                    capture.buffers = entry.buffers = allocate()
                    books.backend.check_static(capture.buffers)
            capture.recording = record(capture.attempt, baking, inside(), undo)
            entry.baked = capture.baked = baking.finish()
            sharing.check_recording(entry, capture.made.graph)
            capture.share_turn()
            self._take(capture)
        except BaseException as error:
            failure = capture.fail(error) if self.current is capture else None
            try:
                if failure is None:
                    raise
                raise failure from error
            finally:
                baking.forget()
                failure = None  # this frame is part of the traceback: keep nothing alive, make no cycle
        return capture.made

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
        books = self.books
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
        capture = self._prepared(entry, stream)
        try:
            capture.begin(stream)
            capture.follow()
            self.books.backend.keep_generator(capture.undo)
            with record_block(capture.attempt, capture.undo) as graph:
                yield
            capture.recording = Recording(graph, None, uses_random, settled=True, autocast=self.books.backend.autocast())
            self._take(capture)
        except BaseException as error:
            failure = capture.fail(error) if self.current is capture else None
            try:
                if failure is None:
                    raise
                raise failure from error
            finally:
                failure = None

    # -- the steps of one capture -------------------------------------------------------------------------------------

    def _take(self, capture: Capture) -> None:
        """It was recorded: end it, and give back what went to make room for it. A miss binds it before observers are heard."""
        capture.inspect()
        capture.end()
        if capture.made_room:
            give_back(self.books)
        if not self.lazy:
            self.books.hear()

    def _prepared(self, entry: Entry, stream: Stream | None) -> Capture:
        """A capture that can be begun, as far as the transaction knows. Nothing is changed."""
        books = self.books
        self._check_open("capture")
        if books.backend.capturing():
            raise books.refuse("capture", "the caller's stream is not capturing", CaptureActive)
        if entry.manager is not books:
            raise ConfigError(f"{entry.name} belongs to another manager")
        entry = self.resolve(entry)
        if stream is not None and not stream.handle:
            raise ConfigError("a capture cannot run on the default stream")
        if not self.lazy and not entry.component.has_room:
            books.reclaimer.finish()  # a lease that ended meanwhile may have left something to wait for
        books.point("capture_begin")
        return Capture(self, entry)

    def resolve(self, entry: Entry) -> Entry:
        """The entry that is recorded for ``entry``: itself.

        Raises:
            ConfigError: the manager has forgotten it, so that what was bound to it could never be retired.
        """
        record = entry.component
        if self.books.components.get(record.component_id) is not record or record.entries.get(entry.descriptor) is not entry:
            raise ConfigError(f"{entry.name} is forgotten; ask the manager for the entry again")
        return entry

    def _check_open(self, event: str) -> None:
        """Refuse after the end, after a failure (all are bound, or none: I1), and in a foreign thread."""
        books = self.books
        if not self._open:
            raise books.refuse(event, "the transaction is open")
        if self.failed and not self.profiles:
            raise books.refuse(event, "no capture of the transaction failed")
        if books.busy != books.thread_id():
            raise WrongThread(
                f"a transaction of {books.name} runs in one thread, {books.busy}; thread {books.thread_id()} called it"
            )

    def include(self, record: ComponentRecord) -> None:
        """Take a component in: it is bound at commit, also if none of its entries are (PURE_LAZY); the lock is held."""
        if record.component_id not in self._components:
            record.begin()
            self._components[record.component_id] = record

    def entered(self, record: ComponentRecord) -> None:
        """A capture of the component was begun; the lock is held."""
        if self.explicit:
            self.include(record)

    def exclude(self, record: ComponentRecord) -> None:
        """Let go of a component none of whose entries was recorded, after a refusal; the lock is held."""
        if record.component_id in self._components and not any(each.entry.component is record for each in self.captured):
            if record.state is EntryState.CAPTURING:
                record.abort()
            del self._components[record.component_id]

    # -- the end ------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Bind every recording in one step.

        Raises:
            StaleBinding: memory that an entry has baked in moved since; nothing was bound.
            IllegalTransition: a rank disagreed, or the device was lost meanwhile; nothing was bound.
        """
        books = self.books
        self._check_open("commit")
        if self._block is not None:
            raise books.refuse("commit", "no block is being recorded", CaptureActive)
        for captured in self.captured:
            record = captured.entry.component
            if record.collective and not books.vote.agree(Ballot.commit, record.component_id, captured.entry.descriptor):
                self.outvoted = True
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
                try:
                    self._bind_all()
                except Exception:
                    raise
                except BaseException:  # an interrupt: all are bound, or none (I1)
                    self._bind_all()
                    raise
            finally:
                self.committing = False
            books.gate.notify()

    def _bind_all(self) -> None:
        """Bind every recording; goes on where it was broken off. The lock is held."""
        for captured in self.captured:
            self._bind(captured)
        for component in {captured.entry.component.component_id: captured.entry.component for captured in self.captured}.values():
            component.refresh()
            if component.state is EntryState.EVICTED:
                component.lazy_bind()
        for component in self._components.values():
            if component.state is not EntryState.EVICTED:  # in use when it was taken in, it has lost its last entry since
                component.commit()
        self.committed = True
        self.captured.clear()  # the entries own the recordings now

    def _bind(self, captured: Capture) -> None:
        entry, recording = captured.entry, captured.made
        if entry.state is EntryState.CAPTURING:
            entry.bind()
            entry.component.counters.captures += 1
        entry.load(recording, captured.buffers, captured.baked)
        self.books.negative.forget(entry.component.component_id, entry.descriptor)

    @contextmanager
    def _audited(self, name: str) -> Iterator[None]:
        """Look at the whole before and after the end of the transaction, if somebody audits (I1); the lock is held."""
        audit = self.books.audit
        if audit is None:
            yield
            return
        entries = frozenset(captured.entry.name for captured in self.captured)
        try:
            before = audit.world()
        except Exception:
            if name == "abort":  # cannot be kept from its end
                yield
            raise
        yield
        audit.transaction_ended(Act(name, entries), before)

    @property
    def aborted(self) -> bool:
        """Whether its recordings were dropped."""
        return not self._open and not self.committed

    def abort(self) -> None:
        """Drop every recording, leaving all states as they were. Idempotent; does nothing after a commit."""
        if self._block is not None:
            self._block.close()  # else its capture would stay open: nobody could capture, and what waits for its end would hang
        try:
            self._drop()
        except Exception:
            raise
        except BaseException:  # an interrupt
            self._drop()
            with self.books.gate.lock:
                mend(self.books)
            raise

    def _drop(self) -> None:
        """`abort`; goes on where it was broken off."""
        books = self.books
        if self.current is not None:  # an interrupt kept it from its end
            self.current.give_up()
        with books.gate.lock, self._audited("abort"):
            self._open = False
            for captured in self.captured:
                entry, recording = captured.entry, captured.made
                if entry.state is EntryState.CAPTURING and entry.transaction is self:
                    entry.abort()
                    entry.graph = recording.graph
                    entry.pool.drops += 1
                    entry.pool.wasted += captured.grown
                if entry.graph is recording.graph and entry.state not in BOUND:
                    books.retire_attempt(entry, (captured.buffers, recording.output, captured.baked))
            while self.captured:
                self.captured.pop().forget()
            for component in self._components.values():
                if component.state is EntryState.CAPTURING:
                    component.abort()
            self._components.clear()
            for pool in list(books.pools):
                books.retire_pool(pool)
            books.gate.notify()


BOUND = frozenset({EntryState.BOUND, EntryState.REPLAYING})
