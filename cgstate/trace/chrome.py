"""A trace as Chrome's trace events, which Perfetto and ``chrome://tracing`` open.

One process a manager; one track for itself and for each of its components, entries and pools. A slice is the time that its owner
spends in a state in which it has something; what leaves the state as it is, and a notice, is an instant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TextIO

from cgstate.trace.records import EntityRecord, Head, NoticeRecord, Record, TransitionRecord

_IDLE = frozenset({"EAGER", "NEW", "MINTED", "GONE", "CLOSED", "EVICTED"})
"""States in which an owner has nothing: a track is empty then, so that what is there stands out."""
_ORDER = {name: index for index, name in enumerate(("manager", "component", "entry", "pool"))}


def export(records: Iterable[Record], file: TextIO) -> int:
    """Write a trace as one JSON document; returns how many trace events it has.

    Raises:
        TraceError: from the records; see `cgstate.trace.read`.
    """
    count = 0
    file.write('{"displayTimeUnit":"ns","traceEvents":[')
    for event in events(records):
        file.write(("," if count else "") + "\n" + json.dumps(event, separators=(",", ":"), ensure_ascii=False))
        count += 1
    file.write("\n]}\n")
    return count


def events(records: Iterable[Record]) -> Iterator[dict[str, object]]:
    """The trace events, in order."""
    tracks = _Tracks()
    for record in records:
        if isinstance(record, EntityRecord):
            yield from tracks.introduce(record)
        elif isinstance(record, TransitionRecord):
            yield from tracks.step(record)
        elif isinstance(record, NoticeRecord):
            yield tracks.notice(record)
        elif isinstance(record, Head):
            yield {"name": "trace", "ph": "M", "pid": 0, "tid": 0, "args": record._asdict()}
    yield from tracks.close()


class _Tracks:
    """Who has which track, and what is open on it."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[int, int]] = {}
        self._open: dict[tuple[str, str], tuple[str, int]] = {}
        self._processes: dict[str, int] = {}
        self._last = 0

    def introduce(self, record: EntityRecord) -> Iterator[dict[str, object]]:
        """Give an entity its track; one that comes back keeps it."""
        key = record.machine, record.entity
        if key in self._of:
            return
        manager = record.manager or record.entity
        process = self._processes.get(manager)
        if process is None:
            process = self._processes[manager] = len(self._processes) + 1
            yield _meta("process_name", process, 0, {"name": manager})
        track = len(self._of) + 1
        self._of[key] = process, track
        yield _meta("thread_name", process, track, {"name": f"{record.machine} {record.entity}"})
        yield _meta("thread_sort_index", process, track, {"sort_index": _ORDER[record.machine] * 100_000 + track})

    def step(self, record: TransitionRecord) -> Iterator[dict[str, object]]:
        """A slice ends where a state does; a step that leaves the state as it is shows as an instant."""
        key = record.machine, record.entity
        process, track = self._of[key]
        self._last = max(self._last, record.t_ns)
        if record.source == record.target:
            yield {
                **_at(record.event, "i", record.t_ns, process, track),
                "s": "t",
                "cat": record.machine,
                "args": _arguments(record),
            }
            return
        yield from self._end(key, record.t_ns)
        if record.target not in _IDLE:
            self._open[key] = record.target, record.t_ns
            begin = _at(record.target, "B", record.t_ns, process, track)
            yield {**begin, "cat": record.machine, "args": _arguments(record)}

    def notice(self, record: NoticeRecord) -> dict[str, object]:
        """An instant on the track of whom it is about."""
        machine = "manager" if ("manager", record.entity) in self._of else "component"
        process, track = self._of[machine, record.entity]
        self._last = max(self._last, record.t_ns)
        name = f"eagerly: {record.value}" if record.what == "answered" else f"{record.what} {record.value}"
        return {**_at(name, "i", record.t_ns, process, track), "s": "t", "cat": "notice", "args": {"thread": record.thread}}

    def close(self) -> Iterator[dict[str, object]]:
        """End what is open at the end of the trace."""
        for key in list(self._open):
            yield from self._end(key, self._last)

    def _end(self, key: tuple[str, str], when: int) -> Iterator[dict[str, object]]:
        if key in self._open:
            name, began = self._open.pop(key)
            yield _at(name, "E", max(when, began), *self._of[key])


def _arguments(record: TransitionRecord) -> dict[str, object]:
    told = {name: value for name, value in record._asdict().items() if value is not None}
    return {
        name: told[name] for name in ("seq", "event", "guard", "thread", "stream", "pool", "bytes", "transaction") if name in told
    }


def _at(name: str, phase: str, t_ns: int, process: int, track: int) -> dict[str, object]:
    """A trace event; its time is in microseconds."""
    return {"name": name, "ph": phase, "ts": t_ns / 1000, "pid": process, "tid": track}


def _meta(name: str, process: int, track: int, arguments: dict[str, object]) -> dict[str, object]:
    return {"name": name, "ph": "M", "pid": process, "tid": track, "args": arguments}
