"""When the driver has let go of what destroyed graphs retained: on a thread of its own, and no call of CUDA's waits for it.

What a library has put into a graph, as NCCL does, is released some time after the graph was destroyed and its last launch has
ended, also where the host has waited for the device. CUDA promises no order; what is seen on an H200 is that of the launches, so
that a graph of nothing, launched and destroyed last, tells of all before it (`tests/cuda/test_releases.py`). A mark of ours in each
graph would tell more, and cost each of its replays something.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache, partial
from typing import Any

from cgstate.backends.cuda.driver import driver
from cgstate.backends.cuda.quiet import quiet

_SIZE_OF_SEMAPHORE = 64  # more than any libc of Linux has
_SECONDS_BETWEEN_LOOKS = 1e-4


class CudaReleaseMark:
    """As `base.ReleaseMark`. The driver posts a semaphore, so that none of its threads ever asks for Python's lock.

    Its memory is not Python's: the driver may come back to it at any time, also while the process ends.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        libc = _libc()
        self._semaphore = libc.malloc(_SIZE_OF_SEMAPHORE)
        libc.sem_init(self._semaphore, 0, 0)
        post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
        quiet.when_quiet(partial(driver().mark_releases, index, _stream(index), post, self._semaphore))

    def wait(self, timeout: float | None) -> bool:
        """As `base.ReleaseMark.wait`.

        Raises:
            DriverError: the context is lost, and nothing is ever released.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._passed():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            driver().raise_if_lost(self._index, _stream(self._index))
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return True

    def _passed(self) -> bool:
        """Asks without taking: an interrupt may come before the answer is kept."""
        posted = ctypes.c_int(1)
        if self._semaphore:
            _libc().sem_getvalue(self._semaphore, ctypes.byref(posted))
            if posted.value:
                semaphore, self._semaphore = self._semaphore, 0
                _libc().free(semaphore)
        return bool(posted.value)


@cache
def _stream(index: int) -> int:
    return driver().create_stream(index)


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = library.sem_post.argtypes = [ctypes.c_void_p]
    library.sem_getvalue.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    return library
