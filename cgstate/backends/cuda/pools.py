"""Private memory pools: ours, anchored, and the host engine's.

A pool of ours has two anchors. A `MemPool` keeps the device's allocator from closing the id when the last graph goes (fact P3).
An *anchor graph*, a single memset, does the same with the allocator of pinned host memory, which has a use count of its own and
no `MemPool`: without it, the capture after the last graph's destruction fails and leaves the generator in capture mode. The
anchor graph is recorded by the first capture into the pool, when the gate is held.

The `MemPool` object is never destroyed: see `immortal`. `CudaPool.drop` takes its one use of the pool back instead, which needs
neither a quiet device nor a living one; the allocator then treats the pool as it treats that of any destroyed graph.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch

from cgstate.backends.base import SegmentView
from cgstate.backends.cuda.immortal import immortalise
from cgstate.backends.cuda.quiet import quiet
from cgstate.errors import ConfigError

PoolId: TypeAlias = tuple[int, int]

Workspace: TypeAlias = tuple[int, int, str]
"""A library workspace: host thread, stream handle, library."""

SHARED_ID: PoolId = (0, 0)
"""The id of memory that is in no private pool."""


class CudaPool:
    """A private pool of ours.

    Attributes:
        id: As the allocator knows it.
        index: The device.
        anchor: The anchor graph, once recorded.
        dropped: Whether `drop` was called.
        spoiled: Whether a failed capture could not be repaired, so that the pool cannot record any more.
    """

    def __init__(self, index: int) -> None:
        with torch.cuda.device(index):
            self._mem_pool = torch.cuda.MemPool()
        immortalise(self._mem_pool)
        self.id: PoolId = self._mem_pool.id
        self.index = index
        self.anchor: torch.cuda.CUDAGraph | None = None
        self.dropped = False
        self.spoiled = False

    def __repr__(self) -> str:
        return f"<CudaPool {self.id} of cuda:{self.index}>"

    @property
    def mem_pool(self) -> torch.cuda.MemPool | None:
        """The object that torch knows it by, to route allocations by; None when dropped."""
        return None if self.dropped else self._mem_pool

    def reserved_bytes(self) -> Mapping[int, int]:
        """As `base.MemoryPool.reserved_bytes`."""
        return reserved_by_stream(self.id, self.index)

    def segments(self) -> Sequence[SegmentView]:
        """As `base.MemoryPool.segments`."""
        return views_of(self.id, self.index)

    def workspace_bytes(self) -> int:
        """As `base.MemoryPool.workspace_bytes`."""
        return sum(workspaces_of.get(self.id, {}).values())

    def use_count(self) -> int:
        """As `base.MemoryPool.use_count`. The two anchors count as one, so recording the anchor graph changes nothing."""
        if self.dropped:
            return 0
        return self._mem_pool.use_count() - (self.anchor is not None)

    def drop(self) -> None:
        """As `base.MemoryPool.drop`. Does not wait for the device."""
        if not self.dropped:
            self.dropped = True
            workspaces_of.pop(self.id, None)
            dropped_ids[self.index].add(self.id)
            quiet.when_quiet(self._let_go)

    def _let_go(self) -> None:
        anchor, self.anchor = self.anchor, None
        if anchor is not None:
            with suppress(Warning):  # a lost device is only warned of here, but a filter may raise that
                anchor.reset()
        torch._C._cuda_releasePool(self.index, self.id)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and hasattr(self, "dropped"):  # a default, since globals may be gone then
            self.drop()


class ForeignPool:
    """A pool of the host engine, whose other graphs are unknown to us.

    It gets no anchor: it lives for as long as its owner keeps a graph in it. So the owner has to capture into it first.
    """

    def __init__(self, pool_id: object, index: int) -> None:
        self.mem_pool: torch.cuda.MemPool | None = pool_id if isinstance(pool_id, torch.cuda.MemPool) else None
        self.id = _checked(self.mem_pool.id if self.mem_pool is not None else pool_id)
        self.index = index
        self.dropped = False
        self.spoiled = False

    def __repr__(self) -> str:
        return f"<ForeignPool {self.id} of cuda:{self.index}>"

    def reserved_bytes(self) -> Mapping[int, int]:
        """As `base.MemoryPool.reserved_bytes`."""
        return reserved_by_stream(self.id, self.index)

    def segments(self) -> Sequence[SegmentView]:
        """As `base.MemoryPool.segments`."""
        return views_of(self.id, self.index)

    def workspace_bytes(self) -> int:
        """As `base.MemoryPool.workspace_bytes`: none is kept of a pool of somebody else's."""
        return 0

    def use_count(self) -> int | None:
        """As `base.MemoryPool.use_count`. Known only where the pool was given as a `torch.cuda.MemPool`."""
        return None if self.mem_pool is None else self.mem_pool.use_count()

    def drop(self) -> None:
        """As `base.MemoryPool.drop`."""


