"""Any single change of a right trace is seen, or leaves the trace of another right run.

What that is, is said by kind: the change may reorder steps that do not depend on each other, take away or repeat a step that moves
nothing, leave out what a later step does as well, or let the life of an entity end earlier or otherwise. In the first three kinds
everything that is known at the end is as it was; in the last one it is so for all other entities.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cgstate.trace import Report, TraceError
from cgstate.trace.rows import ROWS
from tests.trace.runs import Lines, judged, renumbered

KINDS = ("drop", "repeat", "swap", "retarget", "another row", "another value")


def mutated(lines: Lines, kind: str, data: st.DataObject) -> tuple[int, Lines] | None:
    """The place of the changed step and the changed trace; None where the kind does not apply there."""
    places = [index for index, line in enumerate(lines) if line["record"] == "step"]
    index = data.draw(st.sampled_from(places), "place")
    line = lines[index]
    match kind:
        case "drop":
            return index, [*lines[:index], *lines[index + 1 :]]
        case "repeat":
            return index, [*lines[: index + 1], *lines[index:]]
        case "swap":
            later = next((place for place in places if place > index), None)
            if later is None:
                return None
            made = list(lines)
            made[index], made[later] = made[later], made[index]
            return index, made
        case "retarget":
            others = [
                each["entity"]
                for each in lines
                if each["record"] == "entity" and each["machine"] == line["machine"] and each["entity"] != line["entity"]
            ]
            return _with(lines, index, entity=data.draw(st.sampled_from(others), "entity")) if others else None
        case "another row":
            rows = ROWS[line["machine"]]
            row = rows[data.draw(st.integers(0, len(rows) - 1), "row")]
            changed = {"event": row.row.event.value, "guard": row.guard, "target": row.target or line["target"]}
            return _with(lines, index, **changed) if any(line[name] != value for name, value in changed.items()) else None
        case _:
            values = line.get("values")
            if not values:
                return None
            name = data.draw(st.sampled_from(sorted(values)), "variable")
            value = (
                not values[name] if isinstance(values[name], bool) else values[name] + 1 if isinstance(values[name], int) else "X"
            )
            return _with(lines, index, values={**values, name: value})


def _with(lines: Lines, index: int, **fields: Any) -> tuple[int, Lines]:
    return index, [*lines[:index], {**lines[index], **fields}, *lines[index + 1 :]]


def equivalent(good: Report, other: Report, lines: Lines, index: int, kind: str) -> bool:
    """Whether an accepted change is of a kind that leaves the trace of another right run."""
    if good.final == other.final:
        return True
    line = lines[index]
    me = line["machine"], line["entity"]
    last = not any(later["record"] == "step" and (later["machine"], later["entity"]) == me for later in lines[index + 1 :])
    others = all(good.final[key] == other.final[key] for key in good.final.keys() - {me})
    return kind in ("drop", "another row") and last and others


@pytest.fixture(scope="module")
def verdict(good: Lines) -> Report:
    return judged(good)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(KINDS), data=st.data())
def test_a_single_change_is_seen_or_is_the_trace_of_another_right_run(
    good: Lines, verdict: Report, kind: str, data: st.DataObject
) -> None:
    made = mutated(good, kind, data)
    if made is None:
        return
    index, changed = made
    try:
        report = judged(renumbered(changed))
    except TraceError:
        return  # it is about an entity that is not there yet
    if report.holds:
        assert equivalent(verdict, report, good, index, kind), good[index]
        assert kind in ("drop", "repeat", "swap", "another row")


def test_what_no_machine_moves_is_testimony(good: Lines) -> None:
    """Answers and flushes are counted and not judged against anything but their own sense."""
    told = [line for line in good if line.get("what") not in ("answered", "flushed")]
    report = judged(renumbered(told))
    assert report.holds
    assert not report.answers
    assert report.final == judged(good).final
