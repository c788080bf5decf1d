"""What the backend asks about torch tensors that it is given: whether they are fit to be static."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cgstate.backends.sim.recorder.tensor import ArenaTensor, is_known
from cgstate.errors import ConfigError

if TYPE_CHECKING:
    from cgstate.backends.sim.recorder.recorder import Recorder


def check(recorder: Recorder, tensor: Tensor) -> None:
    """Refuse what this device cannot work on.

    Raises:
        ConfigError: a tensor of another device, or one that is no plain CPU tensor.
    """
    check_plain(tensor)
    if isinstance(tensor, ArenaTensor) and tensor.recorder is not recorder:
        raise ConfigError(f"a tensor of {tensor.recorder.device.name} was given to {recorder.device.name}")


def check_plain(tensor: Tensor) -> None:
    """Refuse what has no memory of the host, or more to it than its memory.

    Raises:
        ConfigError: one elsewhere, one that is sparse, nested or quantised, or one of a class that sees to operations itself.
    """
    odd = tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized
    if odd or tensor.device.type != "cpu" or not is_known(type(tensor)):
        kind = "nested" if tensor.is_nested else "quantised" if tensor.is_quantized else str(tensor.layout)
        raise ConfigError(
            f"the simulator runs torch on plain CPU tensors, and was given a {kind} {type(tensor).__name__} on {tensor.device}; "
            "use the cuda backend for CUDA tensors"
        )
