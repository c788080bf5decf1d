"""One CUDA device through torch, behind the backend protocol. The runtime knows it as a `base.Backend` and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import cast

import torch

from cgstate.backends import autocast
from cgstate.backends.base import CaptureErrorMode, DeviceMemory, Footprint, Graph, MemoryPool, SegmentView, Stream
from cgstate.backends.cuda import capture, failures, generator, pools, probe, workspaces
from cgstate.backends.cuda import values as nested
from cgstate.backends.cuda.driver import driver
from cgstate.backends.cuda.graphs import CudaGraph
from cgstate.backends.cuda.pools import AnyPool, CudaPool, ForeignPool
from cgstate.backends.cuda.releases import CudaReleaseMark
from cgstate.backends.cuda.streams import CudaStream, current_handle, new_exclusive, status_of
from cgstate.backends.undo import UndoLog
from cgstate.errors import CaptureActive, ConfigError


class CudaBackend:
    """`base.Backend` on one CUDA device.

    Args:
        device: Index, name (``cuda``, ``cuda:1``), or None for the current device.

    Raises:
        ConfigError: no such device, or a torch that lacks what `probe.NAMES` asks for.
        CaptureActive: the current stream is being captured.
    """

    name = "cuda"
    capturing: Callable[[], bool]
    """As `base.Backend.capturing`; on the path of every call."""

    def __init__(self, device: int | str | None = None) -> None:
        self._index = index = _index_of(device)
        lacking = probe.missing()
        if lacking:
            names = ", ".join(name.path for name in lacking)
            raise ConfigError(f"torch {torch.__version__} lacks what the CUDA backend needs: {names}")
        driver()
        torch.cuda.init()
        if status_of(current_handle(index), index):
            raise CaptureActive("manager", self.device, "NEW", "open the device", "the current stream is not capturing")
        # Made now, so that no capture seems to leave them behind.
        generator.cell(index)
        generator.register(index)
        self._current_handle: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        # torch asks the current device's current stream; with one device that is ours.
        self.capturing = torch._C._cuda_isCurrentStreamCapturing if torch.cuda.device_count() == 1 else self._capturing

    @property
    def device(self) -> str:
        """As `base.Backend.device`."""
        return f"cuda:{self._index}"

    # -- streams ------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """As `base.Backend.index`."""
        return self._index

    @property
    def current_handle(self) -> Callable[[int], int]:
        """As `base.Backend.current_handle`."""
        return self._current_handle

    def current_stream(self) -> CudaStream:
        """As `base.Backend.current_stream`."""
        return CudaStream.current(self._index)

    def _capturing(self) -> bool:
        if torch._C._cuda_getDevice() == self._index:
            return torch._C._cuda_isCurrentStreamCapturing()
        return bool(status_of(self._current_handle(self._index), self._index))

    def new_stream(self, *, exclusive: bool) -> CudaStream:
        """As `base.Backend.new_stream`."""
        if exclusive:
            return new_exclusive(self._index)
        return CudaStream(torch.cuda.Stream(self._index), self._index)

    def adopt_stream(self, stream: object) -> CudaStream:
        """As `base.Backend.adopt_stream`. The default stream is refused too: it cannot be captured."""
        match stream:
            case CudaStream(index=self._index):
                adopted = stream
            case torch.cuda.Stream() if stream.device.index == self._index:
                adopted = CudaStream(stream, self._index)
            case _:
                raise ConfigError(f"not a stream of {self.device}: {stream!r}")
        if not adopted.handle:
            raise ConfigError(f"the default stream of {self.device} cannot be captured; make a torch.cuda.Stream()")
        return adopted

    def on_stream(self, stream: Stream) -> AbstractContextManager[None]:
        """As `base.Backend.on_stream`."""
        return torch.cuda.stream(self._stream(stream).torch_stream)

    # -- memory -------------------------------------------------------------------------------------------------------

    def new_pool(self) -> CudaPool:
        """As `base.Backend.new_pool`."""
        return CudaPool(self._index)

    def adopt_pool(self, pool_id: object) -> ForeignPool:
        """As `base.Backend.adopt_pool`. A `torch.cuda.MemPool` is taken as well; only then is the use count known."""
        return ForeignPool(pool_id, self._index)

    def prime_workspaces(self, pool: MemoryPool, stream: Stream) -> None:
        """As `base.Backend.prime_workspaces`. In the thread that captures: every host thread has workspaces of its own."""
        workspaces.prime(self._pool(pool), self._stream(stream))

    @contextmanager
    def allocating_from(self, pool: MemoryPool, stream: Stream) -> Iterator[None]:
        """As `base.Backend.allocating_from`."""
        mem_pool = self._pool(pool).mem_pool
        with torch.cuda.stream(self._stream(stream).torch_stream):
            with nullcontext() if mem_pool is None else torch.cuda.use_mem_pool(mem_pool, self._index):
                yield

    def serves_unrecorded(self, statics: object) -> bool:
        """As `base.Backend.serves_unrecorded`: all work does."""
        return True

    def cached_segments(self, stream: Stream) -> Sequence[SegmentView]:
        """As `base.Backend.cached_segments`."""
        handle = self._stream(stream).handle
        return [segment for segment in pools.views_of(pools.SHARED_ID, self._index) if segment.stream == handle]

    def hold(self, pool: MemoryPool, stream: Stream, nbytes: int) -> object:
        """As `base.Backend.hold`. Nothing is allocated in a host engine's pool of which only the id is known."""
        if self._pool(pool).mem_pool is None:
            return None
        with self.allocating_from(pool, stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def clear_workspaces(self) -> bool:
        """As `base.Backend.clear_workspaces`."""
        return workspaces.clear(self._index)

    def has_foreign_graphs(self, ours: frozenset[Hashable]) -> bool:
        """As `base.Backend.has_foreign_graphs`. A graph whose pool holds no byte is not seen."""
        return pools.has_others(self._index, ours)

    def flush(self) -> int:
        """As `base.Backend.flush`. Nothing returns from a lost device, and that is no error here."""
        before = self._counted("reserved_bytes")
        try:
            torch.cuda.empty_cache()
        except RuntimeError as error:
            if failures.note(self._index, error):
                return 0
            raise
        return max(0, before - self._counted("reserved_bytes"))

    def mark_releases(self) -> CudaReleaseMark:
        """As `base.Backend.mark_releases`. Waits for the end of a capture of ours on another device, rather than break it."""
        return CudaReleaseMark(self._index)

    def allocated_bytes(self) -> int:
        """As `base.Backend.allocated_bytes`."""
        return self._counted("allocated_bytes")

    def _counted(self, what: str) -> int:
        counts = torch.cuda.memory_stats_as_nested_dict(self._index)  # `memory_allocated` makes a flat copy of all first
        return int(counts[what]["all"]["current"]) if counts else 0

    @property
    def mebibyte(self) -> int:
        """As `base.Backend.mebibyte`."""
        return 1 << 20

    def device_memory(self) -> DeviceMemory:
        """As `base.Backend.device_memory`."""
        free, _ = torch.cuda.mem_get_info(self._index)
        return DeviceMemory(free, self._counted("reserved_bytes"))

    def footprint(self) -> Footprint:
        """As `base.Backend.footprint`."""
        return Footprint(
            stream=self._current_handle(self._index),
            generator=self.generator_mark(),
            capturing=self.capturing(),
            pools=pools.reserved_by_pool(self._index),
            reserved=self._counted("reserved_bytes"),
            allocated=self.allocated_bytes(),
        )

    # -- capture ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _allocating_mode(self) -> Iterator[None]:
        with torch.inference_mode(False), torch.no_grad():
            yield

    def allocating_mode(self) -> AbstractContextManager[None]:
        """As `base.Backend.allocating_mode`."""
        return self._allocating_mode()

    def generator_mark(self) -> Hashable:
        """As `base.Backend.generator_mark`."""
        return generator.mark(self._index)

    def keep_generator(self, undo: UndoLog) -> None:
        """As `base.Backend.keep_generator`."""
        generator.keep(self._index, undo)

    @contextmanager
    def _recording_mode(self) -> Iterator[None]:
        with torch.no_grad(), autocast.without_cache():
            yield

    def recording_mode(self) -> AbstractContextManager[None]:
        """As `base.Backend.recording_mode`."""
        return self._recording_mode()

    forget_casts = staticmethod(autocast.forget)

    def open_capture(self, pool: MemoryPool, stream: Stream, mode: CaptureErrorMode, undo: UndoLog) -> CudaGraph:
        """As `base.Backend.open_capture`; see `capture.open_capture` for what it refuses."""
        return capture.open_capture(self._pool(pool), self._stream(stream), mode, undo)

    def close_capture(self, graph: Graph) -> None:
        """As `base.Backend.close_capture`. Waits for the capture stream."""
        if not isinstance(graph, CudaGraph):
            raise ConfigError(f"not a graph of {self.device}: {graph!r}")
        capture.close_capture(graph)

    failure_kind = staticmethod(failures.failure_kind)

    def check_static(self, value: object) -> None:
        """As `base.Backend.check_static`. A capture that left the device has been refused by CUDA already."""

    @property
    def tensor(self) -> type:
        """As `base.Backend.tensor`."""
        return torch.Tensor

    def lost(self) -> BaseException | None:
        """As `base.Backend.lost`. While a capture is open it only asks, since waiting would break that."""
        return failures.lost(self._index)

    # -- values -------------------------------------------------------------------------------------------------------

    # As of the same names in `base.Backend`; without a frame of their own, since the first three are on the path of every call.
    clone = staticmethod(nested.clone)
    grad_enabled = staticmethod(torch.is_grad_enabled)
    autocasting = staticmethod(cast("Callable[[], bool]", torch.is_autocast_enabled))  # CUDA's: to name it takes twice as long
    autocast = staticmethod(partial(autocast.dtype_of, "cuda"))
    requires_grad = staticmethod(nested.requires_grad)
    storages = staticmethod(nested.storages)
    nbytes = staticmethod(nested.nbytes)

    address = staticmethod(nested.address)
    storage = staticmethod(nested.storage)

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _stream(self, stream: Stream) -> CudaStream:
        if isinstance(stream, CudaStream) and stream.index == self._index:
            return stream
        raise ConfigError(f"not a stream of {self.device}: {stream!r}")

    def _pool(self, pool: MemoryPool) -> AnyPool:
        if isinstance(pool, CudaPool | ForeignPool) and pool.index == self._index:
            return pool
        raise ConfigError(f"not a pool of {self.device}: {pool!r}")


def _index_of(device: int | str | None) -> int:
    if not torch.cuda.is_available():
        built = "" if torch.backends.cuda.is_built() else f"; torch {torch.__version__} is built without CUDA"
        raise ConfigError(f"no CUDA device{built}")
    if device is None:
        return torch.cuda.current_device()
    try:
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"not a CUDA device: {device!r}") from error
    index = torch.cuda.current_device() if named.index is None else named.index
    if named.type != "cuda" or not 0 <= index < torch.cuda.device_count():
        raise ConfigError(f"no such CUDA device: {device!r}; there are {torch.cuda.device_count()}")
    return index
