"""The routine of a runtime program's components."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from cgstate import Resolution, Routine
from cgstate.testing.fidelity.bench import Bench
from cgstate.testing.fidelity.programs.body import Body
from cgstate.testing.fidelity.programs.program import Json

T = TypeVar("T")


class Sized(Routine[[T, float], T, float, T], Generic[T]):
    """A routine whose descriptors are sizes in units; a call gives its input and the size of that.

    Attributes:
        spoiled: An operation that its next recording does besides, once.
    """

    def __init__(
        self, bench: Bench[T], body: Callable[[list[Json], T], Body[T]], operations: list[Json], lazy: frozenset[float]
    ) -> None:
        """``body`` makes something to run of ``operations``; ``lazy`` are the sizes that a miss may capture."""
        self.spoiled: Json = None
        self._bench = bench
        self._body = body
        self._operations = operations
        self._lazy = lazy

    def eager_call(self, x: T, units: float) -> T:
        """As `Routine.eager_call`."""
        return self._body(self._operations, x)()["out"]

    def resolve_runtime(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[float]
    ) -> Resolution[float]:
        """As `Routine.resolve_runtime`."""
        units = args[1]
        assert isinstance(units, float)
        return Resolution(units, units if units in available else None)

    def make_lazy_descriptor(self, runtime_key: object) -> float | None:
        """As `Routine.make_lazy_descriptor`."""
        return runtime_key if isinstance(runtime_key, float) and runtime_key in self._lazy else None

    def allocate_buffers(self, descriptor: float) -> T:
        """As `Routine.allocate_buffers`."""
        return self._bench.full(descriptor, 0)

    def forward_for_capture(self, descriptor: float, buffers: T) -> object:
        """As `Routine.forward_for_capture`."""
        operations = self._operations
        if self.spoiled is not None and self._bench.backend.capturing():
            operations, self.spoiled = [*operations, self.spoiled], None
        return self._body(operations, buffers)()["out"]

    def copy_runtime_inputs(self, descriptor: float, buffers: T, x: T, units: float) -> None:
        """As `Routine.copy_runtime_inputs`."""
        self._bench.copy_(buffers, x)

    def output_after_replay(self, descriptor: float, buffers: T, output: Any, x: T, units: float) -> T:
        """As `Routine.output_after_replay`."""
        return output  # type: ignore[no-any-return]  # what `forward_for_capture` returned
