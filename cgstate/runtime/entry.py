"""A graph entry: the record of one (component, descriptor). Its replay is in `hotpath`; leases and turns are in `leasing`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, cast

from cgstate.backends.base import Graph
from cgstate.lifecycle.states import PoolKind, PoolState
from cgstate.lifecycle.steps import EntrySteps
from cgstate.runtime import hotpath
from cgstate.runtime.lease import Lease
from cgstate.runtime.pinned import NOTHING, Baked
from cgstate.runtime.segments import Segments
from cgstate.runtime.statics import Statics
from cgstate.runtime.turn import NO_STREAM, Turn

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.capture import Recording
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.gate import CaptureGate
    from cgstate.runtime.pool import Pool
    from cgstate.runtime.record import ComponentRecord
    from cgstate.runtime.transaction import Transaction


class _Hot(EntrySteps):
    """What a replay touches, next to each other in memory: after a large launch most of the cache is cold."""

    __slots__ = ("acquire_lock", "current_handle", "fast", "hits", "index", "launch", "release_lock", "seal", "turn")


class Entry(_Hot):
    """One graph of one component.

    Get it from `GraphManager.entry`; capture it in a transaction; replay it with `replay`, or inside a `lease` when its output is
    read. Everything but `state`, `descriptor`, `name`, `hits` and these methods belongs to the runtime.

    Attributes:
        autocast: What autocast made of the work while it was recorded, as `Backend.autocast`.
        counted: Its hits when `last_used` was set: `replay` touches neither.
        fast: Whether its replays may take the short way: nobody observes, checks or schedules them, and the graph is one launch
            that asks for nothing else.
        last_used: When it was used, by the clock of the books.
        seal: Raw handle of the stream on which replays ask nothing of other objects, as nothing there is in their way;
            `cgstate.runtime.turn.NO_STREAM` where they have to ask.
        told: Who is told of its ordinary leases in one word.
    """

    __slots__ = (
        "__weakref__",
        "_name",
        "autocast",
        "baked",
        "buffers",
        "counted",
        "descriptor",
        "graph",
        "last_used",
        "output",
        "startup",
        "told",
        "uses_random",
    )

    gate: CaptureGate
    pool: Pool
    component: ComponentRecord
    transaction: Transaction
    domain: Domain
    manager: Books

    def __init__(self, component: ComponentRecord, descriptor: Hashable, *, startup: bool) -> None:
        self.reset_variables()
        books = component.manager
        self.component = component
        self.manager = books
        self.gate = books.gate
        self.descriptor = descriptor
        self._name = f"{component.component_id}[{descriptor!r}]"
        self.startup = startup
        books.watch(self)
        self.concurrent = component.concurrent_leases
        self.fast = books.fast
        self.told = books.told
        self.uses_random = False
        self.autocast: Hashable = None
        self.seal = NO_STREAM
        self.turn = NOBODY
        self.pool = UNPOOLED
        self.hits = 0
        self.last_used = 0
        self.counted = 0
        self.baked = NOTHING
        self.buffers: object = None
        self.graph: Graph | None = None
        self.output: object = None
        self.launch: Callable[[], None] = _not_bound
        self.acquire_lock = books.gate.lock.acquire
        self.release_lock = books.gate.lock.release
        self.current_handle: Callable[[int], int] = books.backend.current_handle
        self.index = books.backend.index

    @property
    def name(self) -> str:
        """E.g. ``decoder[64]``."""
        return self._name

    def __repr__(self) -> str:
        return f"<Entry {self.name} {self.state.value}>"

    @property
    def statics(self) -> Statics:
        """Its static inputs, while it is recorded or bound."""
        return Statics(self.buffers, tuple(pin.source for pin in self.baked.pins))

    replay = hotpath.replay

    def unseal(self) -> None:
        """A step of the entry begins or ends a capture, which concerns the whole device."""
        self.gate.unseal()

    def load(self, recording: Recording, buffers: object, baked: Baked) -> None:
        """Take a recording at bind; the lock is held."""
        self.graph = graph = recording.graph
        self.launch = graph.replay
        self.output = recording.output
        self.autocast = recording.autocast
        self.buffers = buffers
        self.baked = baked
        self.uses_random = recording.uses_random
        self.turn = self.pool.turn
        nests = isinstance(graph, Segments) or self.component.inside is not None
        if isinstance(graph, Segments):
            graph.entry = self
        self.fast = self.manager.fast and not self.uses_random and not baked.pins and not nests

    def unload(self) -> None:
        """Let go of the recording, which the reclaimer has now; the lock is held."""
        self.turn.unseal()
        self.graph = self.output = self.buffers = None
        self.baked = NOTHING
        self.launch = _not_bound

    def tick(self) -> None:
        """It was used now; the lock is held."""
        books = self.manager
        books.clock = self.last_used = books.clock + 1
        self.counted = self.hits

    def lease(self) -> Lease:
        """The right to replay this entry and to read its output, for a ``with`` block.

        Raises (at the ``with``):
            IllegalTransition: as `replay`.
        """
        return Lease(self)


class _Unpooled:
    """Stands for the pool of an entry that never had one: it may be captured, once a pool is minted."""

    state = PoolState.MINTED
    kind = PoolKind.shared


UNPOOLED = cast("Pool", _Unpooled())
NOBODY = Turn("no pool yet")


def _not_bound() -> None:
    raise RuntimeError("an entry that is not bound was launched")  # unreachable: acquire's guards come first
