"""The model: a decoder from tokens to features, and a vocoder from features to audio. Nothing here knows of graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHANNELS = 16
VOCABULARY = 64
HOP = 4
"""Samples of a frame."""


class Decoder(nn.Module):
    """Tokens, each in some voice, to one frame of features each.

    Attributes:
        voices: ``[number of voices, CHANNELS]``; replaced by a larger table when a voice comes in.
    """

    voices: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, CHANNELS)
        self.mix = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.GELU(), nn.Linear(CHANNELS, CHANNELS))
        self.register_buffer("voices", torch.randn(2, CHANNELS))

    def forward(self, tokens: Tensor, voices: Tensor) -> Tensor:
        """Two tensors ``[T]`` of indices to features ``[T, CHANNELS]``."""
        features: Tensor = self.mix(self.tokens(tokens) + self.voices[voices])
        return features


class Vocoder(nn.Module):
    """Features to audio, by convolutions that look at the neighbouring frames."""

    def __init__(self) -> None:
        super().__init__()
        self.smooth = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1)
        self.render = nn.Conv1d(CHANNELS, HOP, 3, padding=1)

    def forward(self, features: Tensor, real: Tensor, passes: int) -> Tensor:
        """Audio ``[T * HOP]`` from features ``[T, CHANNELS]``.

        Args:
            features: One row a frame.
            real: ``[T]``: 1 for a frame, 0 for padding, which must not sound.
            passes: How often the features are smoothed.
        """
        x = features.T * real
        for _ in range(passes):
            x = torch.tanh(self.smooth(x)) * real
        audio: Tensor = self.render(x) * real
        return audio.T.flatten()
