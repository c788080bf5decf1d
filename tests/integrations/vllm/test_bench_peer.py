"""What `cgstate bench` measures of vLLM is vLLM's own wrapper, replaying a graph that it captured itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cgstate.bench.bed_torch import Linears
from cgstate.bench.peer_vllm import REPLAY, WHOLE, VllmWrapper, is_installed
from cgstate.bench.timing import Call
from tests.integrations.vllm.cuda_on_sim import CudaOnSim
from tests.integrations.vllm.lab import CUDAGraphWrapper

ROWS = 8


class Peer:
    """The candidates for one shape, over the simulated device."""

    def __init__(self, cuda: CudaOnSim, inputs: int, outputs: int) -> None:
        torch.manual_seed(0)
        place = cuda.backend.place
        self.model = place(Linears(outputs).eval().requires_grad_(False))
        self.given = tuple(place(torch.randn(ROWS, 64)) for _ in range(inputs))
        self.vllm = VllmWrapper()
        self.candidates: dict[str, Call] = self.vllm.candidates(self.model, self.given, cuda.sim.synchronize)

    def answers(self) -> dict[str, Any]:
        return {name: call() for name, call in self.candidates.items()}

    def change_inputs(self) -> None:
        for each in self.given:
            each.copy_(torch.randn(ROWS, 64))


def numbers(output: Any) -> list[Any]:
    return [each.tolist() for each in ((output,) if isinstance(output, torch.Tensor) else output)]


@pytest.fixture
def on_sim(cuda: CudaOnSim, monkeypatch: pytest.MonkeyPatch) -> CudaOnSim:
    monkeypatch.setattr(torch.cuda, "stream", cuda.sim.on_stream)
    return cuda


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (4, 1), (16, 1), (1, 4)])
@torch.no_grad()
def test_both_candidates_answer_as_the_model(on_sim: CudaOnSim, inputs: int, outputs: int) -> None:
    peer = Peer(on_sim, inputs, outputs)
    assert is_installed()
    expected = numbers(peer.model(*peer.given))
    for name, answer in peer.answers().items():
        assert numbers(answer) == expected, name


@torch.no_grad()
def test_a_call_replays_and_runs_nothing_eagerly(on_sim: CudaOnSim, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(on_sim, 1, 1)
    replays: list[Any] = []
    original = on_sim.CUDAGraph.replay

    def replay(graph: Any) -> None:
        replays.append(graph)
        original(graph)

    monkeypatch.setattr(on_sim.CUDAGraph, "replay", replay)
    monkeypatch.setattr(Linears, "forward", lambda *inputs: pytest.fail("it ran eagerly"))
    peer.answers()
    assert len(replays) == 2
    assert replays[0] is replays[1]


@torch.no_grad()
def test_each_does_what_its_row_says(on_sim: CudaOnSim) -> None:
    """The one alone copies nothing in and hands out the same tensor each time; the other does both copies."""
    peer = Peer(on_sim, 4, 1)
    before = peer.answers()
    assert peer.candidates[REPLAY]() is before[REPLAY]
    assert peer.candidates[WHOLE]() is not before[WHOLE]
    peer.change_inputs()
    old = numbers(before[WHOLE])
    assert numbers(peer.candidates[REPLAY]()) == old
    assert numbers(peer.candidates[WHOLE]()) == numbers(peer.model(*peer.given)) != old


@torch.no_grad()
def test_shapes_that_follow_each_other_share_vllms_pool(on_sim: CudaOnSim) -> None:
    vllm = VllmWrapper()
    place = on_sim.backend.place
    for outputs in (1, 4):
        model = place(Linears(outputs).eval().requires_grad_(False))
        given = (place(torch.randn(ROWS, 64)),)
        candidates = vllm.candidates(model, given, on_sim.sim.synchronize)
        assert numbers(candidates[WHOLE]()) == numbers(model(*given))
    pools = {entry.cudagraph.pool() for wrapper in vllm._alive for entry in wrapper.concrete_cudagraph_entries.values()}
    assert len(pools) == 1


@torch.no_grad()
def test_a_wrapper_that_captures_nothing_is_no_peer(on_sim: CudaOnSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUDAGraphWrapper, "__call__", lambda wrapper, *inputs: wrapper.runnable(*inputs))
    with pytest.raises(RuntimeError, match="has captured no graph"):
        Peer(on_sim, 1, 1)
