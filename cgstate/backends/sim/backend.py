"""The simulated device behind the backend protocol. For the runtime, which knows it as a `base.Backend` and nothing more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from cgstate.backends.base import CaptureErrorMode, DeviceMemory, Footprint, Graph, MemoryPool, SegmentView, Stream
from cgstate.backends.sim.blocks import GENERAL, PoolId
from cgstate.backends.sim.device import SimDevice
from cgstate.backends.sim.errors import (
    CAPTURE_INVALIDATED,
    SimAcceleratorError,
    SimError,
    SimGeneratorError,
    SimInternalAssert,
    SimLibraryError,
    SimMemoryError,
    SimOutOfMemory,
    SimRecordingError,
    SimUnrecordable,
)
from cgstate.backends.sim.faults import Faults, faulted
from cgstate.backends.sim.graph import SimGraph
from cgstate.backends.sim.host import current_host
from cgstate.backends.sim.memory import ITEM_BYTES, SEGMENT_ROUND
from cgstate.backends.sim.pool import SimPool, allocating_from, views_of
from cgstate.backends.sim.releases import SimReleaseMark
from cgstate.backends.sim.streams import SimStream
from cgstate.backends.sim.tensor import SimTensor
from cgstate.backends.sim.values import (
    address,
    clone,
    is_torch_module,
    is_torch_tensor,
    leaves,
    storage,
    tensors_in,
    torch_autocasts,
    torch_records,
)
from cgstate.backends.undo import Step, UndoLog
from cgstate.errors import ConfigError, PoolRetired
from cgstate.lifecycle.states import FailureKind

if TYPE_CHECKING:
    from cgstate.backends.sim.recorder import Recorder

T = TypeVar("T")
H = TypeVar("H", SimStream, SimPool)


class SimBackend:
    """`base.Backend` on one simulated device.

    Attributes:
        sim: The device, for tests: its clock, its faults, its books.
        faults: The fault injector of the device.
    """

    name = "sim"

    def __init__(self, sim: SimDevice | None = None) -> None:
        self.sim = sim or SimDevice()
        self.faults: Faults = self.sim.faults
        handle = self.sim.current_handle

        def current_handle(index: int) -> int:
            return handle()

        self._current_handle = current_handle

    @property
    def device(self) -> str:
        """As `base.Backend.device`."""
        return self.sim.name

    # -- streams ------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """As `base.Backend.index`."""
        return self.sim.index

    @property
    def current_handle(self) -> Callable[[int], int]:
        """As `base.Backend.current_handle`; a backend has one device, whichever index is given."""
        return self._current_handle

    @faulted("current_stream")
    def current_stream(self) -> SimStream:
        """As `base.Backend.current_stream`."""
        return self.sim.current_stream()

    @faulted("capturing")
    def capturing(self) -> bool:
        """As `base.Backend.capturing`."""
        return self.sim.current_stream().queue.capture is not None

    @faulted("new_stream")
    def new_stream(self, *, exclusive: bool) -> SimStream:
        """As `base.Backend.new_stream`."""
        return self.sim.new_stream(exclusive=exclusive)

    @faulted("adopt_stream")
    def adopt_stream(self, stream: object) -> SimStream:
        """As `base.Backend.adopt_stream`."""
        return self._ours(stream, SimStream).adopted()

    def on_stream(self, stream: Stream) -> AbstractContextManager[None]:
        """As `base.Backend.on_stream`."""
        return self.sim.on_stream(self._ours(stream, SimStream))

    # -- memory -------------------------------------------------------------------------------------------------------

    @faulted("new_pool")
    def new_pool(self) -> SimPool:
        """As `base.Backend.new_pool`."""
        return self.sim.new_pool()

    @faulted("adopt_pool")
    def adopt_pool(self, pool_id: object) -> SimPool:
        """As `base.Backend.adopt_pool`."""
        if not (isinstance(pool_id, tuple) and self.sim.allocator.is_pool_id(pool_id)):
            raise ConfigError(f"not a pool id of {self.device}: {pool_id!r}")
        return SimPool(self.sim, pool_id, anchored=False)

    @faulted("prime_workspaces")
    def prime_workspaces(self, pool: MemoryPool, stream: Stream) -> None:
        """As `base.Backend.prime_workspaces`."""
        with self.allocating_from(pool, stream):
            self.sim.library.workspace()

    @contextmanager
    def allocating_from(self, pool: MemoryPool, stream: Stream) -> Iterator[None]:
        """As `base.Backend.allocating_from`."""
        with self.sim.on_stream(self._ours(stream, SimStream)), allocating_from(self._ours(pool, SimPool)):
            yield

    def serves_unrecorded(self, statics: object) -> bool:
        """As `base.Backend.serves_unrecorded`: torch code on plain CPU tensors takes memory of this device in a capture only."""
        found = list(tensors_in(statics))
        return all(isinstance(tensor, SimTensor) for tensor in found) and (bool(found) or "torch" not in sys.modules)

    @faulted("cached_segments")
    def cached_segments(self, stream: Stream) -> Sequence[SegmentView]:
        """As `base.Backend.cached_segments`."""
        handle = self._ours(stream, SimStream).handle
        return [segment for segment in views_of(self.sim, GENERAL) if segment.stream == handle]

    @faulted("hold")
    def hold(self, pool: MemoryPool, stream: Stream, nbytes: int) -> object:
        """As `base.Backend.hold`."""
        with self.allocating_from(pool, stream):
            return self.sim.empty(-(-nbytes // ITEM_BYTES))

    @faulted("clear_workspaces")
    def clear_workspaces(self) -> bool:
        """As `base.Backend.clear_workspaces`.

        A real allocator writes nothing into what is freed, so replays in flight that have a workspace baked in come out right. Here
        it is poisoned, and so they are waited for.
        """
        with self.sim.door.even_if_lost:
            self.sim.settle()
            self.sim.library.clear()
        return True

    @faulted("has_foreign_graphs")
    def has_foreign_graphs(self, ours: frozenset[Hashable]) -> bool:
        """As `base.Backend.has_foreign_graphs`."""
        allocator = self.sim.allocator
        with self.sim.door.even_if_lost:
            return any(
                size and allocator.use_count(pool_id) for pool_id, size in allocator.pool_bytes().items() if pool_id not in ours
            )

    def flush(self) -> int:
        """As `base.Backend.flush`."""
        return self.sim.flush()

    @faulted("mark_releases")
    def mark_releases(self) -> SimReleaseMark:
        """As `base.Backend.mark_releases`."""
        return self.sim.mark_releases()

    @faulted("allocated_bytes")
    def allocated_bytes(self) -> int:
        """As `base.Backend.allocated_bytes`."""
        return self.sim.allocated_bytes()

    @property
    def mebibyte(self) -> int:
        """As `base.Backend.mebibyte`."""
        return SEGMENT_ROUND * ITEM_BYTES // 2

    @faulted("device_memory")
    def device_memory(self) -> DeviceMemory:
        """As `base.Backend.device_memory`."""
        return DeviceMemory(self.sim.free_bytes(), self.sim.reserved_bytes())

    @faulted("footprint")
    def footprint(self) -> Footprint:
        """As `base.Backend.footprint`."""
        sim = self.sim
        return Footprint(
            stream=sim.current_handle(),
            generator=(self._generator_state(), sim.generator.capturing),
            capturing=sim.current_stream().queue.capture is not None,
            pools=self._pool_bytes(),
            reserved=sim.reserved_bytes(),
            allocated=sim.allocated_bytes(),
        )

    def _pool_bytes(self) -> dict[Hashable, int]:
        with self.sim.door.even_if_lost:
            return dict(self.sim.allocator.pool_bytes())

    # -- capture ------------------------------------------------------------------------------------------------------

    def allocating_mode(self) -> AbstractContextManager[None]:
        """As `base.Backend.allocating_mode`. New tensors of torch are made in the device's memory."""
        recorder = self.sim.recorder
        return _without_gradients() if recorder is None else _together(_without_gradients(), recorder.allocating())

    def recording_mode(self) -> AbstractContextManager[None]:
        """As `base.Backend.recording_mode`."""
        recorder = self.sim.recorder
        return _without_gradients() if recorder is None else _together(_without_gradients(), recorder.recording())

    def forget_casts(self) -> None:
        """As `base.Backend.forget_casts`: of torch."""
        if self.sim.recorder is not None:
            self.sim.recorder.forget_casts()

    @faulted("generator_mark")
    def generator_mark(self) -> Hashable:
        """As `base.Backend.generator_mark`: of the device's generator, and of torch's, which torch code draws from."""
        return self._generator_state()

    def _generator_state(self) -> Hashable:
        state, recorder = self.sim.generator.get_state(), self.sim.recorder
        return state.seed, state.offset, None if recorder is None else recorder.generator_mark()

    @faulted("keep_generator")
    def keep_generator(self, undo: UndoLog) -> None:
        """As `base.Backend.keep_generator`."""
        state = self.sim.generator.get_state()
        undo.always("restore the generator", self._step("restore the generator", lambda: self.sim.generator.set_state(state)))
        if self.sim.recorder is not None:
            restore = self.sim.recorder.keep_generator()
            undo.always("restore torch's generator", self._step("restore torch's generator", restore))

    @faulted("open_capture")
    def open_capture(self, pool: MemoryPool, stream: Stream, mode: CaptureErrorMode, undo: UndoLog) -> SimGraph:
        """As `base.Backend.open_capture`. A step called ``NAME`` can be made to fail as the call ``undo: NAME``."""
        sim = self.sim
        pool_id = self._ours(pool, SimPool).id
        target = self._ours(stream, SimStream)
        before = sim.current_stream()
        graph = SimGraph(sim)
        undo.on_failure("destroy the graph", self._step("destroy the graph", graph.discard))
        undo.always("restore the stream", self._step("restore the stream", lambda: sim.set_stream(before)))
        undo.on_failure("heal the generator", self._step("heal the generator", sim.generator.heal))
        undo.on_failure("release the pool", self._step("release the pool", graph.undo_pool_use))
        undo.on_failure("stop routing", self._step("stop routing", graph.undo_route))
        undo.on_failure("end the capture", self._step("end the capture", graph.undo_capture))
        sim.set_stream(target)
        with _typed(pool_id):
            graph.capture_begin(pool_id, mode)
        return graph

    def _step(self, name: str, act: Step) -> Step:
        def step() -> None:
            with self.faults.around(f"undo: {name}"), self.sim.door.even_if_lost:
                act()

        return step

    @faulted("close_capture")
    def close_capture(self, graph: Graph) -> None:
        """As `base.Backend.close_capture`."""
        if not isinstance(graph, SimGraph) or graph.device is not self.sim:
            raise ConfigError(f"not a graph of {self.device}: {graph!r}")
        if graph.stream is not None:
            self.sim.set_stream(graph.stream)  # the work may have left another one current
        graph.capture_end()

    def failure_kind(self, error: BaseException) -> FailureKind | None:
        """As `base.Backend.failure_kind`.

        An invalidated capture (901) is FOREIGN, unless its cause is what the capturing thread itself was refused.
        """
        match error:
            case SimOutOfMemory():
                return FailureKind.OOM
            case SimMemoryError():
                return FailureKind.DEVICE
            case SimAcceleratorError() if error.sticky:
                return FailureKind.DEVICE
            case SimAcceleratorError(error_code=code) if code == CAPTURE_INVALIDATED:
                return FailureKind.REJECTED if isinstance(error.__cause__, SimError) else FailureKind.FOREIGN
            case SimGeneratorError() | SimRecordingError():
                return FailureKind.FOREIGN  # somebody else's capture is open
            case SimAcceleratorError() | SimLibraryError() | SimInternalAssert() | SimUnrecordable():
                return FailureKind.REJECTED
        return None

    @faulted("lost")
    def lost(self) -> BaseException | None:
        """As `base.Backend.lost`. While a capture is open it does not wait."""
        with self.sim.door.even_if_lost:
            self.sim.settle()
            return self.sim.door.error

    # -- values -------------------------------------------------------------------------------------------------------

    def check_static(self, value: object) -> None:
        """As `base.Backend.check_static`: tensors of other libraries are computed while capturing, and never again."""
        for part in leaves(value):
            if is_torch_tensor(part):
                self._recorder().check_static(part)
            elif not isinstance(part, SimTensor) and hasattr(part, "shape") and hasattr(part, "dtype"):
                kind = f"{type(part).__module__}.{type(part).__qualname__}"
                raise ConfigError(f"the simulator runs simulated kernels and torch, and was given a {kind}")

    @property
    def tensor(self) -> type:
        """As `base.Backend.tensor`."""
        return SimTensor

    @faulted("clone")
    def clone(self, output: T) -> T:
        """As `base.Backend.clone`."""
        return clone(output)

    def address(self, tensor: object) -> int:
        """As `base.Backend.address`."""
        return address(tensor)

    def storage(self, tensor: object) -> object:
        """As `base.Backend.storage`."""
        return storage(tensor)

    def storages(self, value: object) -> dict[Hashable, int]:
        """As `base.Backend.storages`."""
        sizes: dict[Hashable, int] = {}
        for tensor in tensors_in(value):
            if isinstance(tensor, SimTensor):
                sizes[id(tensor.storage)] = tensor.storage.nbytes
            else:
                storage = tensor.untyped_storage()
                sizes[storage._cdata] = storage.nbytes()
        return sizes

    def nbytes(self, value: object) -> int:
        """As `base.Backend.nbytes`."""
        return sum(self.storages(value).values())

    def place(self, value: T) -> T:
        """A copy of a torch tensor in the device's memory; or a module whose parameters and buffers were moved there.

        For what torch code and graphs share: a plain CPU tensor is memory outside the device, which the host writes at once and
        not in stream order, so that a graph that touches one that is no parameter has run when its launch returns.

        Raises:
            ConfigError: neither a tensor nor a module of torch; or a tensor that is no plain CPU tensor.
            SimAcceleratorError: 900, in a capture, which is broken by it; or the sticky error of a lost context.
            SimOutOfMemory: no memory for it. Of a module nothing was moved then.
        """
        if is_torch_tensor(value) or is_torch_module(value):
            return cast(T, self._recorder().place(value))
        raise ConfigError(f"only tensors and modules of torch can be placed on {self.device}, not {value!r}")

    def _recorder(self) -> Recorder:
        recorder = self.sim.recorder
        assert recorder is not None, "there are no tensors of torch without torch"
        return recorder

    def grad_enabled(self) -> bool:
        """As `base.Backend.grad_enabled`: of the simulated tensors, or of torch."""
        return current_host().grad_enabled or torch_records()

    def autocasting(self) -> bool:
        """As `base.Backend.autocasting`: of torch, whose operations run on the CPU here."""
        return torch_autocasts()

    def autocast(self) -> Hashable:
        """As `base.Backend.autocast`."""
        return self._recorder().autocast() if torch_autocasts() else None

    def requires_grad(self, values: object) -> bool:
        """As `base.Backend.requires_grad`."""
        simulated, of_torch = current_host().grad_enabled, torch_records()
        for tensor in tensors_in(values):
            if tensor.requires_grad and (simulated if isinstance(tensor, SimTensor) else of_torch):
                return True
        return False

    def _ours(self, handle: object, kind: type[H]) -> H:
        if isinstance(handle, kind) and handle.device is self.sim:
            return handle
        raise ConfigError(f"not a {kind.__name__} of {self.device}: {handle!r}")


@contextmanager
def _together(first: AbstractContextManager[None], second: AbstractContextManager[None]) -> Iterator[None]:
    with first, second:
        yield


@contextmanager
def _typed(pool_id: PoolId) -> Iterator[None]:
    """Say of a latched pool what it is (fact P1)."""
    try:
        yield
    except SimInternalAssert as error:
        raise PoolRetired("pool", str(pool_id), "RETIRED", "begin", "its owner keeps it open") from error


@contextmanager
def _without_gradients() -> Iterator[None]:
    host = current_host()
    before, host.grad_enabled = host.grad_enabled, False
    try:
        yield
    finally:
        host.grad_enabled = before
