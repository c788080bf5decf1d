"""The way of mutants through the checkers: from cheap to dear, until one kills, or shows that nothing is different."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import get_context

from cgstate.errors import ConfigError
from cgstate.testing.mutants.checkers import CHECKERS, Limits, check
from cgstate.testing.mutants.mutant import Mutant
from cgstate.testing.mutants.operators import table_mutants
from cgstate.testing.mutants.planted import runtime_mutants, system_mutants
from cgstate.testing.mutants.verdict import Cell, CheckerName, Outcome, Tried

__all__ = ["chosen", "climb", "climb_all", "mutants"]

SETTLED = (Outcome.killed, Outcome.same)


@cache
def mutants() -> dict[str, Mutant]:
    """Every mutant there is, by id."""
    every: list[Mutant] = [*table_mutants(), *system_mutants(), *runtime_mutants()]
    return {each.id: each for each in every}


def chosen(
    only: str = "*", sample: int | None = None, seed: int = 0, checkers: Sequence[CheckerName] = tuple(CheckerName)
) -> list[Mutant]:
    """The mutants whose id matches ``only`` and that one of the checkers can look at, or ``sample`` of them, in order.

    Raises:
        ConfigError: none matches.
    """
    seen = tuple(kind for name in checkers for kind in CHECKERS[name].sees)
    matching = [each for id, each in mutants().items() if fnmatchcase(id, only) and isinstance(each, seen)]
    if not matching:
        raise ConfigError(f"no mutant matches {only!r}; ids look like {next(iter(mutants()))}")
    if sample is None or sample >= len(matching):
        return matching
    drawn = sorted(random.Random(seed).sample(range(len(matching)), sample))
    return [matching[number] for number in drawn]


def climb(mutant: Mutant, checkers: Sequence[CheckerName] = tuple(CheckerName), limits: Limits | None = None) -> Tried:
    """Try a mutant on the checkers, in the order of `CheckerName`, until it is settled.

    Raises:
        ToolMissing: a checker that it came to needs a tool that is not there.
    """
    cells: dict[CheckerName, Cell] = {}
    settled = False
    for name in CheckerName:
        cells[name] = Cell(Outcome.not_run) if settled or name not in checkers else check(name, mutant, limits or Limits())
        settled = settled or cells[name].outcome in SETTLED
    return Tried(mutant.id, mutant.operator, mutant.subject, mutant.story, cells)


def climb_all(
    which: Sequence[Mutant],
    checkers: Sequence[CheckerName] = tuple(CheckerName),
    limits: Limits | None = None,
    *,
    jobs: int = 1,
    tick: Callable[[Tried], None] = lambda tried: None,
) -> list[Tried]:
    """Try mutants in ``jobs`` processes of their own, since the runtime of a process is broken meanwhile; in their order.

    Raises:
        ToolMissing: a checker that one of them came to needs a tool that is not there.
    """
    done = []
    for tried in _in_processes([each.id for each in which], tuple(checkers), limits or Limits(), jobs):
        tick(tried)
        done.append(tried)
    return done


def _in_processes(ids: Sequence[str], checkers: tuple[CheckerName, ...], limits: Limits, jobs: int) -> Iterator[Tried]:
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = [pool.submit(_climb_named, id, checkers, limits) for id in ids]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _climb_named(id: str, checkers: tuple[CheckerName, ...], limits: Limits) -> Tried:
    return climb(mutants()[id], checkers, limits)
