"""What is drawn once, before the first step of a run: how the manager is made, and what may happen to it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

from cgstate.backends.base import CaptureErrorMode
from cgstate.runtime.component import CaptureMode
from cgstate.runtime.domain import Isolation

if TYPE_CHECKING:
    from cgstate.testing.stateful.bed import Capabilities

__all__ = ["DEFAULT", "Setup"]


@dataclass(frozen=True)
class Setup:
    """One way to set a run up.

    Attributes:
        isolation: How far entries are kept apart.
        mode: When graphs are captured.
        extra: Lazily captured graphs that a component may have beyond its declared ones.
        admit_after: At which miss a descriptor is captured.
        concurrent: Whether one graph may be leased twice at once.
        error_mode: How far a capture forbids what other threads do.
        ranks: Components run collectives, and other ranks have to agree to their captures.
        nested: One component is declared inside another, whose graphs call it in an eager break.
        watched: The manager has an observer and audits itself; else its hot path takes the short way, and only its books are seen.
        faulty: Faults may be injected.
        seed: Of the device's schedule, where the device has one that can be chosen.
    """

    isolation: Isolation = Isolation.shared
    mode: CaptureMode = CaptureMode.PRECAPTURE_LAZY
    extra: int = 1
    admit_after: int = 1
    concurrent: bool = True
    error_mode: CaptureErrorMode = CaptureErrorMode.thread_local
    ranks: bool = False
    nested: bool = False
    watched: bool = True
    faulty: bool = False
    seed: int = 0

    def __repr__(self) -> str:
        """Only what differs from the default, so that a printed run is short."""
        given = (f"{each.name}={_code(getattr(self, each.name))}" for each in fields(self) if self._differs(each.name))
        return f"Setup({', '.join(given)})"

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(DEFAULT, name))

    @classmethod
    def drawn(cls, random: Random) -> Setup:
        """One of them all."""
        return cls(**{name: random.choice(values) for name, values in CHOICES.items()}, seed=random.randrange(1 << 16)).valid()

    def valid(self) -> Setup:
        """The same, without what its mode has no use for, and with nothing inside of what has a pool for each entry."""
        shared = self if self.isolation is not Isolation.per_entry else replace(self, nested=False)
        return shared if self.mode.allows_lazy else replace(shared, extra=0, admit_after=1)

    def within(self, can: Capabilities) -> Setup:
        """The same, without what a bed cannot do."""
        own = self if can.foreign or self.isolation is not Isolation.foreign else replace(self, isolation=Isolation.shared)
        return own if can.nested else replace(own, nested=False)


CHOICES: dict[str, tuple[Any, ...]] = {
    "isolation": tuple(Isolation),
    "mode": (CaptureMode.PRECAPTURE_LAZY, CaptureMode.PRECAPTURE, CaptureMode.PURE_LAZY),
    "extra": (1, 0),
    "admit_after": (1, 2),
    "concurrent": (True, False),
    "error_mode": (CaptureErrorMode.thread_local, CaptureErrorMode.global_, CaptureErrorMode.relaxed),
    "ranks": (False, False, True),
    "watched": (True, True, False),
    "faulty": (False, True),
    "nested": (False, False, True),
}
"""What may be drawn, by attribute; the first is the simplest."""

DEFAULT = Setup()


def _code(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if hasattr(value, "name") else repr(value)
