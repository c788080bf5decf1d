"""The vocoder's shape, and its routines, whatever it is computed with.

Codes of T frames go through an embedding and an attention block (component ``prosody``), then through transposed convolutions to
T * `HOP` samples (component ``decoder``). The decoder's eager call goes through the ``prosody`` component, as models do: outside a
capture that may be a graph of its own, inside one it is recorded inline.

Padding is code `PAD`: masked out of the attention, and kept apart by convolutions that do not overlap, so that padded frames do not
change real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from cgstate.backends.base import Backend
from cgstate.routine import BucketedRoutine
from cgstate.runtime.component import CaptureMode, Component

T = TypeVar("T")

VOCABULARY = 64
CHANNELS = 8
UPSAMPLING = (2, 2)
HOP = UPSAMPLING[0] * UPSAMPLING[1]
PAD = 0
MAX_FRAMES = 64

PROSODY_SIZES = (16, 32, 64)
DECODER_SIZES = (8, 16, 32)
LAZY_SIZES = (24, 40, 48, 64)
MAX_EXTRA_GRAPHS = 2

TOLERANCE = 2e-3
"""Largest difference between a padded and an unpadded answer: libraries choose other kernels for other shapes, TF32 among them."""


class Vocoder(Protocol[T]):
    """The model. T is its tensor type."""

    def encode(self, codes: T) -> T:
        """Features of each frame from codes ``[T]``: embedding and attention."""
        ...

    def synthesize(self, features: T) -> T:
        """Samples ``[T * HOP]`` from features."""
        ...

    def codes(self, frames: Sequence[int]) -> T:
        """A tensor of codes ``[T]`` on the device."""
        ...

    def read(self, tensor: T) -> list[float]:
        """Values on the host, flat; waits for the device."""
        ...

    def sabotage(self, tensor: T) -> None:
        """Look at a value on the host, which no capture survives."""
        ...

    @property
    def backend(self) -> Backend:
        """The device it lives on."""
        ...


@dataclass(slots=True)
class Parts(Generic[T]):
    """The vocoder with its components.

    Attributes:
        prosody: Codes to features.
        decoder: Codes to samples.
        sabotage: While True, a decoder capture looks at a value on the host, and fails.
    """

    vocoder: Vocoder[T]
    prosody: Component[[T], T] = field(init=False)
    decoder: Component[[T], T] = field(init=False)
    sabotage: bool = False

    def __post_init__(self) -> None:
        vocoder = self.vocoder

        def decode(codes: T) -> T:
            features = self.prosody(codes)
            if self.sabotage and vocoder.backend.capturing():
                vocoder.sabotage(features)
            return vocoder.synthesize(features)

        self.prosody = Component(
            "prosody",
            _bucketed(vocoder, vocoder.encode, lazy=(), scale=1),
            PROSODY_SIZES,
            dependencies=["weights"],
            tolerance=TOLERANCE,
        )
        self.decoder = Component(
            "decoder",
            _bucketed(vocoder, decode, lazy=LAZY_SIZES, scale=HOP),
            DECODER_SIZES,
            capture_mode=CaptureMode.PRECAPTURE_LAZY,
            dependencies=["weights"],
            tolerance=TOLERANCE,
        )

    def eager(self, codes: T) -> T:
        """What the decoder must answer, without any component."""
        return self.vocoder.synthesize(self.vocoder.encode(codes))


def _bucketed(vocoder: Vocoder[T], call: Callable[[T], T], *, lazy: Sequence[int], scale: int) -> BucketedRoutine[[T], T]:
    return BucketedRoutine(
        call,
        lambda size: (vocoder.codes([PAD] * size),),
        sizes=lazy,
        output_scale=scale,
        max_size=MAX_FRAMES,
    )
