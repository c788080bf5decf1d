"""Runs to record: one on the simulator that takes many rows, and the tools to change what was recorded."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import cgstate
from cgstate.errors import CaptureFailed
from cgstate.trace import Record, Report, Ring, check, read_lines
from cgstate.trace.records import NoticeRecord, TransitionRecord
from tests.runtime.helpers import Model

Lines = list[dict[str, Any]]


def record_run(observer: Any) -> None:
    """Profile, capture, serve, miss, evict, fail, move and suspend memory, release, serve again, close; two leases at a time."""
    model = Model()
    net = model.component(
        "net",
        (4, 8),
        sizes=(16, 24, 32),
        capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY,
        dependencies=["weights"],
    )
    with model.manager(observer=observer) as manager:
        manager.prepare([net], {"net": {"max_extra_graphs": 1, "isolation": "per_entry"}})
        manager.profile_memory()
        manager.capture_and_bind(progress=False)
        for size in (3, 8, 16, 12, 24, 32, 5):
            net(model.input(size))
        ((low, _),) = model.bind(manager, "low")
        with low.lease(), low.lease():
            low.replay()
            manager.evict("low")
        ((other, _),) = model.bind(manager, "other")
        with contextlib.suppress(RuntimeError), other.lease() as lease, other.lease():
            other.launch = _broken
            lease.replay()
        manager.suspend("weights")
        with contextlib.suppress(cgstate.NotResident):
            net(model.input(4))
        manager.resume("weights")
        manager.invalidate("weights")
        net(model.input(4))
        _fail(model, manager)
        manager.forget_failures()
        manager.capture_and_bind(progress=False)
        net(model.input(7))
        manager.release()
        net(model.input(7))
        manager.capture_and_bind(progress=False)
        net(model.input(7))


def _broken() -> None:
    raise RuntimeError("the launch failed")


def _fail(model: Model, manager: cgstate.GraphManager) -> None:
    """A transaction of two captures, of which the second fails."""
    one, two = manager.entry("first", 2), manager.entry("second", 2)
    static = model.dev.zeros(2, 4)
    model.kept.append(static)

    def boom() -> None:
        raise ValueError("the routine raised")

    with contextlib.suppress(CaptureFailed), manager.transaction() as tx:
        tx.capture(one, lambda warmup: lambda: model.net(static))
        tx.capture(two, lambda warmup: boom)


def recorded(run: Callable[[Any], None] = record_run) -> Lines:
    """The documents of a run's trace."""
    ring = Ring(1_000_000)
    run(ring)
    return [json.loads(line) for line in ring.lines()]


def renumbered(lines: Iterable[dict[str, Any]]) -> Lines:
    """The same documents as a trace that was recorded so: numbers and counts are right, and time goes on."""
    made: Lines = []
    events = clock = 0
    for line in lines:
        line = dict(line)
        if line["record"] in ("step", "notice"):
            events += 1
            clock = max(clock, line["t_ns"])
            line |= {"seq": events, "t_ns": clock}
        if line["record"] == "end":
            line |= {"events": events, "lines": len(made)}
        made.append(line)
    return made


def judged(lines: Iterable[dict[str, Any]]) -> Report:
    """What the checker says of these documents."""
    return check(records(lines))


def records(lines: Iterable[dict[str, Any]]) -> Iterable[Record]:
    """The records of these documents."""
    return read_lines(json.dumps(line) + "\n" for line in lines)


def events(lines: Iterable[dict[str, Any]]) -> list[TransitionRecord | NoticeRecord]:
    """The events of these documents."""
    return [each for each in records(lines) if isinstance(each, TransitionRecord | NoticeRecord)]


def rules(report: Report) -> set[str]:
    """The rules that are broken."""
    return {broken.rule for broken in report.broken}
