"""A routine that says that only shapes and dtypes matter is asked once for calls that look the same, and never too seldom."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, cast

import pytest

import cgstate
from cgstate import Resolution
from cgstate.backends.sim import SimBackend, SimTensor, kernels
from cgstate.runtime.calling import Caller
from cgstate.runtime.record import ComponentRecord
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


def test_the_second_of_two_calls_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    component = cgstate.Component("net", Asked(model), [4, 8])
    manager = model.serving(component)
    x = model.input(3)
    component(x)
    monkeypatch.setattr(Caller, "find", lambda *args: pytest.fail("it was to be found at once"))
    assert values(component(x)) == values(model.net(x))
    assert counts(manager) == {}


def test_keyword_arguments_are_never_answered_by_what_was_found_without() -> None:
    model = Model()

    def scaled(x: SimTensor, k: float = 1.0) -> SimTensor:
        return kernels.scale(x, k)

    component = cgstate.Component("net", Asked(model, call=scaled), [4])
    manager = model.serving(component)
    x = model.input(4)
    for _ in range(2):
        assert values(component(x)) == values(x)
        assert values(component(x, k=2.0)) == values(scaled(x, 2.0))
    assert counts(manager) == {"miss": 2}


def test_calls_with_more_arguments_look_different() -> None:
    model = Model()

    def added(x: SimTensor, y: SimTensor | None = None) -> SimTensor:
        return x if y is None else kernels.add(x, y)

    component = cgstate.Component("net", Asked(model, call=added), [4])
    manager = model.serving(component)
    x = model.input(4)
    for _ in range(2):
        assert values(component(x)) == values(x)
        assert values(component(x, x)) == values(added(x, x))
    assert counts(manager) == {"miss": 2}


class Torchy(SimBackend):
    """Says that torch's tensors are its plain ones, as the CUDA backend does."""

    @property
    def tensor(self) -> type:
        return pytest.importorskip("torch").Tensor  # type: ignore[no-any-return]


@pytest.mark.torch
def test_tensors_of_other_classes_are_remembered_as_well() -> None:
    torch = pytest.importorskip("torch")
    routine = Asked(Model(), call=lambda x: x * 2, example=lambda size: (torch.zeros(size, 4),))
    component = cgstate.Component("net", routine, [4])
    with torch.no_grad(), cgstate.GraphManager(Torchy()) as manager:
        manager.prepare([component])
        manager.capture_and_bind()
        for _ in range(2):
            for value in (torch.ones(4, 4), torch.nn.Parameter(torch.ones(4, 4)), torch.ones(4, 4, dtype=torch.float64)):
                assert component(value).tolist() == [[2.0] * 4] * 4
    assert len(routine.asked) == 2


@pytest.mark.torch
def test_dtypes_of_several_arguments_tell_calls_apart() -> None:
    torch = pytest.importorskip("torch")
    routine = Asked(Model(), call=lambda x, y: x + y, example=lambda size: (torch.zeros(size, 4), torch.zeros(size, 4)))
    component = cgstate.Component("net", routine, [4])
    with torch.no_grad(), cgstate.GraphManager(Torchy()) as manager:
        manager.prepare([component])
        manager.capture_and_bind()
        for _ in range(2):
            for dtype in (torch.float32, torch.float64):
                answer = component(torch.ones(4, 4), torch.full((4, 4), 1e-9, dtype=dtype))
                assert answer.dtype is dtype
        assert counts(manager) == {"miss": 2}
    assert len(routine.asked) == 2


def test_what_is_no_tensor_asks_each_time() -> None:
    model = Model()
    routine = Asked(model, call=lambda x, factor=1.0: kernels.scale(x, factor))
    component = cgstate.Component("net", routine, [4])
    manager = model.serving(component)
    for factor in (1.0, 2.0, 2.0):
        x = model.input(4)
        assert values(component(x, factor)) == values(kernels.scale(x, factor))
    assert len(routine.asked) == 3
    assert counts(manager) == {"miss": 3}


