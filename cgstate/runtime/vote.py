"""The place of the rank vote: all ranks are asked before a collective component captures by its routine, commits, or makes room."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum, auto
from typing import Protocol


class Ballot(StrEnum):
    """What is voted on."""

    capture = auto()
    commit = auto()
    evict = auto()


class RankVote(Protocol):
    """Asks the other ranks. Must answer the same on every rank, and must not raise because a peer failed."""

    def agree(self, ballot: Ballot, component: str, descriptor: Hashable) -> bool:
        """Whether all ranks take this step now."""
        ...


class AloneInTheWorld:
    """The default: one rank, always of one mind."""

    def agree(self, ballot: Ballot, component: str, descriptor: Hashable) -> bool:
        """Yes."""
        return True
