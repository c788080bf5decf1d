"""The fact programs: all rows are there, the simulator agrees with the GPU, and a recording is read with suspicion."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cgstate.errors import ConfigError
from cgstate.testing.fidelity import recording
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.fidelity.compare import STOPPED, Verdict, simulate, verdicts_of_simulator
from cgstate.testing.fidelity.document import MAX_BYTES
from cgstate.testing.fidelity.fact import Fact, Rule
from cgstate.testing.fidelity.facts import FACTS
from cgstate.testing.fidelity.lab import Lab, Observation
from cgstate.testing.fidelity.page import page
from cgstate.testing.fidelity.recording import Recording

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bundled() -> Recording:
    return recording.bundled()


@pytest.fixture
def document(bundled: Recording, tmp_path: Path) -> dict[str, Any]:
    recording.write(tmp_path / "r.json", bundled)
    found: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    return found


def read(document: object, tmp_path: Path) -> Recording:
    path = tmp_path / "given.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return recording.read(path)


# -- agreement ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", FACTS.values(), ids=lambda fact: fact.id)
def test_the_simulator_does_what_the_gpu_did(fact: Fact, bundled: Recording) -> None:
    verdicts = list(verdicts_of_simulator(bundled, [fact]))
    assert len(verdicts) == 1 + (fact.rule is not None)
    for verdict in verdicts:
        assert verdict.recorded
        assert verdict.differences == []
        assert verdict.agrees


def test_every_row_of_the_facts_has_a_program_and_a_recording(bundled: Recording) -> None:
    told = re.findall(r"^\| ([A-Z]\d)", (ROOT / "docs" / "facts.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(FACTS) == sorted(bundled.facts)


def test_the_recording_says_where_it_comes_from(bundled: Recording) -> None:
    assert "H200" in bundled.origin.device
    assert re.fullmatch("[0-9a-f]{40}", bundled.origin.commit)
    assert re.match(r"\d{4}-\d{2}-\d{2}T", bundled.origin.date)


def test_rows_that_depend_on_the_release_are_told_by_what_was_seen_and_kept_under_both_rules(bundled: Recording) -> None:
    gated = {id_: fact.rule for id_, fact in FACTS.items() if fact.rule is not None}
    assert set(gated) == {"F4", "W2"} == set(bundled.unseen)
    assert set(bundled.rules) == {rule.switch for rule in gated.values() if rule is not None}
    for id_, rule in gated.items():
        assert rule is not None
        assert isinstance(rule, Rule)
        old, new = dict(bundled.facts[id_])[rule.label], dict(bundled.unseen[id_])[rule.label]
        assert (old == rule.newer) is bundled.rules[rule.switch]
        assert (new == rule.newer) is not bundled.rules[rule.switch]


def test_the_page_of_the_docs_is_what_the_recording_and_the_simulator_say(bundled: Recording) -> None:
    assert (ROOT / "docs" / "fidelity.md").read_text() == page(bundled)


def test_a_program_runs_twice_to_the_same_end() -> None:
    for fact in FACTS.values():
        if fact.id != "P8":  # the slow one
            assert simulate(fact) == simulate(fact), fact.id


# -- comparing ----------------------------------------------------------------------------------------------------------


def seen(*observations: Observation) -> Fact:
    def program(lab: Lab[Any]) -> None:
        lab.seen.extend(observations)

    return Fact("P1", "for this test", program)


@pytest.mark.parametrize(
    ("value", "within", "recorded", "agrees"),
    [
        (3, 0, 3, True),
        (3, 0, 4, False),
        (3, 1, 4, True),
        (3, 1, 4.5, False),
        (True, 1, 1, False),
        (False, 0, 0, False),
        (1, 0, True, False),
        ("fine", 0, "fine", True),
        ("fine", 0, "internal assert", False),
        ({"stream 0": 34}, 0, {"stream 0": 34}, True),
        ({"stream 0": 34}, 2, {"stream 0": 36}, True),
        ({"stream 0": 34}, 0, {"stream 1": 34}, False),
        ({}, 0, {"stream 0": 34}, False),
        ([1, 2], 0, [1, 2], True),
        ([1, 2], 0, [1], False),
        ([1, 2], 0, [2, 1], False),
        ([], 0, {}, False),
    ],
)
def test_values_agree_when_they_are_the_same_or_numbers_within_what_is_allowed(
    value: Any, within: float, recorded: Any, agrees: bool
) -> None:
    fact = seen(Observation("a", value, within))
    assert Verdict(fact, [("a", recorded)], simulate(fact)).agrees is agrees


def test_a_label_that_only_one_side_has_is_a_difference() -> None:
    one, two = Observation("a", 1), Observation("b", 2)
    fact = seen(one, two)
    assert [each.label for each in Verdict(fact, [("a", 1)], [one, two]).differences] == ["b"]
    assert [each.label for each in Verdict(fact, [("a", 1), ("b", 2)], [one]).differences] == ["b"]
    assert [each.label for each in Verdict(fact, [("a", 1), ("c", 2)], [one, two]).differences] == ["c", "b"]


def test_nothing_recorded_is_no_agreement() -> None:
    assert not Verdict(seen(), [], []).agrees


def test_an_error_that_a_program_did_not_expect_is_an_observation() -> None:
    def program(lab: Lab[Any]) -> None:
        lab.say("before", 1)
        raise KeyError("gone")

    assert simulate(Fact("P1", "for this test", program))[-1] == Observation(STOPPED, "KeyError")


def test_the_lab_lets_go_of_what_an_error_held() -> None:
    bench = SimBench()
    lab = Lab(bench)
    before = bench.allocated()
    lab.break_capture(lab.stream(), units=4)
    bench.restore_stream()
    assert bench.allocated() == before


# -- reading ------------------------------------------------------------------------------------------------------------


def test_a_recording_survives_writing_and_reading(bundled: Recording, document: dict[str, Any], tmp_path: Path) -> None:
    assert read(document, tmp_path) == bundled


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"schema": None},
        {"origin": {}},
        {"origin": None},
        {"rules": {"sanitize": True}},
        {"rules": {"release_pool_on_destroy": 1}},
        {"rules": []},
        {"facts": []},
        {"facts": {"Z9": []}},
        {"facts": {"P1": {}}},
        {"facts": {"P1": [["label"]]}},
        {"facts": {"P1": [[1, "value"]]}},
        {"facts": {"P1": [["label", None]]}},
        {"not_recorded_on_a_device": None},
    ],
    ids=json.dumps,
)
def test_a_recording_that_is_malformed_is_refused(change: dict[str, Any], document: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"given\.json"):
        read({**document, **change}, tmp_path)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "1", '{"schema": NaN}', "[" * 100_000, '"\\ud800"', "\x00"])
def test_what_is_no_document_at_all_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"given\.json"):
        read(text, tmp_path)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        recording.read(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match="directory"):
        recording.read(tmp_path)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        recording.read(large)
