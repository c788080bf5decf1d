"""vLLM without a GPU: a platform for its configuration, and what else of it needs CUDA or a process group.

Import this before anything of vLLM: it looks its platform up once.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch

from tests.integrations.vllm.cuda_on_sim import CudaOnSim

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what vLLM imports
    from vllm import platforms
    from vllm.platforms.interface import Platform, PlatformEnum


class GraphPlatform(Platform):  # type: ignore[misc]  # vLLM is not there when types are checked
    """A platform that has graphs, with tensors on the CPU."""

    _enum = PlatformEnum.OOT
    device_name = "simulated"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    mint: Callable[[], Any]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Changes nothing."""

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return True

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    def graph_pool_handle(self) -> Any:
        return type(self).mint()


platforms._current_platform = GraphPlatform()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.compilation import breakable_cudagraph, cuda_graph
    from vllm.compilation.monitor import set_cudagraph_capturing_enabled
    from vllm.config import CompilationConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.config.compilation import CompilationMode, CUDAGraphMode
    from vllm.forward_context import BatchDescriptor, set_forward_context
    from vllm.v1.worker import encoder_cudagraph
    from vllm.v1.worker.encoder_cudagraph_defs import EncoderCudaGraphConfig
    from vllm.v1.worker.gpu import cudagraph_utils
    from vllm.v1.worker.gpu.input_batch import InputBuffers

BreakableCUDAGraphWrapper = breakable_cudagraph.BreakableCUDAGraphWrapper
CUDAGraphWrapper = cuda_graph.CUDAGraphWrapper
EncoderCudaGraphManager = encoder_cudagraph.EncoderCudaGraphManager

__all__ = [
    "REQUESTS",
    "SIZES",
    "BatchDescriptor",
    "BreakableCUDAGraphWrapper",
    "CUDAGraphMode",
    "CUDAGraphWrapper",
    "EncoderCudaGraphConfig",
    "EncoderCudaGraphManager",
    "InputBuffers",
    "cudagraph_utils",
    "full",
    "new_manager",
    "put_on_sim",
    "real_config",
    "set_cudagraph_capturing_enabled",
    "set_forward_context",
]

SIZES = (1, 2, 4, 8, 16)
REQUESTS = 8
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float32",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}


def real_config(mode: Any = CUDAGraphMode.FULL_AND_PIECEWISE, **additional: object) -> Any:
    """A real ``VllmConfig``, with ``additional`` under the key of the adapter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA))
        model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=128, seed=0)
        scheduler = SchedulerConfig(max_num_seqs=REQUESTS, max_num_batched_tokens=128, max_model_len=128, is_encoder_decoder=False)
        compilation = CompilationConfig(mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=mode, cudagraph_capture_sizes=[*SIZES])
        return VllmConfig(
            model_config=model,
            scheduler_config=scheduler,
            compilation_config=compilation,
            additional_config={"cgstate": additional} if additional else {},
        )


def put_on_sim(monkeypatch: pytest.MonkeyPatch) -> CudaOnSim:
    """Replace what needs CUDA or a process group, until the test ends. The code of vLLM that captures stays what it is."""
    cuda = CudaOnSim()
    for name, value in cuda.names().items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name, value in cuda.accelerator().items():
        monkeypatch.setattr(torch.accelerator, name, value)
    monkeypatch.setattr(GraphPlatform, "mint", staticmethod(cuda.sim.pool_handle), raising=False)
    monkeypatch.setattr(GraphPlatform, "_global_graph_pool", None)
    for wrapper in (CUDAGraphWrapper, BreakableCUDAGraphWrapper):
        monkeypatch.setattr(wrapper, "_all_instances", WeakSet())  # those of other tests may be on their way out
    monkeypatch.setattr(cudagraph_utils, "get_pp_group", lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True))
    monkeypatch.setattr(cudagraph_utils, "graph_capture", cuda.graph_capture)
    monkeypatch.setattr(cudagraph_utils, "is_global_first_rank", lambda: True)
    modules: list[Any] = [cudagraph_utils, cuda_graph, breakable_cudagraph, encoder_cudagraph]
    if hasattr(cudagraph_utils, "capture_pool"):
        from vllm.compilation import cudagraph_pool

        modules.append(cudagraph_pool)
    replacements = {
        "current_stream": cuda.sim.current_stream,
        "set_graph_pool_id": cuda.registered.append,
        "weak_ref_tensors": lambda tensors: tensors,
    }
    for module in modules:
        for name, value in replacements.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    return cuda


def new_manager(config: Any, **arguments: Any) -> Any:
    """vLLM's own manager, with a decode length of 1."""
    mode = config.compilation_config.cudagraph_mode
    return cudagraph_utils.CudaGraphManager(config, torch.device("cpu"), mode, 1, **arguments)


def full(manager: Any) -> list[Any]:
    """The descriptors of the whole graphs that it captures, largest first."""
    return [desc for descs in manager._capture_descs.values() for desc in descs if desc.cg_mode is CUDAGraphMode.FULL]
