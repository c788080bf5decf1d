"""Release callbacks: what a graph retains is let go of by the driver, later, and on nobody's call."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from random import Random
from threading import Barrier, Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import Drawn, SimConfig, SimDevice, SimGraph, SimStream, SimTensor, captured
from cgstate.backends.sim.errors import DEVICE_ASSERT, NOT_PERMITTED, SimAcceleratorError, SimError

NODES = 3


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


def retained(device: SimDevice, log: list[str], name: str = "released", stream: SimStream | None = None) -> SimGraph:
    """A graph of `NODES` kernels that note when they run, and a callback that does."""

    def body() -> None:
        for index in range(NODES):
            device.launch(f"{name} {index}", partial(note, log, f"{name} {index}"), (), ())

    graph, _ = captured(device, body, stream or device.new_stream())
    graph.retain(lambda: log.append(name))
    return graph


def note(log: list[str], text: str) -> tuple[()]:
    log.append(text)
    return ()


def run_dry(device: SimDevice) -> None:
    while device.step():
        pass


def test_destroying_a_graph_does_not_call_back_by_itself_and_neither_does_waiting_for_the_device(device: SimDevice) -> None:
    log: list[str] = []
    graph = retained(device, log)
    device.synchronize()
    graph.destroy()
    device.synchronize()
    device.flush()
    assert log == []
    assert device.step()
    assert log == ["released"]
    assert not device.step()


def test_a_callback_waits_for_every_launch_in_flight_on_any_stream(device: SimDevice) -> None:
    log: list[str] = []
    graph, other = retained(device, log), device.new_stream()
    graph.replay()
    with device.on_stream(other):
        graph.replay()
        device.launch("after", partial(note, log, "after"), (), ())
    graph.destroy()
    run_dry(device)
    assert log.count("released") == 1
    assert log[: 2 * NODES].count("released") == 0


def test_the_callbacks_of_a_graph_come_once_each_however_often_it_is_destroyed(device: SimDevice) -> None:
    log: list[str] = []
    graph = retained(device, log)
    graph.retain(lambda: log.append("second"))
    for _ in range(2):
        graph.destroy()
        run_dry(device)
    assert sorted(log) == ["released", "second"]


def test_a_graph_that_the_garbage_collector_finds_lets_go_as_well(device: SimDevice) -> None:
    log: list[str] = []
    ring: list[object] = [retained(device, log)]
    ring.append(ring)
    del ring
    gc.collect()
    run_dry(device)
    assert log == ["released"]


def test_a_capture_that_fails_lets_go_as_well(device: SimDevice) -> None:
    log: list[str] = []
    graph = SimGraph(device)
    with device.on_stream(device.new_stream()):
        graph.capture_begin(None, CaptureErrorMode.thread_local)
        graph.retain(lambda: log.append("released"))
        with pytest.raises(SimAcceleratorError):
            device.zeros(1).item()
        with pytest.raises(SimAcceleratorError):
            graph.capture_end()
    assert log == []
    run_dry(device)
    assert log == ["released"]


def test_only_a_graph_with_a_capture_can_retain_something(device: SimDevice) -> None:
    graph = retained(device, [])
    graph.destroy()
    for unable in (SimGraph(device), graph):
        with pytest.raises(SimError, match="has no capture"):
            unable.retain(lambda: None)


@pytest.mark.parametrize(
    "call",
    [
        lambda device: device.empty(1),
        lambda device: device.synchronize(),
        lambda device: device.step(),
        lambda device: device.flush(),
        lambda device: device.new_stream(),
        lambda device: device.new_pool(),
        lambda device: device.default_stream.record(),
        lambda device: device.lose(),
    ],
)
def test_a_callback_may_not_call_the_device(device: SimDevice, call: Callable[[SimDevice], object]) -> None:
    codes: list[int] = []

    def release() -> None:
        try:
            call(device)
        except SimAcceleratorError as error:
            codes.append(error.error_code)

    graph = retained(device, [])
    graph.retain(release)
    graph.destroy()
    run_dry(device)
    assert codes == [NOT_PERMITTED]
    assert device.zeros(1).item() == 0.0


def test_destructors_in_a_callback_are_no_calls_and_what_they_leave_is_carried_out_later(device: SimDevice) -> None:
    held: list[SimTensor | SimGraph | SimStream] = [device.zeros(1), retained(device, []), device.new_stream(exclusive=True)]
    graph = retained(device, [])
    graph.retain(held.clear)
    before = device.allocated_bytes()
    graph.destroy()
    run_dry(device)
    assert held == []
    assert device.allocated_bytes() < before
    assert device.streams.exclusive == 0


def test_an_exception_in_a_callback_is_reported_and_harms_nobody(device: SimDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    log: list[str] = []
    graph = retained(device, log)

    def release() -> None:
        raise KeyError("callback")

    graph.retain(release)
    graph.destroy()
    x = device.zeros(1)
    run_dry(device)
    assert log == ["released"]
    assert [(report.exc_type, report.object) for report in reports] == [(KeyError, release)]
    assert x.item() == 0.0


def test_a_callback_may_come_while_another_thread_captures_and_does_not_break_it(device: SimDevice) -> None:
    log: list[str] = []
    graph, mine = retained(device, log), SimGraph(device)
    graph.destroy()
    with device.on_stream(device.new_stream()):
        mine.capture_begin(None, CaptureErrorMode.thread_local)
        device.zeros(1)
        thread = Thread(target=run_dry, args=(device,))
        thread.start()
        thread.join()
        assert log == ["released"]
        mine.capture_end()
    mine.replay()


def test_a_callback_runs_on_whichever_thread_moves_the_clock(device: SimDevice) -> None:
    """And not while two of them do: the driver's calls come one at a time."""
    inside: list[bool] = []
    overlapped: list[bool] = []

    def release() -> None:
        overlapped.append(bool(inside))
        inside.append(True)
        inside.pop()

    for _ in range(20):
        graph = retained(device, [])
        graph.retain(release)
        graph.destroy()
    start = Barrier(3)

    def move() -> None:
        start.wait()
        run_dry(device)

    threads = [Thread(target=move) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlapped == [False] * 20


def test_a_lost_context_never_calls_back(device: SimDevice) -> None:
    log: list[str] = []
    early, late = retained(device, log), retained(device, log)
    early.destroy()
    device.lose(DEVICE_ASSERT)
    late.destroy()
    assert not device.step()
    assert log == []
    with pytest.raises(SimAcceleratorError) as caught:
        late.retain(lambda: None)
    assert caught.value.error_code == DEVICE_ASSERT


def test_a_launch_that_ended_in_an_exception_has_ended(device: SimDevice) -> None:
    log: list[str] = []

    def fail() -> tuple[()]:
        raise ZeroDivisionError

    graph, _ = captured(device, lambda: device.launch("fail", fail, (), ()), device.new_stream())
    graph.retain(lambda: log.append("released"))
    graph.replay()
    graph.destroy()
    with pytest.raises(ZeroDivisionError):
        device.synchronize()
    run_dry(device)
    assert log == ["released"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["replay", "destroy", "wait", "step"]), max_size=25))
