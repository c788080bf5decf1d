"""The routine of a runtime program's components."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from cgstate.testing.fidelity.bench import Bench
from cgstate.testing.fidelity.programs.body import Body
from cgstate.testing.fidelity.programs.program import Json
from cgstate.testing.sized import Sized

T = TypeVar("T")


class Scripted(Sized[T], Generic[T]):
    """What a program says that a component does.

    Attributes:
        spoiled: An operation that its next recording does besides, once.
    """

    def __init__(
        self, bench: Bench[T], body: Callable[[list[Json], T], Body[T]], operations: list[Json], lazy: frozenset[float]
    ) -> None:
        """``body`` makes something to run of ``operations``; ``lazy`` are the sizes that a miss may capture."""
        super().__init__(bench, lazy)
        self.spoiled: Json = None
        self._backend = bench.backend
        self._body = body
        self._operations = operations

    def eager_call(self, x: T, units: float) -> T:
        """As `Routine.eager_call`."""
        return self._body(self._operations, x)()["out"]

    def forward_for_capture(self, descriptor: float, buffers: T) -> object:
        """As `Routine.forward_for_capture`."""
        operations = self._operations
        if self.spoiled is not None and self._backend.capturing():
            operations, self.spoiled = [*operations, self.spoiled], None
        return self._body(operations, buffers)()["out"]
