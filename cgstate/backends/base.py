"""What a device must offer to the runtime: the whole of it, and small.

A backend knows streams, events, pools and graphs, and how to put back what a failed capture leaves behind. It knows nothing of
components, entries, leases or transactions. The runtime reaches a device through these protocols only; a backend never imports
the runtime. Handles (`Stream`, `Event`, `MemoryPool`, `Graph`) are made by their backend and passed back to it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from cgstate.backends.undo import UndoLog
from cgstate.lifecycle.states import FailureKind

T = TypeVar("T")


class CaptureErrorMode(StrEnum):
    """How far a capture forbids what other threads do while it is open (facts T3, T4, S2)."""

    global_ = "global"
    thread_local = "thread_local"
    relaxed = "relaxed"


class Event(Protocol):
    """A mark in a stream."""

    def done(self) -> bool:
        """Whether the device has passed the mark. Never blocks."""
        ...

    def synchronize(self) -> None:
        """Block the host until the device has passed the mark."""
        ...


class Stream(Protocol):
    """A queue of device work. Keeping the object alive keeps its handle valid."""

    @property
    def handle(self) -> int:
        """The raw handle, as `Backend.current_handle` reports it."""
        ...

    def record(self) -> Event:
        """Mark the work queued so far. Must not be called while the stream is being captured."""
        ...

    def wait(self, event: Event) -> None:
        """Make later work of this stream wait for ``event``; the host does not wait."""
        ...

    def capturing(self) -> bool:
        """Whether a capture is open on this stream, whoever opened it."""
        ...

    def synchronize(self) -> None:
        """Block the host until the stream is idle."""
        ...

    def close(self) -> None:
        """Give an exclusive stream back. Idempotent; no-op for a stream that is not ours."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a pool, as the allocator tells it.

    Attributes:
        stream: Handle of the stream that it belongs to for good (fact P4).
        reserved: Its bytes.
        live: Bytes of its blocks that are lent out; the rest is free for the next allocation on its stream.
        small: Whether it serves small allocations only; those never come from another segment.
    """

    stream: int
    reserved: int
    live: int
    small: bool


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The device's memory at one moment.

    Attributes:
        free: Bytes that the device has left for everybody.
        reserved: Bytes that this process's allocator holds.
    """

    free: int
    reserved: int


class MemoryPool(Protocol):
    """A private memory pool, anchored: it outlives its last graph until `drop` (fact P3)."""

    @property
    def id(self) -> Hashable:
        """The id that the device's allocator knows it by."""
        ...

    def reserved_bytes(self) -> Mapping[int, int]:
        """Bytes of the pool's own segments, by the handle of the stream that owns them (facts P4, P5)."""
        ...

    def segments(self) -> Sequence[SegmentView]:
        """The pool's own segments."""
        ...

    def workspace_bytes(self) -> int:
        """Bytes of the library workspaces that `Backend.prime_workspaces` made in it and that are still there."""
        ...

    def use_count(self) -> int | None:
        """How many holders (anchor, graphs, open captures) keep the pool open; None where the allocator does not tell."""
        ...

    def drop(self) -> None:
        """Let go of the anchor. Its bytes return at the next `Backend.flush`. Idempotent."""
        ...


class Graph(Protocol):
    """A recorded graph."""

    def replay(self) -> None:
        """Launch on the current stream; returns before the device is done."""
        ...

    def destroy(self) -> None:
        """Free the recording. Safe while a replay is in flight (fact T2), never while a capture is open (fact T3). Idempotent."""
        ...


