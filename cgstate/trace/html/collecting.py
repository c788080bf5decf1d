"""What the page shows, as one JSON document: lanes, events, bytes and findings, with small numbers for what repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from cgstate.errors import ConfigError
from cgstate.lifecycle.states import PoolState
from cgstate.trace.checking import check
from cgstate.trace.records import End, EntityRecord, Head, NoticeRecord, Record, TransitionRecord
from cgstate.trace.timeline import LEGEND, LOOKS

MOST = 200_000
"""The most events that a page may have; a browser would choke on more."""

Document = dict[str, Any]
_ORDER = ("manager", "component", "entry", "pool")


def collect(read: Callable[[], Iterable[Record]]) -> Document:
    """The document of a trace.

    Keys: ``head``; ``lanes``, an entity each; ``events``, each a list of number, nanoseconds, lane, what, state before, state
    afterwards, thread and the rest as a mapping; ``bytes``, lists of event index, lane of a pool and its bytes from there on;
    ``broken``, what the checker found, and ``violations``, how often; ``missing``, events that the recorder did not keep; ``looks``
    and ``legend``, how states look; ``order``, that of the machines. Names of the same machine share a lane, one after the other.

    Args:
        read: Makes the records; called twice, for the check and for the page.

    Raises:
        TraceError: from the records; see `cgstate.trace.read`.
        ConfigError: there are more events than a page may have.
    """
    report = check(read())
    if report.events > MOST:
        raise ConfigError(f"the trace has {report.events:,} events, and a page at most {MOST:,}; export it for Perfetto instead")
    story = _Story()
    for record in read():
        story.take(record)
    looks = [look for look, _ in LEGEND]
    return {
        "head": story.head,
        "lanes": story.lanes,
        "events": story.events,
        "bytes": story.bytes,
        "broken": [asdict(broken) for broken in report.broken],
        "violations": report.violations,
        "missing": report.missing,
        "looks": {state: looks.index(look) for state, look in LOOKS.items()},
        "legend": [meaning for _, meaning in LEGEND],
        "order": list(_ORDER),
    }


class _Story:
    """What the records tell, gathered."""

    def __init__(self) -> None:
        self.head: Mapping[str, object] = {}
        self.lanes: list[Document] = []
        self.events: list[list[object]] = []
        self.bytes: list[list[int]] = []
        self._lane: dict[tuple[str, str], int] = {}
        self._held: dict[int, int] = {}
        self._gone: set[int] = set()

    def take(self, record: Record) -> None:
        if isinstance(record, Head):
            self.head = record._asdict()
        elif isinstance(record, EntityRecord):
            self._introduce(record)
        elif isinstance(record, TransitionRecord):
            self._step(record)
        elif isinstance(record, NoticeRecord):
            self._notice(record)
        else:
            assert isinstance(record, End)

    def _introduce(self, record: EntityRecord) -> None:
        key = record.machine, record.entity
        if key not in self._lane:
            self._lane[key] = len(self.lanes)
            owners = {name: value for name in ("manager", "component", "domain") if (value := getattr(record, name)) is not None}
            kind = {"kind": record.values["kind"]} if record.machine == "pool" and "kind" in record.values else {}
            self.lanes.append({"machine": record.machine, "name": record.entity, "from": len(self.events), **owners, **kind})
        else:
            self._gone.discard(self._lane[key])

    def _step(self, record: TransitionRecord) -> None:
        lane = self._lane[record.machine, record.entity]
        rest = {
            name: value
            for name in ("guard", "transaction", "pool", "bytes", "stream", "values")
            if (value := getattr(record, name)) not in (None, "")
        }
        if record.machine == "pool" and record.target == PoolState.GONE:
            self._hold(lane, 0)
            self._gone.add(lane)
        elif record.bytes is not None:
            self._hold(lane if record.machine == "pool" else self._lane.get(("pool", record.pool or "")), record.bytes)
        self.events.append([record.seq, record.t_ns, lane, record.event, record.source, record.target, record.thread, rest])

    def _notice(self, record: NoticeRecord) -> None:
        machine = "manager" if record.what == "flushed" else "component"
        lane = self._lane[machine, record.entity]
        self.events.append([record.seq, record.t_ns, lane, record.what, None, None, record.thread, {"value": record.value}])

    def _hold(self, pool: int | None, size: int) -> None:
        """From the event that comes next on, a pool is charged so much; one that is GONE, nothing, whatever entries say of it."""
        if pool is not None and pool not in self._gone and self._held.get(pool, 0) != size:
            self._held[pool] = size
            self.bytes.append([len(self.events), pool, size])
