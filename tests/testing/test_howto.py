"""What `howto/testing.md` and `howto/new-backend.md` say is so: their files, put into an empty directory, are tests."""

from __future__ import annotations

import re
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from cgstate.testing.plugin import MARKERS, PRESETS
from tests.testing.loading import LOAD_PLUGIN

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="the page's model is in torch")


def text(page: str) -> str:
    return (HOWTO / page).read_text()


@pytest.fixture
def shell(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty directory in which the project's packages are there."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CI", "true")  # Hypothesis draws the same each time
    return pytester


def written(page: str, shell: pytest.Pytester) -> list[str]:
    """Write the files of a page; their names."""
    files = BLOCK.findall(text(page))
    for name, code in files:
        (shell.path / name).write_text(code)
    return [name for name, _ in files]


def run(shell: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return shell.runpytest_subprocess(*LOAD_PLUGIN, "--cgstate-preset=fast", *arguments)


def reads_as_the_page(result: pytest.RunResult, start: str, end: str) -> None:
    """What a run prints has these lines of the page, from one that has ``start`` to one that has ``end``; … is for anything."""
    lines = text("testing.md").splitlines()
    first = next(number for number, line in enumerate(lines) if start in line)
    last = next(number for number, line in enumerate(lines[first:], first) if end in line)
    assert last > first + 1
    for line in lines[first + 1 : last]:
        pattern = re.escape(line).replace("…", ".*")
        assert any(re.fullmatch(pattern, printed) for printed in result.outlines), line


def test_every_python_block_of_the_pages_is_a_file() -> None:
    for page in ("testing.md", "new-backend.md"):
        assert len(BLOCK.findall(text(page))) == text(page).count("```python\n") > 3


@needs_torch
def test_a_runner_is_tested_as_the_page_says(shell: pytest.Pytester) -> None:
    names = written("testing.md", shell)
    result = run(shell, *(name for name in names if name.startswith("test_") and name != "test_careless.py"))
    result.assert_outcomes(passed=13)
    reads_as_the_page(result, "==== cgstate ====", "not run:")


@needs_torch
def test_a_schedule_test_passes_where_it_is_the_first_to_use_torch(shell: pytest.Pytester) -> None:
    written("testing.md", shell)
    run(shell, "test_threads.py").assert_outcomes(passed=1)


@needs_torch
def test_a_failure_reads_as_the_page_says_and_can_be_taken_again(shell: pytest.Pytester) -> None:
    written("testing.md", shell)
    result = run(shell, "test_careless.py", "--cgstate-preset=normal")  # as it is where nothing is said
    result.assert_outcomes(failed=1)
    reads_as_the_page(result, "I4 profile-leaves-nothing:", "```")
    shown = result.stdout.str()
    code, *_ = re.findall(r"fails:\n(.*?)\nwhole walk:", shown, re.DOTALL)
    again, *_ = re.findall(r"again: pytest '(.*)' (--cgstate-walk=\S+)", shown)
    imports, steps = code.split("\n", 1)
    test = "def test_pasted():\n" + textwrap.indent(steps, "    ")
    (shell.path / "test_pasted.py").write_text(f"from test_careless import CarelessBed\n{imports}\n\n{test}\n")
    result = run(shell, *again, "test_pasted.py::test_pasted")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["FAILED test_careless.py::*I4 profile-leaves-nothing*", "FAILED test_pasted.py::*I4 profile-leaves-nothing*"]
    )


def test_a_backend_is_tested_as_the_page_says(shell: pytest.Pytester) -> None:
    names = written("new-backend.md", shell)
    result = run(shell, *(name for name in names if name.startswith("test_")))
    outcomes = result.parseoutcomes()
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] > 30


def test_the_page_has_every_marker_and_every_preset_as_it_is() -> None:
    for marker in MARKERS:
        assert f"| `{marker}` |" in text("testing.md")
    for name, (examples, steps) in PRESETS.items():
        assert f"| `{name}` | {examples:,} | {steps} |" in text("testing.md")
