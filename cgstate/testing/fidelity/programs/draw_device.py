"""Draws device programs; which steps have one outcome on a GPU is decided here, see `device`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from cgstate.backends.sim import SimConfig
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.fidelity.programs.device import DeviceMachine, Graphed, Left
from cgstate.testing.fidelity.programs.draw import HUGE, LARGE, SMALL, Option, carried_out, chance, choose, draw_body, insert, pick
from cgstate.testing.fidelity.programs.machine import STREAMS
from cgstate.testing.fidelity.programs.program import Json, Step

SIZES = (*SMALL, *LARGE, *HUGE)
EAGER_SIZES = (*LARGE, *HUGE)
"""Units of eager tensors. Small ones would come to lie in what the framework keeps for itself."""
STEPS = 18


def draw_steps(seed: int) -> tuple[Step, ...]:
    """The steps of one program."""
    machine = DeviceMachine(SimBench(SimConfig(sanitize=True)))
    return carried_out(_Drawing(Random(seed), machine).steps(), machine, STEPS)


class _Drawing:
    def __init__(self, random: Random, machine: DeviceMachine[Any]) -> None:
        self._random = random
        self._machine = machine
        self._tensors = 0
        self._cut = chance(random, 30)  # a third of the programs never fail, and go further

    def steps(self) -> Iterator[Step]:
        """Steps without end."""
        yield from (self._tensor(), self._pool())
        while True:
            yield self._next()

    def _next(self) -> Step:
        """The next step, out of those that are defined now."""
        machine, random = self._machine, self._random
        alive = [name for name, graphed in machine.graphs.items() if graphed.alive]
        whole = [name for name in alive if machine.graphs[name].whole and machine.graphs[name].outputs]
        held = [name for name, graphed in machine.graphs.items() if graphed.outputs and not graphed.alive]
        baked = {machine.graphs[name].x for name in alive}
        free = [name for name in machine.tensors if name not in baked]
        recording = bool(machine.leftovers)
        pools = sorted(machine.owned.keys() - machine.dropped)
        options: list[Option] = [
            (4, self._tensor),
            (2, lambda: {"op": "draw", "on": self._anywhere()}),
            (1, lambda: {"op": "seed", "seed": 1 + random.randrange(3)}),
            (2, lambda: {"op": "flush"}),
            (1, lambda: {"op": "product", "name": pick(random, list(machine.tensors)), "on": self._anywhere()}),
            (1, lambda: {"op": "add", "name": pick(random, list(machine.tensors)), "value": 1, "on": self._anywhere()}),
            (1, lambda: {"op": "restore stream"}),
        ]
        if not self._cut:
            options.append((1, lambda: {"op": "too much"}))
        if len(machine.handles) < 5:
            options.append((2, self._pool))
        if len(machine.graphs) < 9:
            options.append((14, self._capture))
        if whole:
            options.append((12, lambda: self._replay(whole)))
        if len(whole) > 1:
            options.append((12, lambda: self._replay_at_once(whole)))
        if alive:
            options.append((5, lambda: {"op": "reset", "graph": pick(random, alive)}))
        if held:
            options.append((4, lambda: {"op": "forget", "graph": pick(random, held)}))
        if len(free) > 1 or (free and len(machine.tensors) > 1):
            options.append((2, lambda: {"op": "free", "name": pick(random, free)}))
        if pools and not recording:
            options.append((2, lambda: {"op": "drop pool", "name": pick(random, pools)}))
        if not any(machine.graphs[name].has_workspace for name in alive):
            options.append((2, lambda: {"op": "clear workspaces"}))
        dead = [name for name, graphed in machine.graphs.items() if not graphed.alive]
        if dead and not self._cut:
            options.append((1, lambda: {"op": "replay", "graphs": [pick(random, dead)], "on": ["current"]}))
        if recording:
            options.append((10, self._release))
            options.append((6, lambda: {"op": "restore stream"}))
        return choose(random, options)

    def _tensor(self) -> Step:
        """A new eager tensor."""
        random = self._random
        self._tensors += 1
        units = pick(random, EAGER_SIZES if chance(random, 25) else LARGE)
        return {
            "op": "tensor",
            "name": f"t{self._tensors - 1}",
            "units": units,
            "value": 1 + random.randrange(4),
            "on": self._anywhere(),
        }

    def _pool(self) -> Step:
        """A new pool."""
        return {"op": "pool", "name": f"p{len(self._machine.handles)}", "kind": pick(self._random, ("owned", "owned", "handle"))}

    def _anywhere(self) -> str:
        return pick(self._random, ("current", "current", *STREAMS))

    def _capture(self) -> Step:
        machine, random = self._machine, self._random
        stream = pick(random, STREAMS[:2] if chance(random, 70) else STREAMS)
        body = draw_body(random, SIZES, stream=stream, eager=False)
        mode = pick(random, ("global", "thread_local", "thread_local", "relaxed"))
        pool = self._pool_to_capture_into()
        if not self._cut and chance(random, 40):
            body = self._failing(body, stream, mode)
        return {
            "op": "capture",
            "graph": f"g{len(machine.graphs)}",
            "pool": pool,
            "on": stream,
            "mode": mode,
            "x": pick(random, list(machine.tensors)),
            "body": body,
        }

    def _pool_to_capture_into(self) -> str | None:
        """A pool's name, or None for one of its own; seldom one that must refuse."""
        machine, random = self._machine, self._random
        recording = {graphed.pool for graphed in machine.leftovers}
        good, refusing = [], []
        for name in machine.handles:
            users = [graphed for graphed in machine.graphs.values() if graphed.pool == name]
            used = any(graphed.alive for graphed in users)
            latched = bool(users) and not used and any(graphed.left is Left.nothing for graphed in users)
            if name in recording or latched or (name in machine.dropped and not used):
                if not self._cut:
                    refusing.append(name)
            else:
                good.append(name)
        if refusing and chance(random, 15):
            return pick(random, refusing)
        if good and chance(random, 85):
            return pick(random, good)
        return None

    def _failing(self, body: list[Json], stream: str, mode: str) -> list[Json]:
        """``body`` with an operation that fails, or that only the mode of the capture decides about."""
        machine, random = self._machine, self._random
        others = [name for name, graphed in machine.graphs.items() if graphed.alive]
        side = pick(random, [other for other in STREAMS if other != stream])
        kinds: list[list[Json]] = [
            ["raise"],
            ["item"],
            ["too much"],
            ["nested", side],
            ["unjoined", side],
            ["sync elsewhere"],
            ["item elsewhere"],
            ["flush"],
        ]
        if mode != "global":
            kinds.append(["draw elsewhere"])  # it allocates, which a global capture may or may not allow
        if others:
            kinds += [["reset", pick(random, others)]] * 2
        return insert(random, body, pick(random, kinds))

    def _replay(self, whole: list[str]) -> Step:
        return {"op": "replay", "graphs": [pick(self._random, whole)], "on": [self._anywhere()]}

    def _replay_at_once(self, whole: list[str]) -> Step:
        """Two graphs that have nothing in common, on two streams; or one, if there are no such two."""
        graphs, random = self._machine.graphs, self._random
        first = pick(random, whole)
        apart = [name for name in whole if _apart(graphs[first], graphs[name])]
        if not apart:
            return self._replay([first])
        return {"op": "replay", "graphs": [first, pick(random, apart)], "on": ["s0", "s1"]}

    def _release(self) -> Step:
        """Give back by hand what the oldest failure has left; recordings before uses, as the framework wants it."""
        left = sorted(self._machine.leftovers, key=lambda graphed: (graphed.left is Left.use, graphed.order))
        return {"op": "release", "graph": f"g{left[0].order}"}


def _apart(a: Graphed[Any], b: Graphed[Any]) -> bool:
    """Whether two graphs may replay at once: no memory, no workspace and no random numbers in common (facts T1, W5)."""
    return (
        a.pool != b.pool
        and a.x != b.x
        and not (a.random and b.random)
        and not (a.has_workspace and b.has_workspace and a.stream == b.stream)
    )
