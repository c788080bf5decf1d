"""What an error of the device means, and whether the device is lost. Called by the backend and by clean-ups.

torch gives most errors a code. Some come as text only: of libraries, of Triton, of torch's own checks; they are known by a
phrase.
"""

from __future__ import annotations

import re

import torch

from cgstate.backends.cuda.quiet import quiet
from cgstate.backends.cuda.streams import CudaStream, current_handle, side_stream, status_of
from cgstate.errors import CaptureActive
from cgstate.lifecycle.states import FailureKind

INVALIDATED = 901

LOST_CODES = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})
"""Codes after which the context cannot be used any more: illegal address or instruction, assertion, launch failure, bad memory."""

_OOM_CODES = frozenset({2})

_REJECTED_CODES = frozenset({401, 801, 900, *range(902, 909)})
"""Illegal state, not supported, and all that a capture forbids to the work in it."""

_PHRASES: tuple[tuple[re.Pattern[str], FailureKind], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"illegal memory access|device-side assert|unspecified launch failure|illegal instruction", FailureKind.DEVICE),
        (r"^Triton Error \[CUDA\]: out of memory|CUBLAS_STATUS_ALLOC_FAILED", FailureKind.OOM),
        # Another capture is open, in another thread: this call was none of it.
        (r"Offset increment outside graph capture|CUDA generator not in capture mode", FailureKind.FOREIGN),
        (r"already recording to mempool_id|previous error during capture", FailureKind.FOREIGN),
        (
            r"not permitted when stream is capturing|during capturing stage|Capture must end on the same stream",
            FailureKind.REJECTED,
        ),
        (r"use_count > 0 INTERNAL ASSERT FAILED", FailureKind.REJECTED),
        # torch asks before CUDA would refuse: a plain copy to the host waits, and no capture may.
        (r"Cannot copy between CPU and CUDA tensors during CUDA graph capture", FailureKind.REJECTED),
        # With its handle and workspace made, cuBLAS only launches kernels: every capture takes those that nobody has broken.
        (r"CUBLAS_STATUS_EXECUTION_FAILED", FailureKind.FOREIGN),
        # A library that cannot make its handle inside a capture (fact F8), or does something there that a capture forbids.
        (
            r"CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_(NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR|NOT_SUPPORTED)",
            FailureKind.REJECTED,
        ),
        (r"CUFFT_(INTERNAL_ERROR|EXEC_FAILED|SETUP_FAILED)", FailureKind.REJECTED),
    )
)

_lost: dict[int, BaseException] = {}
"""The error of each device that was found lost. Losing one is for good, so this is never taken back."""


def failure_kind(error: BaseException) -> FailureKind | None:
    """What ``error`` means; None when it is the routine's own.

    A capture that CUDA invalidated (901) was broken by another thread, unless an error in the chain of causes says that the routine
    itself was refused something. A routine that swallows that error hides it, and its capture counts as FOREIGN.
    """
    kind = _kind_of(error)
    if kind is not FailureKind.FOREIGN:
        return kind
    for cause in _causes(error):
        if _kind_of(cause) in (FailureKind.REJECTED, FailureKind.DEVICE):
            return _kind_of(cause)
    return kind


def means_lost(error: BaseException) -> bool:
    """Whether the device is gone with ``error``."""
    return _kind_of(error) is FailureKind.DEVICE


def lost(index: int) -> BaseException | None:
    """The error of a lost device, or None. Waits for the current stream, except while a capture is open: then it only asks."""
    if index not in _lost:
        try:
            _try_out(index)
        except RuntimeError as error:
            note(index, error)
    return _lost.get(index)


def note(index: int, error: BaseException) -> bool:
    """Remember that device ``index`` is lost, if ``error`` says so; whether it does."""
    if not means_lost(error):
        return False
    _lost.setdefault(index, error)
    return True


def _try_out(index: int) -> None:
    """Do something that fails on a lost device.

    Not `torch.cuda.synchronize`: that would break the capture of any thread, in every mode (fact S2).
    """
    side = side_stream(index)
    if quiet.is_open(index) or status_of(current_handle(index), index):
        status_of(side.handle, index)  # the driver answers any call with the error that the context died of
        return
    CudaStream.current(index).torch_stream.synchronize()
    side.torch_stream.record_event().synchronize()


def _kind_of(error: BaseException) -> FailureKind | None:
    if isinstance(error, torch.OutOfMemoryError):
        return FailureKind.OOM
    if isinstance(error, CaptureActive):
        return FailureKind.FOREIGN  # somebody has a capture open where ours was to be
    if not isinstance(error, RuntimeError):
        return None
    code = getattr(error, "error_code", None)
    if not isinstance(code, int):
        text = str(error)
        return next((kind for pattern, kind in _PHRASES if pattern.search(text)), None)
    if code in LOST_CODES:
        return FailureKind.DEVICE
    if code in _OOM_CODES:
        return FailureKind.OOM
    if code in _REJECTED_CODES:
        return FailureKind.REJECTED
    return FailureKind.FOREIGN if code == INVALIDATED else None


def _causes(error: BaseException) -> list[BaseException]:
    """The errors that ``error`` came from, the nearest first."""
    found: list[BaseException] = []
    at = error.__cause__ or error.__context__
    while at is not None and at is not error and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found
