"""The device's memory as bytes that torch can work on: one reserved range of addresses, lent out in blocks of the allocator.

A block's address is that of its first cell, so both kinds of tensor of the simulator follow the same books. Sizes are true bytes;
the allocator's thresholds are scaled (see `memory`), so a torch tensor of 10 KiB counts as large as one of 10 MiB on a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
from math import log2
from typing import TYPE_CHECKING
from weakref import finalize

import torch
from torch import Tensor

from cgstate.backends.sim.errors import SimOutOfMemory
from cgstate.backends.sim.memory import ITEM_BYTES, SMALL_SEGMENT

if TYPE_CHECKING:
    from cgstate.backends.sim.blocks import Block
    from cgstate.backends.sim.device import SimDevice

ALIGNMENT = 64
"""Bytes. As torch's own CPU allocator aligns: kernels may choose their path, and so their rounding, by it."""

_CELLS = ALIGNMENT // ITEM_BYTES
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number; Python names it since 3.13
_POISON = 0xFF
"""A NaN in every floating type, -1 in every signed one."""


class Arena:
    """The bytes of one device. Pages cost nothing until they are touched."""

    def __init__(self, device: SimDevice) -> None:
        self._device = device
        self._size = _address_space(device.memory.capacity_bytes)
        self._memory = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        self._whole = torch.frombuffer(memoryview(self._memory), dtype=torch.uint8).untyped_storage()
        self._base = self._whole.data_ptr()
        self._blocks: dict[int, Block] = {}

    def empty_strided(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A plain tensor in a block of its own, from whichever pool allocations go to, with whatever is in it.

        The block returns when the last tensor that shares the storage is gone.

        Raises:
            SimOutOfMemory: as `Allocator.allocate`.
        """
        itemsize = dtype.itemsize
        extent = 1 + sum((length - 1) * step for length, step in zip(shape, strides, strict=True)) if 0 not in shape else 0
        return torch.empty(0, dtype=dtype).set_(self._lend(extent * itemsize), 0, shape, strides)

    def block_of(self, tensor: Tensor) -> Block | None:
        """The block that holds ``tensor``; None for memory outside."""
        return self._blocks.get(tensor.untyped_storage().data_ptr())

    def by_address(self, tensor: Tensor) -> Tensor:
        """Another view of an arena tensor's memory that does not keep its block: what a graph has of it."""
        address = tensor.untyped_storage().data_ptr() - self._base + tensor.storage_offset() * tensor.itemsize
        plain = torch.empty(0, dtype=tensor.dtype)
        return plain.set_(self._whole, address // tensor.itemsize, tensor.size(), tensor.stride())

    def poison(self, start: int, size: int) -> None:
        """Overwrite freed cells."""
        ctypes.memset(self._base + start * ITEM_BYTES, _POISON, size * ITEM_BYTES)

    def _lend(self, nbytes: int) -> torch.UntypedStorage:
        size = max(1, -(-nbytes // ALIGNMENT)) * _CELLS
        block = self._device.allocate(size)
        if block.start % _CELLS:  # a neighbour is a simulated tensor of an odd size
            self._device.door.give_back(block)
            block = self._device.allocate(size + _CELLS - 1)
        start = -(-block.start // _CELLS) * ALIGNMENT
        part = memoryview(self._memory)[start : start + max(nbytes, ITEM_BYTES)]
        if start + nbytes > self._size:
            self._device.door.give_back(block)
            raise SimOutOfMemory("out of memory: the address space of the device is too fragmented")
        address = self._base + start
        self._blocks[address] = block
        finalize(part, self._let_go, address).atexit = False
        return torch.frombuffer(part, dtype=torch.uint8).untyped_storage()

    def _let_go(self, address: int) -> None:
        """The storage is gone. Runs in destructors."""
        self._device.door.give_back(self._blocks.pop(address))


def _address_space(capacity: int) -> int:
    """Bytes of addresses that first fit needs at worst for ``capacity`` bytes in segments of at least the smallest size.

    Robson (1977): the capacity times the binary logarithm of the ratio of the largest size to the smallest; one more for rounding.
    """
    smallest = SMALL_SEGMENT * ITEM_BYTES
    size = int(capacity * (2 + log2(max(2, capacity / smallest))))
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
