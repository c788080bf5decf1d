"""Workspaces of the linear algebra library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from cgstate.backends.base import Stream
from cgstate.testing.fidelity.bench import RawGraph
from cgstate.testing.fidelity.fact import Fact, Limit, Rule
from cgstate.testing.fidelity.lab import Lab

T = TypeVar("T")

_W2_TOLD = "somebody else's memory overwritten, no clear"

_HOW_MUCH = Limit(
    "how many elements are overwritten",
    "the simulated library uses as much of its workspace as its product needs, and the real one as its algorithm likes",
)


def w1(lab: Lab[T]) -> None:
    """See in whose pool a workspace is made."""
    bench = lab.bench
    x = _with_library(lab)
    for title in ("new to the library", "warmed"):
        stream = lab.stream()
        if title == "warmed":
            with bench.on(stream):
                bench.product(x)
        pools = [bench.pool_handle(), bench.pool_handle()]
        for pool in pools:
            lab.capture(lambda: bench.product(x), stream, pool)
        lab.say(f"bytes of two pools on one stream, {title}", [lab.bytes_of(pool) for pool in pools])

    def use() -> None:
        with bench.on(stream):
            bench.product(x)

    for thread in ("another thread", "a third one, after the end of that"):
        before = bench.reserved()
        lab.elsewhere(use)
        lab.say(f"reserved more by the first product of {thread}, same stream", lab.units(bench.reserved() - before))


def w2(lab: Lab[T]) -> None:
    """Two graphs, two pools, one capture stream: reset the first, clear the workspaces, replay the second."""
    bench = lab.bench
    x = _with_library(lab)
    stream = lab.stream()
    pools = [bench.pool_handle() for _ in range(2)]
    a, b = (lab.capture(lambda: bench.product(x), stream, pool)[0] for pool in pools)
    a.reset()
    bench.flush()
    with lab.refilled_by_somebody_else() as overwritten:
        b.replay()
        lab.say(_W2_TOLD, overwritten())
    bench.clear_workspaces()
    bench.flush()
    with lab.refilled_by_somebody_else() as overwritten:
        lab.say("replay after the clear", lab.attempt(b.replay))
        lab.say("somebody else's memory overwritten, workspaces cleared", overwritten())
    outside = lab.stream()
    with bench.on(outside):
        bench.product(x)
    graph, _ = lab.capture(lambda: bench.product(x), outside)
    bench.clear_workspaces()
    bench.flush()
    graph.replay()
    lab.say("synchronize, the workspace having lain outside the pools", lab.attempt(bench.synchronize))


def w3(lab: Lab[T]) -> None:
    """Separate pools and streams, workspaces made outside the pools or inside."""
    bench = lab.bench
    x = _with_library(lab)
    for title in ("made outside", "made in its own pool"):
        streams = [lab.stream() for _ in range(2)]
        pools = [bench.owned_pool() for _ in range(2)]
        for stream, pool in zip(streams, pools, strict=True):
            with bench.on(stream):
                if title == "made outside":
                    bench.product(x)
                else:
                    with bench.allocating_from(pool):
                        bench.product(x)
        (a, _), (b, output) = (
            lab.capture(lambda: bench.product(x), stream, pool.id) for stream, pool in zip(streams, pools, strict=True)
        )
        a.reset()
        bench.drop_pool(pools[0])
        bench.clear_workspaces()
        bench.flush()
        with lab.refilled_by_somebody_else() as overwritten:
            b.replay()
            lab.say(f"somebody else's memory overwritten, workspace {title}", overwritten())
        lab.say(f"the result, workspace {title}", list(bench.values(output)))


def w4(lab: Lab[T]) -> None:
    """Retire a set of graphs, and get every byte back."""
    bench = lab.bench
    x = _with_library(lab)
    pool, streams = bench.pool_handle(), [lab.stream(), lab.stream()]
    before = bench.reserved()
    graphs = [lab.capture(lambda: bench.product(x), stream, pool)[0] for stream in streams]
    lab.say("reserved for two graphs on two streams", lab.units(bench.reserved() - before))
    _reset(graphs)
    bench.flush()
    lab.say("reserved, both reset, flushed", lab.units(bench.reserved() - before))
    bench.clear_workspaces()
    bench.flush()
    lab.say("reserved, workspaces cleared, flushed", lab.units(bench.reserved() - before))


def w5(lab: Lab[T]) -> None:
    """Two graphs with pools of their own, on two streams that have one handle."""
    bench = lab.bench
    x = _with_library(lab)
    streams = _with_one_handle(lab)
    pools = [bench.owned_pool() for _ in range(2)]
    for stream, pool in zip(streams, pools, strict=True):
        with bench.on(stream), bench.allocating_from(pool):
            bench.product(x)
    a, b = (lab.capture(lambda: bench.product(x), stream, pool.id)[0] for stream, pool in zip(streams, pools, strict=True))
    a.reset()
    bench.drop_pool(pools[0])
    bench.clear_workspaces()
    bench.flush()
    with lab.refilled_by_somebody_else() as overwritten:
        lab.say("replay of the second, the first being gone", lab.attempt(b.replay))
        lab.say("somebody else's memory overwritten", overwritten())


def _with_library(lab: Lab[T]) -> T:
    """An input for products, on a device whose library has a handle (fact F8) and no workspace yet."""
    bench = lab.bench
    x = bench.full(1, 3.0)
    bench.product(x)
    bench.clear_workspaces()
    bench.flush()
    return x


def _with_one_handle(lab: Lab[T]) -> Sequence[Stream]:
    streams = [lab.bench.framework_stream() for _ in range(33)]
    lab.say("the 33rd stream has the handle of the first", streams[0].handle == streams[32].handle)
    return streams[0], streams[32]


def _reset(graphs: list[RawGraph]) -> None:
    for graph in graphs:
        graph.reset()


FACTS = (
    Fact(
        "W1",
        "A workspace is that of a thread's handle and a stream, made in whichever pool is in use when they first need it.",
        w1,
    ),
    Fact(
        "W2",
        "Clearing workspaces after a graph was reset lets one captured on the same stream overwrite somebody else's memory.",
        w2,
        rule=Rule("clear_workspaces_on_destroy", _W2_TOLD, True),
        limits=(_HOW_MUCH,),
    ),
    Fact("W3", "Only a workspace that was made in the graph's own pool makes the clear harmless.", w3, limits=(_HOW_MUCH,)),
    Fact("W4", "Workspaces are the last bytes of a retired set: they return after a clear and a flush.", w4),
    Fact("W5", "Two graphs on one stream handle share a workspace, wherever their pools are.", w5, limits=(_HOW_MUCH,)),
)
