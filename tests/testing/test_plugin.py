"""The pytest plugin, as a project that has cgstate installed sees it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
WALK = """
    from cgstate.testing import Bed

    def test_walk(cgstate_walk, cgstate_bed):
        assert cgstate_bed is Bed
        assert cgstate_walk(cgstate_bed).steps > 100
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]  # a function of options
    """Run pytest with options in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    installed = any(each.value == "cgstate.testing.plugin" for each in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "cgstate.testing.plugin")
    return lambda *options: pytester.runpytest_subprocess(*plugin, *options)


def test_the_package_names_the_plugin() -> None:
    assert 'cgstate = "cgstate.testing.plugin"' in (ROOT / "pyproject.toml").read_text().split("[project.entry-points.pytest11]")[1]


def test_loading_it_imports_nothing_heavy() -> None:
    heavy = "{'hypothesis', 'torch', 'rich', 'typer', 'cgstate.runtime', 'cgstate.testing.stateful'}"
    code = f"import sys, cgstate.testing.plugin; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_header_says_what_was_chosen(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile("def test_nothing(): pass")
    result = run("--cgstate-seed=7", "--cgstate-preset=slow")
    result.stdout.fnmatch_lines(["cgstate: *, tables *, backend sim, preset slow, seed 7"])


def test_walks_are_summed_up(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile(WALK)
    result = run("--cgstate-preset=fast")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= cgstate =*", "rows taken: * of 52", "guard outcomes seen: * of *"])


def test_workers_of_xdist_are_summed_up(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("xdist")
    pytester.makepyfile(WALK)
    result = run("--cgstate-preset=fast", "-n1", "--cgstate-fail-under=10")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["rows taken: * of 52"])


def test_too_little_coverage_fails_and_says_what_is_missing(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile(WALK.replace("cgstate_walk(cgstate_bed).steps > 100", "cgstate_walk(cgstate_bed)"))
    result = run("--cgstate-preset=fast", "--cgstate-fail-under=100")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--cgstate-fail-under=100: * % of the *", "  not seen: *"])


def test_a_threshold_without_a_stateful_test_fails(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile("def test_nothing(): pass")
    result = run("--cgstate-fail-under=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*no stateful test has run"])


def test_what_needs_cuda_is_skipped_with_the_reason(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile("import pytest\n@pytest.mark.cgstate_cuda\ndef test_on_the_gpu(): raise AssertionError")
    result = run("-rs", "--strict-markers")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs --cgstate-backend=cuda"])


def test_a_schedule_reaches_the_test(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile("def test_it(cgstate_schedule): assert cgstate_schedule == 'caller:launch>evictor'")
    run("--cgstate-schedule=caller:launch>evictor").assert_outcomes(passed=1)


def test_a_failing_walk_prints_its_token(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile("""
        from cgstate.testing.stateful.planted import PLANTED

        def test_walk(cgstate_walk, cgstate_bed):
            with PLANTED[3].planting():
                cgstate_walk(cgstate_bed)
    """)
    result = run("--cgstate-preset=fast")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*whole walk: walk-*"])


def test_a_preset_is_the_profile_of_hypothesis(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile("from hypothesis import settings\ndef test_it(): assert settings.default.max_examples == 20")
    run("--cgstate-preset=fast").assert_outcomes(passed=1)
