"""What torch lets people do beside a graph, between capture and replay and across devices, and what must not come of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from cgstate.backends.sim import SimConfig
from cgstate.backends.sim.errors import SimAcceleratorError, SimOutOfMemory
from cgstate.errors import ConfigError
from tests.backends.torch_captures import Bench, equal

pytestmark = pytest.mark.torch


@pytest.fixture
def another_default_type() -> Iterator[Callable[[], None]]:
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)


def test_a_kernel_that_asks_for_autograd_gets_the_answer_of_the_capture() -> None:
    bench = Bench()
    lstm = nn.LSTM(6, 5, 2, bidirectional=True).eval().requires_grad_(False)
    data = torch.randn(2, 3, 6)
    x = bench.backend.place(torch.zeros_like(data))
    graph, (y, _) = bench.capture(lambda: lstm(x))
    x.copy_(data)
    assert torch.is_grad_enabled()
    graph.replay()
    bench.sim.synchronize()
    assert equal(y, lstm(data)[0])


def test_a_default_type_that_changes_is_not_the_graphs(another_default_type: Callable[[], None]) -> None:
    bench = Bench()

    def body() -> list[torch.Tensor]:
        return [torch.zeros(2), torch.full((2,), 1.5), torch.arange(4), torch.linspace(0, 1, 3), torch.eye(2), torch.rand(0)]

    graph, before = bench.capture(body)
    expected = body()
    another_default_type()
    graph.replay()
    assert equal(before, expected)


def test_a_capture_goes_by_the_default_type_of_now(another_default_type: Callable[[], None]) -> None:
    bench = Bench()
    whole = bench.backend.place(torch.arange(4))

    def body(whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return whole / 2, torch.ones(2)

    bench.capture(lambda: body(whole))
    another_default_type()
    graph, outputs = bench.capture(lambda: body(whole))
    graph.replay()
    assert equal(outputs, body(torch.arange(4)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))], ids=["copy", "pickle"])
def test_copies_of_a_placed_module_have_parameters(copied: Callable[[nn.Module], nn.Module]) -> None:
    module = nn.BatchNorm1d(3)
    module.bias.requires_grad_(False)
    Bench().backend.place(module)
    twin = copied(module)
    assert all(isinstance(parameter, nn.Parameter) for parameter in twin.parameters())
    assert {name: each.requires_grad for name, each in twin.named_parameters()} == {"weight": True, "bias": False}
    assert not isinstance(twin.running_mean, nn.Parameter)
    assert twin.state_dict().keys() == module.state_dict().keys()


def test_tensors_of_two_devices_do_not_meet_outside_captures_either() -> None:
    one, other = Bench(), Bench()
    x, y = one.backend.place(torch.ones(2)), other.backend.place(torch.ones(2))
    for act in (torch.add, torch.Tensor.copy_, lambda x, y: torch.cat([x, y])):
        with pytest.raises(ValueError, match="a tensor of sim:"):
            act(x, y)


def test_a_tensor_moves_between_devices_when_its_work_is_done() -> None:
    one, other = Bench(), Bench()
    x = one.backend.place(torch.zeros(2))
    graph, _ = one.capture(lambda: x.add_(1))
    graph.replay()
    assert other.backend.place(x).tolist() == [1.0, 1.0]


def test_only_plain_tensors_can_be_placed() -> None:
    place = Bench().backend.place
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))
    for odd, words in (
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (fake, "FakeTensor"),
    ):
        with pytest.raises(ConfigError, match=words):
            place(odd)


def test_a_module_that_cannot_be_placed_is_left_as_it_was() -> None:
    def half_missing() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))

    def too_large() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(512, 512))

    bench = Bench(SimConfig(capacity_bytes=256 << 10))
    before = bench.sim.allocated_bytes()
    for made, error in ((half_missing(), ConfigError), (too_large(), SimOutOfMemory)):
        tensors = list(made.parameters())
        with pytest.raises(error):
            bench.backend.place(made)
        assert all(now is then for now, then in zip(made.parameters(), tensors, strict=True))
        assert bench.sim.allocated_bytes() == before


def test_placing_in_a_capture_is_a_copy_from_pageable_memory() -> None:
    bench = Bench()
    with bench.refused(SimAcceleratorError, "900"):
        bench.capture(lambda: bench.backend.place(torch.ones(2)) + 1)
