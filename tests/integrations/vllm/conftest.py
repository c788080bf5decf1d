"""These tests run vLLM's own code: `make test-vllm` makes an environment that has it. Elsewhere they are not collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integrations.vllm.cuda_on_sim import CudaOnSim
    from tests.integrations.vllm.model import Model

collect_ignore_glob = [] if importlib.util.find_spec("vllm") is not None else ["test_*.py"]

if not collect_ignore_glob:
    from tests.integrations.vllm.lab import cudagraph_utils

    if not hasattr(cudagraph_utils.CudaGraphManager, "_maybe_ubatch_twin"):
        collect_ignore_glob.append("test_micro_batches.py")
    if not hasattr(cudagraph_utils, "profile_cudagraph_memory"):
        collect_ignore_glob.append("test_profiling.py")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: runs vLLM's own code, without a GPU; run with `make test-vllm`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaOnSim:
    """The device under vLLM, which is left alone by cgstate."""
    from tests.integrations.vllm.lab import put_on_sim

    return put_on_sim(monkeypatch)


@pytest.fixture
def managed(cuda: CudaOnSim) -> Iterator[CudaOnSim]:
    """The device under vLLM, which is put on cgstate."""
    import cgstate.integrations.vllm as adapter

    adapter.install(lambda device: cuda.backend)
    yield cuda
    adapter.uninstall()


@pytest.fixture
def config() -> Any:
    """A real configuration, in which every invariant is checked after each operation."""
    from tests.integrations.vllm.lab import real_config

    return real_config(check=True)


@pytest.fixture
def model(managed: CudaOnSim, config: Any) -> Model:
    from tests.integrations.vllm.model import Model

    return Model(managed, config)


@pytest.fixture
def manager(model: Model, config: Any) -> Any:
    """vLLM's own manager."""
    from tests.integrations.vllm.lab import new_manager

    return new_manager(config)
