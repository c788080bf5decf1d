"""One capture: prime, warm up, record, and put everything back if any of it fails (I12).

Runs outside the device's lock, with the gate held, so that no other capture opens and no graph of ours is destroyed meanwhile.
Warm-up runs on the capture stream, under the same conditions as the recording, until allocations settle; priming comes before,
inside the pool, so that library workspaces are born where they are safe (facts W1-W5, F8).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from cgstate.backends.base import Backend, CaptureErrorMode, Graph, MemoryPool, Stream
from cgstate.backends.undo import UndoLog
from cgstate.breaks import Body
from cgstate.runtime.compact import FirstBlock, make_room
from cgstate.runtime.segment_sizes import GRANULE, LARGE_SEGMENT, SMALL_LIMIT
from cgstate.runtime.segments import close, record_segments, run_round, run_segments

MakeFunction: TypeAlias = Callable[[bool], Callable[[], object]]
"""Called with ``warmup`` outside the graph, before each warm-up round and once before the capture; returns the function to run.

The function may be a generator function that yields `cgstate.Break`s: then each segment between them is recorded by itself.
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a capture made.

    Attributes:
        graph: The graph.
        output: What the recorded function returned: the static output.
        uses_random: Whether the work draws random numbers.
        settled: Whether the last warm-up round left no new allocation behind.
        autocast: What autocast made of the work, as `Backend.autocast`.
    """

    graph: Graph
    output: object
    uses_random: bool
    settled: bool
    autocast: Hashable


@dataclass(frozen=True, slots=True)
class Attempt:
    """Where and how to record.

    Attributes:
        backend: The device.
        pool: The pool to record into.
        workspaces: The pool that the library workspaces of the stream are in.
        stream: The capture stream.
        mode: How far other threads are kept from disturbing.
        prime: Whether to make the library workspaces of the stream first; not for a stream of the user's, who knows where they are.
        rounds: The most warm-up rounds.
        first_block: Gives the pool a first block; None where it has been captured into, or is not to get one.
        expect: Called after a warm-up without breaks, and may refuse the capture. Is given what runs one more round, with nothing
            cached, and tells how many bytes of temporaries and outputs that has taken at least.
    """

    backend: Backend
    pool: MemoryPool
    workspaces: MemoryPool
    stream: Stream
    mode: CaptureErrorMode
    prime: bool
    rounds: int
    first_block: FirstBlock | None = None
    expect: Callable[[Callable[[], int]], None] | None = None


def record(attempt: Attempt, make: MakeFunction, inside: AbstractContextManager[object], undo: UndoLog) -> Recording:
    """Warm up and record.

    Args:
        attempt: Where and how.
        make: Makes the function to run.
        inside: What warm-up and recording run inside.
        undo: Told of everything that has to be put back; the caller runs it, however this ends.

    Raises:
        BaseException: the first error, unchanged. ``undo`` is still to be run.
    """
    backend, stream = attempt.backend, attempt.stream
    make = _casting_anew(backend, make)
    caller = backend.current_stream()
    stream.wait(caller.record())  # inputs and weights may still be on their way
    make_room(backend)
    if attempt.prime:  # each time: library handles, and so workspaces, belong to the thread
        backend.prime_workspaces(attempt.workspaces, stream)
    made: Recording | None = None
    autocast = backend.autocast()  # the caller's: what the routine does inside it does in eager calls as well
    with inside, backend.recording_mode():
        mark = backend.generator_mark()
        with backend.on_stream(stream):
            settled = _prepare(attempt, make, undo)
        uses_random = backend.generator_mark() != mark
        stream.synchronize()  # nothing of the warm-up may still run when the capture opens
        make_room(backend)
        with backend.on_stream(stream):
            function = make(False)
        _quiet_collector(undo)
        started: list[Body] = []
        undo.on_failure("close the body", partial(close, started))  # last of all: its clean-up is the user's
        graph = backend.open_capture(attempt.pool, stream, attempt.mode, undo)
        output = function()
        if isinstance(output, Generator):
            started.append(output)
            graph, output = record_segments(attempt, graph, output, undo)
        else:
            backend.close_capture(graph)
        backend.check_static(output)
        made = Recording(graph, output, uses_random, settled, autocast)
    if made is None:
        raise RuntimeError("the capture context swallowed the error that ended the capture")
    caller.wait(stream.record())
    return made


def _casting_anew(backend: Backend, make: MakeFunction) -> MakeFunction:
    """Let each round of the work convert its own weights under autocast: what one round leaves is not there for the next."""

    def made(warmup: bool) -> Callable[[], object]:
        function = make(warmup)
        backend.forget_casts()
        return function

    return made


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What work leaves that was run as it would be recorded.

    Attributes:
        kept: What a graph of it would keep.
        settled: Whether the last warm-up round left no new allocation behind.
    """

    kept: object
    settled: bool