class ReleaseMark(Protocol):
    """A mark behind what the driver has to let go of."""

    def wait(self, timeout: float | None) -> bool:
        """Block the host until the driver has passed the mark; False if that outlasts ``timeout`` seconds. May be said again."""
        ...


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a clean failure must leave as it was (I4, I12), read at one moment.

    Attributes:
        stream: Handle of the current stream.
        generator: Seed and offset (or the whole state) of the default generator, comparable. Not to be relied on inside a capture,
            where the framework counts draws from the beginning of the graph.
        capturing: Whether the current stream is being captured.
        pools: Reserved bytes by pool id, for every private pool of the device.
        reserved: Bytes that the device's allocator holds, all pools together.
        allocated: Bytes of live allocations.
    """

    stream: int
    generator: Hashable
    capturing: bool
    pools: Mapping[Hashable, int]
    reserved: int
    allocated: int


class Backend(Protocol):
    """One device. `device` names it, and is the key of its capture gate: equal names share a gate."""

    @property
    def name(self) -> str:
        """``cuda`` or ``sim``."""
        ...

    @property
    def device(self) -> str:
        """The device, e.g. ``cuda:0``; process-wide unique."""
        ...

    # -- streams ------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """The device's number, to ask `current_handle` with."""
        ...

    @property
    def current_handle(self) -> Callable[[int], int]:
        """Returns the raw handle of the caller's current stream on device `index`; 0 is the default stream, never captured.

        On the hot path: no allocation, 40-150 ns on CUDA. It takes the index as the raw query does: a wrapper would cost as much.
        """
        ...

    def current_stream(self) -> Stream:
        """The caller's current stream as an object that keeps its handle alive. Slow on CUDA (8.8 us)."""
        ...

    def capturing(self) -> bool:
        """Whether the caller's current stream is being captured, by whomever."""
        ...

    def new_stream(self, *, exclusive: bool) -> Stream:
        """A stream to capture on. ``exclusive``: outside the framework's own stream pool, whose handles repeat (fact S1)."""
        ...

    def adopt_stream(self, stream: object) -> Stream:
        """Wrap a framework stream given by the user.

        Raises:
            ConfigError: not a stream of this device.
        """
        ...

    def on_stream(self, stream: Stream) -> AbstractContextManager[None]:
        """Make ``stream`` current for the block."""
        ...

    # -- memory -------------------------------------------------------------------------------------------------------

    def new_pool(self) -> MemoryPool:
        """Mint an anchored private pool."""
        ...

    def adopt_pool(self, pool_id: object) -> MemoryPool:
        """Wrap a pool of the host engine; its `MemoryPool.drop` does nothing.

        Raises:
            ConfigError: not a pool id of this backend.
        """
        ...

    def prime_workspaces(self, pool: MemoryPool, stream: Stream) -> None:
        """Make the libraries create their workspaces for ``stream`` now, inside ``pool`` (facts W1, W3, F8)."""
        ...

    def allocating_from(self, pool: MemoryPool, stream: Stream) -> AbstractContextManager[None]:
        """Make ``stream`` current for the block, and let what this thread allocates in it come from ``pool``; in no capture.

        Memory does not come from a host engine's pool of which only the id is known.
        """
        ...

    def serves_unrecorded(self, statics: object) -> bool:
        """Whether work on these static inputs takes its memory from the allocator also while it is not recorded."""
        ...

    def cached_segments(self, stream: Stream) -> Sequence[SegmentView]:
        """The segments of ``stream`` that are in no private pool: what work outside of captures has left there."""
        ...

    def hold(self, pool: MemoryPool, stream: Stream, nbytes: int) -> object:
        """Allocate ``nbytes`` from ``pool`` on ``stream``, outside of any capture; held for as long as the result lives."""
        ...

    def clear_workspaces(self) -> bool:
        """Free every library workspace of the device; all streams. False where the device cannot.

        Only to be called when no live graph, foreign ones included, has its workspace outside a pool of ours (facts W2, W3).
        """
        ...

    def has_foreign_graphs(self, ours: frozenset[Hashable]) -> bool:
        """Whether private pools other than ``ours`` hold memory, so that graphs unknown to us may live.

        A pool of ours that was dropped does not count, nor does one of which the allocator tells that nothing keeps it open: no
        graph lives there.
        """
        ...

    def flush(self) -> int:
        """Return unused cached memory to the device; the bytes returned. Waits for the device, stalls other threads (S3)."""
        ...

    def mark_releases(self) -> ReleaseMark:
        """Mark where the driver will have let go of what the graphs destroyed so far retained, if all their launches have ended.

        It does so by itself, later, and no other call waits for it. Not while a capture is open.
        """
        ...

    def allocated_bytes(self) -> int:
        """Bytes of live allocations, all pools; to see whether a warm-up has settled."""
        ...

    @property
    def mebibyte(self) -> int:
        """What the allocator's limits call a MiB, in bytes: the simulator is scaled down."""
        ...

    def device_memory(self) -> DeviceMemory:
        """Ask the device what it has left. Slow; not while a capture is open."""
        ...

    def footprint(self) -> Footprint:
        """Read what I4 and I12 compare. Slow."""
        ...

    # -- capture ------------------------------------------------------------------------------------------------------

    def allocating_mode(self) -> AbstractContextManager[None]:
        """What static buffers are made under, so that they are ordinary tensors: no gradients, inference mode off."""
        ...

    def generator_mark(self) -> Hashable:
        """A comparable mark of the default generator, to see whether work drew random numbers. Does not synchronise."""
        ...

    def keep_generator(self, undo: UndoLog) -> None:
        """Register in ``undo`` (`UndoLog.always`) what gives the default generator the state that it has now.

        Called before the warm-up, which may draw random numbers that the caller's own sequence must not miss.
        """
        ...

    def recording_mode(self) -> AbstractContextManager[None]:
        """What warm-up and capture run under: no gradient recording, in the caller's inference mode and autocast.

        Autocast keeps no weights that it has converted: the warm-up's would be freed with the caller's block, under the graph. What
        it keeps all the same for an autocast inside the work, `forget_casts` drops.
        """
        ...

    def forget_casts(self) -> None:
        """Let autocast keep no weight that it has converted so far: each round of the work converts its own."""
        ...

    def open_capture(self, pool: MemoryPool, stream: Stream, mode: CaptureErrorMode, undo: UndoLog) -> Graph:
        """Make ``stream`` current and begin to record into a new graph with memory from ``pool``.

        Registers in ``undo``, before each act, what puts it back: `UndoLog.always` for the current stream, `UndoLog.on_failure` for
        the open capture, the allocation routing, the pool's use count, the generator's capture flag and the graph (facts F1-F5). So
        it is safe for this method itself to raise half way.
        """
        ...

    def close_capture(self, graph: Graph) -> None:
        """End the recording and make the graph ready to replay. Raises when the capture was invalidated."""
        ...

    def failure_kind(self, error: BaseException) -> FailureKind | None:
        """What ``error``, raised while capturing or replaying, means; None when it is not the device's but the routine's own."""
        ...

    def lost(self) -> BaseException | None:
        """The error of a lost context, or None while the device is usable. Asks the device; may wait for it."""
        ...

    # -- values -------------------------------------------------------------------------------------------------------

    @property
    def tensor(self) -> type:
        """The class of the backend's plain tensors; as torch's they have `shape`, `dtype`, `stride`, `clone` and `copy_`."""
        ...

    def clone(self, output: T) -> T:
        """Copy every tensor of a (nested) output on the current stream."""
        ...

    def check_static(self, value: object) -> None:
        """Look at static inputs or outputs before they are bound.

        Raises:
            ConfigError: they hold tensors that this backend does not run, so that a replay would not compute them.
        """
        ...

    def address(self, tensor: object) -> int:
        """Where the first element of a tensor is, bytes. Cheap: asked before launches.

        Raises:
            ConfigError: not a tensor.
        """
        ...

    def storage(self, tensor: object) -> object:
        """What keeps the memory of a tensor, whatever becomes of the tensor: it may be given other memory in place."""
        ...

    def storages(self, value: object) -> Mapping[Hashable, int]:
        """Bytes of the distinct tensor storages in a (nested) value, by what tells them apart while they live."""
        ...

    def nbytes(self, value: object) -> int:
        """Bytes of `storages` together."""
        ...

    def grad_enabled(self) -> bool:
        """Whether autograd would look at calls of this thread at all. Cheap."""
        ...

    def autocasting(self) -> bool:
        """Whether autocast is on in this thread. Cheap."""
        ...

    def autocast(self) -> Hashable:
        """What autocast converts this thread's work to; None while it is off."""
        ...

    def requires_grad(self, values: object) -> bool:
        """Whether a (nested) value holds a tensor that autograd would record."""
        ...
