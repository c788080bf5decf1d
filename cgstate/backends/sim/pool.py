"""Pool handles: an anchored private pool (what ``torch.cuda.MemPool`` is), or the mere name of somebody else's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cgstate.backends.base import SegmentView
from cgstate.backends.sim.allocator import Route
from cgstate.backends.sim.blocks import PoolId
from cgstate.backends.sim.faults import Faults, faulted
from cgstate.backends.sim.host import current_host
from cgstate.backends.sim.memory import ITEM_BYTES, SMALL_SEGMENT
from cgstate.backends.sim.streams import StreamQueue

if TYPE_CHECKING:
    from cgstate.backends.sim.device import SimDevice


class SimPool:
    """A private pool, as `base.MemoryPool` wants it.

    Anchored, it holds one use of the pool from its making to `drop`, so the pool survives its last graph (fact P3).
    """

    def __init__(self, device: SimDevice, pool_id: PoolId, *, anchored: bool) -> None:
        self._device = device
        self._id = pool_id
        self._anchored = anchored
        if anchored:
            device.allocator.retain(pool_id)
            device.allocator.retain_on_host(pool_id)

    @property
    def device(self) -> SimDevice:
        """The device whose memory it is."""
        return self._device

    @property
    def faults(self) -> Faults:
        """The fault injector of its device."""
        return self._device.faults

    @property
    def id(self) -> PoolId:
        """As `base.MemoryPool.id`."""
        return self._id

    @faulted("pool_reserved_bytes")
    def reserved_bytes(self) -> Mapping[int, int]:
        """As `base.MemoryPool.reserved_bytes`."""
        with self._device.door.even_if_lost:
            return self._device.allocator.bytes_by_stream(self._id)

    @faulted("pool_segments")
    def segments(self) -> Sequence[SegmentView]:
        """As `base.MemoryPool.segments`."""
        return views_of(self._device, self._id)

    @faulted("pool_workspace_bytes")
    def workspace_bytes(self) -> int:
        """As `base.MemoryPool.workspace_bytes`."""
        with self._device.door.even_if_lost:
            return self._device.library.bytes_in(self._id)

    @faulted("pool_use_count")
    def use_count(self) -> int:
        """As `base.MemoryPool.use_count`; this allocator always tells."""
        with self._device.door.even_if_lost:
            return self._device.allocator.use_count(self._id)

    @faulted("pool_drop")
    def drop(self) -> None:
        """As `base.MemoryPool.drop`. Waits for the device, unless a capture is open (fact S3)."""
        with self._device.door.even_if_lost:
            if self._anchored:
                self._device.settle()
            self._let_go()

    def _let_go(self) -> None:
        if self._anchored:
            self._anchored = False
            self._device.allocator.release(self._id)
            self._device.allocator.release_on_host(self._id)

    def __del__(self) -> None:
        if self._anchored:
            self._device.door.when_next_entered(self._let_go)


def views_of(device: SimDevice, pool_id: PoolId) -> list[SegmentView]:
    """The segments of a pool, or with `GENERAL` those that are in none."""
    with device.door.even_if_lost:
        return [
            SegmentView(segment.queue.handle, segment.size * ITEM_BYTES, live, segment.size == SMALL_SEGMENT)
            for segment, live in device.allocator.segments_of(pool_id)
        ]


@contextmanager
def allocating_from(pool: SimPool) -> Iterator[None]:
    """Let this thread's allocations come from ``pool`` for the block, outside of any capture.

    Raises:
        SimInternalAssert: the pool is latched.
        SimRecordingError: something else is routed to it.
    """
    device = pool.device
    host = current_host()

    def claims(queue: StreamQueue) -> bool:
        return current_host() is host

    route = Route(pool.id, claims)
    with device.door:
        device.allocator.retain(pool.id)
        try:
            device.allocator.begin_route(route)
        except BaseException:
            device.allocator.release(pool.id)
            raise
    try:
        yield
    finally:
        with device.door.even_if_lost:
            device.allocator.end_route(route)
            device.allocator.release(pool.id)
