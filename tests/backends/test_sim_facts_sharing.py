"""Rows T1-T5 and S1-S4 of gpu-facts on the simulated device: threads, streams, open captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from threading import Thread

import pytest

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import (
    Drawn,
    SimDevice,
    SimGraph,
    SimTensor,
    captured,
    kernels,
)
from cgstate.backends.sim.errors import (
    CAPTURE_INVALIDATED,
    CAPTURE_UNSUPPORTED,
    SimAcceleratorError,
    SimError,
    SimGeneratorError,
)

KIB = 1024
CELLS = KIB // 8
MODES = list(CaptureErrorMode)


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


def elsewhere(call: Callable[[], object]) -> BaseException | None:
    """What ``call`` raises in another thread."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except SimError as error:
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return errors[0] if errors else None


@contextmanager
def open_capture(device: SimDevice, mode: CaptureErrorMode) -> Iterator[SimGraph]:
    """A capture that is open for the block and sound at its end."""
    graph = SimGraph(device)
    with device.on_stream(device.new_stream()):
        graph.capture_begin(None, mode)
        yield graph
        graph.capture_end()


def code(error: BaseException | None) -> int | None:
    return error.error_code if isinstance(error, SimAcceleratorError) else None


def chain(device: SimDevice, x: SimTensor) -> Callable[[], SimTensor]:
    """Several kernels, each with a temporary that the next ones reuse."""

    def body() -> SimTensor:
        y = x
        for _ in range(4):
            y = kernels.add(kernels.scale(y, 3.0), x)
        return y

    return body


# -- threads, streams, destruction ------------------------------------------------------------------------------------


def test_two_graphs_of_one_pool_replayed_at_once_give_wrong_results(device: SimDevice) -> None:
    """T1."""
    pool, capture_stream = device.new_pool(), device.new_stream()
    inputs = [device.tensor([1.0, 2.0]), device.tensor([5.0, 7.0])]
    graphs, outputs = zip(*[captured(device, chain(device, x), capture_stream, pool.id) for x in inputs], strict=True)
    right = []
    for graph, output in zip(graphs, outputs, strict=True):
        graph.replay()
        right.append(output.tolist())
    streams = [device.new_stream(), device.new_stream()]
    for graph, stream in zip(graphs, streams, strict=True):
        with device.on_stream(stream):
            graph.replay()
    device.synchronize()
    assert [output.tolist() for output in outputs] != right
    for graph, stream in zip(graphs, streams, strict=True):
        with device.on_stream(stream):
            graph.replay()
            stream.synchronize()
    assert [output.tolist() for output in outputs] == right


def test_a_reset_does_not_wait_for_a_replay_in_flight_but_a_flush_does(device: SimDevice) -> None:
    """T2, S3."""
    x = device.tensor([1.0, 2.0])
    graph, output = captured(device, chain(device, x), device.new_stream())
    graph.replay()
    right = output.tolist()
    x.fill_(2.0)
    graph.replay()
    queued = len(device.streams.default.work)
    graph.destroy()
    assert len(device.streams.default.work) == queued
    device.flush()
    assert len(device.streams.default.work) == 0
    assert output.tolist() == [right[0] * 2, right[0] * 2] if isinstance(right, list) else False


@pytest.mark.parametrize("mode", MODES)
def test_resetting_another_graph_inside_a_capture_invalidates_it_unless_relaxed(device: SimDevice, mode: CaptureErrorMode) -> None:
    """T3; no error at the reset itself."""
    other, _ = captured(device, lambda: device.zeros(1), device.new_stream())
    graph = SimGraph(device)
    with device.on_stream(device.new_stream()):
        graph.capture_begin(None, mode)
        other.destroy()
        if mode is CaptureErrorMode.relaxed:
            graph.capture_end()
            graph.replay()
        else:
            with pytest.raises(SimAcceleratorError) as caught:
                graph.capture_end()
            assert code(caught.value) == CAPTURE_INVALIDATED


def test_a_graph_collected_inside_a_capture_invalidates_it(device: SimDevice) -> None:
    """T3, by a destructor."""
    other, _ = captured(device, lambda: device.zeros(1), device.new_stream())
    graph = SimGraph(device)
    with device.on_stream(device.new_stream()):
        graph.capture_begin(None, CaptureErrorMode.thread_local)
        del other
        with pytest.raises(SimAcceleratorError) as caught:
            graph.capture_end()
    assert code(caught.value) == CAPTURE_INVALIDATED


@pytest.mark.parametrize("mode", MODES)
def test_another_threads_stream_synchronize_breaks_a_global_capture_and_itself(device: SimDevice, mode: CaptureErrorMode) -> None:
    """T4."""
    x = device.zeros(2)
    other, _ = captured(device, lambda: x.fill_(1.0), device.new_stream())

    def work() -> None:
        other.replay()
        device.current_stream().synchronize()

    graph = SimGraph(device)
    with device.on_stream(device.new_stream()):
        graph.capture_begin(None, mode)
        theirs = elsewhere(work)
        if mode is CaptureErrorMode.global_:
            assert code(theirs) == CAPTURE_UNSUPPORTED
            with pytest.raises(SimAcceleratorError) as ours:
                graph.capture_end()
            assert code(ours.value) == CAPTURE_INVALIDATED
            assert ours.value.__cause__ is None  # not the routine's own doing
        else:
            assert theirs is None
            graph.capture_end()
            assert x.tolist() == [1.0, 1.0]


