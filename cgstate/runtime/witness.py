"""Who is told more than transitions: what changes outside the tables, and what the device gave back."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.steps import Steps

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import ComponentRecord


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
    """An observer that is also told what is no transition. Both are called under the device's lock.

    What either raises is kept, and raised once the operation is whole.
    """

    def step(self, entity: Steps, row: int, state: str) -> None:
        """As an `Observer`: an entity took a row of its table from ``state``."""
        ...

    def notice(self, entity: Steps, what: Notice, value: Value) -> None:
        """Something happened to an entity, or by it, that no table knows."""
        ...


@runtime_checkable
class LeaseWitness(Witness, Protocol):
    """A witness that takes an ordinary lease, the one thing that happens at each replay, in one word instead of up to two steps.

    Ordinary are the rows between BOUND and REPLAYING, of the entry and then of its component.
    """

    def acquired(self, entry: Entry, component: ComponentRecord | None, thread: int) -> None:
        """An entry has gone from BOUND to REPLAYING, and its component after it; None: the component was there already.

        It was ``thread`` that did it, which calls this.
        """
        ...

    def released(self, entry: Entry, component: ComponentRecord | None) -> None:
        """An entry has gone from REPLAYING to BOUND, and its component after it; None: the component is still in use."""
        ...
