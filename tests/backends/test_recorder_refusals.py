"""What no graph can hold is refused by name: with the device's error where a GPU refuses it, else as something not recordable."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from cgstate.backends.sim.errors import SimAcceleratorError, SimGeneratorError, SimUnrecordable
from cgstate.lifecycle.states import FailureKind
from tests.backends.torch_captures import Bench

pytestmark = pytest.mark.torch

Body = Callable[[torch.Tensor], object]

LOOKS_AT_VALUES: dict[str, tuple[Body, str]] = {
    "item": (lambda x: x.sum().item(), "_local_scalar_dense"),
    "bool": (lambda x: bool(x.sum() > 0), "_local_scalar_dense"),
    "float": (lambda x: float(x[0]), "_local_scalar_dense"),
    "int": (lambda x: range(int(x[0])), "_local_scalar_dense"),
    "tolist": (lambda x: x.tolist(), ""),
    "cpu": (lambda x: x.cpu(), ""),
    "to cpu": (lambda x: x.to("cpu"), ""),
    "to cpu by name": (lambda x: x.to(device="cpu"), ""),
    "numpy": (lambda x: x.numpy(), ""),
    "dlpack": (lambda x: x.__dlpack__(), ""),
    "array": (lambda x: x.__array__(), ""),
    "repr": (repr, ""),
    "format": (lambda x: f"{x}", ""),
    "pickle": (pickle.dumps, ""),
    "deepcopy": (copy.deepcopy, ""),
    "equal": (lambda x: torch.equal(x, x), "equal"),
    "allclose": (lambda x: torch.allclose(x, x), "allclose"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "where": (lambda x: torch.where(x > 0), "nonzero"),
    "unique": (lambda x: x.unique(), "_unique2"),
    "masked_select": (lambda x: x.masked_select(x > 0), "masked_select"),
    "mask index": (lambda x: x[x > 0], "index"),
    "mask write of a tensor": (lambda x: x.index_put_((x > 0,), x.sum()), "index_put_"),
    "repeat_interleave": (lambda x: x.repeat_interleave(x.long()), "repeat_interleave"),
    "bincount": (lambda x: x.long().bincount(), "bincount"),
    "copy of a list": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), "lift_fresh"),
    "inverse": (lambda x: torch.linalg.inv(torch.diag(x)), "_linalg_check_errors"),
    "cholesky": (lambda x: torch.linalg.cholesky_ex(torch.diag(x), check_errors=True), "linalg_cholesky_ex"),
    "eigenvalues": (lambda x: torch.linalg.eigvalsh(torch.diag(x)), "_linalg_eigh"),
    "singular values": (lambda x: torch.linalg.svdvals(torch.diag(x)), "_linalg_svd"),
    "deviations": (lambda x: torch.normal(x, x), "normal"),
    "fill with a value": (lambda x: x.masked_fill(x > 0, x.sum()), "masked_fill"),
    "fill with a value, in place": (lambda x: x.clone().index_fill_(0, x.long(), x.sum()), "index_fill_"),
    "ends of a range": (lambda x: torch.linspace(x[0], 2, 3), "linspace"),
}

NOT_RECORDABLE: dict[str, tuple[Body, str]] = {
    "sparse": (lambda x: x.to_sparse(), "_to_sparse"),
    "lazily conjugated": (lambda x: torch.complex(x, x).conj(), "_conj"),
    "own generator": (lambda x: torch.rand(3, generator=torch.Generator()), "rand"),
    "resize": (lambda x: x.clone().resize_(100), "resize_"),
    "resized out": (lambda x: torch.add(x, x, out=torch.empty(0)), "add"),
    "higher order": (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), "cond"),
    "another device": (lambda x: torch.empty(2, device="meta") + x, "add"),
}


def refused(body: Body, error: type[BaseException], words: str) -> Bench:
    bench = Bench()
    x = bench.backend.place(torch.ones(3))
    with bench.refused(error, words):
        bench.capture(lambda: body(x))
    return bench


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", LOOKS_AT_VALUES)
def test_a_look_at_values_breaks_the_capture_with_the_devices_error(name: str, inference: bool) -> None:
    body, words = LOOKS_AT_VALUES[name]
    with torch.inference_mode(inference):
        bench = refused(body, SimAcceleratorError, words)
    with pytest.raises(SimGeneratorError):  # fact F2
        bench.sim.rand(1)
    assert bench.sim.current_stream() is bench.stream  # fact F3


@pytest.mark.parametrize("name", NOT_RECORDABLE)
def test_what_cannot_be_recorded_is_refused_by_name(name: str) -> None:
    body, words = NOT_RECORDABLE[name]
    refused(body, SimUnrecordable, words)


def test_an_operation_without_a_meta_kernel_is_refused_by_name() -> None:
    library = torch.library.Library("cgstate_test", "DEF")
    try:
        library.define("shapeless(Tensor x) -> Tensor")
        library.impl("shapeless", lambda x: x[: int(x[0])].clone(), "CPU")
        refused(lambda x: torch.ops.cgstate_test.shapeless(x), SimUnrecordable, "cgstate_test::shapeless")
    finally:
        library._destroy()


def test_a_meta_kernel_that_lies_is_noticed_by_the_replay() -> None:
    library = torch.library.Library("cgstate_test", "DEF")
    try:
        library.define("liar(Tensor x) -> Tensor")
        library.impl("liar", lambda x: x[:1].clone(), "CPU")
        library.impl("liar", lambda x: x.new_empty(5), "Meta")
        bench = Bench()
        x = bench.backend.place(torch.ones(3))
        graph, _ = bench.capture(lambda: torch.ops.cgstate_test.liar(x))
        graph.replay()
        with pytest.raises(SimUnrecordable, match="cgstate_test::liar"):
            bench.sim.synchronize()
    finally:
        library._destroy()


def test_a_quantised_tensor_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some releases call it deprecated
        q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    refused(lambda x: q.dequantize() + x, SimUnrecordable, "quantised")


def test_autograd_is_refused() -> None:
    bench = Bench()
    weight = torch.nn.Parameter(torch.ones(3))

    def body() -> object:
        with torch.enable_grad():
            return weight * 2

    with bench.refused(SimUnrecordable, "autograd"):
        bench.capture(body)


def test_a_refusal_that_is_swallowed_still_breaks_the_capture() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(3))

    def body() -> torch.Tensor:
        with pytest.raises(SimAcceleratorError, match="900"):
            x.sum().item()
        with pytest.raises(SimAcceleratorError, match="901"):
            x + 1
        return x

    with pytest.raises(SimAcceleratorError, match="901") as ended:
        bench.capture(body)
    assert bench.backend.failure_kind(ended.value) is FailureKind.REJECTED


def test_both_kinds_of_refusal_mean_rejected() -> None:
    backend = Bench().backend
    assert backend.failure_kind(SimUnrecordable("aten::x", "it is secret")) is FailureKind.REJECTED
    assert backend.failure_kind(SimAcceleratorError(900)) is FailureKind.REJECTED


def test_what_a_gpu_captures_is_not_refused() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(3))

    def body() -> tuple[torch.Tensor, torch.Size, torch.Tensor]:
        y = x.clone()
        y[y > 0] = 0.5  # a mask and a number: masked_fill
        y = y.masked_fill(y < 0, torch.tensor(3.0))
        torch.linalg.inv_ex(torch.eye(3))
        torch.normal(y, 1.0)
        y = y.to(x.device).to(torch.float64).to(torch.float32)
        repeats = torch.ones(3, dtype=torch.int64)
        return y.repeat_interleave(repeats, output_size=3), torch.empty(2, device="meta").shape, F.relu(y)

    graph, (y, shape, _) = bench.capture(body)
    graph.replay()
    assert y.tolist() == [0.5] * 3
    assert shape == (2,)


def test_a_tensor_of_another_device_is_refused() -> None:
    bench, other = Bench(), Bench()
    x = other.backend.place(torch.ones(3))
    with bench.refused(ValueError, other.sim.name):
        bench.capture(lambda: x + 1)


def test_torch_must_not_be_imported_inside_a_capture() -> None:
    program = """
from cgstate.backends.sim import SimDevice, captured
device = SimDevice()
def body():
    import torch
    return torch.ones(2) + 1
try:
    captured(device, body, device.new_stream(exclusive=True))
except Exception as error:
    print(type(error.__cause__).__name__, error.__cause__)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert "SimUnrecordable import torch cannot be recorded" in done.stdout
