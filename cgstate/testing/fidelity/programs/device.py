"""Device programs: raw graphs and pools, as the framework has them.

A program must have one outcome on a GPU. What is left to chance or to other people's memory there is left out, and is the affair of
the facts: a replay after somebody freed what it has baked in, replays that overlap in one pool, or that draw random numbers at once
(facts T1, T5, W2). `draw_device` keeps to it; `Graphed` holds what it needs to know. Two calls are left out because torch itself
does more than the fact that they stand for: `Bench.heal_generator` gives the generator a new state, with device memory of its own,
so a poisoned generator is healed by the next good capture instead (fact F2); and a body may not leave another stream current,
since torch then keeps the capture open for good.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Generic, TypeVar

from cgstate.backends.base import CaptureErrorMode
from cgstate.runtime.failure import clear_frames
from cgstate.testing.fidelity.bench import Bench, OwnedPool, RawGraph
from cgstate.testing.fidelity.programs.body import Body, has
from cgstate.testing.fidelity.programs.machine import REFUSALS, Machine
from cgstate.testing.fidelity.programs.program import Json, Seen, Step

T = TypeVar("T")


class Left(StrEnum):
    """What a failed capture has left behind in its pool."""

    nothing = auto()
    recording = auto()
    """The recording, and one use."""
    use = auto()
    """One use."""


@dataclass(slots=True)
class Graphed(Generic[T]):
    """A graph of the program.

    Attributes:
        graph: The graph.
        pool: Name of its pool; that of a pool made for it alone is ``own of`` and its name.
        stream: Name of the capture stream.
        x: Name of its static input.
        body: Its operations.
        order: Place among all captures.
        outputs: What its body returned, for as long as somebody holds that.
        alive: Whether it was captured and not reset. One whose body raised is captured, too (fact F1).
        whole: Whether its body came to its end.
        left: What its failed capture has left behind.
    """

    graph: RawGraph
    pool: str
    stream: str
    x: str
    body: list[Json]
    order: int
    outputs: dict[str, T] = field(default_factory=dict)
    alive: bool = False
    whole: bool = False
    left: Left = Left.nothing

    @property
    def has_workspace(self) -> bool:
        """Whether a library workspace is baked in."""
        return has(self.body, "product")

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return has(self.body, "draw")


class DeviceMachine(Machine[T]):
    """Carries out device programs.

    Attributes:
        graphs: By name, those whose capture failed too.
        owned: Pools with an owner, by name.
        handles: Ids of all pools by name.
        dropped: Names of owned pools whose owner is gone.
    """

    def __init__(self, bench: Bench[T]) -> None:
        super().__init__(bench)
        self.graphs: dict[str, Graphed[T]] = {}
        self.owned: dict[str, OwnedPool] = {}
        self.handles: dict[str, Hashable] = {}
        self.dropped: set[str] = set()

    @property
    def leftovers(self) -> list[Graphed[T]]:
        """Graphs whose failed capture has left something, the oldest first."""
        return [graphed for graphed in self.graphs.values() if graphed.left is not Left.nothing]

    # -- doing --------------------------------------------------------------------------------------------------------

    def _act(self, step: Step) -> Json:
        bench = self.bench
        match step:
            case {"op": "pool", "name": str(name), "kind": "owned"}:
                self.owned[name] = bench.owned_pool()
                self.handles[name] = self.owned[name].id
            case {"op": "pool", "name": str(name), "kind": "handle"}:
                self.handles[name] = bench.pool_handle()
            case {"op": "drop pool", "name": str(name)}:
                self.dropped.add(name)
                bench.drop_pool(self.owned[name])
            case {"op": "capture"}:
                return self._capture(step)
            case {"op": "replay", "graphs": list(graphs), "on": list(streams)}:
                return self._replay([str(name) for name in graphs], [str(name) for name in streams])
            case {"op": "reset", "graph": str(name)}:
                self.reset(name)
            case {"op": "forget", "graph": str(name)}:
                self.graphs[name].outputs.clear()
            case {"op": "release", "graph": str(name)}:
                self._release(self.graphs[name])
            case {"op": "restore stream"}:
                bench.restore_stream()
            case {"op": "clear workspaces"}:
                bench.clear_workspaces()
            case _:
                return self._common(step)
        return "done"

    def _capture(self, step: Step) -> Json:
        bench = self.bench
        match step:
            case {
                "graph": str(name),
                "pool": str() | None as pool,
                "on": str(on),
                "mode": str(mode),
                "x": str(x),
                "body": list(body),
            }:
                pass
            case _:
                raise AssertionError(f"not a capture: {step}")
        graphed = Graphed[T](bench.graph(), pool or f"own of {name}", on, x, body, len(self.graphs))
        self.graphs[name] = graphed
        work = Body(self, body, self.tensors[x], self.reset)
        try:
            graphed.outputs = bench.capture(
                graphed.graph,
                work,
                stream=self.streams[on],
                pool=None if pool is None else self.handles[pool],
                mode=CaptureErrorMode(mode),
            )
            graphed.alive = graphed.whole = True
            return ["captured", *work.noted]
        except REFUSALS as error:
            did = str(bench.error_name(error))
            graphed.alive = did in ("BodyError", "out of memory")
            graphed.left = self._left_by(did, graphed)
            clear_frames(error)  # as `Machine.do` would
            return [did, *work.noted]
        finally:
            if graphed.graph.pool_id is not None:
                self.handles.setdefault(graphed.pool, graphed.graph.pool_id)

    def _left_by(self, did: str, graphed: Graphed[T]) -> Left:
        """What a failed capture has left, by how it failed (facts F4, F5). One that a latch refused has left nothing (fact P1)."""
        if did == "already recording":
            # Said by the device's allocator while an earlier recording is left there; else by that of pinned memory, later.
            before = any(other.pool == graphed.pool and other.left is Left.recording for other in self.leftovers)
            return Left.use if before else Left.recording
        return Left.recording if did.startswith("device error") else Left.nothing

    def _replay(self, names: list[str], streams: list[str]) -> Json:
        """Launch them all, then wait; what each has put out."""
        bench = self.bench
        for name, stream in zip(names, streams, strict=True):
            with self.on(stream):
                self.graphs[name].graph.replay()
        bench.synchronize()
        results: dict[str, Json] = {}
        for name in names:
            for label, output in self.graphs[name].outputs.items():
                results[f"{name} {label}"] = self.drawn(output) if label == "random" else self.values(output)
        return results

    def reset(self, name: str) -> None:
        """Reset a graph; its outputs stay."""
        self.graphs[name].alive = False
        self.graphs[name].graph.reset()

    def _release(self, graphed: Graphed[T]) -> None:
        graphed.left = Left.nothing
        self.bench.release_recording(graphed.graph)

    def _clean_up(self) -> Iterator[Callable[[], object]]:
        bench = self.bench
        yield bench.restore_stream
        for graphed in sorted(self.leftovers, key=lambda graphed: (graphed.left is Left.use, graphed.order)):
            yield lambda graphed=graphed: self._release(graphed)  # type: ignore[misc]  # mypy cannot infer a defaulted lambda
        yield self._heal
        for name, graphed in self.graphs.items():
            if graphed.alive:
                yield lambda name=name: self.reset(name)  # type: ignore[misc]
            graphed.outputs.clear()
        for name in sorted(self.owned.keys() - self.dropped):
            yield lambda name=name: bench.drop_pool(self.owned[name])  # type: ignore[misc]

    def _heal(self) -> None:
        """Lead the generator out of a capture that failed: by one that does not (fact F2)."""
        cell = self.bench.full(2, 0)
        graph = self.bench.graph()
        self.bench.capture(graph, lambda: self.bench.add_(cell, 1), stream=self.streams["s0"])
        graph.reset()

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self) -> Seen:
        reserved, allocated, _ = self._held()
        seen = super()._look()
        seen["outside the pools"] = reserved
        seen["allocated"] = allocated
        names = {handle: name for name, handle in self.handles.items()}
        for handle, by_stream in self.bench.pools().items():
            name = names.get(handle, "another")
            seen[f"pool {name}"] = {self.stream_name(stream): self.units(size) for stream, size in by_stream.items()}
        for name, pool in self.owned.items():
            if name not in self.dropped:
                seen[f"uses of {name}"] = pool.use_count()
        return seen
