"""The libraries' workspaces: where they are made, and when all of them may be freed.

cuBLAS keeps one for each pair of its handle and a stream, and torch gives every host thread a handle of its own. A graph bakes
in the address of the one of the thread and stream that captured it. It is made wherever memory comes from when that pair first
needs it. So it is made here, in the capturing thread, on the capture stream, inside the pool: then it lives and dies with the
pool (facts W1-W5).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import torch
from torch.nn.functional import linear

from cgstate.backends.cuda.pools import AnyPool, CudaPool, allocated_on, workspaces_of
from cgstate.backends.cuda.quiet import quiet
from cgstate.backends.cuda.streams import CudaStream
from cgstate.errors import CaptureActive

_SIDE = 16
_DTYPES = (torch.float32, torch.bfloat16)


def prime(pool: AnyPool, stream: CudaStream) -> None:
    """As `base.Backend.prime_workspaces`. To be called in the thread that captures; costs under a millisecond.

    In the host engine's pool of which only the id is known, they are made outside.

    Raises:
        CaptureActive: a capture of ours is open on the device.
    """
    index = stream.index
    if quiet.is_open(index):
        raise CaptureActive("pool", repr(pool), "RECORDING", "prime", "no capture of ours is open on the device")
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(index))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.cuda.stream(stream.torch_stream))
        if pool.mem_pool is not None:
            stack.enter_context(torch.cuda.use_mem_pool(pool.mem_pool, index))
        device = torch.device("cuda", index)
        known = workspaces_of.setdefault(pool.id, {}) if isinstance(pool, CudaPool) else None
        for library, use in _LIBRARIES.items():
            workspace = threading.get_ident(), stream.handle, library
            if known is not None and known.get(workspace):  # it is there, unless somebody else has cleared it since
                use(device, _DTYPES[:1])
                continue
            if known is None:
                use(device, _DTYPES)
                continue
            before = allocated_on(pool.id, index, stream.handle)  # lists every block there is, which takes its time
            use(device, _DTYPES)
            # A library that was told to keep none counts as having it outside: the safe side.
            known[workspace] = max(0, allocated_on(pool.id, index, stream.handle) - before)


def clear(index: int) -> bool:
    """As `base.Backend.clear_workspaces`; those of every device go.

    False, and nothing done, where this torch has no such call, or while a pool of ours was primed on a stream whose workspace had
    been made somewhere else before: its graphs would write into memory that is somebody else's by then (fact W3).
    """
    call = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if call is None or not all(born_inside for known in list(workspaces_of.values()) for born_inside in list(known.values())):
        return False
    with torch.cuda.device(index):
        call()
    workspaces_of.clear()
    return True


def _use_cublas(device: torch.device, dtypes: Iterable[torch.dtype]) -> None:
    for dtype in dtypes:
        square = torch.zeros(_SIDE, _SIDE, device=device, dtype=dtype)
        torch.mm(square, square)


def _use_cublaslt(device: torch.device, dtypes: Iterable[torch.dtype]) -> None:
    for dtype in dtypes:
        square = torch.zeros(_SIDE, _SIDE, device=device, dtype=dtype)
        linear(square, square, square[0])  # with a bias, which is what goes this way


_LIBRARIES: dict[str, Callable[[torch.device, Iterable[torch.dtype]], None]] = {"cublas": _use_cublas, "cublaslt": _use_cublaslt}
if os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "1":
    del _LIBRARIES["cublaslt"]  # it has none of its own then
