"""A right run is found right; every fault that the checker claims to see is planted and seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from cgstate.backends.sim import SimBackend
from cgstate.backends.sim.errors import SimAcceleratorError
from cgstate.demo import job
from cgstate.demo.vocoder_sim import SimVocoder
from cgstate.lifecycle.invariants import INVARIANTS
from cgstate.lifecycle.tables import MACHINE
from cgstate.trace import Ring, check, read_lines
from cgstate.trace.checking import SHOWS
from cgstate.trace.replay import INVARIANT_OF_GUARD, find
from cgstate.trace.rows import ROWS
from tests.runtime.helpers import Model
from tests.trace.runs import Lines, judged, recorded, renumbered, rules

# -- what is right ----------------------------------------------------------------------------------------------------


def test_a_run_that_was_right_is_found_right_to_its_last_line(good: Lines) -> None:
    report = judged(good)
    assert not report.broken
    assert (report.holds, report.whole) == (True, True)
    assert report.events == sum(line["record"] in ("step", "notice") for line in good) == report.steps.total() + _notices(good)
    assert report.rows[0] >= 40


def _notices(lines: Lines) -> int:
    return sum(line["record"] == "notice" for line in lines)


def test_the_demonstration_on_the_simulator_is_found_right() -> None:
    ring = Ring(1_000_000)
    result = job.run(SimVocoder(SimBackend(), 0), seed=0, requests=50, observer=ring)
    report = check(read_lines(ring.lines()))
    assert result.passed
    assert not report.broken
    assert report.whole
    assert report.entities["component"] == 2


def test_a_lost_device_is_no_breach() -> None:
    def run(observer: Any) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net, observer=observer)
        x = model.input(4)
        model.dev.lose()
        with contextlib.suppress(SimAcceleratorError):
            net(x)
        manager.close()

    report = judged(recorded(run))
    assert not report.broken
    assert ("manager", _row("manager", "device_lost")) in report.taken


def _row(machine: str, event: str) -> int:
    return next(row.index for row in ROWS[machine] if row.row.event == event)


def test_every_row_of_every_table_has_a_name_of_its_own() -> None:
    for machine in MACHINE:
        found = find(machine)
        assert {row.index for row in found.values()} == set(range(len(ROWS[machine])))


def test_guards_that_keep_an_invariant_are_guards_of_the_tables() -> None:
    guards = {(machine, guard.name) for machine, rows in ROWS.items() for row in rows for guard in row.row.guards}
    assert set(INVARIANT_OF_GUARD) <= guards
    assert set(INVARIANT_OF_GUARD.values()) <= set(SHOWS) <= set(INVARIANTS)


# -- what is wrong ----------------------------------------------------------------------------------------------------

Plant = Callable[[Lines], Lines]


def at(lines: Lines, event: str, nth: int = 0, **fields: Any) -> int:
    """The place of the nth event with these fields; of the last ones if negative."""
    name = "what" if event in ("answered", "epoch", "resident", "flushed") else "event"
    found = [
        index
        for index, line in enumerate(lines)
        if line.get(name) == event and all(line.get(key) == value for key, value in fields.items())
    ]
    return found[nth]


def without(*which: tuple[str, dict[str, Any]]) -> Plant:
    def plant(lines: Lines) -> Lines:
        gone = {at(lines, event, **fields) for event, fields in which}
        return [line for index, line in enumerate(lines) if index not in gone]

    return plant


def drop(event: str, **fields: Any) -> Plant:
    return without((event, fields))


def move(event: str, before: tuple[str, dict[str, Any]], **fields: Any) -> Plant:
    """Take an event from its place, and put it before another."""

    def plant(lines: Lines) -> Lines:
        source = at(lines, event, **fields)
        rest = [*lines[:source], *lines[source + 1 :]]
        target = at(rest, before[0], **before[1])
        return [*rest[:target], lines[source], *rest[target:]]

    return plant


def change(event: str, changes: dict[str, Any], **fields: Any) -> Plant:
    def plant(lines: Lines) -> Lines:
        index = at(lines, event, **fields)
        values = {**lines[index].get("values", {}), **changes.pop("values", {})} if "values" in changes else None
        line = {**lines[index], **changes} | ({"values": values} if values is not None else {})
        return [*lines[:index], line, *lines[index + 1 :]]

    return plant


def insert(event: str, before: tuple[str, dict[str, Any]], changes: dict[str, Any] | None = None, **fields: Any) -> Plant:
    """Repeat an event somewhere else, perhaps changed."""

    def plant(lines: Lines) -> Lines:
        line = {**lines[at(lines, event, **fields)], **(changes or {})}
        target = at(lines, before[0], **before[1])
        return [*lines[:target], line, *lines[target:]]

    return plant


def redeclared(machine: str, entity: str, **values: Any) -> Plant:
    """An entity that was born with other values."""

    def plant(lines: Lines) -> Lines:
        return [
            {**line, "values": {**line["values"], **values}}
            if line["record"] == "entity" and (line["machine"], line["entity"]) == (machine, entity)
            else line
            for line in lines
        ]

    return plant


def smaller(lines: Lines) -> Lines:
    """The component net may hold one graph, and says so each time."""
    told = [
        {**line, "values": {**line["values"], "component.capacity": 1}}
        if line.get("entity", "").startswith("net[") and "component.capacity" in line.get("values", {})
        else line
        for line in lines
    ]
    return redeclared("component", "net", capacity=1)(told)


def both(*plants: Plant) -> Plant:
    def plant(lines: Lines) -> Lines:
        for each in plants:
            lines = each(lines)
        return lines

    return plant


def guard(machine: str, event: str, nth: int = 0) -> str:
    return [row.guard for row in ROWS[machine] if row.row.event == event][nth]


MORE = {"source": "REPLAYING", "target": "REPLAYING", "guard": guard("entry", "acquire", 1)}
BIND = {"event": "bind", "target": "BOUND", "guard": guard("entry", "bind"), "values": {}}

FAULTS: dict[str, tuple[str, Plant]] = {
    "an entry of a transaction is not bound": ("I1", drop("bind", entity="net[8]")),
    "a component is not bound with its entries": ("I1", drop("commit", entity="low", machine="component")),
    "an entry is bound before it is recorded": ("I1", move("bind", ("capture_end", {"entity": "low[2]"}), entity="low[2]")),
    "a transaction binds after it failed": ("I1", change("abort", dict(BIND), entity="first[2]")),
    "a transaction fails twice": (
        "I1",
        insert("capture_fail", ("abort", {"entity": "first[2]"}), {"entity": "first[2]"}, entity="second[2]"),
    ),
    "a capture belongs to no transaction": ("I1", change("capture_begin", {"transaction": None}, entity="low[2]")),
    "a recording is destroyed before it is given up": (
        "I2",
        move("destroyed", ("reclaim", {"entity": "low[2]"}), entity="shared/1"),
    ),
    "a second capture opens": ("I3", move("capture_end", ("capture_end", {"entity": "net[4]"}), entity="net[8]")),
    "an entry is reclaimed in a capture": (
        "I3",
        move("reclaim", ("capture_end", {"entity": "other[2]"}), entity="low[2]"),
    ),
    "a recording is destroyed in a capture": (
        "I3",
        move("destroyed", ("capture_end", {"entity": "other[2]"}), entity="shared/1"),
    ),
    "the gate is taken, and no pool records": ("I3", drop("begin", entity="net[16]/1")),
    "what was profiled is bound": ("I4", change("abort", dict(BIND), entity="net[8] (profile)")),
    "a pool retires under a live entry": ("I6", move("retire", ("evict", {"entity": "net[16]"}), entity="net[16]/1")),
    "a pool goes with a recording in it": ("I6", without(("destroyed", {"entity": "net[16]/1"}))),
    "a capture opens a retired pool": ("I6", change("capture_begin", {"pool": "shared/1"}, entity="other[2]")),
    "a foreign pool is retired": ("I6", redeclared("pool", "shared/1", kind="foreign")),
    "a retiring entry is leased": ("I8", insert("acquire", ("release", {"entity": "low[2]", "nth": 1}), MORE, entity="low[2]")),
    "a draining manager gives a lease": (
        "I8",
        both(
            insert("acquire", ("evict", {"entity": "net[8]", "nth": -1}), entity="net[8]"),
            insert("release", ("evict", {"entity": "net[8]", "nth": -1}), entity="net[8]", nth=-1),
        ),
    ),
    "an entry with stale addresses is leased": ("I8", move("epoch", ("acquire", {"entity": "net[8]"}), entity="net")),
    "an entry without its memory is leased": ("I8", move("resident", ("acquire", {"entity": "net[8]"}), entity="net")),
    "an epoch goes backwards": ("I8", change("epoch", {"value": -1}, entity="net")),
    "a call is answered for no reason": ("I9", change("answered", {"value": "whim"})),
    "a lease ends twice": ("I10", insert("release", ("evict", {"entity": "low[2]"}), entity="low[2]", nth=0)),
    "a component does not know of a lease": ("I10", drop("first_lease", entity="net")),
    "a component does not know of the last release": ("I10", drop("last_release", entity="net")),
    "a component does not know of a lease from beginning to end": (
        "I10",
        without(("first_lease", {"entity": "net"}), ("last_release", {"entity": "net"})),
    ),
    "a manager is closed under a lease": (
        "I10",
        without(("release", {"entity": "net[8]", "nth": -1}), ("last_release", {"entity": "net", "nth": -1})),
    ),
    "a component holds more than it may": ("I11", smaller),
    "a pool is left after close": ("I15", drop("reclaimed", entity="net[8]/3")),
    "a recording is left after close": (
        "I15",
        without(
            ("reclaim", {"entity": "net[4]", "nth": -1}),
            ("destroyed", {"entity": "net[4]/3"}),
            ("forget", {"entity": "net[4]", "nth": -1}),
        ),
    ),
    "an entry is evicted without its domain": ("table", move("evict", ("acquire", {"entity": "b[2]"}), entity="b[2]")),
    "a row that is none": ("table", change("bind", {"target": "FAILED"}, entity="low[2]")),
    "a guard that is none": ("table", change("bind", {"guard": "it felt right"}, entity="low[2]")),
    "an abort that leads elsewhere": ("table", change("abort", {"target": "FAILED"}, entity="first[2]")),
    "a state that was another": ("chain", change("acquire", {"entity": "net[4]"}, entity="net[8]")),
    "time goes backwards": ("chain", change("commit", {"t_ns": 0}, entity="low")),
    "a count that is wrong": ("values", change("capture_begin", {"values": {"component.held": 7}}, entity="low[2]")),
    "a gate that is taken by nobody": ("values", change("capture_end", {"values": {"gate.free": False}}, entity="low[2]")),
    "a lease that no count knows": ("step", change("replay_fail", {"values": {"leases": 0}}, entity="other[2]")),
}

TOGETHER = "an entry is evicted without its domain"


def _together(observer: Any) -> None:
    """Two entries of one domain are evicted together."""
    model = Model()
    with model.manager(observer=observer) as manager:
        model.bind(manager, "a", "b")
        manager.evict("a")
        (b,) = model.bind(manager, "b")
        b[0].replay()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(good: Lines, name: str) -> None:
    rule, plant = FAULTS[name]
    lines = recorded(_together) if name == TOGETHER else good
    planted = plant(lines)
    assert planted != lines
    keep_time = name == "time goes backwards"
    report = judged(planted if keep_time else renumbered(planted))
    assert rule in rules(report), [str(broken) for broken in report.broken]


def test_a_recording_reclaimed_under_a_lease_on_its_pool_is_seen() -> None:
    def run(observer: Any) -> None:
        model = Model()
        with model.manager(observer=observer) as manager:
            (a, _), (b, _) = model.bind(manager, "a", "b")
            with a.lease():
                b.launch = _broken
                with contextlib.suppress(RuntimeError):
                    b.replay()

    lines = recorded(run)
    assert not judged(lines).broken
    early = move("reclaim", ("release", {"entity": "a[2]"}), entity="b[2]")(lines)
    assert "I2" in rules(judged(renumbered(early)))


def _broken() -> None:
    raise RuntimeError("the launch failed")


def test_every_invariant_that_is_claimed_has_a_planted_fault() -> None:
    assert set(SHOWS) <= {rule for rule, _ in FAULTS.values()}


def test_a_report_counts_everything_and_tells_the_first(good: Lines) -> None:
    wrong = [{**line, "guard": "none"} if line["record"] == "step" else line for line in good]
    report = judged(wrong)
    assert report.violations >= sum(line["record"] == "step" for line in good) > len(report.broken) == 100
    assert str(report.broken[0]).startswith("event 1, manager-")


def test_an_entity_that_comes_back_before_it_is_over_is_seen(good: Lines) -> None:
    introduced = next(line for line in good if line["record"] == "entity" and line["entity"] == "net[8]")
    index = at(good, "acquire", entity="net[8]")
    assert "chain" in rules(judged(renumbered([*good[:index], introduced, *good[index:]])))
