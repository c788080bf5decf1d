"""What is measured on: a backend, and a small model that runs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend, SimTensor, kernels

WIDTH = 4


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: How often each candidate is timed.
        calls: Calls in one timing.
        entries: Numbers of entries that the cost of a replay is measured with.
        components: Numbers of components that the cost of a call is measured with.
        graphs: Numbers of graphs whose capture is measured; each isolation has its own.
    """

    rounds: int
    calls: int = 20
    entries: tuple[int, ...] = (10, 100, 1000)
    components: tuple[int, ...] = (1, 10, 100)
    graphs: Mapping[str, tuple[int, ...]] = field(
        default_factory=lambda: {"shared": (10, 100, 1000), "per_component": (10, 100), "per_entry": (10, 100)}
    )


class Bed(Protocol):
    """A backend and a model on it."""

    backend: Backend
    effort: Effort
    """What can be measured there in a minute or so."""

    def zeros(self, rows: int) -> Any:
        """A static input."""
        ...

    def filled(self, rows: int) -> Any:
        """An input of a call."""
        ...

    def model(self, *inputs: Any) -> Any:
        """Four small linears over the sum of the inputs."""
        ...

    def settle(self) -> None:
        """Wait for the device."""
        ...


class SimBed:
    """The simulator. It shows how costs on the host compare and scale, and nothing about a device."""

    effort = Effort(rounds=40)

    def __init__(self) -> None:
        self.sim = SimBackend()
        self.backend: Backend = self.sim
        self._weight = self.sim.sim.rand(WIDTH, WIDTH)

    def zeros(self, rows: int) -> SimTensor:
        """A static input."""
        return self.sim.sim.zeros(rows, WIDTH)

    def filled(self, rows: int) -> SimTensor:
        """An input of a call."""
        return self.sim.sim.rand(rows, WIDTH)

    def model(self, *inputs: SimTensor) -> SimTensor:
        """Four small linears over the sum of the inputs."""
        return linears(inputs, self._weight)

    def settle(self) -> None:
        """Wait for the device."""
        self.sim.sim.synchronize()


def linears(inputs: Sequence[SimTensor], weight: SimTensor) -> SimTensor:
    """The model on simulated tensors."""
    hidden = inputs[0]
    for other in inputs[1:]:
        hidden = kernels.add(hidden, other)
    for _ in range(4):
        hidden = kernels.matmul(hidden, weight)
    return hidden
