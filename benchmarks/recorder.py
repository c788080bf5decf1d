"""What the recorder of torch code costs: capturing a module of fifty operations, replaying a graph, and memory over many replays.

Needs torch, and no GPU. Times are of this process's CPU, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

from cgstate.backends.sim import SimBackend, SimDevice, captured

REPEATS = 20


class Layer(nn.Module):
    """Ten operations, on the shape of a small decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.narrow(torch.nn.functional.gelu(self.widen(self.norm(x))))
        h = torch.tanh(h) * 0.5
        h = h.softmax(-1) + h
        return x + h.sigmoid() * h


def measure(replays: int = 200_000) -> dict[str, float]:
    """The figures, by name."""
    module = nn.Sequential(*[Layer(32) for _ in range(5)]).eval().requires_grad_(False)
    device = SimDevice()
    backend = SimBackend(device)
    stream = device.new_stream(exclusive=True)
    pool = device.new_pool()
    x = backend.place(torch.randn(8, 32))
    graph, output = captured(device, lambda: module(x), stream, pool.id)  # torch imports what its meta kernels need
    others = iter([backend.place(torch.randn(rows, 32)) for rows in range(9, 9 + REPEATS)])

    def meet_another() -> None:
        other = next(others)
        captured(device, lambda: module(other), stream, pool.id)

    new_shapes = _milliseconds(meet_another, REPEATS)
    figures = {
        "nodes": float(graph.nodes),
        "capture_new_shapes_ms": new_shapes,
        "capture_ms": _milliseconds(lambda: captured(device, lambda: module(x), stream, pool.id), REPEATS),
        "eager_ms": _milliseconds(lambda: module(x), REPEATS * 5),
        "replay_ms": _milliseconds(lambda: _replay(device, graph), REPEATS * 5),
    }
    graph.replay()
    if not torch.equal(output.cpu(), module(x.cpu())):
        raise AssertionError("the replay differs from eager")
    return figures | _growth(replays)


def _growth(replays: int) -> dict[str, float]:
    """Bytes that the process grows by over many replays of a small graph, after as many as a tenth of them."""
    device = SimDevice()
    backend = SimBackend(device)
    x = backend.place(torch.ones(8))
    graph, _ = captured(device, lambda: x * 2 + 1, device.new_stream(exclusive=True))
    before = 0
    for done in range(replays):
        if done == replays // 10:
            gc.collect()
            before = _resident()
        graph.replay()
    device.synchronize()
    gc.collect()
    return {"replays": float(replays), "grown_bytes": float(_resident() - before)}


def _replay(device: SimDevice, graph: object) -> None:
    graph.replay()  # type: ignore[attr-defined]  # a graph of the device
    device.synchronize()


def _milliseconds(act: Callable[[], object], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - started) / times * 1e3


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replays", type=int, default=200_000)
    arguments = parser.parse_args()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for name, value in measure(arguments.replays).items():
            print(f"{name:24} {value:12.3f}")


if __name__ == "__main__":
    main()
