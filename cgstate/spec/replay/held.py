"""A reclaimer that waits to be told: the runtime reclaims after each operation, the model step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cgstate.backends.base import Graph
from cgstate.runtime.books import Books
from cgstate.runtime.entry import Entry
from cgstate.runtime.pool import Pool
from cgstate.runtime.reclaimer import Reclaimer, Retired


class HeldReclaimer(Reclaimer):
    """Does nothing by itself. What it is told to do it does with the runtime's own code, so every guard is asked as always.

    Attributes:
        on_finish: Called where the runtime waits for the reclaimer.
    """

    __slots__ = ("on_finish",)

    def __init__(self, books: Books, on_finish: Callable[[], None]) -> None:
        super().__init__(books)
        self.on_finish = on_finish

    def retire(self, entry: Entry, pool: Pool, graph: Graph | None, keep: object) -> None:
        """As always, and marked at once: nobody settles."""
        super().retire(entry, pool, graph, keep)
        self._mark()

    def settle(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing, but for who listens."""
        self.on_finish()

    def drop_pools(self) -> None:
        """Nothing."""

    def flush(self, *, mark: bool = False) -> int:
        """Nothing."""
        return 0

    def reclaim(self, one: Retired) -> bool:
        """Destroy one retired recording; False if the runtime would not."""
        with self.books.gate.lock:
            others = deque(each for each in self.queue if each is not one)
            self.queue = deque([one])
            batch = self._take()
            self.queue.extend(others)
        return self._destroy(batch)

    def drop(self, pool: Pool) -> None:
        """Give one pool back."""
        self._drop([pool])
