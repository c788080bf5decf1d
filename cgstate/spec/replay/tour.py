"""A tour over a graph: paths from the first state that together take every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cgstate.spec.walk import Graph

Path = list[tuple[int, int]]
"""Steps: the place of the instance, the number of the state that it leads to."""


def tour(graph: Graph, longest: int = 400) -> Iterator[Path]:
    """Paths from the first state that take every step at least once.

    Each goes on to the nearest step not taken yet, and ends where there is none within reach, or at ``longest`` steps.
    """
    left = [set(zip(out[0::2], out[1::2], strict=True)) for out in graph.out]
    total = sum(map(len, left))
    while total:
        path: Path = []
        at = 0
        while len(path) < longest:
            way = _nearest(graph, left, at)
            if way is None:
                break
            for step in way:
                if step in left[at]:
                    left[at].discard(step)
                    total -= 1
                path.append(step)
                at = step[1]
        yield path


def _nearest(graph: Graph, left: list[set[tuple[int, int]]], start: int) -> Path | None:
    """The shortest way that ends with a step not taken yet."""
    came: dict[int, tuple[int, tuple[int, int]] | None] = {start: None}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        if left[at]:
            path = [min(left[at])]
            while (before := came[at]) is not None:
                at, step = before
                path.append(step)
            return path[::-1]
        out = graph.out[at]
        for step in zip(out[0::2], out[1::2], strict=True):
            if step[1] not in came:
                came[step[1]] = at, step
                queue.append(step[1])
    return None
