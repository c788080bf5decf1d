"""What a graph holds of a torch operation, and how the device runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cgstate.backends.sim.errors import DEVICE_ASSERT, DeviceFault, SimUnrecordable
from cgstate.backends.sim.memory import Span
from cgstate.backends.sim.recorder.overload import Overload
from cgstate.backends.sim.work import Operation

log = logging.getLogger("cgstate")

_KEYS = torch._C.DispatchKey
_ABOVE_KERNELS = torch._C.DispatchKeySet(_KEYS.AutogradCPU)
for _key in (_KEYS.AutogradOther, _KEYS.ADInplaceOrView, _KEYS.AutocastCPU, _KEYS.Python, _KEYS.PythonTLSSnapshot):
    _ABOVE_KERNELS = _ABOVE_KERNELS.add(_key)


def kernels_only() -> Any:
    """Inside it torch runs kernels and nothing else: no modes, no subclasses, no autograd, no autocast, whoever moves the clock."""
    return torch._C._ExcludeDispatchKeyGuard(_ABOVE_KERNELS)


class TorchOperation(Operation):
    """One kernel of torch, with operands that are addresses."""

    __slots__ = ("_args", "_call", "_kwargs", "_overload", "_results", "_spans")

    def __init__(
        self,
        overload: Overload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        results: Sequence[Tensor | None],
        spans: Sequence[Span],
    ) -> None:
        """``results`` is where `Overload.new_tensors` go, in that order; ``spans`` is the cells that it touches."""
        super().__init__(overload.name, _none, (), ())
        self._overload = overload
        self._call = overload.call
        self._args = args
        self._kwargs = kwargs
        self._results = results
        self._spans = spans

    def spans(self) -> Iterator[Span]:
        """As `Operation.spans`."""
        return iter(self._spans)

    def run(self, cells: list[float], seed: int, offset: int) -> None:
        """As `Operation.run`. What a kernel finds wrong with its data is a device-side assertion (fact F7).

        Raises:
            SimUnrecordable: the kernel's result does not look as its meta kernel said.
        """
        with torch.no_grad(), kernels_only():  # some kernels ask (an LSTM's): as in the capture, whoever moves the clock
            try:
                made = self._call(*self._args, **self._kwargs)
            except (IndexError, RuntimeError) as error:
                log.error("%s failed on the simulated device: %s", self.name, error)
                raise DeviceFault(DEVICE_ASSERT) from error
            for place, result in zip(self._results, self._overload.new_tensors(made), strict=True):
                if not _same_layout(place, result):
                    raise SimUnrecordable(
                        self.name, f"its meta kernel promised {_layout(place)}, and its kernel made {_layout(result)}"
                    )
                if place is not None and result is not None:
                    place.copy_(result)


def _same_layout(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both are alike, or one is left out and the other empty."""
    if a is None or b is None:
        rest = b if a is None else a
        return rest is None or not rest.numel()
    if a.dtype != b.dtype or a.size() != b.size():
        return False
    return (
        a.stride() == b.stride()
        or not a.numel()
        or all(length == 1 or x == y for length, x, y in zip(a.size(), a.stride(), b.stride(), strict=True))
    )


def _layout(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{tensor.dtype} {tuple(tensor.size())} with strides {tensor.stride()}"


def _none() -> Sequence[list[float]]:
    return ()
