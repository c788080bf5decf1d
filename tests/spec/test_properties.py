"""No property that cannot fail: each is broken by a fault planted in the tables or in the system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from cgstate.lifecycle import COMPONENT, ENTRY, MACHINES, MANAGER, POOL, Machine
from cgstate.lifecycle import tables as t
from cgstate.lifecycle.states import ComponentEvent, EntryEvent, EntryState, ManagerEvent, ManagerState, PoolEvent, PoolState
from cgstate.spec.compiled import System
from cgstate.spec.properties import GOALS, INVARIANTS, SETTLED, STEPS
from cgstate.spec.shape import Shape
from cgstate.spec.statements import Action
from cgstate.spec.system import ACTIONS
from cgstate.spec.walk import unreached, unsettled, walk
from tests.lifecycle.planting import also_from, drop, plant, row_of, towards, without_effect, without_guard
from tests.spec.graphs import TWO

E, P, M = EntryState, PoolState, ManagerState
EV, CV, PV, MV = EntryEvent, ComponentEvent, PoolEvent, ManagerEvent


def but(*machines: Machine) -> tuple[Machine, ...]:
    """The four tables with some of them exchanged."""
    others = {machine.name: machine for machine in machines}
    return tuple(others.get(each.name, each) for each in MACHINES)


def asking(name: str, keep: Callable[[int], bool]) -> tuple[Action, ...]:
    """The actions, with some conditions of one left out."""
    return tuple(
        replace(action, require=tuple(each for number, each in enumerate(action.require) if keep(number)))
        if action.name == name
        else action
        for action in ACTIONS
    )


@dataclass(frozen=True)
class Fault:
    machines: Sequence[Machine] = MACHINES
    actions: Sequence[Action] = ACTIONS
    shape: Shape = TWO


INTO_RETIRED = but(
    plant(ENTRY, row_of(ENTRY, EV.capture_begin, E.CAPTURING), without_guard("pool not retired")),
    plant(POOL, row_of(POOL, PV.begin, P.RECORDING), also_from(P.RETIRED)),
)

FAULTS = {
    "I1_nothing_is_half_bound": Fault(
        but(plant(ENTRY, row_of(ENTRY, EV.evict, E.EVICTED), without_effect(t.entries_bound))),
    ),
    "I1_captured_in_a_transaction": Fault(
        but(plant(ENTRY, row_of(ENTRY, EV.bind, E.BOUND), without_guard("pool not a throwaway"))),
        tuple(
            replace(action, require=action.require[1:]) if action.name in ("capture", "capture_anew") else action
            for action in ACTIONS
        ),
        Shape((1,), threads=1),
    ),
    "I2_what_is_live_exists": Fault(but(plant(POOL, row_of(POOL, PV.destroyed, "state"), without_effect(t.graphs)))),
    "I3_one_capture_at_a_time": Fault(but(plant(ENTRY, row_of(ENTRY, EV.capture_begin, E.CAPTURING), without_effect(t.gate_free)))),
    "I3_domains_know_their_captures": Fault(
        but(plant(ENTRY, row_of(ENTRY, EV.capture_begin, E.CAPTURING), without_effect(t.domain_capturing)))
    ),
    "I5_turn": Fault(actions=asking("launch", lambda number: number != 2)),
    "I6_live_in_an_open_pool": Fault(
        but(plant(POOL, row_of(POOL, PV.retire, P.RETIRED), without_guard("no live entry in its domain")))
    ),
    "I6_gone_is_empty": Fault(but(plant(POOL, row_of(POOL, PV.reclaimed, P.GONE), without_guard("every recording destroyed")))),
    "I7_what_is_left_is_counted": Fault(
        but(plant(ENTRY, row_of(ENTRY, EV.evict, E.EVICTED), without_effect(t.unreclaimed))),
    ),
    "I8_only_the_living_are_leased": Fault(but(plant(ENTRY, row_of(ENTRY, EV.release, E.EVICTED), towards(E.REPLAYING)))),
    "I8_what_is_away_is_not_used": Fault(actions=asking("suspended", lambda number: number != 2)),
    "I10_leases_are_conserved": Fault(but(plant(ENTRY, row_of(ENTRY, EV.release, E.BOUND), without_effect(t.entries_leased)))),
    "I11_capacity_is_kept": Fault(but(plant(ENTRY, row_of(ENTRY, EV.reclaim, "state"), without_effect(t.held)))),
    "I1_atomic_bind": Fault(
        but(plant(ENTRY, row_of(ENTRY, EV.abort, "before"), towards(E.EVICTED))),
    ),
    "I2_destroyed_when_unused": Fault(but(plant(ENTRY, row_of(ENTRY, EV.reclaim, "state"), without_guard("last replay complete")))),
    "I3_quiet_capture": Fault(actions=asking("drop_pool", lambda number: number != 0)),
    "I5_one_turn_after_the_other": Fault(actions=asking("launch", lambda number: number != 1), shape=Shape((2,), profile=False)),
    "I6_retired_is_for_good": Fault(INTO_RETIRED),
    "I6_no_capture_into_a_retired_pool": Fault(INTO_RETIRED),
    "I8_leased_while_usable": Fault(
        but(plant(ENTRY, row_of(ENTRY, EV.acquire, E.REPLAYING), without_guard("dependencies resident")))
    ),
    "I8_dead_never_replays": Fault(actions=asking("launch", lambda number: number not in (3, 4))),
    "I11_room_before_capture": Fault(actions=asking("capture", lambda number: number != 4)),
    "end_is_final": Fault(but(plant(MANAGER, row_of(MANAGER, MV.prepare, M.PREPARED), also_from(M.POISONED)))),
}


@pytest.mark.parametrize("name", [each.name for each in (*INVARIANTS, *STEPS)])
def test_a_planted_fault_breaks_it(name: str) -> None:
    fault = FAULTS[name]
    system = System(fault.shape, fault.machines, fault.actions)
    invariants = [each for each in INVARIANTS if each.name == name]
    steps = [each for each in STEPS if each.name == name]
    graph = walk(system, invariants=invariants, steps=steps, limit=200_000)
    assert graph.broken is not None
    assert graph.broken.property.name == name
    assert graph.broken.steps


def test_without_a_way_out_a_goal_is_missed() -> None:
    machines = but(drop(COMPONENT, row_of(COMPONENT, CV.forget, E.EAGER)))
    graph = walk(System(Shape((1,), threads=1), machines), keep_edges=True)
    assert {each.property.name for each in unreached(graph)} == {GOALS[1][0].name}


def test_without_a_reclaimer_nothing_settles() -> None:
    lazy = tuple(replace(action, progress=action.progress and action.name != "drop_pool") for action in ACTIONS)
    graph = walk(System(Shape((1,), threads=1), actions=lazy), keep_edges=True)
    (broken,) = unsettled(graph)
    assert broken.property is SETTLED
    assert "RETIRED" in map(str, broken.state.values())


def test_what_can_go_on_for_ever_is_not_settled() -> None:
    restless = tuple(replace(action, progress=action.progress or action.name == "foreign_capture") for action in ACTIONS)
    graph = walk(System(Shape((1,), threads=1), actions=restless), keep_edges=True)
    assert [each.property for each in unsettled(graph)] == [SETTLED]
