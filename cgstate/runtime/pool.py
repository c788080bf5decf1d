"""A memory pool in use: its table's steps, its turn, and the bytes charged for it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from cgstate.backends.base import MemoryPool
from cgstate.lifecycle.states import PoolKind, PoolState
from cgstate.lifecycle.steps import PoolSteps
from cgstate.runtime.turn import Turn

if TYPE_CHECKING:
    from cgstate.runtime.domain import Domain


class Pool(PoolSteps):
    """One private pool of one domain.

    Attributes:
        handle: The backend's pool.
        turn: Orders the calls into the pool.
        drops: How many recordings were dropped with their transaction.
        wasted: Bytes of them that were grown by attempts which failed, or which were dropped with their transaction (fact S4).
    """

    __slots__ = ("__weakref__", "_charged", "_label", "drops", "handle", "turn", "wasted")

    domain: Domain

    def __init__(self, label: str, kind: PoolKind, handle: MemoryPool, domain: Domain) -> None:
        self.reset_variables()
        self.kind = kind
        self.handle = handle
        self.domain = domain
        self.turn = Turn(label)
        self._charged = 0
        self.drops = 0
        self.wasted = 0
        self._label = label

    @property
    def name(self) -> str:
        """E.g. ``shared/2``: the domain and its generation."""
        return self._label

    @property
    def id(self) -> Hashable:
        """The allocator's id."""
        return self.handle.id

    @property
    def charged(self) -> int:
        """Bytes charged for it: its segments when they were last measured, after a capture or a destruction."""
        return self._charged

    @property
    def spent(self) -> bool:
        """Whether nothing will ever be captured or replayed in it any more."""
        return self.state is PoolState.RETIRED

    @property
    def lent(self) -> bool:
        """Whether anything is lent out of it: to a graph, a library, or whoever holds an output."""
        return any(segment.live for segment in self.handle.segments())

    def owed(self) -> int:
        """What would be charged if it were measured now."""
        return self.bytes()

    def bytes(self) -> int:
        """Reserved bytes of the pool's own segments."""
        return sum(self.handle.reserved_bytes().values())

    def measure(self, *, failed: bool = False) -> int:
        """Charge what the pool's segments hold now, and return it; ``failed``: an attempt that failed has grown it."""
        before, self._charged = self._charged, self.bytes()
        if failed:
            self.wasted += max(0, self._charged - before)
        return self._charged
