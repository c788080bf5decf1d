"""The benchmark measures what it says, on the simulator as far as that goes, and says what it could not run."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from cgstate.backends.choose import cuda_is_here
from cgstate.bench import run
from cgstate.bench.bed import Effort, SimBed
from cgstate.bench.parts import Part, PartName
from cgstate.bench.timing import Timing, added, interleave, ratio
from cgstate.cli import main

LITTLE = Effort(rounds=4, calls=2, entries=(2, 5), components=(1, 3), graphs={"shared": (3, 6), "per_entry": (3,)})


@pytest.fixture(scope="module")
def measured() -> Part:
    return run.run(SimBed(), effort=LITTLE)


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["cgstate", "bench", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_every_part_gives_its_rows(measured: Part) -> None:
    costs = {(row["part"], row["act"], row["what"]) for row in measured.rows if row["part"] != PartName.capturing}
    assert costs == {
        *(("scaling", "replay", f"{count} entries") for count in LITTLE.entries),
        *(("scaling", "call", f"{count} components") for count in LITTLE.components),
        *(("watching", act, way) for act in ("replay", "call") for way in ("plain", "traced", "checked")),
    }
    captured = {(row["isolation"], row["graphs"]) for row in measured.rows if row["part"] == PartName.capturing}
    assert captured == {("shared", 3), ("shared", 6), ("per_entry", 3)}


def test_figures_are_ratios_of_what_was_measured_together(measured: Part) -> None:
    assert set(measured.figures) == {
        "replay_growth_5_entries",
        "call_growth_3_components",
        *(f"{way}_{act}_ratio" for way in ("traced", "checked") for act in ("replay", "call")),
    }
    assert all(value > 0 for value in measured.figures.values())


def test_what_cannot_be_run_is_said_and_not_passed_over(measured: Part) -> None:
    assert measured.missing == {"peers": "they exist on a CUDA device only"}


def test_only_the_parts_that_are_asked_for_run() -> None:
    seen: list[str] = []
    part = run.run(SimBed(), [PartName.capturing], LITTLE, seen.append)
    assert seen == ["capturing"]
    assert {row["part"] for row in part.rows} == {PartName.capturing}
    assert not part.missing


def test_graphs_that_are_kept_apart_hold_a_pool_each(measured: Part) -> None:
    rows = {(row["isolation"], row["graphs"]): row for row in measured.rows if row["part"] == PartName.capturing}
    together, apart = rows["shared", 3], rows["per_entry", 3]
    assert apart["bytes"] == 3 * int(str(together["bytes"]))
    for row in rows.values():
        assert float(str(row["estimate_over_held"])) >= 1
        assert float(str(row["extrapolated_over_held"])) > 0


def test_ratios_compare_what_was_taken_in_the_same_round() -> None:
    slow, fast = Timing((200.0, 2000.0, 220.0, 210.0)), Timing((100.0, 1000.0, 100.0, 100.0))
    assert ratio({"slow": slow, "fast": fast}, "slow", "fast") == pytest.approx(2.05)  # a noisy round counts as any other
    assert added({"slow": slow, "fast": fast}, "slow", "fast") == 100


def test_of_two_that_cost_the_same_neither_seems_to_add_anything() -> None:
    noise = random.Random(0)
    rounds = [[noise.choice((4500.0, 7000.0)) + noise.gauss(0, 100) for _ in range(480)] for _ in range(2)]
    measured = {"one": Timing(tuple(rounds[0])), "other": Timing(tuple(rounds[1]))}
    assert abs(added(measured, "one", "other")) < 30
    assert added(measured, "other", "one") == -added(measured, "one", "other")


def test_a_candidate_that_does_twice_the_work_is_seen() -> None:
    def work() -> int:
        return sum(range(2_000))

    def twice() -> int:
        return work() + work()

    measured = interleave({"once": work, "twice": twice}, rounds=30, calls=5)
    assert 1.5 < ratio(measured, "twice", "once") < 2.6


def test_one_json_document_holds_the_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(SimBed, "effort", LITTLE)
    assert command(monkeypatch, "--backend", "sim", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "bench"
    assert set(document["result"]) == {"backend", "figures", "rows", "missing"}


def test_the_tables_name_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(SimBed, "effort", LITTLE)
    monkeypatch.setenv("COLUMNS", "160")
    assert command(monkeypatch, "--backend", "sim", "--rounds", "4") == 0
    out = capsys.readouterr().out
    assert "replay_growth_5_entries" in out
    assert "not run: peers: they exist on a CUDA device only" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backend", "sim", "--out", "x.json"), "evidence is of a device"),
        (("--from", "x.json"), "--from goes with --plot"),
        (("--from", "nowhere.json", "--plot", "x.svg"), "nowhere.json cannot be read"),
        (("--from", "x.json", "--plot", "x.svg", "--rounds", "5"), "--from measures nothing: leave out --rounds"),
        (("--from", "x.json", "--plot", "x.svg", "--backend", "auto", "--part", "peers"), "leave out --backend, --part"),
        (("--from", "x.json", "--plot", "x.svg", "--json"), "leave out --json"),
        (("--commit", "abc"), "--commit goes with --out"),
    ],
)
def test_a_users_mistake_is_exit_2_and_one_line(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, *words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "it is not JSON"),
        ("[]", "it holds no JSON object"),
        ('{"command": "cgstate bench", "device": "a device", "torch": "2.11"}', "it does not have rows"),
        ('{"rows": []}', "it does not have command, device, torch"),
        ('{"command": "", "device": "", "torch": "", "rows": [1]}', "its rows are no list of JSON objects"),
    ],
)
def test_a_file_that_is_no_evidence_is_refused_with_what_it_lacks(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.json").write_text(text)
    assert command(monkeypatch, "--from", tmp_path / "some.json", "--plot", tmp_path / "x.svg") == 2
    error = capsys.readouterr().err
    assert f"some.json is no evidence file: {said}" in error
    assert error.count("\n") == 1


def test_a_missing_device_is_exit_4(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if cuda_is_here():
        pytest.skip("there is a CUDA device here")
    assert command(monkeypatch, "--backend", "cuda") == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


# -- the picture --------------------------------------------------------------------------------------------------------


def peers() -> list[dict[str, object]]:
    """Rows as a device would give them."""
    cost = {"p05_ns": 900.0, "median_ns": 1000.0, "p95_ns": 1500.0}
    return [
        {"part": "peers", "what": name, "does": "replay", "inputs": inputs, "outputs": 1, **cost}
        for inputs in (1, 4)
        for name in ("raw", "by hand", "component")
    ]


def test_the_picture_has_a_panel_for_each_part_and_is_the_same_each_time(measured: Part) -> None:
    pytest.importorskip("matplotlib", reason="drawing is an optional extra")
    from cgstate.bench.plot import svg

    rows = [*peers(), *measured.rows]
    text = svg(rows, "here")
    assert text == svg(rows, "here")
    groups = {element.get("id") for element in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}g")}
    assert {"axes_1", "axes_2", "axes_3", "axes_4"} <= groups
    assert "axes_3" not in svg(measured.rows[: len(measured.rows) // 2], "here")


def test_a_picture_of_nothing_is_refused() -> None:
    from cgstate.bench.plot import svg
    from cgstate.errors import ConfigError

    with pytest.raises(ConfigError, match="no row"):
        svg([{"part": "failure"}], "here")


def test_an_evidence_file_is_drawn_without_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="drawing is an optional extra")
    evidence = {"command": "cgstate bench", "device": "a device", "torch": "2.11", "rows": peers()}
    (tmp_path / "bench.json").write_text(json.dumps(evidence))
    assert command(monkeypatch, "--from", tmp_path / "bench.json", "--plot", tmp_path / "bench.svg") == 0
    ET.fromstring((tmp_path / "bench.svg").read_text())
