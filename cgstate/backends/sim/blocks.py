"""Segments, blocks and free lists: how a pool cuts up what it has mapped. Called by the allocator alone, but for `Block` itself.

A segment belongs to one stream for good, and so do the blocks in it: that is why freed memory serves only the stream that freed
it (fact P4).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from cgstate.backends.sim.streams import StreamQueue

PoolId: TypeAlias = tuple[int, int]

GENERAL: PoolId = (0, 0)
"""The id of the pool that everything outside the private pools comes from."""


class Segment:
    """One mapped range, owned by a pool and a stream; ``free_blocks`` is where its free blocks are offered."""

    __slots__ = ("base", "free_blocks", "pool", "queue", "size")

    def __init__(self, base: int, size: int, pool: Pool, queue: StreamQueue, free_blocks: FreeList) -> None:
        self.base = base
        self.size = size
        self.pool = pool
        self.queue = queue
        self.free_blocks = free_blocks


class Block:
    """A part of a segment, free or lent out.

    Attributes:
        start: Address of its first cell.
        size: Cells.
        generation: Counts how often it was freed: an address means the same memory only in the same generation.
        reached: The generation that the device has reached: the host frees ahead of it, in the order of the block's stream.
        baked: How many graphs from outside its pool have its address recorded.
        recorded: Whether it was lent inside a capture: its graph goes on to use it, whoever holds it.
    """

    __slots__ = ("baked", "free", "generation", "next", "prev", "reached", "recorded", "segment", "size", "start")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        self.segment = segment
        self.start = start
        self.size = size
        self.free = True
        self.generation = 0
        self.reached = 0
        self.baked = 0
        self.recorded = False
        self.prev: Block | None = None
        self.next: Block | None = None

    def split(self, size: int) -> Block:
        """Keep ``size`` cells; the rest becomes a block of its own, returned."""
        rest = Block(self.segment, self.start + size, self.size - size)
        rest.prev, rest.next = self, self.next
        if self.next is not None:
            self.next.prev = rest
        self.next = rest
        self.size = size
        return rest

    def absorb_next(self) -> None:
        """Grow over the next block, which stops to exist."""
        gone = self.next
        assert gone is not None
        self.size += gone.size
        self.next = gone.next
        if gone.next is not None:
            gone.next.prev = self

    @property
    def whole_segment(self) -> bool:
        """Whether nothing else is left of its segment."""
        return self.prev is None and self.next is None


class FreeList:
    """The free blocks of one pool, stream and size class, smallest first."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, Block]] = []

    def add(self, block: Block) -> None:
        """Offer ``block``."""
        insort(self._blocks, (block.size, block.start, block))

    def remove(self, block: Block) -> None:
        """Take ``block`` out."""
        del self._blocks[bisect_left(self._blocks, (block.size, block.start))]

    def take(self, size: int) -> Block | None:
        """Take the smallest block of at least ``size`` cells, the lowest address first."""
        at = bisect_left(self._blocks, (size,))
        return self._blocks.pop(at)[2] if at < len(self._blocks) else None

    def blocks(self) -> Iterator[Block]:
        """Every block, smallest first."""
        return (block for _, _, block in self._blocks)

    def take_whole_segments(self) -> list[Block]:
        """Take every block that is all of its segment."""
        whole = [entry[2] for entry in self._blocks if entry[2].whole_segment]
        self._blocks = [entry for entry in self._blocks if not entry[2].whole_segment]
        return whole


class Pool:
    """Memory that is handed out together. A private one is kept open by its use count (facts P1, P3)."""

    __slots__ = ("_lists", "id", "segments", "use_count")

    def __init__(self, pool_id: PoolId) -> None:
        self.id = pool_id
        self.use_count = 1
        self.segments: list[Segment] = []
        self._lists: dict[tuple[int, bool], FreeList] = {}

    def free_list(self, stream: int, small: bool) -> FreeList:
        """The free blocks of ``stream``, small or large."""
        key = (stream, small)
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = FreeList()
        return found

    def take_whole_segments(self) -> list[Block]:
        """Take out every segment that is wholly free, each as its one block."""
        whole = [block for free_list in self._lists.values() for block in free_list.take_whole_segments()]
        for block in whole:
            self.segments.remove(block.segment)
        used = {segment.free_blocks for segment in self.segments}
        self._lists = {key: free_list for key, free_list in self._lists.items() if free_list in used}
        return whole
