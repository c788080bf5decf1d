"""What sharing the capture stream saves: a graph that replays inside another one's eager break, with and without it (fact P4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cgstate import Break, GraphManager
from cgstate.backends.base import Backend


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes that the manager holds for the two graphs.

    Attributes:
        shared: The inner graph records into the outer one's pool, on its stream.
        separate: It has a pool and a stream of its own.
        equal: Whether both gave what the work gives eagerly.
    """

    shared: int
    separate: int
    equal: bool

    @property
    def saved(self) -> int:
        """What sharing saves."""
        return self.separate - self.shared


def shared_stream_saving(backend: Backend, work: Callable[[Any], Any], example: Callable[[], Any]) -> Saving:
    """Capture ``work`` before and after an eager break, and once more as a graph of its own that replays inside the break.

    Args:
        backend: The device; it has no manager with graphs on it.
        work: A function of one tensor to another of the same shape, with large temporaries; it draws no random numbers.
        example: Makes its argument, the same each time.
    """
    shared, right = _held(backend, work, example, inside="outer")
    separate, right_too = _held(backend, work, example, inside=None)
    return Saving(shared, separate, right and right_too)


def _held(backend: Backend, work: Callable[[Any], Any], example: Callable[[], Any], inside: str | None) -> tuple[int, bool]:
    """Bytes held for both graphs, and whether the outer one's output is right."""
    source, handed_in, handed_out = example(), example(), example()
    with GraphManager(backend, isolation="per_component") as manager:
        outer = manager.entry("outer", 1)
        inner = manager.entry("inner", 1, inside=inside)

        def between() -> None:
            with inner.lease() as lease:
                lease.replay()
                handed_out.copy_(lease.output)

        def body() -> Any:
            handed_in.copy_(work(source))
            yield Break(between, at_capture=lambda: handed_out.copy_(work(handed_in)))
            return work(handed_out)

        with manager.transaction() as transaction:
            transaction.capture(outer, lambda warmup: body)
            transaction.capture(inner, lambda warmup: lambda: work(handed_in))
        with outer.lease() as lease:
            lease.replay()
            found: Any = backend.clone(lease.output)
        expected = work(work(work(source)))
        held = manager.memory().total
    return held, bool(found.tolist() == expected.tolist())
