"""What a guarded replay, a lease and a component call cost over the same done by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import cgstate
from benchmarks.timing import Call, Timing, added, interleave, ratio
from cgstate.backends.cuda import CudaBackend

NODES = (10, 100, 1000)
SIZE = 64


def replays(manager: cgstate.GraphManager) -> dict[str, Timing]:
    """``entry.replay()`` against the raw graph's ``replay()``, for graphs of `NODES` kernels; all in one interleaved run."""
    static = torch.zeros(SIZE, device="cuda")
    candidates: dict[str, Call] = {}
    for nodes in NODES:

        def make(warmup: bool, nodes: int = nodes) -> Callable[[], Tensor]:
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
        candidates |= {f"raw {nodes}": raw.replay, f"guarded {nodes}": entry.replay}
    return interleave(candidates, rounds=601, calls=8, settle=torch.cuda.synchronize)


def lease(manager: cgstate.GraphManager) -> Timing:
    """Acquire and release, nothing launched."""
    entry = manager.entry("chain", NODES[0])

    def once() -> None:
        with entry.lease():
            pass

    return interleave({"lease": once}, rounds=201, calls=200)["lease"]


def call() -> dict[str, Timing]:
    """A component call of four small linears against copy, replay and clone by hand."""
    layers = nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(4))).cuda().requires_grad_(False)

    def model(x: Tensor) -> Tensor:
        y: Tensor = layers(x)
        return y

    routine = cgstate.BucketedRoutine(model, lambda n: (torch.zeros(n, SIZE, device="cuda"),))
    component = cgstate.Component("linears", routine, [8])
    manager = cgstate.GraphManager(CudaBackend())
    manager.prepare([component])
    manager.capture_and_bind(progress=False)
    static = torch.zeros(8, SIZE, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):
            model(static)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=warm):
            output = model(static)
    x = torch.randn(8, SIZE, device="cuda")

    def by_hand() -> Tensor:
        static.copy_(x)
        graph.replay()
        copy: Tensor = output.clone()
        return copy

    def by_component() -> Tensor:
        return component(x)

    with torch.no_grad():
        assert torch.equal(by_hand(), by_component())
        measured = interleave({"by_hand": by_hand, "component": by_component}, rounds=401, calls=30, settle=torch.cuda.synchronize)
    manager.close()
    return measured


def measure() -> tuple[dict[str, float], list[dict[str, object]]]:
    """Everything of this file: figures, and one row a timing."""
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    manager = cgstate.GraphManager(CudaBackend())
    measured = replays(manager)
    for nodes in NODES:
        figures[f"replay_added_ns_{nodes}"] = added(measured, f"guarded {nodes}", f"raw {nodes}")
        figures[f"replay_ratio_{nodes}"] = ratio(measured, f"guarded {nodes}", f"raw {nodes}")
    rows += [_row(f"replay of {name} nodes", timing) for name, timing in measured.items()]
    timing = lease(manager)
    manager.close()
    figures["lease_ns"] = timing.quiet
    rows.append(_row("lease", timing))
    measured = call()
    figures["call_ratio"] = ratio(measured, "component", "by_hand")
    rows += [_row(f"call, {name}", timing) for name, timing in measured.items()]
    return figures, rows


def _row(what: str, timing: Timing) -> dict[str, object]:
    return {"what": what, "p05_ns": timing.quiet, "median_ns": timing.percentile(0.5), "p95_ns": timing.percentile(0.95)}
