"""How a component call is answered: by a graph, or eagerly with a reason (I9).

A call resolves on the host first. A hit then takes a lease and the pool's turn in one locked section, writes its inputs, replays
and clones, and gives both back in a second one. Everything else is eager and counted; eager is never a silent retry of a failed
replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from cgstate.errors import CaptureActive, IllegalTransition, ManagerPoisoned, NotResident
from cgstate.lifecycle.states import ManagerState
from cgstate.lifecycle.steps import EntryState_BOUND
from cgstate.routine import Routine, resolves_by_shape
from cgstate.runtime import leasing, pinned, residency
from cgstate.runtime.lazy import capture_on_miss
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.stats import Fallback

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import AnyRoutine, ComponentRecord, Found

log = logging.getLogger("cgstate")

Args: TypeAlias = tuple[object, ...]
Kwargs: TypeAlias = Mapping[str, object]

MEMORY = 1024
"""How many shapes of calls are remembered of a component; beyond, it starts anew."""


class Caller:
    """What answers the calls of one component: `hotpath.call` finds here what it needs, and the ways out of the ordinary."""

    __slots__ = (
        "acquire_lock",
        "autocasting",
        "backend",
        "books",
        "by_shape",
        "capturing",
        "careful",
        "clone",
        "copy",
        "copy_all",
        "current_handle",
        "exclusive",
        "gate",
        "grad_enabled",
        "index",
        "output",
        "point",
        "record",
        "release_lock",
        "resolve",
        "routine",
        "summary_every",
        "tensor",
        "thread_id",
        "ticks",
    )

    def __init__(self, record: ComponentRecord, routine: AnyRoutine, *, clone: bool) -> None:
        books = record.manager
        self.record = record
        self.routine = routine
        self.books = books
        self.backend = books.backend
        self.gate = books.gate
        self.current_handle = books.backend.current_handle
        self.index = books.backend.index
        self.capturing = books.backend.capturing
        self.grad_enabled = books.backend.grad_enabled
        self.autocasting = books.backend.autocasting
        self.acquire_lock = books.gate.lock.acquire
        self.release_lock = books.gate.lock.release
        self.thread_id = books.thread_id
        self.clone: Callable[[object], object] | None = books.backend.clone if clone else None
        self.tensor = books.backend.tensor
        self.resolve = routine.resolve_runtime
        self.by_shape = resolves_by_shape(routine)
        self.copy = pinned.copying(record, routine)
        self.copy_all = routine.copy_exact_inputs
        self.output = routine.output_after_replay
        self.exclusive = not record.overlaps_capture
        self.summary_every = books.summary_every
        self.ticks = record.allows_lazy  # whether anybody asks how recently an entry was used
        self.point = books.sync.point
        inherited = type(routine).validate_runtime_inputs is Routine.validate_runtime_inputs
        self.careful = books.owner_thread != 0 or not inherited

    def look_first(self, args: Args, kwargs: Kwargs) -> None:
        """Refuse a foreign thread; let the routine refuse the inputs, but not of a call that is being recorded."""
        if self.books.owner_thread:
            self.books.check_thread(self.thread_id())
        if not self.capturing():
            self.routine.validate_runtime_inputs(*args, **kwargs)

    def would_record(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether autograd would record the call."""
        return self.backend.requires_grad((args, kwargs, tuple(self.routine.parameters())))

    def casts_otherwise(self, entry: Entry) -> bool:
        """Whether this thread's autocast is not the one that the entry was captured under; the lock is held."""
        return self.backend.autocast() != entry.autocast

    def find(self, args: Args, kwargs: Kwargs) -> Found:
        """What the routine says to a call, and the graph that there is for that."""
        record = self.record
        known = record.known  # before the snapshot: what is noted there is never of an older one
        look = self._look(args) if self.by_shape and not kwargs else None
        found = None if look is None else known.get(look)
        if found is None:
            key, descriptor, exact = self.resolve(args, kwargs, record.available)
            found = key, descriptor, exact, None if descriptor is None else record.entries.get(descriptor)
            if look is not None:
                if len(known) >= MEMORY:
                    known.clear()
                known[look] = found
        return found

    def _look(self, args: Args) -> Hashable | None:
        """Shapes and dtypes, as `hotpath.call` asks for those of a single plain tensor; None where an argument is no tensor."""
        tensor = self.tensor
        if not all(isinstance(value, tensor) for value in args):
            return None
        each = [(value.shape, value.dtype) for value in cast("tuple[Any, ...]", args)]
        return each[0] if len(each) == 1 else tuple(each)

    def miss(self, key: Hashable, args: Args, kwargs: Kwargs) -> Entry | Fallback:
        """The entry that a lazy capture made for this call, or why there is none."""
        try:
            return capture_on_miss(self.record, self.routine, args, kwargs, key)
        except BaseException as error:
            self.books.hear(error)
            raise

    def enter(self, entry: Entry, thread: int) -> Fallback | None:
        """Take lease and turn, with the lock held; the reason to run eagerly if that is refused, with nothing taken."""
        gate = self.gate
        while True:
            if self.casts_otherwise(entry):
                return Fallback.autocast
            if leasing.recording(entry, thread) or (self.exclusive and gate.blocks_calls(thread)):
                gate.wait()
            elif owner := leasing.in_the_way(entry, thread):
                if not gate.wait_for(thread, owner):
                    return Fallback.turn_held
            else:
                break
        if not gate.free and gate.holder == thread:
            return Fallback.in_capture  # warming up: the work runs as it will when it is recorded
        try:
            entry.acquire(stream_capturing=False)
        except NotResident:
            return Fallback.unavailable  # eager needs the memory as well: `by_eager` refuses, and names what is missing
        except IllegalTransition:
            if gate.dropped:
                gate.end_dropped()
                return self.enter(entry, thread)
            return self._why_not()
        try:
            if self.record.state is EntryState_BOUND:
                self.record.first_lease()
            leasing.take_turn(entry, thread, exclusive=self.exclusive)
        except BaseException as error:
            entry.release()
            leasing.ended(entry)
            if isinstance(error, CaptureActive):
                return Fallback.turn_held
            self.books.judge(error)
            self.books.overhear(error)
            raise
        return None

    def lend_out(self, value: object, entry: Entry, thread: int) -> object:
        """Hand out the static output itself, under the call's lease, and give the turn back; the lock is held."""
        return LeasedOutput.of(value, entry, thread)

    def failed(self, entry: Entry, error: BaseException, *, launching: bool) -> None:
        """Something raised in the turn: only the launch itself fails the entry, and an eager break is none of it.

        Whoever was interrupted in here may say it again; nothing is done to a call that has given back what it had.
        """
        thread = self.thread_id()
        with self.gate.lock:
            if launching and not leasing.in_break(entry):
                leasing.fail_call(entry, thread, error)
            else:
                leasing.end_call(entry, thread)
        self.books.notice(error)
        self.books.settle(error)

    def settle(self, answer: object) -> None:
        """Settle behind a call; a leased answer that nobody gets then is given back."""
        try:
            self.books.settle()
        except BaseException as error:
            if isinstance(answer, LeasedOutput):
                answer.__exit__(type(error), error, None)
            raise

    def count_answer(self) -> None:
        """One more call answered by a graph; every `summary_every` of them, one line of counts."""
        record = self.record
        with self.gate.lock:
            record.answered += 1
            due = record.answered % self.summary_every == 0
        if due:
            self.log_summary()

    def log_summary(self) -> None:
        """One line of counts."""
        record = self.record
        log.info("%s: %s: %s", self.books.name, record.component_id, record.counters.snapshot(record.live_hits).summary())

    def _why_not(self) -> Fallback:
        manager = self.record.manager
        if manager.state is ManagerState.CLOSED:
            return Fallback.closed
        return Fallback.unavailable if manager.serving else Fallback.not_serving

    def inline(self, args: Args, kwargs: Kwargs) -> object:
        """The caller's stream is being captured: the work is recorded inline, whoever opened the capture."""
        with self.gate.lock:
            residency.check(self.record)
            residency.inherit(self.record)
            self.record.fall_back(Fallback.in_capture)
        self.books.hear()
        return self._wrap(self.routine.eager_call(*args, **kwargs))

    def by_eager(self, reason: Fallback, args: Args, kwargs: Kwargs, missed: Hashable = None) -> object:
        """Answer without a graph; waits for another thread's capture, which eager work could break (fact S2)."""
        record, gate, manager = self.record, self.gate, self.books
        thread = self.thread_id()
        calls = None if record.overlaps_capture else gate.calls
        entered = False
        try:
            with self.gate.lock:
                if not record.overlaps_capture:
                    while gate.blocks_calls(thread):
                        gate.wait()
                if manager.lost:
                    raise ManagerPoisoned("manager", manager.name, manager.state, "call", "the device is not lost")
                residency.check(record)
                if not gate.free and gate.holder == thread:
                    reason = Fallback.in_capture
                    residency.inherit(record)
                if missed is not None:
                    record.counters.misses.add(missed)  # raises for a key without a hash: nothing is taken yet
                if reason is not Fallback.in_capture:
                    record.eager.enter(thread, calls, self.backend)
                    entered = True
                record.fall_back(reason)
            answer = self._wrap(self.routine.eager_call(*args, **kwargs))
            if entered:
                with self.gate.lock:
                    record.eager.leave(thread, calls)
                    entered = False
                    gate.notify()  # somebody may wait for the call's end in order to suspend
        except BaseException as error:
            if entered:
                with self.gate.lock:
                    record.eager.leave(thread, calls)
                    gate.notify()
            manager.notice(error)
            manager.hear(error)
            raise
        manager.hear()
        return answer

    def _wrap(self, answer: object) -> object:
        return answer if self.clone is not None else LeasedOutput.own(answer)
