"""Drives a tour over the walker's graph through the runtime, and compares after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cgstate.spec.replay.bench import Bench
from cgstate.spec.replay.tour import Path, tour
from cgstate.spec.walk import Graph


@dataclass(frozen=True, slots=True)
class Difference:
    """Where model and runtime part.

    Attributes:
        steps: The actions up to there.
        words: What is different: the cells with both values, or what the runtime raised.
    """

    steps: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """How it went.

    Attributes:
        edges: Steps of the graph that were taken.
        of: Steps that the graph has.
        steps: Steps driven, those taken again included.
        paths: Runtimes made.
        differences: Where they part, each on the shortest of the paths tried.
    """

    edges: int
    of: int
    steps: int
    paths: int
    differences: tuple[Difference, ...]


def replay(
    graph: Graph, *, paths: Iterable[Path] | None = None, most: int = 1, tick: Callable[[str], None] = lambda _: None
) -> Replay:
    """Take every step of a graph on the runtime.

    Args:
        graph: Whole, with its edges, of a system with one entry.
        paths: What to drive; None: a tour over all of it.
        most: Stop after so many differences.
        tick: Told now and then how far it is.
    """
    taken: set[tuple[int, int, int]] = set()
    differences: list[Difference] = []
    driven = made = 0
    for path in tour(graph) if paths is None else paths:
        made += 1
        bench = Bench(graph.system)
        at, names = 0, [graph.system.instances[place].action.name for place, _ in path]
        labels: list[str] = []
        try:
            for number, (place, after) in enumerate(path):
                instance = graph.system.instances[place]
                labels.append(instance.label)
                driven += 1
                words = _step(bench, graph, place, after, names[number + 1 :])
                if words:
                    differences.append(Difference(tuple(labels), words))
                    break
                taken.add((at, place, after))
                at = after
        finally:
            bench.end()
        tick(f"{len(taken):,} of {graph.steps:,} steps")
        if len(differences) >= most:
            break
    return Replay(len(taken), graph.steps, driven, made, tuple(differences))


def _step(bench: Bench, graph: Graph, place: int, after: int, ahead: list[str]) -> tuple[str, ...]:
    """One step on the runtime; what is different afterwards."""
    instance = graph.system.instances[place]
    try:
        bench.take(instance, ahead)
        ours = bench.state()
    except Exception as error:
        return (f"{instance.label} raised {type(error).__name__}: {error}",)
    theirs = graph.states[after]
    cells = zip(graph.system.cells, theirs, ours, strict=True)
    return tuple(f"{cell}: {model} in the model, {runtime} in the runtime" for cell, model, runtime in cells if model != runtime)
