"""A memory pool in use: its table's steps, its turn, and the bytes charged for it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from cgstate.backends.base import MemoryPool
from cgstate.lifecycle.states import PoolKind
from cgstate.lifecycle.steps import PoolSteps
from cgstate.runtime.turn import Turn

if TYPE_CHECKING:
    from cgstate.runtime.domain import Domain


class Pool(PoolSteps):
    """One private pool of one domain.

    Attributes:
        handle: The backend's pool.
        turn: Orders the calls into the pool.
        charged: Bytes charged for it: its segments when they were last measured, after a capture or a destruction.
    """

    __slots__ = ("_label", "charged", "handle", "turn")

    domain: Domain

    def __init__(self, label: str, kind: PoolKind, handle: MemoryPool, domain: Domain) -> None:
        self.reset_variables()
        self.kind = kind
        self.handle = handle
        self.domain = domain
        self.turn = Turn(label)
        self.charged = 0
        self._label = label

    @property
    def name(self) -> str:
        """E.g. ``shared/2``: the domain and its generation."""
        return self._label

    @property
    def id(self) -> Hashable:
        """The allocator's id."""
        return self.handle.id

    def bytes(self) -> int:
        """Reserved bytes of the pool's own segments."""
        return sum(self.handle.reserved_bytes().values())

    def measure(self) -> int:
        """Charge what the pool's segments hold now, and return it."""
        self.charged = self.bytes()
        return self.charged