def test_under_every_drawn_schedule_a_callback_follows_the_last_kernel_of_its_graph(seed: int, acts: list[str]) -> None:
    random = Random(seed)
    device = SimDevice(schedule=Drawn(random))
    streams = [device.new_stream() for _ in range(3)]
    log: list[str] = []
    graphs = {name: retained(device, log, name) for name in ("a", "b", "c")}
    device.synchronize()
    names = list(graphs)
    launched = dict.fromkeys(names, 0)
    for act in acts:
        name, stream = random.choice(names), random.choice(streams)
        with device.on_stream(stream):
            match act:
                case "replay" if name in graphs:
                    graphs[name].replay()
                    launched[name] += 1
                case "destroy" if name in graphs:
                    graphs.pop(name).destroy()
                case "wait":
                    stream.synchronize()
                case "step":
                    device.step()
    for name in list(graphs):
        graphs.pop(name).destroy()
    run_dry(device)
    for name in names:
        kernels = [text for text in log if text.startswith(f"{name} ")]
        assert len(kernels) == NODES * launched[name]
        assert log.count(name) == 1
        assert all(log.index(name) > at for at, text in enumerate(log) if text.startswith(f"{name} "))


def test_the_schedule_decides_when_a_callback_comes() -> None:
    """Before or after work that was queued later: both happen."""
    orders = set()
    for seed in range(30):
        device = SimDevice(schedule=Drawn(Random(seed)))
        log: list[str] = []
        graph = retained(device, log)
        device.synchronize()
        graph.destroy()
        device.launch("later", partial(note, log, "later"), (), ())
        run_dry(device)
        orders.add(tuple(log))
    assert orders == {("released", "later"), ("later", "released")}


@pytest.mark.parametrize("newer", [False, True])
def test_a_graph_dropped_before_its_capture_began_gives_its_pool_back_where_a_reset_does(newer: bool) -> None:
    device = SimDevice(SimConfig(release_pool_on_destroy=newer))
    pool = device.new_pool()
    device.faults.inject("begin_stream_capture", error=SimError("injected"))
    graph = SimGraph(device)
    with device.on_stream(device.new_stream()), pytest.raises(SimError, match="injected"):
        graph.capture_begin(pool.id, CaptureErrorMode.thread_local)
    graph.undo_route()
    del graph
    gc.collect()
    assert pool.use_count() == (1 if newer else 2)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_only_a_mark_is_behind_what_the_driver_has_to_let_go_of(seed: int) -> None:
    device, log = SimDevice(schedule=Drawn(Random(seed))), list[str]()
    graphs = [retained(device, log, name) for name in ("first", "second")]
    for graph in graphs:
        graph.replay()
        graph.destroy()
    mark = device.mark_releases()
    later = retained(device, log, "later")
    later.destroy()
    assert mark.wait(None)
    assert {"first", "second"} <= set(log)
    assert mark.wait(0), "it may be said again"
    run_dry(device)
    assert sorted(set(log) & {"first", "second", "later"}) == ["first", "later", "second"]


def test_a_mark_on_a_lost_device_waits_for_nothing(device: SimDevice) -> None:
    log: list[str] = []
    graph = retained(device, log)
    graph.replay()
    graph.destroy()
    mark = device.mark_releases()
    device.lose()
    assert mark.wait(None)
    assert log == []
    with pytest.raises(SimAcceleratorError):
        device.mark_releases()
