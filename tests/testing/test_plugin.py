"""The pytest plugin, as a project that has cgstate installed sees it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cgstate.lifecycle.tables import MACHINES
from cgstate.testing.stateful.failing import token
from tests.testing.loading import LOAD_PLUGIN

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]

ROOT = Path(__file__).parents[2]
ROWS = sum(len(machine.rows) for machine in MACHINES)
WALK = """
    from cgstate.testing import Bed

    def test_walk(cgstate_walk, cgstate_bed):
        assert cgstate_bed is Bed
        assert cgstate_walk(cgstate_bed).steps > 100
"""
PLANTED = """
    from cgstate.testing.stateful.planted import PLANTED

    BUG = next(each for each in PLANTED if each.kind == "K15")

    def test_walk(cgstate_walk, cgstate_bed):
        with BUG.planting():
            cgstate_walk(cgstate_bed)
"""
RACE = """
    from cgstate.testing.schedules import Case

    def make(sync):
        counter = [0]

        def count():
            seen = counter[0]
            sync.pause("between")
            counter[0] = seen + 1

        def finish():
            assert counter == [2]

        return Case({"one": count, "two": count}, finish)

    def test_race(cgstate_explore):
        cgstate_explore(make)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest with options in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return lambda *options: pytester.runpytest_subprocess(*LOAD_PLUGIN, *options)


def test_the_package_names_the_plugin() -> None:
    assert 'cgstate = "cgstate.testing.plugin"' in (ROOT / "pyproject.toml").read_text().split("[project.entry-points.pytest11]")[1]


def test_loading_it_imports_nothing_heavy() -> None:
    heavy = "{'hypothesis', 'torch', 'z3', 'rich', 'typer', 'cgstate.lifecycle', 'cgstate.runtime', 'cgstate.testing.stateful'}"
    code = f"import sys, cgstate.testing.plugin; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_session_without_tests_of_ours_says_nothing_but_its_header(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("import sys\ndef test_nothing(): assert not {'torch', 'z3', 'cgstate.runtime'} & set(sys.modules)")
    result = run("--cgstate-seed=7")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cgstate: *, tables *, backend sim, preset normal, seed 7"])
    result.stdout.no_fnmatch_line("*= cgstate =*")


# -- walks ----------------------------------------------------------------------------------------------------------------


def test_walks_are_summed_up(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(WALK)
    result = run("--cgstate-preset=fast", "-m", "cgstate_stateful", "--strict-markers")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["cgstate: *preset fast*", "*= cgstate =*", f"rows taken: * of {ROWS}", "guard outcomes seen: * of *"]
    )


