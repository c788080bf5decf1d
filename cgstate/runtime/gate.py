"""The capture gate: one per device and process, shared by all managers on it.

It holds the device's lock, which guards every lifecycle state; it lets one capture be open at a time; it keeps destruction out of
open captures (I3); and it lets component calls and captures exclude each other, since a call that draws random numbers or waits for
the device would break another thread's capture, or be broken by it (fact S2).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from cgstate.backends.base import MemoryPool, Stream
from cgstate.errors import ConfigError, Reentered
from cgstate.runtime.sync import Sync
from cgstate.runtime.turn import Turn

if TYPE_CHECKING:
    from cgstate.runtime.books import Books


class Spare(NamedTuple):
    """An exclusive capture stream, and the pool that its library workspaces are in."""

    handle: MemoryPool
    stream: Stream


class CaptureGate:
    """The gate of one device. All fields are guarded by `lock`.

    Attributes:
        held: Whether the calling thread has the lock.
        free: No capture is open. Assigned by the entry table's effects only.
        holder: Thread that has the gate; 0 when free.
        destroying: Threads that destroy graphs right now; no capture begins meanwhile.
        calls: Eager calls in progress by thread, and leased replays that wait for a turn in which they keep captures out.
        pending: Thread that waits to capture; calls that are not in progress yet let it go first.
        random: Orders replays of graphs that draw random numbers: they share the device's seed and offset.
        turns: The turns of all pools on the device; whose owner is in a call answered by a graph.
        statics: By storage of static inputs: the turn of the graphs that read it.
        awaited: By thread that waits for a turn: the thread that has it.
        waiting: Threads that wait for `changed`; who changes something notifies only if there are any.
        dropped: Ends of leases whose outputs were dropped without `release`, for `end_dropped`.
        kept: By thread, the first error that an observer raised in the midst of its steps, for `Books.hear`.
        managers: The books of all managers of the device, those of dropped ones included while anything is left of them.
        orphans: What dropped managers left behind: told who reclaims, each answers whether nothing is left of it.
        spares: Homes of workspaces that managers which have ended left, since they could not be cleared, for the next one to use.
        leftovers: Dropped pools of managers that have ended, by id, as long as something is in them: a library workspace that could
            not be cleared yet, or a tensor that somebody holds.
    """

    __slots__ = (
        "__weakref__",
        "awaited",
        "calls",
        "changed",
        "destroying",
        "device",
        "dropped",
        "free",
        "held",
        "holder",
        "kept",
        "leftovers",
        "lock",
        "managers",
        "orphans",
        "pending",
        "random",
        "spares",
        "statics",
        "sync",
        "turns",
        "waiting",
    )

    def __init__(self, device: str, sync: Sync) -> None:
        self.device = device
        self.sync = sync
        self.lock = sync.lock()
        self.held = sync.held(self.lock)
        self.changed = sync.condition(self.lock)
        self.free = True
        self.holder = 0
        self.destroying = 0
        self.pending = 0
        self.random = Turn("random numbers")
        self.calls: dict[int, int] = {}
        self.turns: WeakSet[Turn] = WeakSet()
        self.statics: WeakValueDictionary[Hashable, Turn] = WeakValueDictionary()
        self.awaited: dict[int, int] = {}
        self.waiting = 0
        self.managers: WeakSet[Books] = WeakSet()
        self.dropped: deque[Callable[[], None]] = deque()
        self.kept: dict[int, BaseException] = {}
        self.orphans: deque[Callable[[Books], bool]] = deque()
        self.spares: list[Spare] = []
        self.leftovers: dict[Hashable, MemoryPool] = {}

    def hand_on(self, spares: list[Spare]) -> None:
        """Have these for the device's next manager, and stay there for it; the lock is held."""
        if spares:
            _kept[self.device] = self
        else:
            _kept.pop(self.device, None)
        self.spares = spares  # last: behind it nothing is called

    def refuse_reentry(self) -> None:
        """Refuse what calls from inside of a section that this thread has the lock for; the lock is not asked for.

        Raises:
            Reentered: a signal handler or a finalizer has broken in.
        """
        if self.held():
            raise Reentered(f"cgstate is called from inside of itself on {self.device}, by a signal handler or a finalizer")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for any change, with the lock held; False when ``timeout`` (seconds) passed."""
        self.waiting += 1
        try:
            return self.changed.wait(timeout)
        finally:
            self.waiting -= 1

    def wait_for(self, thread: int, owner: int) -> bool:
        """Wait for any change while ``owner`` has a turn that ``thread`` wants, with the lock held.

        False, without waiting, if that would never end: ``owner`` waits, through others perhaps, for a turn that ``thread`` has.
        """
        last = owner
        while last in self.awaited:
            last = self.awaited[last]
        if last == thread:
            return False
        before = self.awaited.get(thread)  # a signal handler may call, and wait, while its thread waits
        self.awaited[thread] = owner
        try:
            self.wait()
        finally:
            if before is None:
                self.awaited.pop(thread, None)
            else:
                self.awaited[thread] = before
        return True

    def notify(self) -> None:
        """Tell the waiting, with the lock held."""
        if self.waiting:
            self.changed.notify_all()

    def tell(self) -> None:
        """`notify`, without the lock."""
        with self.lock:
            self.notify()

    def unseal(self) -> None:
        """Let the next replay of each entry on the device ask again whether anything is in its way, with the lock held."""
        for turn in self.turns:
            turn.unseal()

    def end_dropped(self) -> None:
        """End the leases whose outputs were dropped, with the lock held."""
        while self.dropped:
            end = self.dropped[0]
            end()
            del self.dropped[0]  # last: an interrupt must not come before it has ended

    def keep(self, error: BaseException) -> None:
        """An observer has raised: keep that until this thread's operation is whole, with the lock held.

        The first error of an operation is kept, but an interrupt goes before it.
        """
        thread = self.sync.thread_id()
        first = self.kept.get(thread)
        if first is None or (isinstance(first, Exception) and not isinstance(error, Exception)):
            self.kept[thread] = error
        for books in self.managers:
            books.unsettled = True  # behind the above: who settles meanwhile must not make it false
            if books.audit is not None:
                books.audit.recount()

    def blocks_calls(self, thread: int) -> bool:
        """Whether a component call of ``thread`` has to wait for another thread's capture."""
        if not self.free:
            return self.holder != thread
        return self.pending not in (0, thread) and not self.in_call(thread)

    def in_call(self, thread: int) -> bool:
        """Whether a component call, or a replay, of ``thread`` is in progress."""
        return thread in self.calls or any(turn.owner == thread for turn in self.turns)

    def blocks_capture(self, thread: int) -> bool:
        """Whether a capture by ``thread`` has to wait for something that others do and will finish."""
        if (not self.free and self.holder != thread) or self.destroying:
            return True
        calls = self.calls
        if calls and (len(calls) > 1 or thread not in calls):
            return True
        return any(turn.owner not in (0, thread) and turn.exclusive for turn in self.turns)

    def enter_call(self, thread: int) -> None:
        """Count a component call in."""
        self.calls[thread] = self.calls.get(thread, 0) + 1

    def leave_call(self, thread: int) -> None:
        """Count it out; the caller tells those who wait."""
        left = self.calls[thread] - 1
        if left:
            self.calls[thread] = left
        else:
            del self.calls[thread]


_kept: dict[str, CaptureGate] = {}
"""Gates that have something for the next manager, though none may be there now."""
_registry: WeakValueDictionary[str, CaptureGate] = WeakValueDictionary()
_registry_lock = threading.Lock()  # guards the process-wide map itself, which exists before any Sync is known


def gate_of(device: str, sync: Sync) -> CaptureGate:
    """The gate of ``device``, made on first use and kept while a manager, or something it left behind, needs it.

    Raises:
        ConfigError: the device's gate was made with another `Sync`.
    """
    with _registry_lock:
        gate = _registry.get(device)
        if gate is None:
            gate = _registry[device] = CaptureGate(device, sync)
        elif gate.sync is not sync:
            raise ConfigError(f"{device} is managed already, with another sync; all managers of a device share one")
        return gate
