"""Captures and replays of vLLM's own manager, on the simulated device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cgstate
import cgstate.integrations.vllm as adapter
from cgstate.runtime import hotpath
from cgstate.runtime.entry import Entry
from tests.integrations.vllm.cuda_on_sim import CudaOnSim
from tests.integrations.vllm.lab import CUDAGraphMode, cudagraph_utils, full, new_manager, real_config
from tests.integrations.vllm.model import Model


def test_every_full_graph_is_a_bound_entry(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    assert set(manager.graphs) == set(full(manager))
    assert {type(graph) for graph in manager.graphs.values()} == {Entry}
    assert {graph.state for graph in manager.graphs.values()} == {cgstate.EntryState.BOUND}


def test_replays_answer_what_eager_answers(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    for seed, desc in enumerate(full(manager)):
        assert torch.equal(model.answer(manager, desc, seed), model.expected(desc, seed))
        assert manager.graphs[desc].hits == 1


def test_a_replay_takes_the_hot_path(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody checks or records: `Entry.replay` itself, without a lease that others could see."""
    manager = new_manager(real_config())
    manager.capture(model.factory)
    entry = manager.graphs[full(manager)[0]]
    assert entry.fast
    assert type(entry).replay is hotpath.replay
    model.answer(manager, entry.descriptor, 1)
    monkeypatch.setattr(Entry, "lease", None)  # a second replay on the same stream does not ask for one
    assert torch.equal(model.answer(manager, entry.descriptor, 2), model.expected(entry.descriptor, 2))


def test_a_replay_of_the_wrong_graph_is_seen(manager: Any, model: Model) -> None:
    """The comparison above can fail: every row and every size changes what is computed."""
    manager.capture(model.factory)
    large, small = full(manager)[0], full(manager)[1]
    manager.graphs[large] = manager.graphs[small]
    assert not torch.equal(model.answer(manager, large, 1), model.expected(large, 1))


def test_vllm_captures_in_its_own_order_with_its_own_warm_up(cuda: CudaOnSim, config: Any, capsys: Any) -> None:
    """The same calls, in the same order, with the same pools registered, whether or not cgstate is there."""
    bare = Model(cuda, config)
    new_manager(config).capture(bare.factory)
    registered = len(cuda.registered)
    told = capsys.readouterr().err
    adapter.install(lambda device: cuda.backend)
    try:
        model = Model(cuda, config)
        new_manager(config).capture(model.factory)
    finally:
        adapter.uninstall()
    assert model.calls == bare.calls
    assert len(cuda.registered) == 2 * registered
    assert len(set(cuda.registered)) == 1
    assert "(FULL): 100%" in told
    assert "(FULL): 100%" in capsys.readouterr().err


def test_it_is_captured_on_the_stream_that_vllm_gives(cuda: CudaOnSim, config: Any) -> None:
    """Which is that of the warm-up, or the one that torch captures on where none is given."""

    def streams() -> list[tuple[bool, bool]]:
        model, seen = Model(cuda, config), []

        def look(desc: Any, warmup: bool) -> None:
            default = cuda.graph.default_capture_stream
            seen.append((cuda.sim.current_handle(), default is not None and default.handle == cuda.sim.current_handle()))

        model.fails = look
        new_manager(config).capture(model.factory)
        return [(handle == seen[0][0], is_default) for handle, is_default in seen]

    without = streams()
    adapter.install(lambda device: cuda.backend)
    try:
        assert streams() == without
    finally:
        adapter.uninstall()


@pytest.mark.parametrize("loras", [0, 1, 3, 9])
def test_lora_cases_are_entries_of_their_own(model: Model, config: Any, loras: int) -> None:
    manager = new_manager(config, lora_capture_cases=[0, 2, 4])
    manager.capture(model.factory)
    desc = manager.dispatch(4, 4, 1, loras)
    assert desc.cg_mode is CUDAGraphMode.FULL
    assert torch.equal(model.answer(manager, desc, 5), model.expected(desc, 5))
    assert manager.graphs[desc].descriptor == desc


def test_every_mode_that_has_full_graphs(model: Model) -> None:
    for mode in (CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_PIECEWISE):
        manager = new_manager(real_config(mode, check=True))
        manager.capture(model.factory)
        desc = manager.dispatch(3, 3, 1, 0)
        assert torch.equal(model.answer(manager, desc, 2), model.expected(desc, 2))


