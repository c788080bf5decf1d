"""What the order of capture costs, and what the first block of a pool saves, in bytes held.

python -m benchmarks.ordering --shape "sizes that do not nest" prints what `ordered` says of one shape: for settings of the
allocator that hold for a whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.shapes import Part, Shape, shapes_on
from cgstate import GraphManager
from cgstate.backends.base import Backend
from cgstate.backends.choose import choose

MOST = 64
"""Graphs of a shape whose orders are compared at most: beyond, they are tiny, and take long."""


def comparable(backend: Backend) -> list[Shape]:
    """The shapes whose orders are compared: one component, one pool, not too many graphs."""
    return [
        shape
        for shape in shapes_on(backend)
        if len(shape.parts) == 1 and shape.isolation == "shared" and len(shape.parts[0].sizes) <= MOST
    ]


def ordered(backend: Backend, part: Part, orders: int, *, profiled: bool = False) -> dict[str, float]:
    """Bytes held by a component captured largest first, and the least of smallest first, as given, and random orders.

    ``profiled``: after a profile each, which finds a block in which all graphs fit where no order by size is a good one.
    """

    def held(order: Sequence[int]) -> int:
        with GraphManager(backend) as manager:
            manager.prepare([part.component("part", order)])
            if profiled:
                manager.profile_memory()
            return manager.capture_and_bind(progress=False).memory.total

    sizes = list(part.sizes)
    largest_first = held(sorted(sizes, reverse=True))
    rng = random.Random(0)
    others = [sorted(sizes), rng.sample(sizes, len(sizes)), *(rng.sample(sizes, len(sizes)) for _ in range(orders))]
    totals = [held(order) for order in others]
    return {"largest_first": largest_first, "least": min(totals), "most": max(totals), "order_ratio": largest_first / min(totals)}


def compacted(backend: Backend, shape: Shape) -> dict[str, float]:
    """Bytes held by a shape with a first block in each pool, and without; and how many the block saved."""

    def held(*, compact: bool) -> int:
        with GraphManager(backend, isolation=shape.isolation, compact=compact) as manager:
            manager.prepare(shape.components())
            return manager.capture_and_bind(progress=False).memory.total

    compact, apart = held(compact=True), held(compact=False)
    return {"compact": compact, "apart": apart, "compact_saved_bytes": apart - compact}


def ordered_expandable(shape: Shape, orders: int) -> dict[str, float]:
    """`ordered` of a shape on CUDA with expandable segments, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ordering", "--shape", shape.name, "--orders", str(orders)]
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def main() -> int:
    """Measure one shape and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda", choices=["cuda", "sim"])
    parser.add_argument("--shape", required=True)
    parser.add_argument("--orders", type=int, default=20)
    arguments = parser.parse_args()
    backend = choose(arguments.backend)
    shape = next(shape for shape in comparable(backend) if shape.name == arguments.shape)
    print(json.dumps(ordered(backend, shape.parts[0], arguments.orders)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
