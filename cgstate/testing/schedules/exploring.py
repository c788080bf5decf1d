"""Many schedules of the same programs: all up to a number of preemptions, drawn ones, or the one that a string names."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from cgstate.errors import ConfigError
from cgstate.testing.first_use import finish_importing_torch
from cgstate.testing.schedules.choosing import Chooser, Deviations, Priorities, Uniform, Written, written
from cgstate.testing.schedules.errors import ScheduleError, ScheduleFailed
from cgstate.testing.schedules.program import Case, Decision
from cgstate.testing.schedules.scheduler import Scheduler

Make = Callable[[Scheduler], Case]
"""Makes the programs anew, with the scheduler as the runtime's ``sync``; called in the thread outside of them."""


@dataclass(frozen=True, slots=True)
class Explored:
    """What was looked at, without a finding.

    Attributes:
        schedules: How many.
        by_preemptions: How many with 0, 1, … preemptions; empty where they were drawn.
        longest: The most decisions that one of them had.
        complete: Whether there are no others up to the bound.
    """

    schedules: int
    by_preemptions: tuple[int, ...]
    longest: int
    complete: bool


def explore(
    make: Make, *, preemptions: int = 2, limit: int | None = None, releases: bool = False, named_points: bool = True
) -> Explored:
    """Run every schedule with at most so many preemptions, those with fewer first.

    A preemption takes a program off that could go on; who goes on when one waits or ends is free. No schedule is left out because
    it looks like another one: what programs do between two points need not be declared, so nothing is known to commute.

    Args:
        make: Makes the programs.
        preemptions: The bound.
        limit: Give up after so many schedules; the answer is not complete then.
        releases: As `Scheduler`.
        named_points: As `Scheduler`.

    Raises:
        ScheduleFailed: something went wrong under one of them.
        ScheduleError: the programs cannot be scheduled.
    """
    if preemptions < 0:
        raise ConfigError(f"preemptions must be a count, not {preemptions!r}")
    waiting: list[deque[tuple[_Deviations, tuple[Decision, ...]]]] = [deque() for _ in range(preemptions + 1)]
    waiting[0].append(((), ()))
    counts = [0] * (preemptions + 1)
    longest = 0
    for cost, queue in enumerate(waiting):
        while queue:
            if sum(counts) == limit:
                return Explored(limit, tuple(counts), longest, complete=False)
            counts[cost] += 1
            deviations, expected = queue.popleft()
            decisions = _run(make, Deviations(deviations, expected), sum(counts), releases=releases, named_points=named_points)
            longest = max(longest, len(decisions))
            for index in range(deviations[-1][0] + 1 if deviations else 0, len(decisions)):
                decision = decisions[index]
                for other in range(1, len(decision.candidates)):
                    if cost + decision.costs[other] <= preemptions:
                        waiting[cost + decision.costs[other]].append(((*deviations, (index, other)), (*expected, decision)))
    return Explored(sum(counts), tuple(counts), longest, complete=True)


_Deviations = tuple[tuple[int, int], ...]


def sample(
    make: Make, *, schedules: int, seed: int = 0, depth: int | None = 3, releases: bool = False, named_points: bool = True
) -> Explored:
    """Run drawn schedules.

    Args:
        make: Makes the programs.
        schedules: How many.
        seed: The same one draws the same schedules.
        depth: See `choosing.Priorities`; None draws every decision uniformly.
        releases: As `Scheduler`.
        named_points: As `Scheduler`.

    Raises:
        ScheduleFailed: something went wrong under one of them.
        ScheduleError: the programs cannot be scheduled.
    """
    if schedules < 1 or (depth is not None and depth < 1):
        raise ConfigError(f"schedules and depth must be positive counts, not {schedules!r} and {depth!r}")
    random = Random(seed)
    longest = 0
    for number in range(1, schedules + 1):
        chooser: Chooser = Uniform(random) if depth is None else Priorities(random, depth, longest)
        decisions = _run(make, chooser, number, releases=releases, named_points=named_points)
        longest = max(longest, len(decisions))
    return Explored(schedules, (), longest, complete=False)


def replay(make: Make, schedule: str, *, releases: bool = False, named_points: bool = True) -> None:
    """Run the one schedule that a failure named.

    Raises:
        ScheduleFailed: it goes wrong still.
        NotReplayed: the programs do not come by where it says so any more: this is no pass.
    """
    _run(make, Written(schedule), 1, releases=releases, named_points=named_points)


def run_once(make: Make, chooser: Chooser, *, releases: bool = False, named_points: bool = True) -> str:
    """Run one schedule, and return it as a string.

    Raises:
        ScheduleFailed: something went wrong.
        ScheduleError: the programs cannot be scheduled.
    """
    return written(_run(make, chooser, 1, releases=releases, named_points=named_points))


def _run(make: Make, chooser: Chooser, number: int, *, releases: bool, named_points: bool) -> list[Decision]:
    with _no_collection():
        scheduler = Scheduler(chooser, releases=releases, named_points=named_points)
        case = make(scheduler)
        try:
            scheduler.run(case)
            case.finish()
        except ScheduleError:
            scheduler.abandon()
            raise
        except Exception as error:
            scheduler.abandon()
            raise ScheduleFailed(written(scheduler.decisions), number, error) from error
    return scheduler.decisions


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out of a run: it would call destructors at moments that no schedule names."""
    enabled = gc.isenabled()
    finish_importing_torch()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(0)  # what the run left; a whole collection would cost more than the run
