"""A model runner as far as vLLM's own profiling asks for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.integrations.vllm.lab import new_manager
from tests.integrations.vllm.model import Model


class Runner:
    """Has a configuration and a model, makes vLLM's manager with the KV cache, and captures by it."""

    def __init__(self, model: Model, *, drafts: bool = False) -> None:
        config = model.config
        self.model = torch.nn.Module()
        self.device = torch.device("cpu")
        self.vllm_config = config
        self.compilation_config = config.compilation_config
        self.cache_config = config.cache_config
        self.lora_config = None
        self.max_num_reqs = config.scheduler_config.max_num_seqs
        self.model_state = SimpleNamespace(supports_mm_inputs=False)
        self.cudagraph_manager: Any = None
        self.speculator = SimpleNamespace(manager=None) if drafts else None
        self.captures: list[int] = []
        self._model = model

    def get_kv_cache_spec(self) -> dict[str, Any]:
        return {}

    def initialize_kv_cache(self, kv_cache_config: Any, is_profiling: bool = False) -> None:
        self.cudagraph_manager = new_manager(self.vllm_config)
        if self.speculator is not None:
            self.speculator.manager = new_manager(self.vllm_config)

    def needs_cudagraph_capture(self) -> bool:
        return bool(self.cudagraph_manager.needs_capture())

    def capture_model(self, profile_only: bool = False) -> int:
        free = torch.accelerator.get_memory_info()[0]
        self.cudagraph_manager.capture(self._model.factory)
        self.captures.append(len(self.cudagraph_manager.graphs))
        if self.speculator is not None:
            self.speculator.manager.capture(self._model.factory)
        return int(free - torch.accelerator.get_memory_info()[0])

    def maybe_remove_all_loras(self, lora_config: Any) -> None:
        """There are none."""
