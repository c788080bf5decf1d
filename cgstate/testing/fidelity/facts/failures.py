"""Failures, and what they leave behind."""

from __future__ import annotations

import gc
from typing import TypeVar

from cgstate.backends.base import CaptureErrorMode, MemoryPool, Stream
from cgstate.backends.undo import UndoLog
from cgstate.testing.fidelity.fact import Fact, Limit, Rule
from cgstate.testing.fidelity.lab import Lab

T = TypeVar("T")

_F4_KEPT = "bytes after reset, garbage collection and flush"


def f1(lab: Lab[T]) -> None:
    """Raise in the body."""
    bench = lab.bench
    pool, stream = bench.pool_handle(), lab.stream()

    def body() -> None:
        bench.draw(4)
        raise ValueError

    _, error = lab.attempt_capture(body, stream, pool)
    lab.say("the capture", error)
    lab.say("current stream", lab.current_stream_name())
    lab.say("random numbers", lab.attempt(lambda: bench.draw(4)))
    (graph, output) = lab.capture(lambda: bench.full(0.5, 3.0), stream, pool)
    graph.replay()
    lab.say("a capture into the same pool computes", list(bench.values(output)))


def f2(lab: Lab[T]) -> None:
    """Ask for a value in the body."""
    bench = lab.bench
    stream, inside = lab.stream(), []

    def body() -> None:
        inside.append(lab.attempt(lambda: bench.item(bench.full(0.5, 1.0))))

    lab.say("the capture", lab.attempt_capture(body, stream)[1])
    lab.say("the call inside", inside[0])
    bench.restore_stream()
    lab.say("random numbers", lab.attempt(lambda: bench.draw(4)))
    bench.seed(1)
    lab.say("random numbers, seeded anew", lab.attempt(lambda: bench.draw(4)))
    lab.capture(lambda: bench.full(0.5, 1.0), stream)
    lab.say("random numbers after a capture that went well", lab.attempt(lambda: bench.draw(4)))
    lab.break_capture(stream)
    bench.restore_stream()
    lab.say("random numbers, broken again", lab.attempt(lambda: bench.draw(4)))
    bench.heal_generator()
    lab.say("random numbers, state replaced by a copy", lab.attempt(lambda: bench.draw(4)))


def f3(lab: Lab[T]) -> None:
    """Look at the current stream after a capture was invalidated."""
    lab.break_capture(lab.stream())
    lab.say("current stream", lab.current_stream_name())


def f4(lab: Lab[T]) -> None:
    """Try to get the bytes of an invalidated capture back."""
    bench = lab.bench
    pool, stream = bench.pool_handle(), lab.stream()
    graph, _ = lab.break_capture(stream, pool, units=256)
    bench.restore_stream()
    graph.reset()
    gc.collect()
    bench.flush()
    kept = lab.bytes_of(pool)
    lab.say(_F4_KEPT, kept)
    if kept:
        bench.release_recording(graph)
        bench.flush()
        lab.say("bytes, the recording released by hand, flushed", lab.bytes_of(pool))


def f5(lab: Lab[T]) -> None:
    """Capture again into an owned pool after a capture there was invalidated."""
    bench = lab.bench
    pool, stream = bench.owned_pool(), lab.stream()
    lab.capture(lambda: bench.full(0.5, 1.0), stream, pool.id)
    failed, _ = lab.break_capture(stream, pool.id)
    bench.restore_stream()
    lab.say("uses, the capture broken", pool.use_count())
    refused, error = lab.attempt_capture(lambda: bench.full(0.5, 1.0), stream, pool.id)
    lab.say("the next capture", error)
    bench.restore_stream()
    bench.heal_generator()
    lab.say("uses, the next refused", pool.use_count())
    bench.release_recording(failed)
    bench.release_recording(refused)
    lab.say("uses, both released by hand", pool.use_count())
    lab.say("a capture after that", lab.attempt_capture(lambda: bench.full(0.5, 1.0), stream, pool.id)[1])
    bench.restore_stream()
    bench.heal_generator()
    healed = bench.backend.new_pool()
    lab.say("a capture of the library's that breaks", lab.attempt(lambda: _by_the_library(lab, healed, stream, breaks=True)))
    lab.say("current stream", lab.current_stream_name())
    lab.say("random numbers", lab.attempt(lambda: bench.draw(4)))
    lab.say("the library's next capture there", lab.attempt(lambda: _by_the_library(lab, healed, stream, breaks=False)))


