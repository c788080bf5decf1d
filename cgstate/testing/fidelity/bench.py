"""What a fact program may do to a device: one small vocabulary, spoken by the simulator and by a GPU.

Facts are about what the framework does by itself, so much of this goes round `base.Backend`, which would put things right: raw
graphs with the manners of ``torch.cuda.graph``, pools that nothing anchors, clears that nobody asked the owners of. Sizes are in
units: a unit is a MiB on a GPU and, by `memory.SCALE`, a KiB on the simulator, so that both report the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from cgstate.backends.base import Backend, CaptureErrorMode, Stream

T = TypeVar("T")
R = TypeVar("R")


class RawGraph(Protocol):
    """A graph as the framework has it: nothing is healed, nothing is put off."""

    @property
    def pool_id(self) -> Hashable:
        """The pool it was captured into; None before that."""
        ...

    def replay(self) -> None:
        """Launch on the current stream."""
        ...

    def reset(self) -> None:
        """Free the recording, at once."""
        ...


class OwnedPool(Protocol):
    """A pool with an owner: what ``torch.cuda.MemPool`` is (fact P3)."""

    @property
    def id(self) -> Hashable:
        """The id that the allocator knows it by."""
        ...

    def use_count(self) -> int:
        """How many hold it open, the owner included; 0 when that has gone."""
        ...


class Bench(Protocol[T]):
    """A device to run programs on. T is its tensor type; values are those of float64."""

    @property
    def backend(self) -> Backend:
        """The same device for programs about what the library makes of it."""
        ...

    @property
    def unit(self) -> int:
        """Bytes that are reported as 1."""
        ...

    # -- tensors ------------------------------------------------------------------------------------------------------

    def full(self, units: float, value: float) -> T:
        """A fresh tensor of ``units`` units, filled by a kernel of the current stream."""
        ...

    def add(self, x: T, value: float) -> T:
        """``x + value`` in fresh memory."""
        ...

    def add_(self, x: T, value: float) -> None:
        """``x += value``."""
        ...

    def sum_(self, x: T, y: T) -> None:
        """``x += y``."""
        ...

    def copy_(self, target: T, source: T) -> None:
        """Overwrite ``target``."""
        ...

    def product(self, x: T) -> T:
        """What the linear algebra library computes through its workspace (fact W1); ``v * v`` for an ``x`` full of ``v``.

        ``x`` has at least one unit; the result, and what is needed on the way, are small.
        """
        ...

    def draw(self, count: int) -> T:
        """``count`` random numbers of the default generator."""
        ...

    def item(self, x: T) -> float:
        """One value, on the host: waits for the current stream."""
        ...

    def values(self, x: T) -> tuple[float, ...]:
        """The distinct values, sorted, at most eight. Waits for the current stream."""
        ...

    def equal(self, x: T, y: T) -> bool:
        """Whether all values agree. Waits for the current stream."""
        ...

    def address(self, x: T) -> int:
        """Of the first element."""
        ...

    def slow(self) -> None:
        """Keep the current stream busy for about 0.2 s, or until somebody waits for it."""
        ...

    def fault(self) -> None:
        """A kernel of the current stream fails a device-side assertion: the context is lost (fact F7)."""
        ...

    def seed(self, seed: int) -> None:
        """Seed the default generator."""
        ...

    # -- streams ------------------------------------------------------------------------------------------------------

    def framework_stream(self) -> Stream:
        """A stream of the framework's own pool (fact S1)."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """Make ``stream`` current for the block."""
        ...

    def synchronize(self) -> None:
        """Wait for the whole device."""
        ...

    # -- pools and graphs, raw ----------------------------------------------------------------------------------------

    def pool_handle(self) -> Hashable:
        """A pool id that nothing anchors (fact P1)."""
        ...

    def owned_pool(self) -> OwnedPool:
        """A pool with an owner, and nothing more (fact P3)."""
        ...

    def drop_pool(self, pool: OwnedPool) -> None:
        """Let the owner go."""
        ...

    def allocating_from(self, pool: OwnedPool) -> AbstractContextManager[None]:
        """Let this thread's allocations come from ``pool`` for the block, outside of any capture."""
        ...

    def graph(self) -> RawGraph:
        """A graph that was not captured."""
        ...

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
        """Capture ``body`` as ``torch.cuda.graph`` does, bad manners included; what the body returned (facts F1-F5, P7).

        ``bare``: by the graph's own calls alone. ``torch.cuda.graph`` first waits for the device and flushes the allocators, which
        hides fact P1 where nothing else holds memory of the pool; and it keeps the stream switched where the capture breaks.
        """
        ...

    def release_recording(self, graph: RawGraph) -> None:
        """After an invalidated capture: stop its pool's recording and give its use back by hand (fact F4)."""
        ...

    def heal_generator(self) -> None:
        """Give the default generator a copy of its own state (fact F2)."""
        ...

    def restore_stream(self) -> None:
        """Make the default stream current again (fact F3)."""
        ...

    # -- memory -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return unused cached memory to the device, as ``torch.cuda.empty_cache``."""
        ...

    def clear_workspaces(self) -> None:
        """Free every library workspace, whoever needs it (fact W2)."""
        ...

    def pools(self) -> Mapping[Hashable, Mapping[int, int]]:
        """Reserved bytes of every private pool, by the handle of the stream that owns the segments."""
        ...

    def reserved(self) -> int:
        """Bytes that the allocator holds, all pools together."""
        ...

    def allocated(self) -> int:
        """Bytes of live allocations."""
        ...

    def free(self) -> int:
        """Bytes that the device has left."""
        ...

    def occupy(self, leave_units: float) -> AbstractContextManager[None]:
        """Another process takes all but ``leave_units`` of the device for the block, or as good as that: a lower limit for us."""
        ...

    # -- errors -------------------------------------------------------------------------------------------------------

    def error_name(self, error: BaseException) -> str:
        """What went wrong, in the words of `errors.ErrorName`, which are the same on every device."""
        ...
