"""A CUDA device with torch, to be measured on."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from cgstate.backends.base import Backend
from cgstate.backends.cuda import CudaBackend
from cgstate.bench.bed import Effort
from cgstate.bench.timing import Call

WIDTH = 64


class Linears(nn.Module):
    """Four small linears over the sum of the inputs; several outputs are as many multiples of the last."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.outputs = outputs

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run."""
        hidden = inputs[0]
        for other in inputs[1:]:
            hidden = hidden + other
        hidden = self.layers(hidden)
        return hidden if self.outputs == 1 else tuple(hidden * (number + 1) for number in range(self.outputs))


class TorchBed:
    """The current CUDA device."""

    effort = Effort(rounds=60)

    def __init__(self) -> None:
        self.backend: Backend = CudaBackend()
        self.model = linears()

    def zeros(self, rows: int) -> Tensor:
        """A static input."""
        return torch.zeros(rows, WIDTH, device="cuda")

    def filled(self, rows: int) -> Tensor:
        """An input of a call."""
        return torch.randn(rows, WIDTH, device="cuda")

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()


def linears(outputs: int = 1) -> Linears:
    """The model, on the device and without gradients."""
    return Linears(outputs).cuda().eval().requires_grad_(False)


def copying_in(static: list[Tensor], given: tuple[Tensor, ...]) -> Call:
    """Copies the inputs of a call to static ones, as who writes it by hand would: in one fused call where there are several."""
    return partial(static[0].copy_, given[0]) if len(static) == 1 else partial(torch._foreach_copy_, static, list(given))
