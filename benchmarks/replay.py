"""What a guarded replay, a lease and a component call cost over the same done by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import cgstate
from cgstate.backends.cuda import CudaBackend
from cgstate.bench.timing import Call, Timing, added, interleave, merged, ratio
from cgstate.trace import Ring

NODES = (10, 100, 1000)
SIZE = 64
PASSES = 12
"""How often everything is measured anew, spread over a minute: the host changes speed for seconds at a time."""

Candidates = dict[str, Call]


def replays(manager: cgstate.GraphManager, nodes: int) -> Candidates:
    """``entry.replay()`` and the raw graph's ``replay()``, of ``nodes`` kernels."""
    static = torch.zeros(SIZE, device="cuda")

    def make(warmup: bool) -> Callable[[], Tensor]:
        def body() -> Tensor:
            for _ in range(nodes):
                static.add_(1.0)
            return static

        return body

    entry = manager.entry("chain", nodes)
    with manager.transaction() as transaction:
        transaction.capture(entry, make)
    raw = torch.cuda.CUDAGraph()
    with torch.cuda.graph(raw, stream=torch.cuda.Stream()):
        make(False)()
    return {"raw": raw.replay, "guarded": entry.replay}


def leases(**managers: cgstate.GraphManager) -> Candidates:
    """Acquire and release, nothing launched, of managers that have captured the shortest chain."""

    def once(entry: cgstate.Entry) -> None:
        with entry.lease():
            pass

    return {name: partial(once, manager.entry("chain", NODES[0])) for name, manager in managers.items()}


def calls(manager: cgstate.GraphManager) -> Candidates:
    """A component call of four small linears, and copy, replay and clone by hand."""
    layers = nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(4))).cuda().requires_grad_(False)

    def model(x: Tensor) -> Tensor:
        y: Tensor = layers(x)
        return y

    component = cgstate.Component("linears", cgstate.BucketedRoutine(model, lambda n: (torch.zeros(n, SIZE, device="cuda"),)), [8])
    manager.prepare([component])
    manager.capture_and_bind(progress=False)
    static = torch.zeros(8, SIZE, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model(static)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        output = model(static)
    x = torch.randn(8, SIZE, device="cuda")

    def by_hand() -> Tensor:
        static.copy_(x)
        graph.replay()
        copy: Tensor = output.clone()
        return copy

    def by_component() -> Tensor:
        return component(x)

    assert torch.equal(by_hand(), by_component())
    return {"by hand": by_hand, "component": by_component}


@torch.no_grad()
def measure() -> tuple[dict[str, float], list[dict[str, object]]]:
    """Everything of this file: figures, and one row a timing."""
    with (
        cgstate.GraphManager(CudaBackend()) as chains,
        cgstate.GraphManager(CudaBackend(), observer=Ring()) as traced,
        cgstate.GraphManager(CudaBackend()) as modules,
    ):
        work: dict[str, tuple[Candidates, int]] = {f"replay of {nodes} nodes": (replays(chains, nodes), 8) for nodes in NODES}
        replays(traced, NODES[0])
        work["lease"] = leases(plain=chains, traced=traced), 100
        work["call"] = calls(modules), 30
        passes: dict[str, list[dict[str, Timing]]] = {name: [] for name in work}
        for _ in range(PASSES):
            for name, (candidates, repeat) in work.items():
                passes[name].append(interleave(candidates, rounds=40, calls=repeat, settle=torch.cuda.synchronize))
    measured = {name: merged(several) for name, several in passes.items()}
    figures = {
        "lease_ns": measured["lease"]["plain"].quiet,
        "lease_traced_ns": measured["lease"]["traced"].quiet,
        "call_ratio": ratio(measured["call"], "component", "by hand"),
    }
    for nodes in NODES:
        each = measured[f"replay of {nodes} nodes"]
        figures[f"replay_added_ns_{nodes}"] = added(each, "guarded", "raw")
        figures[f"replay_ratio_{nodes}"] = ratio(each, "guarded", "raw")
    rows = [
        {
            "what": f"{name}, {candidate}",
            "p05_ns": timing.quiet,
            "median_ns": timing.percentile(0.5),
            "p95_ns": timing.percentile(0.95),
        }
        for name, several in measured.items()
        for candidate, timing in several.items()
    ]
    return figures, rows
