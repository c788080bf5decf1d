"""vLLM's own worker and runners, without a device: what their methods read is there, and what needs a GPU is not done.

Nothing of what the hooks follow is replaced: ``load_model``, ``determine_available_memory``, ``compile_or_warm_up_model``,
``sleep``, ``wake_up`` and ``shutdown`` of the worker, ``get_model`` and ``capture_model`` of the runners are vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as V2GPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1GPUModelRunner

from cgstate.integrations.model_local.vllm_worker import ModelLocalWorker
from examples.model_local.talker import Talker
from tests.integrations.vllm.lab import CUDAGraphMode, CUDAGraphWrapper, put_on_sim, real_config

GRAPHS = 4096
"""What the runners' own profile of graphs says, bytes."""

TOTAL, REQUESTED, USED = 1 << 30, 1 << 29, 1 << 20
"""The device's memory, what vLLM may use of it, and what it says that it uses without the KV cache, bytes."""


class V1Runner(V1GPUModelRunner):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's first runner; its model is wrapped as for whole graphs."""

    def __init__(self, config: Any) -> None:
        self.vllm_config = config
        self.compilation_config = config.compilation_config
        self.model_config = config.model_config
        self.lora_config = None
        self.model_memory_usage = 0
        self.profiled = 0

    def load_model(self, load_dummy_weights: bool = False) -> None:
        self.model = CUDAGraphWrapper(Talker(), self.vllm_config, runtime_mode=CUDAGraphMode.FULL)

    def profile_run(self, **_: Any) -> None:
        self.profiled += 1

    def profile_cudagraph_memory(self) -> int:
        return GRAPHS

    def maybe_remove_all_loras(self, lora_config: Any) -> None:
        """There are none."""

    def post_kv_cache_wake_up(self) -> None:
        """There is no KV cache."""

    def shutdown(self) -> None:
        self.model = None


class V2Runner(V2GPUModelRunner):  # type: ignore[misc]
    """vLLM's second runner."""

    def __init__(self, config: Any) -> None:
        self.vllm_config = config
        self.model_memory_usage = 0
        self.lora_config = None
        self.profiled = 0
        self.cudagraph_manager = SimpleNamespace(needs_capture=lambda: False)
        self.model_state = SimpleNamespace(supports_mm_inputs=False)
        self.eplb = SimpleNamespace(suppress=nullcontext)

    def load_model(self, load_dummy_weights: bool = False, *args: Any, **kwargs: Any) -> None:
        self.model = Talker()

    def needs_cudagraph_capture(self) -> bool:
        return False

    profile_run = V1Runner.profile_run
    profile_cudagraph_memory = V1Runner.profile_cudagraph_memory
    maybe_remove_all_loras = V1Runner.maybe_remove_all_loras
    post_kv_cache_wake_up = V1Runner.post_kv_cache_wake_up
    shutdown = V1Runner.shutdown


class Asleep:
    """Takes the place of vLLM's allocator that gives memory away."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def suspend(self, level: int) -> None:
        self.calls.append(level)

    def resume(self, tags: list[str] | None) -> None:
        self.calls.append(tags)


@contextmanager
def memory_profiling(*_: object, **__: object) -> Iterator[Any]:
    """What a profile on a device would say, in the words of every release."""
    after = SimpleNamespace(free_memory=TOTAL - USED, torch_peak=0)
    yield SimpleNamespace(
        after_profile=after,
        before_profile=after,
        non_kv_cache_memory=USED,
        total_consumed=USED,
        transient_peak_headroom=0,
        profile_time=0.0,
        weights_memory=0,
        non_torch_increase=USED,
    )


def make_worker(
    monkeypatch: pytest.MonkeyPatch, runner: Any, components: Any, *, cache_bytes: int | None = None
) -> ModelLocalWorker:
    """vLLM's worker with a runner, as after ``init_device``."""
    put_on_sim(monkeypatch)
    config = real_config(CUDAGraphMode.NONE)
    config.compilation_config.mode = 0
    config.cache_config.kv_cache_memory_bytes = cache_bytes
    config.observability_config.cudagraph_metrics = True
    config.additional_config = {"model_local_cudagraph": components}
    worker = ModelLocalWorker(config, 0, 0, "tcp://127.0.0.1:1", is_driver_worker=True)
    worker.device = torch.device("cpu")
    worker.use_v2_model_runner = runner is V2Runner
    worker.model_runner = runner(config)
    worker._sleep_mode_backend = Asleep()
    worker.init_snapshot = SimpleNamespace(free_memory=TOTAL, total_memory=TOTAL)
    worker.requested_memory = REQUESTED
    monkeypatch.setattr(gpu_worker, "memory_profiling", memory_profiling)
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda *_: {})
    for name in ("kernel_warmup", "warmup_kernels", "set_torch_threads_for_runtime", "freeze_gc_heap", "enable_gpu_sync_check"):
        monkeypatch.setattr(gpu_worker, name, lambda *_: None, raising=False)  # not every release has all of them
    monkeypatch.setattr(gpu_worker, "set_random_seed", lambda seed, *_: torch.manual_seed(seed))
    monkeypatch.setattr(gpu_worker, "get_pp_group", lambda: SimpleNamespace(is_last_rank=False))
    for name in ("_maybe_get_memory_pool_context", "_scoped_allocator_max_split"):
        monkeypatch.setattr(worker, name, lambda *_, **__: nullcontext(), raising=False)
    return worker
