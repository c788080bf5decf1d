"""The command line as a whole: a mistake in it is exit 2, one line on stderr, and nothing on stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from cgstate.cli import main
from cgstate.spec import tlc
from cgstate.trace import record
from docs.pages.commands import commands
from tests.trace.runs import record_run

ANSWERS = {
    "demo": "demo --backend sim --model sim --requests 50",
    "fidelity": "fidelity --only F3",
    "fuzz": "fuzz --examples 1",
    "mutants": "mutants --only entry/bind/drop-row --checkers z3",
    "diagram": "diagram entry",
    "bench": "bench --backend sim --part peers --rounds 4",
    "spec generate": "spec generate --out specs",
    "spec check": "spec check",
    "spec prove": "spec prove --json",
    "spec walk": "spec walk --entries 1 --threads 1",
    "spec replay": "spec replay --threads 1 --paths 1",
    "trace check": "trace check run.jsonl",
    "trace show": "trace show run.jsonl",
    "trace export": "trace export run.jsonl",
}
"""A line of each command that prints an answer, soon."""
OTHERS = ["--version", "--help", "spec", "trace show --help", "diagram --json"]


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command; its exit code."""
    monkeypatch.setattr("sys.argv", ["cgstate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("name", commands())
def test_every_command_refuses_an_unknown_option_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *name.split(), "--nosuch") == 2
    said = capsys.readouterr()
    assert said.err.startswith("cgstate: No such option: --nosuch")
    assert said.err.count("\n") == 1
    assert not said.out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nosuch", "No such command 'nosuch'."),
        ("trace nosuch", "No such command 'nosuch'."),
        ("trace show", "Missing argument 'FILE'."),
        ("fuzz --backend tpu", "Invalid value for '--backend': 'tpu' is not one of 'sim', 'cuda'."),
        ("demo --requests 3", "Invalid value for '--requests': "),
        ("demo --requests many", "Invalid value for '--requests': "),
        ("diagram engine", "'engine' is not one of 'entry', "),
        ("trace export x --format csv", "'csv' is not one of 'chrome'."),
        ("bench --part nosuch", "Invalid value for '--part': 'nosuch' is not one of "),
        ("spec check --limit 0", "Invalid value for '--limit': "),
        ("fuzz --limit 0", "Invalid value for '--limit': "),
        ("spec walk --threads", "'--threads' requires an argument."),
        ("mutants more", "unexpected extra argument"),
        ("fidelity --commit x", "--commit"),
        ("spec generate --check --out nowhere", "there is no directory nowhere"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    line: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *line.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("cgstate: ")
    assert says in said.err
    assert said.err.count("\n") == 1
    assert not said.out


@pytest.mark.parametrize("group", ["", "spec", "trace"])
def test_a_group_without_a_command_shows_its_help(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *group.split()) == 2
    said = capsys.readouterr()
    assert "Usage: " in said.out
    assert not said.err


@pytest.mark.parametrize("line", ["--help", "--version", "trace show --help", "diagram entry"])
def test_what_is_answered_is_exit_0(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *line.split()) == 0
    assert capsys.readouterr().out


def full() -> TextIO:
    """The device that is always full."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs the device that is always full")
    return open("/dev/full", "w", encoding="utf-8")


def left() -> TextIO:
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="utf-8")


@pytest.fixture
def at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the lines read, and a TLC that finds nothing."""
    monkeypatch.chdir(tmp_path)
    with record(tmp_path / "run.jsonl") as recorder:
        record_run(recorder)
    holds = tlc.Result(tlc.Verdict.holds, states=1, generated=1, depth=1)
    monkeypatch.setattr(tlc, "check", lambda *run: holds)


def test_no_command_is_left_out_of_what_follows() -> None:
    assert list(ANSWERS) == list(commands())


@pytest.mark.parametrize(
    ("stdout", "says"), [(full, "cgstate: stdout: No space left on device\n"), (left, "")], ids=["full", "closed pipe"]
)
@pytest.mark.parametrize("line", [*ANSWERS.values(), *OTHERS])
@pytest.mark.usefixtures("at_hand")
def test_an_answer_that_nobody_gets_is_no_verdict(
    line: str, stdout: Callable[[], TextIO], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with stdout() as out:
        monkeypatch.setattr("sys.stdout", out)
        code = command(monkeypatch, *line.split())
    assert (code, capsys.readouterr().err) == (2, says)


@pytest.mark.usefixtures("at_hand")
def test_a_mistake_is_told_also_where_the_answer_before_it_was_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path("run.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("broken.jsonl").write_text("".join(lines[:3]) + "nothing\n", encoding="utf-8")
    with full() as out:
        monkeypatch.setattr("sys.stdout", out)
        assert command(monkeypatch, "trace", "export", "broken.jsonl") == 2
    said = capsys.readouterr().err
    assert said.startswith("cgstate: broken.jsonl")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("redirected", "code"), [(">&-", 0), (">/dev/full", 2), (">/dev/full 2>&1", 2)])
def test_a_process_ends_with_the_code_of_its_answer(redirected: str, code: int) -> None:
    full().close()
    script = f"exec {sys.executable} -m cgstate diagram {redirected}"
    done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def test_a_mistake_is_no_answer_where_stderr_is_closed() -> None:
    script = f"exec {sys.executable} -m cgstate nothing 2>&-"
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
