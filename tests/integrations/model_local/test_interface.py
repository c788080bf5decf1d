"""What models see: a call site that stays, and a handle that tells no more than which descriptors have a graph."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cgstate
from cgstate.integrations.model_local import (
    ModelLocalCUDAGraphDescriptor,
    ModelLocalGraphHandle,
    ModelLocalRuntimeKey,
    SupportsModelLocalCUDAGraph,
)
from tests.integrations.model_local.helpers import Model, sizes


def test_a_handle_answers_and_hides_everything_else() -> None:
    model = Model()
    manager = model.serving()
    handle = model.first.handle
    assert isinstance(handle, ModelLocalGraphHandle)
    x = model.input(2)
    assert handle(x).tolist() == model.routines["first"].net(x).tolist()
    assert {descriptor.variant for descriptor in handle.available_descriptors} == {2, 4}
    assert {name for name in dir(handle) if not name.startswith("_")} == {
        "attached",
        "available_descriptors",
        "call",
        "is_bound",
        "state",
    }
    assert repr(handle) == "<ModelLocalGraphHandle 'first' BOUND>"
    assert repr(model.first) == "<ModelLocalCUDAGraphComponent 'first' BOUND>"
    manager.close()
    assert not handle.is_bound
    assert not handle.attached
    assert handle(x).tolist() == model.routines["first"].net(x).tolist()
    assert repr(model.first) == "<ModelLocalCUDAGraphComponent 'first' EAGER>"


def test_the_call_site_is_the_same_before_between_and_after() -> None:
    model = Model()
    site = model.first
    x = model.input(3)
    answers = [site(x).tolist()]
    manager = model.serving()
    answers.append(site(x).tolist())
    manager.clear()
    answers.append(site(x).tolist())
    manager.close()
    answers.append(site(x).tolist())
    assert answers == [answers[0]] * 4


def test_a_component_that_is_managed_takes_no_second_handle() -> None:
    model = Model()
    manager = model.serving()
    with pytest.raises(cgstate.ConfigError, match="first belongs to another manager"):
        model.first.bind_handle(model.second.handle)
    manager.close()


def test_descriptors_and_keys_are_values_of_their_own_kind() -> None:
    (one,), (other,) = sizes(2), sizes(2)
    assert one == other == ModelLocalCUDAGraphDescriptor[int](2)
    assert len({one, other}) == 1
    key: object = ModelLocalRuntimeKey(2)
    assert one != key
    with pytest.raises(AttributeError):
        one.variant = 3  # type: ignore[misc]  # frozen


def test_models_can_be_asked_by_the_protocol() -> None:
    assert isinstance(Model(), SupportsModelLocalCUDAGraph)
    assert not isinstance(object(), SupportsModelLocalCUDAGraph)


def test_importing_the_interface_needs_neither_torch_nor_an_engine() -> None:
    code = "import sys, cgstate.integrations.model_local; print(sorted({'torch', 'vllm', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