AnyPool: TypeAlias = CudaPool | ForeignPool

workspaces_of: dict[PoolId, dict[Workspace, int]] = {}
"""The library workspaces of each live pool of ours, with the bytes that each took there; 0: born elsewhere. By `workspaces`."""

dropped_ids: dict[int, set[PoolId]] = defaultdict(set)
"""Ids of dropped pools that may still hold cached memory, by device."""


def reserved_by_stream(pool_id: PoolId, index: int) -> dict[int, int]:
    """Bytes of a pool's segments on a device, by the handle of the stream that owns them."""
    return _by_stream(pool_id, index, "total_size")


def views_of(pool_id: PoolId, index: int) -> list[SegmentView]:
    """A pool's segments on a device."""
    return [
        SegmentView(
            stream=int(segment["stream"]),
            reserved=int(segment["total_size"]),
            live=int(segment["allocated_size"]),
            small=segment["segment_type"] == "small",
        )
        for segment in segments(index, pool_id)
    ]


def reserved_by_pool(index: int) -> dict[Hashable, int]:
    """Bytes of every private pool that has any on a device."""
    sums: dict[Hashable, int] = {}
    for segment in segments(index):
        pool_id = tuple(segment["segment_pool_id"])
        if pool_id != SHARED_ID:
            sums[pool_id] = sums.get(pool_id, 0) + int(segment["total_size"])
    return sums


def allocated_on(pool_id: PoolId, index: int, handle: int) -> int:
    """Bytes in use of a pool, on one stream."""
    return _by_stream(pool_id, index, "allocated_size").get(handle, 0)


def has_others(index: int, ours: frozenset[Hashable]) -> bool:
    """Whether a private pool that is neither in ``ours`` nor a dropped one of ours has memory on a device."""
    there = set(reserved_by_pool(index))
    dropped_ids[index].intersection_update(there)  # what is gone from there never comes back: ids are not used twice
    return bool(there - ours - dropped_ids[index])


def segments(index: int, pool_id: PoolId | None = None) -> list[dict[str, Any]]:
    """The allocator's segments on a device: all, or of one pool.

    All are asked for and the others left out here: asked for one pool, torch gives up references to the numbers of its id that it
    does not own. That is harmless up to 256, which Python keeps for ever; beyond, the process crashes, later and elsewhere.
    """
    everything = torch.cuda.memory_snapshot(include_traces=False)
    return [
        segment
        for segment in everything
        if segment["device"] == index and (pool_id is None or tuple(segment["segment_pool_id"]) == pool_id)
    ]


def _by_stream(pool_id: PoolId, index: int, of: str) -> dict[int, int]:
    sums: dict[int, int] = {}
    for segment in segments(index, pool_id):
        handle = int(segment["stream"])
        sums[handle] = sums.get(handle, 0) + int(segment[of])
    return sums


def _checked(pool_id: object) -> PoolId:
    match pool_id:
        case (int(first), int(second)) if isinstance(pool_id, tuple) and (first, second) != SHARED_ID:
            return first, second
    raise ConfigError(f"not the id of a private CUDA pool: {pool_id!r}; torch.cuda.graph_pool_handle() and MemPool.id give some")
