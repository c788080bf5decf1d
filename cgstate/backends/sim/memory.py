"""The device's memory: cells at addresses, mapped and unmapped in ranges.

Called by the allocator (mapping), by work that runs on the device (`load`, `store`) and by host reads. One cell is one element of
`ITEM_BYTES` bytes; an address is the index of a cell. All cells live in one list, so memory that is handed out again at an old
address really is the old memory.

Sizes are those of torch's allocator with `SCALE` taken off: what is a MiB there is a KiB here, so the facts' numbers can be
compared as they stand. The one exception is the smallest block: one cell of 8 bytes (0.5 would be to scale).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TypeAlias

ITEM_BYTES = 8
SCALE = 1024

_MIB = 1024 * 1024 // SCALE // ITEM_BYTES
"""Cells that stand for a MiB of the real device."""

SMALL_LIMIT = 1 * _MIB
"""Cells up to which an allocation is a small one."""
SMALL_SEGMENT = 2 * _MIB
"""Cells of a segment for small allocations."""
LARGE_SEGMENT = 20 * _MIB
"""Cells of a segment for large allocations that do not get a segment of their own."""
OWN_SEGMENT_LIMIT = 10 * _MIB
"""Cells from which a large allocation gets a segment of its own."""
SEGMENT_ROUND = 2 * _MIB
"""Granule of a segment of one's own."""

POISON = float("nan")
"""What freed cells hold, told from other NaNs by identity."""
UNINITIALISED = float("nan")
"""What cells hold when they are mapped."""

Span: TypeAlias = "slice[int, int, int | None]"
View: TypeAlias = "Span | tuple[Span, ...]"
"""Where a tensor's elements lie: one run of cells, or its rows one by one."""
Target: TypeAlias = "tuple[View, int]"
"""Where the values of an output go, and how many there are."""


def load(cells: list[float], view: View) -> list[float]:
    """The values that ``view`` shows, in order."""
    if type(view) is slice:
        return cells[view]
    values: list[float] = []
    for span in view:
        values += cells[span]
    return values


def store(cells: list[float], view: View, size: int, values: list[float]) -> None:
    """Write ``values`` where ``view`` points.

    Raises:
        ValueError: not exactly ``size`` values; nothing was written.
    """
    if len(values) != size:
        raise ValueError(f"a kernel wrote {len(values)} values into a tensor of {size}")
    if type(view) is slice:
        cells[view] = values
        return
    row = size // max(1, len(view))
    for index, span in enumerate(view):
        cells[span] = values[index * row : (index + 1) * row]


class DeviceMemory:
    """Capacity, and which address ranges are mapped. New ranges take the lowest gap that fits, so old addresses come back."""

    __slots__ = ("_bases", "_graph_bytes", "_sizes", "capacity_bytes", "cells", "driver_bytes", "foreign_bytes", "mapped_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.cells: list[float] = []
        self.mapped_bytes = 0
        self.foreign_bytes = 0
        """Bytes that other processes hold on this device."""
        self.driver_bytes = 0
        """Bytes that the driver keeps for graphs, outside the allocator (fact P8)."""
        self._graph_bytes = 0
        self._bases: list[int] = []
        self._sizes: dict[int, int] = {}

    def free_bytes(self) -> int:
        """What is left for everybody."""
        return self.capacity_bytes - self.mapped_bytes - self.foreign_bytes - self.driver_bytes

    def charge_graph(self, size: int) -> None:
        """Make room for a new graph's ``size`` bytes."""
        self._graph_bytes += size
        self.driver_bytes = max(self.driver_bytes, self._graph_bytes)

    def discharge_graph(self, size: int) -> None:
        """A graph is gone; the driver keeps the memory for the next one (fact P8)."""
        self._graph_bytes -= size

    def map(self, size: int) -> int | None:
        """Map ``size`` cells and return their address; None when the device is full."""
        if size * ITEM_BYTES > self.free_bytes():
            return None
        base = 0
        for taken in self._bases:
            if taken - base >= size:
                break
            base = taken + self._sizes[taken]
        insort(self._bases, base)
        self._sizes[base] = size
        self.mapped_bytes += size * ITEM_BYTES
        self.cells[base : base + size] = [UNINITIALISED] * size
        return base

    def unmap(self, base: int) -> int:
        """Give the range at ``base`` back to the device; the bytes returned."""
        size = self._sizes.pop(base)
        del self._bases[bisect_left(self._bases, base)]
        self.mapped_bytes -= size * ITEM_BYTES
        end = self._bases[-1] + self._sizes[self._bases[-1]] if self._bases else 0
        del self.cells[end:]
        return size * ITEM_BYTES

    def is_mapped(self, start: int, stop: int) -> bool:
        """Whether all cells from ``start`` to before ``stop`` lie in mapped ranges."""
        while start < stop:
            at = bisect_right(self._bases, start) - 1
            if at < 0:
                return False
            end = self._bases[at] + self._sizes[self._bases[at]]
            if end <= start:
                return False
            start = end
        return True
