"""Memory outside the arena that graphs have baked in: weights, and whatever else of plain CPU tensors they read or write.

A graph knows an address and owns nothing, so an owner who frees the memory leaves it dangling. Here that is noticed instead of
read: one tensor a storage keeps the memory, and tells from the storage's use count when it is the last.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from weakref import WeakValueDictionary

import torch
from torch import Tensor


class Outside:
    """One storage outside the arena.

    Attributes:
        constant: Whether it is a parameter's: taken as never written while the device works.
        name: What it was when it was first used, in words.
    """

    __slots__ = ("__weakref__", "_address", "_borrowed", "_keeper", "constant", "name")

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.constant = False
        self.name = f"{type(tensor).__name__} {tuple(tensor.shape)} of {tensor.dtype}"
        self._address = storage.data_ptr()
        self._keeper = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._borrowed = torch.frombuffer(
            (ctypes.c_char * storage.nbytes()).from_address(self._address), dtype=torch.uint8
        ).untyped_storage()

    def by_address(self, tensor: Tensor) -> Tensor:
        """Another view of ``tensor``, which lies here, that does not count as a user of the storage."""
        return torch.empty(0, dtype=tensor.dtype).set_(self._borrowed, tensor.storage_offset(), tensor.size(), tensor.stride())

    def freed(self) -> bool:
        """Whether its owner has let go of it, or moved it elsewhere."""
        return self.users() == _alone() or self._keeper.untyped_storage().data_ptr() != self._address

    def users(self) -> tuple[int, int]:
        """How many use the storage, from C++ and from Python."""
        storage = self._keeper.untyped_storage()
        return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


class OutsideTable:
    """Every storage outside the arena that a live graph uses; one record for each, whichever graphs share it."""

    def __init__(self) -> None:
        self._by_storage: WeakValueDictionary[int, Outside] = WeakValueDictionary()

    def of(self, tensor: Tensor) -> Outside:
        """The record of the storage of ``tensor``."""
        identity = tensor.untyped_storage()._cdata
        found = self._by_storage.get(identity)
        if found is None:
            found = self._by_storage[identity] = Outside(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            found.constant = True
        return found


@cache
def _alone() -> tuple[int, int]:
    """The users of a storage that only an `Outside` holds; how torch counts its own handles differs between releases."""
    tensor = torch.empty(1)
    outside = Outside(tensor)
    del tensor
    return outside.users()