def test_a_manager_without_full_graphs_needs_nothing_of_ours(cuda: CudaOnSim) -> None:
    def no_device(device: torch.device) -> cgstate.Backend:
        raise AssertionError("a backend was asked for")

    config = real_config(CUDAGraphMode.PIECEWISE)
    adapter.install(no_device)
    try:
        manager = new_manager(config)
        manager.capture(Model(cuda, config).factory)
        assert manager.graphs == {}
        assert adapter.report() == ()
        manager.release_graphs()
    finally:
        adapter.uninstall()


def test_dispatch_answers_as_without_cgstate(cuda: CudaOnSim, config: Any) -> None:
    queries = [(reqs, tokens, uniform, 0) for reqs in (0, 1, 3, 8, 9) for tokens in (0, 1, 3, 9, 17) for uniform in (1, None)]

    def answers() -> list[Any]:
        manager = new_manager(config)
        before = [manager.dispatch(*query) for query in queries]
        manager.capture(Model(cuda, config).factory)
        return before + [manager.dispatch(*query) for query in queries]

    without = answers()
    adapter.install(lambda device: cuda.backend)
    try:
        assert answers() == without
    finally:
        adapter.uninstall()


def test_two_managers_with_equal_descriptors_have_entries_of_their_own(model: Model, config: Any) -> None:
    first, second = new_manager(config), new_manager(config)
    other = Model(model.cuda, config)
    first.capture(model.factory)
    second.capture(other.factory)
    desc = full(first)[0]
    assert first.graphs[desc] is not second.graphs[desc]
    assert torch.equal(model.answer(first, desc, 1), model.expected(desc, 1))
    assert torch.equal(other.answer(second, desc, 2), other.expected(desc, 2))
    first.release_graphs()
    assert torch.equal(other.answer(second, desc, 3), other.expected(desc, 3))


def test_a_subclass_that_brings_its_own_capture_is_managed_too(model: Model, config: Any) -> None:
    """As vLLM's managers of the model and of its speculators do."""

    class Draft(cudagraph_utils.CudaGraphManager):  # type: ignore[misc]
        def capture(self, forward: Any, progress_bar_desc: str = "Capturing draft graphs") -> None:
            super().capture(lambda desc, warmup: forward(desc, warmup), progress_bar_desc)

    manager = Draft(config, torch.device("cpu"), config.compilation_config.cudagraph_mode, 1)
    manager.capture(model.factory)
    assert {type(graph) for graph in manager.graphs.values()} == {Entry}
    assert next(iter(adapter.report()[0].entries)).startswith("Draft-")


def test_graphs_that_draw_random_numbers_are_known_to(manager: Any, model: Model) -> None:
    model.draws = True
    manager.capture(model.factory)
    desc = full(manager)[0]
    assert manager.graphs[desc].uses_random
    first, second = model.answer(manager, desc, 1), model.answer(manager, desc, 1)
    assert not torch.equal(first, second)


def test_a_graph_that_is_replayed_after_its_release_is_refused(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    desc = full(manager)[0]
    kept = manager.graphs[desc]
    manager.release_graphs()
    with pytest.raises(cgstate.IllegalTransition):
        kept.replay()


def test_what_a_manager_takes_can_be_measured_where_vllm_does_not_profile(model: Model) -> None:
    config = real_config(CUDAGraphMode.FULL_DECODE_ONLY, check=True)
    before = model.cuda.backend.footprint().pools
    manager = new_manager(config)
    with adapter.measuring(manager.device) as run:
        manager.capture(model.factory)
        estimate = run.conclude()
    assert model.cuda.backend.footprint().pools == before
    assert manager.graphs == {}
    assert estimate.graphs == len(full(manager))
    manager.capture(model.factory)
    assert estimate.lower <= adapter.report()[0].charged <= estimate.upper


def test_nothing_is_measured_where_vllm_is_not_managed(cuda: CudaOnSim) -> None:
    with pytest.raises(cgstate.ConfigError, match="call install first"), adapter.measuring(torch.device("cpu")):
        raise AssertionError("the block ran")
