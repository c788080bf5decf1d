"""Work that cannot be recorded whole: segments, with eager breaks between them. For model code; knows no manager and no device.

A *body* is a generator function. What it does up to a ``yield`` is one segment; what it yields is a `Break`::

    def body():
        hidden = encode(static)
        mixed = empty_like(hidden)
        yield Break(lambda: mixed.copy_(attention(hidden)), live={"mixed": mixed})
        return decode(mixed)

A replay launches the first segment's graph, runs the break as ordinary eager code, launches the next segment's graph, and so on. So
a break reads and writes *static* tensors: what a segment made and the body still holds, or memory from outside. What it returns is
not looked at, and nothing that it allocates reaches the next segment by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeAlias

from cgstate.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Break:
    """An eager break between two segments.

    Attributes:
        run: Called between the segments at each replay, on the caller's current stream, without recording gradients. It leaves the
            current stream as it found it. What it raises is the routine's own error.
        live: By name, the tensors of the graph's own memory that a later segment still reads or returns, or that the break itself
            reads. Graphs of the same pool must not replay inside the break then; nothing else depends on it.
        name: What refusals call it; its number if empty.
        at_capture: Called instead of ``run`` while warming up and recording, where the graphs of other entries cannot be replayed;
            None: ``run``, too. It finds in the static tensors what the segments before it computed.
    """

    run: Callable[[], object]
    live: Mapping[str, object] = field(default_factory=dict)
    name: str = ""
    at_capture: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if not callable(self.run) or not (self.at_capture is None or callable(self.at_capture)):
            raise ConfigError(f"a break runs a function, not {self.run!r} (or {self.at_capture!r} at capture)")
        if not isinstance(self.live, Mapping) or not all(isinstance(name, str) for name in self.live):
            raise ConfigError(f"a break names its live tensors by a mapping from names to tensors, not {type(self.live).__name__}")
        if not isinstance(self.name, str):
            raise ConfigError(f"a break's name must be a string, not {self.name!r}")

    def run_at_capture(self) -> object:
        """Run it while warming up or recording."""
        return self.run() if self.at_capture is None else self.at_capture()


Body: TypeAlias = Generator[Break, None, object]
"""A started body; returns the output."""


def advance(body: Body) -> tuple[Break | None, object]:
    """Run one segment: the break that it ends with, or None and what the body returned.

    Raises:
        ConfigError: it yielded something that is no `Break`.
    """
    try:
        pause = next(body)
    except StopIteration as end:
        return None, end.value
    if not isinstance(pause, Break):
        raise ConfigError(f"a body yields cgstate.Break, not {pause!r}")
    return pause, None


def run_eagerly(body: Body, *, run: Callable[[Break], object] = lambda pause: pause.run()) -> object:
    """Run a body without any graph: segments and breaks one after the other; its output.

    Args:
        body: What the generator function returned.
        run: How a break is run.

    Raises:
        ConfigError: it yielded something that is no `Break`.
        Exception: what a segment or a break raised. The body is closed then.
    """
    with closing(body):
        while True:
            pause, output = advance(body)
            if pause is None:
                return output
            run(pause)
