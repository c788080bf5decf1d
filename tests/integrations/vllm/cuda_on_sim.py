"""The names of ``torch.cuda`` that vLLM captures with, on a simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import SimBackend, SimDevice, SimGraph, SimStream


class CudaOnSim:
    """One simulated device, under the names that vLLM and torch use.

    Attributes:
        sim: The device.
        backend: The same one, for cgstate.
        registered: The pools that vLLM told its communicator of, in order.
    """

    def __init__(self) -> None:
        self.sim = SimDevice()
        self.backend = SimBackend(self.sim)
        self.registered: list[object] = []
        self.CUDAGraph, self.graph = _classes(self.sim)

    def names(self) -> dict[str, Any]:
        """Attributes for ``torch.cuda``."""
        return {"CUDAGraph": self.CUDAGraph, "graph": self.graph, "Stream": self.sim.new_stream}

    def accelerator(self) -> dict[str, Any]:
        """Attributes for ``torch.accelerator``."""
        return {
            "synchronize": self.sim.synchronize,
            "empty_cache": self.sim.flush,
            "get_memory_info": lambda: (self.sim.free_bytes(), self.sim.config.capacity_bytes),
        }

    @contextmanager
    def graph_capture(self, device: object, *args: object) -> Iterator[SimpleNamespace]:
        """vLLM's ``graph_capture``: a stream of its own, current for the block."""
        stream = self.sim.new_stream()
        stream.wait(self.sim.current_stream().record())
        with self.sim.on_stream(stream):
            yield SimpleNamespace(stream=stream)
        self.sim.current_stream().wait(stream.record())


def _classes(sim: SimDevice) -> tuple[Any, Any]:
    class CUDAGraph:
        """``torch.cuda.CUDAGraph``."""

        def __init__(self, keep_graph: bool = False) -> None:
            self.sim_graph = SimGraph(sim)

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            self.sim_graph.capture_begin(pool, CaptureErrorMode(capture_error_mode))

        def capture_end(self) -> None:
            self.sim_graph.capture_end()

        def replay(self) -> None:
            self.sim_graph.replay()

        def reset(self) -> None:
            self.sim_graph.destroy()

        def pool(self) -> Any:
            return self.sim_graph.pool_id

    class graph:  # it has torch's name
        """``torch.cuda.graph``: flushes both allocators, makes the stream current, captures."""

        default_capture_stream: ClassVar[SimStream | None] = None

        def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> None:
            if stream is None and graph.default_capture_stream is None:
                graph.default_capture_stream = sim.new_stream()
            self.stream: Any = stream or graph.default_capture_stream
            self.cuda_graph, self.pool, self.mode = cuda_graph, pool, capture_error_mode

        def __enter__(self) -> None:
            sim.synchronize()
            sim.flush()
            sim.flush_host()
            self.before = sim.current_stream()
            sim.set_stream(self.stream)
            self.cuda_graph.capture_begin(self.pool, self.mode)

        def __exit__(self, *error: object) -> None:
            try:
                self.cuda_graph.capture_end()
            finally:
                sim.set_stream(self.before)

    return CUDAGraph, graph
