"""Writes to memory that overlaps, which torch's kernels refuse when they are called, and meta kernels do not look at.

In a graph the kernel comes later, where it is too late. So a write that may overlap is tried at once, on scratch memory of the same
layout and no values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cgstate.backends.sim.recorder.overload import Overload, mapped, operand_at, tensors_in


def may_overlap(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call writes elements that share memory with one another, or with those of another operand."""
    written = list(tensors_in([operand_at(operand, args, kwargs) for operand in overload.written]))
    if not written:
        return False
    operands = list(tensors_in([*args, *kwargs.values()]))
    return any(torch._debug_has_internal_overlap(tensor) == 1 for tensor in written) or any(
        _share(tensor, other) for tensor in written for other in operands
    )


def rehearse(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Make the call on scratch memory. Called with torch's dispatch disabled.

    Raises:
        RuntimeError: torch does not allow it.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def twin(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(storages[storage._cdata], tensor.storage_offset(), tensor.size(), tensor.stride())

    overload.call(*mapped(args, twin), **{name: mapped(value, twin) for name, value in kwargs.items()})


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether two operands lie in one storage, and are not the same elements in the same order."""
    if a is b or a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    return (a.storage_offset(), a.size(), a.stride(), a.dtype) != (b.storage_offset(), b.size(), b.stride(), b.dtype)
