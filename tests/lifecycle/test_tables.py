from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cgstate.errors import PoolRetired
from cgstate.lifecycle import (
    COMPONENT,
    ENTRY,
    MACHINES,
    MANAGER,
    ComponentState,
    EntryEvent,
    EntryState,
    Machine,
    ManagerEvent,
    ManagerState,
    PoolState,
    table_hash,
)
from cgstate.lifecycle import tables as t
from cgstate.lifecycle.expr import Var
from tests.lifecycle.planting import (
    Change,
    also_from,
    drop,
    plant,
    row_of,
    towards,
    with_effect,
    with_guard,
    without_effect,
    without_guard,
)

REVIEWED = "eac6b274c34adf37fb035b06d4345e735fc73698757ad174682912d4927b9d33"
"""Hash of the tables as last reviewed. When it differs, somebody changed what the lifecycle means: read the diff of tables.py
against design.md, see that a rule in rules.py speaks for what is new, then put the value that the failing test prints here."""

DESIGN = """
entry      EAGER EVICTED FAILED        capture_begin  CAPTURING
entry      CAPTURING                   capture_end    CAPTURING
entry      CAPTURING                   bind           BOUND
entry      CAPTURING                   abort          before
entry      CAPTURING                   capture_fail   FAILED
entry      CAPTURING                   capture_fail   before
entry      BOUND REPLAYING             acquire        REPLAYING
entry      REPLAYING                   release        REPLAYING
entry      REPLAYING                   release        BOUND
entry      REPLAYING                   release        EVICTED
entry      REPLAYING                   replay_fail    REPLAYING
entry      REPLAYING                   replay_fail    FAILED
entry      REPLAYING                   release        FAILED
entry      BOUND                       evict          EVICTED
entry      REPLAYING                   evict          REPLAYING
entry      FAILED EVICTED              forget         EAGER
component  EAGER EVICTED FAILED        begin          CAPTURING
component  CAPTURING                   commit         BOUND
component  CAPTURING                   abort          before
component  CAPTURING                   fail           FAILED
component  BOUND REPLAYING             begin          state
component  BOUND REPLAYING             commit         state
component  BOUND REPLAYING             abort          state
component  BOUND REPLAYING             fail           state
component  BOUND                       first_lease    REPLAYING
component  REPLAYING                   last_release   BOUND
component  REPLAYING                   last_release   EVICTED
component  BOUND                       last_retired   EVICTED
component  EVICTED                     lazy_bind      BOUND
component  FAILED EVICTED              forget         EAGER
pool       MINTED LIVE                 begin          RECORDING
pool       RECORDING                   end            LIVE
pool       RECORDING                   fail           before
pool       MINTED LIVE                 retire         RETIRED
pool       RETIRED                     reclaimed      GONE
manager    NEW                         prepare        PREPARED
manager    PREPARED                    profile_begin  PROFILING
manager    PROFILING                   profile_end    PREPARED
manager    PREPARED SERVING            capture        CAPTURING
manager    CAPTURING                   commit         SERVING
manager    CAPTURING                   fail           before
manager    SERVING                     release        PREPARED
manager    NEW PREPARED PROFILING CAPTURING SERVING POISONED  device_lost  POISONED
manager    NEW PREPARED SERVING POISONED  close       CLOSED
"""
"""Every transition that design.md names. Its `close` from any state is here from those with nothing open."""

BEYOND = """
entry      EAGER CAPTURING BOUND REPLAYING EVICTED FAILED  reclaim  state
component  BOUND                       forget         EAGER
pool       LIVE RETIRED                destroyed      state
manager    SERVING                     drain          state
manager    SERVING                     undrain        state
"""
"""What the tables need besides: the reclaimer's own steps, a way back for what is bound without entries, and draining."""


def moves(lines: str) -> Iterator[tuple[str, str, str, str]]:
    """One (machine, source, event, target) for each source of each line."""
    for line in lines.split("\n"):
        if line:
            machine, *sources, event, target = line.split()
            yield from ((machine, source, event, target) for source in sources)


def test_the_tables_are_the_reviewed_ones() -> None:
    assert table_hash() == REVIEWED, f"the tables changed: review them, then set REVIEWED to {table_hash()}"


def test_entries_and_components_have_exactly_the_six_states() -> None:
    assert [state.value for state in EntryState] == ["EAGER", "CAPTURING", "BOUND", "REPLAYING", "EVICTED", "FAILED"]
    assert ComponentState is EntryState
    assert ENTRY.states is COMPONENT.states is EntryState


def test_pools_and_managers_have_the_states_of_the_design() -> None:
    assert " ".join(PoolState) == "MINTED RECORDING LIVE RETIRED GONE"
    assert " ".join(ManagerState) == "NEW PREPARED PROFILING CAPTURING SERVING POISONED CLOSED"


def test_the_tables_have_the_transitions_of_the_design_and_no_others() -> None:
    tables = {
        (machine.name, source.value, row.event.value, row.target.name if isinstance(row.target, Var) else row.target.value)
        for machine in MACHINES
        for row in machine.rows
        for source in row.sources
    }
    assert tables == {*moves(DESIGN), *moves(BEYOND)}


def test_every_event_has_a_row(machine: Machine) -> None:
    assert {row.event for row in machine.rows} == set(machine.events)


def test_every_row_says_why_it_is_there(machine: Machine) -> None:
    assert all(row.doc for row in machine.rows)


CHANGES: dict[str, Change] = {
    "guard dropped": without_guard("epochs still current"),
    "guard added": with_guard("no lease", t.leases.eq(0)),
    "guard renamed": lambda row: replace(row, guards=(replace(row.guards[0], name="recorded"), *row.guards[1:])),
    "guard raises something else": lambda row: replace(row, guards=(replace(row.guards[0], refusal=PoolRetired), *row.guards[1:])),
    "effect dropped": without_effect(t.recorded),
    "effect added": with_effect(t.failed, t.FALSE),
    "target changed": towards(EntryState.EAGER),
    "source added": also_from(EntryState.FAILED),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_hash_sees_every_change_of_meaning(change: Change) -> None:
    bind = row_of(ENTRY, EntryEvent.bind, EntryState.BOUND)
    assert plant(ENTRY, bind, change).fingerprint() != ENTRY.fingerprint()


def test_the_hash_sees_what_is_not_in_a_row() -> None:
    others = [
        drop(MANAGER, MANAGER.rows[0]),
        replace(MANAGER, rows=MANAGER.rows[::-1]),
        replace(MANAGER, initial=ManagerState.PREPARED),
        replace(MANAGER, final=frozenset()),
        replace(MANAGER, own=((t.m_serving, True), *MANAGER.own[1:])),
        replace(MANAGER, overlaps=frozenset({(MANAGER.rows[0].label, MANAGER.rows[1].label)})),
    ]
    assert len({MANAGER.fingerprint(), *(other.fingerprint() for other in others)}) == 1 + len(others)


def test_the_hash_does_not_see_words() -> None:
    prepare = row_of(MANAGER, ManagerEvent.prepare, ManagerState.PREPARED)
    assert plant(MANAGER, prepare, lambda row: replace(row, doc="other words")).fingerprint() == MANAGER.fingerprint()
