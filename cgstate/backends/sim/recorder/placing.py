"""Where static inputs are made: in this mode, what would be a new CPU tensor is one in the device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cgstate.backends.sim.recorder.overload import describe, mapped, tensors_in

if TYPE_CHECKING:
    from cgstate.backends.sim.recorder.recorder import Recorder


class PlacingMode(TorchDispatchMode):
    """Puts every new CPU tensor into the arena. Operands and their views stay where they are."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and place what it made."""
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        known = {_address(tensor) for tensor in tensors_in([*args, *kwargs.values()])}
        if func is torch.ops.aten.lift_fresh.default:  # the data of `torch.tensor`, on its way to the device
            known.clear()

        def placed(tensor: Tensor) -> Tensor:
            ordinary = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
            if not ordinary or _address(tensor) in known or self._recorder.arena.block_of(tensor) is not None:
                return tensor
            return self._recorder.place(tensor, empty=not describe(func).kernel)

        return mapped(made, placed)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
