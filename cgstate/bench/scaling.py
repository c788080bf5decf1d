"""Does a replay cost more where there are more entries, or a call where there are more components? It must not."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cgstate.bench.bed import Bed, Effort
from cgstate.bench.parts import Part, PartName
from cgstate.bench.timing import Call, interleave, ratio
from cgstate.routine import BucketedRoutine
from cgstate.runtime.component import Component
from cgstate.runtime.manager import GraphManager


def measure(bed: Bed, effort: Effort) -> Part:
    """Costs by the number of entries of a manager, and of components."""
    part = Part()
    with ExitStack() as managers:
        replays = {f"{count} entries": replay(bed, managers, count) for count in effort.entries}
        _compare(part, bed, effort, "replay", replays)
        calls = {f"{count} components": call(bed, managers, count) for count in effort.components}
        _compare(part, bed, effort, "call", calls)
    return part


def replay(bed: Bed, managers: ExitStack, entries: int) -> Call:
    """The replay of one of so many entries."""
    manager = managers.enter_context(GraphManager(bed.backend, warmup_rounds=1))
    made = [manager.entry("entry", number) for number in range(entries)]
    static = bed.zeros(1)
    with manager.transaction() as transaction:
        for entry in made:
            transaction.capture(entry, lambda warmup: lambda: bed.model(static))
    return made[entries // 2].replay


def call(bed: Bed, managers: ExitStack, components: int) -> Call:
    """The call of one of so many components."""
    manager = managers.enter_context(GraphManager(bed.backend, warmup_rounds=1))
    made: list[Component[..., Any]] = [
        Component(f"component {number}", BucketedRoutine(bed.model, lambda rows: (bed.zeros(rows),)), [4])
        for number in range(components)
    ]
    manager.prepare(made)
    manager.capture_and_bind(progress=False)
    chosen, x = made[components // 2], bed.filled(4)
    return lambda: chosen(x)


def _compare(part: Part, bed: Bed, effort: Effort, what: str, candidates: dict[str, Call]) -> None:
    measured = interleave(candidates, rounds=effort.rounds, calls=effort.calls, settle=bed.settle)
    part.time(PartName.scaling, measured, act=what)
    fewest, *others = candidates
    for name in others:
        part.figures[f"{what}_growth_{name.replace(' ', '_')}"] = ratio(measured, name, fewest)
