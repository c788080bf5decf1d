"""Which misses may capture: the k-th of a descriptor, and a later one if it was evicted to make room before.

Two descriptors that fight for one place would otherwise capture at every call. Each eviction that makes room doubles the misses
that the evicted one's return takes; each `MOST` replays that it served halve them again. So other calls pay for every capture: how
many there are grows with the logarithm of the fight at first, then by one in `MOST` calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

MOST = 64
"""The most misses that a return takes, unless ``admit_after`` itself is more; and the replays that halve them."""


@dataclass(slots=True)
class _Standing:
    """Of one descriptor: misses since it was last captured, and how many it needs."""

    misses: int
    needs: int


class Admission:
    """One component's door for lazy captures; bounded, the longest untouched forgotten first. Guarded by the device's lock.

    Args:
        after: Misses of a descriptor, from the first on, until one captures.
        protect: Whether evictions make a return harder.
        limit: How many descriptors are remembered.
    """

    __slots__ = ("_after", "_protect", "_standings", "limit")

    def __init__(self, after: int, *, protect: bool, limit: int) -> None:
        self._after = after
        self._protect = protect
        self._standings: OrderedDict[Hashable, _Standing] = OrderedDict()
        self.limit = limit

    def __len__(self) -> int:
        return len(self._standings)

    def admits(self, descriptor: Hashable) -> bool:
        """Count a miss; whether it may capture. It stays admitted until it is captured or forgotten."""
        if self._after == 1 and descriptor not in self._standings:
            return True
        standing = self._touch(descriptor)
        standing.misses += 1
        return standing.misses >= standing.needs

    def captured(self, descriptor: Hashable) -> None:
        """It is bound: the next return is counted from nothing."""
        standing = self._standings.get(descriptor)
        if standing is None:
            return
        standing.misses = 0
        if standing.needs == self._after:
            del self._standings[descriptor]

    def evicted(self, descriptor: Hashable, hits: int) -> None:
        """It had to make room, after ``hits`` replays."""
        if self._protect:
            standing = self._touch(descriptor)
            doubled = min(standing.needs * 2, max(MOST, self._after))
            standing.needs = max(doubled >> (hits // MOST), self._after)

    def _touch(self, descriptor: Hashable) -> _Standing:
        standing = self._standings.setdefault(descriptor, _Standing(0, self._after))
        self._standings.move_to_end(descriptor)
        while len(self._standings) > self.limit:
            self._standings.popitem(last=False)
        return standing
