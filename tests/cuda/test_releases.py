"""What a graph retained is let go of by the driver, later than the graph, and `close` waits for that."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

import cgstate

pytestmark = pytest.mark.cuda

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; run with `make test-cuda`", allow_module_level=True)

from cgstate.backends.cuda import CudaBackend  # noqa: E402 - these import torch's CUDA
from cgstate.backends.cuda.quiet import quiet  # noqa: E402

ROUNDS = 40
OTHER_DEVICE = 99
LIBC = ctypes.CDLL(None)
CUDA = ctypes.CDLL("libcuda.so.1")


class Retained:
    """What a library puts into the graph that the current stream is recorded into, as NCCL does."""

    def __init__(self) -> None:
        self._semaphore = ctypes.create_string_buffer(64)
        LIBC.sem_init(self._semaphore, 0, 0)

    def put(self) -> None:
        kept, status, number, graph, nodes, count = (ctypes.c_void_p() for _ in range(6))
        address, post = ctypes.addressof(self._semaphore), ctypes.cast(LIBC.sem_post, ctypes.c_void_p)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        told = [ctypes.byref(each) for each in (status, number, graph, nodes, count)]
        assert CUDA.cuStreamGetCaptureInfo_v2(stream, *told) == 0
        assert CUDA.cuUserObjectCreate(ctypes.byref(kept), ctypes.c_void_p(address), post, 1, 1) == 0
        assert CUDA.cuGraphRetainUserObject(graph, kept, 1, 1) == 0

    @property
    def released(self) -> bool:
        value = ctypes.c_int()
        LIBC.sem_getvalue(self._semaphore, ctypes.byref(value))
        return bool(value.value)


@contextmanager
def another_capture() -> Iterator[None]:
    """As while a capture of ours is open on another device."""
    assert quiet.open(OTHER_DEVICE)
    try:
        yield
    finally:
        quiet.close(OTHER_DEVICE)


def work(kept: Retained, x: Any, cycles: int) -> Any:
    if torch.cuda.is_current_stream_capturing():
        kept.put()
    torch.cuda._sleep(cycles)
    return x + 1


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "beside other work"])
@pytest.mark.parametrize("evicted", [False, True], ids=["bound", "evicted"])
def test_close_returns_once_the_driver_has_let_go(evicted: bool, busy: bool) -> None:
    others, x = torch.cuda.Stream(), torch.zeros(16, device="cuda")
    every: list[Retained] = []  # their memory must outlive the driver's call, also where the test fails
    for number in range(ROUNDS):
        held = [Retained() for _ in range(4)]
        every += held
        manager = cgstate.GraphManager(CudaBackend())
        entries = [manager.entry("low", position) for position in range(len(held))]
        with manager.transaction() as tx:
            for position, (entry, kept) in enumerate(zip(entries, held, strict=True)):
                body = partial(work, kept, x, 1000 + 100_000 * ((position + number) % 3))
                tx.capture(entry, lambda warmup, body=body: body)  # type: ignore[misc]  # mypy cannot infer a defaulted lambda
        if busy:
            with torch.cuda.stream(others):
                torch.cuda._sleep(10_000_000)
        for entry in entries:
            entry.replay()
        if evicted:
            manager.evict("low")
        manager.close()
        assert all(kept.released for kept in held)


def test_a_mark_waits_for_an_open_capture_of_ours_rather_than_break_it() -> None:
    backend = CudaBackend()
    with another_capture():
        mark = backend.mark_releases()
        assert not mark.wait(0.01)
    assert mark.wait(5)
    assert mark.wait(0)
