"""vLLM's own wrapper of whole graphs, `vllm.compilation.cuda_graph.CUDAGraphWrapper`, called as vLLM's runner calls it.

The wrapper copies no input and hands out its static output, by a reference that does not keep it alive. Around it the runner writes
into tensors that stay where they are, and enters the forward context in which the wrapper finds which graph is wanted. So there are
two candidates: the wrapper in its context, and that between the copies that a component makes. What a runner does besides, such as
choosing the batch descriptor, is left out. It needs no model of vLLM's, and nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cgstate.bench.bed_torch import Linears, copying_in
from cgstate.bench.timing import Call

REPLAY = "vllm wrapper"
WHOLE = "vllm wrapper, copies"


def is_installed() -> bool:
    """Whether there is a vLLM; nothing of it is imported to find out."""
    return importlib.util.find_spec("vllm") is not None


class VllmWrapper:
    """Makes the candidates. Its graphs live as long as it does: they share vLLM's pool, which a last one would close (P1)."""

    def __init__(self) -> None:
        self._alive: list[Any] = []

    @cached_property
    def _vllm(self) -> SimpleNamespace:
        """What is used of vLLM. Imported as late as can be: it changes settings of torch's compiler, which is measured too."""
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for the result
        from vllm.compilation.cuda_graph import CUDAGraphWrapper
        from vllm.config import CUDAGraphMode, VllmConfig
        from vllm.forward_context import BatchDescriptor, set_forward_context

        return SimpleNamespace(
            wrapper=CUDAGraphWrapper,
            mode=CUDAGraphMode,
            descriptor=BatchDescriptor,
            context=set_forward_context,
            config=VllmConfig(),
        )

    def candidates(self, model: Linears, given: tuple[Tensor, ...], settle: Callable[[], object]) -> dict[str, Call]:
        """A graph of ``model`` on inputs of this shape, captured by the wrapper, and replayed in two ways.

        Raises:
            RuntimeError: the wrapper has captured nothing.
            Exception: this vLLM cannot be imported, has not the names that are used here, refuses its own default configuration,
                or fails to capture.
        """
        vllm = self._vllm
        config, context, full = vllm.config, vllm.context, vllm.mode.FULL
        rows = len(given[0])
        batch = vllm.descriptor(num_tokens=rows)
        static = [each.clone() for each in given]
        wrapper = vllm.wrapper(model, config, runtime_mode=full)
        self._alive.append(wrapper)

        def replay(mode: Any = full) -> Any:
            with context(None, config, num_tokens=rows, cudagraph_runtime_mode=mode, batch_descriptor=batch):
                return wrapper(*static)

        settle()
        with torch.cuda.stream(torch.cuda.Stream()):  # vLLM captures on the current one
            replay(vllm.mode.NONE)  # eagerly, to warm up
            replay()
        settle()
        if [entry.cudagraph is None for entry in wrapper.concrete_cudagraph_entries.values()] != [False]:
            raise RuntimeError("the wrapper has captured no graph")
        copy_in = copying_in(static, given)

        def whole() -> Any:
            copy_in()
            with context(None, config, num_tokens=rows, cudagraph_runtime_mode=full, batch_descriptor=batch):
                output = wrapper(*static)
            return output.clone() if isinstance(output, Tensor) else tuple(each.clone() for each in output)

        return {REPLAY: replay, WHOLE: whole}
