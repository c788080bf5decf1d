"""Pools and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

from cgstate.backends.base import Stream
from cgstate.testing.fidelity.bench import RawGraph
from cgstate.testing.fidelity.fact import Fact, Limit
from cgstate.testing.fidelity.lab import Lab

T = TypeVar("T")

_SMALL = 0.5
"""Units of a small allocation: it lies in a segment of 2 units."""


def p1(lab: Lab[T]) -> None:
    """Reset the last graph of an unanchored pool, and capture again: by the graph's own calls, and by the framework's context."""
    bench, body = lab.bench, small(lab)
    for bare, flushed, lives in product((True, False), (False, True), (False, True)):
        pool, stream = bench.pool_handle(), lab.stream()
        graph, output = lab.capture(body, stream, pool)
        held = [output] if lives else []
        del output
        graph.reset()
        if flushed:
            bench.flush()
        _, error = lab.attempt_capture(body, stream, pool, bare=bare)
        bench.restore_stream()
        bench.heal_generator()
        how = "bare" if bare else "by the context, which flushes"
        lab.say(f"capturing again, {how}, {'flushed' if flushed else 'at once'}, {'an' if held else 'no'} output alive", error)
    pool, stream = bench.pool_handle(), lab.stream()
    first, _ = lab.capture(body, stream, pool)
    lab.capture(body, stream, pool)
    first.reset()
    lab.say("capturing again while another graph lives", lab.attempt_capture(body, stream, pool, bare=True)[1])


def p2(lab: Lab[T]) -> None:
    """Draw random numbers after a capture that was refused."""
    bench, body = lab.bench, small(lab)
    pool, stream = bench.pool_handle(), lab.stream()
    lab.capture(body, stream, pool)[0].reset()
    lab.say("capturing again", lab.attempt_capture(body, stream, pool, bare=True)[1])
    lab.say("random numbers", lab.attempt(lambda: bench.draw(4)))
    bench.seed(1)
    lab.say("random numbers, seeded anew", lab.attempt(lambda: bench.draw(4)))
    lab.capture(body, stream)
    lab.say("random numbers after a capture elsewhere", lab.attempt(lambda: bench.draw(4)))


def p3(lab: Lab[T]) -> None:
    """Follow the use count of a pool with an owner."""
    bench, body = lab.bench, small(lab)
    stream, work = lab.stream(), temporaries(lab, 20)
    lone = bench.owned_pool()
    graph, _ = lab.capture(lambda: discard(work), stream, lone.id)
    graph.reset()
    bench.flush()
    lab.say("bytes of a pool, its only graph reset, flushed", lab.bytes_of(lone.id))
    bench.drop_pool(lone)
    lab.say("bytes, owner gone", lab.bytes_of(lone.id))
    pool = bench.owned_pool()
    lab.say("uses, owner alone", pool.use_count())
    anchor, _ = lab.capture(body, stream, pool.id)
    lab.say("uses with one graph", pool.use_count())
    graph, _ = lab.capture(work, stream, pool.id)
    lab.say("uses with two graphs", pool.use_count())
    graph.reset()
    lab.say("uses, one reset", pool.use_count())
    again, error = lab.attempt_capture(work, stream, pool.id, bare=True)
    lab.say("capturing again", error)
    again.reset()
    anchor.reset()
    lab.say("uses, all reset", pool.use_count())
    bench.flush()
    lab.say("bytes after a flush", lab.bytes_of(pool.id))
    again, error = lab.attempt_capture(work, stream, pool.id)
    lab.say("capturing again when no graph is left, by the context", error)
    lab.say("uses after that", pool.use_count())
    again.reset()
    lab.say("capturing again when no graph is left, bare", lab.attempt_capture(work, stream, pool.id, bare=True)[1])
    lab.say("uses after that failed", pool.use_count())


def p4(lab: Lab[T]) -> None:
    """Capture three equal graphs into one pool, on one stream or on three."""
    for title, indices in (("on one stream", (0, 0, 0)), ("on three streams", (0, 1, 2))):
        fresh = type(lab)(lab.bench)
        pool, streams = lab.bench.pool_handle(), [fresh.stream() for _ in range(3)]
        for index in indices:
            lab.capture(temporaries(lab, 40, 60), streams[index], pool)
        lab.say(f"bytes, {title}", fresh.bytes_of(pool))


def p5(lab: Lab[T]) -> None:
    """Capture a graph with a large temporary and no output, and look at three ways to tell its cost."""
    bench = lab.bench
    bench.full(64, 0.0)  # freed at once, and cached
    for title in ("the cache full", "the cache empty"):
        pool, stream = bench.pool_handle(), lab.stream()
        allocated, reserved = bench.allocated(), bench.reserved()
        graph, _ = lab.capture(lambda: discard(temporaries(lab, 512)), stream, pool)
        lab.say(f"allocated more, {title}", lab.units(bench.allocated() - allocated))
        lab.say(f"reserved more, {title}", lab.units(bench.reserved() - reserved))
        lab.say(f"segments of the pool, {title}", sum(bench.pools()[pool].values()) // bench.unit)
        graph.reset()
        bench.flush()


def p6(lab: Lab[T]) -> None:
    """Reset one of two graphs of a pool, then the only graph of a pool."""
    bench = lab.bench
    pool, stream = bench.pool_handle(), lab.stream()
    large, _ = lab.capture(lambda: discard(temporaries(lab, 200)), stream, pool)
    lab.capture(lambda: discard(temporaries(lab, 24)), stream, pool)
    lab.say("bytes of two graphs", lab.bytes_of(pool))
    large.reset()
    bench.flush()
    lab.say("bytes, the larger reset, flushed", lab.bytes_of(pool))
    lone = bench.pool_handle()
    only, _ = lab.capture(lambda: discard(temporaries(lab, 638)), stream, lone)
    only.reset()
    lab.say("bytes of an only graph, reset", lab.bytes_of(lone))
    bench.flush()
    lab.say("bytes of an only graph, reset, flushed", lab.bytes_of(lone))


_SIZES = (64, 48, 32, 24, 16)


def p7(lab: Lab[T]) -> None:
    """Estimate five graphs from the free memory before and after the two largest, each warmed, in the usual way."""
    bench = lab.bench
    pool, stream = bench.pool_handle(), lab.stream()
    lab.capture(lambda: discard(temporaries(lab, 2)), stream, bench.pool_handle())  # what the first graph of a process costs
    bodies = [temporaries(lab, size) for size in _SIZES]
    deltas = []
    for body in bodies[:2]:
        discard(body)
        bench.synchronize()
        before = bench.free()
        lab.capture(lambda body=body: discard(body), stream, pool)  # type: ignore[misc]
        deltas.append(lab.units(before - bench.free()))
    estimate = deltas[0] + max(1, deltas[1]) * (len(bodies) - 1)
    lab.say("first difference of free memory", deltas[0], within=4)
    lab.say("second difference of free memory", deltas[1], within=4)
    lab.say("estimate for five graphs", estimate, within=20)
    for body in bodies[2:]:
        lab.capture(lambda body=body: discard(body), stream, pool)  # type: ignore[misc]
    lab.say("bytes of five graphs, largest first", lab.bytes_of(pool))
    upwards = bench.pool_handle()
    for body in reversed(bodies):
        lab.capture(lambda body=body: discard(body), stream, upwards)  # type: ignore[misc]
    lab.say("bytes of five graphs, smallest first", lab.bytes_of(upwards))


_GRAPHS, _NODES = 200, 200


def p8(lab: Lab[T]) -> None:
    """Capture many graphs that need no memory of the allocator, destroy them, and capture as many again."""
    bench = lab.bench
    x, stream = bench.full(_SMALL, 0.0), lab.stream()
    pool = bench.pool_handle()
    lab.capture(lambda: bench.add_(x, 1.0), stream, pool)

    def body() -> None:
        for _ in range(_NODES):
            bench.add_(x, 1.0)

    def many() -> int | float:
        bench.synchronize()
        before = bench.free()
        graphs.extend(lab.capture(body, stream, pool)[0] for _ in range(_GRAPHS))
        return lab.units(before - bench.free())

    graphs: list[RawGraph] = []
    lab.say("taken by 200 graphs of 200 nodes, outside of all pools", many(), within=24)
    lab.say("bytes of their pool", lab.bytes_of(pool))
    before = bench.free()
    for graph in graphs:
        graph.reset()
    bench.flush()
    lab.say("returned when they are reset", lab.units(bench.free() - before), within=4)
    graphs.clear()
    lab.say("taken by the next 200", many(), within=4)


_SETS: dict[str, Sequence[Sequence[float]]] = {
    "13 graphs that nest": [(size, size / 2, size) for size in range(72, 7, -5)],
    "9 graphs of one large and one small buffer": [(size, size / 8) for size in range(64, 10, -6)],
    "128 graphs of small buffers": [(_SMALL / 8, _SMALL / 4) for _ in range(128)],
    "2 graphs of a huge buffer": [(512,), (512,)],
    "4 graphs that do not nest": [(136,), (68, 68), (126, 10.5), (64, 40, 20)],
}
"""Sets of graphs, largest first: the units of the buffers that each holds at the same time."""


def p9(lab: Lab[T]) -> None:
    """Hold the two largest of a set, in a pool of their own, against the whole set, largest first on one stream."""
    for title, graphs in _SETS.items():
        stream = lab.stream()
        lab.say(f"two largest / all: {title}", [_bytes_in_a_new_pool(lab, stream, part) for part in (graphs[:2], graphs)])


def _bytes_in_a_new_pool(lab: Lab[T], stream: Stream, graphs: Sequence[Sequence[float]]) -> int | float:
    bench = lab.bench
    pool = bench.pool_handle()
    made = []
    for buffers in graphs:

        def body(buffers: Sequence[float] = buffers) -> None:
            held = [bench.full(units, 1.0) for units in (*buffers, _SMALL)]
            bench.add_(held[0], 1.0)

        made.append(lab.capture(body, stream, pool)[0])
    size = lab.units(sum(bench.pools()[pool].values()))
    for graph in made:
        graph.reset()
    bench.flush()
    return size


def temporaries(lab: Lab[T], *units: float) -> Callable[[], T]:
    """A body with one temporary of each size, one after the other, and a small output."""

    def body() -> T:
        for size in units:
            lab.bench.full(size, 1.0)
        return lab.bench.full(_SMALL, 1.0)

    return body


def small(lab: Lab[T]) -> Callable[[], T]:
    """A body with a small output and nothing else."""
    return lambda: lab.bench.full(_SMALL, 1.0)


def discard(body: Callable[[], T]) -> None:
    """Run ``body`` and keep nothing of it."""
    body()


FACTS = (
    Fact(
        "P1",
        "A pool whose last graph was reset refuses every further capture, until a flush has made both allocators forget it.",
        p1,
    ),
    Fact("P2", "The capture that P1 refuses leaves the default generator in capture.", p2),
    Fact(
        "P3",
        "The owner of a pool is one of its uses, and its bytes return when the owner has gone.",
        p3,
        limits=(
            Limit(
                "letting an owner go after a capture into its pool was refused aborts the process", "the simulator does not end it"
            ),
        ),
    ),
    Fact(
        "P4",
        "A freed block is used again only by the stream that freed it.",
        p4,
        limits=(Limit("the same ratio with expandable segments", "the simulated allocator has segments of fixed size only"),),
    ),
    Fact("P5", "What a capture costs is exact only in the pool's own segments.", p5),
    Fact("P6", "Resetting one graph of a pool returns nothing; that of the only one returns all, at a flush.", p6),
    Fact("P7", "Extrapolating from differences of free memory misses by several times.", p7, alone=True),
    Fact(
        "P8",
        "The driver takes memory of its own for each graph, keeps it, and uses it again.",
        p8,
        alone=True,
        limits=(Limit("just how many bytes", "they are the driver's own affair: the simulator charges what was measured once"),),
    ),
    Fact(
        "P9",
        "The two largest graphs, captured first, take nearly what the whole set takes.",
        p9,
        limits=(Limit("how long sampling takes", "simulated time is not the GPU's time"),),
    ),
)
