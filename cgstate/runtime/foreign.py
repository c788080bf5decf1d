"""A pool of the host engine's that our graphs record into as well, e.g. vLLM's global one.

It is never retired or dropped by us, and its other graphs are unknown: so while it lives no library workspace is cleared (W2, W3),
and eviction returns nothing. Its owner keeps it open, by a graph or an owner of its own in it, before the first capture and after
the last; an id that nobody keeps open any more cannot be captured into ever again (P1).

Charged are the bytes that it grew during captures of ours, until the manager is closed: what they leave there when they go is
free for the next capture on their stream, and for nobody else (P4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgstate.backends.base import MemoryPool
from cgstate.errors import PoolRetired
from cgstate.lifecycle.states import PoolKind
from cgstate.runtime.pool import Pool

if TYPE_CHECKING:
    from cgstate.runtime.domain import Domain


class ForeignPool(Pool):
    """The engine's pool, as the domain that records into it sees it."""

    __slots__ = ("_grown", "_mark", "_unmeasured")

    def __init__(self, label: str, handle: MemoryPool, domain: Domain) -> None:
        super().__init__(label, PoolKind.foreign, handle, domain)
        self._grown = 0
        self._mark: int | None = None
        self._unmeasured = False

    def check_open(self) -> None:
        """Look before a capture, and note what the pool holds before it; the lock is held.

        Where the one before could not be measured, its mark stays, so that what it grew is charged with this one's.

        Raises:
            PoolRetired: nobody keeps the pool open, and the allocator says so. Nothing was changed.
        """
        refuse_retired(self.handle, self.name)
        if not self._unmeasured:
            self._mark = self.bytes()

    @property
    def spent(self) -> bool:
        """Whether none of our graphs lives in it; its others are none of our business."""
        return not self.domain.live

    @property
    def charged(self) -> int:
        """What captures of ours have grown, as far as it is still there."""
        return min(self._grown, self.bytes())

    def owed(self) -> int:
        """What would be charged if it were measured now."""
        total = self.bytes()
        return min(self._grown + (max(0, total - self._mark) if self._mark is not None else 0), total)

    def measure(self, *, failed: bool = False) -> int:
        """Charge what the pool grew since the capture before which it was last looked at, and return all that is charged."""
        if self._mark is not None:
            self._unmeasured = True
            grown = max(0, self.bytes() - self._mark)  # may raise
            self._unmeasured, self._mark = False, None
            self._grown += grown
            if failed:
                self.wasted += grown
        return self.charged

    def hand_over(self) -> None:
        """We are done with it: what is left there is its owner's."""
        self._grown = 0


def refuse_retired(handle: MemoryPool, name: str) -> None:
    """Refuse a pool that cannot be captured into, where the allocator tells.

    Raises:
        PoolRetired: nothing keeps it open.
    """
    if handle.use_count() == 0:
        raise PoolRetired("pool", f"{name} {handle.id}", "RETIRED", "begin", "its owner keeps it open")
