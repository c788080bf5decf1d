"""A bed of torch modules: on a CUDA device, or on the simulator by its recorder."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import torch

from cgstate.backends.base import Backend
from cgstate.backends.cuda import CudaBackend
from cgstate.backends.cuda.pools import CudaPool
from cgstate.testing.stateful.bed import Bed, Capabilities, EnginePool
from cgstate.testing.stateful.default_model import DefaultModel
from cgstate.testing.stateful.subject import Subject

__all__ = ["CudaBed", "TorchBed", "TorchModel"]

WIDTH = 64


class TorchModel(DefaultModel[torch.Tensor]):
    """The default model in torch, in float64, so that shapes hardly change answers.

    Args:
        device: Where its tensors are.
        tolerance: As `DefaultModel`.
    """

    def __init__(self, device: str, tolerance: float = 1e-9) -> None:
        self._device = device
        super().__init__(tolerance)

    def _fresh(self, name: str) -> torch.Tensor:
        value = self._content[name]
        size = WIDTH * WIDTH if name == "weights" else WIDTH
        ramp = torch.arange(size, dtype=torch.float64, device=self._device) / size
        made = torch.cos(ramp * (3 + value)) + value / 8
        return made.view(WIDTH, WIDTH) if name == "weights" else made

    def _input(self, size: int, value: float) -> torch.Tensor:
        ramp = torch.arange(size * WIDTH, dtype=torch.float64, device=self._device)
        return torch.sin(ramp + value).view(size, WIDTH)

    def _example(self, size: int) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(size, WIDTH, dtype=torch.float64, device=self._device),)

    def _net(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self._memory["weights"])

    def _out(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self._memory["weights"] + self._memory["cache"]


class TorchBed(Bed):
    """The default model in torch, on one device that all runs of the process share, as they do a GPU.

    Nothing of the device is broken on purpose, but routines are, and bodies: a lost context would end the process.

    Attributes:
        place: Where torch puts the model.
    """

    can: ClassVar[Capabilities] = Capabilities(dependencies=True)
    place: ClassVar[str]

    @classmethod
    def shared(cls) -> Backend:
        """The device."""
        raise TypeError(f"{cls.__name__} does not say on which device it plays")

    @classmethod
    def wait(cls) -> None:
        """Wait for all streams of the device."""
        raise TypeError(f"{cls.__name__} does not say how to wait for its device")

    @classmethod
    def held_bytes(cls) -> int:
        """As `Bed.held_bytes`: live allocations, and what private pools hold back."""
        gc.collect()
        backend = cls.shared()
        cls.wait()
        backend.clear_workspaces()
        backend.flush()
        left = backend.footprint()
        return left.allocated + sum(left.pools.values())

    def make_backend(self) -> Backend:
        """The same for all runs; what the last one left to the collector goes now, and not in the middle of this one."""
        gc.collect()
        return self.shared()

    def make_components(self) -> Sequence[Subject]:
        """The default model; its first tensors are there before a call comes on another stream."""
        model = self.model = TorchModel(self.place)
        subjects = model.subjects(self.setup)
        self.wait()
        return subjects

    def take_away(self, dependency: str) -> None:
        """As `Bed.take_away`; other streams see it."""
        super().take_away(dependency)
        self.wait()

    def bring_back(self, dependency: str, *, elsewhere: bool) -> None:
        """As `Bed.bring_back`; other streams see it."""
        super().bring_back(dependency, elsewhere=elsewhere)
        self.wait()


class CudaBed(TorchBed):
    """The current CUDA device."""

    place: ClassVar[str] = "cuda"

    @classmethod
    @cache
    def shared(cls) -> Backend:
        """As `TorchBed.shared`."""
        return CudaBackend()

    @classmethod
    def wait(cls) -> None:
        """As `TorchBed.wait`."""
        torch.cuda.synchronize()

    def make_engine(self) -> EnginePool:
        """As `Bed.make_engine`: a small graph keeps it open, as one of an engine's does."""
        pool, graph, cell = CudaPool(self.backend.index), torch.cuda.CUDAGraph(), torch.zeros(1, device=self.place)
        with torch.cuda.graph(graph, pool.id, torch.cuda.Stream()):  # type: ignore[arg-type]  # torch has a type of its own for ids
            cell.zero_()

        def drop() -> None:
            graph.reset()
            pool.drop()

        return EnginePool(pool.id, pool.mem_pool, drop)
