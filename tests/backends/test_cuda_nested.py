"""Nested values, and the acts that wait for the end of a capture. On CPU tensors, so it runs on any build of torch."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.cuda import values as cuda_values
from cgstate.backends.cuda.quiet import Quiet
from cgstate.backends.cuda.values import clone, nbytes, requires_grad, tensors_in
from cgstate.backends.sim import values as sim_values

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", ["a", "b"])


class Typed(NamedTuple):
    hidden: Any
    length: int


@dataclass
class Output:
    logits: Any
    note: str = "x"
    parts: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    logits: Any


SHAPES = [
    lambda t: t,
    lambda t: (t, 1, "a"),
    lambda t: [t, None],
    lambda t: {"a": t, "b": {"c": [t]}},
    lambda t: OrderedDict(a=t),
    lambda t: Pair(t, 2),
    lambda t: Typed(t, 3),
    lambda t: Output(t, parts=[t]),
    lambda t: Frozen(t),
    lambda t: (Output((t, {"deep": Frozen(t)})), [Pair(t, (t,))]),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_clone_copies_every_tensor_and_keeps_the_shape(shape: Any) -> None:
    tensor = torch.arange(6.0)
    value = shape(tensor)
    copied = clone(value)
    assert type(copied) is type(value)
    assert len(list(tensors_in(copied))) == len(list(tensors_in(value))) > 0
    tensor.zero_()
    for one in tensors_in(copied):
        assert one.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_clone_keeps_what_holds_no_tensors() -> None:
    thing = object()
    note = Output(None)
    assert clone((thing, note, 3)) == (thing, note, 3)
    assert clone(note) is note


MANY = {
    "one dtype": lambda: (torch.arange(6.0), torch.ones(2, 3), torch.zeros(0), torch.tensor(3.0)),
    "several dtypes": lambda: [
        torch.arange(3),
        torch.ones(2),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(3),
    ],
    "views": lambda: (torch.arange(12.0).view(3, 4).t(), torch.arange(12.0)[::3], torch.ones(1, 2).expand(3, 2)),
    "complex and lazy": lambda: (
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([3 + 4j]),
        torch.tensor([1 + 2j]).conj().imag,
        torch.ones(1),
    ),
    "other layouts": lambda: (torch.eye(2).to_sparse(), torch.ones(1), torch.zeros(2)),
    "a parameter": lambda: (torch.nn.Parameter(torch.ones(2)), torch.ones(2), torch.zeros(2)),
}


@pytest.mark.parametrize("made", MANY.values(), ids=MANY)
def test_several_tensors_are_copied_as_each_alone_would_be(made: Any) -> None:
    with torch.no_grad():
        given = made()
        copied = clone(given)
        for one, copy in zip(given, copied, strict=True):
            alone = one.clone()
            assert (copy.dtype, copy.layout, copy.shape) == (alone.dtype, alone.layout, alone.shape)
            assert copy.layout is not torch.strided or copy.stride() == alone.stride()
            assert torch.equal(copy.to_dense().resolve_neg(), alone.to_dense().resolve_neg())
            assert copy is not one


def test_a_tensor_that_occurs_twice_is_copied_once() -> None:
    tensor = torch.ones(2)
    first, second = clone((tensor, tensor))
    assert first is second
    assert first is not tensor


def test_clone_does_not_touch_the_original() -> None:
    tensor = torch.ones(2)
    value = Output(tensor, parts=[tensor])
    copied = clone(value)
    assert value.logits is tensor
    assert value.parts[0] is tensor
    assert copied.logits is not tensor


def test_nbytes_counts_storages_once() -> None:
    tensor = torch.zeros(256)
    assert nbytes(tensor) == 1024
    assert nbytes((tensor, tensor[:4], {"a": tensor.view(16, 16)})) == 1024
    assert nbytes([tensor, torch.zeros(1, dtype=torch.int8)]) == 1025
    assert nbytes(tensor[:4]) == 1024  # the storage is what is held
    assert nbytes(("a", 1, None, object())) == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_requires_grad(shape: Any) -> None:
    assert not requires_grad(shape(torch.zeros(2)))
    assert requires_grad(shape(torch.zeros(2, requires_grad=True)))
    assert not requires_grad((1, "a", None, object()))


def test_acts_wait_for_every_capture() -> None:
    quiet, done = Quiet(), list[str]()
    quiet.when_quiet(lambda: done.append("at once"))
    assert quiet.open(0)
    assert quiet.open(1)
    assert not quiet.open(0)
    quiet.when_quiet(lambda: done.append("late"))
    quiet.close(0)
    assert done == ["at once"]
    assert quiet.is_open(1)
    quiet.close(1)
    quiet.close(1)
    assert done == ["at once", "late"]


def test_an_act_that_raises_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    quiet, done = Quiet(), list[str]()
    quiet.open(0)
    quiet.when_quiet(lambda: [][0])
    quiet.when_quiet(lambda: done.append("next"))
    quiet.close(0)
    assert done == ["next"]
    assert "going on" in caplog.text


@pytest.mark.parametrize("shape", SHAPES)
def test_looking_at_a_value_does_not_keep_its_tensors_alive(shape: Any) -> None:
    tensor = torch.arange(6.0)
    gone = weakref.ref(tensor)
    value = shape(tensor)
    gc.disable()
    try:
        nbytes(value)
        requires_grad(value)
        clone(value)
        del value, tensor
        assert gone() is None
    finally:
        gc.enable()


class Listed(list[Any]):
    pass


class Mapped(dict[str, Any]):
    pass


@pytest.mark.parametrize("make", [lambda t: Listed([t]), lambda t: Mapped(a=t), lambda t: {t}])
def test_the_simulator_takes_the_same_classes_as_they_are(make: Any) -> None:
    value = make(torch.ones(2))
    for values in (cuda_values, sim_values):
        assert values.clone(value) is value
        assert list(values.tensors_in(value)) == []
