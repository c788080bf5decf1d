"""A memory pool in use: its table's steps, its turn, and the order of device work in it.

Graphs of one pool share memory, so two replays at once corrupt each other (fact T1). The *turn* serialises them on the host; the
pool remembers the stream of its last work, and the first work on another stream waits for it. Nothing is recorded while everything
comes on one stream: the fence costs one integer comparison.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from cgstate.backends.base import Backend, Event, MemoryPool, Stream
from cgstate.errors import CaptureActive
from cgstate.lifecycle.states import PoolKind
from cgstate.lifecycle.steps import PoolSteps

if TYPE_CHECKING:
    from cgstate.runtime.domain import Domain

NO_STREAM = -1
"""No raw stream handle: makes the next replay look at the pool's fences."""


class Pool(PoolSteps):
    """One private pool of one domain.

    Attributes:
        handle: The backend's pool.
        turn: Thread whose call has the pool now; 0 when nobody.
        last_handle: Raw handle of the stream of the last work in the pool.
        replays: Number of replays so far; a leased output expires when it moves.
    """

    __slots__ = ("_label", "backend", "handle", "last_handle", "last_stream", "replays", "turn", "waits")

    domain: Domain

    def __init__(self, label: str, kind: PoolKind, handle: MemoryPool, domain: Domain, backend: Backend) -> None:
        self.reset_variables()
        self.kind = kind
        self.handle = handle
        self.domain = domain
        self.backend = backend
        self.turn = 0
        self.last_handle = NO_STREAM
        self.last_stream: Stream | None = None
        self.waits: list[Event] = []
        self.replays = 0
        self._label = label

    @property
    def name(self) -> str:
        """E.g. ``shared/2``: the domain and its generation."""
        return self._label

    @property
    def id(self) -> Hashable:
        """The allocator's id."""
        return self.handle.id

    def bytes(self) -> int:
        """Reserved bytes of the pool's own segments."""
        return sum(self.handle.reserved_bytes().values())

    def follow(self, handle: int) -> None:
        """Order the caller's current stream, whose raw handle is ``handle``, after all work in the pool so far.

        Raises:
            CaptureActive: the pool's last stream is being captured, so no mark can be set on it.
        """
        last = self.last_stream
        if last is not None and last.handle != handle and last.capturing():
            raise CaptureActive("pool", self.name, self.state, "replay", "the stream of the last replay is not capturing")
        stream = self.backend.current_stream()
        if last is not None and last.handle != handle:
            stream.wait(last.record())
        for event in self.waits:
            stream.wait(event)
        self.waits.clear()
        self.last_stream = stream
        self.last_handle = handle

    def disturb(self, event: Event) -> None:
        """Make the next replay wait for ``event``, on whichever stream it comes."""
        self.waits.append(event)
        self.last_handle = NO_STREAM

    def fence(self) -> tuple[Event, ...] | None:
        """Marks behind all work in the pool so far; None while the last stream is being captured and cannot be marked."""
        last = self.last_stream
        if last is None:
            return tuple(self.waits)
        if last.capturing():
            return None
        return (last.record(), *self.waits)
