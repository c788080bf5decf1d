"""How the model's two parts become graphs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import cgstate
import torch
from torch import Tensor

from runner.model import CHANNELS, HOP, Decoder, Vocoder

CHUNK = 8
"""Frames are padded to a multiple of this."""
LONGEST = 64


def decoder_routine(decoder: Decoder) -> cgstate.Routine[[Tensor, Tensor], Tensor, int, tuple[object, ...]]:
    """Every token stands for itself, so padding does no harm, and buckets of the first dimension are all it takes."""

    def example(size: int) -> tuple[Tensor, Tensor]:
        indices = torch.zeros(size, dtype=torch.long, device=decoder.voices.device)
        return indices, indices.clone()

    return cgstate.BucketedRoutine(decoder, example, max_size=LONGEST)


@dataclass(frozen=True, order=True)
class Shape:
    """One graph of the vocoder: everything that a recording bakes in.

    Attributes:
        frames: Size of its buffers.
        passes: The smoothing loop is unrolled.
    """

    frames: int
    passes: int


@dataclass
class Buffers:
    """Static inputs of one graph."""

    features: Tensor
    real: Tensor


class VocoderRoutine(cgstate.Routine[[Tensor, int], Tensor, Shape, Buffers]):
    """Written by hand: the number of passes is part of the graph, and padded frames are masked."""

    def __init__(self, vocoder: Vocoder) -> None:
        self.vocoder = vocoder

    def eager_call(self, features: Tensor, passes: int) -> Tensor:
        audio: Tensor = self.vocoder(features, features.new_ones(len(features)), passes)
        return audio

    def resolve_runtime(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[Shape]
    ) -> cgstate.Resolution[Shape]:
        features, passes = args
        assert isinstance(features, Tensor)
        assert isinstance(passes, int)
        key = Shape(len(features), passes)
        fitting = [shape for shape in available if shape.passes == passes and shape.frames >= key.frames]
        return cgstate.Resolution(key, min(fitting, default=None))

    def make_lazy_descriptor(self, runtime_key: Hashable) -> Shape | None:
        assert isinstance(runtime_key, Shape)
        padded = Shape(-runtime_key.frames // CHUNK * -CHUNK, runtime_key.passes)
        return padded if padded.frames <= LONGEST else None

    def allocate_buffers(self, descriptor: Shape) -> Buffers:
        weight = self.vocoder.smooth.weight
        return Buffers(weight.new_zeros(descriptor.frames, CHANNELS), weight.new_zeros(descriptor.frames))

    def forward_for_capture(self, descriptor: Shape, buffers: Buffers) -> Tensor:
        audio: Tensor = self.vocoder(buffers.features, buffers.real, descriptor.passes)
        return audio

    def copy_runtime_inputs(self, descriptor: Shape, buffers: Buffers, features: Tensor, passes: int) -> None:
        size = len(features)
        buffers.features[:size].copy_(features)
        buffers.features[size:].zero_()
        buffers.real[:size].fill_(1)
        buffers.real[size:].zero_()

    def output_after_replay(
        self, descriptor: Shape, buffers: Buffers, output: object, features: Tensor, passes: int
    ) -> Tensor:
        assert isinstance(output, Tensor)
        return output[: len(features) * HOP]
