"""From the log to lines: JSON, one object a line, keys in the order of the records' fields.

Most lines of a trace are leases, so what is constant of a row is made text once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from cgstate.runtime.turn import NO_STREAM
from cgstate.trace.lanes import FULL, TIMED, Lane, RowOf
from cgstate.trace.recorder import Look, Notified, Raw
from cgstate.trace.records import End, Head

CHANGING = frozenset({"epoch", "resident"})
"""Values that an entity is introduced with and that notices change: not known any more where notices may have been lost."""


class Encoder:
    """Turns the items of a log into lines, in order.

    Attributes:
        events: Steps and notices so far.
        lines: Lines so far, the head included.
    """

    __slots__ = ("_last", "_latest", "_threads", "_whole", "events", "lines")

    def __init__(self, *, whole: bool = True) -> None:
        """Start; ``whole``: nothing came before, so that every entity is met before its first event."""
        self.events = 0
        self.lines = 0
        self._whole = whole
        self._last: dict[str | None, tuple[int, int]] = {}  # of each manager, since what follows a lease bears neither
        self._latest = 0, 0
        self._threads: dict[int, int] = {}

    def head(self, head: Head) -> str:
        """The first line."""
        return self._line({"record": "head", **head._asdict()})

    def end(self, dropped: int) -> str:
        """The last line."""
        return self._line({"record": "end", **End(self.lines, self.events, dropped)._asdict()})

    def encode(self, items: Iterable[Raw], zero: int) -> Iterator[str]:
        """The lines of these items; ``zero`` is the time from which they count."""
        for item in items:
            if isinstance(item, Lane):
                yield from self._introduce(item, fresh=True)
                continue
            first = item[0]
            lane = first.lane
            if lane.introduced_by is not self:
                yield from self._introduce(lane, fresh=False)
            if isinstance(first, Notified):
                yield self._notice(first, item[1], item[2], zero)  # type: ignore[arg-type, misc]  # a notice, a time, a thread
            elif first.form == TIMED:
                yield self._timed(*item, zero)  # type: ignore[call-arg]  # a `Timed`
            elif first.form == FULL:
                yield from self._full(*item, zero)  # type: ignore[call-arg]  # a `Full`
            else:
                yield self._brief(first)

    def _introduce(self, lane: Lane, *, fresh: bool) -> Iterator[str]:
        for owner in lane.owners:
            if owner.introduced_by is not self:
                yield from self._introduce(owner, fresh=False)
        lane.introduced_by = self
        record = lane.record
        if not (fresh and self._whole):
            constant = {name: value for name, value in record.values.items() if name not in CHANGING}
            record = record._replace(fresh=False, values=constant)
        yield self._line({"record": "entity", **record._asdict()})

    def _timed(self, of: RowOf, when: int, thread: int, stream: int, zero: int) -> str:
        when -= zero
        thread = self._thread(thread)
        self._latest = self._last[of.lane.record.manager] = when, thread
        return self._event(of, when, thread, f',"stream":{stream}' if stream != NO_STREAM else "")

    def _brief(self, of: RowOf) -> str:
        when, thread = self._last.get(of.lane.record.manager, self._latest)
        return self._event(of, when, thread, "")

    def _full(self, of: RowOf, source: str, when: int, thread: int, stream: int, look: Look, zero: int) -> Iterator[str]:
        when -= zero
        thread = self._thread(thread)
        record = of.lane.record
        self._latest = self._last[record.manager or record.entity] = when, thread
        if look.pool is not None and look.pool.introduced_by is not self:
            yield from self._introduce(look.pool, fresh=False)
        fields = {
            "stream": stream if stream != NO_STREAM else None,
            "pool": None if look.pool is None else look.pool.record.entity,
            "bytes": look.bytes,
            "transaction": look.transaction,
            "values": look.values or None,
        }
        told = {name: value for name, value in fields.items() if value is not None}
        self.events += 1
        yield self._line(
            {
                "record": "step",
                "seq": self.events,
                "t_ns": when,
                "machine": record.machine,
                "entity": record.entity,
                "event": of.row.row.event,
                "source": source,
                "target": look.target,
                "guard": of.row.guard,
                "thread": thread,
                **told,
            }
        )

    def _event(self, of: RowOf, when: int, thread: int, rest: str) -> str:
        """A line without a look: all but its numbers is the same each time."""
        if of.text is None:
            record, row = of.lane.record, of.row
            (source,) = row.row.sources
            same = {
                "machine": record.machine,
                "entity": record.entity,
                "event": row.row.event,
                "source": source,
                "target": row.target,
                "guard": row.guard,
            }
            of.text = _json(same)[1:-1]
        self.events += 1
        self.lines += 1
        return f'{{"record":"step","seq":{self.events},"t_ns":{when},{of.text},"thread":{thread}{rest}}}\n'

    def _notice(self, notice: Notified, when: int, thread: int, zero: int) -> str:
        self.events += 1
        return self._line(
            {
                "record": "notice",
                "seq": self.events,
                "t_ns": when - zero,
                "what": notice.what,
                "entity": notice.lane.record.entity,
                "value": notice.value,
                "thread": self._thread(thread),
            }
        )

    def _thread(self, identity: int) -> int:
        """A small number for a thread."""
        return self._threads.setdefault(identity, len(self._threads) + 1)

    def _line(self, document: dict[str, object]) -> str:
        self.lines += 1
        return _json(document) + "\n"


def _json(document: Mapping[str, object]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
