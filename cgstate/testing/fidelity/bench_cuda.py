"""A GPU as a bench, through torch as it is: nothing is healed, nothing is put off.

torch aborts the process from the destructors of pools and graphs that a failed capture has touched. So they are never destroyed
here, unless a program says so; and a process that ran programs had best end by ``os._exit``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar, cast

import torch

from cgstate.backends.base import CaptureErrorMode, Stream
from cgstate.backends.cuda import CudaBackend
from cgstate.backends.cuda.immortal import immortalise
from cgstate.backends.cuda.pools import PoolId, segments
from cgstate.backends.cuda.streams import CudaStream
from cgstate.testing.fidelity.bench import OwnedPool, RawGraph
from cgstate.testing.fidelity.errors import ErrorName, by_phrase

R = TypeVar("R")

UNIT = 1 << 20
_ITEM_BYTES = 8
_SLOW_CYCLES = 400_000_000
"""About 0.2 s."""
_PRODUCT_SIDE = 32
_PRODUCT_DEPTH = 4096
"""A long and thin product: the library splits its inner dimension, and adds the parts up in its workspace."""


class CudaRawGraph:
    """``torch.cuda.CUDAGraph``, as `bench.RawGraph` wants it.

    Attributes:
        pool_id: As `bench.RawGraph.pool_id`; noted when a capture begins, since torch tells only after one that went well.
    """

    def __init__(self) -> None:
        self.torch_graph = torch.cuda.CUDAGraph()
        self.pool_id: PoolId | None = None
        immortalise(self.torch_graph)

    def replay(self) -> None:
        """As `bench.RawGraph.replay`."""
        self.torch_graph.replay()

    def reset(self) -> None:
        """As `bench.RawGraph.reset`."""
        self.torch_graph.reset()


class CudaOwnedPool:
    """A ``torch.cuda.MemPool``, as `bench.OwnedPool` wants it; `drop` destroys it, as torch does when nobody holds it any more."""

    def __init__(self) -> None:
        self.mem_pool: torch.cuda.MemPool | None = torch.cuda.MemPool()
        self.id: PoolId = self.mem_pool.id
        immortalise(self.mem_pool)

    def use_count(self) -> int:
        """As `bench.OwnedPool.use_count`."""
        return 0 if self.mem_pool is None else self.mem_pool.use_count()

    def drop(self) -> None:
        """Let the owner go, by its destructor."""
        pool, self.mem_pool = self.mem_pool, None
        if pool is not None:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(pool))


class CudaBench:
    """`bench.Bench` on the current CUDA device.

    Raises:
        ConfigError: there is none, or torch lacks what the CUDA backend needs.
    """

    unit = UNIT

    def __init__(self) -> None:
        self.backend = CudaBackend()
        self._index = self.backend.index
        self._device = torch.device("cuda", self._index)

    # -- tensors ------------------------------------------------------------------------------------------------------

    def full(self, units: float, value: float) -> torch.Tensor:
        """As `Bench.full`."""
        return torch.full((round(units * UNIT) // _ITEM_BYTES,), value, dtype=torch.float64, device=self._device)

    def add(self, x: torch.Tensor, value: float) -> torch.Tensor:
        """As `Bench.add`."""
        return x + value

    def add_(self, x: torch.Tensor, value: float) -> None:
        """As `Bench.add_`."""
        x.add_(value)

    def sum_(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """As `Bench.sum_`."""
        x.add_(y)

    def copy_(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As `Bench.copy_`."""
        target.copy_(source)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """As `Bench.product`."""
        long = x.view(-1)[: _PRODUCT_SIDE * _PRODUCT_DEPTH].view(_PRODUCT_SIDE, _PRODUCT_DEPTH)
        return torch.mm(long, long.t()).mul_(1 / _PRODUCT_DEPTH)

    def draw(self, count: int) -> torch.Tensor:
        """As `Bench.draw`."""
        return torch.rand(count, dtype=torch.float64, device=self._device)

    def item(self, x: torch.Tensor) -> float:
        """As `Bench.item`."""
        return float(x.view(-1)[0].item())

    def values(self, x: torch.Tensor) -> tuple[float, ...]:
        """As `Bench.values`. Compared on the host, so that no memory of the device is taken for it."""
        return tuple(torch.unique(x.cpu()).tolist()[:8])

    def equal(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """As `Bench.equal`; on the host, too."""
        return torch.equal(x.cpu(), y.cpu())

    def address(self, x: torch.Tensor) -> int:
        """As `Bench.address`."""
        return x.data_ptr()

    def slow(self) -> None:
        """As `Bench.slow`."""
        torch.cuda._sleep(_SLOW_CYCLES)

    def fault(self) -> None:
        """As `Bench.fault`."""
        table = torch.zeros(4, device=self._device)
        table[torch.full((1,), 9, device=self._device)]

    def seed(self, seed: int) -> None:
        """As `Bench.seed`."""
        torch.cuda.manual_seed(seed)

    # -- streams ------------------------------------------------------------------------------------------------------

    def framework_stream(self) -> Stream:
        """As `Bench.framework_stream`."""
        return self.backend.new_stream(exclusive=False)

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """As `Bench.on`."""
        return self.backend.on_stream(stream)

    def synchronize(self) -> None:
        """As `Bench.synchronize`."""
        torch.cuda.synchronize(self._device)

    # -- pools and graphs, raw ----------------------------------------------------------------------------------------

    def pool_handle(self) -> PoolId:
        """As `Bench.pool_handle`."""
        first, second = torch.cuda.graph_pool_handle()
        return first, second

    def owned_pool(self) -> CudaOwnedPool:
        """As `Bench.owned_pool`."""
        return CudaOwnedPool()

    def drop_pool(self, pool: OwnedPool) -> None:
        """As `Bench.drop_pool`."""
        cast(CudaOwnedPool, pool).drop()

    def allocating_from(self, pool: OwnedPool) -> AbstractContextManager[None]:
        """As `Bench.allocating_from`."""
        owned = cast(CudaOwnedPool, pool).mem_pool
        if owned is None:
            raise ValueError("this pool was dropped")
        return torch.cuda.use_mem_pool(owned, self._index)

    def graph(self) -> CudaRawGraph:
        """As `Bench.graph`."""
        return CudaRawGraph()

    def capture(
        self,
        graph: RawGraph,
        body: Callable[[], R],
        *,
        stream: Stream,
        pool: Hashable | None = None,
        mode: CaptureErrorMode = CaptureErrorMode.global_,
        bare: bool = False,
    ) -> R:
        """As `Bench.capture`. A capture without a pool gets a new one from here, so that its id is known if it fails."""
        pool_id = self.pool_handle() if pool is None else cast(PoolId, pool)
        raw = cast(CudaRawGraph, graph)
        raw.pool_id = pool_id
        torch_stream = cast(CudaStream, stream).torch_stream
        if bare:
            with torch.cuda.stream(torch_stream):
                raw.torch_graph.capture_begin(pool_id, capture_error_mode=mode.value)  # type: ignore[arg-type]
                try:
                    return body()
                finally:
                    raw.torch_graph.capture_end()
        with torch.cuda.graph(raw.torch_graph, pool_id, torch_stream, mode.value):  # type: ignore[arg-type]
            return body()

    def release_recording(self, graph: RawGraph) -> None:
        """As `Bench.release_recording`."""
        pool_id = cast(PoolId, graph.pool_id)
        with suppress(RuntimeError):  # not recording any more: then only the use is left
            torch._C._cuda_endAllocateToPool(self._index, pool_id)
        torch._C._cuda_releasePool(self._index, pool_id)

    def heal_generator(self) -> None:
        """As `Bench.heal_generator`."""
        generator = torch.cuda.default_generators[self._index]
        generator.graphsafe_set_state(generator.clone_state())

    def restore_stream(self) -> None:
        """As `Bench.restore_stream`."""
        torch.cuda.set_stream(torch.cuda.default_stream(self._index))

    # -- memory -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """As `Bench.flush`."""
        torch.cuda.empty_cache()

    def clear_workspaces(self) -> None:
        """As `Bench.clear_workspaces`."""
        torch._C._cuda_clearCublasWorkspaces()

    def pools(self) -> Mapping[Hashable, Mapping[int, int]]:
        """As `Bench.pools`."""
        found: dict[Hashable, dict[int, int]] = {}
        for segment in segments(self._index):
            pool_id = tuple(segment["segment_pool_id"])
            if pool_id != (0, 0):
                by_stream = found.setdefault(pool_id, {})
                handle = int(segment["stream"])
                by_stream[handle] = by_stream.get(handle, 0) + int(segment["total_size"])
        return found

    def reserved(self) -> int:
        """As `Bench.reserved`."""
        return torch.cuda.memory_reserved(self._index)

    def allocated(self) -> int:
        """As `Bench.allocated`."""
        return torch.cuda.memory_allocated(self._index)

    def free(self) -> int:
        """As `Bench.free`."""
        return torch.cuda.mem_get_info(self._index)[0]

    @contextmanager
    def occupy(self, leave_units: float) -> Iterator[None]:
        """As `Bench.occupy`: a limit of this process, which the allocator answers in the same way."""
        total = torch.cuda.get_device_properties(self._index).total_memory
        limit = self.reserved() + round(leave_units * UNIT)
        torch.cuda.set_per_process_memory_fraction((limit + UNIT // 2) / total, self._index)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self._index)

    # -- errors -------------------------------------------------------------------------------------------------------

    def error_name(self, error: BaseException) -> str:
        """As `Bench.error_name`."""
        if isinstance(error, torch.OutOfMemoryError):
            return ErrorName.out_of_memory
        code = getattr(error, "error_code", None)
        if isinstance(error, RuntimeError) and isinstance(code, int):
            return f"device error {code}"
        return by_phrase(error)
