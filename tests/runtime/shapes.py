"""Routines that only allocate, in the shape of models: how much, in which order, and what stays. For the tests of memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import cgstate
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimTensor
from cgstate.backends.sim.memory import ITEM_BYTES

MIB = 1024 // ITEM_BYTES
"""Cells that stand for a MiB."""

Cells = Callable[[int], float]


def linear(slope: float, constant: float = 0.0) -> Cells:
    """Cells that grow in proportion to the size."""
    return lambda size: constant + slope * size


_TWENTIETH = linear(0.05)


@dataclass(frozen=True)
class Shape:
    """A component's graphs.

    Attributes:
        temporaries: Cells of each, in order.
        outputs: Cells of each.
        descriptors: Sizes.
        alive: How many temporaries live at once.
        inputs: Cells of the static input.
    """

    temporaries: Sequence[Cells]
    outputs: Sequence[Cells]
    descriptors: Sequence[int]
    alive: int = 3
    inputs: Cells = _TWENTIETH


class Shaped(cgstate.Routine[..., SimTensor, int, SimTensor]):
    """Allocates as its shape says, and computes nothing."""

    def __init__(self, device: SimDevice, shape: Shape) -> None:
        self.device = device
        self.shape = shape
        self.unsettled: list[SimTensor] | None = None

    def _cells(self, cells: Cells, size: int) -> SimTensor:
        return self.device.empty(max(1, int(cells(size))))

    def eager_call(self, *args: object, **kwargs: object) -> SimTensor:
        raise AssertionError("nobody calls it")

    def resolve_runtime(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[int]
    ) -> cgstate.Resolution[int]:
        raise AssertionError("nobody calls it")

    def make_lazy_descriptor(self, runtime_key: Hashable) -> int | None:
        return None

    def allocate_buffers(self, descriptor: int) -> SimTensor:
        return self._cells(self.shape.inputs, descriptor)

    def forward_for_capture(self, descriptor: int, buffers: SimTensor) -> object:
        alive: list[SimTensor] = []
        for cells in self.shape.temporaries:
            alive.append(self._cells(cells, descriptor))
            del alive[: -self.shape.alive]
        if self.unsettled is not None:
            self.unsettled.append(self._cells(linear(1.0), descriptor))
        return [self._cells(cells, descriptor) for cells in self.shape.outputs]

    def copy_runtime_inputs(self, descriptor: int, buffers: SimTensor, *args: object, **kwargs: object) -> None:
        raise AssertionError("nobody calls it")

    def output_after_replay(
        self, descriptor: int, buffers: SimTensor, output: object, *args: object, **kwargs: object
    ) -> SimTensor:
        raise AssertionError("nobody calls it")


def manager_of(
    *shapes: Shape, isolation: str = "shared", check: bool = True, order: Sequence[int] | None = None
) -> cgstate.GraphManager:
    """A prepared manager with a component of each shape, ``c0`` and on, on a device of its own.

    ``order``: that of capture; None: largest first.
    """
    device = SimDevice(SimConfig(capacity_bytes=1 << 30))
    manager = cgstate.GraphManager(SimBackend(device), isolation=isolation, check=check)
    key = None if order is None else {size: -rank for rank, size in enumerate(order)}.__getitem__
    manager.prepare(
        [
            cgstate.Component(f"c{number}", Shaped(device, shape), sorted(set(shape.descriptors)), capture_order_key=key)
            for number, shape in enumerate(shapes)
        ]
    )
    return manager
