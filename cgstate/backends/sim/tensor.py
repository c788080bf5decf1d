"""Tensors of the simulated device: a small part of torch's, by the same names.

For users, tests and the backend. A `Storage` owns memory and gives it back when its last tensor dies, as in torch; a `SimTensor`
is a view of one. Reading a value (`tolist`, `item`) waits for the current stream and so is refused in a capture (fact F2).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from cgstate.backends.sim.errors import SimMemoryError
from cgstate.backends.sim.faults import Faults, faulted
from cgstate.backends.sim.memory import ITEM_BYTES, POISON, Target, View, load

if TYPE_CHECKING:
    from cgstate.backends.sim.blocks import Block
    from cgstate.backends.sim.device import SimDevice

Nested: TypeAlias = "float | Sequence[Nested]"
Shape: TypeAlias = tuple[int, ...]


class Storage:
    """Owns ``block``, and gives it back.

    Attributes:
        nbytes: What was asked for; the block may be larger.
    """

    __slots__ = ("block", "device", "nbytes")

    def __init__(self, device: SimDevice, block: Block, cells: int) -> None:
        self.device = device
        self.block = block
        self.nbytes = cells * ITEM_BYTES

    def __del__(self) -> None:
        self.device.door.give_back(self.block)


class SimTensor:
    """A view of a storage.

    Attributes:
        shape: Elements by dimension.
        requires_grad: Whether autograd would record calls with it. Plain data here; nothing differentiates.
        storage: Whose memory it shows.
        view: Where its elements lie.
        target: The same and how many they are, for kernels that write them.
    """

    __slots__ = ("_offset", "_strides", "requires_grad", "shape", "storage", "target", "view")

    def __init__(self, storage: Storage, offset: int, shape: Shape, strides: Shape | None = None) -> None:
        """``strides`` are the cells between neighbours, by dimension; None: there are no gaps."""
        self.storage = storage
        self.shape = shape
        self.requires_grad = False
        self._offset = offset
        self._strides = None if strides is None or strides == contiguous_strides(shape) else strides
        size, start = prod(shape), storage.block.start + offset
        self.view: View = slice(start, start + size) if self._strides is None else _rows(start, shape, self._strides)
        self.target: Target = (self.view, size)

    @classmethod
    def empty(cls, device: SimDevice, shape: Shape) -> SimTensor:
        """Memory of the current stream, from whichever pool allocations go to; an empty tensor still holds one cell."""
        cells = prod(shape) or 1
        return cls(Storage(device, device.allocate(cells), cells), 0, shape)

    @property
    def device(self) -> SimDevice:
        """The device that it lives on."""
        return self.storage.device

    @property
    def faults(self) -> Faults:
        """The fault injector of its device."""
        return self.storage.device.faults

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.numel() * ITEM_BYTES

    @property
    def dtype(self) -> str:
        """The device's one element type."""
        return "float64"

    def stride(self) -> Shape:
        """Cells between neighbours, by dimension."""
        return self._strides or contiguous_strides(self.shape)

    def numel(self) -> int:
        """How many elements."""
        return self.target[1]

    def data_ptr(self) -> int:
        """The address of the first element, in bytes."""
        return (self.storage.block.start + self._offset) * ITEM_BYTES

    # -- views --------------------------------------------------------------------------------------------------------

    def narrow(self, dim: int, start: int, length: int) -> SimTensor:
        """Elements ``start`` to ``start + length`` of one dimension; shares memory."""
        if not (0 <= dim < len(self.shape) and 0 <= start <= start + length <= self.shape[dim]):
            raise IndexError(f"narrow({dim}, {start}, {length}) of shape {self.shape}")
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        if dim == 0 and self._strides is None:
            return SimTensor(self.storage, self._offset + start * prod(shape[1:]), shape)
        strides = self.stride()
        return SimTensor(self.storage, self._offset + start * strides[dim], shape, strides)

    def t(self) -> SimTensor:
        """The transpose of a matrix; shares memory."""
        rows, columns = self.shape
        down, across = self.stride()
        return SimTensor(self.storage, self._offset, (columns, rows), (across, down))

    def reshape(self, *shape: int) -> SimTensor:
        """The same elements in another shape: a view where they lie in one run, else a copy."""
        if prod(checked(shape)) != self.numel():
            raise ValueError(f"cannot reshape {self.shape} to {shape}")
        whole = self if self._strides is None else self.clone()
        return SimTensor(whole.storage, whole._offset, shape)

    # -- values -------------------------------------------------------------------------------------------------------

    def copy_(self, source: SimTensor) -> SimTensor:
        """Write the elements of ``source``, which has the same shape."""
        if source.shape != self.shape:
            raise ValueError(f"copy_ from shape {source.shape} to {self.shape}")
        self.device.launch("copy", _identity, (source,), (self,))
        return self

    def fill_(self, value: float) -> SimTensor:
        """Write ``value`` everywhere. In a capture it is baked in."""
        values = [float(value)] * self.numel()
        self.device.launch("fill", lambda: (values,), (), (self,))
        return self

    def zero_(self) -> SimTensor:
        """Write zeros."""
        return self.fill_(0.0)

    def clone(self) -> SimTensor:
        """A copy on the current stream."""
        return SimTensor.empty(self.storage.device, self.shape).copy_(self)

    def new_empty(self, shape: Sequence[int]) -> SimTensor:
        """Another tensor of this device, with whatever is in its memory."""
        return SimTensor.empty(self.device, checked(tuple(shape)))

    def new_zeros(self, shape: Sequence[int]) -> SimTensor:
        """Another tensor of this device, full of zeros."""
        return self.new_empty(shape).zero_()

    def tolist(self) -> Nested:
        """The values, once the current stream is idle.

        Raises:
            SimAcceleratorError: 900, an open capture forbids waiting, and is broken by it (facts F2, T4).
            SimMemoryError: what it shows was copied from freed memory.
        """
        return _nested(self._read(), self.shape)

    def item(self) -> float:
        """The one value of a tensor of one element. Raises as `tolist`."""
        if self.numel() != 1:
            raise ValueError(f"item() of {self.numel()} elements")
        return self._read()[0]

    @faulted("host_read")
    def _read(self) -> list[float]:
        device, view = self.storage.device, self.view
        with device.door:
            device.wait_for(device.current_queue())
            cells = device.memory.cells
            values = cells[view] if type(view) is slice else load(cells, view)
        if device.config.sanitize and POISON in values:
            raise SimMemoryError(f"{self!r} shows the content of freed memory")
        return values

    def __repr__(self) -> str:
        return f"SimTensor(shape={self.shape}, device={self.device.name})"


