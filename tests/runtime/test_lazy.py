"""Lazy capture: what a miss may do about itself, and every reason for which it may not (I9, I11)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimTensor
from cgstate.runtime.stats import Fallback
from tests.runtime.helpers import WIDTH, Model, before, counts, elsewhere, reached, running

PRECAPTURE, LAZY, PURE = cgstate.CaptureMode.PRECAPTURE, cgstate.CaptureMode.PRECAPTURE_LAZY, cgstate.CaptureMode.PURE_LAZY
SIZES = (1, 2, 3, 4, 5, 6)


def ask(model: Model, net: cgstate.Component[..., SimTensor], size: int) -> None:
    assert net(model.input(size, size)).tolist() == model.net(model.input(size, size)).tolist()


class Pausing:
    """The model's work, which waits in its first warm-up until it is told to go on: a capture that stays open."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.capturing, self.go = threading.Event(), threading.Event()
        self.pause = False

    def __call__(self, x: SimTensor) -> SimTensor:
        if self.pause and x.shape[0] >= 4:
            self.pause = False
            self.capturing.set()
            reached(self.go)
        return self.model.net(x)


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "extra", "first", "later"),
        [
            (PRECAPTURE, 0, {1, 3}, {1, 3}),
            (LAZY, 0, {1, 3}, {1, 3}),
            (LAZY, 2, {1, 3}, {1, 3, 4, 5}),
            (LAZY, "unbounded", {1, 3}, {1, 3, 4, 5, 6}),
            (PURE, 0, set(), {1, 3}),
            (PURE, 2, set(), {1, 3, 4, 5}),
        ],
    )
    def test_what_each_mode_captures(self, mode: Any, extra: Any, first: set[int], later: set[int]) -> None:
        model = Model()
        net = model.component("net", (1, 3), sizes=SIZES, capture_mode=mode)
        manager = model.serving(net, config={"net": {"max_extra_graphs": extra}})
        assert (net.state, set(net.available_descriptors)) == ("BOUND", first)
        for size in (1, 2, 4, 5, 6):
            ask(model, net, size)
        assert net.available_descriptors == later
        for size in later:
            hits = manager.stats().components["net"].hits
            ask(model, net, size)
            assert manager.stats().components["net"].hits == hits + 1

    def test_a_miss_captures_and_hits_at_once(self) -> None:
        model = Model()
        net = model.component("net", (1,), sizes=SIZES, capture_mode=LAZY)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 1}})
        ask(model, net, 4)
        stats = manager.stats().components["net"]
        assert (stats.hits, stats.captures, dict(stats.fallbacks)) == (1, 2, {})

    def test_a_size_that_no_graph_may_have_is_a_miss(self) -> None:
        model = Model()
        net = model.component("net", (1,), sizes=SIZES, capture_mode=LAZY)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 1}})
        ask(model, net, 7)
        assert counts(manager) == {"miss": 1}

    def test_a_pure_lazy_component_stays_bound_through_the_eviction_of_everything(self) -> None:
        model = Model()
        net = model.component("net", (1, 3), capture_mode=PURE)
        manager = model.serving(net)
        ask(model, net, 3)
        model.dev.synchronize()
        manager.evict("net")
        assert (net.state, net.available_descriptors) == ("BOUND", frozenset())
        manager.memory()
        ask(model, net, 3)
        assert net.available_descriptors == {3}

    def test_an_evicted_component_comes_back_by_a_miss(self) -> None:
        model = Model()
        net = model.component("net", (1, 3), capture_mode=LAZY)
        manager = model.serving(net)
        manager.evict("net")
        assert net.state == "EVICTED"
        model.dev.synchronize()  # what was retired counts until the device is done with it
        ask(model, net, 2)
        assert (net.state, set(net.available_descriptors)) == ("BOUND", {3})

    def test_before_the_first_commit_everything_is_eager(self) -> None:
        model = Model()
        net = model.component("net", (1, 3), capture_mode=LAZY)
        manager = model.manager()
        manager.prepare([net])
        ask(model, net, 3)
        assert counts(manager) == {"not_serving": 1}
        assert net.available_descriptors == frozenset()


