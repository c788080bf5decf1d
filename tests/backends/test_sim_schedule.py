"""The device's clock: what runs when, in which order, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from random import Random
from threading import Thread

import pytest

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import Drawn, SimDevice, SimGraph, SimStream, SimTensor, captured, kernels
from cgstate.backends.sim.errors import (
    CAPTURE_INVALIDATED,
    CAPTURE_MERGE,
    CAPTURE_UNJOINED,
    CAPTURE_WRONG_THREAD,
    CAPTURED_EVENT,
    DEVICE_ASSERT,
    ILLEGAL_HANDLE,
    ILLEGAL_STATE,
    NOT_PERMITTED,
    SimAcceleratorError,
    SimError,
)
from cgstate.backends.sim.schedule import MAX_QUEUED
from cgstate.backends.sim.streams import StreamQueue
from cgstate.errors import ConfigError


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


def log_on(device: SimDevice, stream: SimStream, log: list[str], *names: str) -> None:
    """Queue one kernel a name that notes when it runs."""

    def note(name: str) -> tuple[()]:
        log.append(name)
        return ()

    with device.on_stream(stream):
        for name in names:
            device.launch(name, partial(note, name), (), ())


def test_nothing_runs_until_somebody_waits(device: SimDevice) -> None:
    log: list[str] = []
    log_on(device, device.default_stream, log, "a", "b")
    event = device.default_stream.record()
    assert log == []
    assert not event.done()
    assert device.step()
    assert log == ["a"]
    device.synchronize()
    assert log == ["a", "b"]
    assert event.done()
    assert not device.step()


def test_streams_take_turns_kernel_by_kernel(device: SimDevice) -> None:
    log: list[str] = []
    one, two = device.new_stream(), device.new_stream()
    log_on(device, one, log, "a1", "a2", "a3")
    log_on(device, two, log, "b1", "b2")
    one.synchronize()
    assert log == ["a1", "b1", "a2", "b2", "a3"]


def test_waiting_for_one_stream_stops_when_that_one_is_idle(device: SimDevice) -> None:
    log: list[str] = []
    one, two = device.new_stream(), device.new_stream()
    log_on(device, one, log, "a1")
    log_on(device, two, log, "b1", "b2", "b3")
    one.synchronize()
    assert log == ["a1"]


def test_an_event_orders_two_streams_under_every_drawn_schedule() -> None:
    for seed in range(30):
        device = SimDevice(schedule=Drawn(Random(seed)))
        log: list[str] = []
        one, two = device.new_stream(), device.new_stream()
        log_on(device, one, log, "write")
        two.wait(one.record())
        log_on(device, two, log, "read")
        device.synchronize()
        assert log == ["write", "read"]


def test_without_an_event_some_drawn_schedule_reorders_them() -> None:
    orders = set()
    for seed in range(30):
        device = SimDevice(schedule=Drawn(Random(seed)))
        log: list[str] = []
        one, two = device.new_stream(), device.new_stream()
        log_on(device, one, log, "write")
        log_on(device, two, log, "read")
        device.synchronize()
        orders.add(tuple(log))
    assert orders == {("write", "read"), ("read", "write")}


def test_a_drawn_device_may_be_ahead_of_the_host_and_the_draw_repeats() -> None:
    def done_at_once(seed: int) -> list[bool]:
        device = SimDevice(schedule=Drawn(Random(seed)))
        stream = device.new_stream()
        return [stream.record().done() for _ in range(20)]

    assert {True, False} == set(done_at_once(1))
    assert done_at_once(1) == done_at_once(1)


def test_a_schedule_of_ones_own_decides() -> None:
    class LastFirst:
        def choose(self, ready: Sequence[StreamQueue]) -> int:
            return len(ready) - 1

        def ahead(self) -> int:
            return 0

    device = SimDevice(schedule=LastFirst())
    log: list[str] = []
    one, two = device.new_stream(), device.new_stream()
    log_on(device, one, log, "a1", "a2")
    log_on(device, two, log, "b1", "b2")
    device.synchronize()
    assert log == ["b1", "b2", "a1", "a2"]


def test_run_until_stops_at_the_event(device: SimDevice) -> None:
    log: list[str] = []
    stream = device.new_stream()
    log_on(device, stream, log, "a")
    event = stream.record()
    log_on(device, stream, log, "b")
    device.run_until(event)
    assert (log, event.done()) == (["a"], True)


def test_a_host_that_is_too_far_ahead_waits(device: SimDevice) -> None:
    log: list[str] = []
    log_on(device, device.default_stream, log, *[str(i) for i in range(MAX_QUEUED + 5)])
    assert log == [str(i) for i in range(5)]


def test_the_current_stream_is_kept_by_thread_and_device() -> None:
    one, two = SimDevice(), SimDevice()
    stream = one.new_stream()
    with one.on_stream(stream):
        assert (one.current_handle(), two.current_handle()) == (stream.handle, 0)
        assert one.current_stream() is stream
    assert one.current_handle() == 0
    with pytest.raises(ConfigError):
        stream.wait(object())  # type: ignore[arg-type]


def test_the_current_stream_does_not_follow_a_context_into_another_thread(device: SimDevice) -> None:
    handles: list[int] = []

    def look() -> None:
        handles.extend((device.current_handle(), device.current_stream().handle))

    with device.on_stream(device.new_stream()):
        thread = Thread(target=copy_context().run, args=(look,))
        thread.start()
        thread.join()
    assert handles == [0, 0]


def test_a_thread_keeps_its_current_stream_in_whichever_context_it_runs(device: SimDevice) -> None:
    stream = device.new_stream()
    Context().run(device.set_stream, stream)
    assert (device.current_handle(), Context().run(device.current_handle)) == (stream.handle, stream.handle)
    device.set_stream(device.default_stream)


def test_a_greenlet_is_a_thread_of_its_own(device: SimDevice) -> None:
    greenlet = pytest.importorskip("greenlet").greenlet
    mine, its = device.new_stream(), device.new_stream()
    handles: list[int] = []

    def other() -> None:
        handles.append(device.current_handle())
        device.set_stream(its)
        main.switch()
        handles.append(device.current_handle())

    main, thread = greenlet.getcurrent(), greenlet(other)
    with device.on_stream(mine):
        thread.switch()
        handles.append(device.current_handle())
        thread.switch()
    assert handles == [0, mine.handle, its.handle]


def test_streams_and_events_of_another_device_are_refused(device: SimDevice) -> None:
    other = SimDevice()
    with pytest.raises(ConfigError, match="not an event of"):
        device.default_stream.wait(other.default_stream.record())
    with pytest.raises(ValueError, match="not a stream of"):
        device.set_stream(other.new_stream())


def test_a_kernel_cannot_wait_for_the_device_that_runs_it(device: SimDevice) -> None:
    x = device.zeros(1)
    codes: list[int] = []

    def kernel() -> tuple[()]:
        codes.extend(map(code_of, (device.synchronize, device.default_stream.synchronize, x.item, device.step)))
        assert device.flush() == 0
        x.fill_(2.0)
        return ()

    device.launch("kernel", kernel, (), ())
    assert x.item() == 2.0
    assert codes == [NOT_PERMITTED] * 4


def test_an_exception_in_a_kernel_ends_its_launch_and_nothing_else(device: SimDevice) -> None:
    """Whoever moves the clock gets to see it."""
    log: list[str] = []

    def fail() -> tuple[()]:
        raise ZeroDivisionError

    def body() -> None:
        log_on(device, device.current_stream(), log, "first")
        device.launch("fail", fail, (), ())
        log_on(device, device.current_stream(), log, "never")

    graph, _ = captured(device, body, device.new_stream())
    graph.replay()
    log_on(device, device.default_stream, log, "next")
    with pytest.raises(ZeroDivisionError):
        device.synchronize()
    device.synchronize()
    assert log == ["first", "next"]


@pytest.mark.parametrize("results", [[[1.0]], [[1.0, 2.0], [3.0]], []])
def test_a_kernel_that_returns_the_wrong_values_writes_nothing(device: SimDevice, results: list[list[float]]) -> None:
    x = device.zeros(2)
    device.launch("wrong", lambda: results, (), (x,))
    with pytest.raises(ValueError, match="kernel"):
        device.synchronize()
    assert x.tolist() == [0.0, 0.0]


def test_a_kernel_that_loses_the_context_is_the_last_to_run(device: SimDevice) -> None:
    log: list[str] = []

    def lose() -> tuple[()]:
        device.lose()
        return ()

    device.launch("lose", lose, (), ())
    log_on(device, device.default_stream, log, "after")
    assert code_of(device.synchronize) == DEVICE_ASSERT
    assert not device.step()
    assert log == []


def test_threads_with_pools_and_streams_of_their_own_do_not_disturb_each_other() -> None:
    """Launches, replays, copies, reads and frees of four threads at once, on a device that may be ahead."""
    device = SimDevice(schedule=Drawn(Random(0)))
    rounds = 50
    right: list[float] = []

    def serve(stream: SimStream, graph: SimGraph, x: SimTensor, out: SimTensor, base: float) -> None:
        with device.on_stream(stream):
            for turn in range(rounds):
                x.fill_(base + turn)
                graph.replay()
                if out.clone().tolist() == [2 * (base + turn)] * 8:
                    right.append(base + turn)

    threads = []
    for base in (0.0, 1000.0, 2000.0, 3000.0):
        x, stream = device.zeros(8), device.new_stream(exclusive=True)
        graph, out = captured(device, partial(kernels.scale, x, 2.0), stream)
        threads.append(Thread(target=serve, args=(stream, graph, x, out, base)))
    device.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 4 * rounds


def test_a_closed_stream_finishes_its_work_and_takes_no_more(device: SimDevice) -> None:
    log: list[str] = []
    stream = device.new_stream(exclusive=True)
    log_on(device, stream, log, "a")
    stream.close()
    stream.close()
    assert device.streams.exclusive == 0
    with pytest.raises(SimAcceleratorError) as caught:
        log_on(device, stream, log, "b")
    assert caught.value.error_code == ILLEGAL_HANDLE
    device.synchronize()
    assert log == ["a"]
    shared = device.new_stream()
    shared.close()
    log_on(device, shared, log, "c")


def test_an_exclusive_stream_lives_as_long_as_any_holder_of_it(device: SimDevice) -> None:
    stream = device.new_stream(exclusive=True)
    adopted = stream.adopted()
    del stream
    device.synchronize()
    assert device.streams.exclusive == 1
    adopted.close()
    assert device.streams.exclusive == 1
    del adopted
    device.synchronize()
    assert device.streams.exclusive == 0


# -- forks and joins in a capture -------------------------------------------------------------------------------------


def test_a_side_stream_that_is_forked_and_joined_is_part_of_the_graph(device: SimDevice) -> None:
    x, side = device.zeros(1), device.new_stream()

    def body() -> None:
        main = device.current_stream()
        side.wait(main.record())
        with device.on_stream(side):
            assert side.capturing()
            x.fill_(3.0)
        main.wait(side.record())

    graph, _ = captured(device, body, device.new_stream())
    assert not side.capturing()
    assert graph.nodes == 1
    graph.replay()
    assert x.item() == 3.0


def test_work_on_a_stream_that_was_not_forked_runs_at_once_and_is_not_recorded(device: SimDevice) -> None:
    """It escapes the capture, and nothing says so."""
    x, other = device.zeros(1), device.new_stream()

    def body() -> None:
        with device.on_stream(other):
            x.fill_(3.0)

    graph, _ = captured(device, body, device.new_stream())
    device.synchronize()
    assert (graph.nodes, x.item()) == (0, 3.0)


def test_a_join_that_misses_the_last_work_leaves_the_stream_unjoined(device: SimDevice) -> None:
    side = device.new_stream()

    def body() -> None:
        main = device.current_stream()
        side.wait(main.record())
        early = side.record()
        with device.on_stream(side):
            device.zeros(1)
        main.wait(early)

    with pytest.raises(SimAcceleratorError) as caught:
        captured(device, body, device.new_stream())
    assert caught.value.error_code == CAPTURE_UNJOINED


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(SimAcceleratorError) as caught:
        call()
    return caught.value.error_code


def test_an_event_of_a_capture_cannot_be_used_after_it(device: SimDevice) -> None:
    _, mark = captured(device, lambda: device.current_stream().record(), device.new_stream())
    other = device.new_stream()
    for use in (mark.done, mark.synchronize, lambda: other.wait(mark)):
        assert code_of(use) == CAPTURED_EVENT


def test_a_stream_is_captured_once_and_two_captures_cannot_be_merged(device: SimDevice) -> None:
    one, two = device.new_stream(), device.new_stream()
    first, second = SimGraph(device), SimGraph(device)
    with device.on_stream(one):
        first.capture_begin(None, CaptureErrorMode.relaxed)
        assert code_of(lambda: SimGraph(device).capture_begin(None, CaptureErrorMode.relaxed)) == ILLEGAL_STATE
        mark = one.record()
        with device.on_stream(two):
            second.capture_begin(None, CaptureErrorMode.relaxed)
            assert code_of(lambda: two.wait(mark)) == CAPTURE_MERGE
            with pytest.raises(SimError, match="stream it began on"):
                first.capture_end()
            assert code_of(second.capture_end) == CAPTURE_INVALIDATED
        first.capture_end()


def test_a_capture_is_ended_by_the_thread_that_began_it_unless_relaxed(device: SimDevice) -> None:
    stream = device.new_stream()
    for mode in CaptureErrorMode:
        graph = SimGraph(device)
        errors: list[SimError] = []

        def end(graph: SimGraph = graph, errors: list[SimError] = errors) -> None:
            try:
                with device.on_stream(stream):
                    graph.capture_end()
            except SimError as error:
                errors.append(error.with_traceback(None))  # whose frame has the graph, which the collector destroys at any time

        with device.on_stream(stream):
            graph.capture_begin(None, mode)
            thread = Thread(target=end)
            thread.start()
            thread.join()
            if mode is CaptureErrorMode.relaxed:
                assert errors == []
            else:
                assert isinstance(errors[0], SimAcceleratorError)
                assert errors[0].error_code == CAPTURE_WRONG_THREAD
                graph.capture_end()
        graph.replay()


def test_a_replay_inside_a_capture_is_refused_and_breaks_it(device: SimDevice) -> None:
    """Replaying inside a capture is refused."""
    inner, _ = captured(device, lambda: device.zeros(1), device.new_stream())
    with pytest.raises(SimAcceleratorError) as caught:
        captured(device, inner.replay, device.new_stream())
    assert caught.value.error_code == CAPTURE_INVALIDATED


def test_a_graph_is_not_captured_on_the_default_stream(device: SimDevice) -> None:
    with pytest.raises(SimError, match="non-default stream"):
        captured(device, lambda: None, device.default_stream)
