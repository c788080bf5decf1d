"""The few calls of the CUDA driver that torch does not offer. Called by streams and capture; imports nothing of this room.

Every call checks its result, so nothing here fails silently. Handles are plain integers, as torch reports them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from typing import Any

import torch

from cgstate.errors import ConfigError

_NON_BLOCKING = 1
_THREAD_LOCAL = 1
_NO_DESTRUCTOR_SYNC = 1
_MOVE = 1
_NOT_READY = 600
_INVALID_CONTEXT = 201


class CaptureStatus(IntEnum):
    """What the driver says of a stream."""

    none = 0
    active = 1
    invalidated = 2


class DriverError(RuntimeError):
    """A driver call failed.

    Attributes:
        error_code: The code; numbered as in `torch.AcceleratorError`.
    """

    def __init__(self, call: str, error_code: int) -> None:
        super().__init__(f"{call} failed with CUDA error {error_code}")
        self.error_code = error_code


@contextmanager
def context_of(index: int) -> Iterator[None]:
    """Make the context of device ``index`` current; a fresh thread has none at all, whatever its current device (error 201)."""
    before = torch.cuda.current_device()
    torch.cuda.set_device(index)
    try:
        yield
    finally:
        torch.cuda.set_device(before)


class Driver:
    """``libcuda``, typed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        handle, pointer, number = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint
        self._create = _function(library, "cuStreamCreate", pointer, number)
        self._is_capturing = _function(library, "cuStreamIsCapturing", handle, ctypes.POINTER(ctypes.c_int))
        self._begin = _function(library, "cuStreamBeginCapture_v2", handle, ctypes.c_int)
        self._end = _function(library, "cuStreamEndCapture", handle, pointer)
        self._destroy_graph = _function(library, "cuGraphDestroy", handle)
        self._create_graph = _function(library, "cuGraphCreate", pointer, number)
        self._add_empty_node = _function(library, "cuGraphAddEmptyNode", pointer, handle, handle, ctypes.c_size_t)
        self._create_object = _function(library, "cuUserObjectCreate", pointer, handle, handle, number, number)
        self._retain_object = _function(library, "cuGraphRetainUserObject", handle, handle, number, number)
        self._instantiate = _function(library, "cuGraphInstantiateWithFlags", pointer, handle, ctypes.c_ulonglong)
        self._launch = _function(library, "cuGraphLaunch", handle, handle)
        self._query = _function(library, "cuStreamQuery", handle)
        self._destroy_executable = _function(library, "cuGraphExecDestroy", handle)

    def create_stream(self, index: int) -> int:
        """A new non-blocking stream of device ``index``. Never to be destroyed: tensors and cached blocks may still name it."""
        stream = ctypes.c_void_p()
        with context_of(index):
            self._create(ctypes.byref(stream), _NON_BLOCKING)
        return stream.value or 0

    def capture_status(self, handle: int, index: int) -> CaptureStatus:
        """Whether a stream is being captured: the only question that does not break the capture.

        Raises:
            DriverError: the context is lost.
        """
        if not handle:
            return CaptureStatus.none  # the legacy default stream cannot be captured, and may refuse to answer
        status = ctypes.c_int()
        try:
            self._is_capturing(handle, ctypes.byref(status))
        except DriverError as error:
            if error.error_code != _INVALID_CONTEXT:
                raise
            with context_of(index):
                self._is_capturing(handle, ctypes.byref(status))
        return CaptureStatus(status.value)

    def begin_capture(self, handle: int) -> None:
        """Begin a capture that torch does not know of, in mode ``thread_local``."""
        self._begin(handle, _THREAD_LOCAL)

    def discard_capture(self, handle: int) -> None:
        """End a capture, and throw away what it recorded."""
        graph = ctypes.c_void_p()
        self._end(handle, ctypes.byref(graph))
        if graph.value:
            self._destroy_graph(graph)

    def mark_releases(self, index: int, stream: int, release: ctypes.c_void_p, argument: int) -> None:
        """Launch a graph of nothing on a stream of device ``index``, and destroy it: some time later the driver calls ``release``.

        A C function, called with ``argument`` on a thread of the driver's.
        """
        graph, node, kept, executable = (ctypes.c_void_p() for _ in range(4))
        with context_of(index):
            self._create_graph(ctypes.byref(graph), 0)
            try:
                self._add_empty_node(ctypes.byref(node), graph, None, 0)
                self._create_object(ctypes.byref(kept), argument, release, 1, _NO_DESTRUCTOR_SYNC)
                self._retain_object(graph, kept, 1, _MOVE)
                self._instantiate(ctypes.byref(executable), graph, 0)
                try:
                    self._launch(executable, stream)
                finally:
                    self._destroy_executable(executable)
            finally:
                self._destroy_graph(graph)

    def raise_if_lost(self, index: int, stream: int) -> None:
        """Ask a stream of device ``index`` how far it is.

        Raises:
            DriverError: the context is lost.
        """
        with context_of(index):
            try:
                self._query(stream)
            except DriverError as error:
                if error.error_code != _NOT_READY:
                    raise


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Callable[..., None]:
    raw = library[name]
    raw.argtypes = arguments
    raw.restype = ctypes.c_int

    def call(*values: Any) -> None:
        code = raw(*values)
        if code:
            raise DriverError(name, code)

    return call


@cache
def driver() -> Driver:
    """The driver of this process.

    Raises:
        ConfigError: there is none.
    """
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError) as error:
        raise ConfigError(f"no CUDA driver: {error}") from error
