"""A turn: the order of all work that shares memory, on the host and between streams.

Graphs of one pool share memory, so two replays at once corrupt each other (fact T1); graphs that draw random numbers share the
device's seed and offset in the same way, even from different pools. A turn serialises them on the host and remembers the stream of
the last work, so that the first work on another stream waits for it. Nothing is recorded while everything comes on one stream: the
fence costs one integer comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cgstate.backends.base import Backend, Event, Stream
from cgstate.errors import CaptureActive

if TYPE_CHECKING:
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import ComponentRecord

NO_STREAM = -1
"""No raw stream handle: makes the next work look at the fences."""


class Turn:
    """Guarded by the device's lock. Only its methods, and the hot path, assign what seals rely on: owner, stream and token.

    Attributes:
        owner: Thread whose call has the turn now; 0 when nobody.
        exclusive: Whether that call keeps captures by other threads out.
        breaking: Component whose graph waits in an eager break of that call now; None otherwise. Only the owner sets it.
        outer: The breaks that calls made inside them are nested in, innermost last: each has taken the turn once more.
        latest: Token of the last replay, for who holds its output; None once something else was replayed. The output has expired
            for everybody whose token it is not.
        last_handle: Raw handle of the stream of the last work; `NO_STREAM` when there is something to wait for.
        last_stream: That stream; keeps the handle alive.
        sealed: Entries of the pool that are sealed: nobody has the turn, all work came on one stream, and no output is handed out.
        waits: Marks that the next work waits for, on whichever stream it comes, with the streams that they are in.
        followed: Raw handle of the stream that the last `follow` waited for; for the audit.
    """

    __slots__ = (
        "__weakref__",
        "breaking",
        "exclusive",
        "followed",
        "last_handle",
        "last_stream",
        "latest",
        "name",
        "outer",
        "owner",
        "sealed",
        "waits",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner = 0
        self.exclusive = False
        self.breaking: ComponentRecord | None = None
        self.outer: list[ComponentRecord] = []
        self.latest: object = None
        self.last_handle = NO_STREAM
        self.last_stream: Stream | None = None
        self.waits: list[tuple[Stream, Event]] = []
        self.followed = NO_STREAM
        self.sealed: list[Entry] = []

    def seal(self, entry: Entry) -> None:
        """Let replays of ``entry`` on the stream of the last work ask nothing of others until `unseal`."""
        if entry.seal == NO_STREAM:
            self.sealed.append(entry)  # first: an interrupt must not leave a seal that nobody can break
            entry.seal = self.last_handle

    def unseal(self) -> None:
        """Let the next replay of each entry of the pool ask again."""
        for entry in self.sealed:
            entry.seal = NO_STREAM
        self.sealed.clear()

    def lend(self, token: object) -> None:
        """Somebody holds the output of the last replay: it has to expire with the next one."""
        self.unseal()
        self.latest = token

    def take(self, thread: int, also: Turn | None, *, exclusive: bool) -> None:
        """Give it, and ``also`` another one, to ``thread``, which nests a call into its own break if it has it already.

        The lock is held. From the first assignment on nothing is called, so that no interrupt can come in between.
        """
        self.unseal()
        if self.breaking is not None:
            self.outer = [*self.outer, self.breaking]
            self.breaking = None
        if also is not None:
            if also.breaking is not None:
                also.outer = [*also.outer, also.breaking]
                also.breaking = None
            also.owner = thread
        self.owner = thread
        self.exclusive = exclusive or (self.exclusive if self.outer else False)  # a nested call leaves the outer one's claim

    def give(self, also: Turn | None, step: Callable[[], None] | None) -> None:
        """Take it back, and ``also`` another one; a nested call gives it to the break that it was made in. The lock is held.

        ``step`` is taken in the same moment: a function that does nothing, or all it does, when an interrupt comes. Behind it
        nothing is called.
        """
        if step is not None:
            step()
        if self.outer:
            self.breaking = self.outer[-1]
            self.outer = self.outer[:-1]
        else:
            self.breaking = None
            self.owner = 0
        if also is not None:
            if also.outer:
                also.breaking = also.outer[-1]
                also.outer = also.outer[:-1]
            else:
                also.breaking = None
                also.owner = 0

    def answers(self, thread: int, component: ComponentRecord) -> bool:
        """Whether the call that has it is one of ``component`` in ``thread``, and not one that waits in a break for another."""
        return self.owner == thread and (self.breaking is None or self.breaking is component)

    def lets_in(self, thread: int, handle: int, inside: ComponentRecord | None) -> bool:
        """Whether its owner may take it once more: in a break of the component ``inside``, from the same thread and stream."""
        same = self.owner == thread and self.last_stream is not None and self.last_stream.handle == handle
        return same and self.breaking is not None and self.breaking is inside

    def follow(self, handle: int, backend: Backend) -> None:
        """Order the caller's current stream, whose raw handle is ``handle``, after all work so far.

        Raises:
            CaptureActive: the last stream is being captured, so no mark can be set on it.
        """
        self.unseal()  # before anything is marked: a signal handler may replay what is sealed
        last = self.last_stream
        other = last is not None and last.handle != handle
        if other and last is not None and last.capturing():
            raise CaptureActive("pool", self.name, "LIVE", "replay", "the stream of the last replay is not capturing")
        stream = backend.current_stream()
        if other and last is not None:
            stream.wait(last.record())
            self.followed = last.handle
        for _, event in self.waits:
            stream.wait(event)
        self.last_stream = stream
        self.last_handle = handle
        self.waits.clear()  # last: an interrupt may come in a call, and must not leave less to wait for

    def disturb(self, stream: Stream, event: Event) -> None:
        """Make the next work wait for ``event``, a mark in ``stream``, on whichever stream it comes."""
        self.unseal()
        self.last_handle = NO_STREAM
        if self.waits and self.waits[-1][0] is stream:
            self.waits[-1] = (stream, event)  # a stream passes its marks in order: hundreds of captures on one need one wait
        else:
            self.waits.append((stream, event))

    def fence(self) -> tuple[Event, ...] | None:
        """Marks behind all work so far; None while the last stream is being captured and cannot be marked."""
        self.unseal()  # as in `follow`
        last = self.last_stream
        if last is None:
            return tuple(event for _, event in self.waits)
        if last.capturing():
            return None
        return (last.record(), *(event for _, event in self.waits))
