"""How a component call is answered: by a graph, or eagerly with a reason (I9).

A call resolves on the host first. A hit then takes a lease and the pool's turn in one locked section, writes its inputs, replays
and clones, and gives both back in a second one. Everything else is eager and counted; eager is never a silent retry of a failed
replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from cgstate.errors import CaptureActive, IllegalTransition, ManagerPoisoned, NotResident
from cgstate.lifecycle.states import ManagerState
from cgstate.lifecycle.steps import EntryState_BOUND, lend
from cgstate.routine import Routine
from cgstate.runtime import leasing
from cgstate.runtime.lazy import capture_on_miss
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.stats import Fallback

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import AnyRoutine, ComponentRecord

log = logging.getLogger("cgstate")

Args: TypeAlias = tuple[object, ...]
Kwargs: TypeAlias = Mapping[str, object]


class Caller:
    """Answers the calls of one component. The component holds it; it holds the runtime's record."""

    __slots__ = (
        "_backend",
        "_capturing",
        "_clone",
        "_current_handle",
        "_gate",
        "_give_lock",
        "_grad_enabled",
        "_lock",
        "_point",
        "_resolve",
        "_routine",
        "_take_lock",
        "_thread_id",
        "_validate",
        "record",
    )

    def __init__(self, record: ComponentRecord, routine: AnyRoutine, *, clone: bool) -> None:
        books = record.manager
        self.record = record
        self._routine = routine
        self._backend = books.backend
        self._current_handle = books.backend.current_handle
        self._capturing = books.backend.capturing
        self._grad_enabled = books.backend.grad_enabled
        self._gate = books.gate
        self._lock = books.gate.lock
        self._take_lock: Callable[[], bool] = books.gate.lock.acquire  # a bound call costs half of what `with` does
        self._give_lock = books.gate.lock.release
        self._thread_id = books.thread_id
        self._clone = clone
        self._point = books.sync.point
        self._resolve = routine.resolve_runtime
        inherited = type(routine).validate_runtime_inputs is Routine.validate_runtime_inputs
        self._validate = None if inherited else routine.validate_runtime_inputs

    def __call__(self, args: Args, kwargs: Kwargs) -> object:
        """Answer a call."""
        record = self.record
        if record.manager.owner_thread:
            record.manager.check_thread(self._thread_id())
        handle = self._current_handle()
        if handle and self._capturing():  # 0 is the default stream, which is never captured
            return self._inline(args, kwargs)
        if self._validate is not None:
            self._validate(*args, **kwargs)
        if self._grad_enabled() and self._backend.requires_grad((args, kwargs, tuple(self._routine.parameters()))):
            return self._eager(Fallback.autograd, args, kwargs)
        resolution = self._resolve(args, kwargs, record.available)
        entry = record.entries.get(resolution.descriptor) if resolution.descriptor is not None else None
        if entry is None:
            found = capture_on_miss(record, self._routine, args, kwargs, resolution.runtime_key)
            if isinstance(found, Fallback):
                return self._eager(found, args, kwargs, resolution.runtime_key)
            entry = found
        return self._by_graph(entry, handle, args, kwargs)

    def _by_graph(self, entry: Entry, handle: int, args: Args, kwargs: Kwargs) -> object:
        record, routine = self.record, self._routine
        thread = self._thread_id()
        self._take_lock()
        try:
            refused = None if self._enter_fast(entry, thread, handle) else self._enter(entry, thread)
        finally:
            self._give_lock()
        if refused is not None:
            return self._eager(refused, args, kwargs)
        if self._point is not None:
            self._point("copy")
        launching = False
        try:
            routine.copy_runtime_inputs(entry.descriptor, entry.buffers, *args, **kwargs)
            if self._point is not None:
                self._point("launch")
            launching = True
            entry.launch()
            launching = False
            entry.pool.replays += 1
            answer = routine.output_after_replay(entry.descriptor, entry.buffers, entry.output, *args, **kwargs)
            if self._clone:
                answer = self._backend.clone(answer)
        except BaseException as error:
            self._failed(entry, thread, error, launching=launching)
            raise
        self._take_lock()
        try:
            self._leave(entry, thread)
            entry.hits += 1
            record.clock = entry.last_used = record.clock + 1
            if not self._clone:
                return LeasedOutput.of(answer, entry, thread)
            leasing.release(entry)
        finally:
            self._give_lock()
        if record.manager.unsettled:
            record.manager.settle()
        if record.manager.summary_every and not record.clock % record.manager.summary_every:
            log.info("%s: %s", record.component_id, record.counters.snapshot(record.live_hits).summary())
        return answer

    def _enter_fast(self, entry: Entry, thread: int, handle: int) -> bool:
        """`_enter` where nothing is out of the ordinary: no capture, no other call, the same stream as before."""
        turn, gate = entry.turn, self._gate
        if not (entry.fast and gate.free and not gate.pending and not turn.owner and handle == turn.last_handle):
            return False
        if not lend(entry, self.record):
            return False
        turn.owner = thread
        if not self.record.overlaps_capture:
            gate.calls[thread] = gate.calls.get(thread, 0) + 1
        return True

    def _failed(self, entry: Entry, thread: int, error: BaseException, *, launching: bool) -> None:
        """Something raised in the turn: only the launch itself fails the entry."""
        with self._lock:
            self._leave(entry, thread)
            if launching:
                leasing.launch_raised(entry, error)
            else:
                leasing.release(entry)
        self.record.manager.notice(error)
        self.record.manager.settle()

    def _enter(self, entry: Entry, thread: int) -> Fallback | None:
        """Take lease and turn, with the lock held; the reason to run eagerly if that is refused, with nothing taken."""
        record, gate = self.record, self._gate
        exclusive = not record.overlaps_capture
        if exclusive:
            while gate.blocks_calls(thread):
                gate.wait()
        if not gate.free and gate.holder == thread:
            return Fallback.in_capture  # warming up: the work runs as it will when it is recorded
        try:
            entry.acquire(stream_capturing=False)
        except NotResident:
            raise
        except IllegalTransition:
            return self._why_not()
        if record.state is EntryState_BOUND:
            record.first_lease()
        if exclusive:
            gate.enter_call(thread)
        try:
            leasing.take_turn(entry, thread)
        except BaseException as error:
            if exclusive:
                gate.leave_call(thread)
            leasing.release(entry)
            if isinstance(error, CaptureActive):
                return Fallback.turn_held
            raise
        return None

    def _leave(self, entry: Entry, thread: int) -> None:
        """Give the turn back and count the call out, with the lock held; the lease is the caller's business."""
        if entry.fast:
            entry.turn.owner = 0
        else:
            leasing.end_turn(entry)
        if not self.record.overlaps_capture:
            self._gate.leave_call(thread)
        if self._gate.waiting:
            self._gate.changed.notify_all()

    def _why_not(self) -> Fallback:
        manager = self.record.manager
        if manager.state is ManagerState.CLOSED:
            return Fallback.closed
        return Fallback.unavailable if manager.serving else Fallback.not_serving

    def _inline(self, args: Args, kwargs: Kwargs) -> object:
        """The caller's stream is being captured: the work is recorded inline, whoever opened the capture."""
        with self._lock:
            self.record.fall_back(Fallback.in_capture)
        return self._wrap(self._routine.eager_call(*args, **kwargs))

    def _eager(self, reason: Fallback, args: Args, kwargs: Kwargs, missed: Hashable = None) -> object:
        """Answer without a graph; waits for another thread's capture, which eager work could break (fact S2)."""
        record, gate = self.record, self._gate
        manager = record.manager
        thread = self._thread_id()
        entered = False
        with self._lock:
            if manager.state is ManagerState.POISONED:
                raise ManagerPoisoned("manager", manager.name, manager.state, "call", "the device is not lost")
            if not record.resident:
                raise NotResident("component", record.name, record.state, "call", "dependencies resident")
            if not record.overlaps_capture:
                while gate.blocks_calls(thread):
                    gate.wait()
            if not gate.free and gate.holder == thread:
                reason = Fallback.in_capture
            elif not record.overlaps_capture:
                gate.enter_call(thread)
                entered = True
            record.fall_back(reason)
            if missed is not None:
                record.counters.misses.add(missed)
        try:
            return self._wrap(self._routine.eager_call(*args, **kwargs))
        except Exception as error:
            manager.notice(error)
            raise
        finally:
            if entered:
                with self._lock:
                    gate.leave_call(thread)

    def _wrap(self, answer: object) -> object:
        return answer if self._clone else LeasedOutput.own(answer)
