"""``cgstate fuzz``: what it prints, and its exit codes."""

from __future__ import annotations

import itertools
import json
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cgstate.backends.choose import cuda_is_here
from cgstate.cli import app, main
from cgstate.testing.stateful import planted as bugs
from cgstate.testing.stateful.failing import token


def test_it_prints_what_was_covered() -> None:
    result = CliRunner().invoke(app, ["fuzz", "--examples", "4"])
    assert result.exit_code == 0, result.output
    assert "4 runs, " in result.output
    assert " values compared" in result.output
    assert "rows taken: " in result.output
    assert "violations: 0; bytes left behind: 0" in result.output


def test_too_little_coverage_exits_with_one() -> None:
    assert CliRunner().invoke(app, ["fuzz", "--examples", "2", "--fail-under", "5"]).exit_code == 0
    result = CliRunner().invoke(app, ["fuzz", "--examples", "2", "--fail-under", "100"])
    assert result.exit_code == 1
    assert "% were covered, and 100 % asked for" in result.output


def test_json_is_one_document() -> None:
    result = CliRunner().invoke(app, ["fuzz", "--examples", "2", "--json"])
    document = json.loads(result.stdout)
    assert document["command"] == "fuzz"
    assert document["result"]["violations"] == 0
    assert document["result"]["rows"] == 52
    assert document["result"]["rows_missed"]


def test_a_violation_exits_with_one_and_a_token_that_takes_it_again() -> None:
    bug = next(each for each in bugs.PLANTED if each.kind == "K15")
    with bug.planting():
        result = CliRunner().invoke(app, ["fuzz", "--examples", "20", "--json"])
        assert result.exit_code == 1
        (failure, *_) = json.loads(result.stdout)["result"]["failures"]
        again = CliRunner().invoke(app, ["fuzz", "--replay", failure["token"]])
    assert again.exit_code == 1
    assert failure["why"] in again.output
    assert CliRunner().invoke(app, ["fuzz", "--replay", failure["token"]]).exit_code == 0


@pytest.mark.parametrize("arguments", [["--replay", "nonsense"], ["--evidence", "x.json"], ["--commit", "abc"], ["--limit", "0"]])
def test_a_users_mistake_exits_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["cgstate", "fuzz", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.skipif(cuda_is_here(), reason="there is a device here")
def test_a_missing_device_exits_with_four() -> None:
    result = CliRunner().invoke(app, ["fuzz", "--backend", "cuda"])
    assert result.exit_code == 4


def test_a_limit_that_was_reached_exits_with_three(monkeypatch: pytest.MonkeyPatch) -> None:
    a_second_a_look = SimpleNamespace(monotonic=itertools.count().__next__, process_time=time.process_time)
    monkeypatch.setattr("cgstate.testing.stateful.fuzzing.time", a_second_a_look)
    result = CliRunner().invoke(app, ["fuzz", "--examples", "3", "--limit", "1", "--json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["result"]["runs"] == 1
    assert json.loads(result.stdout)["result"]["stopped"] is True
    assert CliRunner().invoke(app, ["fuzz", "--examples", "1", "--limit", "1"]).exit_code == 0


def test_a_token_names_seed_and_steps() -> None:
    result = CliRunner().invoke(app, ["fuzz", "--replay", token(3, 10), "--json"])
    assert json.loads(result.stdout)["result"]["seed"] == 3
    assert json.loads(result.stdout)["result"]["runs"] == 1
