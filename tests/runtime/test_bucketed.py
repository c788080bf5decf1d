"""Buckets: calls are padded, outputs trimmed, and what no bucket serves is eager and reported."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from cgstate import Break, BucketedRoutine, CaptureFailed, CaptureMode, Component, ConfigError, Fallback, GraphManager
from cgstate.backends.sim import SimBackend, SimTensor, kernels
from cgstate.lifecycle.states import FailureKind
from cgstate.nested import opened
from cgstate.runtime.calling import MEMORY

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16]


class Pair(NamedTuple):
    left: SimTensor
    right: SimTensor


@dataclass(frozen=True)
class Answer:
    logits: SimTensor
    hidden: SimTensor | None
    steps: int = 3


@pytest.fixture
def backend() -> SimBackend:
    return SimBackend()


def serving(
    backend: SimBackend, routine: BucketedRoutine[..., Any], *descriptors: int, **options: Any
) -> tuple[GraphManager, Component[..., Any]]:
    component = Component("c", routine, descriptors or (4, 8), **options)
    manager = GraphManager(backend, check=True)
    manager.prepare([component])
    manager.capture_and_bind()
    return manager, component


def values(output: Any) -> Any:
    """Every tensor as its values."""
    if isinstance(output, SimTensor):
        return output.shape, output.tolist()
    if isinstance(output, tuple | list):
        return type(output), [values(item) for item in output]
    if isinstance(output, dict):
        return {key: values(item) for key, item in output.items()}
    if isinstance(output, Answer):
        return Answer, values(output.logits), values(output.hidden), output.steps
    return output


def net(x: SimTensor) -> SimTensor:
    return kernels.relu(kernels.scale(x, 2.0))


def rows(
    backend: SimBackend,
    call: Callable[..., Any],
    kind: type[BucketedRoutine[..., Any]] = BucketedRoutine,
    example: Callable[[int], tuple[Any, ...]] | None = None,
    **keys: Any,
) -> BucketedRoutine[..., Any]:
    return kind(call, example or (lambda n: (backend.sim.zeros(n, 2),)), **keys)


@pytest.mark.parametrize("size", SIZES)
def test_a_call_of_any_size_equals_eager(backend: SimBackend, size: int) -> None:
    manager, component = serving(backend, BucketedRoutine(net, lambda n: (backend.sim.zeros(n, 4),)))
    for _ in range(3):
        x = backend.sim.rand(size, 4)
        assert values(component(x)) == values(net(x))
    stats = manager.stats().components["c"]
    assert (stats.hits, dict(stats.fallbacks)) == ((3, {}) if size <= 8 else (0, {Fallback.miss: 3}))


def test_padding_is_zero_whatever_was_there_before(backend: SimBackend) -> None:
    def cumulative(x: SimTensor) -> SimTensor:
        return kernels.matmul(x.t(), x)  # every row of the padding would show

    routine = BucketedRoutine(cumulative, lambda n: (backend.sim.zeros(n, 4),), output_dim=None)
    _, component = serving(backend, routine, 8)
    for size in (8, 3, 8, 1, 5):
        x = backend.sim.tensor([[1.0 + row + column for column in range(4)] for row in range(size)])
        assert component(x).tolist() == cumulative(x).tolist(), size


def test_static_inputs_made_of_something_are_zeroed(backend: SimBackend) -> None:
    routine = BucketedRoutine(lambda x: kernels.matmul(x.t(), x), lambda n: (backend.sim.rand(n, 4),), output_dim=None)
    _, component = serving(backend, routine, 8)
    x = backend.sim.rand(3, 4)
    assert component(x).tolist() == kernels.matmul(x.t(), x).tolist()


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: (net(x), kernels.scale(x, 3.0)),
        lambda x: [net(x), (kernels.scale(x, 3.0),)],
        lambda x: {"a": net(x), "b": [kernels.scale(x, 3.0)]},
        lambda x: Pair(net(x), kernels.scale(x, 3.0)),
        lambda x: (net(x), None, 7, "words"),
        lambda x: Answer(net(x), kernels.scale(x, 3.0)),
        lambda x: Answer(net(x), None),
        lambda x: (Pair(net(x), net(x)), {"deep": (Answer(net(x), net(x)),)}),
    ],
    ids=["tuple", "list", "dict", "named tuple", "others", "dataclass", "dataclass of None", "deep"],
)
def test_outputs_keep_their_kind_and_are_trimmed_all_the_way(backend: SimBackend, call: Callable[..., Any], size: int) -> None:
    _, component = serving(backend, BucketedRoutine(call, lambda n: (backend.sim.zeros(n, 4),)))
    x = backend.sim.rand(size, 4)
    assert values(component(x)) == values(call(x))


def test_several_inputs_are_padded_alike(backend: SimBackend) -> None:
    _, component = serving(backend, BucketedRoutine(kernels.add, lambda n: (backend.sim.zeros(n, 4), backend.sim.zeros(n, 4))))
    for size in (1, 4, 6):
        x, y = backend.sim.rand(size, 4), backend.sim.rand(size, 4)
        assert component(x, y).tolist() == kernels.add(x, y).tolist()


def test_another_dimension_may_be_bucketed_and_scaled(backend: SimBackend) -> None:
    weight = backend.sim.rand(2, 3, 2)
    routine = BucketedRoutine(
        lambda x: kernels.conv_transpose1d(x, weight, 2), lambda n: (backend.sim.zeros(2, n),), dim=1, output_dim=1, output_scale=2
    )
    _, component = serving(backend, routine)
    for size in (1, 3, 4, 5, 8):
        x = backend.sim.rand(2, size)
        assert values(component(x)) == values(kernels.conv_transpose1d(x, weight, 2)), size


def test_an_output_that_does_not_grow_is_left_alone(backend: SimBackend) -> None:
    weight = backend.sim.rand(4, 4)
    routine = BucketedRoutine(
        lambda x: kernels.matmul(x.t(), kernels.matmul(x, weight)), lambda n: (backend.sim.zeros(n, 4),), output_dim=None
    )
    _, component = serving(backend, routine)
    assert component(backend.sim.rand(3, 4)).shape == (4, 4)


@pytest.mark.parametrize("call", [{"factor": 2.0}, {"factor": 3.0, "x": True}])
def test_keyword_arguments_are_never_baked_in(backend: SimBackend, call: dict[str, Any]) -> None:
    def scaled(x: SimTensor, factor: float = 1.0) -> SimTensor:
        return kernels.scale(x, factor)

    manager, component = serving(backend, BucketedRoutine(scaled, lambda n: (backend.sim.zeros(n, 4),)))
    x = backend.sim.rand(4, 4)
    answer = component(x=x, factor=call["factor"]) if call.pop("x", False) else component(x, **call)
    assert answer.tolist() == kernels.scale(x, call["factor"]).tolist()
    assert manager.stats().components["c"].fallbacks == {Fallback.miss: 1}
    assert component(x).tolist() == x.tolist()


def test_a_missed_size_is_captured_as_the_smallest_that_holds_it(backend: SimBackend) -> None:
    routine = BucketedRoutine(net, lambda n: (backend.sim.zeros(n, 4),), sizes=[16, 8, 12, 8])
    component = Component("c", routine, [4], capture_mode=CaptureMode.PRECAPTURE_LAZY)
    manager = GraphManager(backend, check=True)
    manager.prepare([component], {"c": {"max_extra_graphs": 3}})
    manager.capture_and_bind()
    for size, available in ((3, {4}), (9, {4, 12}), (5, {4, 12}), (13, {4, 12, 16}), (17, {4, 12, 16})):
        x = backend.sim.rand(size, 4)
        assert values(component(x)) == values(net(x))
        assert component.available_descriptors == available, size


@pytest.mark.parametrize(
    ("descriptors", "sizes", "extra", "largest", "said"),
    [
        ([4, 8], [], 0, 8, ()),
        ([4, 8], [], 0, None, ()),
        ([4, 8], [], 0, 11, ("sizes 9 to 11",)),
        ([4, 8], [], 0, 9, ("sizes 9 to 9",)),
        ([4], [8, 16], 2, 20, ("sizes 17 to 20",)),
        ([4], [8, 16], 0, 20, ("sizes 5 to 20",)),
    ],
)
def test_sizes_that_no_graph_serves_are_reported(
    backend: SimBackend, descriptors: list[int], sizes: list[int], extra: int, largest: int | None, said: tuple[str, ...]
) -> None:
    routine = BucketedRoutine(net, lambda n: (backend.sim.zeros(n, 4),), sizes=sizes, max_size=largest)
    mode = CaptureMode.PRECAPTURE_LAZY if sizes else CaptureMode.PRECAPTURE
    component = Component("c", routine, descriptors, capture_mode=mode)
    report = GraphManager(backend).prepare([component], {"c": {"max_extra_graphs": extra}})
    assert report.uncovered == ({"c": said} if said else {})


WRONG: dict[str, dict[str, Any]] = {
    "a boolean size": {"sizes": [True]},
    "no size": {"sizes": [0]},
    "a negative size": {"sizes": [4, -8]},
    "a float size": {"sizes": [4.0]},
    "sizes of two kinds": {"sizes": [4, "8"]},
    "one size": {"sizes": 4},
    "sizes in words": {"sizes": "48"},
    "a largest size in words": {"max_size": "8"},
    "no largest size": {"max_size": 0},
    "a boolean dimension": {"dim": True},
    "an output dimension in words": {"output_dim": "last"},
    "a scale of nothing": {"output_scale": 0},
    "half a scale": {"output_scale": 0.5},
    "no call": {"call": None},
    "no example": {"example": (1,)},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_bucketed_routine_is_not_made_of_wrong_arguments(backend: SimBackend, name: str) -> None:
    arguments: dict[str, Any] = {"call": net, "example": lambda n: (backend.sim.zeros(n, 4),), **WRONG[name]}
    with pytest.raises(ConfigError):
        BucketedRoutine(**arguments)


@pytest.mark.parametrize("descriptor", [0, -4, True, 4.5, "4"])
def test_a_size_is_a_positive_integer(backend: SimBackend, descriptor: Any) -> None:
    routine = BucketedRoutine(net, lambda n: (backend.sim.zeros(n, 4),))
    manager = GraphManager(backend)
    with pytest.raises(ConfigError):
        manager.prepare([Component("c", routine, [descriptor])])


def test_an_example_that_forgot_its_comma_says_so(backend: SimBackend) -> None:
    routine: BucketedRoutine[..., Any] = BucketedRoutine(net, lambda n: backend.sim.zeros(n, 4))  # type: ignore[arg-type, return-value]
    with pytest.raises(CaptureFailed, match="tuple"):
        serving(backend, routine)


def test_a_call_without_rows_equals_eager(backend: SimBackend) -> None:
    _, component = serving(backend, BucketedRoutine(net, lambda n: (backend.sim.zeros(n, 4),)))
    assert component(backend.sim.zeros(0, 4)).shape == (0, 4)


def test_a_call_that_would_be_broadcast_or_does_not_fit_is_answered_eagerly(backend: SimBackend) -> None:
    routine = BucketedRoutine(lambda x: x, lambda n: (backend.sim.zeros(n, 4),))
    component = Component("c", routine, [8])
    manager = GraphManager(backend, check=True)
    manager.prepare([component])
    manager.capture_and_bind()
    for shape, by_graph in (((8, 4), True), ((3, 4), True), ((8, 1), False), ((8, 5), False), ((4, 8), False)):
        hits = manager.stats().components["c"].hits
        assert component(backend.sim.rand(*shape)).shape == shape
        assert (manager.stats().components["c"].hits > hits) is by_graph, shape


@pytest.mark.parametrize("lazy", [False, True])
def test_each_bucket_holds_inputs_of_its_own_examples_shape(backend: SimBackend, lazy: bool) -> None:
    sim = backend.sim
    routine = rows(backend, lambda x, mask: (x, mask), example=lambda n: (sim.zeros(n, 2), sim.zeros(n, n)), sizes=(4,))
    component = Component("c", routine, [1, 2, 8], capture_mode=CaptureMode.PRECAPTURE_LAZY if lazy else CaptureMode.PRECAPTURE)
    manager = GraphManager(backend, check=True)
    manager.prepare([component], {"c": {"max_extra_graphs": int(lazy)}})
    manager.capture_and_bind()
    served = {
        (8, 8): True,
        (8, 1): False,
        (1, 1): True,
        (1, 8): True,
        (2, 8): True,
        (2, 2): True,
        (3, 4): lazy,
        (4, 4): lazy,
        (5, 4): False,
    }
    for (size, columns), by_graph in served.items():
        x, mask = sim.rand(size, 2), sim.rand(size, columns)
        hits = manager.stats().components["c"].hits
        assert values(component(x, mask)) == values((x, mask))
        assert (manager.stats().components["c"].hits > hits) is by_graph, (size, columns)
    assert component.available_descriptors == ({1, 2, 4, 8} if lazy else {1, 2, 8})


@pytest.mark.parametrize("shape", [(16, 2), (4, 2), (), (2, 8)])
def test_an_example_of_another_size_than_was_asked_for_is_refused(backend: SimBackend, shape: tuple[int, ...]) -> None:
    with pytest.raises(CaptureFailed, match="not 8 long in dimension 0"):
        serving(backend, rows(backend, net, example=lambda n: (backend.sim.zeros(*shape),)), 8)


def test_a_call_that_no_example_looks_like_is_no_reason_to_capture(backend: SimBackend) -> None:
    routine = rows(backend, net, example=lambda n: (backend.sim.zeros(),))
    component = Component("c", routine, [8], capture_mode=CaptureMode.PURE_LAZY)
    manager = GraphManager(backend, check=True)
    manager.prepare([component])
    manager.capture_and_bind()
    x = backend.sim.rand(3, 2)
    assert values(component(x)) == values(net(x))
    assert component.available_descriptors == frozenset()


def test_arguments_of_different_sizes_are_answered_eagerly(backend: SimBackend) -> None:
    sim = backend.sim
    component = Component("c", BucketedRoutine(lambda x, y: x, lambda n: (sim.zeros(n, 2), sim.zeros(n, 3))), [8])
    manager = GraphManager(backend, check=True)
    manager.prepare([component])
    manager.capture_and_bind()
    for other, hits in ((4, 1), (5, 1), (4, 2)):
        x = sim.rand(4, 2)
        assert values(component(x, sim.rand(other, 3))) == values(x)
        assert manager.stats().components["c"].hits == hits


def test_what_a_routine_remembers_of_shapes_is_bounded(backend: SimBackend) -> None:
    component = Component("c", BucketedRoutine(lambda x: x, lambda n: (backend.sim.zeros(n, 1),)), [1])
    with GraphManager(backend, check=True) as manager:
        manager.prepare([component])
        manager.capture_and_bind()
        for size in range(2, 2100):
            component(backend.sim.zeros(size, 1))
        assert component.caller is not None
        assert 0 < len(component.caller.record.known) <= MEMORY


class Plain:
    def __init__(self, audio: Any) -> None:
        self.audio = audio


class Slotted:
    __slots__ = ("audio", "never")

    def __init__(self, audio: Any) -> None:
        self.audio = audio


class Listed(list[Any]):
    pass


class Mapped(dict[str, Any]):
    pass


class Tupled(tuple[Any, ...]):
    pass


HIDDEN: list[Callable[[Any], Any]] = [
    Plain,
    Slotted,
    lambda x: Listed([x]),
    lambda x: Mapped(audio=x),
    lambda x: Tupled((x,)),
    lambda x: {x},
    lambda x: (x, {"deep": [Plain((1, Slotted([x])))]}),
]


@pytest.mark.parametrize("make", HIDDEN)
def test_an_output_that_hides_tensors_in_an_unknown_object_is_refused_before_it_is_recorded(
    backend: SimBackend, make: Callable[[Any], Any]
) -> None:
    captures = list[bool]()

    def call(x: SimTensor) -> Any:
        captures.append(backend.capturing())
        return make(net(x))

    with pytest.raises(CaptureFailed, match="inside an object of class") as failed:
        serving(backend, rows(backend, call))
    assert isinstance(failed.value.__cause__, ConfigError)
    assert failed.value.kind is FailureKind.USER
    assert captures == [False]


def test_a_body_with_breaks_that_returns_an_unknown_object_is_refused(backend: SimBackend) -> None:
    def call(x: SimTensor) -> Generator[Break, None, Any]:
        hidden = net(x)
        yield Break(lambda: None)
        return Plain(net(hidden))

    with pytest.raises(CaptureFailed, match="inside an object of class Plain"):
        serving(backend, rows(backend, call))


def test_an_unknown_object_without_tensors_passes(backend: SimBackend) -> None:
    looped = Plain("label")
    looped.audio = [looped, Listed([1]), Slotted(None), Plain]
    _, component = serving(backend, rows(backend, lambda x: (net(x), looped)))
    x = backend.sim.rand(3, 2)
    answer, label = component(x)
    assert values(answer) == values(net(x))
    assert label is looped


def test_who_takes_an_unknown_object_apart_may_record_it(backend: SimBackend) -> None:
    class Opening(BucketedRoutine[..., Any]):
        def output_after_replay(self, descriptor: int, buffers: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            return output.audio.narrow(0, 0, len(args[0].tolist()))

    _, component = serving(backend, rows(backend, lambda x: Plain(net(x)), Opening))
    x = backend.sim.rand(3, 2)
    assert values(component(x)) == values(net(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: OrderedDict(b=x, a=x),
        lambda x: defaultdict(list, a=[x]),
        lambda x: deque([x, 1], maxlen=3),
    ],
)
@pytest.mark.parametrize("size", [3, 4])
def test_containers_of_the_standard_library_come_back_as_what_they_are(
    backend: SimBackend, make: Callable[[Any], Any], size: int
) -> None:
    _, component = serving(backend, rows(backend, lambda x: make(net(x))))
    x, y = backend.sim.rand(size, 2), backend.sim.rand(size, 2)
    first = component(x)
    second = component(y)
    for answer, given in ((first, x), (second, y)):
        assert type(answer) is type(make(x))
        layer, right = opened(answer), opened(make(net(given)))
        assert layer is not None
        assert right is not None
        assert values(layer.parts) == values(right.parts)


def test_a_class_registered_with_pytree_is_trimmed_and_cloned(backend: SimBackend) -> None:
    pytree = pytest.importorskip("torch.utils._pytree")

    class Registered:
        def __init__(self, audio: Any) -> None:
            self.audio = audio

    pytree.register_pytree_node(Registered, lambda value: ([value.audio], None), lambda parts, _: Registered(*parts))
    _, component = serving(backend, rows(backend, lambda x: Registered(net(x))))
    x = backend.sim.rand(3, 2)
    answer = component(x)
    component(backend.sim.rand(4, 2))
    assert values(answer.audio) == values(net(x))