def _by_the_library(lab: Lab[T], pool: MemoryPool, stream: Stream, *, breaks: bool) -> None:
    """A capture by the backend, undone by it if it fails."""
    backend, undo = lab.bench.backend, UndoLog()
    try:
        graph = backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
        output = lab.bench.full(0.5, 1.0)
        if breaks:
            lab.bench.item(output)
        backend.close_capture(graph)
    except BaseException:
        undo.fail()
        raise
    undo.succeed()


def f6(lab: Lab[T]) -> None:
    """Run out of memory in the body."""
    bench = lab.bench
    pool, stream = bench.pool_handle(), lab.stream()

    def body() -> None:
        held = bench.full(32, 1.0)
        bench.full(64, 1.0)
        bench.add_(held, 1.0)

    with bench.occupy(64):
        graph, error = lab.attempt_capture(body, stream, pool)
    lab.say("the capture", error)
    lab.say("current stream", lab.current_stream_name())
    lab.say("random numbers", lab.attempt(lambda: bench.draw(4)))
    graph.reset()
    bench.flush()
    lab.say("bytes after reset and flush", lab.bytes_of(pool))


def f7(lab: Lab[T]) -> None:
    """Lose the context."""
    bench = lab.bench
    stream, x = lab.stream(), bench.full(0.5, 1.0)
    graph, _ = lab.capture(lambda: bench.add_(x, 1.0), stream)
    bench.synchronize()
    lab.say("queueing the faulty kernel", lab.attempt(bench.fault))
    for turn in ("first", "second"):
        lab.say(f"synchronize, {turn} time", lab.attempt(bench.synchronize))
        lab.say(f"replay, {turn} time", lab.attempt(graph.replay))
        lab.say(f"asking for free memory, {turn} time", lab.attempt(bench.free))
    lab.say("reset", lab.attempt(graph.reset))
    lab.say("flush", lab.attempt(bench.flush))


def f8(lab: Lab[T]) -> None:
    """Use the linear algebra library for the first time in a capture."""
    bench = lab.bench
    stream, x, inside = lab.stream(), bench.full(1, 1.0), []
    graph, error = lab.attempt_capture(lambda: inside.append(lab.attempt(lambda: bench.product(x))), stream)
    lab.say("the call inside", inside[0])
    lab.say("the capture", error)
    lab.recover(graph)
    bench.product(x)
    lab.say("a capture after one use outside", lab.attempt_capture(lambda: bench.product(x), stream)[1])
    graph = bench.graph()
    lab.say("a capture in a new thread", lab.elsewhere(lambda: bench.capture(graph, lambda: bench.product(x), stream=stream)))
    lab.recover(graph)


def f9(lab: Lab[T]) -> None:
    """Replay what is not there."""
    bench = lab.bench
    stream, x = lab.stream(), bench.full(0.5, 0.0)
    lab.say("replay of a graph that was never captured", lab.attempt(bench.graph().replay))
    graph, _ = lab.capture(lambda: bench.add_(x, 1.0), stream)
    lab.say("replay of one that was", lab.attempt(graph.replay))
    graph.reset()
    lab.say("replay after its reset", lab.attempt(graph.replay))
    lab.say("what was computed", list(bench.values(x)))


FACTS = (
    Fact("F1", "A Python exception in the body harms nothing.", f1),
    Fact("F2", "A capture that the device invalidates leaves the default generator in capture.", f2),
    Fact("F3", "It also leaves the capture stream current.", f3),
    Fact("F4", "It also keeps the pool's bytes.", f4, rule=Rule("release_pool_on_destroy", _F4_KEPT, {})),
    Fact("F5", "It also leaves the pool recording, on the device and on the host: the next capture into it is refused.", f5),
    Fact("F6", "Running out of memory in the body is like F1.", f6),
    Fact(
        "F7",
        "A device-side assertion loses the context for good.",
        f7,
        limits=(Limit("freeing a pool with memory in it aborts the process then", "the simulator does not end the process"),),
    ),
    Fact("F8", "The first use of the linear algebra library in a thread cannot happen inside a capture.", f8),
    Fact("F9", "A graph that was reset, or never captured, raises when it is replayed.", f9),
)
