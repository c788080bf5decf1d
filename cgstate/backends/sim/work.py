"""What can stand in a stream's queue: kernels, whole graph launches, marks, waits, and the poisoning of freed memory.

Made by the device, by graphs and by streams; run by the `Executor` alone, one `step` at a time. A piece of work holds addresses,
never tensors: it does not keep the memory alive that it uses, as on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

from cgstate.backends.sim.errors import ILLEGAL_ADDRESS, DeviceFault, SimMemoryError
from cgstate.backends.sim.generator import uniform
from cgstate.backends.sim.memory import POISON, Span, Target, View, load, store

if TYPE_CHECKING:
    from cgstate.backends.sim.blocks import Block

Kernel: TypeAlias = "Callable[..., Sequence[list[float]]]"
"""Takes the values of each input, returns those of each output. Pure: it runs later, perhaps many times."""


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

    def __init__(self, name: str, kernel: Kernel, reads: Sequence[View], writes: Sequence[Target]) -> None:
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
        operands = []
        for view in self.reads:
            operands.append(cells[view] if type(view) is slice else load(cells, view))  # noqa: PERF401  # a frame takes longer
        results = self.kernel(*operands)
        if len(results) != len(self.writes):
            raise ValueError(f"kernel '{self.name}' returned {len(results)} outputs, not {len(self.writes)}")
        at = 0  # counted by hand: this is the way of every kernel, and zip takes longer than all the rest
        for view, size in self.writes:
            values = results[at]
            at += 1  # noqa: SIM113
            if type(view) is slice and len(values) == size:
                cells[view] = values
            else:
                store(cells, view, size, values)

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`: an operation queued alone draws no random numbers."""
        self.run(cells, 0, 0)
        return True


class Loan(NamedTuple):
    """Memory that work uses outside the order of the stream that owns it, and the generation that it takes it to be in."""

    block: Block
    generation: int

    def refuse(self, name: str) -> None:
        """Raise `SimMemoryError`: the device has passed its being given back, and somebody else may have it by now."""
        raise SimMemoryError(
            f"'{name}' used memory of stream {self.block.segment.queue.handle:#x} after it was given back there: neither "
            "stream waited for the other"
        )


class BorrowingOperation(Operation):
    """A kernel on memory of other streams: under the sanitizer it must run before that is given back."""

    __slots__ = ("_loans",)

    def __init__(self, name: str, kernel: Kernel, reads: Sequence[View], writes: Sequence[Target], loans: Sequence[Loan]) -> None:
        super().__init__(name, kernel, reads, writes)
        self._loans = loans

    def run(self, cells: list[float], seed: int, offset: int) -> None:
        """As `Operation.run`.

        Raises:
            SimMemoryError: too late; nothing was read or written.
        """
        for loan in self._loans:
            if loan.block.reached > loan.generation:
                loan.refuse(self.name)
        Operation.run(self, cells, seed, offset)


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
    ``loans`` is the memory that must not have been given back when the last has run.
    """

    __slots__ = ("_at", "_fault_at", "_loans", "_offset", "_seed", "operations")

    def __init__(
        self,
        operations: Sequence[Operation],
        seed: int,
        offset: int,
        fault_at: int | None = None,
        loans: Sequence[Loan] = (),
    ) -> None:
        self.operations = operations
        self._seed = seed
        self._offset = offset
        self._fault_at = fault_at
        self._loans = loans
        self._at = 0

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`.

        Raises:
            SimMemoryError: it is over, and memory that it used was given back meanwhile.
        """
        at = self._at
        if at == self._fault_at:
            raise DeviceFault(ILLEGAL_ADDRESS)
        operations = self.operations
        if at < len(operations):
            operations[at].run(cells, self._seed, self._offset)
        self._at = at = at + 1
        if at < len(operations):
            return False
        for loan in self._loans:
            if loan.block.reached > loan.generation:
                loan.refuse("replay")
        return True


class Milestone:
    """A place in a stream's queue, and whether the device has passed it."""

    __slots__ = ("passed",)

    def __init__(self) -> None:
        self.passed = False


class Mark:
    """Stands in the queue where a milestone is."""

    __slots__ = ("milestone",)

    def __init__(self, milestone: Milestone) -> None:
        self.milestone = milestone

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`: the device passes the mark."""
        self.milestone.passed = True
        return True


class Wait:
    """Holds its stream back until the device has passed a milestone of another. The executor steps it only then."""

    __slots__ = ("milestone",)

    def __init__(self, milestone: Milestone) -> None:
        self.milestone = milestone

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`: nothing to do once the milestone is passed."""
        return True


class Poison:
    """Marks freed cells, in the order of the stream that owns them: work queued before still sees the old values.

    It is no work of the device, and takes no step of its clock: it happens with the end of what is queued before it.
    """

    __slots__ = ("also", "block", "generation", "size", "start")

    def __init__(self, block: Block, start: int, size: int, also: Callable[[int, int], None] | None = None) -> None:
        """``block`` may have grown over its neighbours since it was given back. ``also`` poisons the memory as others see it."""
        self.block = block
        self.generation = block.generation
        self.start = start
        self.size = size
        self.also = also

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`."""
        self.block.reached = self.generation
        cells[self.start : self.start + self.size] = [POISON] * self.size
        if self.also is not None:
            self.also(self.start, self.size)
        return True


class Release:
    """The driver lets go of what a graph retained: it calls the host program back, on whichever thread moves the clock.

    What the callback raises goes to `sys.unraisablehook`: nobody called it.
    """

    __slots__ = ("_call", "_release")

    def __init__(self, release: Callable[[], None], call: Callable[[Callable[[], None]], None]) -> None:
        """``call`` runs the callback, and keeps it from calling the device."""
        self._release = release
        self._call = call

    def step(self, cells: list[float]) -> bool:
        """As `Work.step`."""
        try:
            self._call(self._release)
        except Exception as error:
            message = "Exception ignored in a release callback of the simulated device"
            report = SimpleNamespace(
                exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=message, object=self._release
            )
            sys.unraisablehook(cast("sys.UnraisableHookArgs", report))
        return True
