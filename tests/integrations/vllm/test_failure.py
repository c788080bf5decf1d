"""Captures that fail half way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import cgstate
import cgstate.integrations.vllm as adapter
from cgstate.runtime.transaction import Transaction
from tests.integrations.vllm.lab import CUDAGraphMode, full, new_manager, real_config
from tests.integrations.vllm.model import Model


class Broken(Exception):
    """What the model raises."""


def breaking(mode: str, tokens: int, *, warmup: bool) -> Callable[[Any, bool], None]:
    def fails(desc: Any, in_warmup: bool) -> None:
        if (desc.cg_mode.name, desc.num_tokens, in_warmup) == (mode, tokens, warmup):
            raise Broken

    return fails


PLACES = [("FULL", 8, False), ("FULL", 2, False), ("FULL", 2, True), ("PIECEWISE", 4, True)]


@pytest.mark.parametrize(("mode", "tokens", "warmup"), PLACES)
def test_nothing_is_half_bound(manager: Any, model: Model, mode: str, tokens: int, warmup: bool) -> None:
    model.fails = breaking(mode, tokens, warmup=warmup)
    with pytest.raises((cgstate.CaptureFailed, Broken)):
        manager.capture(model.factory)
    assert manager.graphs == {}
    assert manager.dispatch(3, 3, 1, 0).cg_mode is CUDAGraphMode.NONE
    assert model.piece.concrete_cudagraph_entries == {}


@pytest.mark.parametrize(("mode", "tokens", "warmup"), PLACES)
def test_a_second_capture_works(manager: Any, model: Model, mode: str, tokens: int, warmup: bool) -> None:
    model.fails = breaking(mode, tokens, warmup=warmup)
    with pytest.raises((cgstate.CaptureFailed, Broken)):
        manager.capture(model.factory)
    model.fails = lambda desc, warmup: None
    manager.capture(model.factory)
    for desc in full(manager):
        assert torch.equal(model.answer(manager, desc, 3), model.expected(desc, 3))


def test_the_error_names_the_graph_and_has_the_models_own_behind_it(manager: Any, model: Model) -> None:
    model.fails = breaking("FULL", 2, warmup=False)
    with pytest.raises(cgstate.CaptureFailed) as caught:
        manager.capture(model.factory)
    assert "num_tokens=2" in repr(caught.value.descriptor)
    assert caught.value.kind == cgstate.FailureKind.USER
    assert isinstance(caught.value.__cause__, Broken)


@pytest.mark.parametrize("tokens", [8, 4, 1])
def test_what_was_captured_is_freed(model: Model, tokens: int) -> None:
    manager = new_manager(real_config(CUDAGraphMode.FULL_DECODE_ONLY, check=True))
    before = model.cuda.backend.footprint()
    model.fails = breaking("FULL", tokens, warmup=False)
    with pytest.raises(cgstate.CaptureFailed):
        manager.capture(model.factory)
    after = model.cuda.backend.footprint()
    assert (after.pools, after.stream, after.generator) == (before.pools, before.stream, before.generator)
    model.fails = lambda desc, warmup: None
    manager.capture(model.factory)
    desc = full(manager)[0]
    assert torch.equal(model.answer(manager, desc, 3), model.expected(desc, 3))


def test_a_capture_that_breaks_the_rules_of_a_capture_is_undone(manager: Any, model: Model) -> None:
    """As CUDA would refuse it: the device is waited for."""

    def synchronizes(desc: Any, warmup: bool) -> None:
        if not warmup and desc.cg_mode.name == "FULL" and desc.num_tokens == 4:
            model.cuda.sim.synchronize()

    model.fails = synchronizes
    with pytest.raises(cgstate.CaptureFailed) as caught:
        manager.capture(model.factory)
    assert caught.value.kind == cgstate.FailureKind.REJECTED
    model.fails = lambda desc, warmup: None
    manager.capture(model.factory)
    desc = full(manager)[0]
    assert torch.equal(model.answer(manager, desc, 3), model.expected(desc, 3))


def test_a_commit_that_is_refused_leaves_nothing_for_dispatch(manager: Any, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM believes by then that all is captured."""

    def refuse(transaction: Transaction) -> None:
        raise cgstate.StaleBinding("entry", "kv", "CAPTURING", "bind", "epochs current")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", refuse)
        with pytest.raises(cgstate.StaleBinding):
            manager.capture(model.factory)
    assert manager.graphs == {}
    assert manager.dispatch(3, 3, 1, 0).cg_mode is CUDAGraphMode.NONE
    manager.capture(model.factory)
    desc = full(manager)[0]
    assert torch.equal(model.answer(manager, desc, 3), model.expected(desc, 3))


def test_a_second_capture_over_a_first_is_refused_by_vllm_and_keeps_the_first(manager: Any, model: Model) -> None:
    manager.capture(model.factory)
    with pytest.raises(AssertionError, match="already captured"):
        manager.capture(model.factory)
    desc = manager.dispatch(3, 3, 1, 0)
    assert desc.cg_mode is CUDAGraphMode.FULL
    assert torch.equal(model.answer(manager, desc, 3), model.expected(desc, 3))


def test_torch_has_its_own_names_back(manager: Any, model: Model) -> None:
    before = torch.cuda.graph
    model.fails = breaking("FULL", 2, warmup=False)
    with pytest.raises(cgstate.CaptureFailed):
        manager.capture(model.factory)
    assert torch.cuda.graph is before
    assert set(adapter.report()[0].entries.values()) == {0}
