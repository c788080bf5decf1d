"""Step properties and goals: they hold for the tables, and each dies with a table that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cgstate.lifecycle import (
    COMPONENT,
    ENTRY,
    MANAGER,
    POOL,
    ComponentEvent,
    ComponentState,
    EntryEvent,
    EntryState,
    Machine,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolState,
)
from cgstate.lifecycle import tables as t
from cgstate.lifecycle.explore import Exploration, explore, walk
from cgstate.lifecycle.expr import Lit
from cgstate.lifecycle.properties import Acceptance, StepProperty, step_of
from cgstate.lifecycle.rules import ACCEPTANCES, GOALS, STEP_PROPERTIES, broken_steps, missed_goals, wrong_refusals
from tests.lifecycle.planting import (
    Change,
    also_from,
    drop,
    not_from,
    plant,
    row_of,
    towards,
    with_effect,
    with_guard,
    without_effect,
    without_guard,
)

E, EV = EntryState, EntryEvent
C, CV = ComponentState, ComponentEvent
P, PV = PoolState, PoolEvent
M, MV = ManagerState, ManagerEvent

Where = tuple[Any, ...]

BREAKS: list[tuple[Machine, str, Where, Change]] = [
    (ENTRY, "a capture begins with the gate", (EV.capture_begin, E.CAPTURING), without_guard("gate free")),
    (ENTRY, "a capture begins with the gate", (EV.capture_begin, E.CAPTURING), without_guard("within capacity")),
    (ENTRY, "a capture begins with the gate", (EV.capture_begin, E.CAPTURING), without_guard("pool not retired")),
    (ENTRY, "a capture begins with the gate", (EV.capture_begin, E.CAPTURING), without_effect(t.noted)),
    (ENTRY, "a capture begins with the gate", (EV.capture_begin, E.CAPTURING), without_effect(t.retiring)),
    (ENTRY, "an attempt ends", (EV.abort, "before"), towards(E.EAGER)),
    (ENTRY, "an attempt ends", (EV.capture_fail, E.FAILED), without_effect(t.unreclaimed)),
    (ENTRY, "the gate is freed by the open capture", (EV.release, E.BOUND), with_effect(t.gate_free, t.TRUE)),
    (ENTRY, "a recording is handed over once", (EV.capture_end, E.CAPTURING), without_effect(t.gate_free)),
    (ENTRY, "BOUND is entered only", (EV.capture_fail, E.FAILED), towards(E.BOUND)),
    (ENTRY, "BOUND is entered only", (EV.bind, E.BOUND), without_guard("transaction commits")),
    (ENTRY, "BOUND is entered only", (EV.bind, E.BOUND), without_guard("epochs still current")),
    (ENTRY, "an eviction is at once", (EV.evict, E.EVICTED), without_guard("no entry of the domain is capturing")),
    (ENTRY, "EVICTED is entered only", (EV.evict, E.REPLAYING), towards(E.EVICTED)),
    (ENTRY, "FAILED is left only", (EV.reclaim, "state"), towards(E.EAGER)),
    (ENTRY, "FAILED is left only", (EV.capture_begin, E.CAPTURING), without_guard("not blocked by an earlier failure")),
    (ENTRY, "FAILED is entered only", (EV.release, E.BOUND), towards(E.FAILED)),
    (ENTRY, "EAGER is entered with nothing left", (EV.forget, E.EAGER), without_guard("all reclaimed")),
    (ENTRY, "a lease is given only", (EV.acquire, E.REPLAYING), without_guard("dependencies resident")),
    (ENTRY, "a lease is given only", (EV.acquire, E.REPLAYING, 1), without_guard("not retiring")),
    (ENTRY, "a lease is given only", (EV.acquire, E.REPLAYING, 1), without_guard("concurrent leases allowed")),
    (ENTRY, "a lease ends by", (EV.release, E.REPLAYING), without_effect(t.leases)),
    (ENTRY, "an entry is leased exactly while", (EV.release, E.REPLAYING), towards(E.BOUND)),
    (ENTRY, "the last release settles", (EV.release, E.FAILED), towards(E.EVICTED)),
    (ENTRY, "the last release settles", (EV.release, E.BOUND), without_guard("not retiring")),
    (ENTRY, "a bound recording that is given up", (EV.evict, E.EVICTED), without_effect(t.unreclaimed)),
    (ENTRY, "an entry is marked retiring only", (EV.replay_fail, E.REPLAYING), with_effect(t.retiring, t.TRUE)),
    (ENTRY, "marks stay until", (EV.release, E.REPLAYING), with_effect(t.failed, t.FALSE)),
    (ENTRY, "a recording is reclaimed with", (EV.reclaim, "state"), without_guard("gate free")),
    (ENTRY, "a recording is reclaimed with", (EV.reclaim, "state"), without_guard("no lease on its pool")),
    (ENTRY, "a recording is reclaimed with", (EV.reclaim, "state"), without_guard("last replay complete")),
    (COMPONENT, "a component in use keeps its state", (CV.fail, "state"), towards(C.FAILED)),
    (COMPONENT, "a transaction takes in", (CV.begin, C.CAPTURING), without_effect(t.c_before)),
    (COMPONENT, "a transaction ends for whom", (CV.commit, "state"), also_from(C.EAGER)),
    (COMPONENT, "a transaction ends as it says", (CV.abort, "before"), towards(C.EAGER)),
    (COMPONENT, "BOUND is entered with an entry", (CV.commit, C.BOUND), without_guard("an entry is left, or all come lazily")),
    (COMPONENT, "REPLAYING is entered from BOUND", (CV.first_lease, C.REPLAYING), without_guard("an entry is leased")),
    (COMPONENT, "REPLAYING is left with no lease", (CV.last_release, C.BOUND), without_guard("no entry leased")),
    (COMPONENT, "EVICTED is entered with no entry left", (CV.last_retired, C.EVICTED), without_guard("no entry is left")),
    (COMPONENT, "FAILED is entered by a failure", (CV.last_release, C.EVICTED), towards(C.FAILED)),
    (COMPONENT, "FAILED is left by", (CV.lazy_bind, C.BOUND), also_from(C.FAILED)),
    (COMPONENT, "EAGER is entered from", (CV.forget, C.EAGER), also_from(C.REPLAYING)),
    (POOL, "one recording at a time", (PV.begin, P.RECORDING), also_from(P.RETIRED)),
    (POOL, "a recording stays", (PV.fail, "before"), without_effect(t.graphs)),
    (POOL, "recordings go one at a time", (PV.destroyed, "state"), also_from(P.RECORDING)),
    (POOL, "a pool retires only", (PV.retire, P.RETIRED), without_guard("no live entry in its domain")),
    (POOL, "a pool retires only", (PV.retire, P.RETIRED), without_guard("the pool is ours")),
    (POOL, "GONE is entered from RETIRED", (PV.reclaimed, P.GONE), also_from(P.LIVE)),
    (POOL, "a retired pool is never opened again", (PV.reclaimed, P.GONE), without_guard("every recording destroyed")),
    (POOL, "a retired pool is never opened again", (PV.reclaimed, P.GONE), towards(P.MINTED)),
    (MANAGER, "serving starts with a commit", (MV.prepare, M.PREPARED), with_effect(t.m_serving, t.TRUE)),
    (MANAGER, "serving ends by being asked to", (MV.fail, "before"), with_effect(t.m_serving, t.FALSE)),
    (MANAGER, "only a manager that has committed", (MV.device_lost, M.POISONED), without_effect(t.m_serving)),
    (MANAGER, "profiling starts and ends", (MV.profile_end, M.PREPARED), towards(M.SERVING)),
    (MANAGER, "an explicit transaction begins", (MV.capture, M.CAPTURING), without_effect(t.m_before)),
    (MANAGER, "an explicit transaction begins", (MV.capture, M.CAPTURING, 1), without_guard("not draining")),
    (MANAGER, "an explicit transaction ends", (MV.fail, "before"), towards(M.PREPARED)),
    (MANAGER, "release and close wait", (MV.close, M.CLOSED), without_guard("no lease held")),
    (MANAGER, "release and close wait", (MV.close, M.CLOSED), also_from(M.CAPTURING)),
    (MANAGER, "a manager is prepared once", (MV.prepare, M.PREPARED), also_from(M.SERVING)),
    (MANAGER, "draining moves nothing", (MV.drain, "state"), towards(M.PREPARED)),
    (MANAGER, "a lost device poisons", (MV.device_lost, M.POISONED), towards(M.CLOSED)),
    (MANAGER, "POISONED is left only by close", (MV.capture, M.CAPTURING), also_from(M.POISONED)),
    (MANAGER, "POISONED is left only by close", (MV.device_lost, M.POISONED), also_from(M.CLOSED)),
]


def rule_of(machine: Machine, start: str) -> StepProperty:
    (rule,) = (rule for rule in STEP_PROPERTIES if rule.machine == machine.name and rule.name.startswith(start))
    return rule


def breaks(rule: StepProperty, mutant: Machine, reviewed: Machine) -> bool:
    steps = (step_of(edge.env, edge.event, edge.after) for edge in walk(mutant, reviewed) if edge.rows)
    return any(text for step in steps for text in rule.violations(step))


def test_every_step_of_the_tables_keeps_every_rule(exploration: Exploration) -> None:
    assert list(broken_steps(exploration)) == []


def test_the_tables_refuse_nothing_that_they_owe(exploration: Exploration) -> None:
    assert list(wrong_refusals(exploration)) == []


def test_every_event_is_owed_in_some_situation(machine: Machine, exploration: Exploration) -> None:
    owed = [each for each in ACCEPTANCES if each.machine == machine.name]
    assert [each.event for each in owed] == list(machine.events)
    for each in owed:
        assert any(edge.event is each.event and any(each.violations(edge.env)) for edge in exploration.edges), each.name


@pytest.mark.parametrize("owed", ACCEPTANCES, ids=lambda each: f"{each.machine} {each.event}")
def test_an_event_that_no_row_takes_is_a_wrong_refusal(owed: Acceptance) -> None:
    (reviewed,) = (each for each in t.MACHINES if each.name == owed.machine)
    mutant = drop(reviewed, *(row for row in reviewed.rows if row.event is owed.event))
    refused = (edge for edge in walk(mutant, reviewed) if edge.event is owed.event and not edge.rows)
    text = next(text for edge in refused for text in owed.violations(edge.env))
    assert text.startswith(f"{owed.machine}: {owed.event} is refused only for a reason")


def test_a_guard_that_asks_for_more_is_a_wrong_refusal() -> None:
    mutant = plant(POOL, row_of(POOL, PV.destroyed, "state"), with_guard("two are left", Lit(1).lt(t.graphs)))
    assert any("destroyed is refused" in text for text in wrong_refusals(explore(mutant, POOL)))


def test_the_tables_reach_every_goal(exploration: Exploration) -> None:
    assert list(missed_goals(exploration)) == []


def test_no_rule_is_vacuous(machine: Machine, exploration: Exploration) -> None:
    """Every condition of every rule is asked of some step: with the opposite demand, each rule breaks in each of them."""
    steps = [step_of(edge.env, edge.event, edge.after) for edge in exploration.edges if edge.rows]
    for rule in (rule for rule in STEP_PROPERTIES if rule.machine == machine.name):
        for condition in rule.must:
            opposite = replace(rule, must=(~condition,))
            assert any(next(opposite.violations(step), None) for step in steps), f"{rule.name}: {condition}"


@pytest.mark.parametrize(
    ("machine", "start", "where", "change"), BREAKS, ids=[f"{m.name} {start}-{n}" for n, (m, start, _, _) in enumerate(BREAKS)]
)
def test_a_rule_dies_with_a_table_that_breaks_it(machine: Machine, start: str, where: Where, change: Change) -> None:
    mutant = plant(machine, row_of(machine, *where), change)
    assert breaks(rule_of(machine, start), mutant, machine)


def test_every_rule_has_a_table_that_breaks_it() -> None:
    assert {rule_of(machine, start).name for machine, start, _, _ in BREAKS} == {rule.name for rule in STEP_PROPERTIES}


def test_a_violation_names_rule_and_step() -> None:
    mutant = plant(POOL, row_of(POOL, PV.reclaimed, P.GONE), towards(P.MINTED))
    text = next(broken_steps(explore(mutant, POOL)))
    assert text.startswith("pool: a retired pool is never opened again")
    assert "RETIRED --reclaimed--> MINTED breaks: state' in (PoolState_RETIRED, PoolState_GONE)" in text


def test_a_trace_is_judged_by_states_and_events_alone() -> None:
    rule = rule_of(ENTRY, "FAILED is left only")
    assert list(rule.violations(step_of({"state": "FAILED"}, "capture_begin", {"state": "CAPTURING"}))) == []
    assert list(rule.violations(step_of({"state": "FAILED"}, "acquire", {"state": "REPLAYING"})))
    assert list(rule.violations(step_of({"state": "FAILED", "blocked": True}, "capture_begin", {"state": "CAPTURING"})))


@pytest.mark.parametrize(
    ("mutant", "missed"),
    [
        (drop(ENTRY, row_of(ENTRY, EV.forget, E.EAGER)), "no way to EAGER"),
        (drop(COMPONENT, row_of(COMPONENT, CV.forget, C.EAGER, 1)), "'state': <EntryState.BOUND: 'BOUND'>"),
        (drop(POOL, row_of(POOL, PV.reclaimed, P.GONE)), "no way to GONE"),
        (drop(POOL, row_of(POOL, PV.end, P.LIVE), row_of(POOL, PV.fail, "before")), "no way to LIVE or MINTED"),
        (plant(MANAGER, row_of(MANAGER, MV.close, M.CLOSED), not_from(M.POISONED)), "no way to CLOSED"),
        (drop(MANAGER, row_of(MANAGER, MV.prepare, M.PREPARED)), "is never taken"),
    ],
    ids=["entry", "component", "pool", "foreign pool", "manager", "rows"],
)
def test_a_goal_is_missed_by_a_table_that_bars_the_way(mutant: Machine, missed: str) -> None:
    assert any(missed in text for text in missed_goals(explore(mutant)))


def test_every_machine_has_goals() -> None:
    assert {goal.machine for goal in GOALS} == {machine.name for machine in t.MACHINES}


def test_a_rule_that_demands_nothing_breaks_nowhere() -> None:
    rule = StepProperty("manager", "nothing", Lit(True), ())
    assert list(rule.violations(step_of({"state": M.NEW}, MV.prepare, {"state": M.CLOSED}))) == []
