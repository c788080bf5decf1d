"""Draws runtime programs. Every call is legal Python, many are refused: a refusal is an outcome like any other."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, cast

from cgstate.backends.sim import SimConfig
from cgstate.lifecycle.states import EntryState, ManagerState
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.fidelity.programs.draw import HUGE, LARGE, Option, carried_out, chance, choose, draw_body, insert, pick
from cgstate.testing.fidelity.programs.machine import STREAMS
from cgstate.testing.fidelity.programs.program import Json, Step
from cgstate.testing.fidelity.programs.runtime import RuntimeMachine

SIZES = (*LARGE, *HUGE)
INPUTS = 2
ISOLATIONS = ("shared", "per_component", "per_entry", "per_entry")
MODES = ("thread_local", "thread_local", "global", "relaxed")
NAMES = ("a", "b", "c")
LOW = ("low", "deep")
DEPENDENCIES = ("weights", "cache")
STEPS = 24


def draw_steps(seed: int) -> tuple[Step, ...]:
    """The steps of one program."""
    machine = RuntimeMachine(SimBench(SimConfig(sanitize=True)))
    return carried_out(_Drawing(Random(seed), machine).steps(), machine, STEPS)


class _Drawing:
    def __init__(self, random: Random, machine: RuntimeMachine[Any]) -> None:
        self._random = random
        self._machine = machine
        self._leases = 0

    def steps(self) -> Iterator[Step]:
        """Steps without end."""
        yield from (self._manage(), *self._inputs())
        if chance(self._random, 60):
            yield self._prepare()
        while True:
            yield self._next()

    def _manage(self) -> Step:
        """A new manager."""
        return {"op": "manage", "isolation": pick(self._random, ISOLATIONS), "mode": pick(self._random, MODES)}

    def _inputs(self) -> list[Step]:
        """The static inputs of the low-level door. They stay: graphs have them baked in."""
        random = self._random
        return [
            {"op": "tensor", "name": f"x{at}", "units": pick(random, LARGE), "value": 1 + random.randrange(4), "on": "current"}
            for at in range(INPUTS)
        ]

    def _prepare(self) -> Step:
        """Declare one or two components."""
        return {"op": "prepare", "components": [self._component(at) for at in range(1 + self._random.randrange(2))]}

    def _next(self) -> Step:
        """The next step."""
        machine, random = self._machine, self._random
        manager = machine.manager
        if manager.state is ManagerState.CLOSED and chance(random, 70):
            return self._manage()
        bound = self._entries(EntryState.BOUND, EntryState.REPLAYING)
        known = self._entries(*EntryState)
        components = sorted(manager._books.components)
        options: list[Option] = [
            (12, self._capture),
            (1, lambda: {"op": "seed", "seed": 1 + random.randrange(3)}),
            (2, lambda: {"op": "draw", "on": self._anywhere()}),
            (2, lambda: {"op": "reclaim", "flush": chance(random, 60)}),
            (1, lambda: {"op": "flush"}),
            (1, lambda: {"op": "product", "name": self._input(), "on": self._anywhere()}),
            (1, lambda: {"op": "too much"}),
            (1, lambda: {"op": "release"}),
            (1, lambda: {"op": "forget failures", "component": None}),
        ]
        if not machine.growing:
            options.append((1, lambda: {"op": "close"}))  # else it would rightly leave workspaces behind
        if manager.state is ManagerState.NEW:
            options.append((6, self._prepare))
        if machine.components:
            options.append((12, self._call))
            options.append((3, self._spoil))
            options.append((2, lambda: {"op": "capture all"}))
            if manager.state is ManagerState.PREPARED:
                options.append((4, lambda: {"op": "profile"}))
                options.append((8, lambda: {"op": "capture all"}))
        if components:
            options.append((2, lambda: {"op": "evict", "component": pick(random, components), "descriptor": None}))
            options.append((2, lambda: {"op": "forget failures", "component": pick(random, components)}))
        if known:
            options.append((4, lambda: self._evict(pick(random, known))))
            options.append((1, lambda: self._read(pick(random, known))))
        if bound:
            options.append((10, lambda: self._read(pick(random, bound))))
            options.append((4, lambda: {"op": "replay", "entry": pick(random, bound), "on": self._anywhere()}))
            options.append((5, lambda: self._lease(pick(random, bound))))
        if machine.leases:
            options.append((8, self._use_lease))
            options.append((5, lambda: {"op": "end lease", "name": pick(random, sorted(machine.leases))}))
        dependencies = sorted(manager._books.dependencies)
        if dependencies:
            options.append((2, lambda: {"op": "invalidate", "name": pick(random, dependencies)}))
        if len(machine.bystanders) < 2:
            options.append((2, self._bystander))
        if machine.bystanders:
            options.append((1, lambda: {"op": "reset", "name": pick(random, sorted(machine.bystanders))}))
        return choose(random, options)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _anywhere(self) -> str:
        return pick(self._random, ("current", "current", *STREAMS))

    def _input(self) -> str:
        return f"x{self._random.randrange(INPUTS)}"

    def _entries(self, *states: EntryState) -> list[Json]:
        books = self._machine.manager._books
        return [[entry.component.component_id, cast(Json, entry.descriptor)] for entry in books.entries() if entry.state in states]

    def _component(self, at: int) -> Json:
        random = self._random
        when = pick(random, ("precapture", "precapture_lazy", "precapture_lazy", "pure_lazy"))
        sizes: list[Json] = [2.0, 4.0, 6.0]
        declared = sizes[: 1 + random.randrange(2)]
        return {
            "id": f"net{at}",
            "sizes": declared,
            "lazy": [] if when == "precapture" else sizes,
            "when": when,
            "extra": 0 if when == "precapture" else random.randrange(2),
            "isolation": pick(random, ISOLATIONS),
            "dependencies": [pick(random, DEPENDENCIES)] if chance(random, 40) else [],
            "body": [["add", "r0", "x", 2], ["product", "out", "r0"]] if chance(random, 40) else [["add", "out", "x", 3]],
        }

    def _capture(self) -> Step:
        random = self._random
        entries = [self._one() for _ in range(1 + random.randrange(3))]
        return {"op": "capture", "entries": entries, "abort": chance(random, 10)}

    def _one(self) -> Json:
        random = self._random
        # What the capture stream forks to is any of the framework's: it is none of them.
        good = draw_body(random, SIZES, stream="", eager=True)
        body, warm_up = good, None
        if chance(random, 25):
            body, warm_up = self._failing(good)
        names: list[Json] = [[component, name] for component in LOW for name in NAMES]
        bound = self._entries(EntryState.BOUND, EntryState.REPLAYING)
        unbound = [name for name in names if name not in bound]
        return {
            "entry": pick(random, unbound if unbound and chance(random, 90) else names),
            "x": self._input(),
            "body": body,
            "in warm-up": warm_up,
            "dependencies": [pick(random, DEPENDENCIES)] if chance(random, 25) else [],
        }

    def _failing(self, good: list[Json]) -> tuple[list[Json], list[Json] | None]:
        """What is recorded, and what the warm-up runs; one of them fails."""
        random = self._random
        if chance(random, 20):
            return good, insert(random, good, [pick(random, ("raise", "too much"))])
        return insert(random, good, self._failure()), good

    def _failure(self) -> list[Json]:
        random = self._random
        kinds: list[list[Json]] = [
            ["raise"],
            ["item"],
            ["too much"],
            ["nested", pick(random, STREAMS)],
            ["unjoined", pick(random, STREAMS)],
            ["sync elsewhere"],
            ["item elsewhere"],
        ]
        if self._machine.bystanders:
            kinds.append(["reset", pick(random, sorted(self._machine.bystanders))])
        return pick(random, kinds)

    def _evict(self, entry: Json) -> Step:
        assert isinstance(entry, list)
        return {"op": "evict", "component": entry[0], "descriptor": entry[1]}

    def _read(self, entry: Json) -> Step:
        return {"op": "read", "entry": entry, "on": self._anywhere()}

    def _call(self) -> Step:
        random = self._random
        return {
            "op": "call",
            "component": pick(random, sorted(self._machine.components)),
            "units": pick(random, (2.0, 2.0, 4.0, 6.0, 9.5)),
            "value": 1 + random.randrange(4),
            "on": self._anywhere(),
        }

    def _spoil(self) -> Step:
        failure = self._failure()
        return {"op": "spoil", "component": pick(self._random, sorted(self._machine.components)), "with": failure}

    def _lease(self, entry: Json) -> Step:
        self._leases += 1
        return {"op": "lease", "name": f"l{self._leases - 1}", "entry": entry}

    def _use_lease(self) -> Step:
        name = pick(self._random, sorted(self._machine.leases))
        if chance(self._random, 50):
            return {"op": "read lease", "name": name}
        return {"op": "replay lease", "name": name, "on": self._anywhere()}

    def _bystander(self) -> Step:
        random = self._random
        return {
            "op": "bystander",
            "name": f"b{len(self._machine.bystanders)}",
            "x": self._input(),
            "on": pick(random, STREAMS),
            "grows": chance(random, 50),
        }
