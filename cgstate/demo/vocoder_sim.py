"""The vocoder in simulated kernels: needs nothing but Python."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from cgstate.backends.sim import SimBackend, SimTensor, kernels
from cgstate.demo.vocoder import CHANNELS, PAD, UPSAMPLING, VOCABULARY


class SimVocoder:
    """Seeded random weights on a simulated device."""

    def __init__(self, backend: SimBackend, seed: int) -> None:
        self.backend = backend
        self._device = backend.sim
        rng = random.Random(seed)
        self._table = self._weight(rng, VOCABULARY, CHANNELS)
        self._padding = self._device.tensor([[1.0 if code == PAD else 0.0] for code in range(VOCABULARY)])
        self._query, self._key, self._value = (self._weight(rng, CHANNELS, CHANNELS) for _ in range(3))
        self._widen = self._kernels(rng, CHANNELS, CHANNELS, UPSAMPLING[0])
        self._render = self._kernels(rng, CHANNELS, 1, UPSAMPLING[1])

    def _weight(self, rng: random.Random, rows: int, columns: int) -> SimTensor:
        spread = 1 / math.sqrt(rows)
        return self._device.tensor([[rng.gauss(0, spread) for _ in range(columns)] for _ in range(rows)])

    def _kernels(self, rng: random.Random, inner: int, outer: int, taps: int) -> SimTensor:
        spread = 1 / math.sqrt(inner)
        return self._device.tensor([[[rng.gauss(0, spread) for _ in range(taps)] for _ in range(outer)] for _ in range(inner)])

    def encode(self, codes: SimTensor) -> SimTensor:
        """Embedding, one attention head over the frames that are no padding, and the residual."""
        x = kernels.embedding(codes, self._table)
        padding = kernels.embedding(codes, self._padding).reshape(codes.shape[0])
        query, key, value = (kernels.matmul(x, weight) for weight in (self._query, self._key, self._value))
        scores = kernels.scale(kernels.matmul(query, kernels.transpose(key)), 1 / math.sqrt(CHANNELS))
        attention = kernels.softmax(kernels.masked_fill(scores, padding, -math.inf))
        return kernels.add(x, kernels.matmul(attention, value))

    def synthesize(self, features: SimTensor) -> SimTensor:
        """Two transposed convolutions that do not overlap."""
        x = kernels.transpose(features)
        x = kernels.tanh(kernels.conv_transpose1d(x, self._widen, UPSAMPLING[0]))
        x = kernels.tanh(kernels.conv_transpose1d(x, self._render, UPSAMPLING[1]))
        return x.reshape(x.shape[-1])

    def codes(self, frames: Sequence[int]) -> SimTensor:
        """Codes as numbers: the simulated device has one element type."""
        return self._device.tensor([float(frame) for frame in frames])

    def read(self, tensor: SimTensor) -> list[float]:
        """Values on the host."""
        return _flat(tensor.reshape(tensor.numel()).tolist())

    def sabotage(self, tensor: SimTensor) -> None:
        """`SimTensor.item` of one element."""
        tensor.reshape(tensor.numel()).narrow(0, 0, 1).item()


def _flat(values: object) -> list[float]:
    assert isinstance(values, list)
    return [float(value) for value in values]