class TestBusy:
    def test_a_miss_while_another_thread_captures_is_eager_and_waits_only_for_the_gate(self) -> None:
        model = Model()
        work = Pausing(model)
        net = model.component("net", (1,), sizes=SIZES, capture_mode=LAZY, call=work)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 2}})
        work.pause = True
        with running(lambda: ask(model, net, 4)):
            reached(work.capturing)
            with running(lambda: ask(model, net, 5)):
                while not manager._books.gate.waiting:
                    work.go.wait(0.001)
                work.go.set()
        assert counts(manager) == {"capture_busy": 1}
        assert net.available_descriptors == {1, 4}

    def test_one_capture_a_key_under_threads(self) -> None:
        model = Model()
        net = model.component("net", (1,), sizes=SIZES, capture_mode=LAZY)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 3}})
        start = threading.Barrier(6)

        def work() -> None:
            start.wait()
            for _ in range(3):
                for size in (4, 5):
                    assert net(model.input(size)) is not None

        with running(*[work] * 6):
            pass
        assert manager.stats().components["net"].captures <= 3
        assert set(counts(manager)) <= {"capture_busy"}
        model.dev.synchronize()
        for size in (4, 5):
            ask(model, net, size)
        assert net.available_descriptors == {1, 4, 5}

    def test_a_component_that_overlaps_captures_replays_beside_one(self) -> None:
        model = Model()
        work = Pausing(model)
        slow = model.component("slow", (4,), call=work)
        fast = model.component("fast", (4,), overlaps_capture=True)
        waiting = model.component("waiting", (4,))
        manager = model.serving(slow, fast, waiting, isolation="per_component")
        manager.evict("slow")
        model.dev.synchronize()
        done: list[str] = []
        work.pause = True
        with running(manager.capture_and_bind):
            reached(work.capturing)
            elsewhere(lambda: done.append(str(fast(model.input(4)).shape)))
            assert done == ["(4, 4)"]
            with running(lambda: done.append(str(waiting(model.input(4)).shape))):
                while not manager._books.gate.waiting:
                    work.go.wait(0.001)
                assert len(done) == 1
                work.go.set()
        assert counts(manager, "fast") == counts(manager, "waiting") == {}


class TestNested:
    def test_an_eager_call_that_calls_a_component_lets_it_capture(self) -> None:
        model = Model()
        inner = model.component("inner", (1,), sizes=SIZES, capture_mode=LAZY)
        outer = model.component("outer", (1,), call=lambda x: inner(x))
        manager = model.serving(inner, outer, config={"inner": {"max_extra_graphs": 1}, "outer": {}})
        ask(model, outer, 4)
        assert inner.available_descriptors == {1, 4}
        ask(model, outer, 4)
        assert counts(manager, "outer") == {"miss": 2}
        assert manager.stats().components["inner"].hits == 2

    def test_a_component_inside_the_capture_of_another_is_recorded_inline(self) -> None:
        model = Model()
        inner = model.component("inner", (4,))
        outer = model.component("outer", (4,), call=lambda x: inner(x))
        manager = model.serving(inner, outer)
        hits = manager.stats().components["inner"].hits
        ask(model, outer, 4)
        stats = manager.stats().components["inner"]
        assert (stats.hits, set(stats.fallbacks)) == (hits, {Fallback.in_capture})

    @pytest.mark.parametrize("same", [True, False])
    def test_a_miss_inside_a_capture_captures_and_evicts_nothing(self, same: bool) -> None:
        model = Model()
        inner = model.component("inner", (1,), sizes=SIZES, capture_mode=LAZY)
        config = {"inner": {"max_extra_graphs": 1, "isolation": "per_entry"}}
        first = model.serving(inner, config=config)
        second = first if same else model.manager()
        ask(model, inner, 3)
        model.dev.synchronize()
        captures = first.stats().components["inner"].captures
        static = model.dev.zeros(5, WIDTH)
        entry = second.entry("low", 5)
        with second.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: inner(static))
        assert first.stats().components["inner"].captures == captures
        assert inner.available_descriptors == {1, 3}
        assert set(counts(first, "inner")) == {"in_capture"}
        static.copy_(model.input(5, 9.0))
        entry.replay()
        assert entry.output.tolist() == model.net(model.input(5, 9.0)).tolist()  # type: ignore[attr-defined]

    def test_a_transaction_inside_a_component_call_is_refused(self) -> None:
        model = Model()
        managers: list[cgstate.GraphManager] = []
        acts: list[Callable[[], object]] = []

        def work(x: SimTensor) -> SimTensor:
            if acts:
                with pytest.raises(cgstate.IllegalTransition):
                    acts.pop()()
            return model.net(x)

        net = model.component("net", (4,), call=work)
        managers.append(model.serving(net))
        for act in (managers[0].capture_and_bind, managers[0].close, managers[0].release):
            acts.append(act)
            ask(model, net, 9)
            assert not acts
        assert managers[0].state == "SERVING"

    @pytest.mark.parametrize("overlaps", [False, True])
    def test_ending_the_manager_from_a_hook_of_a_graph_call_is_refused_at_once(self, overlaps: bool) -> None:
        model = Model()
        net = model.component("net", (4,), overlaps_capture=overlaps)
        managers: list[cgstate.GraphManager] = []
        refused: list[bool] = []

        def endings() -> None:
            for act in (managers[0].close, managers[0].release):
                with pytest.raises(cgstate.LeaseOutstanding):
                    act()
            with pytest.raises(cgstate.CaptureActive):
                managers[0].capture_and_bind()
            refused.append(True)

        before(net, "copy_runtime_inputs", endings)
        managers.append(model.serving(net))
        ask(model, net, 4)
        assert refused
        assert managers[0].stats().components["net"].hits == 1


