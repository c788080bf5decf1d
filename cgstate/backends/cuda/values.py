"""Nested values of the user's, opened as `cgstate.nested` says.

On the path of every component call, so the common shapes come first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor

from cgstate.copying import DTYPES
from cgstate.errors import ConfigError
from cgstate.nested import PLAIN, opened

T = TypeVar("T")


def address(tensor: object) -> int:
    """As `base.Backend.address`. Tensors of pinned host memory have one, too.

    Raises:
        ConfigError: not a tensor.
    """
    if not isinstance(tensor, Tensor):
        raise ConfigError(f"not a tensor, so that it has no address: {tensor!r}")
    return tensor.data_ptr()


def storage(tensor: object) -> object:
    """As `base.Backend.storage`."""
    return tensor.untyped_storage() if isinstance(tensor, Tensor) else None


def clone(output: T) -> T:
    """As `base.Backend.clone`. A tensor that occurs twice is copied once, so that the copy has the same shape.

    Several of a dtype are copied by one launch.
    """
    if isinstance(output, Tensor):
        return output.clone()  # type: ignore[return-value]
    copies: dict[int, Tensor] = {}
    later: dict[Hashable, tuple[list[Tensor], list[Tensor]]] = {}

    def copy_of(tensor: Tensor) -> Tensor:
        made = copies.get(id(tensor))
        if made is None:
            kind = _fused_kind(tensor)
            if kind is None:
                made = tensor.clone()
            else:
                made = torch.empty_like(tensor)
                empty, full = later.setdefault(kind, ([], []))
                empty.append(made)
                full.append(tensor)
            copies[id(tensor)] = made
        return made

    answer = cast(T, _map(output, copy_of))
    for empty, full in later.values():
        torch._foreach_copy_(empty, full)
    return answer


def _fused_kind(tensor: Tensor) -> Hashable:
    """What tensors that are copied together have in common; None for one that only ``clone`` can be trusted with."""
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.requires_grad and not tensor.is_neg()
    return (tensor.dtype, tensor.device) if plain and tensor.dtype in _FUSED else None


_FUSED = frozenset(kind for kind in (getattr(torch, name) for name in DTYPES) if not kind.is_complex)
"""dtypes of which several tensors are copied at once; complex ones may be lazily conjugated."""


def storages(value: object) -> dict[Hashable, int]:
    """As `base.Backend.storages`."""
    found: dict[Hashable, int] = {}
    for tensor in tensors_in(value):
        storage = tensor.untyped_storage()
        found[tensor.device, storage.data_ptr()] = storage.nbytes()
    return found


def nbytes(value: object) -> int:
    """As `base.Backend.nbytes`."""
    return sum(storages(value).values())


def requires_grad(value: object) -> bool:
    """As `base.Backend.requires_grad`. Stops at the first."""
    if isinstance(value, Tensor):
        return value.requires_grad
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind is tuple or kind is list or kind is dict:
        return any(map(requires_grad, value.values() if isinstance(value, dict) else cast("list[object]", value)))
    return any(tensor.requires_grad for tensor in tensors_in(value))


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor of ``value``, in order; the same one as often as it occurs."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) not in _PLAIN:
        layer = opened(value)
        for part in layer.parts if layer is not None else ():
            yield from tensors_in(part)


_PLAIN = PLAIN | {torch.dtype, torch.device}
"""Classes that hold no tensors, and are common."""


def _map(value: object, of: Callable[[Tensor], Tensor]) -> object:
    """``value`` rebuilt with each tensor replaced; what holds no tensors is kept as it is."""
    if isinstance(value, Tensor):
        return of(value)
    kind = type(value)
    if kind is tuple:
        return tuple([_map(part, of) for part in cast("tuple[object, ...]", value)])
    if kind is list:
        return [_map(part, of) for part in cast("list[object]", value)]
    if kind is dict:
        return {key: _map(part, of) for key, part in cast("dict[object, object]", value).items()}
    if kind in _PLAIN or next(tensors_in(value), None) is None:
        return value
    layer = opened(value)
    return value if layer is None else layer.make([_map(part, of) for part in layer.parts])
