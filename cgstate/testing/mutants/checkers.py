"""The checkers: each says of a mutant whether it notices, within some seconds.

From cheap to dear: proofs (z3), every reachable state of small systems (the walker), the same by another program on larger ones
(TLC), walks of the runtime on the simulator (stateful), and every schedule of small programs with threads (schedules).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from time import process_time
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from cgstate.lifecycle.table import Machine
from cgstate.lifecycle.tables import MACHINE
from cgstate.spec import tla, tlc
from cgstate.spec.configs import configs
from cgstate.spec.tools import need_z3
from cgstate.testing.mutants import walker
from cgstate.testing.mutants.installed import installed
from cgstate.testing.mutants.mutant import Mutant, RuntimeMutant, SystemMutant, TableMutant
from cgstate.testing.mutants.verdict import Cell, CheckerName, Outcome, ReviewedFails
from cgstate.testing.schedules.battery import CASES, check_case
from cgstate.testing.schedules.errors import ScheduleError, ScheduleFailed
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.walk import steady, walk_once

if TYPE_CHECKING:
    from cgstate.spec.proof.prove import Obligation

__all__ = ["CHECKERS", "Checker", "Limits", "check"]

PATIENCE = 20
"""How many times its CPU time a checker may take by the clock on the wall."""
FAILING = 20
"""Walks that fail without the mutant as well, after which there is nothing to be learned from walks."""
WORDS = 200
"""Letters of a finding that are kept."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is tried before a checker gives up on a mutant.

    Attributes:
        seconds: CPU time of one checker; then it is named as timed out. Of TLC, wall time.
        walks: Walks of the runtime, of the default length.
        workers: TLC's threads.
    """

    seconds: float = 300.0
    walks: int = 400
    workers: int = 1


class TimedOut(BaseException):
    """The time is up. No `Exception`, so that no code under test takes it for a failure of its own."""


Finding: TypeAlias = tuple[Outcome, str]
PASSED: Finding = (Outcome.passed, "")


@dataclass(frozen=True, slots=True)
class Checker:
    """One of the checkers.

    Attributes:
        sees: What mutants it can look at.
        look: What it says of one.
    """

    sees: tuple[type, ...]
    look: Callable[[Mutant, Limits], Finding]


def check(name: CheckerName, mutant: Mutant, limits: Limits) -> Cell:
    """What a checker says of a mutant.

    Raises:
        ToolMissing: the checker needs a tool that is not there.
    """
    checker = CHECKERS[name]
    if not isinstance(mutant, checker.sees):
        return Cell(Outcome.blind)
    started = process_time()
    try:
        with _within(limits.seconds):
            outcome, by = checker.look(mutant, limits)
    except TimedOut:
        outcome, by = Outcome.timed_out, f"after {limits.seconds:g} s"
    return Cell(outcome, " ".join(by.split())[:WORDS], process_time() - started)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` after so much CPU time, or `PATIENCE` times as much wall time: a deadlock takes no CPU time.

    Only a main thread can be stopped so; elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimedOut

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, PATIENCE * seconds)}
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, limit) in timers.items():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the tables ---------------------------------------------------------------------------------------------------------


def _proofs(mutant: Mutant, limits: Limits) -> Finding:
    """Only what speaks of the changed event can be true of the reviewed tables and not of the mutant."""
    assert isinstance(mutant, TableMutant)
    need_z3()
    event = mutant.row.event
    unknown = ""
    for each in _obligations(mutant.machine, event):
        if each.proven is False:
            _assure_proven(mutant.machine.name, event)
            return Outcome.killed, each.of
        if each.proven is None:
            unknown = each.of
    return (Outcome.timed_out, unknown) if unknown else PASSED


def _obligations(machine: Machine, event: StrEnum) -> Iterator[Obligation]:
    from cgstate.lifecycle.rules import ACCEPTANCES
    from cgstate.spec.proof.prove import of_refusals, of_rows

    yield from of_refusals([machine], acceptances=[each for each in ACCEPTANCES if each.event is event])
    yield from of_rows([machine], which=lambda machine, row: row.event is event)


@cache
def _assure_proven(machine: str, event: StrEnum) -> None:
    unproven = next((each for each in _obligations(MACHINE[machine], event) if not each.proven), None)
    if unproven is not None:
        raise ReviewedFails(f"not proven of the reviewed tables either: {unproven.of}; {unproven.by}")


def _states(mutant: Mutant, limits: Limits) -> Finding:
    assert isinstance(mutant, TableMutant | SystemMutant)
    found: walker.Found | None
    others_too = isinstance(mutant, TableMutant) and walker.differs_alone(mutant)
    same = not others_too
    for shape in walker.differing(mutant):
        same = False
        try:
            found = walker.in_system(mutant, shape)
        except walker.GivenUp as limit:
            return Outcome.timed_out, str(limit)
        if found is not None:
            return Outcome.killed, found.property
    if same:
        return Outcome.same, ""
    if others_too:
        assert isinstance(mutant, TableMutant)
        found = walker.alone(mutant)
        if found is not None:
            return Outcome.killed, found.property
    return PASSED


def _tlc(mutant: Mutant, limits: Limits) -> Finding:
    assert isinstance(mutant, TableMutant | SystemMutant)
    for each in (*configs("ci"), *configs("liveness")):
        files = {
            f"{each.module}.tla": tla.module(each.module, each.shape, mutant.machines, mutant.actions),
            f"{each.module}.cfg": tla.config(liveness=each.liveness),
        }
        result = tlc.check(files, each.module, tlc.Options(workers=limits.workers, limit_s=limits.seconds))
        match result.verdict:
            case tlc.Verdict.violated:
                return Outcome.killed, result.property
            case tlc.Verdict.limit:
                return Outcome.timed_out, f"{each.name}: {result.message}"
            case tlc.Verdict.rejected:
                return Outcome.killed, f"TLC rejects it: {result.message}"
            case tlc.Verdict.holds:
                pass
    return PASSED


# -- the runtime --------------------------------------------------------------------------------------------------------


def _walks(mutant: Mutant, limits: Limits) -> Finding:
    assert isinstance(mutant, TableMutant | RuntimeMutant)
    failing = 0
    with steady():
        for seed in range(limits.walks):
            with installed(mutant):
                wrong = _wrong_in_walk(seed)
            if not wrong:
                continue
            without = _wrong_in_walk(seed)
            if not without:
                return Outcome.killed, wrong
            failing += 1  # a walk that fails anyway says nothing of the mutant
            if failing == FAILING:
                raise ReviewedFails(f"walk {seed}, and others, fail without a mutant as well: {without}")
    return PASSED


def _wrong_in_walk(seed: int) -> str:
    try:
        walk_once(Bed, seed)
    except Violated as violated:
        return str(violated)
    except Exception as error:  # a broken runtime can break the walk itself
        return f"{type(error).__name__}: {error}"
    return ""


def _schedules(mutant: Mutant, limits: Limits) -> Finding:
    assert isinstance(mutant, TableMutant | RuntimeMutant)
    first = [mutant.case] if isinstance(mutant, RuntimeMutant) and mutant.case is not None else []
    for case in (*first, *(each for each in CASES if each not in first)):
        with installed(mutant):
            wrong, number = _wrong_under_schedules(case)
        if wrong:
            without, _ = _wrong_under_schedules(case, number)
            if without:
                raise ReviewedFails(f"{case.__name__} fails without a mutant as well: {without}")
            return Outcome.killed, f"{case.__name__}: {wrong}"
    return PASSED


def _wrong_under_schedules(case: Callable[..., Any], limit: int | None = None) -> tuple[str, int | None]:
    """What goes wrong, and under which schedule first."""
    try:
        check_case(case, limit=limit)
    except ScheduleFailed as failed:
        return str(failed).partition("\n")[0].partition(" fails with ")[2], failed.number
    except ScheduleError as error:  # the reviewed runtime can be scheduled
        return f"{type(error).__name__}: {error}", limit
    return "", None


CHECKERS: Mapping[CheckerName, Checker] = {
    CheckerName.z3: Checker((TableMutant,), _proofs),
    CheckerName.walker: Checker((TableMutant, SystemMutant), _states),
    CheckerName.tlc: Checker((TableMutant, SystemMutant), _tlc),
    CheckerName.stateful: Checker((TableMutant, RuntimeMutant), _walks),
    CheckerName.schedules: Checker((TableMutant, RuntimeMutant), _schedules),
}
"""From cheap to dear."""
