"""A capture as a ``with`` block, with the manners of ``torch.cuda.graph``, bad ones included. For tests and fact programs.

The runtime does not use it: it opens captures through the backend, which puts back what this one leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim.blocks import PoolId
from cgstate.backends.sim.device import SimDevice
from cgstate.backends.sim.graph import SimGraph
from cgstate.backends.sim.streams import SimStream

T = TypeVar("T")


class graph_scope:
    """Capture the block into ``graph``.

    On the way in it waits for the device and flushes the allocators (fact P7), so that a latched pool opens again if nothing holds
    memory of it (fact P1). On the way out it restores the current stream only when the capture could be ended (fact F3), whatever
    the block raised (fact F1).
    """

    def __init__(
        self,
        graph: SimGraph,
        *,
        stream: SimStream,
        pool: PoolId | None = None,
        mode: CaptureErrorMode = CaptureErrorMode.global_,
    ) -> None:
        self._graph = graph
        self._pool = pool
        self._stream = stream
        self._mode = mode
        self._device: SimDevice = graph.device

    def __enter__(self) -> None:
        device = self._device
        device.synchronize()
        device.flush()
        device.flush_host()
        self._before = device.current_stream()
        device.set_stream(self._stream)
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._graph.capture_end()
        self._device.set_stream(self._before)


def captured(
    device: SimDevice,
    body: Callable[[], T],
    stream: SimStream,
    pool: PoolId | None = None,
    mode: CaptureErrorMode = CaptureErrorMode.global_,
) -> tuple[SimGraph, T]:
    """Capture ``body`` in a `graph_scope`; the graph, and what the body returned."""
    graph = SimGraph(device)
    with graph_scope(graph, stream=stream, pool=pool, mode=mode):
        result = body()
    return graph, result
