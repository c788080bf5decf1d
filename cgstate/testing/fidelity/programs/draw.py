"""What both generators share: carrying out, weighted choice, and bodies.

Programs are drawn step by step while they run on a simulator of their own, because what may come next depends on what came of the
steps before. Only `Random.randrange` is used, whose sequence is the same in every Python release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from random import Random
from typing import Any, TypeAlias, TypeVar

from cgstate.testing.fidelity.programs.body import has
from cgstate.testing.fidelity.programs.machine import STREAMS, Machine
from cgstate.testing.fidelity.programs.program import Json, Step

V = TypeVar("V")

Option: TypeAlias = "tuple[int, Callable[[], Step]]"
"""Weight of a step, and what makes it."""

SMALL = (0.5, 1.0)
"""Units of allocations that share small segments."""
LARGE = (1.5, 2.0, 4.0, 6.0, 9.5)
"""Units of allocations that share large segments."""
HUGE = (10.0, 11.0, 12.0)
"""Units of allocations with a segment of their own."""


def carried_out(steps: Iterable[Step], machine: Machine[Any], count: int) -> tuple[Step, ...]:
    """The first ``count`` of ``steps``, each done on ``machine`` before the next is drawn."""
    done: list[Step] = []
    for step in islice(steps, count):
        machine.do(step)
        done.append(step)
    return tuple(done)


def pick(random: Random, among: Sequence[V]) -> V:
    """One of them."""
    return among[random.randrange(len(among))]


def chance(random: Random, percent: int) -> bool:
    """True so often."""
    return random.randrange(100) < percent


def choose(random: Random, options: Sequence[Option]) -> Step:
    """One step, by weight."""
    at = random.randrange(sum(weight for weight, _ in options))
    for weight, make in options:
        if at < weight:
            return make()
        at -= weight
    raise AssertionError("a weight was negative")


def draw_body(random: Random, sizes: Sequence[float], *, stream: str, eager: bool) -> list[Json]:
    """A body that succeeds.

    Args:
        random: What to draw from.
        sizes: Units that its tensors may have; the input's own size comes besides.
        stream: What it will be captured on, to fork from.
        eager: Whether it also runs eagerly, so that memory of another stream must not be freed while it is in use.
    """
    body: list[Json] = []
    alike = ["x"]  # registers of the input's size
    apart: list[str] = []
    forked: set[str] = set()
    for at in range(1 + random.randrange(5)):
        name = f"r{at}"
        kind = random.randrange(10)
        if kind < 3:
            body.append(["add", name, pick(random, alike), 1 + random.randrange(3)])
            alike.append(name)
        elif kind < 5:
            body.append(["full", name, pick(random, sizes), random.randrange(5)])
            apart.append(name)
        elif kind == 5 and apart:
            body.append(["add", name, pick(random, apart), 1])
            apart.append(name)
        elif kind == 6 and len(alike) > 1:
            body.append([pick(random, ("sum_", "copy_")), pick(random, alike[1:]), pick(random, alike)])
        elif kind == 7:
            side = pick(random, [other for other in STREAMS if other != stream])
            body.append(["fork", side, name, pick(random, alike), 1 + random.randrange(3)])
            alike.append(name)
            forked.add(name)
        elif kind == 8:
            body.append(["add_", pick(random, (*alike, *apart)), 1])
        loose = [name for name in (*alike[1:], *apart) if not (eager and name in forked)]
        if loose and chance(random, 30):
            gone = pick(random, loose)
            body.append(["free", gone])
            (alike if gone in alike else apart).remove(gone)
    if chance(random, 25):
        body.append(["draw"])
    if chance(random, 35):
        body.append(["product", "out", "x"])
    else:
        body.append(["add", "out", pick(random, alike), 1 + random.randrange(3)])
    return body


BREAKS_SILENTLY = ("sync elsewhere", "item elsewhere", "reset")
"""Operations after which a body may go on although its capture is broken."""


def insert(random: Random, body: list[Json], operation: list[Json]) -> list[Json]:
    """``body`` with one operation more: after its first kernel, so that no graph is empty.

    What breaks the capture silently does not come before a call of the library: that would raise the library's own error, out of
    whatever it had done by then.
    """
    if operation[0] in BREAKS_SILENTLY and has(body, "product"):
        return [*body, operation]
    at = 1 + random.randrange(len(body))
    return [*body[:at], operation, *body[at:]]
