"""vLLM's profiling of graph memory, in cgstate's throwaway scope and with its estimate.

vLLM captures everything once into a throwaway pool, but only the two largest FULL graphs, and extrapolates from these: the first,
and as often as there are others the second. In a pool most of what a graph takes is there already (fact P9), so that is far off
(fact P7). Here the same two are recorded in the scope, vLLM's other graphs share its pool as they will later share the real one,
and what the others add to the pool's segments is bounded instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cgstate.backends.base import Backend, DeviceMemory, MemoryPool, SegmentView
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.memory.bounds import Peak, Point, output_at_most, pool_at_least, pool_at_most
from cgstate.runtime.memory.estimate import MemoryEstimate, Sample
from cgstate.runtime.memory.scope import Profile

log = logging.getLogger("cgstate")


@dataclass(frozen=True, slots=True)
class Reading:
    """The throwaway pool and the device at one moment."""

    segments: Sequence[SegmentView]
    device: DeviceMemory

    @property
    def reserved(self) -> int:
        """Bytes of the pool's segments."""
        return sum(segment.reserved for segment in self.segments)

    @property
    def live(self) -> int:
        """Bytes lent out of them."""
        return sum(segment.live for segment in self.segments)

    @property
    def small(self) -> int:
        """Bytes of segments for small allocations."""
        return sum(segment.reserved for segment in self.segments if segment.small)

    def elsewhere(self, later: Reading) -> int:
        """Bytes that have left the device until ``later`` and that the allocator does not have: the driver's and the libraries'."""
        return (self.device.free - later.device.free) - (later.device.reserved - self.device.reserved)


@dataclass(frozen=True, slots=True)
class Measured:
    """One FULL graph that was recorded, and the pool before and after."""

    component: str
    descriptor: Any
    before: Reading
    after: Reading
    seconds: float


class ProfileRun:
    """One run of vLLM's profiling; as a `session.Source`, for graphs that are only measured.

    Attributes:
        component: Id of the component whose graphs are recorded now.
        backend: The device.
        estimate: What vLLM was told; None where it did not ask.
    """

    def __init__(self, manager: GraphManager, profile: Profile) -> None:
        self.component = ""
        self.backend: Backend = manager.backend
        self.estimate: MemoryEstimate | None = None
        self._manager = manager
        self._profile = profile
        self._measured: list[Measured] = []
        self._pool: MemoryPool = manager.backend.adopt_pool(profile.pool_id())
        self._doubts: list[str] = []

    def open(self, pool: Any, stream: Any) -> GraphManager:
        """As `session.Source.open`: whichever pool is asked for, the profile records into its own."""
        if pool != self._pool.id:
            self._doubts.append(f"{self.component} would not have shared a pool with vLLM's other graphs")
        return self._manager

    @contextmanager
    def around(self, descriptor: Hashable, pool: Any) -> Iterator[None]:
        """As `session.Source.around`: measures."""
        before, started = self._read(), time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self._measured.append(Measured(self.component, descriptor, before, self._read(), seconds))

    def _read(self) -> Reading:
        return Reading(self._pool.segments(), self.backend.device_memory())

    @property
    def pool(self) -> Hashable:
        """Id of the throwaway pool, which vLLM's other graphs should be captured into meanwhile."""
        return self._pool.id

    def begin(self, component: str) -> None:
        """The graphs of another manager come next."""
        self.component = component

    def new_pool(self, mint: Callable[[], Any]) -> Callable[[], Any]:
        """In place of ``graph_pool_handle``: the first one that vLLM asks for, its throwaway, is the profile's."""
        given = False

        def graph_pool_handle() -> Any:
            nonlocal given
            if given:
                return mint()
            given = True
            return self._pool.id

        return graph_pool_handle

    def extrapolating(self, descriptors: Callable[[], Sequence[Any]]) -> Callable[[list[int], int], int]:
        """In place of vLLM's extrapolation: bytes of all FULL graphs, from those that it sampled."""

        def extrapolate(mem_samples: list[int], total_graphs: int) -> int:
            sampled = self._measured[: len(mem_samples)]  # vLLM captures the main manager's graphs first; it samples no other's
            if not sampled:
                return 0
            self.estimate = self._estimated(sampled, descriptors())
            log.info("%d FULL graphs: %s", total_graphs, self.estimate)
            return self.estimate.upper + self.estimate.driver

        return extrapolate

    def conclude(self) -> MemoryEstimate:
        """What the graphs take that were captured so far; there must be some."""
        return self._estimated(self._measured, [measured.descriptor for measured in self._measured])

    def _estimated(self, sampled: Sequence[Measured], descriptors: Sequence[Any]) -> MemoryEstimate:
        unit = self.backend.mebibyte
        base, last = sampled[0].before, sampled[-1].after
        known = {measured.descriptor for measured in sampled}
        points = [Point(each.descriptor.num_tokens, max(0, each.after.live - each.before.live)) for each in sampled]
        others = [output_at_most(each.num_tokens, points) for each in descriptors if each not in known]
        peak = Peak(last.small, last.reserved - last.small, 0)
        taken = [max(0, each.before.elsewhere(each.after)) for each in sampled]
        upper = max(0, pool_at_most(peak, others, unit) - base.reserved)
        lower = max(0, (pool_at_least(peak, unit) if others else last.reserved) - base.reserved)
        return MemoryEstimate(
            lower=lower,
            upper=upper,
            parts={"pools": lower, "workspaces": 0, "buffers": 0},
            samples=tuple(_sample(each, point) for each, point in zip(sampled, points, strict=True)),
            graphs=len(descriptors),
            driver=sum(taken) + len(others) * max(taken[-1], unit),  # the device tells free bytes too coarsely for one graph (P8)
            lazy=0,
            seconds=self._profile.seconds,
            distrust=(*self._profile.distrust(), *self._doubts),
        )


def _sample(measured: Measured, point: Point) -> Sample:
    return Sample(
        component=measured.component,
        descriptor=repr(measured.descriptor),
        pool_bytes=measured.after.reserved,
        grown_bytes=max(0, measured.after.reserved - measured.before.reserved),
        output_bytes=point.output,
        buffer_bytes=0,
        seconds=measured.seconds,
        settled=True,
    )
