"""Open captures: what they record, what they forbid to whom, and how they break.

Called by the device (every refusal is decided here) and by `SimGraph`. Users hold no captures.

The rule of the hardware: a *potentially unsafe* call (waiting for a stream, asking an event, destroying a graph) is refused while
the caller's own capture is not relaxed, or anybody's is global (facts T3, T4); waiting for the whole device, or for a stream that
is being captured, always is (facts F2, S2). Every refusal also breaks the captures that were the reason: they can only be ended,
with error 901.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim.blocks import Block, PoolId
from cgstate.backends.sim.errors import (
    CAPTURE_INVALIDATED,
    CAPTURE_ISOLATION,
    CAPTURE_MERGE,
    CAPTURE_UNJOINED,
    CAPTURE_UNSUPPORTED,
    CAPTURE_WRONG_THREAD,
    CAPTURED_EVENT,
    ILLEGAL_STATE,
    SimAcceleratorError,
    SimError,
)
from cgstate.backends.sim.host import Host
from cgstate.backends.sim.streams import SimEvent, StreamQueue
from cgstate.backends.sim.work import Operation


class OutsideMemory(Protocol):
    """Memory of the host program that a graph uses without holding it."""

    @property
    def name(self) -> str:
        """What it is, in words."""
        ...

    def freed(self) -> bool:
        """Whether its owner has let go of it."""
        ...


class Capture:
    """One open capture.

    Attributes:
        operations: What was recorded so far, in an order that the device may run it in.
        touched: Per block from outside the graph's pool: its generation, and the index of the first operation that uses it.
        origin: The stream that it began on.
        pool_id: The pool that its memory comes from.
        broken: Whether it was invalidated.
        refusal: The error of the call that broke it, if the capturing thread itself made that call.
        outside: Memory outside the device's that it uses, and the name of the first operation that does.
        in_host_order: Whether it touches what the host touches at once and not in stream order, so that a launch has to be over
            before the host goes on.
    """

    def __init__(self, origin: StreamQueue, pool_id: PoolId, mode: CaptureErrorMode, owner: Host) -> None:
        self.origin = origin
        self.pool_id = pool_id
        self.operations: list[Operation] = []
        self.touched: dict[Block, tuple[int, int]] = {}
        self.broken = False
        self.refusal: SimError | None = None
        self.outside: dict[OutsideMemory, str] = {}
        self.in_host_order = False
        self._mode = mode
        self._owner = owner
        self._seen: dict[StreamQueue, dict[StreamQueue, int]] = {origin: {origin: 0}}
        origin.capture = self

    def record(self, queue: StreamQueue, operation: Operation, blocks: Iterable[Block]) -> None:
        """Take ``operation`` of a stream that takes part.

        Raises:
            SimAcceleratorError: 901, it was invalidated.
        """
        self.check()
        for block in blocks:
            if block.segment.pool.id != self.pool_id:
                self.touched.setdefault(block, (block.generation, len(self.operations)))
        self.operations.append(operation)
        self._seen[queue][queue] += 1

    def check(self) -> None:
        """Raise 901 once it was invalidated."""
        if self.broken:
            raise SimAcceleratorError(CAPTURE_INVALIDATED) from self.refusal

    def forbids(self, host: Host) -> bool:
        """Whether ``host`` must not make potentially unsafe calls now."""
        if self._mode is CaptureErrorMode.relaxed:
            return False
        return self._mode is CaptureErrorMode.global_ or self._owner is host

    def invalidate(self, host: Host, refusal: SimError | None) -> None:
        """Break it. ``refusal`` is what ``host`` gets to see of it, None if nothing."""
        self.broken = True
        if self._owner is host and self.refusal is None:
            self.refusal = refusal

    def seen_by(self, queue: StreamQueue) -> Mapping[StreamQueue, int]:
        """What of the recording, by stream, the next work of ``queue`` comes after."""
        self.check()
        return dict(self._seen[queue])

    def join(self, queue: StreamQueue, event: SimEvent) -> None:
        """Let ``queue`` continue after ``event`` of this capture; it takes part from now on."""
        self.check()
        seen = self._seen.setdefault(queue, {queue: 0})
        for other, done in event.seen.items():
            seen[other] = max(seen.get(other, 0), done)
        queue.capture = self

    def close(self) -> None:
        """Let go of the streams. What was recorded stays readable."""
        for queue in self._seen:
            queue.capture = None

    def check_ender(self, host: Host) -> None:
        """Raise 908 when ``host`` may not end it."""
        if self._owner is not host and self._mode is not CaptureErrorMode.relaxed:
            raise SimAcceleratorError(CAPTURE_WRONG_THREAD)

    def verdict(self) -> SimAcceleratorError | None:
        """What ending it now comes to: None when it is sound."""
        if self.broken:
            return SimAcceleratorError(CAPTURE_INVALIDATED)
        joined = self._seen[self.origin]
        if any(seen[queue] > joined.get(queue, 0) for queue, seen in self._seen.items()):
            return SimAcceleratorError(CAPTURE_UNJOINED)
        return None


class OpenCaptures:
    """The open captures of one device, and the refusals that come of them."""

    def __init__(self) -> None:
        self._open: list[Capture] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, queue: StreamQueue, pool_id: PoolId, mode: CaptureErrorMode, host: Host) -> Capture:
        """Begin to record ``queue``.

        Raises:
            SimAcceleratorError: 401, the stream is being captured already; that capture goes on.
        """
        if queue.capture is not None:
            raise SimAcceleratorError(ILLEGAL_STATE)
        capture = Capture(queue, pool_id, mode, host)
        self._open.append(capture)
        return capture

    def end(self, capture: Capture) -> None:
        """Take it off the list, whatever became of it. Idempotent."""
        if capture in self._open:
            self._open.remove(capture)
            capture.close()

    def refuse_unsafe(self, host: Host) -> None:
        """Refuse a potentially unsafe call where a capture forbids it (fact T4)."""
        self._refuse(host, [capture for capture in self._open if capture.forbids(host)])

    def refuse_waiting_for(self, queue: StreamQueue, host: Host) -> None:
        """Refuse to wait for a stream that is being captured, or where waiting is unsafe (facts F2, T4)."""
        if queue.capture is not None:
            self._refuse(host, [queue.capture])
        self.refuse_unsafe(host)

    def refuse_event(self, event: SimEvent, host: Host) -> None:
        """Refuse to ask or to await an event of a capture, or any where that is unsafe (fact T4)."""
        if event.capture is not None:
            raise SimAcceleratorError(CAPTURED_EVENT)
        self.refuse_unsafe(host)

    def refuse_device_wait(self, host: Host) -> None:
        """Refuse to wait for the whole device while anything is captured on it (fact S2)."""
        self._refuse(host, list(self._open))

    def refuse_inside(self, queue: StreamQueue, host: Host, error: SimError) -> None:
        """Refuse, with ``error``, what cannot be recorded; no-op outside a capture."""
        if queue.capture is not None:
            queue.capture.invalidate(host, error)
            raise error

    def break_by_destruction(self, host: Host) -> None:
        """What destroying a graph does: no error, but captures that forbid it are broken (fact T3)."""
        for capture in self._open:
            if capture.forbids(host):
                capture.invalidate(host, None)

    def _refuse(self, host: Host, reasons: list[Capture]) -> None:
        if reasons:
            error = SimAcceleratorError(CAPTURE_UNSUPPORTED)
            for capture in reasons:
                capture.invalidate(host, error)
            raise error

    def wait(self, queue: StreamQueue, event: SimEvent, host: Host) -> bool:
        """Fork or join, if ``queue`` or ``event`` is part of a capture; whether it was.

        Raises:
            SimAcceleratorError: 905 or 902, which break the capture of ``queue``; 907 for an event of a capture that is over.
        """
        own, other = queue.capture, event.capture
        if other is not None and other not in self._open:
            raise SimAcceleratorError(CAPTURED_EVENT)
        if own is not None and own is not other:
            error = SimAcceleratorError(CAPTURE_ISOLATION if other is None else CAPTURE_MERGE)
            self.refuse_inside(queue, host, error)
        if other is None:
            return False
        other.join(queue, event)
        return True