def rehearse(attempt: Attempt, make: MakeFunction, inside: AbstractContextManager[object], undo: UndoLog) -> Rehearsal:
    """Warm up as `record` does, then run the work unrecorded with memory from the pool, as the allocator serves a capture.

    Args:
        attempt: Where and how.
        make: Makes the function to run.
        inside: What all of it runs inside.
        undo: Told of everything that has to be put back; the caller runs it, however this ends.

    Raises:
        BaseException: what the work raised.
    """
    backend, stream = attempt.backend, attempt.stream
    make = _casting_anew(backend, make)
    with inside, backend.recording_mode(), backend.on_stream(stream):
        settled = _prepare(attempt, make, undo)
        function = make(False)
        _quiet_collector(undo)  # it may give garbage back, which in a capture it does not
        return Rehearsal(run_segments(function, partial(backend.allocating_from, attempt.pool, stream)), settled)
    raise RuntimeError("the capture context swallowed the error that ended the rehearsal")


@contextmanager
def record_block(attempt: Attempt, undo: UndoLog) -> Iterator[Graph]:
    """Record what the block does, as `record` records what a function does; it was warmed up already. Gives the graph."""
    backend, stream = attempt.backend, attempt.stream
    caller = backend.current_stream()
    stream.wait(caller.record())
    with backend.recording_mode():
        stream.synchronize()
        _quiet_collector(undo)
        graph = backend.open_capture(attempt.pool, stream, attempt.mode, undo)
        yield graph
        backend.close_capture(graph)
    caller.wait(stream.record())


def _prepare(attempt: Attempt, make: MakeFunction, undo: UndoLog) -> bool:
    """Warm up, and give the pool its first block; whether the warm-up has settled. The capture stream is current."""
    settled, breaks = _warm_up(attempt, make)
    if attempt.expect is not None and not breaks:  # what breaks allocate is not the pool's
        attempt.expect(partial(_taken, attempt, make))
    if attempt.first_block is not None and settled and not breaks:
        attempt.first_block.make(attempt.backend, attempt.pool, attempt.stream, lambda: run_round(make(True)), undo)
    return settled


def _taken(attempt: Attempt, make: MakeFunction) -> int:
    """Bytes that one more round takes at least, by the free segments that it leaves on the capture stream.

    The warm-up itself does not tell: what work before it has left cached served it as well, and its first round may have had what
    no later one has, such as the workspaces of algorithms that a library has tried out.
    """
    attempt.backend.flush()
    before = _cached(attempt)
    run_round(make(True))
    return _cached(attempt) - before


def _cached(attempt: Attempt) -> int:
    """Free bytes of large segments; what is rounded up in them is left out."""
    unit = attempt.backend.mebibyte
    free = 0
    for segment in attempt.backend.cached_segments(attempt.stream):
        shared = segment.reserved <= LARGE_SEGMENT * unit
        rounded = (LARGE_SEGMENT - SMALL_LIMIT if shared else GRANULE) * unit
        free += 0 if segment.small else max(0, segment.reserved - segment.live - rounded)
    return free


def _warm_up(attempt: Attempt, make: MakeFunction) -> tuple[bool, bool]:
    """Run until a round leaves no new allocation behind: nothing may be made lazily in the graph.

    Returns:
        Whether one did; and whether the work may have breaks.
    """
    breaks = False
    before = attempt.backend.allocated_bytes()
    for _ in range(attempt.rounds):
        breaks = run_round(make(True))
        after = attempt.backend.allocated_bytes()
        if after == before:
            return True, breaks
        before = after
    return False, breaks


def _quiet_collector(undo: UndoLog) -> None:
    """Keep the garbage collector out of the capture: it may destroy somebody's graph, which would break ours (fact T3)."""
    if gc.isenabled():
        undo.always("enable the garbage collector", gc.enable)  # first: an interrupt may come in between
        gc.disable()
