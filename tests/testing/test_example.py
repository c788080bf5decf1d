"""The example project: its own tests pass, by the commands that its README and its CI give."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from cgstate.testing import plugin
from tests.testing.loading import LOAD_PLUGIN

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "runner"
README = (EXAMPLE / "README.md").read_text()
CI = (EXAMPLE / ".github" / "workflows" / "ci.yml").read_text()

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="its model is in torch")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Its tests, in a process of their own and in its directory, with the packages of this tree."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *LOAD_PLUGIN, *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    environment |= {"PYTHONPATH": str(ROOT), "CI": "true"}  # there Hypothesis draws the same each time
    return subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)


def commands(text: str) -> list[list[str]]:
    """The arguments of every pytest command in a text."""
    found = re.findall(r"^(?:\s*run: )?(pytest .*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in found]


@pytest.mark.torch
@needs_torch
def test_a_change_passes_as_in_its_ci() -> None:
    (arguments,) = (each for each in commands(CI) if "-n" not in each)
    ended = run(*arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^14 passed", ended.stdout.splitlines()[-1].strip("= ")), ended.stdout


@pytest.mark.torch
@needs_torch
def test_the_one_schedule_of_its_readme_can_be_run() -> None:
    (arguments,) = (each for each in commands(README) if any(word.startswith(plugin.SCHEDULE) for word in each))
    ended = run(*arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_its_battery_costs_about_twenty_lines() -> None:
    code = (EXAMPLE / "tests" / "test_harness.py").read_text()
    assert "class TestRunner(Battery):" in code
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 25


def test_its_commands_use_options_that_there_are() -> None:
    options = set(re.findall(r'"(--cgstate-[a-z-]+)"', Path(plugin.__file__).read_text()))
    used = {word.partition("=")[0] for text in (README, CI) for each in commands(text) for word in each if word.startswith("--")}
    assert len(commands(README) + commands(CI)) == 5
    assert used <= options


def test_its_readme_names_its_files() -> None:
    named = re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE)
    there = {str(path.relative_to(EXAMPLE)) for place in ("runner", "tests", ".github") for path in (EXAMPLE / place).rglob("*.*")}
    assert set(named) <= there
    unnamed = {path for path in there if path.endswith((".py", ".yml"))} - set(named)
    assert unnamed == {"runner/__init__.py", "tests/conftest.py"}
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (EXAMPLE / link).exists(), link


def test_it_asks_for_extras_that_there_are() -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    assert {extra for each in wanted for extra in re.findall(r"cgstate\[(\w+)\]", each)} == {"torch", "test"} <= ours.keys()
