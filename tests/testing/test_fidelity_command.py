"""``cgstate fidelity`` at the command line: its exit status, what it prints, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cgstate.backends import choose
from cgstate.backends.sim import SimConfig
from cgstate.cli import main
from cgstate.errors import ConfigError
from cgstate.testing import evidence
from cgstate.testing.fidelity import child, children, recording, running
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.fidelity.children import Crash
from cgstate.testing.fidelity.compare import simulate
from cgstate.testing.fidelity.facts import FACTS
from cgstate.testing.fidelity.lab import Observation
from cgstate.testing.fidelity.origin import Origin
from cgstate.testing.fidelity.programs import children as program_children
from cgstate.testing.fidelity.programs import recording as program_recording
from cgstate.testing.fidelity.programs.play import draw_many, play
from cgstate.testing.fidelity.programs.program import Outcome, Program
from cgstate.testing.fidelity.proof import BARS, write_evidence
from cgstate.testing.fidelity.report import Report

HERE = Origin("2026-01-02T03:04:05+00:00", "a GPU", "1", "2", "3", "c" * 40)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command; exit status, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cgstate", "fidelity", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """A recording in which two things are not as they are."""
    path = tmp_path / "spoilt.json"
    bundled = recording.bundled()
    facts: dict[str, Sequence[recording.Said]] = {
        **bundled.facts,
        "T5": [("held without a copy", [2.0]), ("copied", [2.0])],
        "F3": [],
    }
    recording.write(path, recording.Recording(bundled.origin, facts, bundled.rules, bundled.unseen))
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU that does what the simulator does; what is in the dictionary it does instead."""
    instead: dict[str, Any] = {}

    def run(facts: Sequence[Any], done: Callable[[str], None]) -> dict[str, list[Observation] | Crash]:
        return {fact.id: instead.get(fact.id) or simulate(fact) for fact in facts}

    def play_on_gpu(programs: Iterable[Program], tell: Callable[[str], None]) -> list[Outcome]:
        return [play(program, SimBench(SimConfig())) for program in programs]

    monkeypatch.setitem(FACTS, "P8", replace(FACTS["P8"], program=FACTS["P6"].program))  # a quicker one
    monkeypatch.setattr(choose, "cuda_is_here", lambda: True)
    monkeypatch.setattr(children, "run", run)
    monkeypatch.setattr(program_children, "play_on_gpu", play_on_gpu)
    monkeypatch.setattr(Origin, "here", lambda commit: Origin(HERE.date, HERE.device, "1", "2", "3", commit))
    return instead


# -- the simulator ------------------------------------------------------------------------------------------------------


def test_agreement_is_exit_0_and_a_table(command: Command) -> None:
    code, out, err = command("--only", "t5, F9")
    assert (code, err) == (0, "")
    assert "2 of 2 facts agree" in out
    assert "P1" not in out


def test_a_disagreement_is_exit_1_and_told_label_by_label(command: Command, spoilt: Path) -> None:
    code, out, _ = command("--only", "T5,F3,F9", "--against", spoilt)
    assert code == 1
    assert "T5 held without a copy:\n   recorded: 2\n   seen:     8\n" in out
    assert "F3: the recording does not have it" in out
    assert "1 of 3 facts agree" in out


def test_json_is_one_document_on_stdout(command: Command, spoilt: Path) -> None:
    code, out, err = command("--only", "T5", "--against", spoilt, "--json")
    assert (code, err) == (1, "")
    result = json.loads(out)["result"]
    assert result["holds"] is False
    assert result["facts"][0]["differences"] == [{"label": "held without a copy", "recorded": [2.0], "seen": [8.0]}]
    assert json.loads(command("--only", "T5", "--json")[1])["result"]["holds"] is True


@pytest.mark.parametrize(
    "arguments",
    [
        ("--only", "Z9"),
        ("--record", "somewhere.json"),
        ("--backend", "cuda", "--record", "somewhere.json", "--only", "P1"),
        ("--backend", "cuda", "--evidence", "somewhere.json"),
        ("--evidence", "somewhere.json", "--only", "P1"),
        ("--only", ","),
        ("--only", ""),
        ("--seed", "3"),
        ("--programs", "3"),
        ("--commit", "abc"),
        ("--against", "nowhere.json"),
        ("--against", "."),
        ("--backend", "abacus"),
    ],
    ids=" ".join,
)
def test_a_users_mistake_is_exit_2_without_a_traceback(command: Command, arguments: tuple[str, ...]) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--record", "--evidence"])
def test_a_file_that_cannot_be_written_is_found_out_before_the_work(
    command: Command, gpu: dict[str, Any], tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "record", pytest.fail)
    monkeypatch.setattr(running, "compare_simulator", pytest.fail)
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "inside"):
        code, out, err = command("--backend", "cuda" if option == "--record" else "sim", option, path)
        assert (code, out, err) == (2, "", f"cgstate: {path}: cannot be written\n")


def test_evidence_that_cannot_be_written_after_all_is_a_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_text", lambda path, text: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ConfigError, match="No space left on device"):
        write_evidence(tmp_path / "evidence.json", report(0), "a command")


@pytest.mark.parametrize("how", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")
def test_an_answer_that_nobody_gets_is_no_verdict(how: tuple[str, ...]) -> None:
    arguments = [sys.executable, "-m", "cgstate", "fidelity", "--only", "F3", *how]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "cgstate: stdout: No space left on device\n")


def test_a_closed_stdout_leaves_the_exit_status() -> None:
    script = f"exec {sys.executable} -m cgstate fidelity --only F3 >&-"
    done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_device_is_exit_4_and_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "cuda_is_here", lambda: False)
    code, out, err = command("--backend", "cuda")
    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1


