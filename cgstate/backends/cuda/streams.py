"""Streams and events of a CUDA device, and which stream is current.

An event recorded on a stream that is being captured must never be queried, and a stream that is being captured must never be
synchronised or queried: both break the capture. `CudaStream.capturing` is the safe question.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TypeAlias, cast

import torch

from cgstate.backends.base import Event
from cgstate.backends.cuda.driver import CaptureStatus, driver
from cgstate.errors import CaptureActive, ConfigError

Selection: TypeAlias = tuple[int, tuple[int, int, int]]
"""The current device, and torch's name for the current stream of ours."""


class CudaEvent:
    """A mark in a stream."""

    __slots__ = ("torch_event",)

    def __init__(self, torch_event: torch.cuda.Event) -> None:
        self.torch_event = torch_event

    def done(self) -> bool:
        """As `base.Event.done`."""
        return bool(self.torch_event.query())

    def synchronize(self) -> None:
        """As `base.Event.synchronize`."""
        self.torch_event.synchronize()


class CudaStream:
    """A stream of one device.

    Attributes:
        torch_stream: torch's object for it.
        index: The device.
        handle: The raw handle.
    """

    __slots__ = ("_exclusive", "handle", "index", "torch_stream")

    def __init__(self, torch_stream: torch.cuda.Stream, index: int, *, exclusive: bool = False) -> None:
        self.torch_stream = torch_stream
        self.index = index
        self.handle = int(torch_stream.cuda_stream)
        self._exclusive = exclusive

    @classmethod
    def current(cls, index: int) -> CudaStream:
        """The caller's current stream of device ``index``."""
        return cls(torch.cuda.current_stream(index), index)

    @classmethod
    def external(cls, handle: int, index: int) -> CudaStream:
        """A stream of ours, outside torch's own 32 (fact S1)."""
        return cls(torch.cuda.ExternalStream(handle, device=index), index, exclusive=True)

    def record(self) -> CudaEvent:
        """As `base.Stream.record`."""
        event = torch.cuda.Event()
        event.record(self.torch_stream)
        return CudaEvent(event)

    def wait(self, event: Event) -> None:
        """As `base.Stream.wait`."""
        if not isinstance(event, CudaEvent):
            raise ConfigError(f"not a CUDA event: {event!r}")
        self.torch_stream.wait_event(event.torch_event)

    def capturing(self) -> bool:
        """As `base.Stream.capturing`."""
        return status_of(self.handle, self.index) is not CaptureStatus.none

    def synchronize(self) -> None:
        """As `base.Stream.synchronize`.

        Raises:
            CaptureActive: the stream is being captured; waiting for it would break the capture.
        """
        if self.capturing():
            raise CaptureActive("stream", f"{self.handle:#x}", "CAPTURING", "synchronize", "the stream is not capturing")
        self.torch_stream.synchronize()

    def close(self) -> None:
        """As `base.Stream.close`. The handle is kept for the next exclusive stream and never destroyed.

        torch's allocator may name it for as long as a tensor lives that was used on it, and the driver gives handles out again.
        Its library workspaces have to be cleared before, or the next user finds them (facts W3, W5).
        """
        if self._exclusive:
            self._exclusive = False
            with _lock:
                _idle[self.index].append(self.handle)


_lock = threading.Lock()
_idle: dict[int, list[int]] = defaultdict(list)
"""Handles of closed exclusive streams, by device."""

_sides: dict[int, CudaStream] = {}


def new_exclusive(index: int) -> CudaStream:
    """A stream that nobody else has."""
    with _lock:
        idle = _idle[index]
        handle = idle.pop() if idle else 0
    return CudaStream.external(handle or driver().create_stream(index), index)


def side_stream(index: int) -> CudaStream:
    """A stream of device ``index`` for questions to the device; nothing of the user's is ever on it."""
    side = _sides.get(index)
    if side is None:
        side = _sides.setdefault(index, new_exclusive(index))
    return side


def status_of(handle: int, index: int) -> CaptureStatus:
    """Whether the stream with this raw handle is being captured, whoever began that."""
    return driver().capture_status(handle, index)


def current_handle(index: int) -> int:
    """The raw handle of the caller's current stream of device ``index``."""
    return torch._C._cuda_getCurrentRawStream(index)


def selection(index: int) -> Selection:
    """What `select` changes."""
    return torch._C._cuda_getDevice(), cast("tuple[int, int, int]", torch._C._cuda_getCurrentStream(index))


def select(stream: CudaStream) -> None:
    """Make ``stream`` current, and its device."""
    torch.cuda.set_device(stream.index)
    torch.cuda.set_stream(stream.torch_stream)


def reselect(before: Selection) -> None:
    """Make current again what `selection` had noted."""
    device, (stream_id, device_index, device_type) = before
    torch._C._cuda_setStream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    torch.cuda.set_device(device)
