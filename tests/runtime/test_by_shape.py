"""A routine that says that only shapes and dtypes matter is asked once for calls that look the same, and never too seldom."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pytest

import cgstate
from cgstate import Resolution
from cgstate.backends.sim import SimTensor, kernels
from cgstate.testing.conformance.routine import examine_routine
from cgstate.testing.stateful.subject import values
from tests.runtime.helpers import Model, counts


class Asked(cgstate.BucketedRoutine[..., SimTensor]):
    """Counts how often it is asked; `by_shape` is said of it."""

    def __init__(self, model: Model, **keys: Any) -> None:
        super().__init__(keys.pop("call", model.net), keys.pop("example", model.example), **keys)
        self.asked: list[tuple[int, ...]] = []

    @cgstate.by_shape
    def resolve_runtime(self, args: tuple[Any, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        self.asked.append(tuple(args[0].shape))
        return super().resolve_runtime(args, kwargs, available)


class Overriding(Asked):
    """Has not said it, though what it derives from has."""

    def resolve_runtime(self, args: tuple[Any, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        return super().resolve_runtime(args, kwargs, available)


def test_calls_that_look_the_same_ask_once() -> None:
    model = Model()
    routine = Asked(model)
    component = cgstate.Component("net", routine, [4, 8])
    manager = model.serving(component)
    for value in (1.0, 2.0, 3.0):
        for size in (3, 4, 7):
            x = model.input(size, value)
            assert values(component(x)) == values(model.net(x))
    assert routine.asked == [(3, 4), (4, 4), (7, 4)]
    assert counts(manager) == {}


def test_who_overrides_it_is_asked_each_time() -> None:
    model = Model()
    routine = Overriding(model)
    component = cgstate.Component("net", routine, [4, 8])
    manager = model.serving(component)
    for _ in range(3):
        component(model.input(4))
    assert len(routine.asked) == 3
    assert counts(manager) == {}


def test_it_is_asked_again_when_other_graphs_are_bound() -> None:
    model = Model()
    routine = Asked(model, sizes=(8,))
    component = cgstate.Component("net", routine, [4], capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
    manager = model.serving(component, config={"net": {"max_extra_graphs": 1, "admit_after": 2}}, isolation="per_entry")
    x = model.input(6)
    for _ in range(4):  # not admitted, captured, hits
        assert values(component(x)) == values(model.net(x))
    assert counts(manager) == {"not_admitted": 1}
    asked = len(routine.asked)
    manager.evict("net", 8)
    assert values(component(x)) == values(model.net(x))
    assert counts(manager) == {"not_admitted": 2}
    assert len(routine.asked) > asked


def test_a_miss_that_is_remembered_is_counted_each_time() -> None:
    model = Model()
    routine = Asked(model)
    component = cgstate.Component("net", routine, [4])
    manager = model.serving(component)
    for _ in range(3):
        component(model.input(20))
    assert len(routine.asked) == 1
    assert manager.stats().components["net"].misses == {20: 3}


def test_several_arguments_look_the_same_together() -> None:
    model = Model()
    routine = Asked(model, call=kernels.add, example=lambda size: model.example(size) + model.example(size))
    component = cgstate.Component("sum", routine, [4])
    manager = model.serving(component)
    for size in (4, 4, 3, 3):
        x, y = model.input(size), model.input(size, 5.0)
        assert values(component(x, y)) == values(kernels.add(x, y))
    assert routine.asked == [(4, 4), (3, 4)]
    assert counts(manager, "sum") == {}


@pytest.mark.torch
def test_what_is_no_plain_tensor_asks_each_time() -> None:
    torch = pytest.importorskip("torch")
    model = Model()
    routine = Asked(model, call=lambda x: x * 2, example=lambda size: (torch.zeros(size, 4),))
    component = cgstate.Component("net", routine, [4])
    manager = model.serving(component)
    with torch.no_grad():
        for _ in range(2):
            assert component(torch.nn.Parameter(torch.ones(4, 4))).tolist() == [[2.0] * 4] * 4
    assert len(routine.asked) == 2
    assert counts(manager) == {}


class ByValue(cgstate.BucketedRoutine[..., SimTensor]):
    """Says that only shapes matter, and looks at a value."""

    @cgstate.by_shape
    def resolve_runtime(self, args: tuple[Any, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        key: Hashable = args[0].tolist()[0][0]
        return Resolution(key, None if key == 3.0 else max(available))


def test_who_says_it_and_looks_at_values_is_found_out() -> None:
    model = Model()
    samples = [(model.input(4, value),) for value in (1.0, 2.0, 3.0)]
    (finding,) = examine_routine(ByValue(model.net, model.example), samples, [4], backend=model.backend)
    assert finding.method == "resolve_runtime"
    assert "by_shape" in finding.what
