"""Fault injection: by name, by count, before and after, and the counter that a test plans with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from cgstate.backends.base import Backend, CaptureErrorMode, Event, Graph, MemoryPool, Stream
from cgstate.backends.sim import SimBackend, SimEvent, SimGraph, SimPool, SimStream, SimTensor
from cgstate.backends.sim.errors import SimOutOfMemory
from cgstate.backends.sim.faults import InjectedFault
from cgstate.backends.undo import UndoLog


@pytest.fixture
def backend() -> SimBackend:
    return SimBackend()


def test_a_fault_before_a_call_keeps_it_from_acting(backend: SimBackend) -> None:
    backend.faults.inject("new_stream")
    with pytest.raises(InjectedFault, match="before new_stream"):
        backend.new_stream(exclusive=True)
    assert backend.sim.streams.exclusive == 0


def test_a_fault_after_a_call_lets_it_act_and_keeps_the_result_back(backend: SimBackend) -> None:
    graph, out = _graph(backend)
    backend.faults.inject("graph_replay", when="after")
    with pytest.raises(InjectedFault, match="after graph_replay"):
        graph.replay()
    assert out.item() == 7.0


def test_a_handle_whose_maker_never_got_it_does_not_leak(backend: SimBackend) -> None:
    calls: tuple[Callable[[], object], ...] = (lambda: backend.new_stream(exclusive=True), backend.new_pool)
    for name, call in zip(("new_stream", "new_pool"), calls, strict=True):
        backend.faults.inject(name, when="after")
        with pytest.raises(InjectedFault):
            call()
    backend.flush()
    assert backend.sim.streams.exclusive == 0
    assert backend.footprint().pools == {}


def test_memory_whose_caller_never_got_it_does_not_leak(backend: SimBackend) -> None:
    backend.faults.inject("allocate", when="after")
    with pytest.raises(InjectedFault):
        backend.sim.empty(4)
    assert backend.sim.allocated_bytes() == 0


def test_the_nth_call_from_now_on_fails_once_with_the_given_error(backend: SimBackend) -> None:
    backend.sim.zeros(1)
    error = SimOutOfMemory("injected")
    backend.faults.inject("allocate", nth=2, error=error)
    backend.sim.zeros(1)
    with pytest.raises(SimOutOfMemory, match="injected"):
        backend.sim.zeros(1)
    assert backend.faults.pending() == 0
    backend.sim.zeros(1)


def test_two_faults_due_at_once_are_raised_one_after_the_other(backend: SimBackend) -> None:
    for name in ("first", "second"):
        backend.faults.inject("flush", error=ValueError(name))
    for name in ("first", "second"):
        with pytest.raises(ValueError, match=name):
            backend.flush()
    backend.flush()


def test_other_calls_do_not_trigger_or_count_for_a_fault(backend: SimBackend) -> None:
    backend.faults.inject("flush", when="after", nth=1)
    backend.faults.inject("flush", when="before", nth=3)
    backend.footprint()
    assert backend.faults.pending() == 2
    backend.faults.clear()
    backend.flush()


def test_calls_are_counted_from_one(backend: SimBackend) -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        backend.faults.inject("flush", nth=0)


def test_a_fault_that_could_never_be_raised_is_refused(backend: SimBackend) -> None:
    with pytest.raises(ValueError, match="no call is named 'flsh'"):
        backend.faults.inject("flsh")
    for step in ("launch", "undo: heal the generator", "flush"):
        backend.faults.inject(step, when="after")


ASK_NOTHING_OF_THE_DEVICE = {
    "Backend": {
        "address",
        "allocating_mode",
        "autocast",
        "autocasting",
        "check_static",
        "current_handle",
        "device",
        "failure_kind",
        "forget_casts",
        "grad_enabled",
        "index",
        "mebibyte",
        "name",
        "nbytes",
        "on_stream",
        "recording_mode",
        "requires_grad",
        "serves_unrecorded",
        "storage",
        "storages",
        "tensor",
    },
    "Stream": {"handle"},
    "Event": set(),
    "MemoryPool": {"id"},
    "Graph": set(),
}


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [(Backend, SimBackend), (Stream, SimStream), (Event, SimEvent), (MemoryPool, SimPool), (Graph, SimGraph)],
)
def test_every_call_of_the_backend_protocol_can_be_broken(protocol: type, kind: type) -> None:
    asked = {name for name in vars(protocol) if not name.startswith("_")} - ASK_NOTHING_OF_THE_DEVICE[protocol.__name__]
    broken = {name for name in asked if hasattr(getattr(kind, name), "__wrapped__")}
    assert asked - broken == ({"flush"} if kind is SimBackend else set())  # the device's own call of that name can be


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_call_that_a_scenario_makes_can_be_broken_in_turn(when: Literal["before", "after"]) -> None:
    """The counter lists the calls; breaking the k-th of each, the scenario fails at it and nowhere else."""

    def scenario(backend: SimBackend) -> None:
        graph, out = _graph(backend)
        event = backend.current_stream().record()
        graph.replay()
        backend.clone([out])
        event.synchronize()
        backend.sim.tensor([1.0]).tolist()
        backend.sim.synchronize()
        graph.destroy()
        backend.flush()

    counted = SimBackend()
    scenario(counted)
    calls = {name: count for name, count in counted.faults.calls.items() if name != "undo: restore the stream"}
    assert {"open_capture", "instantiate", "launch", "allocate", "graph_replay", "clone", "flush"} <= set(calls)
    for name, count in calls.items():
        for nth in range(1, count + 1):
            backend = SimBackend()
            backend.faults.inject(name, when=when, nth=nth)
            with pytest.raises(InjectedFault, match=name):
                scenario(backend)
            assert backend.faults.calls[name] == nth


def _graph(backend: SimBackend) -> tuple[SimGraph, SimTensor]:
    pool, stream, undo = backend.new_pool(), backend.new_stream(exclusive=True), UndoLog()
    out = backend.sim.zeros(1)
    try:
        graph = backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
        out.fill_(7.0)
        backend.close_capture(graph)
    except BaseException:
        undo.fail()
        raise
    undo.succeed()
    return graph, out
