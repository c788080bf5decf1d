"""vLLM's own profiling of graph memory, where its release has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cgstate.integrations.vllm as adapter
from tests.integrations.vllm.lab import CUDAGraphMode, cudagraph_utils, full, new_manager
from tests.integrations.vllm.model import Model
from tests.integrations.vllm.runner import Runner


def test_it_leaves_nothing(model: Model) -> None:
    backend = model.cuda.backend
    before = backend.footprint()
    platform = dict(vars(cudagraph_utils.current_platform))
    cudagraph_utils.profile_cudagraph_memory(Runner(model))
    after = backend.footprint()
    assert (after.pools, after.stream, after.generator) == (before.pools, before.stream, before.generator)
    assert adapter.report() == ()
    assert model.piece.concrete_cudagraph_entries == {}
    assert vars(cudagraph_utils.current_platform) == platform


def test_nothing_that_it_captures_can_be_replayed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(model)
    dispatched = []
    captured = runner.capture_model

    def capture_model(**said: Any) -> int:
        taken = captured(**said)
        dispatched.append(runner.cudagraph_manager.dispatch(3, 3, 1, 0).cg_mode)
        return taken

    monkeypatch.setattr(runner, "capture_model", capture_model)
    cudagraph_utils.profile_cudagraph_memory(runner)
    assert dispatched == [CUDAGraphMode.NONE]
    assert runner.captures == [0]


@pytest.mark.parametrize("drafts", [False, True])
def test_the_estimate_holds_what_the_full_graphs_take(model: Model, drafts: bool) -> None:
    """Beyond what the piecewise graphs have grown before them, in the pool that they share."""
    told = cudagraph_utils.profile_cudagraph_memory(Runner(model, drafts=drafts))
    estimate = adapter.estimate()
    assert estimate is not None
    assert estimate.trusted, estimate.distrust
    manager = new_manager(model.config)
    assert estimate.graphs == len(full(manager))
    assert any(sample.grown_bytes for sample in estimate.samples)
    manager.capture(model.factory)
    [pool] = [pool for pool in adapter.report() if pool.charged]
    assert estimate.lower <= pool.charged <= estimate.upper
    assert told >= pool.charged


def test_it_is_less_than_vllm_would_have_said(model: Model) -> None:
    """Of which each further graph costs what the second did, or a MiB."""
    told = cudagraph_utils.profile_cudagraph_memory(Runner(model))
    adapter.uninstall()
    alone = cudagraph_utils.profile_cudagraph_memory(Runner(model))
    assert told < alone


def test_a_capture_that_fails_while_profiling_leaves_nothing_either(model: Model) -> None:
    def fails(desc: Any, warmup: bool) -> None:
        if desc.cg_mode.name == "FULL" and not warmup:
            raise RuntimeError("the model failed")

    before = model.cuda.backend.footprint()
    model.fails = fails
    with pytest.raises(Exception, match="the model failed"):
        cudagraph_utils.profile_cudagraph_memory(Runner(model))
    after = model.cuda.backend.footprint()
    assert (after.pools, after.stream, after.generator) == (before.pools, before.stream, before.generator)
    model.fails = lambda desc, warmup: None
    manager = new_manager(model.config)
    manager.capture(model.factory)
    desc = full(manager)[0]
    assert torch.equal(model.answer(manager, desc, 1), model.expected(desc, 1))


def test_without_graphs_there_is_nothing_to_profile(model: Model) -> None:
    runner = Runner(model)
    runner.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    runner.needs_cudagraph_capture = lambda: False  # type: ignore[method-assign]
    assert cudagraph_utils.profile_cudagraph_memory(runner) == 0


def test_a_runner_that_was_loaded_before_profiles_through_cgstate(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has vLLM's function by a name of its own."""
    import sys
    from types import ModuleType

    runner = ModuleType("vllm.v1.worker.gpu.model_runner")
    adapter.uninstall()
    vars(runner)["_profile_cudagraph_memory"] = original = cudagraph_utils.profile_cudagraph_memory
    monkeypatch.setitem(sys.modules, runner.__name__, runner)
    adapter.install(lambda device: model.cuda.backend)
    assert vars(runner)["_profile_cudagraph_memory"] is cudagraph_utils.profile_cudagraph_memory is not original
    adapter.uninstall()
    assert vars(runner)["_profile_cudagraph_memory"] is original
