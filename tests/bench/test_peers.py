"""What is measured beside the peers, without a device: what they share with one is put in place of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend
from cgstate.bench import peer_vllm, peers
from cgstate.bench.bed import Effort
from cgstate.bench.bed_torch import Linears, TorchBed, copying_in
from cgstate.bench.timing import Call

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
    assert set(part.figures) == {f"call_over_{name}{shape}" for name in names for shape in ("", "_4_in_2_out")}
    assert {(row["what"], row["does"], row["inputs"], row["outputs"]) for row in part.rows} == {
        (name, does, *shape) for name, does in peers.DOES.items() for shape in ((1, 1), (4, 2))
    }
    assert part.missing == {}


def test_the_same_is_said_of_those_that_do_the_same_as_a_component(bed: TorchBed) -> None:
    assert peers.DOES["component"] == peers.DOES["by hand"] == peers.DOES[peer_vllm.WHOLE].replace("forward context, ", "")


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
