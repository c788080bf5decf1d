"""The caching allocator: who gets which block, what is kept for later, and when a pool may be opened.

Called by storages, graphs, pool handles and the device; never by users. It keeps the host's books only: the clock of the device is
not looked at except to wait for it before memory is unmapped.

A private pool goes through the phases of its use count (fact P1): open while a graph, an anchor or a recording holds it; latched
for good once the count reaches 0; erased when its last segment is returned. Its twin in the allocator of pinned host memory
counts the same uses, and is not erased with it, so a latched id stays latched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from cgstate.backends.sim.blocks import GENERAL, Block, Pool, PoolId, Segment
from cgstate.backends.sim.errors import SimInternalAssert, SimOutOfMemory, SimRecordingError
from cgstate.backends.sim.host import Host
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

    def __init__(self, pool_id: PoolId, claims: Callable[[StreamQueue, Host], bool]) -> None:
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
        self._routes: list[Route] = []
        self._serial = count(1)
        self._minted = 0
        self.epoch = 0
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0

    # -- blocks -------------------------------------------------------------------------------------------------------

    def allocate(self, size: int, queue: StreamQueue, host: Host) -> Block:
        """Lend a block of ``size`` cells to the stream.

        Raises:
            SimOutOfMemory: neither cached nor free memory would do.
        """
        pool = self._general
        for route in self._routes:
            if route.claims(queue, host):
                pool = self._pools[route.pool_id]
                break
        small = size <= SMALL_LIMIT
        free = pool.free_list(queue.handle, small)
        block = free.take(size) or self._grow(pool, queue, size)
        rest = block.size - size
        if rest > (0 if small else SMALL_LIMIT):
            free.add(block.split(size))
        block.free = False
        block.recorded = queue.capture is not None
        self.allocated_bytes += block.size * ITEM_BYTES
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back, for later use by its own stream."""
        self.allocated_bytes -= block.size * ITEM_BYTES
        block.free = True
        block.generation += 1
        if block.baked:
            self.epoch += 1
        segment = block.segment
        free = segment.pool.free_list(segment.queue.handle, segment.small)
        if block.next is not None and block.next.free:
            free.remove(block.next)
            block.absorb_next()
        if block.prev is not None and block.prev.free:
            block = block.prev
            free.remove(block)
            block.absorb_next()
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
        segment = Segment(base, extent, pool, queue, small)
        pool.segments.append(segment)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._memory.mapped_bytes)
        return Block(segment, base, extent)

    def return_unused(self) -> int:
        """Unmap every wholly free segment that no open private pool keeps (facts P6, S4); the bytes returned."""
        returned = 0
        for pool in (self._general, *(pool for pool in self._pools.values() if pool.use_count == 0)):
            for block in pool.take_whole_segments():
                returned += self._memory.unmap(block.segment.base)
        for pool_id in [id_ for id_, pool in self._pools.items() if pool.use_count == 0 and not pool.segments]:
            del self._pools[pool_id]
        return returned

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

    def bytes_by_stream(self, pool_id: PoolId) -> Mapping[int, int]:
        """Reserved bytes of one private pool, by the handle of the stream that owns the segments (facts P4, P5)."""
        by_stream: dict[int, int] = {}
        pool = self._pools.get(pool_id)
        for segment in pool.segments if pool is not None else ():
            handle = segment.queue.handle
            by_stream[handle] = by_stream.get(handle, 0) + segment.size * ITEM_BYTES
        return by_stream
