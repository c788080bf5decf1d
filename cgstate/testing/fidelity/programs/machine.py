"""What both kinds of programs share: how a step is done, and what is looked at after it.

Everything is named by the program, or by the order of its appearance, and counted in units, so that two devices can say the same.
Two things are made equal on purpose, because they are no matter of a lifecycle: what a device holds before a program starts is
taken off, and random numbers are told apart (`Machine.drawn`) but not compared between devices.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from cgstate.backends.base import Stream
from cgstate.errors import CGStateError, InvariantViolation
from cgstate.runtime.failure import clear_frames
from cgstate.testing.fidelity.bench import Bench
from cgstate.testing.fidelity.programs.program import Json, Seen, Step

T = TypeVar("T")

STREAMS = ("s0", "s1", "s2")
"""The framework's streams that every program has, besides ``default``."""
DRAWN_UNITS = 1.5
"""Units of every tensor of random numbers: all draws are equally long, so that equal numbers mean equal places in the sequence."""

TOO_MUCH = 1 << 20
"""Units that no device has."""
CLEAN: Seen = {"did": [], "reserved": 0, "allocated": 0, "pools": 0, "stream": "default"}
"""What `Machine.end` sees when nothing is left."""
_ITEM_BYTES = 8


class BodyError(Exception):
    """What a body raises that fails in Python."""


REFUSALS = (RuntimeError, CGStateError, BodyError)
"""What a step may raise and a program go on. Anything else is a defect of the program."""


class Machine(ABC, Generic[T]):
    """Carries out the steps of one program on a bench, and looks.

    Attributes:
        bench: The device.
        streams: By name.
        tensors: Eager tensors by name.
    """

    def __init__(self, bench: Bench[T]) -> None:
        self.bench = bench
        self.streams: dict[str, Stream] = {name: bench.framework_stream() for name in STREAMS}
        self.tensors: dict[str, T] = {}
        self._draws: list[tuple[float, ...]] = []
        bench.product(bench.full(2, 1))  # the thread's library handle, which no capture may make (fact F8)
        bench.clear_workspaces()
        bench.flush()
        bench.seed(0)
        self._base = bench.reserved(), bench.allocated()
        self._mark = bench.backend.generator_mark()

    # -- doing --------------------------------------------------------------------------------------------------------

    def do(self, step: Step) -> Seen:
        """Carry out one step; what is seen then."""
        try:
            did = self._act(step)
        except REFUSALS as error:
            did = self._outcome(error)
        self.bench.synchronize()
        return {"did": did, **self._look()}

    def end(self) -> Seen:
        """Clean up as a careful program would; what is left then."""
        problems: list[Json] = []
        for act in self._clean_up():
            try:
                act()
            except REFUSALS as error:
                problems.append(self._outcome(error))
        bench = self.bench
        self.tensors.clear()
        bench.synchronize()
        bench.clear_workspaces()
        bench.flush()
        if self._held() != (0, 0, 0):
            gc.collect()  # an error of the framework's own may have left a cycle
            bench.flush()
        reserved, allocated, pools = self._held()
        return {"did": problems, "reserved": reserved, "allocated": allocated, "pools": pools, "stream": self._current()}

    def _outcome(self, error: Exception) -> Json:
        """What the outcome says of an error; a broken invariant is none, but a defect of the library, and is raised again."""
        if isinstance(error, InvariantViolation):
            raise error
        outcome = self._refusal(error)
        clear_frames(error)  # what it has seen must come back at once, and not when the garbage collector likes
        return outcome

    @abstractmethod
    def _act(self, step: Step) -> Json:
        """Carry out a step that only this kind of program knows; `_common` knows the others. What came of it."""

    @abstractmethod
    def _clean_up(self) -> Iterator[Callable[[], object]]:
        """The acts that end everything, one by one: each is done whatever became of those before."""

    def _refusal(self, error: Exception) -> Json:
        """What the outcome says of an error."""
        return str(self.bench.error_name(error))

    def _common(self, step: Step) -> Json:
        """The steps of both layers: eager work, random numbers, memory."""
        bench = self.bench
        match step:
            case {"op": "tensor", "name": str(name), "units": int() | float() as units, "value": int(value), "on": str(on)}:
                with self.on(on):
                    self.tensors[name] = bench.full(units, value)
            case {"op": "free", "name": str(name)}:
                del self.tensors[name]
            case {"op": "add", "name": str(name), "value": int(value), "on": str(on)}:
                with self.on(on):
                    bench.add_(self.tensors[name], value)
                    return self.values(self.tensors[name])
            case {"op": "product", "name": str(name), "on": str(on)}:
                with self.on(on):
                    return self.values(bench.product(self.tensors[name]))
            case {"op": "seed", "seed": int(seed)}:
                bench.seed(seed)
            case {"op": "draw", "on": str(on)}:
                with self.on(on):
                    return self.drawn(self.draw())
            case {"op": "too much"}:
                bench.full(TOO_MUCH, 0)
            case {"op": "flush"}:
                bench.flush()
            case _:
                raise AssertionError(f"no such step: {step}")
        return "done"

    def on(self, name: str) -> AbstractContextManager[None]:
        """Make a stream current; ``current`` leaves whichever it is, which a failed capture may have switched (fact F3)."""
        if name == "current":
            return nullcontext()
        return self.bench.on(self.streams[name])

    def draw(self) -> T:
        """Random numbers, always as many."""
        return self.bench.draw(round(DRAWN_UNITS * self.bench.unit) // _ITEM_BYTES)

    # -- looking ------------------------------------------------------------------------------------------------------

    def values(self, x: T) -> Json:
        """The values of a tensor that does not hold random numbers."""
        return list(self.bench.values(x))

    def drawn(self, x: T) -> Json:
        """The name of what a tensor of random numbers holds: the same one for the same numbers."""
        numbers = self.bench.values(x)
        if numbers not in self._draws:
            self._draws.append(numbers)
        return f"draw {self._draws.index(numbers)}"

    def units(self, size: int) -> float:
        """Bytes as units. Whole halves: the smallest blocks of the two devices are not to scale."""
        return math.floor(size / self.bench.unit * 2) / 2

    def _look(self) -> Seen:
        """What is looked at after every step."""
        mark, self._mark = self._mark, self.bench.backend.generator_mark()
        return {"stream": self._current(), "random moved": mark != self._mark}

    def _current(self) -> str:
        backend = self.bench.backend
        handle = backend.current_handle(backend.index)
        return self.stream_name(handle)

    def stream_name(self, handle: int) -> str:
        """What a program calls a stream."""
        if handle == 0:
            return "default"
        return next((name for name, stream in self.streams.items() if stream.handle == handle), "another")

    def _held(self) -> tuple[float, float, int]:
        """Beyond what was there before: units outside the private pools, units of live allocations; private pools with memory."""
        bench = self.bench
        pools = bench.pools()
        private = sum(_total(by_stream) for by_stream in pools.values())
        reserved, allocated = self._base
        return self.units(bench.reserved() - private - reserved), self.units(bench.allocated() - allocated), len(pools)


def _total(by_stream: Mapping[int, int]) -> int:
    return sum(by_stream.values())
