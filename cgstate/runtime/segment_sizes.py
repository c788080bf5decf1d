"""How the caching allocator cuts memory into segments, in MiB; what its segments hold depends on these."""

from __future__ import annotations

from collections.abc import Iterable

SMALL_LIMIT = 1
"""Up to which an allocation is a small one."""
GRANULE = 2
"""Of a segment for small allocations, and the granule of those of one large allocation."""
LARGE_SEGMENT = 20
"""Of a segment that large allocations share."""
OWN_LIMIT = 10
"""From which a large allocation has a segment of its own."""
BLOCKS = 2048
"""Of the smallest block in a MiB: what every allocation is rounded up to."""


def segments_for(sizes: Iterable[int], unit: int) -> int:
    """Bytes of the segments that allocations take which are made one after the other and kept, with nothing free before.

    Args:
        sizes: Bytes of each.
        unit: Bytes of a MiB.
    """
    taken = 0
    free: dict[bool, list[int]] = {True: [], False: []}
    for size in sizes:
        block = _up(size, max(1, unit // BLOCKS))
        small = block <= SMALL_LIMIT * unit
        left = min((each for each in free[small] if each >= block), default=None)
        if left is None:
            own = block >= OWN_LIMIT * unit
            left = _up(block, GRANULE * unit) if own else unit * (GRANULE if small else LARGE_SEGMENT)
            taken += left
        else:
            free[small].remove(left)
        free[small].append(left - block)
    return taken


def _up(size: int, granule: int) -> int:
    return -(-size // granule) * granule
