"""Rows F1-F9 of gpu-facts on the simulated device: what failures leave behind, and what puts it back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Thread

import pytest

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import SimConfig, SimDevice, SimGraph, SimStream, SimTensor, captured, graph_scope, kernels
from cgstate.backends.sim.errors import (
    CAPTURE_INVALIDATED,
    CAPTURE_UNSUPPORTED,
    DEVICE_ASSERT,
    SimAcceleratorError,
    SimError,
    SimGeneratorError,
    SimLibraryError,
    SimOutOfMemory,
    SimRecordingError,
)

KIB = 1024
CELLS = KIB // 8


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def stream(device: SimDevice) -> SimStream:
    return device.new_stream()


def fail_with_item(device: SimDevice, stream: SimStream, kib: int = 2, pool: tuple[int, int] | None = None) -> SimGraph:
    """A capture that allocates and then asks for a value."""
    graph = SimGraph(device)

    def capture() -> None:
        with graph_scope(graph, stream=stream, pool=pool):
            device.zeros(kib * CELLS).narrow(0, 0, 1).item()

    with pytest.raises(SimAcceleratorError) as caught:
        capture()
    assert caught.value.error_code == CAPTURE_INVALIDATED
    refused = caught.value.__context__
    assert isinstance(refused, SimAcceleratorError)
    assert refused.error_code == CAPTURE_UNSUPPORTED
    device.set_stream(device.default_stream)  # F3
    return graph


def test_an_exception_in_the_body_leaves_everything_usable(device: SimDevice, stream: SimStream) -> None:
    """F1."""
    pool = device.new_pool()

    def fails() -> None:
        device.rand(4)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        captured(device, fails, stream, pool.id)
    assert device.current_handle() == 0
    device.rand(4)
    graph = SimGraph(device)
    with graph_scope(graph, stream=stream, pool=pool.id):
        out = device.zeros(4)
    graph.replay()
    assert out.tolist() == [0.0] * 4


def test_a_capture_that_asks_for_a_value_is_invalidated_and_poisons_the_generator(device: SimDevice, stream: SimStream) -> None:
    """F2."""
    fail_with_item(device, stream)
    device.manual_seed(1)
    with pytest.raises(SimGeneratorError, match="Offset increment outside graph capture"):
        device.rand(4)
    with graph_scope(SimGraph(device), stream=stream):
        device.zeros(1)
    device.rand(4)


@pytest.mark.parametrize("mode", list(CaptureErrorMode))
def test_no_mode_allows_to_wait_for_the_stream_that_is_captured(
    device: SimDevice, stream: SimStream, mode: CaptureErrorMode
) -> None:
    """F2 in every mode."""
    with pytest.raises(SimAcceleratorError) as caught:
        captured(device, stream.synchronize, stream, mode=mode)
    assert caught.value.error_code == CAPTURE_INVALIDATED


def test_replacing_its_state_heals_the_generator(device: SimDevice, stream: SimStream) -> None:
    """F2, the other cure."""
    fail_with_item(device, stream)
    device.generator.heal()
    device.rand(4)


def test_after_an_invalidated_capture_the_current_stream_is_still_the_capture_stream(device: SimDevice, stream: SimStream) -> None:
    """F3."""
    with pytest.raises(SimAcceleratorError), graph_scope(SimGraph(device), stream=stream):
        device.tensor([1.0])
    assert device.current_handle() == stream.handle


def test_an_invalidated_capture_keeps_the_bytes_of_its_pool_until_routing_and_use_are_ended(
    device: SimDevice, stream: SimStream
) -> None:
    """F4."""
    graph = fail_with_item(device, stream, kib=256)
    graph.destroy()
    gc.collect()
    device.flush()
    lost = device.reserved_bytes()
    assert lost >= 256 * KIB
    graph.undo_route()
    graph.undo_pool_use()
    assert device.flush() == lost
    assert device.reserved_bytes() == 0


def test_newer_releases_return_the_bytes_of_an_invalidated_capture_on_reset() -> None:
    """F4, the other outcome."""
    device = SimDevice(SimConfig(release_pool_on_destroy=True))
    graph = fail_with_item(device, device.new_stream(), kib=256)
    graph.destroy()
    gc.collect()
    device.flush()
    assert device.reserved_bytes() == 0


def test_a_pool_that_a_failed_capture_records_to_refuses_the_next_one(device: SimDevice, stream: SimStream) -> None:
    """F5."""
    pool = device.new_pool()
    failed = fail_with_item(device, stream, pool=pool.id)
    refused = SimGraph(device)
    with pytest.raises(SimRecordingError), graph_scope(refused, stream=stream, pool=pool.id):
        pass
    for graph in (refused, failed):
        graph.undo_route()
        graph.undo_pool_use()
    assert pool.use_count() == 1
    with graph_scope(SimGraph(device), stream=stream, pool=pool.id):
        device.zeros(1)


def test_out_of_memory_in_the_body_is_like_any_exception_there() -> None:
    """F6."""
    device = SimDevice(SimConfig(capacity_bytes=64 * KIB))

    def fails() -> None:
        held = device.zeros(32 * CELLS)
        device.zeros(64 * CELLS)
        del held

    with pytest.raises(SimOutOfMemory):
        captured(device, fails, device.new_stream())
    gc.collect()
    device.rand(1)
    device.synchronize()
    assert device.current_handle() == 0
    device.flush()
    assert device.reserved_bytes() == 0


def test_cached_memory_is_returned_before_memory_runs_out_but_not_in_a_capture() -> None:
    """F6: the retry that frees the cache is legal only outside."""
    device = SimDevice(SimConfig(capacity_bytes=64 * KIB))
    stream = device.new_stream()
    device.zeros(40 * CELLS)  # freed at once, and cached
    assert device.zeros(50 * CELLS).numel() == 50 * CELLS
    graph = SimGraph(device)
    device.flush()
    with device.on_stream(stream):
        graph.capture_begin(None, CaptureErrorMode.thread_local)
        with device.on_stream(device.default_stream):
            device.zeros(40 * CELLS)  # eager, cached again while the capture is open
        with pytest.raises(SimOutOfMemory):
            device.zeros(50 * CELLS)
        graph.capture_end()


def test_a_device_side_assert_loses_the_context_for_good(device: SimDevice, stream: SimStream) -> None:
    """F7."""
    graph = SimGraph(device)
    out = device.zeros(4)
    with graph_scope(graph, stream=stream):
        out.fill_(1.0)
    table, ids = device.zeros(3, 2), device.tensor([1.0, 7.0])
    kernels.embedding(ids, table)  # asynchronous: nothing is raised here
    calls: list[Callable[[], object]] = [
        device.synchronize,
        graph.replay,
        device.free_bytes,
        out.tolist,
        out.zero_,
        lambda: device.zeros(1),
    ]
    for _ in range(2):
        for call in calls:
            with pytest.raises(SimAcceleratorError) as caught:
                call()
            assert caught.value.error_code == DEVICE_ASSERT
    graph.destroy()
    del out, table, ids, calls, call, caught
    gc.collect()
    device.flush()
    assert device.reserved_bytes() == 0


def test_the_first_use_of_the_library_inside_a_capture_invalidates_it(device: SimDevice, stream: SimStream) -> None:
    """F8."""
    x = device.zeros(2, 2)
    with pytest.raises(SimAcceleratorError) as caught, graph_scope(SimGraph(device), stream=stream):
        with pytest.raises(SimLibraryError):
            kernels.matmul(x, x)
    assert caught.value.error_code == CAPTURE_INVALIDATED
    assert isinstance(caught.value.__cause__, SimLibraryError)


def test_a_new_thread_needs_a_library_handle_of_its_own(device: SimDevice, stream: SimStream) -> None:
    """F8 holds by thread; the handle of a thread that is gone is used again."""
    x = device.zeros(2, 2)
    kernels.matmul(x, x)
    errors: list[BaseException] = []

    def capture() -> None:
        try:
            with graph_scope(SimGraph(device), stream=stream):
                kernels.matmul(x, x)
        except SimError as error:
            errors.append(error)

    def in_a_thread(target: Callable[[], object]) -> None:
        thread = Thread(target=target)
        thread.start()
        thread.join()

    in_a_thread(capture)
    assert len(errors) == 1
    device.generator.heal()
    in_a_thread(lambda: kernels.matmul(x, x))
    in_a_thread(capture)
    assert len(errors) == 1


def test_a_graph_never_captured_or_reset_cannot_be_replayed(device: SimDevice, stream: SimStream) -> None:
    """F9."""
    graph = SimGraph(device)
    with pytest.raises(SimError, match="without a preceding successful capture"):
        graph.replay()
    with graph_scope(graph, stream=stream):
        device.zeros(1)
    graph.replay()
    graph.destroy()
    graph.destroy()
    with pytest.raises(SimError, match="without a preceding successful capture"):
        graph.replay()


def test_the_values_of_a_failed_capture_never_come_to_be(device: SimDevice, stream: SimStream) -> None:
    """Recorded work does not run: neither at the capture nor after it failed."""
    x: SimTensor = device.zeros(2)

    def fails() -> None:
        x.fill_(5.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        captured(device, fails, stream)
    assert x.tolist() == [0.0, 0.0]
