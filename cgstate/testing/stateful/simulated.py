"""The default model on the simulated device: small matrix products."""

from __future__ import annotations

from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend, SimTensor, kernels
from cgstate.errors import ConfigError
from cgstate.testing.stateful.default_model import DefaultModel

__all__ = ["SimModel"]

WIDTH = 2


class SimModel(DefaultModel[SimTensor]):
    """The default model on the simulator, where padded answers equal unpadded ones.

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
        super().__init__()

    def _fresh(self, name: str) -> SimTensor:
        value = self._content[name]
        if name == "cache":
            return self._device.tensor([value] * WIDTH)
        return self._device.tensor([[value + row - column / 4 for column in range(WIDTH)] for row in range(WIDTH)])

    def _input(self, size: int, value: float) -> SimTensor:
        return self._device.tensor([[value + row + column / 8 for column in range(WIDTH)] for row in range(size)])

    def _example(self, size: int) -> tuple[SimTensor, ...]:
        return (self._device.zeros(size, WIDTH),)

    def _net(self, x: SimTensor) -> SimTensor:
        return kernels.tanh(kernels.matmul(x, self._memory["weights"]))

    def _out(self, x: SimTensor) -> SimTensor:
        return kernels.add(kernels.matmul(x, self._memory["weights"]), self._memory["cache"])

    def take_away(self, name: str) -> None:
        """As `DefaultModel.take_away`, and wait for it."""
        super().take_away(name)
        self._device.synchronize()

    def bring_back(self, name: str, *, elsewhere: bool) -> None:
        """As `DefaultModel.bring_back`, and wait for it."""
        super().bring_back(name, elsewhere=elsewhere)
        self._device.synchronize()
