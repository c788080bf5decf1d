"""The allocator's books and the detector of stale memory, drawn and by example."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import SimConfig, SimDevice, SimGraph, SimTensor, allocating_from, captured
from cgstate.backends.sim.blocks import Block, FreeList, Pool
from cgstate.backends.sim.errors import SimAcceleratorError, SimMemoryError, SimRecordingError
from cgstate.backends.sim.memory import ITEM_BYTES, DeviceMemory
from cgstate.backends.sim.schedule import MAX_QUEUED
from cgstate.backends.sim.streams import StreamQueue
from cgstate.errors import ConfigError

KIB = 1024
CELLS = KIB // 8


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.mark.parametrize(
    ("kib", "reserved"),
    [(0.5, 2), (1, 2), (1.5, 20), (9.5, 20), (10, 10), (10.5, 12), (33, 34)],
)
def test_segments_are_rounded_as_the_real_allocator_rounds_them(device: SimDevice, kib: float, reserved: int) -> None:
    device.empty(int(kib * CELLS))
    assert device.reserved_bytes() == reserved * KIB


def test_the_high_water_marks_outlive_what_made_them(device: SimDevice) -> None:
    device.empty(64 * CELLS)
    device.flush()
    device.empty(16 * CELLS)
    assert (device.allocated_bytes(), device.reserved_bytes()) == (0, 16 * KIB)
    assert (device.peak_allocated_bytes(), device.peak_reserved_bytes()) == (64 * KIB, 64 * KIB)
    device.reset_peaks()
    assert (device.peak_allocated_bytes(), device.peak_reserved_bytes()) == (0, 16 * KIB)
    device.empty(32 * CELLS)
    assert (device.peak_allocated_bytes(), device.peak_reserved_bytes()) == (32 * KIB, 48 * KIB)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3000), st.integers(0, 2)), max_size=60))
def test_live_tensors_never_overlap_and_the_books_add_up(steps: list[tuple[int, int, int]]) -> None:
    """Draws allocations, frees and flushes on three streams; every live tensor keeps its own values throughout."""
    device = SimDevice()
    streams = [device.default_stream, device.new_stream(), device.new_stream()]
    live: list[tuple[SimTensor, float]] = []
    for serial, (act, size, stream) in enumerate(steps):
        with device.on_stream(streams[stream]):
            if act <= 2:
                live.append((device.empty(size).fill_(float(serial)), float(serial)))
            elif act <= 4 and live:
                live.pop(size % len(live))
            else:
                device.flush()
        assert device.allocated_bytes() == sum(t.storage.block.size * ITEM_BYTES for t, _ in live)
        assert device.allocated_bytes() <= device.reserved_bytes() == device.memory.mapped_bytes
    device.synchronize()
    assert all(tensor.tolist() == [value] * tensor.numel() for tensor, value in live)
    live.clear()
    device.flush()
    assert (device.allocated_bytes(), device.reserved_bytes()) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=40))
def test_mapped_ranges_are_apart_and_known(steps: list[tuple[bool, int]]) -> None:
    memory = DeviceMemory(capacity_bytes=200 * ITEM_BYTES)
    ranges: dict[int, int] = {}
    for mapping, size in steps:
        if mapping:
            base = memory.map(size)
            assert (base is None) == (sum(ranges.values()) + size > 200)
            if base is not None:
                ranges[base] = size
        elif ranges:
            base = sorted(ranges)[size % len(ranges)]
            assert memory.unmap(base) == ranges.pop(base) * ITEM_BYTES
        taken = [cell for start, length in ranges.items() for cell in range(start, start + length)]
        assert len(taken) == len(set(taken))
        assert memory.mapped_bytes == len(taken) * ITEM_BYTES
        for cell in range(0, 240, 7):
            assert memory.is_mapped(cell, cell + 1) == (cell in taken)


def test_a_freed_tensor_is_poisoned_in_the_order_of_its_stream(device: SimDevice) -> None:
    x = device.tensor([1.0, 2.0])
    device.synchronize()
    y = x.clone()
    del x  # its clone is still queued, before the poison
    assert y.tolist() == [1.0, 2.0]


def test_reading_memory_that_was_freed_and_not_written_since_is_detected(device: SimDevice) -> None:
    x = device.tensor([1.0, 2.0])
    device.synchronize()
    del x
    y = device.empty(2)
    with pytest.raises(SimMemoryError, match="content of freed memory"):
        y.tolist()
    with pytest.raises(SimMemoryError, match="content of freed memory"):
        y.clone().tolist()


@pytest.mark.parametrize("writes", [False, True])
def test_a_kernel_on_another_stream_that_comes_after_the_free_is_detected(device: SimDevice, writes: bool) -> None:
    """No event says that the owner may not take it back before: the hardware reads or overwrites whatever is there."""
    x, y, other = device.tensor([1.0, 2.0]), device.zeros(2), device.new_stream()
    device.synchronize()
    with device.on_stream(other):
        if writes:
            x.fill_(3.0)
        else:
            y.copy_(x)
    del x
    z = device.tensor([4.0, 5.0])
    with pytest.raises(SimMemoryError, match="after it was given back"):
        device.synchronize()
    device.synchronize()
    assert z.tolist() == [4.0, 5.0]


def test_a_kernel_on_another_stream_that_the_owner_waits_for_may_be_freed_at_once(device: SimDevice) -> None:
    """The host frees ahead of the device; what counts is the order of the streams."""
    x, other = device.tensor([1.0, 2.0]), device.new_stream()
    device.synchronize()
    with device.on_stream(other):
        x.fill_(3.0)
        y = x.clone()
    device.default_stream.wait(other.record())
    del x
    z = device.tensor([4.0, 5.0])
    assert (z.tolist(), y.tolist()) == ([4.0, 5.0], [3.0, 3.0])


def thrice(x: SimTensor) -> SimTensor:
    return x.clone().clone().clone()


def test_memory_that_is_freed_under_a_replay_in_flight_is_detected(device: SimDevice) -> None:
    x, stream = device.tensor([1.0]), device.new_stream()
    graph, _ = captured(device, partial(thrice, x), stream)
    device.synchronize()
    with device.on_stream(stream):
        graph.replay()
    device.step()
    del x
    with pytest.raises(SimMemoryError, match="'replay' used memory"):
        device.synchronize()


def test_memory_that_is_freed_behind_a_replay_on_its_own_stream_is_fine(device: SimDevice) -> None:
    x = device.tensor([1.0])
    graph, out = captured(device, partial(thrice, x), device.new_stream())
    graph.replay()
    del x
    assert out.item() == 1.0


def test_frees_of_a_busy_stream_do_not_pile_up(device: SimDevice) -> None:
    device.launch("first", lambda: (), (), ())
    for _ in range(3 * MAX_QUEUED):
        device.empty(1)
    assert len(device.default_stream.queue.work) <= MAX_QUEUED


def test_nothing_is_kept_of_streams_and_pools_that_are_gone(device: SimDevice) -> None:
    def generation() -> tuple[int, int, int, int]:
        for _ in range(20):
            stream, pool = device.new_stream(exclusive=True), device.new_pool()
            with device.on_stream(stream):
                device.zeros(4)
            graph, out = captured(device, lambda: device.zeros(4), stream, pool.id)
            graph.destroy()
            del out
            pool.drop()
            stream.close()
            device.flush()
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]
        return kinds.count(Block), kinds.count(FreeList), kinds.count(Pool), kinds.count(StreamQueue)

    generation()
    assert generation() == generation()


def test_without_the_sanitizer_freed_memory_reads_as_garbage() -> None:
    device = SimDevice(SimConfig(sanitize=False))
    x, other = device.tensor([1.0]), device.new_stream()
    device.synchronize()
    with device.on_stream(other):
        y = x.clone()
    del x
    device.flush()
    assert y.item() != y.item()


def test_a_replay_is_refused_once_memory_that_it_reads_was_given_back(device: SimDevice) -> None:
    x = device.tensor([1.0])
    graph, out = captured(device, x.clone, device.new_stream())
    graph.replay()
    assert out.item() == 1.0
    del x
    for _ in range(2):
        with pytest.raises(SimMemoryError, match="'copy' would touch"):
            graph.replay()


def test_memory_handed_out_again_at_the_old_address_is_still_not_the_old_memory(device: SimDevice) -> None:
    x = device.tensor([1.0])
    address = x.data_ptr()
    graph, _ = captured(device, x.clone, device.new_stream())
    device.synchronize()
    del x
    x = device.tensor([2.0])
    assert x.data_ptr() == address
    with pytest.raises(SimMemoryError):
        graph.replay()


def test_memory_freed_inside_the_capture_that_used_it_is_stale_at_the_first_replay(device: SimDevice) -> None:
    held = [device.tensor([1.0])]
    graph, _ = captured(device, lambda: held.pop().clone(), device.new_stream())
    with pytest.raises(SimMemoryError):
        graph.replay()


def test_a_graph_keeps_its_own_temporaries_whoever_freed_them(device: SimDevice) -> None:
    """Its pool's memory stays valid: reused by later captures on the stream, never poisoned under the graph."""
    x, stream, pool = device.tensor([1.0, 2.0]), device.new_stream(), device.new_pool()

    def body() -> SimTensor:
        return x.clone().clone().clone()

    graph, out = captured(device, body, stream, pool.id)
    again, _ = captured(device, body, stream, pool.id)
    device.flush()
    for each in (graph, again, graph):
        each.replay()
    assert out.tolist() == [1.0, 2.0]


