"""A capture that another thread has broken is nobody's own fault, whichever library is the first to tell."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

import cgstate
from cgstate.lifecycle.states import FailureKind

pytestmark = pytest.mark.cuda

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; run with `make test-cuda`", allow_module_level=True)

from cgstate.backends.cuda import CudaBackend  # noqa: E402 - this imports torch's CUDA


def _synchronise() -> None:
    torch.cuda.synchronize()


def _first_use_of_cublas() -> None:
    """Makes a handle and a workspace, for which memory is asked from the driver."""
    square = torch.empty(16, 16, device="cuda")
    torch.mm(square, square)


@pytest.mark.parametrize("breaking", [_synchronise, _first_use_of_cublas])
def test_a_product_in_a_capture_that_another_thread_broke_is_foreign_and_may_be_tried_again(breaking: Callable[[], None]) -> None:
    left, right = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    product = torch.empty(64, 64, device="cuda")  # made before: nothing but cuBLAS meets the broken capture

    def act() -> None:
        with suppress(RuntimeError):  # it is refused what the capture forbids, and has broken the capture by asking
            breaking()

    def broken() -> object:
        other = threading.Thread(target=act)
        other.start()
        other.join()
        return torch.mm(left, right, out=product)

    def whole() -> object:
        return torch.mm(left, right, out=product)

    with cgstate.GraphManager(CudaBackend(), capture_error_mode="global", check=True) as manager:
        entry = manager.entry("product", 0)
        with pytest.raises(cgstate.CaptureFailed) as failure, manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: whole if warmup else broken)
        assert failure.value.kind is FailureKind.FOREIGN, repr(failure.value.__cause__)
        assert "CUBLAS_STATUS_EXECUTION_FAILED" in str(failure.value.__cause__), repr(failure.value.__cause__)
        with manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: whole)
        product.zero_()
        entry.replay()
        torch.cuda.synchronize()
        assert torch.equal(product, torch.mm(left, right))