def test_a_preset_is_the_number_of_walks_and_the_profile_of_hypothesis(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("""
        from hypothesis import settings

        def test_it(cgstate_walk, cgstate_bed):
            assert settings.default.max_examples == 20
            report = cgstate_walk(cgstate_bed)
            assert (report.runs, report.seed) == (20, 30)
    """)
    run("--cgstate-preset=fast", "--cgstate-seed=30").assert_outcomes(passed=1)


def test_a_failing_walk_says_how_to_take_it_again(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(PLANTED)
    result = run("--cgstate-preset=fast")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*whole walk: walk-*", "again: pytest '*::test_walk' --cgstate-walk=walk-*"])
    (option,) = set(re.findall(r"--cgstate-walk=walk-\S+", result.stdout.str()))
    again = run("--cgstate-preset=slow", option)
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([f"again: pytest '*::test_walk' {option}"])


def test_a_walk_of_other_tables_is_refused(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(WALK)
    result = run("--cgstate-walk=walk-1-60-00000000")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*drawn from other tables*"])


# -- schedules ------------------------------------------------------------------------------------------------------------


def test_a_failing_schedule_says_how_to_run_it_again(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(RACE)
    result = run("-m", "cgstate_schedule", "--strict-markers")
    result.assert_outcomes(failed=1)
    (schedule,) = set(re.findall(r"--cgstate-schedule='([^']+)'", result.stdout.str()))
    again = run(f"--cgstate-schedule={schedule}")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([f"*again: pytest '*::test_race' --cgstate-schedule='{schedule}'"])


def test_a_schedule_runs_alone(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("""
        from cgstate.testing.schedules import Case

        made = []

        def make(sync):
            made.append(sync)
            return Case({"one": lambda: sync.pause("here"), "two": lambda: sync.pause("there")})

        def test_it(cgstate_explore, cgstate_schedule):
            cgstate_explore(make)
            assert (len(made) == 1) == bool(cgstate_schedule)
    """)
    run().assert_outcomes(passed=1)
    run("--cgstate-schedule=one:here>two").assert_outcomes(passed=1)


def test_a_schedule_reaches_the_test(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("def test_it(cgstate_schedule): assert cgstate_schedule == 'caller:launch>evictor'")
    run("--cgstate-schedule=caller:launch>evictor").assert_outcomes(passed=1)


@pytest.mark.parametrize("option", ["--cgstate-schedule=caller:launch>evictor", f"--cgstate-walk={token(1, 10)}"])
def test_a_replay_that_no_test_takes_is_no_pass(pytester: pytest.Pytester, run: Run, option: str) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = run(option)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"{option}: no test has taken it"])


# -- coverage -------------------------------------------------------------------------------------------------------------


def test_workers_of_xdist_are_summed_up(pytester: pytest.Pytester, run: Run) -> None:
    """Each worker covers what the other does not; the threshold is reached by both together only."""
    pytest.importorskip("xdist")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("rows", [range(0, 30), range(30, 60)], ids=str)
        def test_half(rows):
            from cgstate.testing.stateful.coverage import TOTAL, every_outcome, every_row
            for machine, number, row in list(every_row())[rows.start : rows.stop]:
                TOTAL.rows[machine.name, number] += 1
            for outcome in every_outcome():
                if not outcome.holds:
                    TOTAL.failed.add((outcome.machine, outcome.row, outcome.guard))
    """)
    half = run("-n1", "--cgstate-fail-under=100", "-k", "60")
    half.assert_outcomes(passed=1)
    assert half.ret == pytest.ExitCode.TESTS_FAILED
    both = run("-n2", "--cgstate-fail-under=100")
    both.assert_outcomes(passed=2)
    assert both.ret == pytest.ExitCode.OK
    both.stdout.fnmatch_lines([f"rows taken: {ROWS} of {ROWS}"])


def test_too_little_coverage_fails_and_says_what_is_missing(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(WALK)
    result = run("--cgstate-preset=fast", "--cgstate-fail-under=100")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--cgstate-fail-under=100: * % of the *", "  not seen: *"])


def test_enough_coverage_passes(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(WALK)
    assert run("--cgstate-preset=fast", "--cgstate-fail-under=10").ret == pytest.ExitCode.OK


def test_a_threshold_without_a_stateful_test_fails(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = run("--cgstate-fail-under=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*no stateful test has run"])


# -- what does not run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["alone", "xdist"])
def test_what_could_not_run_is_named(pytester: pytest.Pytester, run: Run, workers: tuple[str, ...]) -> None:
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.cgstate_cuda
        def test_on_the_gpu(): raise AssertionError

        @pytest.mark.cgstate_stateful
        def test_without_what_it_needs(): pytest.skip("no such thing here")

        @pytest.mark.skip(reason="it explores too much")
        def test_explores(cgstate_explore): raise AssertionError

        @pytest.mark.skip(reason="is none of ours")
        def test_other(): raise AssertionError
    """)
    result = run("--strict-markers", *workers)
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines_random(
        [
            "not run: *::test_on_the_gpu: needs --cgstate-backend=cuda",
            "not run: *::test_without_what_it_needs: no such thing here",
            "not run: *::test_explores: it explores too much",
        ]
    )
    result.stdout.no_fnmatch_line("*is none of ours*")


def test_a_device_that_is_not_there_is_an_error(pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether there is one is not asked here: pytester would forget the torch that this imports, whose second import crashes.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(WALK)
    result = run("--cgstate-backend=cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*there is no CUDA device here*"])
