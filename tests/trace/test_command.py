"""``cgstate trace`` and ``--trace`` at the command line: exit codes are a contract, refusals are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cgstate.cli import main
from cgstate.trace import FileRecorder, check, read, record
from tests.trace.runs import Lines, record_run

EVIDENCE = sorted((Path(__file__).parents[2] / "docs" / "evidence").glob("*.jsonl*"))


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run a command; its exit code."""
    monkeypatch.setattr("sys.argv", ["cgstate", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def right(tmp_path: Path) -> Path:
    path = tmp_path / "right.jsonl.gz"
    with record(path) as recorder:
        record_run(recorder)
    return path


@pytest.fixture
def wrong(tmp_path: Path, good: Lines) -> Path:
    path = tmp_path / "wrong.jsonl"
    lines = [{**line, "target": "FAILED"} if line.get("event") == "bind" else line for line in good]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_right_trace_holds(right: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "trace", "check", right) == 0
    assert "holds: every event obeys the tables, from the first to the last" in capsys.readouterr().out


def test_a_wrong_one_does_not_and_says_where(
    wrong: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "trace", "check", wrong) == 1
    out = capsys.readouterr().out
    assert "no row of the entry table: CAPTURING --bind[" in out
    assert "violated" in out


def test_one_that_is_not_whole_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.jsonl"
    with FileRecorder(path, limit=40, chunk=10) as recorder:
        record_run(recorder)
    assert command(monkeypatch, "trace", "check", path) == 3
    assert "events were not kept" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["check", "show", "export"])
def test_what_is_no_trace_is_refused_in_one_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text("nothing\n")
    assert command(monkeypatch, "trace", what, path) == 2
    err = capsys.readouterr().err
    assert err.startswith("cgstate: ")
    assert err.count("\n") == 1


def test_a_program_reads_one_document(right: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "trace", "check", right, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "trace check"
    assert document["result"]["holds"] is True
    assert document["result"]["violations"] == 0


def test_a_timeline_is_drawn(right: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "trace", "show", right, "--first", 1, "--last", 30, "--entity", "net") == 0
    assert "capture_begin" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--entity", "nosuch"), "there are "),
        (("--first", 10, "--last", 5), "--first 10 comes after --last 5"),
        (("--first", 100_000), "no event from 100,000 on"),
    ],
)
def test_a_timeline_of_nothing_is_refused_in_one_line(
    words: tuple[object, ...], says: str, right: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "trace", "show", right, *words) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("cgstate: ")
    assert says in said.err
    assert said.err.count("\n") == 1


def test_an_export_goes_to_a_file_or_to_stdout(
    right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "trace", "export", right, "--out", tmp_path / "run.json") == 0
    capsys.readouterr()
    assert command(monkeypatch, "trace", "export", right) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "run.json").read_text())
    assert command(monkeypatch, "trace", "export", right, "--out", tmp_path / "nowhere" / "run.json") == 2


def test_the_demonstration_records_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "demo.jsonl.gz"
    assert command(monkeypatch, "demo", "--backend", "sim", "--model", "sim", "--requests", 50, "--trace", path) == 0
    report = check(read(path))
    assert not report.broken
    assert report.whole
    assert report.head.device.startswith("sim:")


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, "demo", "--backend", "sim", "--model", "sim", "--trace", tmp_path / "nowhere" / "x") == 2


if EVIDENCE:  # traces of runs on a real device, once there are any

    @pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.name)
    def test_a_trace_that_is_kept_as_evidence_holds(path: Path) -> None:
        report = check(read(path))
        assert not report.broken
        assert report.whole
        assert report.head.device.startswith("cuda")
