"""The runner: loads, measures, captures, serves, and lets voices come in while it does."""

from __future__ import annotations

from typing import Any

import cgstate
import torch
from cgstate import CaptureMode, Component
from torch import Tensor

from runner.model import Decoder, Vocoder
from runner.routines import Shape, VocoderRoutine, decoder_routine

TOLERANCE = 1e-5
"""Libraries add up in another order for another shape."""
CONFIG: dict[str, dict[str, object]] = {
    "decoder": {},
    "vocoder": {"isolation": "per_entry", "max_extra_graphs": 2},
}


def components(
    decoder: Decoder, vocoder: Vocoder
) -> tuple[Component[[Tensor, Tensor], Tensor], Component[[Tensor, int], Tensor]]:
    """The model's call sites. Graphs of the decoder bake in where the table of voices is."""
    return (
        Component("decoder", decoder_routine(decoder), [8, 32], dependencies=["voices"], tolerance=TOLERANCE),
        Component(
            "vocoder",
            VocoderRoutine(vocoder),
            [Shape(32, 1)],
            capture_mode=CaptureMode.PRECAPTURE_LAZY,
            tolerance=TOLERANCE,
        ),
    )


class Runner:
    """Serves one model.

    Args:
        decoder: From tokens to features.
        vocoder: From features to audio.
        backend: As `cgstate.GraphManager`; the rest as well.
    """

    def __init__(
        self, decoder: Decoder, vocoder: Vocoder, backend: str | cgstate.Backend = "auto", **manager: Any
    ) -> None:
        self.model = decoder
        self.decoder, self.vocoder = components(decoder, vocoder)
        self.manager = cgstate.GraphManager(backend, **manager)

    def start(self, lazy_bytes: int) -> cgstate.MemoryEstimate:
        """Measure, then capture within a budget: what was measured, and ``lazy_bytes`` for what comes by misses."""
        self.manager.prepare([self.decoder, self.vocoder], CONFIG)
        estimate = self.manager.profile_memory()
        self.manager.set_budget(estimate.upper + lazy_bytes)
        self.manager.capture_and_bind()
        return estimate

    def speak(self, tokens: Tensor, voices: Tensor, passes: int = 1) -> Tensor:
        """Audio of ``tokens``, each in its voice.

        Raises:
            cgstate.NotResident: the table of voices is on the move; ask again.
        """
        return self.vocoder(self.decoder(tokens, voices), passes)

    def add_voice(self, voice: Tensor) -> int:
        """Make the table of voices larger: it moves, so the decoder's graphs are retired before, and captured after."""
        with self.manager.mutating("voices"):
            self.model.voices = torch.cat([self.model.voices, voice[None]])
        self.manager.capture_and_bind()
        return len(self.model.voices) - 1

    def close(self) -> None:
        """Give everything back."""
        self.manager.close()
