from __future__ import annotations

import pytest

from cgstate.lifecycle import COMPONENT, ENTRY, MACHINES, MANAGER, POOL, Machine
from cgstate.lifecycle import tables as t
from cgstate.lifecycle.rules import ACCEPTANCES
from cgstate.lifecycle.states import ComponentEvent, EntryEvent, EntryState, ManagerEvent, ManagerState, PoolEvent, PoolState
from cgstate.spec.proof.lemmas import COUNTERS, LEMMAS
from cgstate.spec.proof.prove import Report, prove_all
from tests.lifecycle.planting import also_from, drop, plant, row_of, towards, with_guard, without_effect, without_guard

E, P, M = EntryState, PoolState, ManagerState
EV, CV, PV, MV = EntryEvent, ComponentEvent, PoolEvent, ManagerEvent


def refuted(machine: Machine, **what: object) -> set[str]:
    report = prove_all([machine if each.name == machine.name else each for each in MACHINES], **what)  # type: ignore[arg-type]
    return {each.of for each in report.obligations if each.proven is False}


def test_everything_is_proven() -> None:
    report = prove_all()
    assert report.holds
    assert len(report.obligations) > 1_000
    assert {each.of for each in report.obligations} >= {each.name for each in (*LEMMAS, *COUNTERS, *ACCEPTANCES)}


PLANTED = {
    "I3 an open capture has the gate": plant(ENTRY, row_of(ENTRY, EV.capture_begin, E.CAPTURING), without_effect(t.gate_free)),
    "I3 one capture at a time": plant(ENTRY, row_of(ENTRY, EV.capture_begin, E.CAPTURING), without_guard("gate free")),
    "a recording is held only while capturing": plant(ENTRY, row_of(ENTRY, EV.bind, E.BOUND), without_effect(t.recorded)),
    "I6 live in an open pool": plant(POOL, row_of(POOL, PV.retire, P.RETIRED), without_guard("no live entry in its domain")),
    "I6 gone is empty": plant(POOL, row_of(POOL, PV.reclaimed, P.GONE), without_guard("every recording destroyed")),
    "recordings are not negative": plant(POOL, row_of(POOL, PV.destroyed, "state"), without_guard("a recording is left")),
    "a pool that records has a recording": plant(POOL, row_of(POOL, PV.begin, P.RECORDING), without_effect(t.graphs)),
    "a failed recording returns to an open pool": plant(POOL, row_of(POOL, PV.begin, P.RECORDING), also_from(P.RETIRED)),
    "I4 nothing profiled is bound": plant(ENTRY, row_of(ENTRY, EV.bind, E.BOUND), without_guard("pool not a throwaway")),
    "I8 leased while replaying": plant(ENTRY, row_of(ENTRY, EV.release, E.BOUND), without_guard("last lease")),
    "I10 leases are not negative": plant(
        ENTRY, row_of(ENTRY, EV.release, E.REPLAYING), also_from(E.EVICTED), without_guard("other leases left")
    ),
    "I8 the bound are unmarked": plant(ENTRY, row_of(ENTRY, EV.release, E.BOUND), without_guard("not failed")),
    "an attempt returns to where it may begin": plant(ENTRY, row_of(ENTRY, EV.capture_begin, E.CAPTURING), also_from(E.BOUND)),
    "a component returns to where it may begin": plant(COMPONENT, row_of(COMPONENT, CV.begin, E.CAPTURING), also_from(E.BOUND)),
    "I7 what is left is not negative": plant(ENTRY, row_of(ENTRY, EV.reclaim, "state"), without_guard("something to reclaim")),
    "I11 capacity is kept": plant(ENTRY, row_of(ENTRY, EV.capture_begin, E.CAPTURING), without_guard("within capacity")),
    "only who has committed serves": plant(MANAGER, row_of(MANAGER, MV.release, M.PREPARED), without_effect(t.m_serving)),
    "a first transaction does not serve": plant(MANAGER, row_of(MANAGER, MV.capture, M.CAPTURING), without_effect(t.m_before)),
    "component.bound": plant(ENTRY, row_of(ENTRY, EV.evict, E.EVICTED), without_effect(t.entries_bound)),
    "component.leased": plant(ENTRY, row_of(ENTRY, EV.acquire, E.REPLAYING), without_effect(t.entries_leased)),
    "component.held": plant(ENTRY, row_of(ENTRY, EV.reclaim, "state"), without_effect(t.held)),
    "domain.capturing": plant(ENTRY, row_of(ENTRY, EV.bind, E.BOUND), without_effect(t.domain_capturing)),
}


def test_every_lemma_has_its_fault() -> None:
    counters = {f"{each.owner}.{each.field}" for each in COUNTERS}
    assert PLANTED.keys() == {each.name for each in LEMMAS} | counters


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_breaks_it(name: str) -> None:
    lemmas = [each for each in LEMMAS if each.name == name or each.needed_by]
    counters = [each for each in COUNTERS if each.name.startswith(name)]
    found = refuted(PLANTED[name], lemmas=lemmas, counters=counters, rules=())
    assert any(each.startswith(name) for each in found)


@pytest.mark.parametrize("name", [each.name for each in LEMMAS if each.needed_by])
def test_nothing_is_strengthened_in_vain(name: str) -> None:
    report = prove_all(lemmas=[each for each in LEMMAS if each.name != name])
    assert not report.holds


def test_a_rule_of_a_step_is_refuted_with_a_situation() -> None:
    machine = plant(ENTRY, row_of(ENTRY, EV.evict, E.EVICTED), towards(E.FAILED))
    report = prove_all([machine], lemmas=(), counters=())
    refuted_rules = [each for each in report.obligations if each.proven is False]
    broken = next(each for each in refuted_rules if each.of.startswith("FAILED is entered only by a failure"))
    assert broken.counterexample["entry.state"] == "BOUND"
    text = "\n".join(report.lines(verbose=False))
    assert "NOT TRUE: FAILED is entered only by a failure" in text
    assert "entry.state = BOUND" in text


def test_an_event_that_is_refused_without_a_reason_is_refuted() -> None:
    machine = drop(ENTRY, row_of(ENTRY, EV.release, E.EVICTED))
    assert refuted(machine, counters=(), rules=()) == {"release is refused only for a reason"}


def test_a_row_that_can_never_be_taken_is_no_proof() -> None:
    machine = plant(ENTRY, row_of(ENTRY, EV.evict, E.EVICTED), with_guard("leased", t.leases.eq(1)))
    assert "some situation allows the row, or its proofs would be empty" in refuted(machine, counters=(), rules=())


def test_a_counter_that_another_table_moves_is_noticed() -> None:
    row = row_of(COMPONENT, CV.forget, E.EAGER)
    machine = plant(
        COMPONENT, row, lambda each: type(each)(each.event, each.sources, each.target, each.guards, (t.add(t.bound),), each.doc)
    )
    assert any(each.startswith("component.bound") for each in refuted(machine, lemmas=(), rules=()))


def test_the_report_tells_proven_from_unknown() -> None:
    report = Report((), 0.0)
    assert report.holds
    assert report.unknown_only