def test_the_table_needs_no_unicode() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = [sys.executable, "-m", "cgstate", "fidelity", "--only", "F3"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 facts agree" in done.stdout


# -- the GPU ------------------------------------------------------------------------------------------------------------


def test_a_gpu_is_recorded_and_the_simulator_is_held_against_that(command: Command, gpu: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.json"
    code, out, _ = command("--backend", "cuda", "--record", path, "--programs", 4, "--commit", "d" * 40)
    assert code == 0, out
    made = recording.read(path)
    assert made.origin == Origin(HERE.date, HERE.device, "1", "2", "3", "d" * 40)
    assert list(made.facts) == list(FACTS)
    assert made.rules == {"release_pool_on_destroy": False, "clear_workspaces_on_destroy": False}
    assert len(program_recording.read(program_recording.beside(path)).outcomes) == 4
    assert command("--against", path)[0] == 0
    assert command("--backend", "cuda", "--against", path)[0] == 0


def test_a_gpu_with_the_newer_rules_is_met_by_a_simulator_with_the_newer_rules(
    command: Command, gpu: dict[str, Any], tmp_path: Path
) -> None:
    newer = {"release_pool_on_destroy": True, "clear_workspaces_on_destroy": True}
    for id_ in FACTS:
        gpu[id_] = simulate(FACTS[id_], newer.items())
    path = tmp_path / "newer.json"
    code, out, _ = command("--backend", "cuda", "--record", path, "--programs", 0)
    assert code == 0, out
    assert recording.read(path).rules == newer


def test_a_program_that_crashes_is_told_and_not_recorded(command: Command, gpu: dict[str, Any], tmp_path: Path) -> None:
    gpu["F7"] = Crash("exit status -6\nabandon ship")
    path = tmp_path / "mine.json"
    code, out, _ = command("--backend", "cuda", "--record", path, "--programs", 0)
    assert code == 1
    assert "F7 did not come to its end: exit status -6\nabandon ship" in out
    assert not path.exists()
    code, out, _ = command("--backend", "cuda", "--only", "F7,F9")
    assert code == 1
    assert "abandon ship" in out
    assert "1 of 1 facts agree" in out


def test_facts_and_programs_of_different_devices_are_refused(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    recording.write(path, recording.bundled())
    programs = program_recording.bundled()
    program_recording.write(program_recording.beside(path), replace(programs, origin=replace(programs.origin, torch="0.1")))
    code, _, err = command("--against", path)
    assert code == 2
    assert "another device" in err


def test_another_gpu_that_does_otherwise_is_exit_1(command: Command, gpu: dict[str, Any]) -> None:
    gpu["F3"] = [Observation("current stream", "the default stream")]
    code, out, _ = command("--backend", "cuda", "--only", "F3")
    assert code == 1
    assert "recorded: stream 0\n   seen:     the default stream\n" in out


SIMULATED = """
import sys
from types import ModuleType
from cgstate.testing.fidelity import child
from cgstate.testing.fidelity.bench_sim import SimBench
sys.modules["cgstate.testing.fidelity.bench_cuda"] = bench = ModuleType("bench_cuda")
bench.CudaBench = SimBench
child.main(sys.argv[1])
"""
"""A process that takes the simulator for the GPU."""


def test_processes_say_what_facts_and_programs_have_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "command", lambda kind: [sys.executable, "-c", SIMULATED, kind])
    assert children.run([FACTS["F3"], FACTS["P8"]]) == {id_: FACTS[id_].run(SimBench()) for id_ in ("F3", "P8")}
    drawn = list(draw_many(3))
    assert program_children.play_on_gpu(drawn) == [play(program, SimBench()) for program in drawn]


def test_a_process_that_fails_is_a_crash_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = children.run([FACTS["F3"], FACTS["P8"]], told.append)
    assert list(found) == ["F3", "P8"]
    assert sorted(told) == ["F3", "P8"]
    assert all(isinstance(each, Crash) and each.words.startswith("exit status 1") for each in found.values())


HANGING = SIMULATED.replace(
    "child.main",
    """
def never_ends(*asked):
    __import__("time").sleep(60)

child.LIMIT_S, child.ANSWERS = 0.5, {"fact": never_ends, "program": never_ends}
child.main""",
)


def test_a_process_that_hangs_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "command", lambda kind: [sys.executable, "-c", HANGING, kind])
    crash = children.run([FACTS["F3"]])["F3"]
    (other,) = program_children.play_on_gpu(draw_many(1))
    for found in (crash, other):
        assert isinstance(found, Crash | program_children.Crash)
        assert found.words.startswith("exit status 1\nTimeout (0:00:00.500000)!")
        assert "in never_ends" in found.words


# -- evidence -----------------------------------------------------------------------------------------------------------


def report(programs: int) -> Report:
    compared = running.compare_simulator(None, list(FACTS.values()), programs=False, tick=lambda done: None)
    return Report(compared.device, compared.origin, compared.verdicts, programs=programs)


def test_evidence_is_the_recordings_and_passes_only_when_everything_agrees(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    assert write_evidence(path, report(200), "a command")
    document = json.loads(path.read_text())
    origin = recording.bundled().origin
    assert document["pass"] is True
    assert [document[name] for name in ("date", "device", "driver", "torch", "python", "commit")] == list(origin.to_json().values())
    assert document["figures"]["facts"] == document["figures"]["facts_recorded"] == len(FACTS) == len(document["rows"])
    assert set(document["bars"]) == set(BARS)
    assert document["schema"] == evidence.SCHEMA
    assert not write_evidence(path, report(199), "a command")
