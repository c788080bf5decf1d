"""What the CUDA backend asks of torch, and what it says where there is no device. Runs on any build of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.base import Backend
from cgstate.backends.cuda import CudaBackend, missing
from cgstate.backends.cuda.driver import DriverError, driver
from cgstate.backends.cuda.probe import NAMES, PrivateName
from cgstate.errors import ConfigError

pytestmark = pytest.mark.torch
without_device = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")


def test_backend_fits_the_protocol() -> None:
    kind: type[Backend] = CudaBackend  # checked by mypy
    assert kind.__name__ == "CudaBackend"


@without_device
@pytest.mark.parametrize("device", [None, 0, "cuda", "cuda:0"])
def test_no_device_is_said_clearly(device: int | str | None) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        CudaBackend(device)


def test_import_needs_no_device() -> None:
    code = "import cgstate.backends.cuda, sys; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_base_import_leaves_torch_out() -> None:
    code = "import cgstate.backends.base, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_has_a_purpose_and_is_listed_once() -> None:
    assert len({name.path for name in NAMES}) == len(NAMES)
    assert all(name.purpose and name.path.startswith("torch.") for name in NAMES)


def test_a_name_that_is_not_there_is_missing() -> None:
    assert not PrivateName("torch._C._cuda_no_such_thing", "nothing").present
    assert not PrivateName("torch.no_such_module.thing", "nothing").present
    assert PrivateName("torch.Tensor.clone", "something").present


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="a build with CUDA has them")
def test_stand_ins_of_a_build_without_cuda_do_not_count() -> None:
    assert hasattr(torch._C, "_CUDAGraph")
    lacking = {name.path for name in missing()}
    assert {"torch._C._CUDAGraph", "torch._C._cuda_getCurrentRawStream", "torch._C._cuda_releasePool"} <= lacking


def test_missing_tells_needed_from_optional() -> None:
    assert all(name.needed for name in missing())
    assert not any(name.needed for name in missing(optional=True))


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="a build without CUDA lacks most")
def test_nothing_is_missing_in_a_build_with_cuda() -> None:
    assert missing() == ()
    assert missing(optional=True) == ()


@without_device
def test_no_driver_is_said_clearly() -> None:
    try:
        driver()
    except ConfigError as error:
        assert "no CUDA driver" in str(error)  # noqa: PT017 - a machine may have the library and no device


def test_driver_error_has_torch_s_attribute() -> None:
    error = DriverError("cuStreamCreate", 700)
    assert error.error_code == 700
    assert "cuStreamCreate" in str(error)
    assert "700" in str(error)
