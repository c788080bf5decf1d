"""The simulator as a bench."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar, cast

from cgstate.backends.base import CaptureErrorMode, Stream
from cgstate.backends.sim import (
    Schedule,
    SimBackend,
    SimConfig,
    SimDevice,
    SimGraph,
    SimPool,
    SimStream,
    SimTensor,
    allocating_from,
    graph_scope,
    kernels,
)
from cgstate.backends.sim.blocks import PoolId
from cgstate.backends.sim.errors import (
    SimAcceleratorError,
    SimGeneratorError,
    SimInternalAssert,
    SimLibraryError,
    SimMemoryError,
    SimOutOfMemory,
    SimRecordingError,
)
from cgstate.backends.sim.memory import ITEM_BYTES
from cgstate.testing.fidelity.bench import OwnedPool, RawGraph
from cgstate.testing.fidelity.errors import ErrorName, by_phrase

R = TypeVar("R")

UNIT = 1024
_CELLS = UNIT // ITEM_BYTES
_SIDE = 2


class SimRawGraph:
    """A graph of the simulated device, as `bench.RawGraph` wants it."""

    def __init__(self, device: SimDevice) -> None:
        self.sim = SimGraph(device)

    @property
    def pool_id(self) -> PoolId | None:
        """As `bench.RawGraph.pool_id`."""
        return self.sim.pool_id

    def replay(self) -> None:
        """As `bench.RawGraph.replay`."""
        self.sim.replay()

    def reset(self) -> None:
        """As `bench.RawGraph.reset`."""
        self.sim.destroy()


class _SimOwnedPool(SimPool):
    """Held in the device's allocator, and not in that of pinned host memory (fact P1)."""

    def __init__(self, device: SimDevice) -> None:
        super().__init__(device, device.pool_handle(), anchored=False)
        self._owned = True
        with device.door:
            device.allocator.retain(self.id)

    def drop(self) -> None:
        """Let the owner go. Waits for the device (fact S3), and returns the pool's memory if nothing else holds the pool."""
        with self.device.door.even_if_lost:
            if self._owned:
                self._owned = False
                self.device.settle()
                self.device.allocator.release(self.id)
                self.device.allocator.return_pool(self.id)


