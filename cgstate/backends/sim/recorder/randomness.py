"""Torch's default CPU generator: what eager draws from, and replays too."""

from __future__ import annotations

import ctypes
from hashlib import blake2b

import torch

from cgstate.backends.undo import Step


def mark() -> bytes:
    """A digest of its whole state, which is 5 KiB."""
    state = torch.default_generator.get_state()
    return blake2b(ctypes.string_at(state.data_ptr(), state.numel()), digest_size=16).digest()


def keep() -> Step:
    """What gives it the state that it has now."""
    generator = torch.default_generator
    state = generator.get_state()

    def restore() -> None:
        generator.set_state(state)

    return restore
