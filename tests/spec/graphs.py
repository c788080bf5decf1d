"""Graphs that several tests look at, walked once."""

from __future__ import annotations

import functools

from cgstate.spec.compiled import System
from cgstate.spec.shape import Shape
from cgstate.spec.walk import Graph, walk

ONE = Shape((1,), threads=2)
TWO = Shape((2,), threads=1, profile=False)
BOTH = Shape((1, 1), threads=1, profile=False)


@functools.cache
def walked(shape: Shape) -> Graph:
    """The whole graph, with its edges."""
    return walk(System(shape, coverage=True), keep_edges=True)
