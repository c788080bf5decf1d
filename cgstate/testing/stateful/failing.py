"""A walk that failed: the token that takes it again, and the fewest of its steps that still fail, as code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cgstate.errors import CGStateError, ConfigError
from cgstate.lifecycle.tables import table_hash
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.step import Step

__all__ = ["WalkFailed", "code", "parse_token", "played", "shortest", "take_possible", "token"]

MOST_TRIES = 300
"""Runs that it may take to find the fewest steps: on a real device each costs as much as the walk itself."""

_TOKEN = re.compile(r"walk-(\d+)-(\d+)-([0-9a-f]{8})")


def token(seed: int, steps: int) -> str:
    """What `parse_token` reads: the seed, the number of steps, and which tables they were drawn from."""
    return f"walk-{seed}-{steps}-{table_hash()[:8]}"


def parse_token(text: str) -> tuple[int, int]:
    """Seed and number of steps.

    Raises:
        ConfigError: not a token, or one of other tables, whose walk was another one.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no token; one is written like {token(0, 60)}")
    if match[3] != table_hash()[:8]:
        raise ConfigError(f"{text!r} was drawn from other tables, {match[3]}, than there are now, {table_hash()[:8]}")
    return int(match[1]), int(match[2])


class WalkFailed(CGStateError, AssertionError):
    """A walk found something wrong. The error is the ``__cause__``.

    Attributes:
        token: Takes the same walk again.
        bed: The name of the class that it was played on.
        setup: How it was set up.
        steps: The fewest steps that were found to fail in the same run.
        why: What went wrong.
        leaked: Bytes that ended managers had left.
    """

    def __init__(self, token: str, bed: str, setup: Setup, steps: Sequence[Step], why: str, leaked: int = 0) -> None:
        super().__init__(token, bed, setup, steps, why)
        self.leaked = leaked
        self.bed = bed
        self.token = token
        self.setup = setup
        self.steps = tuple(steps)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why}\nfails:\n{code(self.bed, self.setup, self.steps)}\nwhole walk: {self.token}"


def code(bed: str, setup: Setup, steps: Sequence[Step]) -> str:
    """What takes ``steps`` again, on the bed of that name."""
    taken = "\n".join(f"        {step!r}," for step in steps)
    return f"from cgstate.testing.again import *\nwith steady():\n    played({bed}(), {setup!r}, [\n{taken}\n    ])"


def played(bed: Bed, setup: Setup, steps: Sequence[Step]) -> Play:
    """Take these steps, skipping those that name what is not there or must be refused, and bring the run to its end.

    Raises:
        Violated: a step went wrong.
    """
    play = Play(bed, setup)
    take_possible(play, steps)
    play.finish()
    return play


def take_possible(play: Play, steps: Sequence[Step]) -> None:
    """Take these steps, but those that name what is not there or must be refused.

    Raises:
        Violated: a step went wrong.
    """
    for step in steps:
        if _possible(play, step):
            play.take(step)


def _possible(play: Play, step: Step) -> bool:
    try:
        return step.attempted(play)
    except (IndexError, KeyError, StopIteration):
        return False


def shortest(bed: type[Bed], setup: Setup, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The fewest of ``steps`` that still fail, by leaving out halves, quarters, ... down to single steps; as far as tries go.

    Where a step fails, one of those that are left does, so that they tell the whole story; else it is seen at the end.
    """
    left = list(steps)
    at_the_end = not _fails(bed, setup, left, at_the_end=False)
    size = max(1, len(left) // 2)
    tries = 0
    while True:
        start = 0
        while start < len(left):
            if tries == MOST_TRIES:
                return tuple(left)
            tries += 1
            fewer = left[:start] + left[start + size :]
            if _fails(bed, setup, fewer, at_the_end=at_the_end):
                left = fewer
            else:
                start += size
        if size == 1:
            return tuple(left)
        size //= 2


def _fails(bed: type[Bed], setup: Setup, steps: Sequence[Step], *, at_the_end: bool) -> bool:
    """Whether one of the steps fails or, with ``at_the_end``, bringing the run to its end does."""
    play = Play(bed(), setup)
    try:
        take_possible(play, steps)
    except Violated:
        return True
    except Exception:
        return False  # the steps that are left make no sense
    try:
        play.finish()  # in any case: the next run may be on the same device
    except Violated:
        return at_the_end
    except Exception:
        return False
    return False
