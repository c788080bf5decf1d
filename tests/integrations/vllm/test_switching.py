"""On, off, and neither."""

from __future__ import annotations

import inspect
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import cgstate.integrations.vllm as adapter
from cgstate.errors import ConfigError
from tests.integrations.vllm.cuda_on_sim import CudaOnSim
from tests.integrations.vllm.lab import (
    BreakableCUDAGraphWrapper,
    CUDAGraphWrapper,
    EncoderCudaGraphManager,
    cudagraph_utils,
    new_manager,
    real_config,
)
from tests.integrations.vllm.model import Model

CLASSES = (cudagraph_utils.CudaGraphManager, EncoderCudaGraphManager, CUDAGraphWrapper, BreakableCUDAGraphWrapper)


def everything() -> dict[tuple[str, str], Any]:
    """Every attribute of what may be replaced, by identity."""
    there = {(owner.__name__, name): value for owner in CLASSES for name, value in vars(owner).items()}
    return there | {("module", name): value for name, value in vars(cudagraph_utils).items() if callable(value)}


def entry_points() -> dict[str, str]:
    """What the project says to vLLM."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    found: dict[str, str] = project["project"]["entry-points"]["vllm.general_plugins"]
    return found


def test_where_it_is_off_nothing_of_vllm_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything()
    for value in (None, "", "0"):
        if value is None:
            monkeypatch.delenv("CGSTATE_VLLM", raising=False)
        else:
            monkeypatch.setenv("CGSTATE_VLLM", value)
        adapter.register()
        after = everything()
        assert after.keys() == before.keys()
        assert all(after[name] is before[name] for name in before)


def test_the_switch_puts_it_on_once_however_often_vllm_asks(cuda: CudaOnSim, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything()
    monkeypatch.setenv("CGSTATE_VLLM", "1")
    try:
        adapter.register()
        once = everything()
        adapter.register()
        assert all(everything()[name] is once[name] for name in once)
    finally:
        adapter.uninstall()
    changed = {name for name in once if once[name] is not before.get(name)}
    assert ("CudaGraphManager", "capture") in changed
    assert ("CudaGraphManager", "dispatch") not in changed
    assert ("CudaGraphManager", "run_fullgraph") not in changed
    after = everything()
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_what_replaces_a_method_has_its_signature(managed: CudaOnSim) -> None:
    for name in ("__init__", "capture"):
        replaced = getattr(cudagraph_utils.CudaGraphManager, name)
        assert inspect.signature(replaced) == inspect.signature(replaced.__wrapped__)


def test_one_engine_can_stay_out(managed: CudaOnSim) -> None:
    config = real_config(enabled=False)
    manager, model = new_manager(config), Model(managed, config)
    manager.capture(model.factory)
    assert {type(graph).__name__ for graph in manager.graphs.values()} == {"CUDAGraph"}
    assert adapter.report() == ()
    manager.release_graphs()
    assert manager.graphs == {}


def test_a_bad_option_is_refused_before_anything_is_captured(managed: CudaOnSim) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'chekc'; it may have \['check', 'enabled', 'trace'\]"):
        new_manager(real_config(chekc=True))


def test_a_manager_that_was_there_before_is_taken_over(cuda: CudaOnSim) -> None:
    config = real_config()
    manager, model = new_manager(config), Model(cuda, config)
    adapter.install(lambda device: cuda.backend)
    try:
        manager.capture(model.factory)
        assert {type(graph).__name__ for graph in manager.graphs.values()} == {"Entry"}
    finally:
        adapter.uninstall()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (cudagraph_utils, "CudaGraphManager"),
        (cudagraph_utils.CudaGraphManager, "run_fullgraph"),
        (CUDAGraphWrapper, "clear_graphs"),
        (EncoderCudaGraphManager, "_capture_budget_graph"),
    ],
)
def test_a_release_that_lacks_a_name_is_refused_by_that_name(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    monkeypatch.delattr(owner, name)
    before = everything()
    with pytest.raises(adapter.UnsupportedRelease, match=name) as caught:
        adapter.install()
    assert any(name in missing for missing in caught.value.missing)
    assert all(everything()[each] is before[each] for each in before)


def test_a_manager_that_keeps_its_graphs_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def __init__(self: Any, vllm_config: Any, device: Any) -> None:
        self.vllm_config, self.device, self.recordings = vllm_config, device, {}

    monkeypatch.setattr(cudagraph_utils.CudaGraphManager, "__init__", __init__)
    with pytest.raises(adapter.UnsupportedRelease, match=r"graphs in cudagraph_utils\.CudaGraphManager\.__init__"):
        adapter.install()


def test_a_module_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.v1.worker.gpu

    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.cudagraph_utils", None)
    monkeypatch.delattr(vllm.v1.worker.gpu, "cudagraph_utils")
    with pytest.raises(adapter.UnsupportedRelease, match=r"vllm\.v1\.worker\.gpu\.cudagraph_utils"):
        adapter.install()


def test_the_entry_point_is_vllms_and_leads_to_register() -> None:
    [(name, value)] = entry_points().items()
    assert EntryPoint(name, value, "vllm.general_plugins").load() is adapter.register


@pytest.mark.parametrize(("switch", "replaced"), [("0", False), ("1", True)])
def test_vllm_itself_finds_the_adapter_and_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, replaced: bool
) -> None:
    """As it does in each of its processes, from what an installed package says of itself."""
    import vllm.plugins

    [(name, value)] = entry_points().items()
    installed = tmp_path / "cgstate-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: cgstate\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VLLM_PLUGINS", name)
    monkeypatch.setenv("CGSTATE_VLLM", switch)
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    before = cudagraph_utils.CudaGraphManager.capture
    try:
        vllm.plugins.load_general_plugins()
        assert (cudagraph_utils.CudaGraphManager.capture is not before) is replaced
    finally:
        adapter.uninstall()
