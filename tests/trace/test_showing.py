"""A trace as a timeline, and as Chrome's trace events."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from rich.console import Console

from cgstate.errors import ConfigError
from cgstate.lifecycle.tables import MACHINE
from cgstate.trace import Head, Record, Ring, read_lines
from cgstate.trace.chrome import events, export
from cgstate.trace.timeline import LOOKS, View, draw
from tests.runtime.helpers import Model
from tests.trace.runs import Lines, records


def drawn(read: Callable[[], Iterable[Record]], view: View | None = None, width: int = 120, **console: Any) -> list[str]:
    text = io.StringIO()
    draw(read, Console(file=text, width=width, color_system=None, legacy_windows=False, **console), view)
    return text.getvalue().splitlines()


def test_every_state_of_every_machine_has_a_look() -> None:
    assert {state.value for machine in MACHINE.values() for state in machine.states} == set(LOOKS)


def test_few_events_are_listed_one_by_one(good: Lines) -> None:
    lines = drawn(lambda: records(good), View(first=1, last=20))
    listed = [line.split() for line in lines if line.strip() and line.split()[0].isdigit()]
    assert [int(words[0]) for words in listed] == list(range(1, 21))
    assert any("capture_begin" in words and "CAPTURING" in words for words in listed)


def test_twenty_thousand_events_fit_on_a_screen() -> None:
    model, ring = Model(), Ring(1_000_000)
    with model.manager(observer=ring, check=False) as manager:
        entries = [entry for entry, _ in model.bind(manager, *(f"c{number}" for number in range(5)))]
        for turn in range(5_000):
            entries[turn % 5].replay()
    lines = drawn(lambda: read_lines(ring.lines()))
    assert sum(bool(re.search(r"2,00\d $", line)) for line in lines) >= 5
    assert len(lines) < 40
    assert all(len(line) <= 120 for line in lines)
    assert any("20,0" in line and "events" in line for line in lines)


def test_of_many_entities_the_busiest_are_drawn() -> None:
    model, ring = Model(), Ring(1_000_000)
    with model.manager(observer=ring, check=False) as manager:
        entries = [entry for entry, _ in model.bind(manager, *(f"c{number}" for number in range(60)))]
        entries[59].replay()
    lines = drawn(lambda: read_lines(ring.lines()))
    assert any("c59[2]" in line for line in lines)
    assert any("entities with fewer events" in line for line in lines)
    assert len(lines) < 60


def test_a_lane_shows_what_happened_when(good: Lines) -> None:
    lines = drawn(lambda: records(good), View(entity="net[16]"), width=160)
    lane = next(line for line in lines if re.match(r" entry +net\[16\] ", line))
    bar = lane.split("net[16]")[1].split()[0]
    assert bar.index("▒") < bar.index("█") < bar.index("╌")


def test_plain_consoles_get_plain_marks(good: Lines) -> None:
    text = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    draw(lambda: records(good), Console(file=text, width=100, color_system=None, legacy_windows=False), View(entity="net["))
    text.flush()
    written = text.buffer.getvalue().decode()
    assert "#" in written
    assert "C captures or profiles" in written


def test_a_trace_of_nothing_says_so(good: Lines) -> None:
    nothing = [each for each in records(good) if isinstance(each, Head)]
    assert any("no events" in line for line in drawn(lambda: nothing))


def test_a_view_of_nothing_is_refused_with_what_there_is(good: Lines) -> None:
    for view, says in {
        View(entity="nobody"): r"no entity has 'nobody' in its name; there are .*net\[16\]",
        View(first=100_000): r"no event from 100,000 on: those are from 1 to ",
        View(entity="net[16]", first=1, last=1): r"from 1 to 1: those of entities with 'net\[16\]' in their name are from ",
    }.items():
        with pytest.raises(ConfigError, match=says):
            drawn(lambda: records(good), view)


def test_a_window_says_that_it_is_one() -> None:
    ring = Ring(10)
    model = Model()
    with model.manager(observer=ring) as manager:
        ((entry, _),) = model.bind(manager, "low")
        for _ in range(20):
            entry.replay()
    assert any("a window" in line for line in drawn(lambda: read_lines(ring.lines())))


# -- chrome -----------------------------------------------------------------------------------------------------------


def test_the_export_is_one_json_document_of_known_events(good: Lines) -> None:
    text = io.StringIO()
    count = export(records(good), text)
    document = json.loads(text.getvalue())
    assert len(document["traceEvents"]) == count
    for event in document["traceEvents"]:
        assert event["ph"] in ("M", "B", "E", "i")
        assert {"name", "ph", "pid", "tid"} <= event.keys()
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "i" or event["s"] == "t"


def test_slices_are_balanced_nested_and_in_order_on_every_track(good: Lines) -> None:
    stacks: dict[tuple[object, object], list[object]] = {}
    clock: Counter[tuple[object, object]] = Counter()
    for event in events(records(good)):
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            continue
        assert isinstance(event["ts"], float)
        assert event["ts"] * 1000 >= clock[track]
        clock[track] = int(event["ts"] * 1000)
        stack = stacks.setdefault(track, [])
        if event["ph"] == "B":
            assert not stack
            stack.append(event["name"])
        elif event["ph"] == "E":
            assert stack.pop() == event["name"]
    assert not any(stacks.values())


def test_every_track_has_a_name_and_every_step_is_there(good: Lines) -> None:
    made = list(events(records(good)))
    named = {(event["pid"], event["tid"]) for event in made if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in made if event["ph"] != "M"} <= named
    numbers = {event["args"]["seq"] for event in made if isinstance(event.get("args"), dict) and "seq" in event["args"]}  # type: ignore[index, operator]
    entered = {line["seq"] for line in good if line["record"] == "step" and line["target"] in ("CAPTURING", "REPLAYING", "BOUND")}
    assert entered <= numbers


@pytest.mark.parametrize("what", ["eagerly: not_serving", "epoch 1", "resident False"])
def test_notices_are_instants(good: Lines, what: str) -> None:
    assert any(event["name"] == what and event["ph"] == "i" for event in events(records(good)))
