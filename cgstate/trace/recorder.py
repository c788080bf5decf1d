"""The recorder: told of every step under the device's lock, it puts a few values into a list and leaves.

Records are built when they are read or written. The beginning and the end of a lease cost one item each, with time, thread and
stream, which stands for the component's step as well; everything rarer is looked at in full. The log is flat, value after value,
since a tuple a step would be one more object for the garbage collector to walk. What it keeps are lanes, not entities: no graph, no
model and no manager lives longer for it.

Pass a recorder to ``GraphManager(observer=...)``. Managers of several devices may share one; their locks order the events of each
device, and what two devices do at the same time comes in the order in which it reached the log.
"""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import cgstate
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import PoolKind
from cgstate.lifecycle.steps import Observer, Steps
from cgstate.lifecycle.tables import table_hash
from cgstate.runtime.books import Books
from cgstate.runtime.entry import Entry
from cgstate.runtime.pool import Pool
from cgstate.runtime.record import ComponentRecord
from cgstate.runtime.sync import THREADING, Sync
from cgstate.runtime.transaction import Transaction, TransactionKind
from cgstate.runtime.turn import NO_STREAM
from cgstate.runtime.witness import Notice
from cgstate.trace.lanes import BRIEF, TIMED, Lane, Lanes, LeaseOf, RowOf
from cgstate.trace.records import SCHEMA, Head
from cgstate.trace.rows import TRANSACTIONAL


class Look:
    """What was seen right after a step that is not a lease."""

    __slots__ = ("bytes", "pool", "target", "transaction", "values")

    def __init__(
        self, target: str, values: dict[str, Value], pool: Lane | None, charged: int | None, transaction: str | None
    ) -> None:
        self.target = target
        self.values = values
        self.pool = pool
        self.bytes = charged
        self.transaction = transaction


class Notified:
    """Something that no table knows, logged in a row's place."""

    events, length = 1, 3

    __slots__ = ("lane", "value", "what")

    def __init__(self, lane: Lane, what: Notice, value: Value) -> None:
        self.lane = lane
        self.what = what
        self.value = value


Timed: TypeAlias = tuple[RowOf, int, int, int]
"""Row, time, thread, stream: a lease."""
Brief: TypeAlias = tuple[RowOf]
"""Row: what follows a lease at once."""
Full: TypeAlias = tuple[RowOf, str, int, int, int, Look]
"""Row, source, time, thread, stream, and what was seen."""
Told: TypeAlias = tuple[Notified, int, int]
"""A notice, time, thread."""
Raw: TypeAlias = Timed | Brief | Full | Told | Lane
"""An item of the log; a lane stands where its entity was met."""

_Acquired: TypeAlias = "Callable[[Entry, ComponentRecord | None, int], None]"
_Released: TypeAlias = "Callable[[Entry, ComponentRecord | None], None]"

LONGEST = 6
"""Values of the longest item."""


def items(log: Sequence[Any]) -> Iterator[Raw]:
    """The items of a flat log."""
    place, end = 0, len(log)
    while place < end:
        first = log[place]
        item: Any = tuple(log[place : place + first.length])
        place += first.length
        if isinstance(first, Lane):
            yield first
        elif isinstance(first, LeaseOf):
            yield first.entry, *item[1:]
            yield (first.component,)
        else:
            yield item


def count(log: Sequence[Any]) -> int:
    """How many events a flat log has; the others of its items say where an entity was met."""
    place = events = 0
    end = len(log)
    while place < end:
        first = log[place]
        place += first.length
        events += first.events
    return events