def checked(shape: Shape) -> Shape:
    """``shape``, if there are such tensors.

    Raises:
        ValueError: a negative length.
    """
    if shape and min(shape) < 0:
        raise ValueError(f"negative length in shape {shape}")
    return shape


def contiguous_strides(shape: Shape) -> Shape:
    """Cells between neighbours, by dimension, of a tensor without gaps."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def flatten(data: Nested) -> tuple[list[float], Shape]:
    """Nested sequences as a flat list and its shape.

    Raises:
        ValueError: ragged.
    """
    if isinstance(data, int | float):
        return [float(data)], ()
    values: list[float] = []
    shapes: set[Shape] = set()
    for part in data:
        inner, shape = flatten(part)
        values += inner
        shapes.add(shape)
    if len(shapes) > 1:
        raise ValueError(f"ragged data: rows of shapes {sorted(shapes)}")
    return values, (len(data), *(shapes.pop() if shapes else ()))


def _rows(start: int, shape: Shape, strides: Shape) -> View:
    length, step = shape[-1], strides[-1]
    extent = (length - 1) * step + 1 if length else 0
    outer = (range(0, n * s, s) if s else range(0) for n, s in zip(shape[:-1], strides[:-1], strict=True))
    return tuple(slice(start + sum(at), start + sum(at) + extent, step) for at in product(*outer))


def _nested(values: list[float], shape: Shape) -> Nested:
    if not shape:
        return values[0]
    if len(shape) == 1:
        return values
    step = len(values) // shape[0] if shape[0] else 0
    return [_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def _identity(values: list[float]) -> tuple[list[float]]:
    return (values,)
