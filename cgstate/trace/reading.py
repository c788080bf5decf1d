"""Reads traces: strictly, since what a checker accepts without understanding it has not checked.

Everything is refused with a line number: what is no JSON object, an unknown or missing field, a wrong type, a gap in the numbering,
a missing or wrong last line, other tables, a file that is too large.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from cgstate.errors import describe
from cgstate.lifecycle.tables import MACHINE, table_hash
from cgstate.runtime.witness import Notice
from cgstate.trace.errors import TraceError
from cgstate.trace.records import SCHEMA, End, EntityRecord, Head, NoticeRecord, Record, TransitionRecord

MAX_LINE = 65_536
"""Characters of the longest line that is read."""
MAX_BYTES = 4 << 30
"""Characters of the longest trace that is read, uncompressed."""

_TEXT, _NUMBER, _FLAG = str, int, bool
_OF_EVERY_STEP = (_NUMBER, _NUMBER, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _NUMBER)
"""Types of the fields that every step has, in order."""

_NUMBERED = re.compile(r'\{"record":"step","seq":(0|[1-9][0-9]*),"t_ns":(0|[1-9][0-9]*),(.{1,2048})', re.DOTALL)
"""A step as recorders write it. Most are leases, whose lines are the same but for these two numbers: the rest is parsed once."""
_REMEMBERED = 16_384
"""Rests that are remembered, in this process; of more, those that were met last."""


def read(path: str | Path, *, tables: str | None = None) -> Iterator[Record]:
    """The records of a file; a name that ends in ``.gz`` is decompressed.

    Args:
        path: The file.
        tables: Hash of the tables that the trace must be of; those of this version if not given.

    Raises:
        TraceError: it cannot be read, or is no whole trace of these tables. Raised where it is found, after the records before it.
    """
    try:
        with _open(Path(path)) as file:
            yield from read_lines(_lines(file), tables=tables)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else describe(error)
        raise TraceError(f"{path} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not UTF-8 text") from None
    except TraceError as error:
        raise TraceError(f"{path}, {error}") from None


def read_lines(lines: Iterable[str], *, tables: str | None = None) -> Iterator[Record]:
    """The records of the lines of a trace; see `read`.

    Raises:
        TraceError: they are no whole trace of these tables.
    """
    wanted = table_hash() if tables is None else tables
    number = events = 0
    end: End | None = None
    decode, step, numbered = _DECODE, _step, _NUMBERED.fullmatch
    for line in lines:
        number += 1
        try:
            match = numbered(line)
            if match is not None and end is None:
                seq, t_ns, text = match.groups()
                rest = _rest(text) if '"values":' not in text else None  # these are seldom the same
                if rest is not None and int(seq) == events + 1:
                    events += 1
                    yield TransitionRecord._make((events, int(t_ns), *rest))
                    continue
            document, length = decode(line)
            if line[length:] not in ("\n", ""):
                _refuse("something follows the record")
            kind = document.pop("record")
            if end is not None:
                _refuse("something follows the end")
            if kind == "step":
                events += 1
                if document.get("seq") != events:
                    _refuse(f"event {document.get('seq')!r} where number {events} is due")
                yield step(document)
                continue
            record = _READERS[kind](document)
            if isinstance(record, Head) != (number == 1):
                _refuse("the head is the first line, and no other")
            if isinstance(record, NoticeRecord):
                events += 1
                if record.seq != events:
                    _refuse(f"event {record.seq} where number {events} is due")
            elif isinstance(record, Head):
                _check_head(record, wanted)
            elif isinstance(record, End):
                end = record
                if (record.lines, record.events) != (number - 1, events):
                    _refuse(f"{record.lines} lines with {record.events} events were written, {number - 1} with {events} are here")
            yield record
        except TraceError as error:
            raise TraceError(f"line {number}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise TraceError(f"line {number} is no record of a trace") from None
    if end is None:
        raise TraceError(f"line {number + 1}: the trace is truncated: its last line is missing")


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="\n")
    return path.open(encoding="utf-8", newline="\n")


def _lines(file: Any) -> Iterator[str]:
    """Lines of a file, none of them too long, and not too many."""
    number = total = 0
    readline: Callable[[int], str] = file.readline
    while line := readline(MAX_LINE + 1):
        number += 1
        total += len(line)
        if len(line) > MAX_LINE:
            raise TraceError(f"line {number} is longer than {MAX_LINE} characters")
        if total > MAX_BYTES:
            raise TraceError(f"line {number}: the trace is longer than {MAX_BYTES} characters")
        yield line


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


_DECODE = json.JSONDecoder(parse_constant=_no_number).raw_decode


def _check_head(head: Head, wanted: str) -> None:
    if head.schema != SCHEMA:
        _refuse(f"the trace has schema {head.schema}; {SCHEMA} can be read")
    if head.table_hash != wanted:
        _refuse(f"the trace is of other tables: {head.table_hash[:12]}…, and these are {wanted[:12]}…")


def _refuse(reason: str) -> NoReturn:
    raise TraceError(reason)


@lru_cache(_REMEMBERED)
def _rest(text: str) -> tuple[Any, ...] | None:
    """The fields of a step behind its two numbers, from the rest of its line; None where the line has to be read as a whole."""
    line = f'{{"seq":0,"t_ns":0,{text}'
    try:
        document, length = _DECODE(line)
        record = _step(document)
    except (TraceError, ValueError, TypeError, RecursionError):
        return None
    if line[length:] not in ("\n", "") or (record.seq, record.t_ns) != (0, 0) or record.values is not None:
        return None
    return record[2:]


# -- one record each --------------------------------------------------------------------------------------------------


def _step(document: dict[str, Any]) -> TransitionRecord:
    record = TransitionRecord(**document)
    if tuple(map(type, record[: len(_OF_EVERY_STEP)])) != _OF_EVERY_STEP or record.t_ns < 0:
        _refuse("a field of the step has a wrong type")
    if len(document) > len(_OF_EVERY_STEP):
        for value, kind in (
            (record.stream, _NUMBER),
            (record.pool, _TEXT),
            (record.bytes, _NUMBER),
            (record.transaction, _TEXT),
        ):
            if value is not None and type(value) is not kind:
                _refuse("a field of the step has a wrong type")
        if record.values is not None:
            _check_values(record.values)
    return record


def _entity(document: dict[str, Any]) -> EntityRecord:
    record = EntityRecord(**document)
    optional = (record.manager, record.component, record.domain, record.device)
    if (
        type(record.entity) is not str
        or type(record.fresh) is not bool
        or any(type(each) not in (str, type(None)) for each in optional)
    ):
        _refuse("a field of the entity has a wrong type")
    if record.machine not in MACHINE:
        _refuse(f"there is no machine {record.machine!r}")
    due = {
        "manager": (False, False, False, True),
        "component": (True, False, False, False),
        "pool": (True, False, True, False),
        "entry": (True, True, True, False),
    }[record.machine]
    if tuple(each is not None for each in optional) != due:
        _refuse(f"{record.machine} {record.entity} belongs to something that is not said, or says more than it can")
    _check_values(record.values)
    return record


def _notice(document: dict[str, Any]) -> NoticeRecord:
    record = NoticeRecord(**document)
    kind = {Notice.answered: _TEXT, Notice.epoch: _NUMBER, Notice.resident: _FLAG, Notice.flushed: _NUMBER}[Notice(record.what)]
    if (type(record.seq), type(record.t_ns), type(record.thread), type(record.entity)) != (int, int, int, str):
        _refuse("a field of the notice has a wrong type")
    if type(record.value) is not kind:
        _refuse(f"{record.value!r} is no value of {record.what}")
    return record


def _head(document: dict[str, Any]) -> Head:
    record = Head(**document)
    texts = (record.table_hash, record.device, record.started)
    if type(record.schema) is not int or type(record.dropped) is not int or any(type(text) is not str for text in texts):
        _refuse("a field of the head has a wrong type")
    if not isinstance(record.versions, dict) or any(type(version) is not str for version in record.versions.values()):
        _refuse("a field of the head has a wrong type")
    return record


def _end(document: dict[str, Any]) -> End:
    record = End(**document)
    if any(type(count) is not int for count in record):
        _refuse("a field of the end has a wrong type")
    return record


def _check_values(values: Any) -> None:
    if type(values) is not dict or any(type(value) not in (int, str, bool) for value in values.values()):
        _refuse("the values are no mapping of names to numbers, flags and words")


_READERS: dict[str, Callable[[dict[str, Any]], Record]] = {
    "step": _step,
    "entity": _entity,
    "notice": _notice,
    "head": _head,
    "end": _end,
}
