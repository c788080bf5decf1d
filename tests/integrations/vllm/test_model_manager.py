"""vLLM's manager of the model itself: with its own inputs, forward contexts and hidden states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cgstate
import cgstate.integrations.vllm as adapter
from cgstate.runtime.entry import Entry
from tests.integrations.vllm.cuda_on_sim import CudaOnSim
from tests.integrations.vllm.lab import REQUESTS, SIZES, CUDAGraphMode, InputBuffers, cudagraph_utils, full, real_config

HIDDEN = 16


class Net(torch.nn.Module):
    """Embeds, mixes in the position, and projects; placed on the device by the test."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(32, HIDDEN)
        self.project = torch.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **_: object) -> torch.Tensor:
        hidden: torch.Tensor = self.project(self.embed(input_ids) + positions.unsqueeze(1))
        return torch.tanh(hidden)


class Bench:
    """vLLM's manager with a model, as its runner has it."""

    def __init__(self, cuda: CudaOnSim) -> None:
        self.cuda = cuda
        self.config = real_config(CUDAGraphMode.FULL_DECODE_ONLY, check=True)
        device = torch.device("cpu")
        self.buffers = InputBuffers(REQUESTS, max(SIZES), device)
        for name in ("input_ids", "positions", "is_padding"):
            setattr(self.buffers, name, cuda.backend.place(getattr(self.buffers, name)))
        self.net = cuda.backend.place(Net())
        self.manager = cudagraph_utils.ModelCudaGraphManager(self.config, device, CUDAGraphMode.FULL_DECODE_ONLY, 1)

    def capture(self) -> None:
        state = SimpleNamespace(
            max_model_len=128, prepare_dummy_inputs=lambda reqs, tokens: {}, prepare_attn=lambda *args, **kwargs: None
        )
        tables = SimpleNamespace(
            cp_size=1, get_dummy_block_tables=lambda reqs: (), get_dummy_slot_mappings=lambda tokens: torch.zeros(0, tokens)
        )
        layers = SimpleNamespace(kv_cache_groups=[], num_blocks=1)
        self.manager.capture(self.net, state, self.buffers, None, tables, [], layers)

    def replayed(self, desc: Any, ids: list[int]) -> torch.Tensor:
        self.feed(ids)
        hidden: torch.Tensor = self.manager.run_fullgraph(desc)
        return hidden.cpu().clone()

    def expected(self, desc: Any, ids: list[int]) -> torch.Tensor:
        self.feed(ids)
        hidden: torch.Tensor = self.net(self.buffers.input_ids[: desc.num_tokens], self.buffers.positions[: desc.num_tokens])
        return hidden.detach().cpu().clone()

    def feed(self, ids: list[int]) -> None:
        self.buffers.input_ids.copy_(torch.tensor(ids, dtype=torch.int32))
        self.buffers.positions.copy_(torch.arange(max(SIZES)))


@pytest.fixture
def bench(managed: CudaOnSim) -> Bench:
    return Bench(managed)


def test_its_hidden_states_are_those_of_the_model(bench: Bench) -> None:
    bench.capture()
    assert {type(graph) for graph in bench.manager.graphs.values()} == {Entry}
    for desc in full(bench.manager):
        ids = [(7 * each + desc.num_tokens) % 32 for each in range(max(SIZES))]
        with torch.inference_mode():
            assert torch.equal(bench.replayed(desc, ids), bench.expected(desc, ids))


def test_it_is_released_and_captured_again(bench: Bench) -> None:
    bench.capture()
    bench.manager.release_graphs()
    bench.capture()
    desc = full(bench.manager)[0]
    ids = list(range(max(SIZES)))
    with torch.inference_mode():
        assert torch.equal(bench.replayed(desc, ids), bench.expected(desc, ids))


def test_a_failure_of_the_model_leaves_it_ready_for_the_next_capture(bench: Bench) -> None:
    forward = bench.net.forward

    def fails(input_ids: torch.Tensor, positions: torch.Tensor, **inputs: object) -> torch.Tensor:
        if len(input_ids) == 2:
            raise RuntimeError("the model failed")
        result: torch.Tensor = forward(input_ids, positions, **inputs)
        return result

    bench.net.forward = fails  # type: ignore[method-assign]
    with pytest.raises((cgstate.CaptureFailed, RuntimeError), match="the model failed"):
        bench.capture()
    assert bench.manager.graphs == {}
    bench.net.forward = forward  # type: ignore[method-assign]
    bench.capture()
    assert list(adapter.report()[0].entries.values()) == [len(full(bench.manager))]
