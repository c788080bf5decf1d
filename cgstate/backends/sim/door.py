"""The door of the device: every call goes in through it, one at a time.

Called by the other modules of the room. Destructors never act on the device. They leave a note here, and whoever comes in next
carries it out first: a destructor may run inside any other call, and on any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock
from types import TracebackType

from cgstate.backends.sim.blocks import Block
from cgstate.backends.sim.errors import NOT_PERMITTED, SimAcceleratorError


class Door:
    """A context manager around every call that a lost context refuses (fact F7); `even_if_lost` is for the others.

    Attributes:
        error: The error of a lost context; None while it is usable.
        even_if_lost: The same door for the calls that a lost context still answers.
        give_back: Note that nobody holds a block any more. Safe in a destructor.
        when_next_entered: Note that an act is to be done. Safe in a destructor.
    """

    def __init__(self, take_back: Callable[[Block], None]) -> None:
        self.error: SimAcceleratorError | None = None
        self.even_if_lost = _SideDoor(self)
        self._lock = RLock()
        self._take_back = take_back
        self._notes: deque[Block | Callable[[], None]] = deque()
        self._barred = False
        self.give_back: Callable[[Block], None] = self._notes.append
        self.when_next_entered: Callable[[Callable[[], None]], None] = self._notes.append

    def lose(self, error_code: int) -> None:
        """Refuse everything from now on; the first reason stays."""
        if self.error is None:
            self.error = SimAcceleratorError(error_code)

    def raise_if_lost(self) -> None:
        """Raise the sticky error of a lost context."""
        if self.error is not None:
            raise SimAcceleratorError(self.error.error_code)

    def call_barred(self, call: Callable[[], None]) -> None:
        """Run ``call``, to which the door stays shut: every call to the device raises 800 there. Called by who is inside."""
        self._barred = True
        try:
            call()
        finally:
            self._barred = False

    def enter(self) -> None:
        """Take the lock and carry out what was noted.

        Raises:
            SimAcceleratorError: 800, the device itself is calling.
        """
        self._lock.acquire()
        if self._notes or self._barred:
            self._attend()

    def _attend(self) -> None:
        try:
            if self._barred:
                raise SimAcceleratorError(NOT_PERMITTED)
            while self._notes:
                note = self._notes.popleft()
                if isinstance(note, Block):
                    self._take_back(note)
                else:
                    note()
        except BaseException:
            self._lock.release()
            raise

    def leave(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()  # as `enter`, which is one call more on the way of every operation
        if self._notes or self._barred:
            self._attend()
        if self.error is not None:
            self.leave()
            self.raise_if_lost()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()


class _SideDoor:
    """The door without the question whether the context is lost."""

    __slots__ = ("_door",)

    def __init__(self, door: Door) -> None:
        self._door = door

    def __enter__(self) -> None:
        self._door.enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._door.leave()
