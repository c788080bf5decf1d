"""vLLM's own graphs in the pool are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import cgstate.integrations.vllm as adapter
import cgstate.trace
from tests.integrations.vllm.cuda_on_sim import CudaOnSim
from tests.integrations.vllm.lab import (
    SIZES,
    BatchDescriptor,
    BreakableCUDAGraphWrapper,
    CUDAGraphMode,
    CUDAGraphWrapper,
    full,
    new_manager,
    real_config,
    set_cudagraph_capturing_enabled,
    set_forward_context,
)
from tests.integrations.vllm.model import Model


def test_everything_in_the_pool_is_reported(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    [pool] = adapter.report()
    assert pool.pool == manager.pool
    assert list(pool.entries.values()) == [len(full(manager))]
    [guest] = pool.guests
    assert (guest.kind, guest.captured, guest.empty, guest.clears) == ("piecewise", len(SIZES), 0, 0)
    assert 0 < pool.charged < pool.reserved == model.cuda.backend.footprint().pools[manager.pool]


def test_a_clear_of_vllms_is_counted(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    CUDAGraphWrapper.clear_all_graphs()
    [guest] = adapter.report()[0].guests
    assert (guest.captured, guest.clears) == (0, 1)


def test_an_entry_without_a_graph_is_seen(manager: Any, model: Model) -> None:
    """A capture that vLLM refuses leaves one."""
    manager.capture(model.factory)
    set_cudagraph_capturing_enabled(False)
    try:
        with (
            set_forward_context(
                None,
                model.config,
                num_tokens=3,
                cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE,
                batch_descriptor=BatchDescriptor(num_tokens=3),
            ),
            pytest.raises(RuntimeError),
        ):
            model.piece(model.x[:3])
    finally:
        set_cudagraph_capturing_enabled(True)
    [guest] = adapter.report()[0].guests
    assert (guest.captured, guest.empty) == (len(SIZES), 1)


def test_a_breakable_wrapper_is_seen_with_its_clears(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    wrapper = BreakableCUDAGraphWrapper(model._piece, model.config)
    with (
        model.cuda.sim.on_stream(model.cuda.sim.new_stream()),
        torch.inference_mode(),
        set_forward_context(
            None,
            model.config,
            num_tokens=4,
            cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE,
            batch_descriptor=BatchDescriptor(num_tokens=4),
        ),
    ):
        wrapper(model.x[:4])
    guests = {guest.kind: guest for guest in adapter.report()[0].guests}
    assert (guests["breakable"].captured, guests["breakable"].clears) == (1, 0)
    wrapper.clear_graphs()
    guests = {guest.kind: guest for guest in adapter.report()[0].guests}
    assert (guests["breakable"].captured, guests["breakable"].clears) == (0, 1)


def test_every_capture_and_replay_is_in_the_trace_and_the_trace_checks(managed: CudaOnSim, tmp_path: Path) -> None:
    config = real_config(trace=str(tmp_path / "run.jsonl"))
    model, manager = Model(managed, config), new_manager(config)
    manager.capture(model.factory)
    replays = 3
    for seed in range(replays):
        model.answer(manager, full(manager)[0], seed)
    manager.release_graphs()
    adapter.close_traces()
    [path] = tmp_path.iterdir()
    head, *records = cgstate.trace.read(path)
    report = cgstate.trace.check([head, *records])
    assert report.violations == 0
    assert report.missing == 0
    events = [
        record.event for record in records if isinstance(record, cgstate.trace.TransitionRecord) and record.machine == "entry"
    ]
    assert events.count("bind") == len(full(manager))
    assert events.count("acquire") == replays
