"""What is measured beside the peers, without a device: what they share with one is put in place of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend
from cgstate.bench import peer_vllm, peers, plot
from cgstate.bench.bed import Effort
from cgstate.bench.bed_torch import Linears, TorchBed, copying_in
from cgstate.bench.timing import Call
from cgstate.runtime.manager import GraphManager

pytestmark = pytest.mark.torch

CANDIDATES = peer_vllm.VllmWrapper.candidates
LITTLE = Effort(rounds=4, calls=1, entries=(), components=(), graphs={})


class OnCpu(TorchBed):
    """The bed, on the simulated device."""

    def __init__(self) -> None:
        self.sim = SimBackend()
        self.backend: Backend = self.sim
        self.model = linears()

    def zeros(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, 64)

    def filled(self, rows: int) -> torch.Tensor:
        return torch.randn(rows, 64)

    def settle(self) -> None:
        self.sim.sim.synchronize()


def linears(outputs: int = 1) -> Linears:
    return Linears(outputs).eval().requires_grad_(False)


def graph(bed: TorchBed, model: Linears, given: tuple[torch.Tensor, ...]) -> tuple[Call, Call]:
    return lambda: None, lambda: model(*given)


def eager(model: Linears, outputs: int, given: tuple[torch.Tensor, ...]) -> Call:
    return lambda: model(*given)


def wrapped(
    self: peer_vllm.VllmWrapper, model: Linears, given: tuple[torch.Tensor, ...], settle: Callable[[], object]
) -> dict[str, Call]:
    return {name: lambda: model(*given) for name in (peer_vllm.REPLAY, peer_vllm.WHOLE)}


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> TorchBed:
    monkeypatch.setattr(peers, "linears", linears)
    monkeypatch.setattr(peers, "_graph", graph)
    monkeypatch.setattr(peers, "SHAPES", ((1, 1), (4, 2)))
    monkeypatch.setattr(peers, "_graphed", eager)
    monkeypatch.setattr(peers, "_compiled", eager)
    monkeypatch.setattr(peer_vllm, "is_installed", lambda: True)
    monkeypatch.setattr(peer_vllm.VllmWrapper, "candidates", wrapped)
    return OnCpu()


def test_every_peer_is_measured_for_every_shape(bed: TorchBed) -> None:
    part = peers.measure(bed, LITTLE)
    names = ("raw", "by_hand", "make_graphed_callables", "reduce_overhead", "vllm_wrapper", "vllm_wrapper_copies")
    ratios = [*(f"call_over_{name}" for name in names), *(f"leased_call_over_{name}" for name in ("component", *names))]
    assert set(part.figures) == {f"{name}{shape}" for name in ratios for shape in ("", "_4_in_2_out")}
    assert {(row["what"], row["does"], row["inputs"], row["outputs"]) for row in part.rows} == {
        (name, does, *shape) for name, does in peers.DOES.items() for shape in ((1, 1), (4, 2))
    }
    assert part.missing == {}


def test_the_same_is_said_of_those_that_do_the_same_as_a_component(bed: TorchBed) -> None:
    does = peers.DOES
    assert does["component"].replace("check, ", "") == does["by hand"] == does[peer_vllm.WHOLE].replace("forward context, ", "")
    assert does["component, leased"] == does["component"].replace(", clone out", "; static output under a lease")
    assert does["make_graphed_callables"] == does["component, leased"].replace("check, ", "").replace(" under a lease", "")


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (4, 1), (16, 1), (1, 4)])
@torch.no_grad()
def test_a_component_copies_in_and_a_leased_one_hands_out_the_same_memory_each_time(inputs: int, outputs: int) -> None:
    bed = OnCpu()
    given = tuple(bed.filled(8) for _ in range(inputs))
    model = linears(outputs)

    def numbers(answer: Any) -> list[Any]:
        return [each.tolist() for each in ((answer,) if outputs == 1 else answer)]

    def places(answer: Any) -> list[int]:
        return [each.data_ptr() for each in ((answer,) if outputs == 1 else answer)]

    for make, leased in ((peers._component, False), (peers._leased, True)):
        with GraphManager(bed.backend) as manager:
            call = make(bed, manager, model, given)
            before = call()
            old = numbers(before)
            for each in given:
                each.copy_(torch.randn_like(each))
            after = call()
            assert numbers(after) == numbers(model(*given)) != old
            assert (places(after) == places(before)) is leased
            assert (numbers(before) == old) is not leased
            assert manager.stats().components["linears"].hits == 2
            assert manager.entry("linears", 8).state == "BOUND"  # no lease is left behind


def test_each_component_has_a_pool_that_no_other_candidate_replays(bed: TorchBed, monkeypatch: pytest.MonkeyPatch) -> None:
    managers: list[GraphManager] = []
    bind = peers._bind

    def noted(manager: GraphManager, component: Any) -> None:
        managers.append(manager)
        bind(manager, component)

    monkeypatch.setattr(peers, "_bind", noted)
    peers.measure(bed, LITTLE)
    assert len(set(map(id, managers))) == len(managers) == 4


def test_a_vllm_that_is_not_installed_is_said_once(bed: TorchBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_vllm, "is_installed", lambda: False)
    part = peers.measure(bed, LITTLE)
    assert part.missing == {"vllm wrapper": "vLLM is not installed"}
    assert not any("vllm" in name for name in part.figures)


def test_a_vllm_of_another_shape_is_named_with_what_it_lacks(bed: TorchBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_vllm.VllmWrapper, "candidates", CANDIDATES)
    for name in ("vllm", "vllm.compilation", "vllm.compilation.cuda_graph"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # so that it is put back
    part = peers.measure(bed, LITTLE)
    assert set(part.missing) == {f"vllm wrapper, {shape}" for shape in ("1 in, 1 out", "4 in, 2 out")}
    assert all("ImportError: cannot import name 'CUDAGraphWrapper'" in why for why in part.missing.values())


def test_a_peer_that_cannot_run_is_named_with_the_reason(bed: TorchBed, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: Linears, outputs: int, given: Any) -> Call:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(peers, "_compiled", refuse)
    part = peers.measure(bed, LITTLE)
    assert part.missing == {f"reduce-overhead, {shape}": "RuntimeError: no compiler" for shape in ("1 in, 1 out", "4 in, 2 out")}
    assert "call_over_make_graphed_callables" in part.figures
    assert "call_over_reduce_overhead" not in part.figures


def test_a_candidate_that_answers_wrongly_is_not_measured(bed: TorchBed, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: Linears, outputs: int, given: tuple[torch.Tensor, ...]) -> Call:
        return lambda: model(*given) + 1

    monkeypatch.setattr(peers, "_graphed", wrong)
    with pytest.raises(AssertionError, match="not close"):
        peers.measure(bed, LITTLE)


@pytest.mark.parametrize("inputs", [1, 4])
def test_by_hand_each_call_copies_what_is_in_the_inputs_by_then(inputs: int) -> None:
    given = tuple(torch.zeros(2) for _ in range(inputs))
    static = [torch.ones(2) for _ in given]
    copy_in = copying_in(static, given)
    for number in (2.0, 3.0):
        for each in given:
            each.fill_(number)
        copy_in()
        assert [each.tolist() for each in static] == [[number, number]] * inputs


def test_the_picture_has_a_colour_for_each_candidate_with_ours_first(bed: TorchBed) -> None:
    pytest.importorskip("matplotlib", reason="drawing is an optional extra")
    text = plot.svg(peers.measure(bed, LITTLE).rows, "here")
    legend = re.findall(r"<!-- (.+): .+ -->", text)
    assert legend == ["component", "component, leased", *(name for name in peers.DOES if not name.startswith("component"))]
    assert len(set(plot.COLOURS[: len(legend)])) == len(legend)
