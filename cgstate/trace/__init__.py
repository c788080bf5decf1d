"""Traces: what every machine did in a run, recorded, read back, and held against the tables.

``with cgstate.trace.record("run.jsonl") as recorder: GraphManager(observer=recorder)`` records into a file; a `Ring` keeps the last
events in memory. Where no recorder is given nothing is recorded, and nothing costs anything.

`recorder` is what runs under the device's lock, `sinks` what becomes of it, `records` what a trace consists of, `reading` reads it
strictly, `replay` takes the tables' rows on what a trace tells, `checking` judges it, `timeline` and `chrome` show it.
"""

from cgstate.trace.checking import Broken, Report, check
from cgstate.trace.errors import TraceError
from cgstate.trace.reading import read, read_lines
from cgstate.trace.records import End, EntityRecord, Head, NoticeRecord, Record, TransitionRecord
from cgstate.trace.sinks import FileRecorder, Ring, record

__all__ = [
    "Broken",
    "End",
    "EntityRecord",
    "FileRecorder",
    "Head",
    "NoticeRecord",
    "Record",
    "Report",
    "Ring",
    "TraceError",
    "TransitionRecord",
    "check",
    "read",
    "read_lines",
    "record",
]
