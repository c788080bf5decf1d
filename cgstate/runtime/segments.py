"""Graphs of several segments with eager breaks between them: how they are recorded, launched and destroyed.

What a segment has made and the body still holds when it yields stays allocated in the pool while the later segments are recorded:
the body's frame keeps it, and they find it at its address. Afterwards only the order of replays protects it: nothing else replays
from the pool between two segments, since the call has the pool's turn until the last one is launched (I5). Entries declared to
replay inside the break are the exception; `sharing` sees to it that they find nothing there to overwrite.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cgstate.backends.base import Graph, MemoryPool
from cgstate.backends.undo import UndoLog
from cgstate.breaks import Body, Break, advance, run_eagerly
from cgstate.errors import IllegalTransition

if TYPE_CHECKING:
    from cgstate.runtime.capture import Attempt
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.turn import Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pause:
    """A break as it was recorded.

    Attributes:
        run: What runs there.
        name: The break's name, or its number.
        live: Names of the tensors that it declares live.
        left: Bytes that the segments before it have allocated in the pool and that were still held when it began.
    """

    run: Callable[[], object]
    name: str
    live: tuple[str, ...]
    left: int


class Segments:
    """A graph of several segments: as `base.Graph`, once an entry owns it.

    Attributes:
        graphs: The segments, in order; none once it is destroyed.
        pauses: The breaks between them: one less.
        entry: The entry that it is bound to.
    """

    __slots__ = ("entry", "graphs", "pauses")

    def __init__(self, graphs: list[Graph], pauses: list[Pause]) -> None:
        self.graphs = graphs
        self.pauses = pauses
        self.entry: Entry | None = None

    def replay(self) -> None:
        """Launch the segments on the current stream, and run the breaks between them. The caller has the pool's turn.

        When a break raised, the turn still says so (`Turn.breaking`): that is no failure of the launch.

        Raises:
            IllegalTransition: a break left another stream current.
            Exception: what a launch or a break raised.
        """
        entry = self.entry
        assert entry is not None, "only bound entries are launched"
        handle = entry.current_handle(entry.index)
        turns = _turns(entry)
        breaks = iter(self.pauses)
        with entry.manager.backend.recording_mode():  # as the breaks ran while the graph was recorded
            for graph in self.graphs:
                graph.replay()
                pause = next(breaks, None)
                if pause is None:
                    return
                entry.manager.point("break")
                for turn in turns:
                    turn.breaking = entry.component
                pause.run()
                if entry.current_handle(entry.index) != handle:
                    raise IllegalTransition("entry", entry.name, entry.state, "replay", f"{pause.name} leaves its stream current")
                for turn in turns:
                    turn.breaking = None
                entry.turn.latest = None  # the next segment may overwrite what was handed out inside the break

    def destroy(self) -> None:
        """As `base.Graph.destroy`, going on past whatever raises; the first error is raised at the end."""
        graphs, self.graphs, self.pauses, self.entry = self.graphs, [], [], None
        problems = []
        for graph in graphs:
            try:
                graph.destroy()
            except Exception as problem:
                problems.append(problem)
        if problems:
            raise problems[0]


def _turns(entry: Entry) -> tuple[Turn, ...]:
    """The turns that a call of ``entry`` holds."""
    return (entry.turn, entry.gate.random) if entry.uses_random else (entry.turn,)


def record_segments(attempt: Attempt, graph: Graph, body: Body, undo: UndoLog) -> tuple[Graph, object]:
    """Record a body in an open capture, and each later segment in one of its own, in the same pool and on the same stream.

    Args:
        attempt: Where and how.
        graph: Of the open capture.
        body: Started, and nothing of it has run yet.
        undo: Told of everything that has to be put back, but for the body, which is the caller's to close.

    Returns:
        The graph, and what the body returned.

    Raises:
        BaseException: the first error, unchanged. ``undo`` is still to be run.
    """
    backend, stream = attempt.backend, attempt.stream
    before = _live_bytes(attempt.pool)
    graphs, pauses = [graph], list[Pause]()
    while True:
        pause, output = _call(partial(advance, body))
        backend.close_capture(graph)
        if pause is None:
            return (Segments(graphs, pauses) if pauses else graph), output
        left = _live_bytes(attempt.pool) - before
        pauses.append(Pause(pause.run, pause.name or f"break {len(pauses) + 1}", tuple(pause.live), max(0, left)))
        with backend.on_stream(stream):
            graph.replay()  # so that the break finds values in the static tensors, and not what happened to be there
            _call(pause.run_at_capture)
        stream.synchronize()  # nothing of the break may still run when the next capture opens
        graph = backend.open_capture(attempt.pool, stream, attempt.mode, undo)
        graphs.append(graph)


def run_round(function: Callable[[], object]) -> bool:
    """Run a warm-up round on the current stream, breaks included; whether the work may have any."""
    result = function()
    if isinstance(result, Generator):
        _call(partial(run_eagerly, result, run=Break.run_at_capture))
        return True
    return False


def run_segments(function: Callable[[], object], inside: Callable[[], AbstractContextManager[None]]) -> object:
    """Run work unrecorded, each segment ``inside`` and the breaks outside of it; what a graph of it would keep."""
    with inside():
        output = function()
    if not isinstance(output, Generator):
        return output
    runs = list[Callable[[], object]]()  # of a break `Segments` keeps no more: not what it has declared live
    with closing(output) as body:
        while True:
            with inside():
                pause, output = _call(partial(advance, body))
            if pause is None:
                return output, runs
            runs.append(pause.run)
            _call(pause.run_at_capture)


def _call(act: Callable[[], T]) -> T:
    """Call what the user wrote. If it raises, the way there is kept as text, in a note.

    A frame in a traceback keeps its function, also when it is cleared, and the function its closure: memory of the pool (I12).
    """
    handled = sys.exception()
    try:
        return act()
    except BaseException as error:
        error.add_note("".join(traceback.format_exception(error)))
        _strip(error, handled)
        raise


def _strip(error: BaseException, handled: BaseException | None) -> None:
    """Take the frames off an error and off those behind it, up to what was ``handled`` already when the call began."""
    seen = {id(None), id(handled)}
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [each.__cause__, each.__context__, *(each.exceptions if isinstance(each, BaseExceptionGroup) else ())]


def close(bodies: list[Body]) -> None:
    """End a body that waits at a break: its own clean-up runs, and its frame lets go."""
    for body in bodies:
        body.close()


def _live_bytes(pool: MemoryPool) -> int:
    return sum(segment.live for segment in pool.segments())
