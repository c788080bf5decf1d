"""Torch code captured on a simulated device, for the recorder's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from cgstate.backends.sim import Schedule, SimBackend, SimConfig, SimDevice, SimGraph, SimPool, SimStream, captured

T = TypeVar("T")


class Bench:
    """One device with a stream and a pool to capture with."""

    def __init__(self, config: SimConfig | None = None, schedule: Schedule | None = None) -> None:
        self.sim = SimDevice(config, schedule)
        self.backend = SimBackend(self.sim)
        self.stream = self.sim.new_stream(exclusive=True)
        self.pool = self.sim.new_pool()

    def capture(self, body: Callable[[], T], *, pool: SimPool | None = None, stream: SimStream | None = None) -> tuple[SimGraph, T]:
        """Capture ``body`` without gradients; the graph and what it returned."""
        with torch.no_grad():
            return captured(self.sim, body, stream or self.stream, (pool or self.pool).id)

    def reserved(self) -> int:
        """Bytes of the pool's segments."""
        return sum(self.pool.reserved_bytes().values())

    @contextmanager
    def refused(self, error: type[BaseException], words: str) -> Iterator[None]:
        """The block captures, and is refused with ``error``, which says ``words``."""
        caught: BaseException | None = None
        try:
            yield
        except Exception as raised:
            caught = raised.__context__ or raised  # a capture that was broken ends with an error of its own
        assert isinstance(caught, error), caught
        assert words in str(caught)


def equal(graph_output: object, eager_output: object) -> bool:
    """Whether both are the same tensors bit for bit, types and layout included."""
    if isinstance(graph_output, torch.Tensor) and isinstance(eager_output, torch.Tensor):
        seen = graph_output.cpu()
        same_look = (seen.dtype, seen.shape, _strides(graph_output)) == (
            eager_output.dtype,
            eager_output.shape,
            _strides(eager_output),
        )
        return same_look and torch.equal(_bits(seen), _bits(eager_output))
    if isinstance(graph_output, list | tuple) and isinstance(eager_output, list | tuple):
        return len(graph_output) == len(eager_output) and all(map(equal, graph_output, eager_output))
    return graph_output == eager_output


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides that matter."""
    return [stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if length > 1 and tensor.numel()]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers of which equal ones have equal bits."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    return tensor.contiguous().view(whole)
