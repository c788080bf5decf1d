"""What is measured beside the peers, without a device: what they share with one is put in place of it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend
from cgstate.bench import peers
from cgstate.bench.bed import Effort
from cgstate.bench.bed_torch import Linears, TorchBed
from cgstate.bench.timing import Call

pytestmark = pytest.mark.torch

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


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> TorchBed:
    monkeypatch.setattr(peers, "linears", linears)
    monkeypatch.setattr(peers, "_graph", graph)
    monkeypatch.setattr(peers, "SHAPES", ((1, 1), (4, 2)))
    monkeypatch.setattr(peers, "_graphed", eager)
    monkeypatch.setattr(peers, "_compiled", eager)
    return OnCpu()


def test_every_peer_is_measured_for_every_shape(bed: TorchBed) -> None:
    part = peers.measure(bed, LITTLE)
    names = ("raw", "by_hand", "make_graphed_callables", "reduce_overhead")
    assert set(part.figures) == {f"call_over_{name}{shape}" for name in names for shape in ("", "_4_in_2_out")}
    assert {(row["what"], row["inputs"], row["outputs"]) for row in part.rows} == {
        (name, *shape)
        for name in ("raw", "by hand", "component", "make_graphed_callables", "reduce-overhead")
        for shape in ((1, 1), (4, 2))
    }
    assert part.missing == {}


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
