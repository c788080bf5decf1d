"""The caching allocator: who gets which block, what is kept for later, and when a pool may be opened.

Called by storages, graphs, pool handles and the device; never by users. It keeps the host's books only: the clock of the device is
not looked at except to wait for it before memory is unmapped.

A private pool goes through the phases of its use count (fact P1): open while a graph, an anchor or a recording holds it; latched
for good once the count reaches 0; erased when its last segment is returned. Its twin in the allocator of pinned host memory
counts the same uses, and is not erased with it, so a latched id stays latched until cached host memory is returned, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count

from cgstate.backends.sim.blocks import GENERAL, Block, Pool, PoolId, Segment
from cgstate.backends.sim.errors import SimInternalAssert, SimOutOfMemory, SimRecordingError
from cgstate.backends.sim.memory import (
    ITEM_BYTES,
    LARGE_SEGMENT,
    OWN_SEGMENT_LIMIT,
    SEGMENT_ROUND,
    SMALL_LIMIT,
    SMALL_SEGMENT,
    DeviceMemory,
)
from cgstate.backends.sim.streams import StreamQueue


class Route:
    """While it is installed, allocations that it claims come from ``pool_id``."""

    __slots__ = ("claims", "pool_id")

    def __init__(self, pool_id: PoolId, claims: Callable[[StreamQueue], bool]) -> None:
        self.pool_id = pool_id
        self.claims = claims


class Allocator:
    """The books of one device's memory.

    Attributes:
        epoch: Moves on whenever a block was freed whose address a graph of another pool has recorded.
        allocated_bytes: Bytes of blocks lent out.
        peak_allocated_bytes: The most that `allocated_bytes` ever was.
        peak_reserved_bytes: The most that was ever mapped.
    """

    def __init__(self, memory: DeviceMemory, may_return: Callable[[], bool]) -> None:
        """``may_return`` waits for the device and says whether cached memory may be returned now (not in a capture)."""
        self._memory = memory
        self._may_return = may_return
        self._general = Pool(GENERAL)
        self._pools: dict[PoolId, Pool] = {}
        self._host_uses: dict[PoolId, int] = {}
        self._host_routes: set[PoolId] = set()
        self._routes: list[Route] = []
        self._serial = count(1)
        self._minted = 0
        self.epoch = 0
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0

    # -- blocks -------------------------------------------------------------------------------------------------------

    def allocate(self, size: int, queue: StreamQueue) -> Block:
        """Lend a block of ``size`` cells to the stream.

        Raises:
            SimOutOfMemory: neither cached nor free memory would do.
        """
        pool = self._general
        for route in self._routes:
            if route.claims(queue):
                pool = self._pools[route.pool_id]
                break
        small = size <= SMALL_LIMIT
        block = pool.free_list(queue.handle, small).take(size) or self._grow(pool, queue, size)
        if block.size - size > (0 if small else SMALL_LIMIT):
            block.segment.free_blocks.add(block.split(size))
        block.free = False
        block.recorded = queue.capture is not None
        self.allocated_bytes += block.size * ITEM_BYTES
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: Block) -> None:
        """Take a block back, for later use by its own stream."""
        self.allocated_bytes -= block.size * ITEM_BYTES
        block.free = True
        block.generation += 1
        if block.baked:
            self.epoch += 1
        free = block.segment.free_blocks
        after, before = block.next, block.prev
        if after is not None and after.free:
            free.remove(after)
            block.absorb_next()
        if before is not None and before.free:
            free.remove(before)
            before.absorb_next()
            block = before
        free.add(block)

    def _grow(self, pool: Pool, queue: StreamQueue, size: int) -> Block:
        small = size <= SMALL_LIMIT
        if small:
            extent = SMALL_SEGMENT
        elif size < OWN_SEGMENT_LIMIT:
            extent = LARGE_SEGMENT
        else:
            extent = -(-size // SEGMENT_ROUND) * SEGMENT_ROUND
        base = self._memory.map(extent)
        if base is None and self._may_return():
            self.return_unused()
            base = self._memory.map(extent)
        if base is None:
            raise SimOutOfMemory(
                f"out of memory: tried to allocate {extent * ITEM_BYTES} bytes; {self._memory.free_bytes()} of "
                f"{self._memory.capacity_bytes} are free, {self._memory.mapped_bytes} are held here"
            )
        segment = Segment(base, extent, pool, queue, pool.free_list(queue.handle, small))
        pool.segments.append(segment)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._memory.mapped_bytes)
        return Block(segment, base, extent)

    def return_unused(self) -> int:
        """Unmap every wholly free segment that no open private pool keeps (facts P6, S4); the bytes returned.

        While allocations are routed to some pool, by a capture that failed as well, what lies outside the private pools stays.
        """
        unused = [pool for pool in self._pools.values() if pool.use_count == 0]
        return self._return(unused if self._routes else [self._general, *unused])

    def return_pool(self, pool_id: PoolId) -> int:
        """The same for one private pool, once it has no uses."""
        pool = self._pools.get(pool_id)
        return self._return([pool] if pool is not None and pool.use_count == 0 else [])

    def _return(self, pools: Iterable[Pool]) -> int:
        returned = 0
        for pool in pools:
            for block in pool.take_whole_segments():
                returned += self._memory.unmap(block.segment.base)
            if pool is not self._general and not pool.segments:
                del self._pools[pool.id]
        return returned

    def reset_peaks(self) -> None:
        """Let the high-water marks start again from what is held now."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_reserved_bytes = self._memory.mapped_bytes

    # -- private pools ------------------------------------------------------------------------------------------------

    def mint(self, *, by_user: bool) -> PoolId:
        """A new pool id; no pool exists under it yet."""
        self._minted = next(self._serial)
        return (0, self._minted) if by_user else (self._minted, 0)

    def is_pool_id(self, value: object) -> bool:
        """Whether ``value`` has been minted here."""
        match value:
            case (int() as first, int() as second):
                return min(first, second) == 0 < max(first, second) <= self._minted
        return False

    def retain(self, pool_id: PoolId) -> None:
        """Take one use of the pool, making it if there is none.

        Raises:
            SimInternalAssert: the id is latched; nothing was taken (fact P1).
        """
        pool = self._pools.get(pool_id)
        if pool is None:
            self._pools[pool_id] = Pool(pool_id)
        elif pool.use_count == 0:
            raise SimInternalAssert("it->second->use_count > 0 INTERNAL ASSERT FAILED (device allocator)")
        else:
            pool.use_count += 1

    def release(self, pool_id: PoolId) -> None:
        """Give one use back. The memory of a pool without uses returns at the next flush."""
        self._pools[pool_id].use_count -= 1

    def retain_on_host(self, pool_id: PoolId) -> None:
        """Take one use of the pool's twin in host memory.

        Raises:
            SimInternalAssert: the id is latched; nothing was taken (fact P1).
        """
        uses = self._host_uses.get(pool_id)
        if uses == 0:
            raise SimInternalAssert("it->second->use_count > 0 INTERNAL ASSERT FAILED (host allocator)")
        self._host_uses[pool_id] = (uses or 0) + 1

    def release_on_host(self, pool_id: PoolId) -> None:
        """Give one use of the twin back."""
        self._host_uses[pool_id] -= 1

    def begin_route_on_host(self, pool_id: PoolId) -> None:
        """Send allocations of pinned host memory to the pool's twin.

        Raises:
            SimRecordingError: they go there already (fact F5).
        """
        if pool_id in self._host_routes:
            raise SimRecordingError
        self._host_routes.add(pool_id)

    def end_route_on_host(self, pool_id: PoolId) -> None:
        """Stop that."""
        self._host_routes.discard(pool_id)

    def return_unused_on_host(self) -> None:
        """Return cached pinned memory; a twin without uses is forgotten, and its latch with it (fact P1)."""
        self._host_uses = {pool_id: uses for pool_id, uses in self._host_uses.items() if uses}

    def begin_route(self, route: Route) -> None:
        """Send the allocations that ``route`` claims to its pool.

        Raises:
            SimRecordingError: another route leads there already (fact F5).
        """
        if any(other.pool_id == route.pool_id for other in self._routes):
            raise SimRecordingError
        self._routes.append(route)

    def end_route(self, route: Route) -> None:
        """Stop ``route``. No-op when it is not installed."""
        if route in self._routes:
            self._routes.remove(route)

    # -- what it holds ------------------------------------------------------------------------------------------------

    def use_count(self, pool_id: PoolId) -> int:
        """How many uses keep the pool open; 0 when it is gone or latched."""
        pool = self._pools.get(pool_id)
        return 0 if pool is None else pool.use_count

    def pool_bytes(self) -> Mapping[PoolId, int]:
        """Reserved bytes of every private pool."""
        return {pool_id: sum(s.size for s in pool.segments) * ITEM_BYTES for pool_id, pool in self._pools.items()}

    def segments_of(self, pool_id: PoolId) -> list[tuple[Segment, int]]:
        """The segments of one private pool, or with `GENERAL` those of none, each with the bytes of it that are lent out."""
        pool = self._general if pool_id == GENERAL else self._pools.get(pool_id)
        segments = pool.segments if pool is not None else []
        free: dict[Segment, int] = {}
        for free_list in {segment.free_blocks for segment in segments}:
            for block in free_list.blocks():
                free[block.segment] = free.get(block.segment, 0) + block.size
        return [(segment, (segment.size - free.get(segment, 0)) * ITEM_BYTES) for segment in segments]

    def bytes_by_stream(self, pool_id: PoolId) -> Mapping[int, int]:
        """Reserved bytes of one private pool, by the handle of the stream that owns the segments (facts P4, P5)."""
        by_stream: dict[int, int] = {}
        pool = self._pools.get(pool_id)
        for segment in pool.segments if pool is not None else ():
            handle = segment.queue.handle
            by_stream[handle] = by_stream.get(handle, 0) + segment.size * ITEM_BYTES
        return by_stream
