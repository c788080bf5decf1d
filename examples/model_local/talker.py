"""A tiny talker: a code predictor and a vocoder, each declared as a component with graphs of its own.

The talker's language model, which an engine would run by its own graphs, is left out: what comes in is its hidden state for each
frame. For each frame the code predictor chooses one code a codebook, each choice fed into the next; the vocoder turns frames of
codes into audio. Both are called with whatever batch or length the requests have, and padded to the next captured size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cgstate.integrations.model_local import (
    BaseModelLocalCUDAGraphRoutine,
    ModelLocalCaptureMode,
    ModelLocalCUDAGraphComponent,
    ModelLocalCUDAGraphDescriptor,
    ModelLocalRuntimeKey,
    ModelLocalRuntimeResolution,
)

HIDDEN = 16
CODEBOOKS = 3
VOCABULARY = 32
HOP = 4
"""Samples of audio for each frame."""

Size = ModelLocalCUDAGraphDescriptor[int]


class CodePredictor(nn.Module):
    """Chooses the codes of a frame one after the other, greedily."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, VOCABULARY) for _ in range(CODEBOOKS))
        self.tables = nn.ModuleList(nn.Embedding(VOCABULARY, HIDDEN) for _ in range(CODEBOOKS))

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, HIDDEN]`` to codes ``[B, CODEBOOKS]``."""
        codes = []
        for head, table in zip(self.heads, self.tables, strict=True):
            code = head(hidden).argmax(-1)
            hidden = torch.tanh(hidden + table(code))
            codes.append(code)
        return torch.stack(codes, -1)


class Vocoder(nn.Module):
    """Transposed convolutions that do not overlap, so that padded frames do not reach real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(VOCABULARY, HIDDEN) for _ in range(CODEBOOKS))
        self.widen = nn.ConvTranspose1d(HIDDEN, HIDDEN, 2, 2)
        self.render = nn.ConvTranspose1d(HIDDEN, 1, HOP // 2, HOP // 2)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes ``[T, CODEBOOKS]`` to audio ``[T * HOP]``."""
        frames = sum(table(codes[:, book]) for book, table in enumerate(self.tables))
        return torch.tanh(self.render(torch.tanh(self.widen(frames.T.unsqueeze(0))))).flatten()


@dataclass(slots=True)
class Static:
    """The static input of one graph."""

    value: Tensor


class SizedRoutine(BaseModelLocalCUDAGraphRoutine):
    """A module that is called with one tensor, padded along its first dimension.

    Args:
        module: The work.
        example: An input of size 1.
        scale: Elements of the answer for each one of the input.
    """

    def __init__(self, module: nn.Module, example: Tensor, *, scale: int = 1) -> None:
        self.module = module
        self.example = example
        self.scale = scale

    def eager_call(self, value: Tensor) -> Any:
        """The module's own answer."""
        return self.module(value)

    def resolve_runtime(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], available: frozenset[Size]
    ) -> ModelLocalRuntimeResolution[Size]:
        """The smallest graph that holds the call."""
        size = len(args[0])
        fits = [descriptor for descriptor in available if descriptor.variant >= size]
        return ModelLocalRuntimeResolution(
            ModelLocalRuntimeKey(size), min(fits, key=lambda descriptor: descriptor.variant, default=None)
        )

    def make_lazy_descriptor(self, runtime_key: ModelLocalRuntimeKey[int]) -> Size:
        """The next power of two: so that requests of nearly one length share a graph."""
        return ModelLocalCUDAGraphDescriptor(1 << (runtime_key.variant - 1).bit_length())

    def allocate_buffers(self, descriptor: Size, device: Any) -> Static:
        """Zeros of the graph's size."""
        shape = (descriptor.variant, *self.example.shape[1:])
        return Static(torch.zeros(shape, dtype=self.example.dtype, device=device))

    def forward_for_capture(self, buffers: Static) -> Any:
        """The module on the static input."""
        return self.module(buffers.value)

    def copy_runtime_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: Static) -> None:
        """The call's input first, zeros behind it."""
        size = len(args[0])
        buffers.value[:size].copy_(args[0])
        buffers.value[size:].zero_()

    def output_after_replay(self, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: Static, captured_output: Any) -> Any:
        """The answer's part that is the call's."""
        return captured_output[: len(args[0]) * self.scale]


class Talker(nn.Module):
    """The model. Its components are its call sites: what they run on is no business of `forward`."""

    supports_model_local_cudagraph = True

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.predictor, self.vocoder = CodePredictor(), Vocoder()
        self.eval().requires_grad_(False)
        self.predict = ModelLocalCUDAGraphComponent(
            "code_predictor",
            SizedRoutine(self.predictor, torch.zeros(1, HIDDEN)),
            [ModelLocalCUDAGraphDescriptor(size) for size in (1, 2, 4, 8)],
        )
        self.render = ModelLocalCUDAGraphComponent(
            "vocoder",
            SizedRoutine(self.vocoder, torch.zeros(1, CODEBOOKS, dtype=torch.int64), scale=HOP),
            [ModelLocalCUDAGraphDescriptor(frames) for frames in (16, 32)],
            capture_mode=ModelLocalCaptureMode.PRECAPTURE_LAZY,
        )

    def get_model_local_cudagraph_components(self) -> tuple[ModelLocalCUDAGraphComponent, ...]:
        """Both."""
        return self.predict, self.render

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[T, HIDDEN]`` of an utterance's frames to audio ``[T * HOP]``, eight frames at a time."""
        codes = torch.cat([self.predict(part) for part in hidden.split(8)])
        audio: Tensor = self.render(codes)
        return audio
