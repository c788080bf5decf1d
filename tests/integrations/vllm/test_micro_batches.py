"""What came with micro-batches: twins of whole graphs, captured on a stream of their own; and vLLM's own ``release_graphs``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cgstate
import cgstate.integrations.vllm as adapter
from tests.integrations.vllm.lab import cudagraph_utils, full, new_manager
from tests.integrations.vllm.model import Model


@pytest.fixture
def twins(model: Model, config: Any) -> Any:
    """A manager that captures each whole graph of at least 4 tokens in two micro-batches as well."""
    parallel = config.parallel_config
    parallel.enable_dbo = True
    parallel.dbo_decode_token_threshold = 4
    runner = SimpleNamespace(capture_stream=model.cuda.sim.new_stream(exclusive=True), abort_pending_run=lambda: None)
    return new_manager(config, ubatch_runner=runner)


def test_twins_are_entries_of_their_own_on_the_stream_of_the_micro_batches(twins: Any, model: Model) -> None:
    streams: dict[int, set[int]] = {1: set(), 2: set()}

    def where(desc: Any, warmup: bool) -> None:
        if desc.cg_mode.name == "FULL" and not warmup:
            streams[desc.num_ubatches].add(model.cuda.sim.current_handle())

    model.fails = where
    twins.capture(model.factory)
    assert streams[2] == {twins.ubatch_runner.capture_stream.handle}
    assert streams[1].isdisjoint(streams[2])
    doubled = [desc for desc in full(twins) if desc.num_ubatches == 2]
    assert {desc.num_tokens for desc in doubled} == {4, 8}
    for desc in full(twins):
        assert torch.equal(model.answer(twins, desc, 2), model.expected(desc, 2))
        assert twins.graphs[desc].hits == 1


def test_dispatch_tells_them_apart(twins: Any, model: Model) -> None:
    twins.capture(model.factory)
    single = twins.dispatch(8, 8, 1, 0)
    double = twins.dispatch(8, 8, 1, 0, num_ubatches=2)
    assert (single.num_ubatches, double.num_ubatches) == (1, 2)
    assert twins.graphs[single] is not twins.graphs[double]


def test_a_twin_that_fails_undoes_all_and_lets_the_waiting_threads_go(twins: Any, model: Model) -> None:
    aborted = []
    twins.ubatch_runner.abort_pending_run = lambda: aborted.append(True)

    def fails(desc: Any, warmup: bool) -> None:
        if desc.cg_mode.name == "FULL" and desc.num_ubatches == 2 and not warmup:
            raise RuntimeError("the micro-batches failed")

    model.fails = fails
    with pytest.raises(cgstate.CaptureFailed, match="the micro-batches failed"):
        twins.capture(model.factory)
    assert aborted == [True]
    assert twins.graphs == {}
    model.fails = lambda desc, warmup: None
    twins.capture(model.factory)
    assert set(twins.graphs) == set(full(twins))


def test_vllms_own_release_is_what_runs_after_ours(manager: Any, model: Model) -> None:
    replaced = cudagraph_utils.CudaGraphManager.release_graphs
    adapter.uninstall()
    assert replaced.__wrapped__ is cudagraph_utils.CudaGraphManager.release_graphs
