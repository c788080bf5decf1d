"""Declaring something inside of what is captured by hand: from then on nothing of that may be live across an eager break."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from cgstate.lifecycle.states import EntryState
from cgstate.runtime.domain import Isolation
from cgstate.testing.stateful.play import HAND, Play
from cgstate.testing.stateful.step import Step

__all__ = ["DeclareInside"]

INSIDE = "inside by hand"
"""A component that replays in the breaks of what is captured by hand."""


@dataclass(frozen=True, repr=False)
class DeclareInside(Step):
    """Name an entry whose graph is to replay in the breaks of graphs that are captured by hand."""

    weight: ClassVar[int] = 10

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Once there is something to be inside of, and it has one pool for all."""
        can = play.bed.can.by_hand and play.bed.can.nested and play.setup.isolation is not Isolation.per_entry
        return (cls(),) if can and play.manager is not None and HAND in play.model.needs else ()

    def legal(self, play: Play) -> bool:
        """While no recording leaves something live across a break, of a manager that is open."""
        return play.model.open and not (INSIDE not in play.model.inside and any(_leaves_live(play, name) for name in play.handmade))

    def run(self, play: Play) -> None:
        """Declare it; again changes nothing."""
        play.of_manager().entry(INSIDE, play.hand_descriptors[0], inside=HAND)
        play.model.inside[INSIDE] = HAND


def _leaves_live(play: Play, name: str) -> bool:
    """Whether there is a recording that may be replayed, or bound and then replayed, and has something live across its break."""
    note = play.model.entries.get(name)
    recorded = note is not None and note.state in (EntryState.CAPTURING, EntryState.BOUND, EntryState.REPLAYING)
    return recorded and play.handmade[name].breaks is not None
