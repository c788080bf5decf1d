"""Nested values, opened as `cgstate.nested` says. Called by the backend.

A tensor is a `SimTensor`, or one of torch's if the program has imported torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from cgstate.backends.sim.tensor import SimTensor
from cgstate.errors import ConfigError
from cgstate.nested import opened

if TYPE_CHECKING:
    from typing import TypeGuard

    import torch

    AnyTensor: TypeAlias = "SimTensor | torch.Tensor"

T = TypeVar("T")


def leaves(value: object) -> Iterator[object]:
    """Every part of ``value`` that has no parts of its own, in order; the same one as often as it occurs."""
    found: list[Any] = []
    _gather(value, found, found)
    return iter(found)


def _gather(value: object, tensors: list[Any], others: list[Any] | None) -> None:
    """Append each leaf where it belongs; None: nowhere. A generator for each level would take several times as long."""
    if isinstance(value, SimTensor) or is_torch_tensor(value):
        tensors.append(value)
    elif (layer := opened(value)) is not None:
        for part in layer.parts:
            _gather(part, tensors, others)
    elif others is not None:
        others.append(value)


def tensors_in(value: object) -> Iterator[AnyTensor]:
    """The tensors among the `leaves`."""
    found: list[Any] = []
    _gather(value, found, None)
    return iter(found)


def is_tensor(value: object) -> TypeGuard[AnyTensor]:
    """Whether ``value`` is a tensor, of whichever kind."""
    return isinstance(value, SimTensor) or is_torch_tensor(value)


def is_torch_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether ``value`` is a tensor of torch, which is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_torch_module(value: object) -> TypeGuard[torch.nn.Module]:
    """Whether ``value`` is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(getattr(torch, "nn", None), "Module", ()))


def torch_records() -> bool:
    """Whether torch's autograd looks at calls of this thread."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "is_grad_enabled") and bool(torch.is_grad_enabled())


def torch_autocasts() -> bool:
    """Whether torch's autocast is on in this thread, for what runs on the CPU."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "is_autocast_enabled") and bool(torch.is_autocast_enabled("cpu"))


def address(tensor: object) -> int:
    """Where a tensor is, as `base.Backend.address`.

    Raises:
        ConfigError: not a tensor.
    """
    if not is_tensor(tensor):
        raise ConfigError(f"not a tensor, so that it has no address: {tensor!r}")
    return tensor.data_ptr()


def storage(tensor: object) -> object:
    """What keeps the memory of a tensor, as `base.Backend.storage`."""
    if isinstance(tensor, SimTensor):
        return tensor.storage
    return tensor.untyped_storage() if is_torch_tensor(tensor) else None


def clone(value: T) -> T:
    """``value`` rebuilt with a copy of each tensor, one copy a tensor; what holds no tensors is kept as it is."""
    if is_tensor(value):
        return cast(T, value.clone())
    copies: dict[int, AnyTensor] = {}

    def copy_of(tensor: AnyTensor) -> AnyTensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.clone()
        return copies[id(tensor)]

    return cast(T, _map(value, copy_of))


def _map(value: object, of: Callable[[AnyTensor], AnyTensor]) -> object:
    if is_tensor(value):
        return of(value)
    if next(tensors_in(value), None) is None:
        return value
    layer = opened(value)
    return value if layer is None else layer.make([_map(part, of) for part in layer.parts])
