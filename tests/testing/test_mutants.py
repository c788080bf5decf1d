"""Mutants: every part of the tables is broken, every checker is asked in turn, and a survivor is never taken for anything else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cgstate.errors import ConfigError, IllegalTransition
from cgstate.lifecycle import ENTRY, MACHINES
from cgstate.lifecycle.expr import Lit, Var
from cgstate.lifecycle.states import EntryState
from cgstate.lifecycle.steps import EntrySteps
from cgstate.lifecycle.tables import table_hash
from cgstate.spec.system import ACTIONS
from cgstate.spec.tools import ToolMissing
from cgstate.testing.mutants import checkers, walker
from cgstate.testing.mutants.checkers import CHECKERS, Checker, Limits, check
from cgstate.testing.mutants.evidence import Table, figures, read, write
from cgstate.testing.mutants.installed import installed
from cgstate.testing.mutants.ladder import chosen, climb, climb_all, mutants
from cgstate.testing.mutants.mutant import RuntimeMutant, SystemMutant, TableMutant
from cgstate.testing.mutants.operators import OPERATORS, bent, table_mutants
from cgstate.testing.mutants.page import page
from cgstate.testing.mutants.planted import system_mutants
from cgstate.testing.mutants.verdict import Cell, CheckerName, Fate, Outcome, ReviewedFails, Tried
from cgstate.testing.schedules import cases
from tests.spec.test_tlc import needs_java

DOCS = Path(__file__).parents[2] / "docs"
Z3, WALKER, TLC, STATEFUL, SCHEDULES = CheckerName


@pytest.fixture(scope="module")
def recorded() -> Table:
    return read(DOCS / "evidence" / "mutants.json")


def table_mutant(id: str) -> TableMutant:
    mutant = mutants()[id]
    assert isinstance(mutant, TableMutant)
    return mutant


# -- the recorded table ---------------------------------------------------------------------------------------------------


def test_the_recorded_table_has_every_mutant_of_today_dead_or_equivalent(recorded: Table) -> None:
    assert recorded.table_hash == table_hash(), "run: cgstate mutants --evidence docs/evidence/mutants.json"
    fates = {each.id: each.fate for each in recorded.tried}
    assert list(fates) == list(mutants())
    assert {id for id, fate in fates.items() if fate not in (Fate.killed, Fate.equivalent)} == set()


def test_the_page_is_what_the_table_gives(recorded: Table) -> None:
    assert (DOCS / "mutants.md").read_text() == page(recorded), "run: python -m cgstate.testing.mutants.page"


SAMPLE = (
    "entry/capture_begin/drop-guard/gate-free",
    "entry/bind/drop-row",
    "entry/release-3/retarget/BOUND",
    "entry/reclaim/drop-guard/last-replay-complete",
    "component/begin-2/drop-source/REPLAYING",
    "component/last_release-2/negate-guard/no-entry-is-left",
    "pool/retire/add-source/RECORDING",
    "pool/fail/change-effect/graphs-2",
    "manager/capture-2/drop-guard/not-draining",
    "manager/close/bend-guard/no-lease-held-1",
    "system/K01/a-profile-records-into-pools-that-serve",
    "system/K05/graphs-are-destroyed-before-their-fence",
    "system/K07/memory-goes-while-it-is-leased",
)


@pytest.mark.parametrize("id", SAMPLE)
def test_a_sample_dies_as_recorded(id: str, recorded: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walker, "SHAPES", walker.SHAPES[:1])
    tried = climb(mutants()[id], (Z3, WALKER))
    (then,) = (each for each in recorded.tried if each.id == id)
    assert tried.fate is Fate.killed
    assert tried.killer == then.killer
    assert {name: cell.outcome for name, cell in tried.cells.items()} == {name: cell.outcome for name, cell in then.cells.items()}


def test_a_mutant_that_changes_nothing_is_equivalent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walker, "SHAPES", walker.SHAPES[:1])
    tried = climb(mutants()["entry/release-2/drop-guard/last-lease"])
    assert tried.fate is Fate.equivalent
    assert [cell.outcome for cell in tried.cells.values()] == [Outcome.passed, Outcome.same, *[Outcome.not_run] * 3]


# -- what mutants there are -----------------------------------------------------------------------------------------------


def test_every_row_guard_and_effect_is_broken() -> None:
    broken = Counter((each.machine.name, each.subject, each.operator) for each in table_mutants())
    for machine in MACHINES:
        for row in machine.rows:
            of = {operator.name: broken[machine.name, row.label, operator.name] for operator in OPERATORS}
            assert of["drop-row"] == 1
            assert of["retarget"] >= len(machine.states) - 1
            assert of["add-source"] == len(machine.states) - len(row.sources)
            assert of["drop-source"] == (len(row.sources) if len(row.sources) > 1 else 0)
            assert of["drop-guard"] == of["negate-guard"] == len(row.guards)
            assert of["drop-effect"] == len(row.effects)
            assert of["change-effect"] >= len(row.effects)


def test_no_mutant_is_the_reviewed_table_or_another_mutant() -> None:
    meanings = [(each.machine.name, each.machine.rows) for each in table_mutants()]
    assert all((machine.name, machine.rows) not in meanings for machine in MACHINES)
    assert len(set(meanings)) == len(meanings) == len({each.id for each in table_mutants()})


def test_conditions_are_bent_one_step_to_either_side() -> None:
    number, truth = Var("n", (0, 1, 2)), Var("b", (False, True))
    assert list(bent(number.lt(2))) == [number.lt(Lit(2) + 1), number.lt(Lit(2) + -1)]
    assert list(bent(number.eq(0))) == [number.eq(1)]
    assert list(bent(truth)) == []
    assert list(bent(truth.eq(True))) == []
    assert list(bent(~(truth & number.eq(0)))) == [~truth, ~number.eq(0), ~(truth & number.eq(1))]
    state = Var("state", tuple(EntryState))
    assert list(bent(state.among(EntryState.BOUND, EntryState.FAILED))) == [
        state.among(EntryState.FAILED),
        state.among(EntryState.BOUND),
    ]


def test_every_kind_of_lifecycle_fault_is_planted() -> None:
    kinds = {each.id.split("/")[1] for each in mutants().values() if not isinstance(each, TableMutant)}
    assert kinds == {f"K{number:02}" for number in range(1, 18)}
    assert all(each.actions != ACTIONS for each in system_mutants())


def test_mutants_are_chosen_by_id_by_lot_and_by_who_sees_them() -> None:
    assert {each.id for each in chosen("*/evict-?/drop-row")} == {"entry/evict-1/drop-row", "entry/evict-2/drop-row"}
    drawn = chosen(sample=5, seed=1)
    assert len(drawn) == 5
    assert drawn == chosen(sample=5, seed=1) != chosen(sample=5, seed=2)
    assert len(chosen("system/*", sample=10_000)) == len(list(system_mutants()))
    assert {type(each) for each in chosen(checkers=(Z3,))} == {TableMutant}
    assert {type(each) for each in chosen(checkers=(WALKER,))} == {TableMutant, SystemMutant}
    assert {type(each) for each in chosen(checkers=(SCHEDULES,))} == {TableMutant, RuntimeMutant}
    with pytest.raises(ConfigError, match="no mutant matches 'nothing'"):
        chosen("nothing")


# -- the ladder -----------------------------------------------------------------------------------------------------------


def saying(outcome: Outcome) -> Checker:
    return Checker((TableMutant,), lambda mutant, limits: (outcome, "because"))


def climbing(monkeypatch: pytest.MonkeyPatch, *outcomes: Outcome) -> Tried:
    fake = dict(zip(CheckerName, map(saying, outcomes), strict=True))
    monkeypatch.setattr(checkers, "CHECKERS", fake)
    return climb(mutants()["entry/bind/drop-row"])


PASSED, KILLED, SAME, LATE = Outcome.passed, Outcome.killed, Outcome.same, Outcome.timed_out


@pytest.mark.parametrize(
    ("outcomes", "fate", "run"),
    [
        ((KILLED, KILLED, KILLED, KILLED, KILLED), Fate.killed, 1),
        ((PASSED, PASSED, PASSED, KILLED, KILLED), Fate.killed, 4),
        ((PASSED, SAME, KILLED, KILLED, KILLED), Fate.equivalent, 2),
        ((PASSED, LATE, PASSED, KILLED, PASSED), Fate.killed, 4),
        ((PASSED, LATE, PASSED, PASSED, PASSED), Fate.undecided, 5),
        ((PASSED, PASSED, PASSED, PASSED, PASSED), Fate.survived, 5),
    ],
)
def test_a_mutant_climbs_until_it_is_settled(
    outcomes: tuple[Outcome, ...], fate: Fate, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = climbing(monkeypatch, *outcomes)
    assert tried.fate is fate
    assert [cell.outcome for cell in tried.cells.values()] == [*outcomes[:run], *[Outcome.not_run] * (5 - run)]
    assert (tried.killer is not None) == (fate is Fate.killed)


def test_a_checker_is_blind_to_what_it_does_not_look_at() -> None:
    fault = next(system_mutants())
    assert {name: check(name, fault, Limits()).outcome for name in (Z3, STATEFUL, SCHEDULES)} == dict.fromkeys(
        (Z3, STATEFUL, SCHEDULES), Outcome.blind
    )


def test_running_out_of_time_is_no_kill_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def for_ever(mutant: object, limits: Limits) -> Any:
        while True:
            pass

    monkeypatch.setitem(CHECKERS, Z3, Checker((TableMutant,), for_ever))
    cell = check(Z3, mutants()["entry/bind/drop-row"], Limits(seconds=0.05))
    assert (cell.outcome, cell.by) == (Outcome.timed_out, "after 0.05 s")


def test_without_z3_nothing_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolMissing, match="z3-solver"):
        climb(mutants()["entry/bind/drop-row"])


def test_mutants_are_tried_in_processes_of_their_own_in_their_order() -> None:
    which = chosen("manager/prepare/drop-*") + chosen("pool/begin/drop-row")
    told: list[Tried] = []
    tried = climb_all(which, (Z3,), jobs=2, tick=told.append)
    assert [each.id for each in tried] == [each.id for each in which]
    assert told == tried
    assert {each.fate for each in tried} == {Fate.killed}


# -- the checkers ---------------------------------------------------------------------------------------------------------


def test_a_changed_table_is_what_the_runtime_steps_by() -> None:
    class Lone(EntrySteps):
        name = "lone"

    entry = Lone()
    entry.reset_variables()
    entry.state, entry.leases = EntryState.REPLAYING, 1
    mutant = table_mutant("entry/release-2/drop-row")
    with installed(mutant), pytest.raises(IllegalTransition):
        entry.release()
    assert EntrySteps.machine is ENTRY


def test_the_runtime_with_a_changed_table_is_caught_by_walks() -> None:
    cell = check(STATEFUL, mutants()["entry/evict-1/drop-row"], Limits(walks=20))
    assert cell.outcome is Outcome.killed
    assert cell.by


def test_walks_that_find_nothing_say_so() -> None:
    assert check(STATEFUL, mutants()["entry/release-2/drop-guard/last-lease"], Limits(walks=2)).outcome is Outcome.passed


def test_an_answer_that_is_no_copy_is_caught_when_it_changes() -> None:
    cell = check(STATEFUL, mutants()["runtime/K08/a-call-hands-out-the-static-output-not-a-copy"], Limits(walks=20))
    assert cell.outcome is Outcome.killed
    assert "given to keep" in cell.by


def test_a_race_is_caught_under_some_schedule() -> None:
    race = next(each for each in mutants().values() if isinstance(each, RuntimeMutant) and each.case is cases.replay_against_replay)
    cell = check(SCHEDULES, race, Limits())
    assert cell.outcome is Outcome.killed
    assert cell.by.startswith("replay_against_replay: ")


def test_what_fails_without_the_mutant_as_well_is_no_kill() -> None:
    broken = next(each for each in mutants().values() if each.id.startswith("runtime/K15/"))
    assert isinstance(broken, RuntimeMutant)
    harmless = replace(broken, id="harmless", planting=lambda: installed(table_mutant("entry/release-2/drop-guard/last-lease")))
    with installed(broken), pytest.raises(ReviewedFails, match="fail without a mutant as well"):
        check(STATEFUL, harmless, Limits(walks=100))


@needs_java
def test_tlc_is_given_the_mutants_own_module() -> None:
    cell = check(TLC, next(system_mutants()), Limits(seconds=120))
    assert (cell.outcome, cell.by) == (Outcome.killed, "I1_captured_in_a_transaction")


# -- what is written ------------------------------------------------------------------------------------------------------


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    dead = Tried(
        "a/b/c", "drop-row", "A --b--> C", "it is gone", {Z3: Cell(Outcome.killed, "I3", 0.25), WALKER: Cell(Outcome.not_run)}
    )
    late = replace(dead, id="a/b/d", cells={Z3: Cell(Outcome.timed_out, "after 1 s", 1.0), WALKER: Cell(Outcome.blind)})
    assert write(tmp_path / "dead.json", [dead], "cgstate mutants", "0" * 40)
    assert not write(tmp_path / "both.json", [dead, late], "cgstate mutants", "0" * 40)
    table = read(tmp_path / "both.json")
    assert table.tried == (dead, late)
    assert table.table_hash == table_hash()
    assert figures(table.tried)["undecided"] == figures(table.tried)["killed_by_z3"] == 1


def test_what_was_not_tried_again_stays_in_the_table_and_what_is_no_more_goes(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    one, two, three = (Tried(id, "drop-row", "A --b--> C", "it is gone", {Z3: Cell(Outcome.passed)}) for id in "abc")
    write(path, [one, two, three], "cgstate mutants", "0" * 40)
    dead = replace(two, cells={Z3: Cell(Outcome.killed, "I3")})
    write(path, [dead], "cgstate mutants", "0" * 40, order=["c", "b", "d"])
    assert read(path).tried == (three, dead)


def test_a_table_of_other_tables_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    one, two = (Tried(id, "drop-row", "A --b--> C", "it is gone", {Z3: Cell(Outcome.passed)}) for id in "ab")
    write(path, [one], "cgstate mutants", "0" * 40)
    path.write_text(path.read_text().replace(table_hash(), "0" * 64))
    write(path, [two], "cgstate mutants", "0" * 40, order=["a", "b"])
    assert read(path).tried == (two,)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"date": "", "python": "", "table_hash": "", "rows": [{"id": 1}]}'])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(ConfigError, match="no table of mutants"):
        read(tmp_path / "table.json")
