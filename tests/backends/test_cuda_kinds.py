"""What errors mean. With made-up errors, so it runs on any build of torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.cuda.driver import DriverError
from cgstate.backends.cuda.failures import failure_kind, means_lost
from cgstate.errors import CaptureActive, ConfigError
from cgstate.lifecycle.states import FailureKind

pytestmark = pytest.mark.torch


def accelerator_error(code: int) -> RuntimeError:
    error: RuntimeError = torch.AcceleratorError(f"CUDA error {code}")
    error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, FailureKind.OOM),
        (401, FailureKind.REJECTED),
        (700, FailureKind.DEVICE),
        (710, FailureKind.DEVICE),
        (716, FailureKind.DEVICE),
        (719, FailureKind.DEVICE),
        (900, FailureKind.REJECTED),
        (901, FailureKind.FOREIGN),
        *((code, FailureKind.REJECTED) for code in range(902, 909)),
        (1, None),
        (400, None),
    ],
)
def test_codes(code: int, kind: FailureKind | None) -> None:
    assert failure_kind(accelerator_error(code)) is kind
    assert failure_kind(DriverError("cuSomething", code)) is kind
    assert means_lost(accelerator_error(code)) is (kind is FailureKind.DEVICE)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", FailureKind.REJECTED),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", FailureKind.OOM),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle, opa, opb)`", FailureKind.FOREIGN),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", FailureKind.REJECTED),
        ("Offset increment outside graph capture encountered unexpectedly.", FailureKind.FOREIGN),
        ("Attempt to increase offset for a CUDA generator not in capture mode.", FailureKind.FOREIGN),
        ("beginAllocateToPool: already recording to mempool_id", FailureKind.FOREIGN),
        ("Cannot prepare for replay during capturing stage. during CUDA graph capture.", FailureKind.REJECTED),
        ("Cannot register the state during capturing stage. during CUDA graph capture.", FailureKind.REJECTED),
        ("it->second->use_count > 0 INTERNAL ASSERT FAILED at CachingHostAllocator.h:773", FailureKind.REJECTED),
        ("Triton Error [CUDA]: operation not permitted when stream is capturing", FailureKind.REJECTED),
        (
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.",
            FailureKind.REJECTED,
        ),
        ("Triton Error [CUDA]: operation failed due to a previous error during capture", FailureKind.FOREIGN),
        ("Triton Error [CUDA]: an illegal memory access was encountered", FailureKind.DEVICE),
        ("Triton Error [CUDA]: out of memory", FailureKind.OOM),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", None),
        ("Called CUDAGraph::replay without a preceding successful capture.", None),
    ],
)
def test_texts(text: str, kind: FailureKind | None) -> None:
    assert failure_kind(RuntimeError(text)) is kind


def test_out_of_memory() -> None:
    assert failure_kind(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 GiB")) is FailureKind.OOM


def test_the_routine_s_own_errors_are_none() -> None:
    for error in (ValueError("CUBLAS_STATUS_NOT_INITIALIZED"), KeyError("x"), ConfigError("x"), KeyboardInterrupt()):
        assert failure_kind(error) is None


def test_somebody_else_s_open_capture_is_foreign() -> None:
    error = CaptureActive("stream", "0x1", "CAPTURING", "open_capture", "the stream is not capturing")
    assert failure_kind(error) is FailureKind.FOREIGN


def test_an_own_refusal_in_the_chain_explains_the_invalidated_capture() -> None:
    late = accelerator_error(901)
    late.__context__ = ValueError("wrapped")
    late.__context__.__cause__ = accelerator_error(900)
    assert failure_kind(late) is FailureKind.REJECTED


def test_it_explains_a_library_that_the_broken_capture_stopped_too() -> None:
    late = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`")
    late.__context__ = accelerator_error(900)
    assert failure_kind(late) is FailureKind.REJECTED


def test_a_lost_device_in_the_chain_explains_it_too() -> None:
    late = accelerator_error(901)
    late.__cause__ = accelerator_error(700)
    assert failure_kind(late) is FailureKind.DEVICE


def test_a_chain_that_turns_in_a_circle_ends() -> None:
    first, second = accelerator_error(901), accelerator_error(901)
    first.__context__ = second
    second.__context__ = first
    assert failure_kind(first) is FailureKind.FOREIGN