class SimBench:
    """`bench.Bench` on a simulated device of its own."""

    unit = UNIT

    def __init__(self, config: SimConfig | None = None, schedule: Schedule | None = None) -> None:
        """Without a ``config``: as silent as the hardware where memory is used that was given back."""
        self.device = SimDevice(config or SimConfig(sanitize=False), schedule)
        self.backend = SimBackend(self.device)
        self._kept: list[object] = [self.device.zeros(1)]  # the CUDA backend keeps one as well, and so one small segment

    # -- tensors ------------------------------------------------------------------------------------------------------

    def full(self, units: float, value: float) -> SimTensor:
        """As `Bench.full`."""
        return self.device.empty(round(units * _CELLS)).fill_(value)

    def add(self, x: SimTensor, value: float) -> SimTensor:
        """As `Bench.add`."""
        out = x.new_empty(x.shape)
        self.device.launch("add", lambda values: ([each + value for each in values],), (x,), (out,))
        return out

    def add_(self, x: SimTensor, value: float) -> None:
        """As `Bench.add_`."""
        self.device.launch("add_", lambda values: ([each + value for each in values],), (x,), (x,))

    def sum_(self, x: SimTensor, y: SimTensor) -> None:
        """As `Bench.sum_`."""
        self.device.launch("sum_", lambda a, b: ([p + q for p, q in zip(a, b, strict=True)],), (x, y), (x,))

    def copy_(self, target: SimTensor, source: SimTensor) -> None:
        """As `Bench.copy_`."""
        target.copy_(source)

    def product(self, x: SimTensor) -> SimTensor:
        """As `Bench.product`."""
        square = x.narrow(0, 0, _SIDE * _SIDE).reshape(_SIDE, _SIDE)
        product = kernels.matmul(square, square)
        self.device.launch("mul_", lambda values: ([each / _SIDE for each in values],), (product,), (product,))
        return product

    def draw(self, count: int) -> SimTensor:
        """As `Bench.draw`."""
        return self.device.rand(count)

    def item(self, x: SimTensor) -> float:
        """As `Bench.item`."""
        return x.reshape(x.numel()).narrow(0, 0, 1).item()

    def values(self, x: SimTensor) -> tuple[float, ...]:
        """As `Bench.values`."""
        return tuple(sorted(set(_flat(x)))[:8])

    def equal(self, x: SimTensor, y: SimTensor) -> bool:
        """As `Bench.equal`."""
        return _flat(x) == _flat(y)

    def address(self, x: SimTensor) -> int:
        """As `Bench.address`."""
        return x.data_ptr()

    def slow(self) -> None:
        """As `Bench.slow`: by the schedule of a bench, nothing runs until somebody waits."""
        self.device.launch("slow", lambda: (), (), ())

    def fault(self) -> None:
        """As `Bench.fault`."""
        kernels.embedding(self.device.empty(1).fill_(7.0), self.device.zeros(3, 2))

    def seed(self, seed: int) -> None:
        """As `Bench.seed`."""
        self.device.manual_seed(seed)

    # -- streams ------------------------------------------------------------------------------------------------------

    def framework_stream(self) -> SimStream:
        """As `Bench.framework_stream`."""
        return self.device.new_stream()

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """As `Bench.on`."""
        return self.backend.on_stream(stream)

    def synchronize(self) -> None:
        """As `Bench.synchronize`."""
        self.device.synchronize()

    # -- pools and graphs, raw ----------------------------------------------------------------------------------------

    def pool_handle(self) -> PoolId:
        """As `Bench.pool_handle`."""
        return self.device.pool_handle()

    def owned_pool(self) -> _SimOwnedPool:
        """As `Bench.owned_pool`."""
        return _SimOwnedPool(self.device)

    def drop_pool(self, pool: OwnedPool) -> None:
        """As `Bench.drop_pool`."""
        cast(_SimOwnedPool, pool).drop()

    def allocating_from(self, pool: OwnedPool) -> AbstractContextManager[None]:
        """As `Bench.allocating_from`."""
        return allocating_from(cast(_SimOwnedPool, pool))

    def graph(self) -> SimRawGraph:
        """As `Bench.graph`. It lives as long as the bench: what is not reset is not destroyed, either."""
        graph = SimRawGraph(self.device)
        self._kept.append(graph)
        return graph

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
        """As `Bench.capture`."""
        sim, pool_id = cast(SimRawGraph, graph).sim, cast("PoolId | None", pool)
        if bare:
            with self.on(stream):
                sim.capture_begin(pool_id, mode)
                try:
                    return body()
                finally:
                    sim.capture_end()
        with graph_scope(sim, stream=cast(SimStream, stream), pool=pool_id, mode=mode):
            return body()

    def release_recording(self, graph: RawGraph) -> None:
        """As `Bench.release_recording`."""
        with self.device.door:
            cast(SimRawGraph, graph).sim.undo_on_device_only()

    def heal_generator(self) -> None:
        """As `Bench.heal_generator`."""
        self.device.generator.heal()

    def restore_stream(self) -> None:
        """As `Bench.restore_stream`."""
        self.device.set_stream(self.device.default_stream)

    # -- memory -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """As `Bench.flush`."""
        self.device.flush()

    def clear_workspaces(self) -> None:
        """As `Bench.clear_workspaces`."""
        self.device.library.clear()

    def pools(self) -> Mapping[Hashable, Mapping[int, int]]:
        """As `Bench.pools`."""
        with self.device.door.even_if_lost:
            allocator = self.device.allocator
            return {id_: allocator.bytes_by_stream(id_) for id_, size in allocator.pool_bytes().items() if size}

    def reserved(self) -> int:
        """As `Bench.reserved`."""
        return self.device.reserved_bytes()

    def allocated(self) -> int:
        """As `Bench.allocated`."""
        return self.device.allocated_bytes()

    def free(self) -> int:
        """As `Bench.free`."""
        return self.device.free_bytes()

    @contextmanager
    def occupy(self, leave_units: float) -> Iterator[None]:
        """As `Bench.occupy`."""
        memory = self.device.memory
        before = memory.foreign_bytes
        memory.foreign_bytes += memory.free_bytes() - round(leave_units * UNIT)
        try:
            yield
        finally:
            memory.foreign_bytes = before

    # -- errors -------------------------------------------------------------------------------------------------------

    def error_name(self, error: BaseException) -> str:
        """As `Bench.error_name`."""
        match error:
            case SimOutOfMemory():
                return ErrorName.out_of_memory
            case SimAcceleratorError(error_code=code):
                return f"device error {code}"
            case SimInternalAssert():
                return ErrorName.internal_assert
            case SimRecordingError():
                return ErrorName.already_recording
            case SimGeneratorError():
                return ErrorName.generator_in_capture
            case SimLibraryError():
                return ErrorName.library
            case SimMemoryError():
                return "use of memory that was given back"
        return by_phrase(error)


def _flat(x: SimTensor) -> list[float]:
    whole = x.reshape(x.numel()).tolist()
    assert isinstance(whole, list)
    return cast("list[float]", whole)
