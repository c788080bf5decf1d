"""Threads, destruction, and replays that overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cgstate.backends.base import CaptureErrorMode
from cgstate.testing.fidelity.fact import Fact, Limit
from cgstate.testing.fidelity.lab import FINE, Lab

T = TypeVar("T")

_ROUNDS = 5
_STEPS = 40


def t1(lab: Lab[T]) -> None:
    """Replay two graphs of one pool at once, and one after the other."""
    bench = lab.bench
    pool, capture_stream = bench.pool_handle(), lab.stream()
    inputs = [bench.full(8, value) for value in (1.0, 5.0)]
    made = [lab.capture(_chain(lab, x), capture_stream, pool) for x in inputs]
    graphs, outputs = [graph for graph, _ in made], [output for _, output in made]
    streams = [lab.stream(), lab.stream()]
    gate = lab.stream()

    def round_(*, at_once: bool) -> bool:
        seen = []
        bench.synchronize()
        opened = lab.busy(gate)
        for graph, stream, output in zip(graphs, streams, outputs, strict=True):
            stream.wait(opened)
            with bench.on(stream):
                graph.replay()
                if not at_once:
                    seen.append(bench.values(output))
        bench.synchronize()
        return (seen or [bench.values(output) for output in outputs]) == [(1.0 + _STEPS,), (5.0 + _STEPS,)]

    lab.say("right, one after the other, in every round", all(round_(at_once=False) for _ in range(_ROUNDS)))
    lab.say("right, at once, in every round", all(round_(at_once=True) for _ in range(_ROUNDS)))
    lab.say("right again, one after the other", round_(at_once=False))


def t2(lab: Lab[T]) -> None:
    """Reset a graph while it replays, then flush."""
    bench = lab.bench
    pool, stream, x = bench.pool_handle(), lab.stream(), bench.full(0.5, 2.0)

    def body() -> T:
        temporary = bench.full(40, 0.0)
        bench.add_(temporary, 1.0)
        return bench.add(x, 3.0)

    graph, output = lab.capture(body, stream, pool)
    bench.synchronize()
    lab.busy(stream)
    with bench.on(stream):
        graph.replay()
    end = stream.record()
    graph.reset()
    lab.say("the replay was over when reset returned", end.done())
    bench.flush()
    lab.say("the replay was over when flush returned", end.done())
    lab.say("its result", list(bench.values(output)))


def t3(lab: Lab[T]) -> None:
    """Reset another graph inside a capture."""
    bench = lab.bench
    x = bench.full(0.5, 0.0)
    for mode in CaptureErrorMode:
        other, _ = lab.capture(lambda: bench.add_(x, 1.0), lab.stream())
        inside: list[str] = []

        def body(other: Callable[[], None] = other.reset, inside: list[str] = inside) -> None:
            inside.append(lab.attempt(other))
            bench.add_(x, 1.0)

        graph, error = lab.attempt_capture(body, lab.stream(), mode=mode)
        lab.say(f"the reset, in a capture of mode {mode}", inside[0])
        lab.say(f"that capture, mode {mode}", error)
        if error != FINE:
            lab.recover(graph)


def t4(lab: Lab[T]) -> None:
    """Work and wait in another thread during a capture."""
    bench = lab.bench
    x = bench.full(0.5, 1.0)
    bench.item(bench.add(x, 1.0))
    graph, _ = lab.capture(lambda: bench.add_(x, 1.0), lab.stream())

    def eager() -> None:
        bench.item(bench.add(x, 1.0))

    def replay() -> None:
        graph.replay()
        bench.backend.current_stream().synchronize()

    for title, work in (("eager work", eager), ("a replay", replay)):
        for mode in CaptureErrorMode:
            theirs: list[str] = []

            def body(work: Callable[[], None] = work, theirs: list[str] = theirs) -> None:
                bench.full(0.5, 1.0)
                theirs.append(lab.elsewhere(work))

            broken, error = lab.attempt_capture(body, lab.stream(), mode=mode)
            lab.say(f"{title} in another thread, mode {mode}", theirs[0])
            lab.say(f"the capture during {title}, mode {mode}", error)
            if error != FINE:
                lab.recover(broken)


def t5(lab: Lab[T]) -> None:
    """Hold an output, and replay again."""
    bench = lab.bench
    x = bench.full(0.5, 1.0)
    graph, output = lab.capture(lambda: bench.add(x, 1.0), lab.stream())
    graph.replay()
    held, copied = output, bench.add(output, 0.0)
    bench.add_(x, 6.0)
    graph.replay()
    lab.say("held without a copy", list(bench.values(held)))
    lab.say("copied", list(bench.values(copied)))


def _chain(lab: Lab[T], x: T) -> Callable[[], T]:
    """A body whose every step writes memory that the other graph of its pool uses as well."""

    def body() -> T:
        out = lab.bench.add(x, 1.0)
        for _ in range(_STEPS - 1):
            out = lab.bench.add(out, 1.0)
        return out

    return body


FACTS = (
    Fact("T1", "Two graphs of one pool that replay at once corrupt each other.", t1),
    Fact("T2", "A graph may be reset while it replays; flushing waits for the replay.", t2),
    Fact(
        "T3",
        "Resetting any graph during a capture invalidates it, unless the mode is relaxed.",
        t3,
        limits=(Limit("dropping an owned pool during a capture aborts the process", "the simulator does not end the process"),),
    ),
    Fact("T4", "In mode global, work of another thread and an open capture break each other.", t4),
    Fact("T5", "A static output changes at the next replay.", t5),
)
