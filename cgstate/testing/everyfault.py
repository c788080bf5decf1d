"""Every fault of a scenario: whatever it calls fails, before and after its effect, once and twice in a row.

The scenario is played once to see which calls it makes; then again for each of them with that call broken. In safe mode the
invariants must hold after every step whatever failed; in live mode faults have stopped, and then every component must answer, and
everything settle, within the steps that `live` takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from cgstate.errors import ConfigError
from cgstate.runtime.component import LeasedComponent
from cgstate.testing.faults import METHODS
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.failing import code, take_possible
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.setup import DEFAULT, Setup
from cgstate.testing.stateful.step import Step
from cgstate.testing.stateful.steps import Break, BreakRoutine, Call, CaptureAll, Evict, GiveBack, Prepare, ProfileMemory, Release
from cgstate.testing.stateful.steps.device import UNBREAKABLE
from cgstate.testing.stateful.walk import steady

__all__ = ["FaultReport", "every_fault", "faults_of", "scenario"]

MOST_CALLS = 6
"""How many calls of one name are broken, the first ones; the rest are calls of the same kind."""


@dataclass
class FaultReport:
    """What breaking everything came to.

    Attributes:
        tried: How many faults were planned.
        happened: How many of them happened.
        failures: What went wrong, each with the steps that do it again, the fault first.
    """

    tried: int = 0
    happened: int = 0
    failures: tuple[str, ...] = ()


def every_fault(
    steps: Sequence[Step] | None = None,
    *,
    bed: type[Bed] = Bed,
    setup: Setup = DEFAULT,
    only: frozenset[str] | None = None,
    most: int | None = None,
    seed: int = 0,
) -> FaultReport:
    """Play a scenario once for each fault.

    Args:
        steps: The scenario; None: the bed's, as `scenario` makes it. Steps that are not possible after a fault are left out.
        bed: Where.
        setup: How; faults are switched on in any case.
        only: Names of calls and methods to break; None: all that the scenario makes.
        most: Draw so many of the faults; None: all of them.
        seed: Of that draw.

    Returns:
        What came of it; `Violated` is collected, not raised.

    Raises:
        ConfigError: the bed cannot break calls of its backend.
    """
    chosen = replace(setup, faulty=True)
    report = FaultReport()
    failures: list[str] = []
    with steady():
        wanted = scenario(bed) if steps is None else steps
        plans = list(faults_of(wanted, bed, chosen, only))
        for plan in plans if most is None else Random(seed).sample(plans, min(most, len(plans))):
            report.tried += 1
            try:
                report.happened += _happened(wanted, bed, chosen, plan)
            except Violated as wrong:
                failures.append(f"{wrong}\nfails:\n{code(bed.__name__, chosen, (*plan, *wanted))}")
    report.failures = tuple(failures)
    return report


def scenario(bed: type[Bed]) -> tuple[Step, ...]:
    """What a bed's components go through in a good life: captured, called with every sample, evicted, captured and called again."""
    made = bed()
    made.backend = made.make_backend()
    subjects = made.make_components()
    calls: list[Step] = []
    for subject in subjects:
        for sample in range(len(subject.samples)):
            calls.append(Call(subject.name, sample))
            if isinstance(subject.component, LeasedComponent):
                calls.append(GiveBack())
    profile = [ProfileMemory()] if bed.can.profile else []
    evictions = [Evict(subject.name) for subject in subjects]
    return (Prepare(), *profile, CaptureAll(), *calls, *evictions, CaptureAll(), *calls, Release())


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
    take_possible(play, steps)
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
    take_possible(play, steps)
    happened = not play.pending_faults
    play.finish()
    return happened
