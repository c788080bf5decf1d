"""Evidence was written by a command, and its verdict follows from its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cgstate.testing import evidence
from cgstate.testing.machine import Machine

FILES = sorted((Path(__file__).parents[1] / "docs" / "evidence").glob("*.json"))
NEEDED = {
    "core-h200": {
        "lease_ns",
        "replay_added_ns_10",
        "replay_added_ns_100",
        "replay_added_ns_1000",
        "replay_ratio_1000",
        "call_ratio",
        "demo_outputs",
        "demo_unequal",
        "failure_cases",
        "failure_cases_clean",
    },
    "core-h200-second-run": {"lease_ns", "replay_added_ns_1000", "replay_ratio_1000", "call_ratio"},
    "core-h200-third-run": {"lease_ns", "replay_added_ns_1000", "replay_ratio_1000", "call_ratio"},
    "fuzz-h200": {"steps", "captures", "replays", "evictions", "compared", "violations", "leaked_bytes"},
    "fidelity-h200": {"facts", "facts_recorded", "programs"},
    "mutants": {"mutants", "killed", "equivalent", "survived", "undecided"},
    "bench-h200": {
        "call_over_raw",
        "call_over_make_graphed_callables",
        "call_over_reduce_overhead",
        "leased_call_over_make_graphed_callables",
        "leased_call_over_reduce_overhead",
        "replay_growth_1000_entries",
    },
    "vllm-h200": {
        "prompts",
        "token_mismatches",
        "step_ratio",
        "entries",
        "trace_events",
        "trace_violations",
        "estimate_over_actual",
    },
    "memory-h200": {
        "shapes",
        "shapes_within",
        "worst_upper_over_actual",
        "order_ratio",
        "order_ratio_unnested_profiled",
        "profile_share_many_graphs",
        "rounds",
        "leaked_bytes",
        "shared_stream_saved_bytes",
    },
}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def found(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param.stem, json.loads(request.param.read_text())


def test_there_is_evidence() -> None:
    assert {path.stem for path in FILES} >= set(NEEDED)


def test_it_says_where_and_when_it_was_measured_and_holds_the_figures(found: tuple[str, dict[str, Any]]) -> None:
    name, document = found
    said = {"schema", "command", "date", "device", "driver", "torch", "python", "commit", "table_hash", "pass", "figures", "rows"}
    assert said <= set(document)
    assert re.fullmatch("[0-9a-f]{40}", document["commit"])
    assert NEEDED[name] <= set(document["figures"])


def test_its_verdict_follows_from_its_figures(found: tuple[str, dict[str, Any]]) -> None:
    _, document = found
    for figure, each in document["bars"].items():
        relation, limit = re.fullmatch(r"(<=|>=|=) ([-+.e0-9]+)", each["bar"]).groups()  # type: ignore[union-attr]
        bar = {"<=": evidence.at_most, ">=": evidence.at_least, "=": evidence.exactly}[relation](float(limit))
        assert each["holds"] is bar.holds(document["figures"][figure]), figure
    assert document["pass"] is all(each["holds"] for each in document["bars"].values())


def test_a_missing_figure_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", lambda: Machine("none", "none", "none", "none"))
    path = tmp_path / "x.json"
    bars = {"a": evidence.at_most(1), "b": evidence.at_least(1)}
    assert not evidence.write(path, command="c", commit="0", figures={"a": 1}, bars=bars, rows=[])
    assert not json.loads(path.read_text())["pass"]
    assert evidence.write(path, command="c", commit="0", figures={"a": 1, "b": 1}, bars=bars, rows=[])
