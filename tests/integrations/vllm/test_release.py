"""Graphs are released and captured again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cgstate
import cgstate.integrations.vllm as adapter
from tests.integrations.vllm.lab import CUDAGraphMode, full, new_manager, real_config
from tests.integrations.vllm.model import Model


def test_after_a_release_nothing_is_dispatched_to_a_graph(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    manager.release_graphs()
    assert manager.graphs == {}
    assert manager.dispatch(3, 3, 1, 0).cg_mode is CUDAGraphMode.NONE
    assert manager.needs_capture()


def test_what_is_captured_again_answers_right(manager: Any, model: Model) -> None:
    for seed in range(3):
        manager.capture(model.factory)
        for desc in full(manager):
            assert torch.equal(model.answer(manager, desc, seed), model.expected(desc, seed))
        manager.release_graphs()


def test_without_other_graphs_in_the_pool_a_release_gives_its_bytes_back(model: Model) -> None:
    manager = new_manager(real_config(CUDAGraphMode.FULL_DECODE_ONLY, check=True))
    empty = model.cuda.backend.footprint().pools
    manager.capture(model.factory)
    [pool] = adapter.report()
    assert pool.reserved > 0
    assert pool.charged == pool.reserved
    manager.release_graphs()
    assert model.cuda.backend.footprint().pools == empty
    manager.capture(model.factory)
    desc = full(manager)[0]
    assert torch.equal(model.answer(manager, desc, 4), model.expected(desc, 4))


def test_what_vllm_keeps_of_a_capture_does_not_close_the_pool(model: Model) -> None:
    manager = new_manager(real_config(CUDAGraphMode.FULL_DECODE_ONLY))
    kept: list[torch.Tensor] = []
    work = model.work

    def keeping(tokens: int, loras: int) -> None:
        work(tokens, loras)
        kept.append(model.x[:tokens] + 1)

    model.work = keeping  # type: ignore[method-assign]
    for seed in range(2):
        manager.capture(model.factory)
        desc = full(manager)[0]
        assert torch.equal(model.answer(manager, desc, seed), model.expected(desc, seed))
        manager.release_graphs()
        assert kept


def test_a_release_keeps_other_graphs_of_the_pool(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    manager.release_graphs()
    [piecewise] = [guest for pool in adapter.report() for guest in pool.guests if guest.captured]
    assert piecewise.kind == "piecewise"
    manager.capture(model.factory)  # the piecewise graphs are replayed by that, not captured
    desc = full(manager)[-1]
    assert torch.equal(model.answer(manager, desc, 4), model.expected(desc, 4))


def test_a_release_under_a_lease_is_refused_and_changes_nothing(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    desc = full(manager)[0]
    with manager.graphs[desc].lease():
        with pytest.raises(cgstate.LeaseOutstanding):
            manager.release_graphs()
        assert manager.dispatch(desc.num_reqs, desc.num_tokens, 1, 0) == desc
    assert torch.equal(model.answer(manager, desc, 6), model.expected(desc, 6))


def test_a_release_before_any_capture_does_nothing(manager: Any, model: Model) -> None:
    manager.release_graphs()
    manager.capture(model.factory)
    manager.release_graphs()
    manager.release_graphs()
    assert manager.graphs == {}


def test_a_manager_that_vllm_drops_leaves_nothing(model: Model) -> None:
    import gc

    manager = new_manager(real_config(CUDAGraphMode.FULL_DECODE_ONLY))
    before = model.cuda.backend.footprint().pools
    manager.capture(model.factory)
    del manager
    gc.collect()
    model.cuda.sim.flush()
    assert model.cuda.backend.footprint().pools == before
