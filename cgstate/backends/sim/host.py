"""Who calls: one `Host` is one thread of the host program, with what the device remembers about it.

Called by every module of the room. A thread is one host in whichever context it runs (the tasks of an event loop share it), and a
context that was copied into another thread does not carry its host along. A greenlet beside a thread's main one counts as a thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from threading import get_ident, local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cgstate.backends.sim.streams import SimStream, StreamQueue


class Host:
    """A thread, as the device sees it.

    Attributes:
        thread: The operating system's thread.
        grad_enabled: Whether autograd looks at this thread's calls; on at first, as in torch.
        streams: The current stream by device index; absent where it is the default one.
    """

    __slots__ = ("__weakref__", "grad_enabled", "streams", "thread")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.grad_enabled = True
        self.streams: dict[int, SimStream] = {}


_HOST: ContextVar[Host | None] = ContextVar("cgstate_sim_host", default=None)


class _Thread(local):
    host: Host | None = None


_THREAD = _Thread()


def current_host() -> Host:
    """The caller, made on its first call."""
    host = _HOST.get()
    thread = get_ident()
    if host is None or host.thread != thread:
        host = _host_of(thread)
        _HOST.set(host)
    return host


def _host_of(thread: int) -> Host:
    greenlets = sys.modules.get("greenlet")
    if greenlets is not None and greenlets.getcurrent().parent is not None:
        return Host(thread)
    if _THREAD.host is None:
        _THREAD.host = Host(thread)
    return _THREAD.host


def queue_getter(device: int, default: StreamQueue) -> Callable[[], StreamQueue]:
    """A function that returns the device's side of the caller's current stream on the device of that index.

    It raises `SimAcceleratorError` 400 once that stream's handle was destroyed.
    """
    get = _HOST.get

    def current_queue() -> StreamQueue:
        host = get()
        if host is None or host.thread != get_ident():
            host = current_host()
        stream = host.streams.get(device)
        if stream is None:
            return default
        queue = stream.queue
        if queue.closed:
            queue.check_open()
        return queue

    return current_queue


def handle_getter(device: int) -> Callable[[], int]:
    """A function that returns the handle of the caller's current stream on the device of that index, in 0.1 us."""
    get = _HOST.get

    def current_handle() -> int:
        host = get()
        if host is None or host.thread != get_ident():
            host = current_host()
        stream = host.streams.get(device)
        return 0 if stream is None else stream.queue.handle

    return current_handle