class During(Asked):
    """Lets something happen while it is asked the next time."""

    act: Callable[[], object] | None = None

    @cgstate.by_shape
    def resolve_runtime(self, args: tuple[Any, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        resolution = super().resolve_runtime(args, kwargs, available)
        act, self.act = self.act, None
        if act is not None:
            act()
        return resolution


def test_nothing_is_remembered_of_an_older_snapshot() -> None:
    model = Model()
    routine = During(model)
    component = cgstate.Component("net", routine, [4, 8])
    manager = model.serving(component, isolation="per_entry")
    x = model.input(3)
    routine.act = lambda: manager.evict("net", 4)
    component(x)  # it was told of a graph that is gone
    hits = manager.stats().components["net"].hits
    assert values(component(x)) == values(model.net(x))
    assert manager.stats().components["net"].hits == hits + 1


def test_a_snapshot_is_there_before_what_was_known_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that comes in between must not note what it found in the old one."""
    model = Model()
    component = cgstate.Component("net", Asked(model), [4, 8])
    manager = model.serving(component, isolation="per_entry")
    record = manager._books.components["net"]
    order: list[str] = []

    class Watched(ComponentRecord):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            order.append(name)
            super().__setattr__(name, value)

    monkeypatch.setattr(record, "__class__", Watched)
    record.refresh()
    assert order.index("available") < order.index("known")


def test_a_graph_that_is_dropped_is_not_remembered() -> None:
    """Of a routine that names descriptors which are not available."""
    model = Model()

    class Always(cgstate.BucketedRoutine[..., SimTensor]):
        @cgstate.by_shape
        def resolve_runtime(
            self, args: tuple[Any, ...], kwargs: Mapping[str, object], available: frozenset[int]
        ) -> Resolution[int]:
            size = args[0].shape[0]
            return Resolution(size, size)

        def make_lazy_descriptor(self, runtime_key: Hashable) -> int | None:
            return cast(int, runtime_key)

    component = cgstate.Component("net", Always(model.net, model.example), [4], capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
    manager = model.serving(component, config={"net": {"max_extra_graphs": 1, "thrash_protection": False}}, isolation="per_entry")
    x = model.input(8)
    component(x)
    with manager.entry("net", 8).lease():
        manager.evict("net", 8)
        component(x)
    component(x)
    model.dev.synchronize()
    manager.reclaim()
    assert 8 not in manager._books.components["net"].entries
    captures = manager.stats().components["net"].captures
    for _ in range(3):
        component(x)
    assert manager.stats().components["net"].captures == captures + 1


def test_the_mark_is_of_one_function_alone() -> None:
    class Wrapped(Asked):
        @functools.wraps(Asked.resolve_runtime)
        def resolve_runtime(self, *args: Any) -> Resolution[int]:  # type: ignore[override]  # a wrapper, whatever it takes
            return super().resolve_runtime(*args)

    model = Model()
    routine = Wrapped(model)
    component = cgstate.Component("net", routine, [4])
    manager = model.serving(component)
    for _ in range(2):
        component(model.input(4))
    assert len(routine.asked) == 2
    assert counts(manager) == {}
    for wrong in (routine.resolve_runtime, functools.partial(routine.resolve_runtime), staticmethod(len)):
        with pytest.raises(cgstate.ConfigError, match="by_shape decorates the function"):
            cgstate.by_shape(wrong)


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


class ByNumber(cgstate.BucketedRoutine[..., SimTensor]):
    """Looks at an argument that is no tensor, which it may: such calls ask each time."""

    @cgstate.by_shape
    def resolve_runtime(self, args: tuple[Any, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        return Resolution((args[0].shape[0], args[1]), max(available) if args[1] == 2.0 else None)


def test_a_number_that_is_looked_at_is_no_fault() -> None:
    model = Model()

    def scaled(x: SimTensor, factor: float = 2.0) -> SimTensor:
        return kernels.scale(x, factor)

    class Copying(ByNumber):
        def copy_runtime_inputs(self, descriptor: int, buffers: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
            buffers[0].copy_(args[0])

    samples = [(model.input(4, value), factor) for value in (1.0, 2.0) for factor in (2.0, 3.0)]
    assert not examine_routine(Copying(scaled, model.example), samples, [4], backend=model.backend)
