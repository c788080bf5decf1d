"""Component calls beside the ways that people use today, on a CUDA device: each answers the same calls of the same small model.

``raw``
    `torch.cuda.CUDAGraph.replay` alone.
``by hand``
    What one would write around it; several inputs are copied in one fused call.
``component``
    A call of a `Component`, whose output is the caller's own.
``component, leased``
    A call of a `LeasedComponent`, the use of its output included: it is read, and the lease given back. It hands out the static
    output as the next two do.
``make_graphed_callables``
    `torch.cuda.make_graphed_callables`.
``reduce-overhead``
    `torch.compile` with ``mode="reduce-overhead"``.
``vllm wrapper``
    vLLM's `CUDAGraphWrapper`, if vLLM is installed: alone, as its runner calls it, and between the copies that a component makes.

They do not all do the same. `DOES` says what a call of each is, and every row repeats it: what it checks, copies and hands out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cgstate.bench import peer_vllm
from cgstate.bench.bed import Effort
from cgstate.bench.bed_torch import Linears, TorchBed, copying_in, linears
from cgstate.bench.figures import COMPONENT, LEASED, SUBJECTS, figure
from cgstate.bench.parts import Part, PartName
from cgstate.bench.timing import Call, interleave, ratio
from cgstate.errors import describe
from cgstate.routine import BucketedRoutine
from cgstate.runtime.component import Component, LeasedComponent
from cgstate.runtime.manager import GraphManager

SHAPES = ((1, 1), (4, 1), (16, 1), (1, 4))
"""Numbers of inputs and of outputs."""
ROWS = 8
WARM_UP = 5
DOES: Mapping[str, str] = {
    "raw": "replay",
    "by hand": "copy in, replay, clone out",
    COMPONENT: "check, copy in, replay, clone out",
    LEASED: "check, copy in, replay; static output under a lease",
    "make_graphed_callables": "copy in, replay; static output",
    "reduce-overhead": "check, copy in where it must, replay of fused kernels; static output",
    peer_vllm.REPLAY: "forward context, replay; static output",
    peer_vllm.WHOLE: "copy in, forward context, replay, clone out",
}
"""What a call of each candidate does. To check is to find out whether, and by which graph, this very call may be answered."""


@torch.no_grad()
def measure(bed: TorchBed, effort: Effort) -> Part:
    """Every candidate for every shape. Figures are ratios of a component's call, and of a leased one, over each other candidate."""
    part = Part()
    vllm = peer_vllm.VllmWrapper() if peer_vllm.is_installed() else None
    if vllm is None:
        part.missing[peer_vllm.REPLAY] = "vLLM is not installed"
    for inputs, outputs in SHAPES:
        with GraphManager(bed.backend) as manager, GraphManager(bed.backend) as lender:
            candidates = _candidates(bed, manager, lender, vllm, part, inputs, outputs)
            measured = interleave(candidates, rounds=effort.rounds, calls=effort.calls, settle=bed.settle)
        for name, timing in measured.items():
            part.time(PartName.peers, {name: timing}, does=DOES[name], inputs=inputs, outputs=outputs)
        for subject in SUBJECTS:
            for name in measured:
                if name not in (subject, LEASED):  # the clone's price is said once, as the leased call's ratio over the other
                    part.figures[figure(subject, name, inputs, outputs)] = ratio(measured, subject, name)
    return part


def _candidates(
    bed: TorchBed,
    manager: GraphManager,
    lender: GraphManager,
    vllm: peer_vllm.VllmWrapper | None,
    part: Part,
    inputs: int,
    outputs: int,
) -> dict[str, Call]:
    """Two managers: graphs of one would share a pool, and each component's calls would find it as the other's left it."""
    model = linears(outputs)
    given = tuple(bed.filled(ROWS) for _ in range(inputs))
    expected = model(*given)
    raw, by_hand = _graph(bed, model, given)
    made: dict[str, Call] = {
        "raw": raw,
        "by hand": by_hand,
        COMPONENT: _component(bed, manager, model, given),
        LEASED: _leased(bed, lender, model, given),
    }
    others: dict[str, Callable[[], dict[str, Call]]] = {
        "make_graphed_callables": lambda: {"make_graphed_callables": _graphed(model, outputs, given)},
        "reduce-overhead": lambda: {"reduce-overhead": _compiled(model, outputs, given)},
    }
    if vllm is not None:
        others[peer_vllm.REPLAY] = lambda: vllm.candidates(model, given, bed.settle)
    for name, build in others.items():
        try:
            made |= build()
        except Exception as error:  # a compiler may be missing, or a release may refuse: the others are measured, and it is said
            part.missing[f"{name}, {inputs} in, {outputs} out"] = _reason(error)
    for name, call in made.items():
        if name != "raw":  # which was given nothing
            torch.testing.assert_close(call(), expected, rtol=1e-3, atol=1e-4)  # a compiler fuses, and rounds differently
    return made


def _reason(error: Exception) -> str:
    return (describe(error).splitlines() or [""])[0][:200]


def _graph(bed: TorchBed, model: Linears, given: tuple[Tensor, ...]) -> tuple[Call, Call]:
    """A graph captured by hand: its replay, and all that a call takes."""
    static = [torch.zeros_like(each) for each in given]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        model(*static)
    bed.settle()
    with torch.cuda.graph(graph, stream=stream):
        output = model(*static)

    copy_in = copying_in(static, given)

    def by_hand() -> Any:
        copy_in()
        graph.replay()
        return output.clone() if isinstance(output, Tensor) else tuple(each.clone() for each in output)

    return graph.replay, by_hand


def _component(bed: TorchBed, manager: GraphManager, model: Linears, given: tuple[Tensor, ...]) -> Call:
    component: Component[..., Any] = Component("linears", _routine(bed, model, given), [ROWS])
    _bind(manager, component)
    return lambda: component(*given)


def _leased(bed: TorchBed, manager: GraphManager, model: Linears, given: tuple[Tensor, ...]) -> Call:
    component: LeasedComponent[..., Any] = LeasedComponent("linears", _routine(bed, model, given), [ROWS])
    _bind(manager, component)

    def call() -> Any:
        with component(*given) as lent:
            return lent.value

    return call


def _routine(bed: TorchBed, model: Linears, given: tuple[Tensor, ...]) -> BucketedRoutine[..., Any]:
    return BucketedRoutine(model, lambda rows: tuple(bed.zeros(rows) for _ in given))


def _bind(manager: GraphManager, component: Component[..., Any] | LeasedComponent[..., Any]) -> None:
    manager.prepare([component])
    manager.capture_and_bind(progress=False)


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
