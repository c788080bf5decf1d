"""The hooks in vLLM's own worker, with both of its runners."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.gpu_worker import Worker

import cgstate
from cgstate.integrations.model_local.vllm_worker import ModelLocalWorker
from cgstate.integrations.model_local.worker import ModelLocalWorkerMixin
from examples.model_local.talker import HIDDEN, Talker
from tests.integrations.model_local.helpers import variants
from tests.integrations.vllm.lab import CUDAGraphMode
from tests.integrations.vllm_local.runners import GRAPHS, REQUESTED, USED, V1Runner, V2Runner, make_worker

RUNNERS = [V1Runner, V2Runner]
DEPLOY = {"code_predictor": {}, "vocoder": {"max_extra_graphs": 1}}
CACHE = 1 << 20


@pytest.mark.parametrize(
    "hook", ["load_model", "determine_available_memory", "compile_or_warm_up_model", "sleep", "wake_up", "shutdown"]
)
def test_vllms_worker_has_every_hook(hook: str) -> None:
    assert callable(getattr(Worker, hook))
    assert hook == "compile_or_warm_up_model" or getattr(ModelLocalWorker, hook) is getattr(ModelLocalWorkerMixin, hook)


@pytest.mark.parametrize("runner", RUNNERS)
def test_vllms_runners_have_what_the_hooks_follow(runner: Any) -> None:
    theirs = runner.__mro__[1]
    for name in ("get_model", "capture_model", "profile_cudagraph_memory"):
        assert "self" in inspect.signature(getattr(theirs, name)).parameters


@pytest.mark.parametrize("profiles", [False, True], ids=["no profile of graphs", "with a profile of graphs"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_what_the_components_take_is_kept_free_of_the_kv_cache(
    runner: Any, profiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(monkeypatch, runner, DEPLOY)
    worker.load_model()
    with monkeypatch.context() as patch:
        if profiles:  # as on a GPU, where the runner captures
            patch.setattr(type(gpu_worker.current_platform), "is_cuda_alike", lambda self: True)
            worker.vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL
        available = worker.determine_available_memory()
    assert worker.model_local is not None
    estimate, reserve = worker.model_local.estimate, worker.model_local.reserve
    assert estimate is not None
    assert reserve is not None
    ours = estimate.upper + estimate.driver + reserve.total
    assert ours > 0
    assert available == REQUESTED - USED - ours - (GRAPHS if profiles else 0)
    if profiles:
        assert worker.cudagraph_memory_estimate == GRAPHS + ours
    worker.shutdown()


@pytest.mark.parametrize("runner", RUNNERS)
def test_vllms_worker_takes_its_models_components_through_its_life(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(monkeypatch, runner, DEPLOY, cache_bytes=CACHE)
    worker.load_model()
    model = worker.model_runner.get_model()
    assert isinstance(model, Talker)
    assert worker.determine_available_memory() == CACHE
    worker.compile_or_warm_up_model()
    assert (variants(model.predict), variants(model.render)) == ([1, 2, 4, 8], [16, 32])
    plain, longer = Talker(), torch.randn(40, HIDDEN)
    hidden = longer[:32]
    with torch.inference_mode():
        assert torch.equal(model(hidden), plain(hidden))
        for length in (3, 40, 17):
            assert torch.allclose(model(longer[:length]), plain(longer[:length]), atol=1e-6)
        metrics = worker.model_local_metrics()
        assert metrics["vocoder"] == {
            "calls": 4,
            "hits": 4,
            "captures": 3,
            "evictions": 0,
            "fallbacks": {},
            "failures": {},
        }
        worker.sleep(1)
        with pytest.raises(cgstate.NotResident):
            model(hidden)
        worker.wake_up(["weights"])
        assert variants(model.predict) == []
        worker.wake_up(["kv_cache"])
        assert variants(model.predict) == [1, 2, 4, 8]
        assert torch.equal(model(hidden), plain(hidden))
    assert worker._sleep_mode_backend.calls == [1, ["weights"], ["kv_cache"]]
    worker.shutdown()
    assert model.predict.handle is None
    assert torch.equal(model(hidden), plain(hidden))
