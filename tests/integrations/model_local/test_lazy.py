"""Lazy captures: bounded, on the startup's stream, remembered where they fail, and reserved for."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import cgstate
from cgstate.backends.base import Stream
from cgstate.backends.sim.errors import CAPTURE_INVALIDATED, SimAcceleratorError, SimOutOfMemory
from cgstate.integrations.model_local import ModelLocalCaptureMode, ModelLocalRuntimeKey
from tests.integrations.model_local.helpers import Model, Routine, counts, lazy, sizes, variants


def test_a_miss_is_captured_and_answered_by_its_graph() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 1}})
    eager = model.routines["first"].eager_calls
    assert model.right("first", 6)
    assert variants(model.first) == [2, 4, 6]
    assert model.routines["first"].eager_calls == eager
    manager.close()


@pytest.mark.parametrize("options", [{}, {"max_extra_graphs": 0}, {"max_extra_graphs": 2}])
def test_lazy_graphs_are_no_more_than_the_limit(options: dict[str, Any]) -> None:
    model = lazy()
    manager = model.serving({"first": options})
    assert all(model.right("first", size) for size in (5, 6, 7, 8, 9, 5, 9))
    allowed = options.get("max_extra_graphs", 0)
    assert len(variants(model.first)) == 2 + allowed
    assert counts(manager)["capacity"] > 0
    manager.close()


def test_without_a_limit_every_miss_has_a_graph() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": "unbounded"}})
    assert all(model.right("first", size) for size in range(5, 12))
    assert len(variants(model.first)) == 9
    manager.close()


def test_graphs_that_stand_alone_make_room_for_each_other_and_startup_graphs_stay() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 1, "isolation": "per_entry", "thrash_protection": False}})
    for size, there in ((6, 6), (9, 9), (7, 9), (12, 12)):
        for _ in range(2):  # one that the device still replays makes room at the next call
            assert model.right("first", size)
            model.dev.synchronize()
        assert variants(model.first) == [2, 4, there]
    assert manager.graphs.stats().components["first"].evictions == 2
    manager.close()


def test_a_startup_component_is_never_captured_lazily() -> None:
    model = Model()
    manager = model.serving({"first": {}})
    assert model.right("first", 9)
    assert variants(model.first) == [2, 4]
    assert counts(manager) == {"miss": 1}
    manager.close()


def test_a_component_may_be_captured_by_misses_alone() -> None:
    model = Model(capture_mode=ModelLocalCaptureMode.PURE_LAZY)
    manager = model.serving({"first": {"max_extra_graphs": 1}})
    assert variants(model.first) == []
    assert model.first.is_graph_bound
    for size in (2, 4, 6, 9):
        assert model.right("first", size)
    assert variants(model.first) == [2, 4, 6]
    manager.close()


def test_startup_and_lazy_graphs_are_captured_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lazy()
    manager = model.manager({"first": {"max_extra_graphs": 2}})
    manager.prepare(model)
    streams: list[int] = []
    opened = model.backend.open_capture

    def note(pool: Any, stream: Stream, *rest: Any) -> Any:
        streams.append(stream.handle)
        return opened(pool, stream, *rest)

    monkeypatch.setattr(model.backend, "open_capture", note)
    manager.capture_and_bind(progress=False)
    model.first(model.input(6))
    manager.clear()
    manager.capture_and_bind(progress=False)
    model.first(model.input(7))
    assert len(streams) == 6
    assert len(set(streams[:3])) == 1
    assert len(set(streams[3:])) == 1
    manager.close()


def test_what_cannot_be_captured_is_asked_for_once_and_stays_eager() -> None:
    model = lazy()
    asked: list[int] = []

    def says(descriptor: Any) -> bool:
        asked.append(descriptor.variant)
        return bool(descriptor.variant != 6)

    model.first.validate_descriptor = says
    manager = model.serving({"first": {"max_extra_graphs": 4}})
    asked.clear()
    assert all(model.right("first", 6) for _ in range(5))
    assert asked == [6]
    assert counts(manager) == {"rejected": 1, "blocked": 4}
    assert model.right("first", 7)
    assert variants(model.first) == [2, 4, 7]
    manager.close()


def test_a_declared_graph_that_cannot_be_captured_costs_its_siblings_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    model.first.validate_descriptor = lambda descriptor: descriptor.variant != 2
    manager = model.serving()
    assert (variants(model.first), variants(model.second)) == ([4], [8])
    assert "first says that [2] cannot be captured" in caplog.text
    assert model.right("first", 2)
    manager.close()


def test_a_component_of_which_nothing_can_be_captured_stays_eager(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    model.first.validate_descriptor = lambda descriptor: False
    manager = model.serving()
    assert model.first.handle is None
    assert "first has no descriptor that can be captured, and stays eager" in caplog.text
    assert model.right("first", 2)
    assert variants(model.second) == [8]
    manager.close()


def test_after_running_out_of_memory_a_miss_captures_again_once_something_was_reclaimed() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 4}, "second": {}})
    model.dev.faults.inject("open_capture", error=SimOutOfMemory("no memory left"))
    assert all(model.right("first", 6) for _ in range(3))
    assert counts(manager) == {"oom": 1, "blocked": 2}
    manager.graphs.evict("second")
    manager.graphs.reclaim(flush=True)
    assert model.right("first", 6)
    assert variants(model.first) == [2, 4, 6]
    assert counts(manager) == {"oom": 1, "blocked": 2}
    manager.close()


def test_a_lazy_capture_that_another_thread_broke_is_tried_again_at_the_next_miss() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 4}})
    model.dev.faults.inject("close_capture", error=SimAcceleratorError(CAPTURE_INVALIDATED))
    assert model.right("first", 6)
    assert counts(manager) == {"foreign": 1}
    assert model.right("first", 6)
    assert variants(model.first) == [2, 4, 6]
    manager.close()


def test_a_budget_bounds_lazy_captures() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 4}})
    manager.graphs.set_budget(manager.graphs.memory().total)
    assert all(model.right("first", 600) for _ in range(2))
    assert set(counts(manager)) <= {"budget", "blocked"}
    assert variants(model.first) == [2, 4]
    manager.graphs.set_budget(None)
    manager.graphs.forget_failures()
    assert model.right("first", 600)
    assert variants(model.first) == [2, 4, 600]
    manager.close()


def test_what_a_routine_raises_in_a_lazy_capture_reaches_the_caller_once() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 4}})
    routine = model.routines["first"]
    routine.forward_for_capture = _raises  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError, match="bad weights"):
        model.first(model.input(6))
    del routine.forward_for_capture
    assert model.right("first", 6)
    assert counts(manager) == {"blocked": 1}
    manager.close()


def _raises(*_: object) -> Any:
    raise ValueError("bad weights")


def test_a_component_with_collectives_captures_lazily_only_where_all_ranks_agree() -> None:
    class Reluctant:
        def __init__(self) -> None:
            self.asked: list[str] = []

        def agree(self, ballot: cgstate.Ballot, component: str, descriptor: object) -> bool:
            self.asked.append(component)
            return ballot is not cgstate.Ballot.capture or descriptor in sizes(2, 4)

    vote = Reluctant()
    model = lazy(collective=True)
    manager = model.serving({"first": {"max_extra_graphs": 1}, "second": {}}, vote=vote)
    assert model.right("first", 6)
    assert counts(manager) == {"vote": 1}
    assert variants(model.first) == [2, 4]
    assert set(vote.asked) == {"first"}
    manager.close()


def test_after_clear_misses_capture_again() -> None:
    model = lazy()
    manager = model.serving({"first": {"max_extra_graphs": 1}})
    for _ in range(2):
        assert model.right("first", 6)
        assert variants(model.first) == [2, 4, 6]
        manager.clear()
        assert model.right("first", 6)
        manager.capture_and_bind(progress=False)
        assert variants(model.first) == [2, 4]
    manager.close()


# -- the reserve ---------------------------------------------------------------------------------------------------------


def actually(model: Model, manager: Any, misses: tuple[int, ...]) -> int:
    """What is held when all misses have a graph."""
    manager.capture_and_bind(progress=False)
    for size in misses:
        model.first(model.input(size))
    held: int = manager.graphs.memory().total
    return held


@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
@pytest.mark.parametrize("mode", ["precapture_lazy", "pure_lazy"])
def test_what_is_kept_free_holds_startup_and_lazy_graphs(isolation: str, mode: str) -> None:
    model = Model(capture_mode=mode, descriptors=sizes(64, 32))
    model.routines["first"].exact = True
    before = model.backend.footprint()
    manager = model.manager({"first": {"max_extra_graphs": 2, "isolation": isolation}, "second": {}})
    manager.prepare(model)
    kept = manager.profile_memory()
    assert model.backend.footprint() == before  # nothing of it is left
    assert variants(model.first) == []
    assert manager.reserve is not None
    assert manager.reserve.untold == ()
    assert set(manager.reserve.by_component) == {"first"}
    assert kept >= actually(model, manager, (64, 32, 63, 62))
    assert variants(model.first) == [32, 62, 63, 64]
    manager.close()


def test_without_lazy_graphs_nothing_is_reserved() -> None:
    model = Model()
    manager = model.manager()
    manager.prepare(model)
    kept = manager.profile_memory()
    estimate = manager.estimate
    assert estimate is not None
    assert kept == estimate.upper + estimate.driver
    manager.capture_and_bind(progress=False)
    assert estimate.lower <= manager.graphs.memory().total <= estimate.upper
    manager.close()


@pytest.mark.parametrize("mode", ["precapture_lazy", "pure_lazy"])
def test_what_has_no_limit_cannot_be_reserved_for_and_is_named(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(capture_mode=mode)
    manager = model.manager({"first": {"max_extra_graphs": "unbounded"}})
    manager.prepare(model)
    manager.profile_memory()
    assert manager.reserve is not None
    assert manager.reserve.by_component == {"first": None}
    assert "nothing can be reserved for lazy graphs of ['first']" in caplog.text
    manager.close()


def test_what_fails_while_profiling_is_told_and_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = Model(capture_mode="pure_lazy")
    model.routines["first"].forward_for_capture = _raises  # type: ignore[method-assign, assignment]
    before = model.backend.footprint()
    manager = model.manager({"first": {"max_extra_graphs": 1}})
    manager.prepare(model)
    manager.profile_memory()
    assert manager.reserve is not None
    assert manager.reserve.by_component == {"first": None}
    assert model.backend.footprint() == before
    del model.routines["first"].forward_for_capture
    caplog.set_level(logging.INFO)
    manager.capture_and_bind(progress=False)
    assert model.right("first", 2)
    manager.close()


def test_an_estimate_that_may_be_wrong_says_why(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    routine = model.routines["second"]
    routine.forward_for_capture = _raises  # type: ignore[method-assign, assignment]
    manager = model.manager()
    manager.prepare(model)
    manager.profile_memory()
    assert "the memory estimate may be wrong: second" in caplog.text
    assert "bad weights" in caplog.text
    manager.close()


def test_the_default_lazy_descriptor_is_one_of_the_calls_own_size() -> None:
    model = lazy()
    assert Routine.make_lazy_descriptor(model.routines["first"], ModelLocalRuntimeKey(7)) == sizes(7)[0]