class Recorder:
    """Base of the recorders: keeps the log in chunks, and hands every full chunk to `_spill`.

    Args:
        chunk: Items of the log that are kept as they came, about; then the thread that fills it pays for `_spill`.
        sync: The runtime's threading primitives, for time and thread.
    """

    def __init__(self, *, chunk: int, sync: Sync = THREADING) -> None:
        self._chunk = chunk * LONGEST
        self._sync = sync
        self._log: list[Any] = []
        self._lanes = Lanes()
        # Managers of two devices may do either at the same time; and a manager that is dropped may end in the middle of it, in the
        # same thread. So one may be taken again, and nobody waits for the other while recording. It knows who has it, too: whoever
        # is interrupted gives it back in any case.
        self._spilling, self._meeting = threading.RLock(), threading.RLock()
        self._spills = THREADING.held(self._spilling)
        self._transactions: dict[Books, dict[Transaction, str]] = {}
        self._transaction_count = 0
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._zero = sync.now_ns()
        self._device = ""
        self.step: Observer = self._make_step()
        self.acquired, self.released = self._make_leases()

    def _make_step(self) -> Observer:
        """The observer, as a closure: what it uses at each call are its own cells."""
        log, extend, limit = self._log, self._log.extend, self._chunk
        rows, now, thread = self._lanes.rows, self._sync.now_ns, self._sync.thread_id
        first = self._first

        def step(entity: Steps, row: int, state: str) -> None:
            """Log a step."""
            try:
                mine = rows[entity][row]
            except KeyError:
                mine = first(entity, row)
            form = mine.form
            if form == TIMED:
                if len(log) >= limit:
                    self._cut()
                extend((mine, now(), thread(), entity.turn.last_handle))  # type: ignore[attr-defined]  # an entry
            elif form == BRIEF:
                log.append(mine)
            else:
                self._look(mine, entity, state)

        return step

    def _make_leases(self) -> tuple[_Acquired, _Released]:
        """What a `LeaseWitness` has, as closures: each logs what two calls of `step` would, for less than one."""
        log, extend, limit = self._log, self._log.extend, self._chunk
        now, own_thread = self._sync.now_ns, self._sync.thread_id
        acquiring, releasing, meet = self._lanes.acquired, self._lanes.released, self._meet

        def acquired(entry: Entry, component: ComponentRecord | None, thread: int) -> None:
            """Log that an ordinary lease begins."""
            if len(log) >= limit:
                self._cut()
            try:
                row = acquiring[entry]
            except KeyError:
                meet(entry)
                row = acquiring[entry]
            extend((row if component is not None else row.entry, now(), thread, entry.turn.last_handle))

        def released(entry: Entry, component: ComponentRecord | None) -> None:
            """Log that it ends; a chunk may become longer for it."""
            try:
                row = releasing[entry]
            except KeyError:
                meet(entry)
                row = releasing[entry]
            extend((row if component is not None else row.entry, now(), own_thread(), entry.turn.last_handle))

        return acquired, released

    def notice(self, entity: Steps, what: Notice, value: Value) -> None:
        """Log what is no step."""
        lane = self._meet(entity)
        self._log.extend((Notified(lane, what, value), self._sync.now_ns(), self._sync.thread_id()))

    def head(self, dropped: int = 0) -> Head:
        """The first line of the trace."""
        versions = {"cgstate": cgstate.__version__, "python": platform.python_version()}
        torch = sys.modules.get("torch")
        if torch is not None:
            versions["torch"] = str(torch.__version__)
        return Head(SCHEMA, table_hash(), self._device, self._started, versions, dropped)

    # -- what is not a lease ------------------------------------------------------------------------------------------

    def _first(self, entity: Steps, row: int) -> RowOf:
        """The first step of an entity, or one of the last, after its manager was closed."""
        if not self._device and isinstance(entity, Books):
            self._device = entity.backend.device
        return self._meet(entity).rows[row]

    def _meet(self, entity: Steps) -> Lane:
        """The lane of an entity, made and logged if it is new."""
        with self._meeting:
            self._log.extend(self._lanes.meet(entity))
            lane = self._lanes.get(entity)
        assert lane is not None
        return lane

    def _look(self, mine: RowOf, entity: Steps, state: str) -> None:
        if len(self._log) >= self._chunk:
            self._cut()  # before and not after, so that no chunk begins with what follows a lease
        lanes, row = self._lanes, mine.row
        assert row.look is not None
        seen = row.look(entity)
        target, *others = seen if isinstance(seen, tuple) else (seen,)
        values = dict(zip(row.reads[1:], others, strict=True))
        pool: Lane | None = None
        charged = transaction = None
        stream = NO_STREAM
        if isinstance(entity, Entry):
            stream = entity.turn.last_handle
            if row.row.event in TRANSACTIONAL:
                self._meet(entity.pool)
                transaction = self._label(entity)
            pool = lanes.get(entity.pool)
            charged = None if pool is None else _charged(entity.pool)  # it may be gone
        elif isinstance(entity, Pool):
            charged = _charged(entity)
        look = Look(target, values, pool, charged, transaction)
        self._log.extend((mine, state, self._sync.now_ns(), self._sync.thread_id(), stream, look))
        with self._meeting:
            lanes.close(entity)
            if isinstance(entity, Books) and entity.closed():
                self._transactions.pop(entity, None)

    def _label(self, entry: Entry) -> str:
        """Kind and number of the entry's transaction. A manager has one at a time; only what a profile made waits for its end."""
        transaction = entry.transaction
        known = self._transactions.setdefault(entry.manager, {})
        if transaction not in known:
            if transaction.kind is not TransactionKind.profile:
                known.clear()
            self._transaction_count += 1
            known[transaction] = f"{transaction.kind}/{self._transaction_count}"
        return known[transaction]

    # -- chunks -------------------------------------------------------------------------------------------------------

    def _cut(self, *, wait: bool = False) -> None:
        """Take what is in the log, and hand it on; nothing if somebody is at it, unless told to wait for them."""
        if self._spills():
            return
        try:
            if self._spilling.acquire(blocking=wait):
                length = len(self._log)
                chunk = self._log[:length]
                del self._log[:length]
                self._spill(chunk)
        finally:
            try:  # noqa: SIM105  # an interrupt might come while a context is made
                self._spilling.release()
            except RuntimeError:  # it was not to be had
                pass

    def _spill(self, chunk: list[Any]) -> None:
        raise TypeError("a recorder says what becomes of a full chunk")


def _charged(pool: Pool) -> int | None:
    """Bytes charged for a pool; asking for those of a foreign one would mean to ask its allocator."""
    return None if pool.kind is PoolKind.foreign else pool.charged
