"""The invariants, for who looks at one World after another: only what could have changed since is asked again.

A predicate is a function of the parts of the Worlds that it reads, and of its act. While these are equal to what they were, so is
its answer; which parts they are is noted while it runs. The answers are those of `invariants.broken_in` and `invariants.broken_by`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cgstate.lifecycle.invariants import Checker, Invariant, OnState, OnStep, Violation, registered
from cgstate.lifecycle.world import Act, World

__all__ = ["Watch"]


class Watch:
    """One checker, and what it has seen last."""

    def __init__(self, checker: Checker) -> None:
        self._of_states = [_Question(invariant, each.violations) for invariant, each in registered(OnState, checker)]
        self._of_steps = [_Question(invariant, each.violations) for invariant, each in registered(OnStep, checker)]
        self._last: World | None = None
        self._moved = _ALL
        self._act: Act | None = None

    def broken_in(self, world: World) -> list[Violation]:
        """What a World violates, whatever came before it."""
        self._last, self._moved = world, _ALL
        return self._answers(self._of_states, _ALL, world)

    def broken_by(self, before: World, after: World, act: Act) -> tuple[list[Violation], list[Violation]]:
        """What the World after an act violates, and what the act does, seen from the Worlds before and after it."""
        moved = _differing(before, after)
        known = before is self._last
        in_state = self._answers(self._of_states, moved if known else _ALL, after)
        changed = moved | self._moved if known else _ALL  # this pair of Worlds beside the last pair
        if self._act is None or act.name != self._act.name:
            changed |= _NAME
        if self._act is None or act.transaction != self._act.transaction:
            changed |= _TRANSACTION
        by_step = self._answers(self._of_steps, changed, before, after, act)
        self._last, self._moved, self._act = after, moved, act
        return in_state, by_step

    @staticmethod
    def _answers(questions: list[_Question], changed: int, *about: World | Act) -> list[Violation]:
        found: list[Violation] = []
        for question in questions:
            if question.reads & changed:
                question.ask(*about)
            if question.answer:
                found += question.answer
        return found


class _Question:
    """One predicate.

    Attributes:
        reads: The parts that the answer comes from, one bit each.
        answer: What it last found.
    """

    __slots__ = ("_invariant", "_violations", "answer", "reads")

    def __init__(self, invariant: Invariant, violations: Callable[..., Iterator[str]]) -> None:
        self._invariant = invariant
        self._violations = violations
        self.reads = _ALL
        self.answer: list[Violation] = []

    def ask(self, *about: World | Act) -> None:
        """Answer anew."""
        read = [_ReadAct(each) if isinstance(each, Act) else _ReadWorld(each) for each in about]
        self.answer = [Violation(self._invariant, witness) for witness in self._violations(*read)]
        self.reads = 0
        for each in read:
            self.reads |= each.parts


_PARTS = tuple(1 << position for position in range(len(World._fields)))
_NAME, _TRANSACTION = (1 << position for position in range(len(_PARTS), len(_PARTS) + 2))
_ALL = (1 << len(_PARTS) + 2) - 1


def _differing(one: World, other: World) -> int:
    found = 0
    for part, this, that in zip(_PARTS, one, other, strict=True):
        if this != that:
            found |= part
    return found


class _ReadAct:
    """An act that notes what is read of it.

    Attributes:
        parts: One bit for each of its parts that was read.
    """

    __slots__ = ("_act", "parts")

    def __init__(self, act: Act) -> None:
        self._act = act
        self.parts = 0

    @property
    def name(self) -> str:
        """As `Act.name`."""
        self.parts |= _NAME
        return self._act.name

    @property
    def transaction(self) -> frozenset[str]:
        """As `Act.transaction`."""
        self.parts |= _TRANSACTION
        return self._act.transaction


class _ReadWorld:
    """A World that notes what is read of it. Its parts are properties, added below.

    Attributes:
        parts: One bit for each of its parts that was read.
    """

    __slots__ = ("_world", "parts")

    def __init__(self, world: World) -> None:
        self._world = world
        self.parts = 0

    of_component = World.of_component
    of_domain = World.of_domain
    of_pool = World.of_pool


def _noting(position: int) -> Callable[[_ReadWorld], Any]:
    part = _PARTS[position]

    def read(self: _ReadWorld) -> Any:
        self.parts |= part
        return self._world[position]

    return read


for _position, _name in enumerate(World._fields):
    setattr(_ReadWorld, _name, property(_noting(_position)))
