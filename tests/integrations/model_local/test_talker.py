"""End to end: a tiny talker of torch modules, its code predictor and its vocoder by graphs, in runners of both shapes.

What it runs on is the simulator: graphs have static addresses there, share memory inside a pool, and replay what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("yaml")

import torch
from torch import Tensor

import cgstate
from cgstate.backends.sim import SimBackend
from cgstate.integrations.model_local import read_deploy
from examples.model_local import serve
from examples.model_local.talker import CODEBOOKS, HIDDEN, HOP, VOCABULARY, Talker
from tests.integrations.model_local.helpers import variants
from tests.integrations.model_local.shapes import RUNNERS, Worker, worker

pytestmark = pytest.mark.torch

DEPLOY = {"code_predictor": {}, "vocoder": {"max_extra_graphs": 2, "isolation": "per_entry", "thrash_protection": False}}


@contextmanager
def talking(runner: Callable[..., Any], raw: Any = None) -> Iterator[tuple[Worker, Talker, SimBackend]]:
    """A started worker, its model and its device, of which nothing is left afterwards."""
    backend = SimBackend()
    made = worker(Talker, DEPLOY if raw is None else raw, backend, runner)
    made.load_model()
    before = backend.footprint()
    made.determine_available_memory()
    assert backend.footprint() == before
    made.compile_or_warm_up_model()
    model: Any = made.model_runner.model
    while not isinstance(model, Talker):
        model = model.unwrap()
    yield made, model, backend
    made.shutdown()
    assert backend.footprint() == before


def draw(generator: torch.Generator, most: int) -> int:
    return int(torch.randint(1, most + 1, (), generator=generator))


def predicted(model: Talker, generator: torch.Generator) -> bool:
    """Whether a batch of a random size is answered as the module itself answers the padded batch, bit for bit."""
    hidden = torch.randn(draw(generator, 8), HIDDEN, generator=generator)
    size = min(size for size in (1, 2, 4, 8) if size >= len(hidden))
    padded = torch.cat([hidden, torch.zeros(size - len(hidden), HIDDEN)])
    answer = model.predict(hidden)
    return type(answer) is Tensor and torch.equal(answer, model.predictor(padded)[: len(hidden)])


def rendered(model: Talker, generator: torch.Generator, most: int = 100) -> bool:
    """The same for the vocoder, whose miss may also be eager: then it is the unpadded answer."""
    codes = torch.randint(0, VOCABULARY, (draw(generator, most), CODEBOOKS), generator=generator)
    graphs = [size for size in (16, 32, 64, 128) if size >= len(codes)]
    answer = model.render(codes)
    padded = (torch.cat([codes, torch.zeros(size - len(codes), CODEBOOKS, dtype=torch.int64)]) for size in graphs)
    right = [model.vocoder(codes), *(model.vocoder(each)[: len(codes) * HOP] for each in padded)]
    return type(answer) is Tensor and any(torch.equal(answer, each) for each in right)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_talker_lives_through_all_that_an_engine_does(runner: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    with talking(runner) as (made, model, backend), torch.inference_mode():
        manager = made.model_local
        assert manager is not None
        assert (variants(model.predict), variants(model.render)) == ([1, 2, 4, 8], [16, 32])

        # Random sizes: the predictor always has a graph, the vocoder captures what it lacks.
        assert all(predicted(model, generator) and rendered(model, generator) for _ in range(12))
        stats = manager.graphs.stats().components
        assert stats["code_predictor"].fallbacks == {}
        assert stats["vocoder"].captures > 2

        # One component is evicted; the other one goes on.
        manager.graphs.evict("vocoder")
        assert variants(model.predict) == [1, 2, 4, 8]
        assert all(predicted(model, generator) and rendered(model, generator, 16) for _ in range(4))
        manager.capture_and_bind(progress=False)
        assert set(variants(model.render)) >= {16, 32}

        # Everything goes and comes back.
        manager.clear()
        assert manager.graphs.memory().total == 0
        assert all(predicted(model, generator) for _ in range(2))

        # A failed capture leaves both eager, and the next one binds both.
        backend.sim.faults.inject("open_capture", nth=4)
        with pytest.raises(cgstate.CaptureFailed):
            manager.capture_and_bind(progress=False)
        assert not model.predict.is_graph_bound
        assert not model.render.is_graph_bound
        assert predicted(model, generator)
        assert rendered(model, generator)
        manager.capture_and_bind(progress=False)
        assert all(predicted(model, generator) and rendered(model, generator) for _ in range(4))

        # Asleep, nothing is answered; awake, all is as before.
        made.sleep()
        with pytest.raises(cgstate.NotResident):
            model.predict(torch.zeros(1, HIDDEN))
        made.wake_up()
        assert all(predicted(model, generator) and rendered(model, generator) for _ in range(4))


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_whole_model_answers_as_without_graphs(runner: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    plain = Talker()
    with talking(runner) as (_, model, _), torch.inference_mode():
        for length in (16, 32, 64):  # sizes that need no padding: the same bits
            hidden = torch.randn(length, HIDDEN, generator=generator)
            assert torch.equal(model(hidden), plain(hidden))
        hits = model.predict.handle
        assert hits is not None
        for length in (1, 8, 9, 31, 45):
            hidden = torch.randn(length, HIDDEN, generator=generator)
            assert torch.allclose(model(hidden), plain(hidden), atol=1e-6)


def test_teardown_goes_on_past_failing_resets() -> None:
    backend = SimBackend()
    made = worker(Talker, DEPLOY, backend)
    made.load_model()
    made.compile_or_warm_up_model()
    faults = backend.sim.faults
    destroyed = faults.calls["graph_destroy"]
    faults.inject("graph_destroy")
    faults.inject("graph_destroy", nth=3)
    made.shutdown()
    assert faults.pending() == 0
    assert faults.calls["graph_destroy"] >= destroyed + 6  # all were tried
    assert made.events[-1] == "runner shutdown"
    model = made.model_runner.get_model()
    hidden = torch.randn(16, HIDDEN)
    assert torch.equal(model(hidden), Talker()(hidden))


def test_a_call_that_autograd_records_is_eager_and_has_gradients() -> None:
    with talking(RUNNERS[0]) as (made, model, _):
        model.requires_grad_(True)
        codes = torch.zeros(4, CODEBOOKS, dtype=torch.int64)
        assert model.render(codes).requires_grad
        assert made.model_local is not None
        assert made.model_local.graphs.stats().components["vocoder"].fallbacks == {"autograd": 1}


def test_graphs_are_profiled_and_captured_in_inference_mode_as_they_are_served() -> None:
    backend, modes = SimBackend(), list[bool]()
    made = worker(Talker, DEPLOY, backend)
    made.load_model()
    routine: Any = made.model_runner.get_model().predict.routine
    forward = routine.forward_for_capture

    def noting(buffers: Any) -> Any:
        modes.append(torch.is_inference_mode_enabled())
        return forward(buffers)

    routine.forward_for_capture = noting
    made.determine_available_memory()
    profiled = len(modes)
    made.compile_or_warm_up_model()
    assert 0 < profiled < len(modes)
    assert set(modes) == {True}
    made.shutdown()


def test_the_deploy_file_of_the_example_is_taken() -> None:
    raw = read_deploy(serve.DEPLOY, stage=1)
    with talking(RUNNERS[0], raw) as (made, model, _):
        assert (variants(model.predict), variants(model.render)) == ([1, 2, 4, 8], [16, 32])
        assert made.model_local is not None
        assert made.model_local.reserve is not None
        assert made.model_local.reserve.untold == ()


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main()
    assert "all audio is right" in capsys.readouterr().out
