"""Who calls: one `Host` is one thread of the host program, with what the device remembers about it.

Called by every module of the room. A host is a thread and also a greenlet (each has a context of its own); a context that was
copied into another thread does not carry its host along.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cgstate.backends.sim.streams import SimStream


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


def current_host() -> Host:
    """The caller, made on its first call."""
    host = _HOST.get()
    thread = get_ident()
    if host is None or host.thread != thread:
        host = Host(thread)
        _HOST.set(host)
    return host


def handle_getter(device: int) -> Callable[[], int]:
    """A function that returns the handle of the caller's current stream on the device of that index, in 0.1 us."""
    get = _HOST.get

    def current_handle() -> int:
        host = get()
        if host is None or host.thread != get_ident():
            return 0
        stream = host.streams.get(device)
        return 0 if stream is None else stream.queue.handle

    return current_handle
