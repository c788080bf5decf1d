"""The other ranks, as far as a run needs them: they agree to everything, but for one ballot that was drawn."""

from __future__ import annotations

from collections.abc import Hashable

from cgstate.runtime.vote import Ballot

__all__ = ["Ranks"]


class Ranks:
    """A `cgstate.runtime.vote.RankVote`.

    Attributes:
        disagree: At which ballot from now one of them does not agree; 0: at none.
    """

    def __init__(self) -> None:
        self.disagree = 0

    def agree(self, ballot: Ballot, component: str, descriptor: Hashable) -> bool:
        """As `RankVote.agree`."""
        if not self.disagree:
            return True
        self.disagree -= 1
        return self.disagree > 0
