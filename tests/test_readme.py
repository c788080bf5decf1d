"""What README says is what the project does."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest

import cgstate
from benchmarks import readme

TEXT = readme.README.read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_generated_parts_are_what_the_generator_writes() -> None:
    assert readme.source(TEXT) == TEXT


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_name_of_the_package_in_an_example_is_public(example: str) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "cgstate"
    }
    assert used <= set(cgstate.__all__)


def test_every_file_that_it_shows_or_names_is_there() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"|\]\(([^)#:]+)\)', TEXT)
    assert {"docs/diagrams/entry-light.svg", "docs/diagrams/entry-dark.svg"} <= {shown for shown, _ in named}
    assert [path for pair in named for path in pair if path and not (readme.ROOT / path).exists()] == []


def test_the_simulator_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (example for example in EXAMPLES if "kernels" in example)
    exec(compile(example, "README.md", "exec"), {})
    assert "1 calls, 100.0% by graph" in capsys.readouterr().out


@pytest.mark.torch
def test_the_torch_example_runs_on_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (example,) = (example for example in EXAMPLES if "torch" in example)
    for here, there in {".cuda()": "", ', device="cuda"': "", "GraphManager()": 'GraphManager("sim")'}.items():
        assert here in example
        example = example.replace(here, there)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["y"].shape == (5, 8)
    assert names["manager"].stats().components["decoder"].hits == 1
    assert "bytes at most" in capsys.readouterr().out


def test_a_figure_that_was_not_measured_is_said_and_not_left_out() -> None:
    evidence = json.loads(readme.EVIDENCE.read_text())
    del evidence["figures"]["lease_ns"]
    table = readme._table(evidence, readme.FIGURES)
    assert "| a lease: acquire and release | not run | |" in table
    assert len([row for row in table if row.startswith("| ")]) == len(readme.FIGURES) + 1


def test_the_runs_that_met_every_bar_are_those_that_it_says_so_of() -> None:
    (said,) = re.findall(r"of three runs in a row this is the first; (.*?) met every bar, too", " ".join(TEXT.split()))
    runs = re.findall(r"#(core-h200[a-z-]*)", said)
    assert len(runs) == 2
    assert all(json.loads(readme.EVIDENCE.with_stem(run).read_text())["pass"] for run in ["core-h200", *runs])


def test_evidence_of_other_tables_is_called_stale() -> None:
    evidence = json.loads(readme.EVIDENCE.read_text()) | {"table_hash": "another"}
    assert "**Stale" in readme._table(evidence, readme.FIGURES)[0]


def test_the_two_commands_are_the_makefiles() -> None:
    makefile = (readme.ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
