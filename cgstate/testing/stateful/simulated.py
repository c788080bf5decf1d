"""The default model on the simulated device: two components of small matrix products over shared weights."""

from __future__ import annotations

from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend, SimTensor, kernels
from cgstate.errors import ConfigError
from cgstate.routine import BucketedRoutine
from cgstate.runtime.component import CaptureMode, Component, LeasedComponent
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.subject import Subject

__all__ = ["SimModel"]

WIDTH = 2
SIZES = (1, 2)
SAMPLES = ((1, 1.0), (2, 2.0), (1, -3.0), (3, 4.0), (2, -5.0))
"""Size and first value; no graph serves the largest."""


class SimModel:
    """The weights, and what is computed with them.

    Args:
        backend: A `SimBackend`.

    Raises:
        ConfigError: another backend; override `Bed.make_components` as well then.
    """

    def __init__(self, backend: Backend) -> None:
        if not isinstance(backend, SimBackend):
            raise ConfigError(f"the default components run on the simulator; override make_components for {backend.name}")
        self._device = backend.sim
        self._device.executor.finish_all()
        self._content = {"weights": 0.5, "cache": 2.0}
        self._memory = {name: self._fresh(name) for name in self._content}

    def _fresh(self, name: str) -> SimTensor:
        value = self._content[name]
        if name == "cache":
            return self._device.tensor([value] * WIDTH)
        return self._device.tensor([[value + row - column / 4 for column in range(WIDTH)] for row in range(WIDTH)])

    def subjects(self, setup: Setup) -> list[Subject]:
        """A component that copies its answers, and one that lends them; the second reads a cache as well."""
        declared, lazy = (SIZES[:1], SIZES) if setup.mode is CaptureMode.PRECAPTURE_LAZY else (SIZES, SIZES)
        samples = [(self._input(*sample),) for sample in SAMPLES]
        config = {"isolation": setup.isolation.value, "max_extra_graphs": setup.extra, "admit_after": setup.admit_after}
        net = Component(
            "net",
            BucketedRoutine(self._net, self._example, sizes=lazy),
            declared,
            capture_mode=setup.mode,
            dependencies=["weights"],
            concurrent_leases=setup.concurrent,
            collective=setup.ranks,
        )
        out = LeasedComponent(
            "out",
            BucketedRoutine(self._out, self._example, sizes=lazy),
            declared,
            capture_mode=setup.mode,
            dependencies=["weights", "cache"],
            concurrent_leases=setup.concurrent,
            collective=setup.ranks,
        )
        return [Subject(net, samples, config), Subject(out, samples, config)]

    def _input(self, size: int, value: float) -> SimTensor:
        return self._device.tensor([[value + row + column / 8 for column in range(WIDTH)] for row in range(size)])

    def _example(self, size: int) -> tuple[SimTensor, ...]:
        return (self._device.zeros(size, WIDTH),)

    def _net(self, x: SimTensor) -> SimTensor:
        return kernels.tanh(kernels.matmul(x, self._memory["weights"]))

    def _out(self, x: SimTensor) -> SimTensor:
        return kernels.add(kernels.matmul(x, self._memory["weights"]), self._memory["cache"])

    def take_away(self, name: str) -> None:
        """Overwrite memory."""
        self._memory[name].zero_()
        self._device.synchronize()

    def bring_back(self, name: str, *, elsewhere: bool) -> None:
        """Put the content back, or new content elsewhere."""
        if elsewhere:
            self._content[name] += 1.0
            self._memory[name] = self._fresh(name)
        else:
            self._memory[name].copy_(self._fresh(name))
        self._device.synchronize()
