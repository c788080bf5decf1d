"""Streams, open captures, and who waits for whom."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import TypeVar

from cgstate.backends.base import CaptureErrorMode
from cgstate.testing.fidelity.fact import Fact, Limit
from cgstate.testing.fidelity.lab import Lab

T = TypeVar("T")

_HEAD_START_S = 0.03
"""How long a flush is given to begin to wait. It waits several times as long."""


def s1(lab: Lab[T]) -> None:
    """Make a hundred streams of the framework."""
    handles = [lab.bench.framework_stream().handle for _ in range(100)]
    lab.say("different handles of 100 streams", len(set(handles)))
    lab.say("they are handed out in turn", all(handles[i] == handles[i + 32] for i in range(68)))


def s2(lab: Lab[T]) -> None:
    """What another thread may do while a capture of mode thread_local is open."""
    bench = lab.bench
    pool, stream, x = bench.pool_handle(), lab.stream(), bench.full(0.5, 1.0)
    drawing, _ = lab.capture(lambda: bench.draw(4), stream, pool)
    plain, _ = lab.capture(lambda: bench.add_(x, 1.0), stream, pool)
    mark = bench.backend.current_stream().record()
    bench.synchronize()
    calls: dict[str, Callable[[], object]] = {
        "random numbers": lambda: bench.draw(4),
        "a replay that draws random numbers": drawing.replay,
        "a replay, same pool": plain.replay,
        "a flush": bench.flush,
        "a copy to the host": lambda: bench.item(x),
        "asking an event": mark.done,
        "a clear of the workspaces": bench.clear_workspaces,
    }

    def body() -> None:
        bench.full(0.5, 1.0)
        for title, call in calls.items():
            lab.say(title, lab.elsewhere(call))

    lab.say("the capture", lab.attempt_capture(body, stream, pool, CaptureErrorMode.thread_local)[1])

    def harmful() -> None:
        bench.full(0.5, 1.0)
        lab.say("synchronizing the device", lab.elsewhere(bench.synchronize))

    lab.say("the capture during that", lab.attempt_capture(harmful, stream, pool, CaptureErrorMode.thread_local)[1])


def s3(lab: Lab[T]) -> None:
    """With a kernel running, do what may wait for it, here and in another thread."""
    bench = lab.bench
    capture_stream, busy, x = lab.stream(), lab.stream(), bench.full(0.5, 1.0)
    bench.add(bench.full(0.5, 1.0), 1.0)
    pool = bench.owned_pool()
    graph, _ = lab.capture(lambda: bench.add_(bench.full(40, 1.0), 1.0), capture_stream, pool.id)
    other, _ = lab.capture(lambda: bench.add_(x, 1.0), capture_stream)
    bench.synchronize()
    end = lab.busy(busy)
    graph.reset()
    lab.say("the kernel was over when reset returned", end.done())
    bench.drop_pool(pool)
    lab.say("the kernel was over when dropping the pool returned", end.done())
    bench.full(40, 1.0)  # freed at once, and cached: something to flush
    bench.synchronize()
    end = lab.busy(busy)
    flushing, bystander = Thread(target=bench.flush), Event()
    waited: list[bool] = []

    def replay_and_copy() -> None:
        bystander.wait()
        other.replay()
        bench.add(x, 0.0)
        waited.append(end.done())

    watching = Thread(target=replay_and_copy)
    watching.start()
    flushing.start()
    time.sleep(_HEAD_START_S)
    bystander.set()
    flushing.join()
    lab.say("the kernel was over when flush returned", end.done())
    watching.join()
    lab.say("the kernel was over when another thread's replay and copy returned", waited[0])


def s4(lab: Lab[T]) -> None:
    """Let a capture that fails grow a pool with a live graph in it."""
    bench = lab.bench
    pool, stream = bench.pool_handle(), lab.stream()
    _, kept = lab.capture(lambda: bench.full(20, 1.0), stream, pool)
    lab.say("bytes before", lab.bytes_of(pool))

    def body() -> None:
        bench.full(1024, 1.0)
        raise ValueError

    graph, error = lab.attempt_capture(body, stream, pool)
    lab.say("the capture", error)
    graph.reset()
    bench.flush()
    lab.say("bytes after reset and flush", lab.bytes_of(pool))
    lab.capture(lambda: bench.add_(bench.full(1024, 1.0), 1.0), stream, pool)
    lab.say("bytes after the next capture", lab.bytes_of(pool))
    del kept


FACTS = (
    Fact("S1", "The framework's streams share 32 handles, handed out in turn.", s1),
    Fact(
        "S2",
        "While a capture is open, another thread may neither draw random numbers nor synchronise the device.",
        s2,
        limits=(Limit("pinned allocation in another thread is fine", "the simulator has no host memory to pin"),),
    ),
    Fact("S3", "Returning memory to the device waits for it, and other threads' launches wait as well.", s3),
    Fact("S4", "What a failed capture grew in a pool with live graphs stays there, free for the next one.", s4),
)