def test_an_output_held_without_a_copy_changes_at_the_next_replay(device: SimDevice) -> None:
    """T5."""
    x = device.tensor([1.0])
    graph, output = captured(device, lambda: kernels.scale(x, 2.0), device.new_stream())
    graph.replay()
    copied = output.clone()
    x.fill_(4.0)
    graph.replay()
    assert (output.item(), copied.item()) == (8.0, 2.0)


# -- streams and open captures ----------------------------------------------------------------------------------------


def test_the_frameworks_streams_share_32_handles_in_turn(device: SimDevice) -> None:
    """S1."""
    handles = [device.new_stream().handle for _ in range(100)]
    assert len(set(handles)) == 32
    assert handles[32] == handles[0]
    exclusive = [device.new_stream(exclusive=True).handle for _ in range(100)]
    assert len({*exclusive, *handles, 0}) == 133


def test_random_numbers_of_another_thread_raise_while_a_capture_is_open(device: SimDevice) -> None:
    """S2: eager draws and replays of graphs that draw; other replays are fine, the same pool's too."""
    pool, stream = device.new_pool(), device.new_stream()
    draws, _ = captured(device, lambda: device.rand(4), stream, pool.id)
    plain, _ = captured(device, lambda: device.zeros(4), stream, pool.id)
    graph = SimGraph(device)
    with device.on_stream(stream):
        graph.capture_begin(pool.id, CaptureErrorMode.thread_local)
        assert isinstance(elsewhere(lambda: device.rand(4)), SimGeneratorError)
        assert isinstance(elsewhere(draws.replay), SimGeneratorError)
        assert elsewhere(plain.replay) is None
        device.rand(4)
        graph.capture_end()
    draws.replay()


def test_a_device_synchronize_of_another_thread_raises_and_invalidates(device: SimDevice) -> None:
    """S2."""
    graph = SimGraph(device)
    with device.on_stream(device.new_stream()):
        graph.capture_begin(None, CaptureErrorMode.thread_local)
        assert code(elsewhere(device.synchronize)) == CAPTURE_UNSUPPORTED
        with pytest.raises(SimAcceleratorError) as caught:
            graph.capture_end()
    assert code(caught.value) == CAPTURE_INVALIDATED


def test_what_other_threads_may_do_while_a_capture_is_open(device: SimDevice) -> None:
    """S2: flush, host reads, event queries and a clear of the workspaces are fine."""
    x = device.tensor([1.0, 2.0])
    event = device.default_stream.record()
    with open_capture(device, CaptureErrorMode.thread_local) as graph:
        for call in (device.flush, x.tolist, event.done, device.library.clear, x.clone):
            assert elsewhere(call) is None
        kernels.scale(x, 2.0)
    assert graph.nodes == 1


def test_a_flush_waits_for_the_device_and_a_reset_does_not(device: SimDevice) -> None:
    """S3; dropping a pool waits, too."""
    pool, stream = device.new_pool(), device.new_stream()
    graph, _ = captured(device, lambda: device.zeros(1), stream, pool.id)
    busy = device.new_stream()
    with device.on_stream(busy):
        device.zeros(1)
    graph.destroy()
    assert busy.queue.work
    pool.drop()
    assert not busy.queue.work


def test_what_a_failed_capture_grew_in_a_pool_with_a_live_graph_stays_there(device: SimDevice) -> None:
    """S4."""
    pool, stream = device.new_pool(), device.new_stream()
    graph, output = captured(device, lambda: device.zeros(20 * CELLS), stream, pool.id)

    def fails() -> None:
        device.zeros(1024 * CELLS)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        captured(device, fails, stream, pool.id)
    device.flush()
    assert pool.reserved_bytes() == {stream.handle: 1044 * KIB}
    captured(device, lambda: device.zeros(1024 * CELLS), stream, pool.id)
    assert pool.reserved_bytes() == {stream.handle: 1044 * KIB}
    graph.replay()
    assert set(output.tolist()) == {0.0}  # type: ignore[arg-type]


def test_overlapping_replays_are_wrong_under_some_drawn_schedule_and_right_in_turn() -> None:
    """T1 under `Drawn`: the corruption depends on the schedule, the cure does not."""
    wrong = 0
    for seed in range(20):
        device = SimDevice(schedule=Drawn(Random(seed)))
        pool, stream = device.new_pool(), device.new_stream()
        inputs = [device.tensor([1.0]), device.tensor([5.0])]
        device.synchronize()
        pairs = [captured(device, chain(device, x), stream, pool.id) for x in inputs]
        right = []
        for graph, output in pairs:
            graph.replay()
            right.append(output.item())
        for graph, _ in pairs:
            with device.on_stream(device.new_stream()):
                graph.replay()
        device.synchronize()
        wrong += [output.item() for _, output in pairs] != right
    assert 0 < wrong <= 20
