"""What can stand in a stream's queue: kernels, whole graph launches, marks, waits, and the poisoning of freed memory.

Made by the device, by graphs and by streams; run by the `Executor` alone, one `step` at a time. A piece of work holds addresses,
never tensors: it does not keep the memory alive that it uses, as on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cgstate.backends.sim.errors import ILLEGAL_ADDRESS, DeviceFault
from cgstate.backends.sim.generator import uniform
from cgstate.backends.sim.memory import POISON, Span, View, load, store

if TYPE_CHECKING:
    from cgstate.backends.sim.streams import SimEvent

Kernel: TypeAlias = "Callable[..., Sequence[list[float]]]"
"""Takes the values of each input, returns those of each output. Pure: it runs later, perhaps many times."""

Target: TypeAlias = "tuple[View, int]"
"""Where an output lies, and how many values it takes."""


class Work(Protocol):
    """One entry of a stream's queue."""

    def step(self, cells: list[float]) -> bool:
        """Run the next kernel of it; True when that was the last.

        Raises:
            DeviceFault: the kernel destroyed the context (fact F7).
        """
        ...


class Operation:
    """One kernel with its operands."""

    __slots__ = ("kernel", "name", "reads", "writes")

    def __init__(self, name: str, kernel: Kernel, reads: tuple[View, ...], writes: tuple[Target, ...]) -> None:
        self.name = name
        self.kernel = kernel
        self.reads = reads
        self.writes = writes

    def spans(self) -> Iterator[Span]:
        """The runs of cells that it touches."""
        for view in (*self.reads, *(view for view, _ in self.writes)):
            yield from (view,) if isinstance(view, slice) else view

    def run(self, cells: list[float], seed: int, offset: int) -> None:
        """Do it. ``seed`` and ``offset`` are the generator's for the launch that this is part of."""
        results = self.kernel(*[cells[view] if type(view) is slice else load(cells, view) for view in self.reads])
        for (view, size), values in zip(self.writes, results, strict=True):
            store(cells, view, size, values)

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`: an operation queued alone draws no random numbers."""
        self.run(cells, 0, 0)
        return True


class Draw(Operation):
    """A kernel that fills one tensor with uniform numbers, ``position`` draws after the launch's offset."""

    __slots__ = ("position",)

    def __init__(self, target: Target, position: int) -> None:
        super().__init__("rand", _no_kernel, (), (target,))
        self.position = position

    def run(self, cells: list[float], seed: int, offset: int) -> None:
        """As `Operation.run`."""
        view, size = self.writes[0]
        store(cells, view, size, uniform(seed, offset + self.position, size))


def _no_kernel() -> Sequence[list[float]]:
    return ()


class Launch:
    """A list of operations that run one after the other: a graph on its way, or an eager draw.

    ``fault_at`` is the index of the first operation that touches unmapped memory, which loses the context when it is reached.
    """

    __slots__ = ("_at", "_fault_at", "_offset", "_operations", "_seed")

    def __init__(self, operations: Sequence[Operation], seed: int, offset: int, fault_at: int | None = None) -> None:
        self._operations = operations
        self._seed = seed
        self._offset = offset
        self._fault_at = fault_at
        self._at = 0

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`."""
        at = self._at
        if at == self._fault_at:
            raise DeviceFault(ILLEGAL_ADDRESS)
        operations = self._operations
        if at < len(operations):
            operations[at].run(cells, self._seed, self._offset)
        self._at = at = at + 1
        return at >= len(operations)


class Mark:
    """Where an event was recorded."""

    __slots__ = ("event",)

    def __init__(self, event: SimEvent) -> None:
        self.event = event

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`: the device passes the mark."""
        self.event.passed = True
        return True


class Wait:
    """Holds its stream back until an event of another has passed. The executor steps it only then."""

    __slots__ = ("event",)

    def __init__(self, event: SimEvent) -> None:
        self.event = event

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`: nothing to do once the event has passed."""
        return True


class Poison:
    """Marks freed cells, in the order of the stream that owns them: work queued before still sees the old values."""

    __slots__ = ("size", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.size = size

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`."""
        cells[self.start : self.start + self.size] = [POISON] * self.size
        return True
