"""Which devices have a capture of ours open, and what has to wait until none has.

Destroying a graph breaks an open capture, on whatever device (fact T3). The runtime's gate keeps destruction out of captures;
this is for what comes through no gate: the garbage collector, and a handle's user who forgot.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("cgstate")

Act = Callable[[], None]


class Quiet:
    """The open captures of a process."""

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may run a destructor that comes here in the middle of any of these methods.
        self._lock = threading.RLock()
        self._open: set[int] = set()
        self._waiting: deque[Act] = deque()

    def open(self, index: int) -> bool:
        """Note a capture on device ``index``; False, and nothing noted, if one is open there already."""
        with self._lock:
            if index in self._open:
                return False
            self._open.add(index)
            return True

    def close(self, index: int) -> None:
        """The capture on device ``index`` is over; do what waited for it. Idempotent."""
        with self._lock:
            self._open.discard(index)
            while self._waiting and not self._open:
                act = self._waiting.popleft()
                try:
                    act()
                except Exception:
                    log.exception("giving back what a capture had delayed failed; going on")

    def is_open(self, index: int) -> bool:
        """Whether a capture of ours is open on device ``index``."""
        return index in self._open

    def when_quiet(self, act: Act) -> None:
        """Do ``act`` now, or as soon as no capture of ours is open. Captures do not begin meanwhile."""
        with self._lock:
            if self._open:
                self._waiting.append(act)
            else:
                act()


quiet = Quiet()
