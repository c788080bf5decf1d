"""The vocoder as torch modules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cgstate.backends.base import Backend
from cgstate.demo.vocoder import CHANNELS, PAD, UPSAMPLING, VOCABULARY


class Prosody(nn.Module):
    """Embedding, one attention head over the frames that are no padding, and the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, CHANNELS)
        self.query, self.key, self.value = (nn.Linear(CHANNELS, CHANNELS, bias=False) for _ in range(3))

    def forward(self, codes: Tensor) -> Tensor:
        """Codes ``[T]`` to features ``[T, CHANNELS]``."""
        x: Tensor = self.table(codes)
        scores = self.query(x) @ self.key(x).T / math.sqrt(CHANNELS)
        attention = scores.masked_fill(codes == PAD, -math.inf).softmax(-1)
        features: Tensor = x + attention @ self.value(x)
        return features


class Decoder(nn.Module):
    """Two transposed convolutions that do not overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.ConvTranspose1d(CHANNELS, CHANNELS, UPSAMPLING[0], UPSAMPLING[0])
        self.render = nn.ConvTranspose1d(CHANNELS, 1, UPSAMPLING[1], UPSAMPLING[1])

    def forward(self, features: Tensor) -> Tensor:
        """Features ``[T, CHANNELS]`` to samples ``[T * HOP]``."""
        x = torch.tanh(self.widen(features.T.unsqueeze(0)))
        return torch.tanh(self.render(x)).flatten()


class TorchVocoder:
    """Seeded random weights, on a CUDA device or as plain CPU tensors, which the simulated one takes."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend = backend
        self._device = torch.device(backend.device if backend.name == "cuda" else "cpu")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            prosody, decoder = Prosody(), Decoder()
        self._prosody = prosody.to(self._device).eval().requires_grad_(False)
        self._decoder = decoder.to(self._device).eval().requires_grad_(False)

    def encode(self, codes: Tensor) -> Tensor:
        """The prosody module."""
        features: Tensor = self._prosody(codes)
        return features

    def synthesize(self, features: Tensor) -> Tensor:
        """The decoder module, by deterministic kernels, so that equal shapes give equal bits."""
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            samples: Tensor = self._decoder(features)
        return samples

    def codes(self, frames: Sequence[int]) -> Tensor:
        """Codes as integers."""
        return torch.tensor(list(frames), device=self._device)

    def read(self, tensor: Tensor) -> list[float]:
        """Values on the host."""
        return [float(value) for value in tensor.flatten().tolist()]

    def sabotage(self, tensor: Tensor) -> None:
        """``.item()`` of one element."""
        tensor.flatten()[0].item()