class TestReasons:
    def test_a_call_that_autograd_would_record_is_eager(self) -> None:
        model = Model()
        net = model.component("net", (4,))
        manager = model.serving(net)
        x = model.input(4)
        x.requires_grad = True
        assert net(x).tolist() == model.net(x).tolist()
        assert counts(manager) == {"autograd": 1}
        with model.backend.recording_mode():
            net(x)
        assert manager.stats().components["net"].hits == 1

    def test_a_rejected_descriptor_is_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Model()
        net = model.component("net", (1,), sizes=SIZES, capture_mode=LAZY)
        asked: list[int] = []

        def validate(descriptor: int) -> None:
            asked.append(descriptor)
            if descriptor == 4:
                raise ValueError("not that one")

        monkeypatch.setattr(net.routine, "validate_descriptor", validate)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 1}})
        for _ in range(3):
            ask(model, net, 4)
        assert counts(manager) == {"rejected": 1, "blocked": 2}
        assert asked.count(4) == 1

    def test_capacity_is_counted_while_a_victim_is_in_flight(self) -> None:
        model = Model()
        net = model.component("net", (1,), sizes=SIZES, capture_mode=LAZY)
        manager = model.serving(net, config={"net": {"max_extra_graphs": 1, "isolation": "per_entry"}})
        for size in (3, 4, 4, 5, 5, 6, 6):
            ask(model, net, size)
            model.dev.synchronize()
        assert counts(manager) == {"capacity": 3}
        assert net.available_descriptors == {1, 6}
        assert manager.stats().components["net"].evictions == 3


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
def test_an_evicted_declared_graph_keeps_its_place_from_graphs_beyond_the_declared_ones(isolation: str) -> None:
    model = Model()
    net = model.component("net", (1, 3), sizes=SIZES, capture_mode=LAZY)
    manager = model.serving(net, config={"net": {"max_extra_graphs": 0}}, isolation=isolation)
    manager.evict("net")
    manager.reclaim(flush=True)
    ask(model, net, 4)
    assert counts(manager) == {"capacity": 1}
    ask(model, net, 1)
    ask(model, net, 3)
    assert net.available_descriptors == {1, 3}
    assert counts(manager) == {"capacity": 1}


def test_a_graph_beyond_the_declared_ones_makes_place_only_for_another_such() -> None:
    model = Model()
    net = model.component("net", (1, 3), sizes=SIZES, capture_mode=PURE)
    manager = model.serving(net, config={"net": {"max_extra_graphs": 1, "isolation": "per_entry"}})
    for size in (1, 3, 4, 5, 5):  # the first miss of 5 retires 4, which the device still replays
        ask(model, net, size)
    assert net.available_descriptors == {1, 3, 5}
    assert counts(manager) == {"capacity": 1}