def test_a_replay_in_flight_is_not_disturbed_by_what_a_capture_in_its_pool_frees(device: SimDevice) -> None:
    """S2: replays of a pool may overlap a capture into it, one that fails or whose outputs are dropped included."""
    x, stream, pool = device.tensor([1.0, 2.0]), device.new_stream(), device.new_pool()
    graph, out = captured(device, lambda: x.clone().clone().clone(), stream, pool.id)
    graph.replay()
    for _ in range(2):
        device.step()  # the last of its three kernels has yet to read what the second wrote
    overlapping = SimGraph(device)
    with device.on_stream(stream):
        overlapping.capture_begin(pool.id, CaptureErrorMode.thread_local)
        dropped = [x.clone().clone() for _ in range(4)]
        overlapping.capture_end()
    dropped.clear()
    assert out.tolist() == [1.0, 2.0]


def test_a_broken_capture_no_longer_allocates_from_its_pool(device: SimDevice) -> None:
    pool, graph = device.new_pool(), SimGraph(device)
    with device.on_stream(device.new_stream()):
        graph.capture_begin(pool.id, CaptureErrorMode.thread_local)
        with pytest.raises(SimAcceleratorError):
            device.empty(1).item()
        before = pool.reserved_bytes()
        device.empty(64 * CELLS)
        assert pool.reserved_bytes() == before
        with pytest.raises(SimAcceleratorError):
            graph.capture_end()


