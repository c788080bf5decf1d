"""What a trace consists of, line by line. `docs/trace-format.md` describes the file.

A trace is a head, then entities and events in the order of their linearization, then an end that says how much there was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from cgstate.lifecycle.expr import Value

SCHEMA = 1
"""Version of the format."""


class Head(NamedTuple):
    """The first line.

    Attributes:
        schema: `SCHEMA` at the time.
        table_hash: Hash of the tables that ran; see `cgstate.lifecycle.tables.table_hash`.
        device: The device of the first manager that was met, e.g. ``cuda:0``; empty if none was.
        started: When the recorder was made, ISO 8601 in UTC; ``t_ns`` counts from there.
        versions: Of cgstate, python, and torch if it was there.
        dropped: Events before the first one that is left; the trace is a window then, and nothing is known from before it.
    """

    schema: int
    table_hash: str
    device: str
    started: str
    versions: Mapping[str, str]
    dropped: int


class EntityRecord(NamedTuple):
    """An entity that the next events are about.

    Attributes:
        machine: ``entry``, ``component``, ``pool`` or ``manager``.
        entity: Its name, unique among the entities that live at the same time.
        fresh: Whether all variables but ``values`` have their first values, as everything has that is recorded from the start.
        manager: Its manager; None for a manager.
        component: The component of an entry.
        domain: The domain of an entry or a pool.
        device: The device of a manager.
        values: Variables that keep their values for life, or until a notice.
    """

    machine: str
    entity: str
    fresh: bool
    manager: str | None
    component: str | None
    domain: str | None
    device: str | None
    values: Mapping[str, Value]


class TransitionRecord(NamedTuple):
    """One step of one machine.

    Attributes:
        seq: Number of the event; steps and notices are counted together, without gaps, in the order of linearization.
        t_ns: Nanoseconds since the recorder was made.
        machine: Which table.
        entity: Who stepped.
        event: What happened.
        source: The state before.
        target: The state afterwards.
        guard: Names of the row's guards, joined by ``&``; with event, source and target it names the row.
        thread: Number of the thread, in order of appearance.
        stream: Raw handle of the stream of the pool's last work; of an entry's leases only, None where there was none.
        pool: The pool that an entry records or has recorded into.
        bytes: Bytes charged for that pool, or for the pool that stepped; not of leases.
        transaction: Kind and number of the transaction that an entry's capture, bind or abort belongs to.
        values: Variables that the row reads or assigns, as they were right after the step; none for leases.
    """

    seq: int
    t_ns: int
    machine: str
    entity: str
    event: str
    source: str
    target: str
    guard: str
    thread: int
    stream: int | None = None
    pool: str | None = None
    bytes: int | None = None
    transaction: str | None = None
    values: Mapping[str, Value] | None = None


class NoticeRecord(NamedTuple):
    """Something that no table knows; `cgstate.runtime.witness.Notice` lists what there is.

    Attributes:
        seq, t_ns, thread: As of a step.
        what: ``answered``, ``epoch``, ``resident`` or ``flushed``.
        entity: The component, or for ``flushed`` the manager.
        value: The reason, the epoch, whether it is resident, or the bytes.
    """

    seq: int
    t_ns: int
    what: str
    entity: str
    value: Value
    thread: int


class End(NamedTuple):
    """The last line.

    Attributes:
        lines: Lines before this one.
        events: Steps and notices among them.
        dropped: Events after them that were not written, since the recorder had reached its limit.
    """

    lines: int
    events: int
    dropped: int


Record: TypeAlias = Head | EntityRecord | TransitionRecord | NoticeRecord | End
