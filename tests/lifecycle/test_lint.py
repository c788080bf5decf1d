from __future__ import annotations

from dataclasses import replace

import pytest

from cgstate.errors import TableError
from cgstate.lifecycle import (
    COMPONENT,
    ENTRY,
    MACHINES,
    MANAGER,
    POOL,
    ComponentEvent,
    EntryEvent,
    EntryState,
    Machine,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolState,
    Row,
)
from cgstate.lifecycle import tables as t
from cgstate.lifecycle.expr import Var
from cgstate.lifecycle.lint import Code, check, lint
from tests.lifecycle.planting import also_from, drop, plant, row_of, with_effect, with_guard, without_guard

E = EntryState
SPARE = Var("spare", (False, True))


def of(machine: Machine, code: Code) -> list[str]:
    """The subjects and texts of one kind of finding."""
    return [f"{finding.subject}: {finding.text}" for finding in lint(machine) if finding.code is code]


def test_the_tables_are_clean(machine: Machine) -> None:
    assert lint(machine) == ()


def test_a_row_that_nobody_can_take_is_found() -> None:
    forget = row_of(ENTRY, EntryEvent.forget, E.EAGER)
    found = of(plant(ENTRY, forget, with_guard("leased", t.leases.eq(1))), Code.dead_row)
    assert [text[-27:] for text in found] == ["is never enabled in FAILED", "is never enabled in EVICTED"] or len(found) == 2


def test_a_source_that_a_row_cannot_be_taken_from_is_found() -> None:
    release = row_of(ENTRY, EntryEvent.release, E.BOUND)
    (found,) = of(plant(ENTRY, release, also_from(E.FAILED)), Code.dead_row)
    assert found.endswith("is never enabled in FAILED")


def test_rows_that_are_enabled_together_are_found() -> None:
    release = row_of(ENTRY, EntryEvent.release, E.BOUND)
    mutant = plant(ENTRY, release, without_guard("not failed"))
    (found,) = of(mutant, Code.undeclared_overlap)
    assert "FAILED" in found
    assert found.endswith("are enabled together")


def test_a_declared_overlap_is_accepted_while_it_happens() -> None:
    release = row_of(ENTRY, EntryEvent.release, E.BOUND)
    mutant = plant(ENTRY, release, without_guard("not failed"))
    changed = next(row for row in mutant.rows if row not in ENTRY.rows)
    declared = replace(mutant, overlaps=frozenset({(row_of(ENTRY, EntryEvent.release, E.FAILED).label, changed.label)}))
    assert of(declared, Code.undeclared_overlap) == []
    assert of(declared, Code.idle_overlap) == []


def test_a_declared_overlap_that_never_happens_is_found() -> None:
    pair = MANAGER.rows[0].label, MANAGER.rows[1].label
    (found,) = of(replace(MANAGER, overlaps=frozenset({pair})), Code.idle_overlap)
    assert found.endswith("never do")


def test_a_state_that_is_never_entered_is_found() -> None:
    mutant = drop(POOL, row_of(POOL, PoolEvent.retire, PoolState.RETIRED))
    assert of(mutant, Code.unreachable_state) == ["RETIRED: is never entered", "GONE: is never entered"]


def test_a_state_that_is_never_left_is_found() -> None:
    close = row_of(MANAGER, ManagerEvent.close, ManagerState.CLOSED)
    mutant = plant(MANAGER, close, lambda row: replace(row, sources=(ManagerState.NEW, ManagerState.SERVING)))
    (found,) = of(mutant, Code.trap_state)
    assert found.startswith("POISONED: ")


def test_a_final_state_may_be_a_trap() -> None:
    assert of(MANAGER, Code.trap_state) == []
    assert [text[:7] for text in of(replace(MANAGER, final=frozenset()), Code.trap_state)] == ["CLOSED:"]


@pytest.mark.parametrize(
    ("mutant", "subject"),
    [
        (replace(COMPONENT, own=(*COMPONENT.own, (SPARE, False))), "spare"),
        (replace(ENTRY, related=(*ENTRY.related, SPARE)), "spare"),
        (replace(ENTRY, parameters={**ENTRY.parameters, EntryEvent.bind: (SPARE,)}), "bind(spare)"),
        (replace(ENTRY, parameters={**ENTRY.parameters, EntryEvent.bind: (t.leases,)}), "bind(leases)"),
    ],
    ids=["own", "related", "parameter", "parameter of another event"],
)
def test_a_variable_that_no_row_uses_is_found(mutant: Machine, subject: str) -> None:
    (found,) = of(mutant, Code.unused_variable)
    assert found.startswith(f"{subject}: ")


@pytest.mark.parametrize(
    ("row", "mutant"),
    [
        (
            "an effect reads what an earlier one assigned",
            plant(ENTRY, row_of(ENTRY, EntryEvent.forget, E.EAGER), with_effect(t.recorded, t.retiring)),
        ),
        (
            "two effects assign the same",
            plant(ENTRY, row_of(ENTRY, EntryEvent.forget, E.EAGER), with_effect(t.retiring, t.TRUE)),
        ),
        (
            "the target reads what an effect assigned",
            plant(COMPONENT, row_of(COMPONENT, ComponentEvent.abort, "before"), with_effect(t.c_before, t.same(E))),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_whose_meaning_hangs_on_the_order_of_its_effects_is_found(row: str, mutant: Machine) -> None:
    (found,) = of(mutant, Code.effect_order)
    assert "after an effect of its own assigned it" in found


def test_a_guard_that_cannot_say_no_is_found() -> None:
    bind = row_of(ENTRY, EntryEvent.bind, E.BOUND)
    (found,) = of(plant(ENTRY, bind, with_guard("no lease", t.leases.eq(0))), Code.idle_guard)
    assert found.endswith("guard 'no lease' never says no by itself")


def test_a_guard_that_says_no_only_where_another_does_is_found() -> None:
    bind = row_of(ENTRY, EntryEvent.bind, E.BOUND)
    (found,) = of(plant(ENTRY, bind, with_guard("recorded, again", t.recorded | t.committing)), Code.idle_guard)
    assert "recorded, again" in found


def test_check_passes_the_tables() -> None:
    check(MACHINES)


def test_check_lists_the_findings_of_all_machines() -> None:
    with pytest.raises(TableError) as raised:
        check((drop(POOL, row_of(POOL, PoolEvent.retire, PoolState.RETIRED)), replace(MANAGER, final=frozenset())))
    lines = str(raised.value).splitlines()
    assert "unreachable-state in pool: RETIRED: is never entered" in lines
    assert any(line.startswith("trap-state in manager: CLOSED:") for line in lines)


def test_a_table_that_uses_an_undeclared_variable_cannot_be_made() -> None:
    def stray(row: Row) -> Row:
        return with_guard("stray", SPARE)(row)

    with pytest.raises(TableError, match=r"entry: row .* reads undeclared variable spare"):
        plant(ENTRY, ENTRY.rows[0], stray)


def test_a_changed_table_leaves_the_reviewed_one_alone() -> None:
    before = MANAGER.rows_for(ManagerState.NEW, ManagerEvent.prepare)
    drop(MANAGER, before[0])
    assert MANAGER.rows_for(ManagerState.NEW, ManagerEvent.prepare) == before
