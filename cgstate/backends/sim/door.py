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
from cgstate.backends.sim.errors import SimAcceleratorError


class Door:
    """A context manager around every call that a lost context refuses (fact F7); `even_if_lost` is for the others.

    Attributes:
        error: The error of a lost context; None while it is usable.
        even_if_lost: The same door for the calls that a lost context still answers.
    """

    def __init__(self, take_back: Callable[[Block], None]) -> None:
        self.error: SimAcceleratorError | None = None
        self.even_if_lost = _SideDoor(self)
        self._lock = RLock()
        self._take_back = take_back
        self._returned: deque[Block] = deque()
        self._acts: deque[Callable[[], None]] = deque()

    def give_back(self, block: Block) -> None:
        """Note that nobody holds ``block`` any more. Safe in a destructor."""
        self._returned.append(block)

    def when_next_entered(self, act: Callable[[], None]) -> None:
        """Note that ``act`` is to be done. Safe in a destructor."""
        self._acts.append(act)

    def lose(self, error_code: int) -> None:
        """Refuse everything from now on; the first reason stays."""
        if self.error is None:
            self.error = SimAcceleratorError(error_code)

    def raise_if_lost(self) -> None:
        """Raise the sticky error of a lost context."""
        if self.error is not None:
            raise SimAcceleratorError(self.error.error_code)

    def enter(self) -> None:
        """Take the lock and carry out what was noted."""
        self._lock.acquire()
        try:
            while self._returned:
                self._take_back(self._returned.popleft())
            while self._acts:
                self._acts.popleft()()
        except BaseException:
            self._lock.release()
            raise

    def leave(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> None:
        self.enter()
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
