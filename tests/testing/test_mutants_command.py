"""``cgstate mutants``: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cgstate.cli import app, main
from cgstate.cli.exits import Exit
from cgstate.spec.tools import ToolMissing
from cgstate.testing.mutants import ladder
from cgstate.testing.mutants.verdict import Cell, CheckerName, Outcome, ReviewedFails, Tried

DEAD = Cell(Outcome.killed, "I3 one capture at a time", 0.1)
CELLS = {
    Exit.HOLDS: DEAD,
    Exit.VIOLATED: Cell(Outcome.passed),
    Exit.INCONCLUSIVE: Cell(Outcome.timed_out, "after 1 s", 1.0),
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["mutants", *arguments])


def answering(monkeypatch: pytest.MonkeyPatch, *cells: Cell) -> None:
    """Let the ladder say so, whatever it is asked."""
    tried = [
        Tried(f"entry/bind/{number}", "drop-row", "a row", "it is gone", dict.fromkeys(CheckerName, cell))
        for number, cell in enumerate(cells)
    ]
    monkeypatch.setattr(ladder, "climb_all", lambda *which, **how: tried)


def test_mutants_that_all_die_exit_with_zero_and_a_table() -> None:
    result = run("--only", "entry/bind/drop-*", "--checkers", "z3")
    assert result.exit_code == Exit.HOLDS, result.output
    assert "entry/bind/drop-guard/transaction-commits" in result.output
    assert "killed, 0 equivalent, 0 survived, 0 undecided" in result.output


def test_a_survivor_exits_with_one() -> None:
    result = run("--only", "entry/acquire-2/add-source/BOUND", "--checkers", "z3", "--json")
    assert result.exit_code == Exit.VIOLATED
    document = json.loads(result.stdout)
    assert document["command"] == "mutants"
    assert document["result"]["figures"]["survived"] == 1
    (mutant,) = document["result"]["mutants"]
    assert mutant["cells"]["z3"]["outcome"] == "passed"
    assert mutant["cells"]["walker"]["outcome"] == "not run"


@pytest.mark.parametrize("code", CELLS)
def test_the_worst_mutant_decides(code: Exit, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, DEAD, CELLS[code])
    assert run().exit_code == code


def test_a_survivor_outweighs_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, *CELLS.values())
    assert run().exit_code == Exit.VIOLATED


def test_a_missing_tool_exits_with_four(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*which: object, **how: object) -> None:
        raise ToolMissing("TLC needs Java")

    monkeypatch.setattr(ladder, "climb_all", missing)
    result = run()
    assert result.exit_code == Exit.MISSING
    assert "TLC needs Java" in result.stderr


def test_a_lifecycle_that_fails_without_a_mutant_exits_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*which: object, **how: object) -> None:
        raise ReviewedFails("walk 3 fails without a mutant as well")

    monkeypatch.setattr(ladder, "climb_all", failing)
    result = run()
    assert result.exit_code == Exit.VIOLATED
    assert "walk 3" in result.stderr


def test_evidence_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, DEAD)
    path = tmp_path / "mutants.json"
    monkeypatch.setattr(ladder, "chosen", lambda *how: [])
    monkeypatch.setattr(ladder, "mutants", lambda: ["entry/bind/0"])
    assert run("--evidence", str(path), "--commit", "0" * 40).exit_code == Exit.HOLDS
    document = json.loads(path.read_text())
    assert document["pass"] is True
    assert document["figures"]["killed"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "no mutant matches 'nothing'"),
        (["--checkers", "z3,luck"], "no checker 'luck'"),
        (["--evidence", "x.json", "--checkers", "z3"], "--evidence is about all checkers"),
        (["--commit", "abc"], "--commit goes with --evidence"),
    ],
)
def test_bad_input_exits_with_two_and_one_line(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["cgstate", "mutants", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == Exit.USAGE
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
