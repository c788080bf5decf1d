"""Copies of inputs into static ones, by as few launches as there can be: torch has one for all tensors of a dtype.

What goes together is chosen once, when the static tensors are made; a call only picks. Whatever a call gives there (another device,
another memory format) is copied right in any case: torch then copies one by one within the same call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Hashable, Sequence
from operator import itemgetter
from typing import Any

DTYPES = frozenset(
    ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
)
"""What torch's fused kernels are compiled for; they raise for others, which a plain copy knows."""


class Copies:
    """How the inputs of a call get into the static ones of a graph.

    Args:
        static: The static inputs, tensors of torch or simulated ones.
        left: Positions that are not copied.

    Attributes:
        count: How many static inputs there are, those that are left included.
    """

    __slots__ = ("_alone", "_copy", "_together", "_zero", "count")

    def __init__(self, static: Sequence[object], left: Container[int] = ()) -> None:
        self.count = len(static)
        groups: dict[Hashable, list[int]] = {}
        for place, tensor in enumerate(static):
            if place not in left:
                groups.setdefault(_kind(tensor) or place, []).append(place)
        self._alone = [places[0] for places in groups.values() if len(places) == 1]
        self._together: list[Callable[[Sequence[Any]], Any]] = [
            itemgetter(*places) for places in groups.values() if len(places) > 1
        ]
        if self._together:
            torch = sys.modules["torch"]
            self._copy, self._zero = torch._foreach_copy_, torch._foreach_zero_

    def exactly(self, static: Sequence[Any], values: Sequence[Any]) -> None:
        """Copy values of the static inputs' very shapes."""
        for place in self._alone:
            static[place].copy_(values[place])
        for pick in self._together:
            self._copy(pick(static), pick(values))

    def padded(self, static: Sequence[Any], values: Sequence[Any], dim: int, size: int, bucket: int) -> None:
        """Copy values of length ``size`` along a dimension to the front of static ones of length ``bucket``, zeros behind."""
        for place in self._alone:
            tensor = static[place]
            tensor.narrow(dim, 0, size).copy_(values[place])
            tensor.narrow(dim, size, bucket - size).zero_()
        for pick in self._together:
            tensors = pick(static)
            self._copy([tensor.narrow(dim, 0, size) for tensor in tensors], pick(values))
            self._zero([tensor.narrow(dim, size, bucket - size) for tensor in tensors])


def _kind(tensor: object) -> Hashable:
    """What tensors that are copied by one launch have in common; None for one that is copied alone."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "_foreach_copy_") or not isinstance(tensor, torch.Tensor):
        return None
    return (tensor.dtype, tensor.device) if str(tensor.dtype).removeprefix("torch.") in DTYPES else None
