"""The command line as a whole: a mistake in it is exit 2, one line on stderr, and nothing on stdout."""

from __future__ import annotations

import pytest

from cgstate.cli import main
from docs.pages.commands import commands


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
