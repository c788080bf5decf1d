"""Random rounds of capture, eviction and replay, and what is left of them in bytes.

python -m benchmarks.rounds --backend cuda --isolation per_entry --rounds 1000 --beside
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from typing import Any

from cgstate import CaptureErrorMode, Entry, GraphManager
from cgstate.backends.base import Backend
from cgstate.backends.choose import choose
from cgstate.backends.undo import UndoLog

PLACES = 4
"""Entries that come and go."""


def run(backend: Backend, isolation: str, rounds: int, seed: int = 0, *, beside: bool = False) -> dict[str, int]:
    """Do ``rounds`` random rounds; the bytes that the allocator holds more than at the start, and the outputs that were wrong.

    The start is after one capture of everything and its end: what libraries keep for ever is there by then. ``beside``: a graph of
    somebody else's lives meanwhile, and keeps library workspaces from being cleared; once it is gone, nothing may be left.
    """
    rng = random.Random(seed)
    make, fill, right = _work(backend)
    inputs = [make(place) for place in range(PLACES)]
    wrong = 0
    other = _Other(backend, make(PLACES), right) if beside else None
    with GraphManager(backend, isolation=isolation) as manager:
        outputs: dict[Entry, Any] = {}

        def entry(place: int) -> Entry:
            return manager.entry(f"place {place}", place)

        def capture(place: int) -> None:
            source, work = inputs[place]
            with manager.transaction() as transaction:
                outputs[entry(place)] = transaction.capture(entry(place), lambda warmup: lambda: work(source))

        def all_once() -> int:
            """Capture and replay what is not there, retire all, and say what the allocator holds then."""
            wrong = 0
            for place in range(PLACES):
                if entry(place).state != "BOUND":
                    outputs.pop(entry(place), None)
                    capture(place)
                entry(place).replay()
                wrong += not right(outputs[entry(place)], inputs[place])
            for place in range(PLACES):
                manager.evict(f"place {place}")
            outputs.clear()
            manager.reclaim(flush=True)
            assert not wrong, f"{wrong} outputs were wrong with nothing going on"
            return backend.footprint().reserved

        before = all_once()
        for number in range(rounds):
            place = rng.randrange(PLACES)
            if entry(place).state != "BOUND":
                outputs.pop(entry(place), None)
                capture(place)
            fill(inputs[place][0], number % 7)
            entry(place).replay()
            wrong += not right(outputs[entry(place)], inputs[place])
            if rng.random() < 0.5:
                place = rng.randrange(PLACES)
                if manager.evict(f"place {place}"):
                    outputs = {each: output for each, output in outputs.items() if each.state == "BOUND"}
            if rng.random() < 0.1:
                manager.reclaim(flush=True)
                wrong += other is not None and not other.right()
        after = all_once()
        if other is not None:
            wrong += not other.right()
            other.end()
            manager.reclaim(flush=True)
        held = manager.memory().total
    return {"rounds": rounds, "leaked_bytes": max(0, after - before) + held, "wrong": wrong}


Source = tuple[Any, Callable[[Any], Any]]
"""A static input, and the work on it."""
Work = tuple[Callable[[int], Source], Callable[[Any, int], object], Callable[[Any, Source], bool]]


class _Other:
    """A graph that no manager knows, whose library workspace is in no private pool."""

    def __init__(self, backend: Backend, source: Source, right: Callable[[Any, Source], bool]) -> None:
        x, work = self._source = source
        self._right = right
        self._pool, stream, undo = backend.new_pool(), backend.new_stream(exclusive=False), UndoLog()
        stream.wait(backend.current_stream().record())
        with backend.recording_mode():
            with backend.on_stream(stream):
                work(x)
            stream.synchronize()
            self._graph = backend.open_capture(self._pool, stream, CaptureErrorMode.thread_local, undo)
            self._output = work(x)
            backend.close_capture(self._graph)
        undo.succeed()

    def right(self) -> bool:
        """Replay it."""
        self._graph.replay()
        return self._right(self._output, self._source)

    def end(self) -> None:
        """Destroy it."""
        self._output = None
        self._graph.destroy()
        self._pool.drop()


def _work(backend: Backend) -> Work:
    """How to make a static input with its work, how to fill it, and whether an output is right; outputs are read back."""
    if backend.name == "sim":
        from cgstate.backends.sim import SimBackend, kernels

        assert isinstance(backend, SimBackend)
        device = backend.sim
        weight = device.rand(4, 4)

        def fill_cells(x: Any, value: int) -> object:
            return x.fill_(float(value))

        def equal(output: Any, source: Source) -> bool:
            return bool(output.tolist() == source[1](source[0]).tolist())

        return lambda place: (device.zeros(8 << place, 4), lambda x: kernels.relu(kernels.matmul(x, weight))), fill_cells, equal

    import torch

    layer = torch.randn(256, 256, device="cuda")

    def fill(x: Any, value: int) -> object:
        return x.fill_(value)

    def close(output: Any, source: Source) -> bool:
        return torch.allclose(output, source[1](source[0]), rtol=1e-3, atol=1e-3)

    return lambda place: (torch.zeros(64 << place, 256, device="cuda"), lambda x: torch.relu(x @ layer)), fill, close


def main() -> None:
    """Print the result as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda", choices=["cuda", "sim"])
    parser.add_argument("--isolation", default="shared")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--beside", action="store_true", help="beside a graph of somebody else's")
    arguments = parser.parse_args()
    print(json.dumps(run(choose(arguments.backend), arguments.isolation, arguments.rounds, beside=arguments.beside)))


if __name__ == "__main__":
    main()
