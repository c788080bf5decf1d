"""Streams and events, as the host program holds them.

A `StreamQueue` is the device's stream, known by its handle; a `SimStream` is an object of the host that wraps one. Several objects
may wrap one queue: the framework's own pool has 32 handles and gives them out in turn (fact S1). Made by `SimDevice`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING

from cgstate.backends.base import Event
from cgstate.backends.sim.errors import ILLEGAL_HANDLE, SimAcceleratorError
from cgstate.backends.sim.faults import Faults, faulted
from cgstate.backends.sim.host import current_host
from cgstate.backends.sim.work import Mark, Milestone, Wait, Work
from cgstate.errors import ConfigError

if TYPE_CHECKING:
    from cgstate.backends.sim.capture import Capture
    from cgstate.backends.sim.device import SimDevice

POOL_STREAMS = 32
"""Handles of the framework's own stream pool (fact S1)."""

DRIVER_HANDLE = -1
"""Handle of the queues in which the driver keeps its own errands; no host can wait for them."""


class StreamQueue:
    """The device's side of a stream.

    Attributes:
        handle: Its raw handle; 0 is the default stream, `DRIVER_HANDLE` the driver. Handles of closed streams do not come back.
        work: What the device has not finished yet, oldest first.
        capture: The open capture that records this stream instead.
        closed: Whether its handle was destroyed. Work queued before still runs.
    """

    __slots__ = ("capture", "closed", "handle", "work")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.work: deque[Work] = deque()
        self.capture: Capture | None = None
        self.closed = False

    def check_open(self) -> None:
        """Raise 400 once its handle was destroyed."""
        if self.closed:
            raise SimAcceleratorError(ILLEGAL_HANDLE)


class SimEvent(Milestone):
    """A mark in a stream. One recorded in a capture is a fork or a join of the graph and no mark at all.

    Attributes:
        passed: Whether the device has passed it.
        capture: The capture it was recorded in.
        seen: What of that capture, by stream, lies before it.
    """

    __slots__ = ("_device", "capture", "seen")

    def __init__(self, device: SimDevice, capture: Capture | None = None, seen: Mapping[StreamQueue, int] | None = None) -> None:
        super().__init__()
        self._device = device
        self.capture = capture
        self.seen = seen or {}

    @property
    def device(self) -> SimDevice:
        """The device it was recorded on."""
        return self._device

    @property
    def faults(self) -> Faults:
        """The fault injector of its device."""
        return self._device.faults

    @faulted("event_done")
    def done(self) -> bool:
        """As `base.Event.done`; the device does not move on for it.

        Raises:
            SimAcceleratorError: 900 where an open capture forbids queries (fact T4), 907 for an event of a capture.
        """
        device = self._device
        with device.door:
            device.captures.refuse_event(self, current_host())
            return self.passed

    @faulted("event_synchronize")
    def synchronize(self) -> None:
        """As `base.Event.synchronize`.

        Raises:
            SimAcceleratorError: as `done`.
        """
        device = self._device
        with device.door:
            device.captures.refuse_event(self, current_host())
            device.executor.finish_event(self)
            device.door.raise_if_lost()


class SimStream:
    """A stream of the simulated device; the one who made an exclusive one owns its handle."""

    __slots__ = ("__weakref__", "_device", "_keeps", "_owner", "queue")

    def __init__(self, device: SimDevice, queue: StreamQueue, *, owner: bool = False, keeps: SimStream | None = None) -> None:
        self._device = device
        self._owner = owner
        self._keeps = keeps
        self.queue = queue

    @property
    def device(self) -> SimDevice:
        """The device it belongs to."""
        return self._device

    @property
    def faults(self) -> Faults:
        """The fault injector of its device."""
        return self._device.faults

    @property
    def handle(self) -> int:
        """As `base.Stream.handle`."""
        return self.queue.handle

    @faulted("stream_record")
    def record(self) -> SimEvent:
        """As `base.Stream.record`. In a capture it marks a point of the graph, for `wait` to fork from or to join."""
        device, queue = self._device, self.queue
        with device.door:
            if queue.capture is not None:
                return SimEvent(device, queue.capture, queue.capture.seen_by(queue))
            event = SimEvent(device)
            device.submit(queue, Mark(event))
            return event

    @faulted("stream_wait")
    def wait(self, event: Event) -> None:
        """As `base.Stream.wait`. In a capture it forks or joins.

        Raises:
            ConfigError: not an event of this device.
            SimAcceleratorError: 905 for an event from outside the capture, 902 for one of another capture, 907 for one of a
                capture that is over.
        """
        device = self._device
        if not isinstance(event, SimEvent) or event.device is not device:
            raise ConfigError(f"not an event of {device.name}: {event!r}")
        with device.door:
            if not device.captures.wait(self.queue, event, current_host()):
                device.submit(self.queue, Wait(event))

    @faulted("stream_capturing")
    def capturing(self) -> bool:
        """As `base.Stream.capturing`."""
        return self.queue.capture is not None

    @faulted("stream_synchronize")
    def synchronize(self) -> None:
        """As `base.Stream.synchronize`.

        Raises:
            SimAcceleratorError: 900 where an open capture forbids it, which breaks that capture (facts F2, T4).
        """
        self._device.wait_for(self.queue)

    @faulted("stream_close")
    def close(self) -> None:
        """As `base.Stream.close`."""
        if self._owner:
            self._close()

    def _close(self) -> None:
        with self._device.door.even_if_lost:
            self._device.streams.close(self.queue)

    def adopted(self) -> SimStream:
        """The same stream as somebody who must not close it holds it; keeps the handle alive."""
        return SimStream(self._device, self.queue, keeps=self)

    def __repr__(self) -> str:
        return f"SimStream({self._device.name}, handle={self.handle})"

    def __del__(self) -> None:
        if self._owner and not self.queue.closed:
            self._device.door.when_next_entered(self._close)


class StreamTable:
    """Every queue of one device."""

    def __init__(self) -> None:
        self.default = StreamQueue(0)
        self._handles = count(0x1000, 0x10)
        self._pool = [StreamQueue(next(self._handles)) for _ in range(POOL_STREAMS)]
        self._turn = 0
        self.exclusive = 0
        """Exclusive streams not closed yet."""

    def pooled(self) -> StreamQueue:
        """The next handle of the framework's pool, used by others or not."""
        queue = self._pool[self._turn % POOL_STREAMS]
        self._turn += 1
        return queue

    def new_exclusive(self) -> StreamQueue:
        """A handle of its own."""
        self.exclusive += 1
        return StreamQueue(next(self._handles))

    def close(self, queue: StreamQueue) -> None:
        """Destroy an exclusive handle; no-op the second time."""
        if not queue.closed:
            queue.closed = True
            self.exclusive -= 1
