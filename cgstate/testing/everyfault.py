"""Every fault of a scenario: whatever it calls fails, before and after its effect, once and twice in a row.

The scenario is played once to see which calls it makes; then again for each of them with that call broken. In safe mode the
invariants must hold after every step whatever failed; in live mode faults have stopped, and then every component must answer, and
everything settle, within the steps that `live` takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cgstate.errors import ConfigError
from cgstate.testing.faults import METHODS
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.step import Step
from cgstate.testing.stateful.steps import Break, BreakRoutine
from cgstate.testing.stateful.steps.device import UNBREAKABLE
from cgstate.testing.stateful.walk import steady

__all__ = ["FaultReport", "every_fault", "faults_of"]

MOST_CALLS = 6
"""How many calls of one name are broken, the first ones; the rest are calls of the same kind."""


@dataclass
class FaultReport:
    """What breaking everything came to.

    Attributes:
        tried: How many faults were planned.
        happened: How many of them happened.
        failures: What went wrong, each with the plan and the step.
    """

    tried: int = 0
    happened: int = 0
    failures: tuple[str, ...] = ()


def every_fault(
    steps: Sequence[Step], *, bed: type[Bed] = Bed, setup: Setup | None = None, only: frozenset[str] | None = None
) -> FaultReport:
    """Play ``steps`` once for each fault.

    Args:
        steps: The scenario. Steps that are not possible after a fault are left out.
        bed: Where.
        setup: How; faults are switched on in any case.
        only: Names of calls and methods to break; None: all that the scenario makes.

    Returns:
        What came of it; `Violated` is collected, not raised.
    """
    chosen = replace(setup or Setup(), faulty=True)
    report = FaultReport()
    failures: list[str] = []
    with steady():
        for plan in faults_of(steps, bed, chosen, only):
            report.tried += 1
            try:
                report.happened += _happened(steps, bed, chosen, plan)
            except Violated as wrong:
                failures.append(f"{', '.join(map(repr, plan))}: {wrong}")
    report.failures = tuple(failures)
    return report


def faults_of(
    steps: Sequence[Step], bed: type[Bed], setup: Setup, only: frozenset[str] | None = None
) -> Iterator[tuple[Step, ...]]:
    """The plans: each call that the scenario makes, before and after, alone and with the one after it.

    Raises:
        ConfigError: the bed cannot break calls of its backend.
    """
    play = Play(bed(), setup)
    if not play.bed.can.faults:
        raise ConfigError(f"{bed.__name__} has no injector")
    injector = play.backend.faults  # type: ignore[attr-defined]  # the capability says so
    before = injector.calls
    for step in steps:
        play.take(step)
    play.finish()
    for name, count in sorted((injector.calls - before).items()):
        if name in UNBREAKABLE or (only is not None and name not in only):
            continue
        for nth in range(1, min(count, MOST_CALLS) + 1):
            yield (Break(name, "after", nth),)
            if name != "undo: restore the stream":  # the caller's later work would run on the capture stream
                yield (Break(name, "before", nth),)
                yield Break(name, "before", nth), Break(name, "before", nth + 1)
    for method in METHODS:
        if only is None or method in only:
            for nth in (1, 2, 3):
                yield (BreakRoutine(method, "before", nth),)
                yield (BreakRoutine(method, "after", nth),)
            for step in _UNDONE:
                yield BreakRoutine(method, "before", 1), step


_UNDONE = tuple(
    Break(f"undo: {step}", when)
    for step in ("destroy the graph", "heal the generator", "release the pool", "stop routing", "end the capture")
    for when in ("before", "after")
)
"""Steps of the undo log, which only run when something else has failed."""


def _happened(steps: Sequence[Step], bed: type[Bed], setup: Setup, plan: Sequence[Step]) -> bool:
    """Play the scenario with a plan, and bring it to its end; whether all of it happened before that.

    Raises:
        Violated: something went wrong.
    """
    play = Play(bed(), setup)
    for fault in plan:
        play.take(fault)
    for step in steps:
        if step.attempted(play):
            play.take(step)
    happened = not play.pending_faults
    play.finish()
    return happened
