"""What a recorder costs, and what checking every invariant costs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cgstate.bench.bed import Bed, Effort
from cgstate.bench.parts import Part, PartName
from cgstate.bench.timing import Call, interleave, ratio
from cgstate.routine import BucketedRoutine
from cgstate.runtime.component import Component
from cgstate.runtime.manager import GraphManager
from cgstate.trace import Ring


def measure(bed: Bed, effort: Effort) -> Part:
    """A replay and a call, plain, traced into a ring, and checked."""
    part = Part()
    ways: dict[str, dict[str, Any]] = {"plain": {}, "traced": {"observer": Ring()}, "checked": {"check": True}}
    with ExitStack() as managers:
        replays: dict[str, Call] = {}
        calls: dict[str, Call] = {}
        for way, arguments in ways.items():
            manager = managers.enter_context(GraphManager(bed.backend, **arguments))
            replays[way], calls[way] = candidates(bed, manager)
        for what, each in {"replay": replays, "call": calls}.items():
            measured = interleave(each, rounds=effort.rounds, calls=effort.calls, settle=bed.settle)
            part.time(PartName.watching, measured, act=what)
            for way in ("traced", "checked"):
                part.figures[f"{way}_{what}_ratio"] = ratio(measured, way, "plain")
    return part


def candidates(bed: Bed, manager: GraphManager) -> tuple[Call, Call]:
    """The replay of an entry, and the call of a component, of one manager."""
    component: Component[..., Any] = Component("linears", BucketedRoutine(bed.model, lambda rows: (bed.zeros(rows),)), [4, 8])
    manager.prepare([component])
    manager.capture_and_bind(progress=False)
    x = bed.filled(8)
    return manager.entry("linears", 8).replay, lambda: component(x)
