"""Which of the names that the adapter uses a vLLM has: asked of the modules themselves, never of the release number."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from cgstate.integrations.vllm.errors import UnsupportedRelease


@dataclass(frozen=True, slots=True)
class Features:
    """What comes and goes between releases.

    Attributes:
        releases: The manager can drop its graphs (``release_graphs``).
        profiles: The V2 runner profiles graph memory (``profile_cudagraph_memory``).
    """

    releases: bool
    profiles: bool


@dataclass(frozen=True, slots=True)
class Seams:
    """The modules and classes of vLLM that the adapter works on."""

    version: str
    utils: Any
    manager: Any
    piecewise: Any
    breakable: Any
    encoder: Any
    features: Features


def seams() -> Seams:
    """Import what is needed of vLLM and look at it.

    Raises:
        UnsupportedRelease: something is missing; the message says what.
    """
    import vllm

    version = str(getattr(vllm, "__version__", "of an unknown release"))
    try:
        from vllm.compilation import breakable_cudagraph, cuda_graph
        from vllm.v1.worker import encoder_cudagraph
        from vllm.v1.worker.gpu import cudagraph_utils
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("vllm."):
            raise  # one of vLLM's own requirements is not installed: not a question of releases
        raise UnsupportedRelease(version, [error.name]) from error
    missing = [*_missing(cudagraph_utils, cuda_graph, breakable_cudagraph, encoder_cudagraph)]
    if missing:
        raise UnsupportedRelease(version, missing)
    return Seams(
        version=version,
        utils=cudagraph_utils,
        manager=cudagraph_utils.CudaGraphManager,
        piecewise=cuda_graph.CUDAGraphWrapper,
        breakable=breakable_cudagraph.BreakableCUDAGraphWrapper,
        encoder=encoder_cudagraph.EncoderCudaGraphManager,
        features=Features(
            releases=hasattr(cudagraph_utils.CudaGraphManager, "release_graphs"),
            profiles=hasattr(cudagraph_utils, "profile_cudagraph_memory"),
        ),
    )


def _missing(utils: Any, cuda_graph: Any, breakable_cudagraph: Any, encoder_cudagraph: Any) -> Iterator[str]:
    """The names that are not there."""
    here = "cudagraph_utils"
    manager = getattr(utils, "CudaGraphManager", None)
    if manager is None:
        yield f"{here}.CudaGraphManager"
    else:
        where = f"{here}.CudaGraphManager"
        yield from _methods(where, manager, "capture", "dispatch", "run_fullgraph")
        yield from _assigned(f"{where}.__init__", manager, "graphs", "pool", "device", "vllm_config", "_graphs_captured")
        if hasattr(manager, "capture"):
            signature = inspect.signature(manager.capture)
            yield from _mentioned(f"{where}.capture", manager.capture, "cuda", "graph", "graphs")
            if "create_forward_fn" not in signature.parameters:
                yield f"{where}.capture(create_forward_fn)"
            if signature.return_annotation not in (
                None,
                "None",
            ):  # up to 0.24 both it and the factory hand attention state out
                yield f"{where}.capture() -> None"
    if hasattr(utils, "profile_cudagraph_memory"):
        for name in ("_extrapolate_full_graph_memory", "current_platform"):
            if not hasattr(utils, name):
                yield f"{here}.{name}"
    for module, name, entries in (
        (cuda_graph, "CUDAGraphWrapper", "concrete_cudagraph_entries"),
        (breakable_cudagraph, "BreakableCUDAGraphWrapper", "entries"),
    ):
        wrapper = getattr(module, name, None)
        if wrapper is None:
            yield name
        else:
            yield from _methods(name, wrapper, "clear_graphs", "_all_instances")
            yield from _assigned(f"{name}.__init__", wrapper, "graph_pool", entries)
    encoder = getattr(encoder_cudagraph, "EncoderCudaGraphManager", None)
    if encoder is None:
        yield "EncoderCudaGraphManager"
    else:
        yield from _methods("EncoderCudaGraphManager", encoder, "capture", "clear", "_capture_budget_graph")
        yield from _assigned("EncoderCudaGraphManager.__init__", encoder, "budget_graphs", "device", "vllm_config")


def _methods(where: str, owner: Any, *names: str) -> Iterator[str]:
    for name in names:
        if not hasattr(owner, name):
            yield f"{where}.{name}"


def _assigned(where: str, owner: Any, *names: str) -> Iterator[str]:
    """Attributes that its constructor makes: there is no instance yet to ask."""
    yield from _mentioned(where, owner.__init__, *names)


def _mentioned(where: str, function: Any, *names: str) -> Iterator[str]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    known = code.co_names if isinstance(code, CodeType) else ()
    for name in names:
        if name not in known:
            yield f"{name} in {where}"
