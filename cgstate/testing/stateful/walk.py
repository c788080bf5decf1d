"""Seeded walks: the same steps as the Hypothesis machine's, drawn by `random`, several times as fast."""

from __future__ import annotations

import gc
import logging
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from cgstate.testing.first_use import finish_importing_torch
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.coverage import Coverage
from cgstate.testing.stateful.errors import Violated, forget_frames
from cgstate.testing.stateful.failing import WalkFailed, shortest, token
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.step import Step
from cgstate.testing.stateful.steps import KINDS, REFUSABLE, ClosedDoor

__all__ = ["STEPS", "Walked", "drawn_step", "steady", "walk", "walk_once", "walk_or_tell"]

STEPS = 60
"""Steps of one run."""


@dataclass
class Walked:
    """What walks came to.

    Attributes:
        coverage: What they saw.
        steps: How many steps they took.
        runs: How many runs that were.
        seconds: CPU time, seconds.
    """

    coverage: Coverage = field(default_factory=Coverage)
    steps: int = 0
    runs: int = 0
    seconds: float = 0.0


def walk(bed: type[Bed] = Bed, *, seed: int = 0, runs: int = 100, steps: int = STEPS) -> Walked:
    """Take ``runs`` times ``steps`` drawn steps; run ``n`` is that of `walk_once` with seed ``seed + n``.

    Raises:
        WalkFailed: a step went wrong; it tells how to take the same steps again.
    """
    total = Walked()
    started = time.process_time()
    with steady():
        for number in range(runs):
            play = walk_or_tell(bed, seed + number, steps, total.coverage)
            total.runs += 1
            total.steps += len(play.steps)
            del play  # so that it does not live on in the frame of a later run's error
    total.seconds = time.process_time() - started
    return total


def walk_or_tell(bed: type[Bed], seed: int, steps: int, coverage: Coverage) -> Play:
    """`walk_once`, and if it fails, the fewest steps that fail.

    Raises:
        WalkFailed: it failed.
    """
    play = begin(bed, seed, coverage)
    try:
        return go_on(play, seed, steps)
    except Violated as wrong:
        setup, taken, leaked = play.setup, play.steps, play.leaked
        del play
        forget_frames(wrong)
        fewest = shortest(bed, setup, taken)
        raise WalkFailed(token(seed, steps), bed.__name__, setup, fewest, str(wrong), leaked) from wrong


def walk_once(bed: type[Bed], seed: int, *, steps: int = STEPS, coverage: Coverage | None = None) -> Play:
    """One run.

    Raises:
        Violated: a step went wrong.
    """
    return go_on(begin(bed, seed, coverage), seed, steps)


def begin(bed: type[Bed], seed: int, coverage: Coverage | None = None) -> Play:
    """The run of a seed, before its first step."""
    return Play(bed(), Setup.drawn(Random(seed)), coverage)


def go_on(play: Play, seed: int, steps: int) -> Play:
    """Take the steps of a seed, and bring the run to its end.

    Raises:
        Violated: a step went wrong.
    """
    random = Random(f"steps of {seed}")
    for _ in range(steps):
        play.take(drawn_step(play, random))
    play.finish()
    return play


def drawn_step(play: Play, random: Random) -> Step:
    """A step that may be taken now."""
    barren: set[type[Step]] = set()
    while True:
        kind = KINDS[bisect(_WEIGHTS, random.random() * _WEIGHTS[-1])]
        if kind is ClosedDoor:
            closed = list(REFUSABLE[int(random.random() * len(REFUSABLE))].candidates(play))
            if closed and (step := closed[int(random.random() * len(closed))]).legal(play) is False:
                return ClosedDoor(step)
        elif kind not in barren:
            drawn = kind.draw(play, random)
            if drawn is not None:
                return drawn
            barren.add(kind)


_WEIGHTS = list(accumulate(kind.weight for kind in KINDS))


@contextmanager
def steady(*, deep: bool = True) -> Iterator[None]:
    """Let nothing but steps happen: they alone collect garbage. The runtime's log of injected failures is not shown.

    ``deep``: garbage of all ages is collected before, which takes long in a large program.
    """
    log = logging.getLogger("cgstate")
    disabled, collecting = log.disabled, gc.isenabled()
    log.disabled = True
    finish_importing_torch()
    gc.disable()
    gc.collect(2 if deep else 1)
    gc.freeze()  # what was there before is looked at by no collection of a run
    try:
        yield
    finally:
        log.disabled = disabled
        gc.unfreeze()
        if collecting:
            gc.enable()
