"""A model for vLLM's managers whose every whole graph, and every piecewise one, computes something to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.integrations.vllm.cuda_on_sim import CudaOnSim
from tests.integrations.vllm.lab import SIZES, BatchDescriptor, CUDAGraphMode, CUDAGraphWrapper, set_forward_context

WIDTH = 32


class Model:
    """Static inputs and outputs, weights, and a piecewise part.

    Attributes:
        calls: Of each call of the factory: mode, tokens, whether it was for a warm-up; and of each forward: its mode.
        fails: Called before the work of each forward, with descriptor and warm-up flag; raises where it wants to.
    """

    def __init__(self, cuda: CudaOnSim, config: Any) -> None:
        torch.manual_seed(0)
        place = cuda.backend.place
        self.cuda = cuda
        self.config = config
        self.x = place(torch.zeros(max(SIZES), WIDTH))
        self.y = place(torch.zeros(max(SIZES), WIDTH))
        self.weight = place(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.up = place(torch.randn(WIDTH, 8 * WIDTH))
        self.down = place(torch.randn(8 * WIDTH, WIDTH))
        self.piece = CUDAGraphWrapper(self._piece, config, CUDAGraphMode.PIECEWISE)
        self.calls: list[tuple[Any, ...]] = []
        self.fails: Callable[[Any, bool], None] = lambda desc, warmup: None
        self.draws = False

    def _piece(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)

    def work(self, tokens: int, loras: int) -> None:
        hidden = torch.relu(self._piece(self.x[:tokens]) @ self.up + loras) @ self.down
        if self.draws:
            hidden = hidden + torch.rand_like(hidden)
        self.y[:tokens].copy_(hidden)

    def factory(self, desc: Any, warmup: bool) -> Callable[[Any], None]:
        self.calls.append((desc.cg_mode.name, desc.num_tokens, warmup))

        def forward(mode: Any) -> None:
            self.calls.append((mode.name,))
            self.fails(desc, warmup)
            if mode is CUDAGraphMode.PIECEWISE:
                batch = BatchDescriptor(num_tokens=desc.num_tokens)
                with set_forward_context(
                    None, self.config, num_tokens=desc.num_tokens, cudagraph_runtime_mode=mode, batch_descriptor=batch
                ):
                    self.piece(self.x[: desc.num_tokens])
            else:
                self.work(desc.num_tokens, desc.num_active_loras)

        return forward

    def answer(self, manager: Any, desc: Any, seed: int) -> torch.Tensor:
        """What a replay leaves for fresh inputs."""
        self.feed(seed)
        manager.run_fullgraph(desc)
        return self.y[: desc.num_tokens].cpu().clone()

    def expected(self, desc: Any, seed: int) -> torch.Tensor:
        """The same, run eagerly."""
        self.feed(seed)
        self.work(desc.num_tokens, desc.num_active_loras)
        return self.y[: desc.num_tokens].cpu().clone()

    def feed(self, seed: int) -> None:
        source = torch.randn(max(SIZES), WIDTH, generator=torch.Generator().manual_seed(seed))
        self.x.copy_(source)
        self.y.copy_(torch.full((max(SIZES), WIDTH), -1.0))
