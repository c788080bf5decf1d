"""A capture that was begun: what moves when it begins, and how it ends, recorded or stepped back.

Whatever it ends by, an interrupt included, the transaction knows the capture from before the first step to after the last one. So
what an interrupt has broken off is ended by whoever leaves the transaction, and every step here may be said again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import TYPE_CHECKING

from cgstate.backends.base import Event, Stream
from cgstate.backends.undo import UndoLog
from cgstate.errors import BudgetExceeded, CaptureActive, CaptureFailed, CGStateError, ConfigError, LiveAcrossBreak, describe
from cgstate.lifecycle.states import EntryState, FailureKind, PoolKind, PoolState
from cgstate.runtime import residency
from cgstate.runtime.capture import Attempt, Recording
from cgstate.runtime.compact import FirstBlock
from cgstate.runtime.entry import UNPOOLED
from cgstate.runtime.failure import clear_frames
from cgstate.runtime.pinned import NOTHING, Baked
from cgstate.runtime.room import await_bytes, may_retire, retire_bytes

if TYPE_CHECKING:
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.pool import Pool
    from cgstate.runtime.transaction import Transaction


class GateBusy(Exception):
    """A lazy capture would have had to wait; nothing was changed. Internal: becomes an eager answer."""


class TurnsApart(ConfigError):
    """A lazy capture has static inputs that it cannot share; the routine is not to blame. Internal: becomes an eager answer."""


def _has_turn(entry: Entry) -> bool:
    """Whether it has a recording, bound or to be bound, which keeps the turn that its pool has."""
    return entry.graph is not None or entry.recorded


class Capture:
    """One capture of a transaction, from its beginning to its end.

    Attributes:
        entry: What is recorded.
        pool: Where.
        stream: The capture stream.
        undo: What has to be put back if it fails.
        buffers: The static inputs, once they are made.
        recording: What was recorded; None before, and after it failed.
        baked: What the recording has baked in.
        charged: Bytes charged for the pool when it began.
        grown: Bytes that the pool grew by it; they stay there if it is dropped while others live in the pool (fact S4).
        done: Marks the end of its work, once it is recorded.
        in_pool: Whether its pool is RECORDING for it.
        made_room: Whether lazy graphs were retired for it once it was recorded.
    """

    __slots__ = (
        "_books",
        "_transaction",
        "baked",
        "buffers",
        "charged",
        "done",
        "entry",
        "grown",
        "in_pool",
        "made_room",
        "pool",
        "recording",
        "stream",
        "undo",
    )

    pool: Pool
    stream: Stream

    def __init__(self, transaction: Transaction, entry: Entry) -> None:
        self._transaction = transaction
        self._books = transaction.books
        self.entry = entry
        self.undo = UndoLog()
        self.buffers: object = None
        self.recording: Recording | None = None
        self.baked: Baked = NOTHING
        self.charged = 0
        self.grown = 0
        self.done: Event | None = None
        self.in_pool = False
        self.made_room = False

    @property
    def made(self) -> Recording:
        """The recording, of a capture that ended well."""
        assert self.recording is not None, "asked only of the recordings of a transaction"
        return self.recording

    # -- the beginning ------------------------------------------------------------------------------------------------

    def begin(self, stream: Stream | None) -> None:
        """Take the gate and step entry, pool and component; nothing is changed if anything refuses.

        If it is the budget alone that refuses an explicit capture, lazy graphs are evicted first.

        Raises:
            IllegalTransition: the entry, its pool or the gate refuses.
            ConfigError: as `Domain.check_adoption`.
            CaptureFailed: the budget has no room, or the device gave no pool or no stream.
        """
        books, entry = self._books, self.entry
        below = books.budget.below(entry.component, entry.descriptor)
        if not self._begin(stream, below, may_evict=self._transaction.evicts):
            with books.gate.lock:
                need = books.budget.need(entry.component, entry.descriptor, below)
            await_bytes(books, need, (entry.domain,))
            self._begin(stream, below)

    def _begin(self, stream: Stream | None, below: Collection[Hashable], *, may_evict: bool = False) -> bool:
        """`begin`; False if the budget refuses, and ``may_evict``: nothing was changed."""
        books, entry, transaction = self._books, self.entry, self._transaction
        gate = books.gate
        thread = books.thread_id()
        with gate.lock:
            books.check_open("capture")
            if not transaction.profiles:
                books.refuse_in_profile(thread)  # it may have begun inside the transaction
            self._await_gate(thread, entry.domain)
            self._check_break(thread)
            residency.check_capture(entry)
            domain, before = entry.domain, entry.pool
            blocked = books.blocked(entry.component, entry.descriptor, explicit=not transaction.lazy)
            owner = getattr(entry, "transaction", transaction)
            entry.transaction = transaction
            pool = domain.pool  # a retired generation is followed by a new one
            entry.pool = pool if pool is not None and pool.state not in (PoolState.RETIRED, PoolState.GONE) else UNPOOLED
            try:
                if not entry.may_capture_begin(blocked=blocked):
                    entry.capture_begin(blocked=blocked)  # raises the refusal
                if stream is not None:
                    domain.check_adoption(books, stream)
                if not transaction.profiles:
                    books.budget.foresee(entry, below)
                self.pool = entry.pool = domain.open_pool(books)
                if stream is None:
                    self.stream = domain.open_stream(books)
                else:
                    self.stream = stream
                    domain.adopted.add(stream.handle)
            except BaseException as error:
                entry.pool, entry.transaction = before, owner  # it may hold a recording that is not bound yet
                if may_evict and isinstance(error, BudgetExceeded):
                    return False
                refusal = isinstance(error, CGStateError) and not isinstance(error, BudgetExceeded)
                if refusal or not isinstance(error, Exception):
                    raise
                raise self._not_begun(error) from error
            self.charged = self.pool.charged
            transaction.current = self  # first: from here on it has to end
            entry.capture_begin(blocked=blocked)
            self.pool.begin()
            self.in_pool = True
            gate.holder = thread
            transaction.entered(entry.component)
            for each in gate.managers:
                if each.profile is not None and each.profile.thread != thread:
                    each.profile.disturb(books.name)
        return True

    def _not_begun(self, error: Exception) -> CaptureFailed:
        """The budget has no room, or the device gave no pool or no stream; no state has moved. The lock is held."""
        books, entry = self._books, self.entry
        kind = books.kind_of(error)
        self._transaction.failed = True
        if not self._transaction.profiles:
            books.note_failure(entry, kind, error)
        if kind is FailureKind.DEVICE:
            books.lose_device()
        return CaptureFailed(kind, entry.component.component_id, entry.descriptor)

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
                if self._transaction.lazy:
                    raise GateBusy
                if not gate.pending:
                    gate.pending = thread
                gate.wait()
        finally:
            if gate.pending == thread:
                gate.pending = 0
                gate.notify()

    def _check_break(self, thread: int) -> None:
        """Refuse to record into a pool while a call of this thread waits there in an eager break; the lock is held.

        What that call has left there is free for the allocator, which knows nothing of replays: a workspace could be made in it.
        Entries that are declared to replay in the break find nothing left.

        Raises:
            GateBusy: the capture is lazy, and those never wait.
            CaptureActive: the capture is not.
        """
        entry = self.entry
        turn = entry.domain.pool.turn if entry.domain.pool is not None else None
        if turn is None or turn.owner != thread or turn.breaking in (None, entry.component.inside):
            return
        if self._transaction.lazy:
            raise GateBusy
        raise self._books.refuse("capture", "this thread is not inside an eager break of the pool's", CaptureActive)

    # -- in between ---------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Order the capture stream after replays in flight: warm-up writes library workspaces in the pool, and so do they (W1).

        Raises:
            CaptureActive: the stream of the pool's last replay is capturing.
        """
        with self._books.gate.lock:
            marks = self.pool.turn.fence()
        if marks is None:
            raise self._books.refuse("capture", "the stream of the pool's last replay is not capturing", CaptureActive)
        for mark in marks:
            self.stream.wait(mark)

    def lead(self) -> None:
        """Order the caller's stream after the capture stream.

        Static inputs are memory of the caller's stream, where a segment serves many graphs: a stream has segments of its own (fact
        P4), 20 MiB each. What is freed of them after a failed warm-up is taken again by the caller's next work, which must not
        come before the end of that.
        """
        self._books.backend.current_stream().wait(self.stream.record())

    @property
    def attempt(self) -> Attempt:
        """Where and how it is recorded."""
        books = self._books
        return Attempt(
            books.backend,
            self.pool.handle,
            self._workspaces.handle,
            self.stream,
            books.capture_error_mode,
            prime=not self.pool.domain.adopted,
            rounds=books.warmup_rounds,
            first_block=self._first_block(),
            expect=self._expect if self._would_stay() else None,
        )

    def _would_stay(self) -> bool:
        """Whether there is a budget, and what the capture grows stays charged if it is refused afterwards (fact S4).

        Asks the component's order: what is smaller than a graph that is bound finds its place in what that one has freed. Of
        collective work no rank may run more than others.
        """
        books, entry, domain = self._books, self.entry, self.pool.domain
        if books.budget.limit is None or self._transaction.profiles or domain.adopted or entry.component.collective:
            return False
        with books.gate.lock:
            stays = self.pool.kind is PoolKind.foreign or any(each.graph is not None for each in domain.entries)
            larger = entry.component.available if stays else ()
        return stays and not any(entry.component.smaller((entry.descriptor,), each) for each in larger)

    def _expect(self, taken: Callable[[], int]) -> None:
        """It was warmed up: refuse what will not fit, as long as the pool has not grown by it.

        Only where all that is cached now would not fit either, ``taken`` is asked: that is one more round.

        Raises:
            BudgetExceeded: it will not fit, whoever is evicted.
        """
        books = self._books
        cached = sum(view.reserved for view in books.backend.cached_segments(self.stream))
        free = sum(view.reserved - view.live for view in self.pool.handle.segments() if view.stream == self.stream.handle)
        if books.budget.allows(cached - free):
            return
        grown = taken() - free
        try:
            books.budget.expect(self.entry, max(0, grown))
        except BudgetExceeded:
            if self._transaction.evicts and may_retire(self.entry, grown):
                return
            books.backend.flush()
            raise

    @property
    def _workspaces(self) -> Pool:
        """Where the workspaces of the capture stream are, or will be."""
        home = self.pool.domain.home
        return self.pool if home is None or home.pool is None else home.pool

    def _measure_home(self) -> None:
        """Charge for the workspaces, where they are not in the pool itself; the lock is held."""
        home = self.pool.domain.home
        if home is not None:
            home.measure()

    def _first_block(self) -> FirstBlock | None:
        """What gives the pool its first block, if it is fresh and may have one."""
        entry, domain = self.entry, self.pool.domain
        if self.charged or not self._books.compact or not domain.compact or domain.adopted:
            return None
        record = entry.component
        may_search = not self._transaction.lazy and not record.collective
        return FirstBlock(record.blocks, entry.descriptor, may_search, self._common_block)

    @property
    def _common_block(self) -> int:
        """Bytes of a first block for the whole set, if it is that which is being captured."""
        return 0 if self.charged or self._transaction.lazy else self.entry.component.common_blocks.get(self.entry.descriptor, 0)

    def share_turn(self) -> None:
        """Take turns with the graphs of other pools that read the same static inputs, such as slices of one large tensor.

        Each call writes them, so that a call of one graph must not overlap a replay of the other (I5).

        Raises:
            ConfigError: the pool has graphs already that take turns of their own, or two others do. No call fails for that: a lazy
                capture is REJECTED.
        """
        if self.buffers is None or self._transaction.profiles:
            return
        books, entry, pool = self._books, self.entry, self.pool
        backend, gate = books.backend, books.gate
        pinned = backend.storages(entry.statics.pinned)
        storages = {key for key, size in backend.storages(self.buffers).items() if size and key not in pinned}
        with gate.lock:
            turns = {turn for key in storages if (turn := gate.statics.get(key)) is not None and turn is not pool.turn}
            if len(turns) == 1 and not any(other.pool is pool and _has_turn(other) for other in pool.domain.entries):
                (pool.turn,) = turns
            elif turns and any(
                _has_turn(other) and other.pool.turn in turns and storages & backend.storages(other.buffers).keys()
                for manager in gate.managers
                for other in manager.entries()
            ):
                refusal = TurnsApart if self._transaction.lazy else ConfigError
                raise refusal(
                    f"static inputs of {entry.name} are in memory that graphs of another pool read, and the graphs of its own pool "
                    "do not take turns with those: let all share one pool, or give it static inputs of its own"
                )
            gate.statics.update(dict.fromkeys(storages, pool.turn))

    def inspect(self) -> None:
        """It was recorded: hold it against the budget, do what is always done, and mark the end of its work.

        Where it does not fit, an explicit capture retires lazy graphs; it is for `Transaction` to give them back.

        Raises:
            BudgetExceeded: it does not fit.
            BaseException: a step that is always done raised.
        """
        self.done = self.stream.record()
        with self._books.gate.lock:
            self._measure_home()
        if not self._transaction.profiles:
            self._weigh()
        self.undo.succeed()

    def _weigh(self) -> None:
        try:
            self._books.budget.inspect(self.entry)
        except BudgetExceeded:
            if not self._transaction.evicts or not retire_bytes(self.entry):
                raise
            self.made_room = True

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether its entry is still CAPTURING, by this capture, and not recorded."""
        entry = self.entry
        return entry.state is EntryState.CAPTURING and entry.transaction is self._transaction and not entry.recorded

    def end(self) -> None:
        """It was recorded: the recording is the transaction's, and the next capture may begin."""
        books, entry, transaction = self._books, self.entry, self._transaction
        books.point("capture_end")
        with books.gate.lock:
            if self.open:
                entry.capture_end()
            if self.in_pool:
                self.pool.end()
                self.in_pool = False
            if self.done is not None:
                self.pool.turn.disturb(self.stream, self.done)
            if self not in transaction.captured:
                transaction.captured.append(self)
            self._release_gate()
            self.grown = self.pool.measure() - self.charged
            if transaction.teaches and not self._common_block:  # alone it takes less
                books.budget.note(entry, self.grown, alone=not self.charged)
            transaction.current = None

    def fail(self, error: BaseException) -> CaptureFailed | None:
        """Put everything back after the first error, also one that came after the recording.

        Returns:
            The error to raise instead; None if ``error`` itself goes on.
        """
        if self.entry.recorded and not self.open:  # an interrupt in `end`: the transaction has the recording, and drops it
            self._transaction.failed = True
            self.end()
            return None
        self._undo()
        clear_frames(error, *(problem for _, problem in self.undo.errors))
        return self._step_back(error)

    def give_up(self) -> None:
        """End it without a recording that is bound: after an interrupt while it was ended, or if nothing was to be recorded."""
        if self.entry.recorded and not self.open:
            self.end()
        else:
            self._undo()
            self._step_back(None)

    def _undo(self) -> None:
        """Put everything back, newest first."""
        if self.recording is not None:  # the steps that always run have raised: what would undo it is forgotten by now
            self.undo.on_failure("destroy the graph", self.recording.graph.destroy)
            self.recording = None
        self.undo.fail()

    def _step_back(self, error: BaseException | None) -> CaptureFailed | None:
        """Step everything back after the undo log ran; the error to raise, or None to let ``error`` itself go on."""
        books, entry, transaction = self._books, self.entry, self._transaction
        errors = self.undo.errors
        kind = FailureKind.USER if error is None else books.kind_of(error)
        if isinstance(error, TurnsApart):
            kind = FailureKind.REJECTED
        if errors and self._device_lost():
            kind = FailureKind.DEVICE
        refused = isinstance(error, LiveAcrossBreak) and not transaction.lazy
        ours = isinstance(error, Exception) and not refused
        transaction.failed = transaction.failed or not refused
        with books.gate.lock:
            if self.open:
                if ours:
                    entry.capture_fail()
                else:
                    entry.abort()  # neither an interrupt nor a refusal is a failure of the entry
                if ours and error is not None and not transaction.profiles:
                    books.note_failure(entry, kind, error)
            if self.in_pool:
                self.pool.fail()
                self.in_pool = False
            if books.reclaimer.lacks(entry):
                books.retire_attempt(entry, self.buffers)
            if kind is FailureKind.DEVICE:
                books.lose_device()
            if ours and transaction.explicit and entry.component.state is EntryState.CAPTURING:
                entry.component.fail()
            if refused:
                transaction.exclude(entry.component)
            self._release_gate()
            for measure in (self._measure_home, partial(self.pool.measure, failed=True)):
                try:
                    measure()
                except Exception as problem:
                    errors.append(("measure the pool", problem))
            transaction.current = self.buffers = None
        if ours:
            return CaptureFailed(kind, entry.component.component_id, entry.descriptor, tuple(errors))
        if error is not None:
            for step, trouble in errors:
                error.add_note(f"while undoing the capture, '{step}' raised {describe(trouble)}")
        return None

    def forget(self) -> None:
        """It was dropped: keep nothing alive for those who still have the frames that recorded it, such as an error's."""
        self.buffers = self.recording = None
        self.baked = NOTHING

    def _release_gate(self) -> None:
        """It was this thread's; it is free, and perhaps another one's already if this is said again."""
        gate = self._books.gate
        if gate.holder == self._books.thread_id():
            gate.holder = 0
        gate.notify()

    def _device_lost(self) -> bool:
        try:
            return self._books.backend.lost() is not None
        except Exception:
            return False  # it could not be asked; the next call will tell