def test_memory_counts_as_baked_only_while_the_graph_lives(device: SimDevice) -> None:
    x = device.zeros(1)
    graph, _ = captured(device, x.clone, device.new_stream())
    epoch = device.allocator.epoch
    graph.destroy()
    del x
    device.synchronize()
    assert device.allocator.epoch == epoch


def test_a_thread_can_allocate_from_a_pool_outside_of_captures(device: SimDevice) -> None:
    pool = device.new_pool()
    with allocating_from(pool):
        assert pool.use_count() == 2
        with pytest.raises(SimRecordingError), allocating_from(pool):
            pass
        x = device.zeros(1)
        thread = Thread(target=lambda: device.zeros(64 * CELLS))
        thread.start()
        thread.join()
    assert pool.use_count() == 1
    assert pool.reserved_bytes() == {0: 2 * KIB}
    y = device.zeros(1)
    assert pool.reserved_bytes() == {0: 2 * KIB}
    assert x.data_ptr() != y.data_ptr()


@pytest.mark.parametrize("make", [lambda: SimConfig(capacity_bytes=0), lambda: SimConfig(workspace_bytes=4)])
def test_a_device_without_memory_is_refused(make: Callable[[], SimConfig]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_giving_memory_back_takes_no_step_of_the_clock(device: SimDevice) -> None:
    device.zeros(1)
    device.zeros(1)
    assert [device.step() for _ in range(3)] == [True, True, False]


def test_a_flush_neither_waits_nor_returns_anything_while_a_capture_is_open(device: SimDevice) -> None:
    pool, graph = device.new_pool(), SimGraph(device)
    with allocating_from(pool):
        device.zeros(64 * CELLS)
    pool.drop()
    event = device.default_stream.record()
    with device.on_stream(device.new_stream()):
        graph.capture_begin(None, CaptureErrorMode.relaxed)
        assert (device.flush(), event.done(), device.reserved_bytes()) == (0, False, 64 * KIB)
        graph.capture_end()
    assert device.flush() == 64 * KIB
    assert event.done()
