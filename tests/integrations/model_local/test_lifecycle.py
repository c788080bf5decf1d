"""The manager through a model's life: prepared, profiled, captured, serving, cleared, captured again, closed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimDevice
from cgstate.integrations.model_local import ModelLocalCUDAGraphManager
from tests.integrations.model_local.helpers import Model, Routine, counts, engine, lazy, sizes, variants


def test_components_are_bound_together_and_answer_as_the_model_does() -> None:
    model = Model()
    manager = model.manager()
    report = manager.prepare(model)
    assert report.active == ("first", "second")
    assert not model.first.is_graph_bound
    assert model.right("first", 2)
    held = manager.capture_and_bind(progress=False)
    assert held == manager.graphs.memory().total > 0
    assert model.first.is_graph_bound
    assert model.second.is_graph_bound
    assert (variants(model.first), variants(model.second)) == ([2, 4], [8])
    eager = model.routines["first"].eager_calls
    assert all(model.right("first", size, value) for size in (1, 2, 3, 4) for value in (0.5, 2.0))
    assert model.routines["first"].eager_calls == eager
    manager.close()


def test_nothing_is_bound_while_components_are_captured() -> None:
    model = Model()
    seen: list[tuple[bool, bool]] = []
    for routine in model.routines.values():
        forward = routine.forward_for_capture

        def look(buffers: Any, forward: Any = forward) -> Any:
            seen.append((model.first.is_graph_bound, model.second.is_graph_bound))
            return forward(buffers)

        routine.forward_for_capture = look  # type: ignore[method-assign]
    model.serving().close()
    assert set(seen) == {(False, False)}


def test_the_largest_graph_is_captured_first() -> None:
    model = Model(descriptors=sizes(2, 8, 4))
    model.serving().close()
    assert list(dict.fromkeys(model.routines["first"].captured)) == [8, 4, 2]


def test_components_that_are_not_configured_stay_eager() -> None:
    model = Model()
    manager = model.serving({"second": None})
    assert model.first.handle is None
    assert not model.first.is_graph_bound
    assert model.right("first", 2)
    assert model.routines["first"].eager_calls == 1
    assert model.second.is_graph_bound
    manager.close()


def test_nothing_is_captured_where_nothing_is_configured() -> None:
    model = Model()
    manager = ModelLocalCUDAGraphManager(vllm_config=engine(), device="cpu", backend=model.backend, check=True)
    assert manager.prepare(model).active == ()
    assert manager.profile_memory() == 0
    assert manager.capture_and_bind(progress=False) == 0
    assert model.right("first", 2)
    manager.close()


def test_enforce_eager_leaves_everything_eager_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    manager = ModelLocalCUDAGraphManager(vllm_config=engine({"first": {}}, eager=True), device="cpu", backend=model.backend)
    assert manager.prepare(model).eager == ("first", "second")
    assert manager.capture_and_bind(progress=False) == 0
    assert model.first.handle is None
    assert "model_config.model_local_cudagraph names ['first'], and enforce_eager is set" in caplog.text
    manager.close()


def test_a_failed_capture_leaves_every_component_eager_and_may_be_repeated() -> None:
    model = Model()
    manager = model.manager()
    manager.prepare(model)
    before = model.backend.footprint()
    model.dev.faults.inject("open_capture", nth=3)
    with pytest.raises(cgstate.CaptureFailed):
        manager.capture_and_bind(progress=False)
    assert not model.first.is_graph_bound
    assert not model.second.is_graph_bound
    assert model.backend.footprint() == before
    assert model.right("first", 2)
    assert model.right("second", 8)
    manager.capture_and_bind(progress=False)
    assert (variants(model.first), variants(model.second)) == ([2, 4], [8])
    assert model.right("second", 5)
    manager.close()


def test_what_a_routine_raises_while_capturing_is_the_cause() -> None:
    model = Model()
    model.routines["second"].forward_for_capture = _raises  # type: ignore[method-assign, assignment]
    manager = model.manager()
    manager.prepare(model)
    with pytest.raises(cgstate.CaptureFailed, match=r"second.*bad weights") as failure:
        manager.capture_and_bind(progress=False)
    assert failure.value.kind == cgstate.FailureKind.USER
    assert not model.first.is_graph_bound
    del model.routines["second"].forward_for_capture
    manager.capture_and_bind(progress=False)
    assert model.second.is_graph_bound
    manager.close()


def test_what_was_rejected_once_may_be_captured_when_it_is_asked_for_again() -> None:
    model = Model()
    manager = model.manager()
    manager.prepare(model)
    routine = model.routines["second"]
    routine.forward_for_capture = _looks  # type: ignore[method-assign]
    with pytest.raises(cgstate.CaptureFailed) as failure:
        manager.capture_and_bind(progress=False)
    assert failure.value.kind == cgstate.FailureKind.REJECTED
    del routine.forward_for_capture
    manager.capture_and_bind(progress=False)
    assert model.right("second", 8)
    assert variants(model.second) == [8]
    manager.close()


def _looks(buffers: Any) -> Any:
    return buffers.value.tolist()


def _raises(*_: object) -> Any:
    raise ValueError("bad weights")


def test_after_clear_components_are_eager_bytes_are_back_and_graphs_can_be_captured_again() -> None:
    model = Model()
    before = model.backend.footprint()
    manager = model.manager()
    manager.prepare(model)
    for _ in range(3):
        manager.capture_and_bind(progress=False)
        assert model.right("first", 3)
        manager.clear()
        assert not model.first.is_graph_bound
        assert variants(model.first) == []
        assert manager.graphs.memory().total == 0
        assert model.backend.footprint() == before
        assert model.right("first", 3)
        manager.clear()  # nothing is left to clear
    assert counts(manager)["not_serving"] == 3
    manager.close()


def test_after_clear_another_model_can_be_prepared() -> None:
    model = Model()
    manager = model.serving()
    other = Model()
    other.backend, other.dev = model.backend, model.dev
    other.routines = {name: Routine(model.dev) for name in other.routines}
    other.first = other.component("first", descriptors=sizes(4))
    other.second = other.component("second", descriptors=sizes(16))
    other.components = (other.first, other.second)
    with pytest.raises(cgstate.IllegalTransition, match="SERVING and refuses prepare"):
        manager.prepare(other)
    assert model.right("first", 2)
    manager.clear()
    manager.prepare(other)
    manager.capture_and_bind(progress=False)
    assert model.first.handle is None
    assert variants(other.second) == [16]
    assert other.right("second", 9)
    assert model.right("first", 2)
    manager.close()
    assert other.first.handle is None


def test_a_model_can_be_prepared_again_before_it_is_captured() -> None:
    model = Model()
    manager = model.manager()
    manager.prepare(model)
    manager.prepare(model)
    manager.capture_and_bind(progress=False)
    assert model.right("first", 4)
    manager.close()


def test_two_managers_cannot_have_one_model() -> None:
    model = Model()
    manager = model.serving()
    other = model.manager()
    with pytest.raises(cgstate.ConfigError, match="first belongs to another manager"):
        other.prepare(model)
    assert model.right("first", 2)
    manager.close()
    other.prepare(model)
    other.close()


def test_a_manager_that_was_dropped_leaves_its_model_to_the_next_one() -> None:
    model = Model()
    manager = model.serving(check=False)
    del manager
    assert model.right("first", 2)
    other = model.serving()
    assert model.first.is_graph_bound
    other.close()


def test_after_close_nothing_is_left_and_nothing_can_be_prepared() -> None:
    model = Model()
    before = model.backend.footprint()
    with model.serving() as manager:
        assert model.right("first", 2)
    assert model.first.handle is None
    assert model.backend.footprint() == before
    manager.close()
    with pytest.raises(cgstate.ManagerClosed):
        manager.prepare(model)
    with pytest.raises(cgstate.ManagerClosed):
        manager.capture_and_bind(progress=False)


@pytest.mark.parametrize("call", ["prepare", "profile_memory", "capture_and_bind"])
def test_what_is_out_of_order_is_refused(call: str) -> None:
    model = Model()
    manager = model.manager()
    if call == "prepare":
        manager.prepare(model)
        manager.capture_and_bind(progress=False)
        with pytest.raises(cgstate.IllegalTransition):
            manager.prepare(model)
    else:
        with pytest.raises(cgstate.IllegalTransition):
            getattr(manager, call)()
    manager.close()


def test_teardown_goes_on_past_a_graph_that_cannot_be_reset(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    manager = model.serving(check=False)
    model.dev.faults.inject("graph_destroy")
    manager.close()
    assert model.dev.faults.pending() == 0
    assert "destroying a graph of" in caplog.text
    assert model.first.handle is None
    assert model.second.handle is None
    assert model.dev.faults.calls["graph_destroy"] >= 3
    assert model.right("first", 2)


def test_one_component_is_evicted_without_the_other_and_comes_back_at_the_next_capture() -> None:
    model = Model()
    manager = model.serving()
    other = model.second.available_descriptors
    assert manager.graphs.evict("first") == 2
    assert variants(model.first) == []
    assert model.second.available_descriptors == other
    assert model.right("first", 2)
    eager = model.routines["second"].eager_calls
    assert model.right("second", 8)
    assert model.routines["second"].eager_calls == eager
    manager.capture_and_bind(progress=False)
    assert variants(model.first) == [2, 4]
    manager.close()


def test_the_engines_memory_can_move() -> None:
    model = Model(dependencies=["kv_cache"])
    manager = model.serving()
    assert manager.graphs.invalidate("weights") == 1
    assert (variants(model.first), variants(model.second)) == ([2, 4], [])
    assert manager.graphs.invalidate("kv_cache") == 2
    manager.capture_and_bind(progress=False)
    assert model.right("second", 8)
    manager.close()


def test_a_call_inside_of_another_components_capture_is_recorded_in_it() -> None:
    model = Model()
    inner = model.first

    class Outer(Routine):
        def net(self, x: Any) -> Any:
            return inner(super().net(x))

    outer = Outer(model.dev)
    model.routines["second"] = outer
    model.second = model.component("second", descriptors=sizes(4))
    model.components = (model.first, model.second)
    manager = model.serving()
    assert model.right("second", 4)
    assert counts(manager)["in_capture"] > 0
    hits = manager.graphs.stats().components["first"].hits
    x = model.input(6)  # no graph of the outer one holds it
    assert model.second(x).tolist() == outer.net(x).tolist()
    assert manager.graphs.stats().components["first"].hits == hits  # nor one of the inner
    small = model.input(3)
    assert outer.net(small).tolist() == model.second(small).tolist()
    assert manager.graphs.stats().components["first"].hits == hits + 1
    manager.close()


def test_a_component_that_hands_out_its_static_output_leases_it() -> None:
    model = Model(clone_output=False)
    x = model.input(2)
    with model.first(x) as answer:
        assert answer.value.tolist() == model.routines["first"].net(x).tolist()
    manager = model.serving()
    with model.first(x) as answer:
        assert answer.value.tolist() == model.routines["first"].net(x).tolist()
        with model.first(model.input(2, 3.0)), pytest.raises(cgstate.OutputExpired):
            _ = answer.value
    manager.close()


def test_an_answer_outlives_the_next_call() -> None:
    model = Model()
    manager = model.serving()
    answer = model.first(model.input(2))
    kept = answer.tolist()
    model.first(model.input(2, 7.0))
    assert answer.tolist() == kept
    manager.close()


def test_what_the_routine_refuses_is_refused_only_where_there_are_graphs_and_never_answered() -> None:
    model = Model()

    class Careful(Routine):
        def validate_runtime_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if kwargs or args[0].shape[0] == 0:
                raise ValueError("empty input")

    model.routines["first"] = Careful(model.dev)
    model.first = model.component("first", descriptors=sizes(4))
    model.components = (model.first, model.second)
    manager = model.serving()
    before = model.routines["first"].eager_calls
    with pytest.raises(ValueError, match="empty input"):
        model.first(model.input(2), scale=2)
    assert model.routines["first"].eager_calls == before
    assert model.right("first", 3)
    manager.close()


@pytest.mark.parametrize("method", ["copy_runtime_inputs", "output_after_replay"])
def test_errors_around_a_replay_propagate_and_leave_the_graph(method: str) -> None:
    model = Model()
    manager = model.serving()
    eager = model.routines["first"].eager_calls
    setattr(model.routines["first"], method, _raises)
    with pytest.raises(ValueError, match="bad weights"):
        model.first(model.input(2))
    assert model.routines["first"].eager_calls == eager
    delattr(model.routines["first"], method)
    assert model.right("first", 2)
    assert variants(model.first) == [2, 4]
    manager.close()


def test_a_failed_launch_propagates_and_its_graph_never_replays_again() -> None:
    model = Model()
    manager = model.serving()
    model.dev.faults.inject("graph_replay", error=RuntimeError("replay failed"))
    with pytest.raises(RuntimeError, match="replay failed"):
        model.first(model.input(2))
    assert variants(model.first) == [4]
    assert model.right("first", 2)  # by the larger graph
    manager.close()


def test_routines_get_the_runners_device() -> None:
    model = Model()
    model.serving().close()
    assert set(model.routines["first"].asked) == {"cpu"}


class Noting(Routine):
    """Notes the order of what capturing does."""

    def __init__(self, dev: SimDevice) -> None:
        super().__init__(dev)
        self.events: list[str] = []
        self.fail = False

    def prepare_for_capture(self, buffers: Any) -> None:
        self.events.append("prepare")

    def forward_for_capture(self, buffers: Any) -> Any:
        self.events.append("forward")
        if self.fail:
            raise ValueError("bad weights")
        return super().forward_for_capture(buffers)

    def after_capture(self, buffers: Any) -> None:
        self.events.append("after")


def test_each_forward_of_warm_up_and_capture_runs_in_a_context_of_its_own() -> None:
    model = Model()
    routine = Noting(model.dev)
    model.components = (model.component("first", descriptors=sizes(4), routine=routine),)
    model.serving({"first": {}}).close()
    rounds = len(routine.events) // 3
    assert rounds >= 2
    assert routine.events == ["prepare", "forward", "after"] * rounds


def test_the_context_is_left_where_a_forward_raises() -> None:
    model = Model()
    routine = Noting(model.dev)
    routine.fail = True
    model.components = (model.component("first", descriptors=sizes(4), routine=routine),)
    manager = model.manager({"first": {}})
    manager.prepare(model)
    with pytest.raises(cgstate.CaptureFailed):
        manager.capture_and_bind(progress=False)
    assert routine.events == ["prepare", "forward", "after"]
    manager.close()


def test_counts_follow_the_engines_graph_metrics(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cgstate")
    model = Model()
    config = engine({"first": {}}, metrics=True)
    manager = ModelLocalCUDAGraphManager(vllm_config=config, device="cpu", backend=model.backend)
    manager.prepare(model)
    manager.capture_and_bind(progress=False)
    caplog.clear()
    for _ in range(99):
        model.first(model.input(2))
    assert caplog.text == ""
    model.first(model.input(2))
    assert "first: 100 calls, 100.0% by graph, captures 2" in caplog.text
    model.first(model.input(9))
    assert manager.metrics() == {
        "first": {"calls": 101, "hits": 100, "captures": 2, "evictions": 0, "fallbacks": {"miss": 1}, "failures": {}}
    }
    caplog.clear()
    manager.clear()
    assert "first: 101 calls" in caplog.text
    manager.close()


def test_without_the_engines_graph_metrics_nothing_is_logged_while_serving(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cgstate")
    model = Model()
    manager = model.serving()
    caplog.clear()
    for _ in range(200):
        model.first(model.input(2))
    assert caplog.text == ""
    assert manager.metrics() == {}
    manager.close()


def test_a_lazy_model_is_right_at_random_sizes() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 2, "isolation": "per_entry"}, "second": {}})
    for size in (3, 7, 1, 9, 7, 12, 2, 9, 5):
        assert model.right("first", size)
    manager.close()
