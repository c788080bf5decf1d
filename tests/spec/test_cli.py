from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cgstate.cli import app
from cgstate.cli.exits import Exit
from cgstate.errors import ConfigError
from cgstate.lifecycle import tables
from tests.spec.test_tlc import needs_java


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["spec", *arguments])


def test_generate_writes_and_check_compares(tmp_path: Path) -> None:
    assert run("generate", "--out", str(tmp_path), "--check").exit_code == Exit.VIOLATED
    written = run("generate", "--out", str(tmp_path))
    assert written.exit_code == Exit.HOLDS
    assert "CGStateEntries.tla written" in written.stdout
    assert run("generate", "--out", str(tmp_path), "--check").exit_code == Exit.HOLDS
    (tmp_path / "CGStateEntries.tla").write_text("nothing")
    differing = run("generate", "--out", str(tmp_path), "--check")
    assert differing.exit_code == Exit.VIOLATED
    assert "CGStateEntries.tla differs" in differing.stdout
    assert (tmp_path / "CGStateEntries.tla").read_text() == "nothing"


def test_check_of_a_directory_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    result = run("generate", "--out", str(tmp_path / "nowhere"), "--check")
    assert isinstance(result.exception, ConfigError)
    assert not result.stdout


def test_prove_says_how_many_and_names_each_if_asked() -> None:
    short, long = run("prove"), run("prove", "--verbose")
    assert short.exit_code == long.exit_code == Exit.HOLDS
    assert len(short.stdout.splitlines()) == 1
    assert "proven: I11 capacity is kept; entry: " in long.stdout
    document = json.loads(run("prove", "--json").stdout)
    assert document["command"] == "spec prove"
    assert document["result"]["proven"] == len(document["result"]["obligations"])


def test_without_z3_prove_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("prove")
    assert result.exit_code == Exit.MISSING
    assert "z3-solver" in result.stderr


def test_walk_counts_and_says_what_it_did_not_take() -> None:
    result = run("walk", "--entries", "1", "--threads", "1")
    assert result.exit_code == Exit.HOLDS
    assert "1-1t: " in result.stdout
    assert "never taken here: component: BOUND --forget" in result.stdout
    document = json.loads(run("walk", "--entries", "1", "--threads", "1", "--json").stdout)
    assert document["table_hash"] == tables.table_hash()
    assert document["result"]["complete"]
    assert document["result"]["broken"] == []


def test_walk_that_gives_up_is_inconclusive() -> None:
    assert run("walk", "--entries", "1", "--limit", "50").exit_code == Exit.INCONCLUSIVE


@pytest.mark.parametrize("entries", ["x", "", "1,,1", "0"])
def test_walk_refuses_what_is_no_system(entries: str) -> None:
    result = run("walk", "--entries", entries)
    assert "entr" in str(result.exception)


@needs_java
def test_check_of_a_users_own_configuration(tmp_path: Path) -> None:
    (tmp_path / "Count.tla").write_text(
        "---- MODULE Count ----\nEXTENDS Integers\nVARIABLE n\nInit == n = 0\nNext == n' = (n + 1) % 3\n"
        "Spec == Init /\\ [][Next]_n\nSmall == n < 2\nFine == n < 3\n====\n"
    )
    (tmp_path / "Count.cfg").write_text("SPECIFICATION Spec\nINVARIANT Fine\n")
    config = str(tmp_path / "Count.cfg")
    holds = run("check", "--config", config)
    assert (holds.exit_code, "3 states" in holds.stdout) == (Exit.HOLDS, True)
    (tmp_path / "Count.cfg").write_text("SPECIFICATION Spec\nINVARIANT Small\n")
    violated = run("check", "--config", config)
    assert violated.exit_code == Exit.VIOLATED
    assert "Small is violated" in violated.stdout
    assert "n: 1 -> 2" in violated.stdout
    document = json.loads(run("check", "--config", config, "--json").stdout)
    assert document["result"]["Count"]["property"] == "Small"
    (tmp_path / "Count.cfg").write_text("SPECIFICATION Spec\nINVARIANT Nothing\n")
    rejected = run("check", "--config", config)
    assert rejected.exit_code == Exit.USAGE
    assert len(rejected.stderr.splitlines()) == 1


def test_check_of_an_unknown_configuration_names_those_there_are() -> None:
    assert "there are ci, components, entries, liveness, large" in str(run("check", "--config", "nothing").exception)


def test_check_without_java_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = run("check", "--config", "liveness")
    assert result.exit_code == Exit.MISSING
    assert "install a Java runtime" in result.stderr
    assert "holds" not in result.stdout


def test_replay_of_a_part_of_the_tour_is_inconclusive() -> None:
    result = run("replay", "--threads", "1", "--paths", "3", "--json")
    assert result.exit_code == Exit.INCONCLUSIVE
    document = json.loads(result.stdout)["result"]
    assert document["paths"] == 3
    assert document["differences"] == []
    assert 0 < document["edges"] < document["of"]
