"""A component call beside the ways that people use today, on a CUDA device: each answers the same calls of the same small model.

``raw``
    `torch.cuda.CUDAGraph.replay` alone: nothing is copied in, nothing is handed out.
``by hand``
    Copy the inputs to static ones, in one fused call where there are several; replay; clone the output.
``make_graphed_callables``
    `torch.cuda.make_graphed_callables`. It copies in, replays, and hands out its static output.
``reduce-overhead``
    `torch.compile` with ``mode="reduce-overhead"``. It fuses kernels as well, and hands out static outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cgstate.bench.bed import Effort
from cgstate.bench.bed_torch import Linears, TorchBed, linears
from cgstate.bench.parts import Part
from cgstate.bench.timing import Call, interleave, ratio
from cgstate.errors import describe
from cgstate.routine import BucketedRoutine
from cgstate.runtime.component import Component
from cgstate.runtime.manager import GraphManager

SHAPES = ((1, 1), (4, 1), (16, 1), (1, 4))
"""Numbers of inputs and of outputs."""
ROWS = 8
WARM_UP = 5


@torch.no_grad()
def measure(bed: TorchBed, effort: Effort) -> Part:
    """Every candidate for every shape. Figures are ratios of the component's call; without a suffix, for one input and output."""
    part = Part()
    for inputs, outputs in SHAPES:
        with GraphManager(bed.backend) as manager:
            candidates = _candidates(bed, manager, part, inputs, outputs)
            measured = interleave(candidates, rounds=effort.rounds, calls=effort.calls, settle=bed.settle)
        part.time("peers", measured, inputs=inputs, outputs=outputs)
        suffix = "" if (inputs, outputs) == (1, 1) else f"_{inputs}_in_{outputs}_out"
        for name in measured:
            if name != "component":
                part.figures[f"call_over_{name.replace(' ', '_').replace('-', '_')}{suffix}"] = ratio(measured, "component", name)
    return part


def _candidates(bed: TorchBed, manager: GraphManager, part: Part, inputs: int, outputs: int) -> dict[str, Call]:
    model = linears(outputs)
    given = tuple(bed.filled(ROWS) for _ in range(inputs))
    expected = model(*given)
    raw, by_hand = _graph(bed, model, given)
    made: dict[str, Call] = {"raw": raw, "by hand": by_hand, "component": _component(bed, manager, model, given)}
    for name, build in {"make_graphed_callables": _graphed, "reduce-overhead": _compiled}.items():
        try:
            made[name] = build(model, outputs, given)
        except Exception as error:  # a compiler may be missing, or a release may refuse: the others are measured, and it is said
            part.missing[f"{name}, {inputs} in, {outputs} out"] = describe(error).splitlines()[0][:200]
    for name, call in made.items():
        if name != "raw":  # which was given nothing
            torch.testing.assert_close(call(), expected, rtol=1e-3, atol=1e-4)  # a compiler fuses, and rounds differently
    return made


def _graph(bed: TorchBed, model: Linears, given: tuple[Tensor, ...]) -> tuple[Call, Call]:
    """A graph captured by hand: its replay, and all that a call takes."""
    static = [torch.zeros_like(each) for each in given]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        model(*static)
    bed.settle()
    with torch.cuda.graph(graph, stream=stream):
        output = model(*static)

    def by_hand() -> Any:
        if len(static) == 1:
            static[0].copy_(given[0])
        else:
            torch._foreach_copy_(static, list(given))
        graph.replay()
        return output.clone() if isinstance(output, Tensor) else tuple(each.clone() for each in output)

    return graph.replay, by_hand


def _component(bed: TorchBed, manager: GraphManager, model: Linears, given: tuple[Tensor, ...]) -> Call:
    routine: BucketedRoutine[..., Any] = BucketedRoutine(model, lambda rows: tuple(bed.zeros(rows) for _ in given))
    component: Component[..., Any] = Component("linears", routine, [ROWS])
    manager.prepare([component])
    manager.capture_and_bind(progress=False)
    return lambda: component(*given)


def _graphed(model: Linears, outputs: int, given: tuple[Tensor, ...]) -> Call:
    samples = tuple(each.clone() for each in given)  # they become its static inputs; a call with them would copy nothing
    graphed: Callable[..., Any] = torch.cuda.make_graphed_callables(_copy(model, outputs), samples)
    return lambda: graphed(*given)


def _compiled(model: Linears, outputs: int, given: tuple[Tensor, ...]) -> Call:
    compiled: Callable[..., Any] = torch.compile(_copy(model, outputs), mode="reduce-overhead", fullgraph=True)
    for _ in range(WARM_UP):  # it compiles, warms up, records, and only then replays
        compiled(*given)
    return lambda: compiled(*given)


def _copy(model: Linears, outputs: int) -> Linears:
    """The same model: both peers change the module that they are given."""
    copy = linears(outputs)
    copy.load_state_dict(model.state_dict())
    return copy
