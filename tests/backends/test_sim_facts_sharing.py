"""Rows T1-T5, W1-W5 and S1-S4 of gpu-facts on the simulated device: threads, streams, workspaces, open captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from threading import Thread

import pytest

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import (
    Drawn,
    SimConfig,
    SimDevice,
    SimGraph,
    SimTensor,
    allocating_from,
    captured,
    kernels,
)
from cgstate.backends.sim.errors import (
    CAPTURE_INVALIDATED,
    CAPTURE_UNSUPPORTED,
    ILLEGAL_ADDRESS,
    SimAcceleratorError,
    SimError,
    SimGeneratorError,
    SimMemoryError,
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


# -- library workspaces -----------------------------------------------------------------------------------------------


def square(device: SimDevice) -> SimTensor:
    return device.tensor([[1.0, 2.0], [3.0, 4.0]])


def with_library(config: SimConfig | None = None) -> tuple[SimDevice, SimTensor]:
    """A device whose library has a handle (F8), its default stream's workspace freed again."""
    device = SimDevice(config)
    x = square(device)
    kernels.matmul(x, x)
    device.library.clear()
    device.flush()
    return device, x


def test_a_workspace_is_born_in_whichever_pool_is_recorded_when_its_stream_first_needs_it() -> None:
    """W1."""
    device, x = with_library()
    stream, warmed = device.new_stream(), device.new_stream()
    first, second, third, fourth = (device.new_pool() for _ in range(4))
    kept = [captured(device, lambda: kernels.matmul(x, x), stream, pool.id) for pool in (first, second)]
    assert sum(first.reserved_bytes().values()) == 34 * KIB
    assert sum(second.reserved_bytes().values()) == 2 * KIB
    with device.on_stream(warmed):
        kernels.matmul(x, x)
    kept += [captured(device, lambda: kernels.matmul(x, x), warmed, pool.id) for pool in (third, fourth)]
    assert [sum(pool.reserved_bytes().values()) for pool in (third, fourth)] == [2 * KIB, 2 * KIB]
    assert len(kept) == 4


def two_graphs_and_a_victim(device: SimDevice, x: SimTensor, *, inside: bool) -> tuple[SimGraph, SimTensor]:
    """The steps of W2 up to B's replay: A is gone, the workspaces are cleared, somebody has the memory."""
    stream = device.new_stream()
    if not inside:
        with device.on_stream(stream):
            kernels.matmul(x, x)
    pools = [device.new_pool(), device.new_pool()]
    (a, out_a), (b, out_b) = (captured(device, lambda: kernels.matmul(x, x), stream, pool.id) for pool in pools)
    del out_a, out_b
    a.destroy()
    pools[0].drop()
    device.library.clear()
    device.flush()
    victim = device.zeros(32 * CELLS if inside else 1)
    return b, victim


def test_a_graph_whose_workspace_was_freed_overwrites_somebody_elses_tensor() -> None:
    """W2, silently, as on the hardware."""
    device, x = with_library(SimConfig(sanitize=False))
    b, victim = two_graphs_and_a_victim(device, x, inside=True)
    b.replay()
    values = victim.tolist()
    assert isinstance(values, list)
    assert sum(value != 0.0 for value in values) == 8


def test_a_graph_whose_workspace_is_no_longer_mapped_loses_the_context() -> None:
    """W2, workspace outside the pools."""
    device, x = with_library(SimConfig(sanitize=False))
    b, _ = two_graphs_and_a_victim(device, x, inside=False)
    b.replay()
    with pytest.raises(SimAcceleratorError) as caught:
        device.synchronize()
    assert code(caught.value) == ILLEGAL_ADDRESS


@pytest.mark.parametrize("inside", [True, False])
def test_the_sanitizer_names_the_replay_that_uses_freed_memory(inside: bool) -> None:
    """W2, with the detector on: the victim stays whole."""
    device, x = with_library()
    b, victim = two_graphs_and_a_victim(device, x, inside=inside)
    with pytest.raises(SimMemoryError, match="matmul_partial"):
        b.replay()
    assert set(victim.reshape(victim.numel()).tolist()) == {0.0}  # type: ignore[arg-type]


@pytest.mark.parametrize("newer", [False, True])
def test_newer_releases_clear_a_streams_workspaces_when_a_graph_of_it_is_destroyed(newer: bool) -> None:
    """W2, version-gated: no explicit clear is needed there."""
    device, x = with_library(SimConfig(clear_workspaces_on_destroy=newer))
    stream = device.new_stream()
    a, _ = captured(device, lambda: kernels.matmul(x, x), stream)
    b, _ = captured(device, lambda: kernels.matmul(x, x), stream)
    a.destroy()
    if newer:
        with pytest.raises(SimMemoryError):
            b.replay()
    else:
        b.replay()


@pytest.mark.parametrize("primed", [False, True])
def test_only_a_workspace_born_in_the_graphs_own_pool_survives_a_clear(primed: bool) -> None:
    """W3."""
    device, x = with_library()
    kept = []
    for _ in range(2):
        pool, stream = device.new_pool(), device.new_stream()
        with device.on_stream(stream):
            if primed:
                with allocating_from(pool):
                    device.library.workspace()
            else:
                kernels.matmul(x, x)
        kept.append((pool, *captured(device, lambda: kernels.matmul(x, x), stream, pool.id)))
    (_, a, _), (_, b, out) = kept
    a.destroy()
    device.library.clear()
    device.flush()
    if primed:
        victim = device.zeros(64 * CELLS)
        b.replay()
        assert out.tolist() == [[7.0, 10.0], [15.0, 22.0]]
        assert set(victim.tolist()) == {0.0}  # type: ignore[arg-type]
    else:
        with pytest.raises(SimMemoryError):
            b.replay()


def test_retiring_a_generation_returns_its_workspaces_only_when_they_are_cleared() -> None:
    """W4."""
    device, x = with_library()
    device.flush()
    before = device.reserved_bytes()
    pool, streams = device.new_pool(), [device.new_stream(), device.new_stream()]
    graphs = [captured(device, lambda: kernels.matmul(x, x), stream, pool.id)[0] for stream in streams]
    assert device.reserved_bytes() - before == (2 * 32 + 2 * 2) * KIB
    for graph in graphs:
        graph.destroy()
    pool.drop()
    device.flush()
    assert device.reserved_bytes() - before == 2 * 32 * KIB
    device.library.clear()
    device.flush()
    assert device.reserved_bytes() == before


def test_two_entries_on_one_stream_handle_share_the_workspace_of_the_first() -> None:
    """W5: own pools do not help where the handle is the same (S1)."""
    device, x = with_library()
    streams = [device.new_stream() for _ in range(33)]
    pools = [device.new_pool(), device.new_pool()]
    for pool, stream in zip(pools, (streams[0], streams[32]), strict=True):
        with device.on_stream(stream), allocating_from(pool):
            device.library.workspace()
    (a, _), (b, _) = (
        captured(device, lambda: kernels.matmul(x, x), stream, pool.id)
        for pool, stream in zip(pools, (streams[0], streams[32]), strict=True)
    )
    a.destroy()
    pools[0].drop()
    device.library.clear()
    device.flush()
    with pytest.raises(SimMemoryError):
        b.replay()


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
