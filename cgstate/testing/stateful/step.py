"""What a step is: one call of a public door, as a value that prints as the code that makes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from cgstate.testing.stateful.play import Play

__all__ = ["TRIES", "Event", "Step"]

TRIES = 8
"""How many candidates of a kind are looked at before another kind is drawn."""

Event: TypeAlias = StrEnum
"""An event of one of the four tables."""


@dataclass(frozen=True, repr=False)
class Step:
    """One step.

    Attributes:
        brings: Events of the tables that it may bring about.
        weight: How often a walk draws it.
        captures: Whether it may do in one go what makes pools come and go, or lease what it captured: then the books before and
            after it do not show what came in between.
        renews: Whether there is another manager afterwards.
    """

    brings: ClassVar[frozenset[Event]] = frozenset()
    weight: ClassVar[int] = 4
    captures: ClassVar[bool] = False
    renews: ClassVar[bool] = False

    def __repr__(self) -> str:
        """As it would be written; what has its default value is left out."""
        shown = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                shown.append(f"{each.name}={f'{type(value).__name__}.{value.name}' if isinstance(value, StrEnum) else repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same for Hypothesis, which would take a data class to pieces, class variables included."""
        printer.text(repr(self))

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Those that name what there is now, whether or not they are legal."""
        raise TypeError(f"{cls.__name__} does not say what it could be")

    def legal(self, play: Play) -> bool | None:
        """Whether the runtime must do it, or must refuse it and change nothing; None where bytes or the past decide."""
        return True

    def attempted(self, play: Play) -> bool:
        """Whether a run that is taken again takes it: where it is left out because others were, the run is not the same."""
        return self.legal(play) is not False and any(each == self for each in type(self).candidates(play))

    def concerns(self, play: Play) -> frozenset[str]:
        """Names of the entries whose transaction begins and ends within the step."""
        return frozenset()

    def run(self, play: Play) -> None:
        """Do it, judge what comes of it, and tell the model.

        Raises:
            Violated: something came of it that must not.
            Exception: what the runtime raised.
        """
        raise TypeError(f"{type(self).__name__} does not say what it does")

    @classmethod
    def draw(cls, play: Play, random: Random) -> Step | None:
        """One of the candidates that need not be refused; None where it finds none in a few tries."""
        left = list(cls.candidates(play))
        for _ in range(min(TRIES, len(left))):
            step = left.pop(int(random.random() * len(left)))  # a third of the time that `randrange` takes
            if step.legal(play) is not False:
                return step
        return None

    @classmethod
    def legal_ones(cls, play: Play) -> Iterator[Step]:
        """Those of the candidates that need not be refused."""
        return (step for step in cls.candidates(play) if step.legal(play) is not False)
