"""Rows W1-W5 of gpu-facts on the simulated device: whose memory the library's workspaces are. A MiB is a KiB here."""

from __future__ import annotations

import pytest

from cgstate.backends.sim import (
    SimConfig,
    SimDevice,
    SimGraph,
    SimTensor,
    allocating_from,
    captured,
    kernels,
)
from cgstate.backends.sim.errors import ILLEGAL_ADDRESS, SimAcceleratorError, SimMemoryError

KIB = 1024
CELLS = KIB // 8


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
    assert caught.value.error_code == ILLEGAL_ADDRESS


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
