"""Rows P1-P9 of gpu-facts on the simulated device. Sizes are the rows' own, a MiB being a KiB here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import SimConfig, SimDevice, SimGraph, SimStream, SimTensor, captured, kernels
from cgstate.backends.sim.errors import SimGeneratorError, SimInternalAssert

KIB = 1024
CELLS = KIB // 8
"""Cells of a KiB."""


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


def temporaries(device: SimDevice, *kib: int) -> Callable[[], SimTensor]:
    """A body with one temporary of each size at a time and a small output."""

    def body() -> SimTensor:
        for size in kib:
            device.zeros(size * CELLS)
        return device.zeros(4)

    return body


def nested_mlp(device: SimDevice, rows: int) -> Callable[[], SimTensor]:
    """Three layers of a width that makes activations of several KiB."""
    weight = device.rand(16, 16)

    def body() -> SimTensor:
        x = device.zeros(rows, 16)
        for _ in range(3):
            x = kernels.relu(kernels.matmul(x, weight))
        return x

    return body


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("output_lives", [False, True])
def test_a_pool_whose_last_graph_was_reset_cannot_be_captured_into(device: SimDevice, flushed: bool, output_lives: bool) -> None:
    """P1."""
    pool, stream = device.pool_handle(), device.new_stream()
    graph, output = captured(device, lambda: device.zeros(100), stream, pool)
    held = output if output_lives else None
    del output
    graph.destroy()
    if flushed:
        device.flush()
    latch = "host allocator" if flushed and not output_lives else "device allocator"
    with pytest.raises(SimInternalAssert, match=f"use_count > 0 .*{latch}"), device.on_stream(stream):
        SimGraph(device).capture_begin(pool, CaptureErrorMode.global_)
    assert (held is not None) == output_lives


def test_the_failed_begin_on_a_latched_pool_poisons_the_generator(device: SimDevice) -> None:
    """P2."""
    pool, stream = device.pool_handle(), device.new_stream()
    captured(device, lambda: device.zeros(4), stream, pool)[0].destroy()
    with pytest.raises(SimInternalAssert), device.on_stream(stream):
        SimGraph(device).capture_begin(pool, CaptureErrorMode.global_)
    with pytest.raises(SimGeneratorError):
        device.rand(4)


@pytest.mark.parametrize("output_lives", [False, True])
def test_the_flush_on_entering_the_context_opens_a_latched_pool_that_holds_no_memory(device: SimDevice, output_lives: bool) -> None:
    """P1: the id is unknown to both allocators then, and so as good as new."""
    pool, stream = device.pool_handle(), device.new_stream()
    graph, output = captured(device, lambda: device.zeros(100), stream, pool)
    held = output if output_lives else None
    del output
    graph.destroy()
    if held is None:
        captured(device, lambda: device.zeros(100), stream, pool)
    else:
        with pytest.raises(SimInternalAssert):
            captured(device, lambda: device.zeros(100), stream, pool)


def test_an_anchored_pool_survives_its_last_graph_and_returns_its_bytes_when_dropped(device: SimDevice) -> None:
    """P3."""
    pool, stream = device.new_pool(), device.new_stream()
    assert pool.use_count() == 1
    graph, output = captured(device, lambda: device.zeros(20 * CELLS), stream, pool.id)
    assert pool.use_count() == 2
    graph.destroy()
    assert pool.use_count() == 1
    del output
    again, output = captured(device, lambda: device.zeros(20 * CELLS), stream, pool.id)
    again.destroy()
    del output
    device.flush()
    assert pool.reserved_bytes() == {stream.handle: 20 * KIB}
    pool.drop()
    assert device.flush() == 20 * KIB
    assert pool.reserved_bytes() == {}


def test_freed_blocks_of_a_pool_are_reused_only_on_the_stream_that_freed_them(device: SimDevice) -> None:
    """P4."""

    def reserved(streams: list[SimStream]) -> int:
        pool = device.new_pool()
        kept = [captured(device, temporaries(device, 40, 60), stream, pool.id) for stream in streams]
        assert len(kept) == 3
        assert set(pool.reserved_bytes()) == {stream.handle for stream in streams}
        return sum(pool.reserved_bytes().values())

    one, two, three = (device.new_stream() for _ in range(3))
    shared = reserved([one] * 3)
    apart = reserved([one, two, three])
    assert shared == (40 + 60 + 2) * KIB
    assert apart == 3 * shared


def test_only_the_segments_of_a_pool_tell_what_a_capture_cost(device: SimDevice) -> None:
    """P5."""
    pool, stream = device.new_pool(), device.new_stream()
    allocated, reserved = device.allocated_bytes(), device.reserved_bytes()
    graph, output = captured(device, temporaries(device, 512), stream, pool.id)
    assert device.allocated_bytes() - allocated == output.nbytes
    assert device.reserved_bytes() - reserved == 514 * KIB
    assert pool.reserved_bytes() == {stream.handle: 514 * KIB}
    assert graph.nodes == 2


def test_resetting_one_of_two_graphs_of_a_pool_returns_nothing(device: SimDevice) -> None:
    """P6, first half."""
    pool, stream = device.pool_handle(), device.new_stream()
    large, _ = captured(device, temporaries(device, 200), stream, pool)
    small, _ = captured(device, temporaries(device, 24), stream, pool)
    before = device.reserved_bytes()
    large.destroy()
    assert device.flush() == 0
    assert device.reserved_bytes() == before
    small.destroy()


def test_resetting_the_only_graph_of_a_pool_returns_all_of_it_but_only_at_a_flush(device: SimDevice) -> None:
    """P6, second half."""
    stream = device.new_stream()
    graph, output = captured(device, temporaries(device, 638), stream)
    del output
    device.flush()
    before = device.reserved_bytes()
    graph.destroy()
    assert device.reserved_bytes() == before
    assert device.flush() == 640 * KIB


def test_deltas_of_free_memory_are_spoiled_by_the_flush_on_entering_a_capture(device: SimDevice) -> None:
    """P7: two samples, largest first, after a warm-up that left cached memory behind."""
    pool, stream = device.new_pool(), device.new_stream()
    bodies = [temporaries(device, size) for size in (64, 48, 32)]
    samples, kept = [], []
    for body in bodies[:2]:
        body()  # the warm-up: its memory stays in the cache of the default stream
        before = device.free_bytes()
        kept.append(captured(device, body, stream, pool.id))
        samples.append(before - device.free_bytes())
    real = sum(pool.reserved_bytes().values())
    assert real == (64 + 2) * KIB
    assert samples[0] <= 2 * KIB
    assert samples[1] < 0


def test_capturing_smallest_first_costs_more_than_largest_first(device: SimDevice) -> None:
    """P7, last sentence."""

    def reserved(sizes: list[int]) -> int:
        pool, stream = device.new_pool(), device.new_stream()
        kept = [captured(device, temporaries(device, size), stream, pool.id) for size in sizes]
        assert kept
        return sum(pool.reserved_bytes().values())

    sizes = [64, 48, 32, 24, 16]
    assert reserved(sizes) == (64 + 2) * KIB
    assert reserved(sizes[::-1]) == (sum(sizes) + 2) * KIB


def test_the_driver_keeps_memory_for_graphs_and_uses_it_again(device: SimDevice) -> None:
    """P8: 116 KiB for 200 graphs of 200 nodes, kept after reset, enough for the next 200."""
    stream = device.new_stream()
    target = device.zeros(1)

    def two_hundred() -> list[SimGraph]:
        return [captured(device, lambda: [target.zero_() for _ in range(200)], stream)[0] for _ in range(200)]

    graphs = two_hundred()
    taken = device.memory.driver_bytes
    assert 110 * KIB < taken < 122 * KIB
    for graph in graphs:
        graph.destroy()
    captured(device, lambda: None, stream)
    assert device.memory.driver_bytes == taken
    graphs = two_hundred()
    assert device.memory.driver_bytes == taken
    assert device.memory.free_bytes() <= device.config.capacity_bytes - taken


@pytest.mark.parametrize("family", ["mlp", "huge temporaries", "tiny"])
def test_the_two_largest_alone_cost_nearly_what_the_whole_set_does(device: SimDevice, family: str) -> None:
    """P9."""
    bodies = {
        "mlp": [nested_mlp(device, rows) for rows in (64, 48, 40, 32, 24, 16, 8, 4, 2, 1)],
        "huge temporaries": [temporaries(device, size, size // 2) for size in (512, 256, 128, 64)],
        "tiny": [temporaries(device, *[0] * 39) for _ in range(128)],
    }[family]

    def reserved(chosen: list[Callable[[], SimTensor]]) -> int:
        pool, stream = device.new_pool(), device.new_stream()
        with device.on_stream(stream):
            chosen[0]()
        kept = [captured(device, body, stream, pool.id) for body in chosen]
        assert kept
        return sum(pool.reserved_bytes().values())

    sample, actual = reserved(bodies[:2]), reserved(bodies)
    assert sample <= actual <= 1.1 * sample + 2 * KIB


def test_another_process_takes_memory_that_the_device_then_lacks() -> None:
    """Foreign memory shows in what is free, never in a pool's segments (why P5 is the only exact measure)."""
    device = SimDevice(SimConfig(capacity_bytes=64 * KIB))
    device.memory.foreign_bytes = 60 * KIB
    assert device.free_bytes() == 4 * KIB
    device.zeros(1)
    assert device.reserved_bytes() == 2 * KIB
