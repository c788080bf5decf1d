"""vLLM's manager of encoder graphs, which has a pool of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cgstate
import cgstate.integrations.vllm as adapter
from tests.integrations.vllm.cuda_on_sim import CudaOnSim
from tests.integrations.vllm.lab import EncoderCudaGraphConfig, EncoderCudaGraphManager, real_config

WIDTH = 4


class Encoder:
    """A vision encoder with one static buffer a budget."""

    def __init__(self, cuda: CudaOnSim) -> None:
        torch.manual_seed(1)
        self.cuda = cuda
        self.weight = cuda.backend.place(torch.randn(WIDTH, WIDTH))
        self.fails = 0

    def get_encoder_cudagraph_config(self) -> Any:
        return EncoderCudaGraphConfig(modalities=["image"], buffer_keys=["pixels"], out_hidden_size=WIDTH)

    def get_encoder_cudagraph_budget_range(self, vllm_config: Any) -> tuple[int, int]:
        return 2, 8

    def prepare_encoder_cudagraph_capture_inputs(self, token_budget: int, *args: object) -> Any:
        return SimpleNamespace(values={"pixels": self.cuda.backend.place(torch.zeros(token_budget, WIDTH))})

    def encoder_cudagraph_forward(self, values: dict[str, torch.Tensor], path: str = "default") -> torch.Tensor:
        if values["pixels"].shape[0] == self.fails:
            raise RuntimeError("the encoder failed")
        return torch.tanh(values["pixels"] @ self.weight)


@pytest.fixture
def encoder(managed: CudaOnSim) -> Encoder:
    return Encoder(managed)


@pytest.fixture
def host(encoder: Encoder) -> Any:
    config = real_config(check=True)
    config.model_config.multimodal_config = SimpleNamespace(get_limit_per_prompt=lambda modality: 0, mm_encoder_tp_mode="weights")
    return EncoderCudaGraphManager(config, torch.device("cpu"), torch.float32, encoder)


def capture(host: Any, cuda: CudaOnSim) -> None:
    with cuda.graph_capture(None):
        host.capture(graph_pool=cuda.sim.pool_handle())


def graphs(host: Any) -> dict[Any, Any]:
    return dict(host.budget_graphs["default"])


def test_every_budget_is_an_entry_and_answers_right(host: Any, encoder: Encoder) -> None:
    capture(host, encoder.cuda)
    assert set(graphs(host)) == {2, 4, 8}
    for budget, metadata in graphs(host).items():
        pixels = torch.randn(budget, WIDTH)
        metadata.input_buffers["pixels"].copy_(pixels)
        metadata.graph.replay()
        expected = encoder.encoder_cudagraph_forward({"pixels": encoder.cuda.backend.place(pixels)})
        assert torch.equal(metadata.output_buffer.cpu(), expected.cpu())
        assert metadata.graph.state is cgstate.EntryState.BOUND
        assert metadata.graph.hits == 1
    [pool] = adapter.report()
    assert (pool.pool, sum(pool.entries.values()), pool.guests) == (host.graph_pool, 3, ())


def test_a_clear_gives_everything_back_and_it_is_captured_again(host: Any, encoder: Encoder) -> None:
    before = encoder.cuda.backend.footprint().pools
    for _ in range(2):
        capture(host, encoder.cuda)
        host.clear()
        assert graphs(host) == {}
        assert encoder.cuda.backend.footprint().pools == before


def test_a_failure_leaves_nothing_and_a_second_capture_works(host: Any, encoder: Encoder) -> None:
    before = encoder.cuda.backend.footprint().pools
    for budget in (8, 4, 2):
        encoder.fails = budget
        with pytest.raises((cgstate.CaptureFailed, RuntimeError), match="the encoder failed"):
            capture(host, encoder.cuda)
        assert graphs(host) == {}
        assert host.graph_pool is None
        assert encoder.cuda.backend.footprint().pools == before
    encoder.fails = 0
    capture(host, encoder.cuda)
    assert set(graphs(host)) == {2, 4, 8}
