"""TLC says of a trace what the checker says. Without Java these tests fail, unless CGSTATE_NO_JAVA says that there is none."""

from __future__ import annotations

import os

import pytest

from cgstate.lifecycle.expr import variables
from cgstate.lifecycle.tables import MACHINE
from cgstate.trace import tla
from cgstate.trace.rows import ROWS
from tests.trace.runs import Lines, judged, records, renumbered
from tests.trace.test_checking import FAULTS

needs_java = pytest.mark.skipif(os.environ.get("CGSTATE_NO_JAVA") == "1", reason="CGSTATE_NO_JAVA: this machine has no Java")

SEEN_BY_BOTH = (
    "a second capture opens",
    "a pool retires under a live entry",
    "an entry with stale addresses is leased",
    "a lease ends twice",
    "a guard that is none",
)


@needs_java
def test_tlc_accepts_a_right_trace_to_its_last_event(good: Lines) -> None:
    accepted, count = tla.accepted(records(good))
    told = sum(line["record"] in ("step", "entity") or line.get("what") in ("epoch", "resident") for line in good)
    assert accepted == count == told


@needs_java
@pytest.mark.parametrize("name", SEEN_BY_BOTH)
def test_tlc_stops_at_a_planted_fault(good: Lines, name: str) -> None:
    _, plant = FAULTS[name]
    planted = renumbered(plant(good))
    report = judged(planted)
    accepted, count = tla.accepted(records(planted))
    assert accepted < count
    first = min(broken.seq for broken in report.broken if broken.seq)
    told = [line for line in planted if line["record"] in ("step", "entity") or line.get("what") in ("epoch", "resident")]
    assert told[accepted]["seq"] >= first  # never earlier than the checker, which knows more


def test_the_module_holds_every_row(good: Lines) -> None:
    text, _ = tla.module(records(good))
    for machine, rows in ROWS.items():
        for row in rows:
            _, _, after = text.partition(f"{machine}_{row.index}_{row.row.event}(who) ==\n")
            action, _, _ = after.partition("\n\n")
            untold = tla.UNTOLD | {var.name for var in MACHINE[machine].parameters.get(row.row.event, ())}
            for guard in row.row.guards:
                told = untold.isdisjoint(var.name for var in variables(guard.expr))
                assert (f"\\* {guard.name}\n" in action) is told, (row.row.label, guard.name)
