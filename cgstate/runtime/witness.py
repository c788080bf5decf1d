"""Who is told more than transitions: what changes outside the tables, and what the device gave back."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Protocol, runtime_checkable

from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.steps import Steps


class Notice(StrEnum):
    """What a witness is told of besides transitions."""

    answered = auto()
    """A call of the component was answered eagerly; the value is the reason, a `cgstate.Fallback`."""
    epoch = auto()
    """Memory that the component depends on has moved; the value is its new epoch."""
    resident = auto()
    """Memory that the component depends on has gone, or is there again; the value says whether all of it is there."""
    flushed = auto()
    """The manager gave cached memory back to the device; the value is how many bytes."""


@runtime_checkable
class Witness(Protocol):
    """An observer that is also told what is no transition. Both are called under the device's lock."""

    def step(self, entity: Steps, row: int, state: str) -> None:
        """As an `Observer`: an entity took a row of its table from ``state``."""
        ...

    def notice(self, entity: Steps, what: Notice, value: Value) -> None:
        """Something happened to an entity, or by it, that no table knows."""
        ...
