"""The hooks of an engine's worker, with runners in V1's shape, in V2's, and with less than either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from tests.integrations.model_local.helpers import Model, variants
from tests.integrations.model_local.shapes import KV_CACHE, OWN_ESTIMATE, OWN_GRAPHS, RUNNERS, V1Runner, V2Runner, Worker, worker

BOTH: dict[str, Any] = {"first": {}, "second": {}}


def started(model: Model, runner: Callable[..., Any] = V1Runner, raw: Any = None, **keys: Any) -> Worker:
    made = worker(lambda: model, BOTH if raw is None else raw, model.backend, runner, **keys)
    made.load_model()
    made.determine_available_memory()
    made.compile_or_warm_up_model()
    return made


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_worker_brings_its_models_components_through_the_engines_life(runner: Callable[..., Any]) -> None:
    model = Model()
    made = worker(lambda: model, BOTH, model.backend, runner)
    assert made.model_local_metrics() == {}
    made.load_model(load_dummy_weights=True)
    assert model.first.handle is not None
    assert model.right("first", 2)
    available = made.determine_available_memory()
    assert not model.first.is_graph_bound
    assert made.compile_or_warm_up_model() == 1.5
    assert made.model_local is not None
    total = made.model_local.graphs.memory().total
    assert made.held == OWN_GRAPHS + total
    own = OWN_ESTIMATE if hasattr(made.model_runner, "profile_cudagraph_memory") else 0
    assert KV_CACHE - own - available >= total
    assert model.right("first", 3)
    assert made.model_local_metrics()["first"]["hits"] == 1
    made.shutdown()
    assert model.first.handle is None
    assert made.events[-2:] == ["shutdown", "runner shutdown"]
    assert model.right("first", 3)


@pytest.mark.parametrize("runner", RUNNERS)
def test_graphs_are_captured_before_the_engine_seeds_its_generators(runner: Callable[..., Any]) -> None:
    model = Model()
    made = worker(lambda: model, BOTH, model.backend, runner)
    forward = model.routines["first"].forward_for_capture

    def noting(buffers: Any) -> Any:
        made.events.append("ours")
        return forward(buffers)

    model.routines["first"].forward_for_capture = noting  # type: ignore[method-assign]
    made.load_model()
    made.compile_or_warm_up_model()
    ours = [place for place, event in enumerate(made.events) if event == "ours"]
    assert made.events.index("capture") < min(ours) <= max(ours) < made.events.index("seed")
    made.shutdown()


def test_a_runner_that_profiles_by_capturing_binds_nothing_by_it() -> None:
    model = Model()
    made = worker(lambda: model, BOTH, model.backend, V2Runner)
    made.load_model()
    made.determine_available_memory()
    assert "profiling capture" in made.events
    assert not model.first.is_graph_bound
    made.shutdown()


def test_the_reserve_is_taken_once_whether_or_not_the_runner_profiles_graphs() -> None:
    left = {}
    for graphs in (True, False):
        model = Model()
        made = worker(lambda model=model: model, BOTH, model.backend, graphs=graphs)  # type: ignore[misc]
        made.load_model()
        own = OWN_ESTIMATE if graphs else 0
        left[graphs] = made.determine_available_memory() + own
        assert left[graphs] < KV_CACHE
        assert made.determine_available_memory() + own < KV_CACHE  # asked again
        made.shutdown()
    assert left[True] == left[False]


def test_a_cache_whose_size_the_user_has_fixed_keeps_it() -> None:
    model = Model()
    made = worker(lambda: model, BOTH, model.backend, fixed=4096)
    made.load_model()
    assert made.determine_available_memory() == 4096
    assert made.model_local is not None
    assert made.model_local.estimate is None
    made.shutdown()


def test_without_configuration_a_worker_is_the_engines_own() -> None:
    model = Model()
    made = worker(lambda: model, {}, model.backend)
    made.load_model()
    assert made.determine_available_memory() == KV_CACHE - OWN_ESTIMATE
    made.compile_or_warm_up_model()
    assert made.held == OWN_GRAPHS
    made.sleep()
    made.wake_up()
    made.shutdown()
    assert model.first.handle is None


def test_a_wrong_configuration_stops_the_worker_when_the_model_is_loaded() -> None:
    model = Model()
    made = worker(lambda: model, {"third": {}}, model.backend)
    with pytest.raises(cgstate.ConfigError, match=r"model_local_cudagraph\.third: the model has no component"):
        made.load_model()
    made.shutdown()


def test_a_failed_capture_reaches_the_engine_and_leaves_the_model_eager() -> None:
    model = Model()
    made = worker(lambda: model, BOTH, model.backend)
    made.load_model()
    model.dev.faults.inject("open_capture", nth=2)
    with pytest.raises(cgstate.CaptureFailed):
        made.compile_or_warm_up_model()
    assert model.right("first", 2)
    assert variants(model.first) == []
    made.compile_or_warm_up_model()
    assert variants(model.first) == [2, 4]
    made.shutdown()


def test_a_model_that_is_loaded_anew_replaces_the_one_before() -> None:
    model = Model()
    models = [model, Model(), Model()]
    for other in models[1:]:
        other.dev, other.backend = model.dev, model.backend
        other.routines = model.routines
    left = iter(models)
    made = worker(lambda: next(left), BOTH, model.backend)
    for each in models:
        made.load_model()
        made.compile_or_warm_up_model()
        assert made.model_local is not None
        assert made.held == OWN_GRAPHS + made.model_local.graphs.memory().total
        assert variants(each.first) == [2, 4]
    assert [each.first.handle is None for each in models] == [True, True, False]
    made.shutdown()


# -- sleep ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("wakes", [[None], [["weights"], ["kv_cache"]], [["kv_cache"], ["weights"]], [["weights", "kv_cache"]]])
def test_while_the_engine_sleeps_graphs_are_gone_and_calls_are_refused(level: int, wakes: list[list[str] | None]) -> None:
    model = Model()
    made = started(model)
    assert made.model_local is not None
    made.sleep(level)
    assert made.model_local.graphs.memory().total == 0
    with pytest.raises(cgstate.NotResident, match="suspended: weights"):
        model.first(model.input(2))
    asleep = {"weights", "kv_cache"}
    for tags in wakes:
        assert variants(model.first) == []
        made.wake_up(tags)
        asleep -= asleep if tags is None else set(tags)
        if "weights" in asleep:
            with pytest.raises(cgstate.NotResident, match="suspended: weights"):
                model.first(model.input(2))
        else:
            assert model.right("first", 2)  # eagerly, until all is back
    assert variants(model.first) == [2, 4]
    assert model.right("first", 2)
    made.shutdown()


def test_sleeping_twice_and_waking_twice_is_once() -> None:
    model = Model()
    made = started(model)
    made.sleep()
    made.sleep(level=2)
    made.wake_up(["scheduling"])
    assert variants(model.first) == []
    made.wake_up()
    made.wake_up()
    assert variants(model.first) == [2, 4]
    assert model.right("first", 4)
    made.shutdown()


def test_a_worker_that_slept_before_it_captured_captures_when_it_is_told_to() -> None:
    model = Model()
    made = worker(lambda: model, BOTH, model.backend)
    made.sleep()  # before there is a model
    made.wake_up()
    made.load_model()
    made.sleep()
    made.wake_up()
    assert variants(model.first) == []
    made.compile_or_warm_up_model()
    assert model.right("first", 2)
    assert variants(model.first) == [2, 4]
    made.shutdown()


def test_a_failed_capture_after_waking_up_leaves_the_model_eager(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    made = started(model)
    made.sleep()
    model.dev.faults.inject("open_capture")
    made.wake_up()
    assert "capturing after wake_up failed; components answer eagerly" in caplog.text
    assert variants(model.first) == []
    assert model.right("first", 2)
    made.sleep()
    made.wake_up()
    assert variants(model.first) == []  # nothing had been captured when it fell asleep again
    assert made.model_local is not None
    made.model_local.capture_and_bind(progress=False)
    assert model.right("first", 2)
    made.shutdown()


def test_a_lost_device_stops_the_worker_that_wakes_up() -> None:
    model = Model()
    made = started(model)
    made.sleep()
    x = model.input(2)
    forward = model.routines["first"].forward_for_capture

    def loses(buffers: Any) -> Any:
        model.dev.lose()
        return forward(buffers)

    model.routines["first"].forward_for_capture = loses  # type: ignore[method-assign]
    with pytest.raises(cgstate.CaptureFailed) as failure:
        made.wake_up()
    assert failure.value.kind == cgstate.FailureKind.DEVICE
    with pytest.raises(cgstate.ManagerPoisoned):
        model.first(x)


def test_calls_stay_refused_where_the_engine_fails_to_sleep() -> None:
    model = Model()
    made = started(model)
    made.fail = "sleep 1"
    with pytest.raises(RuntimeError, match="sleep 1 failed"):
        made.sleep()
    with pytest.raises(cgstate.NotResident):
        model.first(model.input(2))
    made.wake_up()
    assert model.right("first", 2)
    made.shutdown()


def test_a_worker_does_not_fall_asleep_inside_of_a_call() -> None:
    model = Model(clone_output=False)
    made = started(model)
    with model.first(model.input(2)) as answer:
        with pytest.raises(cgstate.LeaseOutstanding):
            made.sleep()
        assert "sleep 1" not in made.events
        assert not answer.expired
    made.sleep()
    made.wake_up()
    made.shutdown()


# -- the end -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["graph_destroy", "pool_drop", "flush"])
def test_the_engine_is_shut_down_even_if_a_reset_fails(call: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    before = model.backend.footprint()
    made = started(model)
    model.dev.faults.inject(call)
    made.shutdown()
    if call != "graph_destroy":
        assert model.backend.footprint() == before  # what failed was tried once more
    assert model.dev.faults.pending() == 0
    assert made.events[-2:] == ["shutdown", "runner shutdown"]
    assert model.first.handle is None
    assert model.right("first", 2)
    assert "fail" in caplog.text


def test_what_the_engine_raises_at_shutdown_is_raised_after_graphs_are_gone() -> None:
    model = Model()
    made = started(model)
    made.fail = "shutdown"
    with pytest.raises(RuntimeError, match="shutdown failed"):
        made.shutdown()
    assert model.first.handle is None
