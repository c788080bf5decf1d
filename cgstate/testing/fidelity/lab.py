"""What fact programs are written with: a bench, a notebook, and the few moves that most of them make."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Generic, TypeAlias, TypeVar

from cgstate.backends.base import CaptureErrorMode, Event, Stream
from cgstate.testing.fidelity.bench import Bench, RawGraph

T = TypeVar("T")
R = TypeVar("R")

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value]"
"""What JSON can say."""

FINE = "fine"
"""The outcome of a call that raised nothing."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was seen.

    Attributes:
        label: What was looked at, in words.
        value: What was seen.
        within: How far a number may be from the recorded one; 0 where the device is to say just the same.
    """

    label: str
    value: Value
    within: float = 0


class Lab(Generic[T]):
    """A bench, and what a program has seen on it so far.

    Attributes:
        bench: The device.
        seen: The observations, in the program's order.
    """

    def __init__(self, bench: Bench[T]) -> None:
        self.bench = bench
        self.seen: list[Observation] = []
        self._streams: dict[int, str] = {}

    def say(self, label: str, value: Value, *, within: float = 0) -> None:
        """Write an observation down."""
        self.seen.append(Observation(label, value, within))

    # -- calls that may fail ------------------------------------------------------------------------------------------

    def attempt(self, act: Callable[[], object]) -> str:
        """Do ``act``; `FINE`, or the name of what it raised. What the error held on to is let go."""
        try:
            act()
        except Exception as error:
            _let_go(error)
            return self.bench.error_name(error)
        return FINE

    def elsewhere(self, act: Callable[[], object]) -> str:
        """As `attempt`, in another thread."""
        names: list[str] = []
        thread = Thread(target=lambda: names.append(self.attempt(act)))
        thread.start()
        thread.join()
        return names[0]

    # -- streams ------------------------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        """A stream that nobody else has; called ``stream N`` in what `bytes_of` says."""
        stream = self.bench.backend.new_stream(exclusive=True)
        self._streams[stream.handle] = f"stream {len(self._streams)}"
        return stream

    def current_stream_name(self) -> str:
        """Which stream is current."""
        handle = self.bench.backend.current_handle(self.bench.backend.index)
        return self._streams.get(handle, "another stream") if handle else "the default stream"

    def busy(self, stream: Stream) -> Event:
        """Keep ``stream`` busy, and mark the end of that."""
        with self.bench.on(stream):
            self.bench.slow()
        return stream.record()

    # -- captures -----------------------------------------------------------------------------------------------------

    def capture(
        self,
        body: Callable[[], R],
        stream: Stream,
        pool: Hashable | None = None,
        mode: CaptureErrorMode = CaptureErrorMode.global_,
    ) -> tuple[RawGraph, R]:
        """Capture ``body`` into a new graph; the graph, and what the body returned."""
        graph = self.bench.graph()
        return graph, self.bench.capture(graph, body, stream=stream, pool=pool, mode=mode)

    def attempt_capture(
        self,
        body: Callable[[], object],
        stream: Stream,
        pool: Hashable | None = None,
        mode: CaptureErrorMode = CaptureErrorMode.global_,
        *,
        bare: bool = False,
    ) -> tuple[RawGraph, str]:
        """`attempt` to capture ``body``; nothing is put right when that fails."""
        graph = self.bench.graph()
        return graph, self.attempt(lambda: self.bench.capture(graph, body, stream=stream, pool=pool, mode=mode, bare=bare))

    def break_capture(self, stream: Stream, pool: Hashable | None = None, units: float = 1) -> tuple[RawGraph, str]:
        """A capture that allocates ``units`` and a little more, and then asks for a value (fact F2)."""
        bench = self.bench

        def body() -> None:
            temporary = bench.full(units, 1.0)
            bench.item(bench.add(bench.full(0.5, 1.0), 1.0))
            bench.add_(temporary, 1.0)

        return self.attempt_capture(body, stream, pool)

    def recover(self, *graphs: RawGraph) -> None:
        """Put right by hand what captures into ``graphs`` that were invalidated left behind."""
        self.bench.restore_stream()
        self.bench.heal_generator()
        for graph in graphs:
            self.bench.release_recording(graph)
            graph.reset()

    @contextmanager
    def refilled_by_somebody_else(self) -> Iterator[Callable[[], bool]]:
        """Somebody takes the memory that was just returned, and fills it; yields the question whether it was overwritten since."""
        bench = self.bench
        victims = [bench.full(32, 0.0) for _ in range(4)]
        bench.synchronize()
        yield lambda: any(bench.values(victim) != (0.0,) for victim in victims)
        victims.clear()

    # -- bytes --------------------------------------------------------------------------------------------------------

    def units(self, nbytes: int) -> int | float:
        """Bytes in units."""
        whole, rest = divmod(nbytes, self.bench.unit)
        return whole if not rest else round(nbytes / self.bench.unit, 3)

    def bytes_of(self, pool_id: Hashable) -> dict[str, Value]:
        """Units of a pool's segments, by stream."""
        found = self.bench.pools().get(pool_id, {})
        named = {self._streams.get(handle, "another stream"): self.units(size) for handle, size in found.items()}
        return {name: named[name] for name in sorted(named)}

    def reserved(self) -> int | float:
        """Units that the allocator holds."""
        return self.units(self.bench.reserved())


def _let_go(error: BaseException) -> None:
    """Empty the frames that ``error`` and its causes came through: what they hold is memory of the device."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            waiting += [each.__cause__, each.__context__]
