"""The pytest plugin: options, a header line, and a summary of what the stateful tests of a session have covered.

Loaded for every pytest run where cgstate is installed, so it imports nothing until a test asks for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cgstate.testing.stateful.bed import Bed
    from cgstate.testing.stateful.coverage import Coverage
    from cgstate.testing.stateful.fuzzing import FuzzReport

PRESETS = {"fast": (20, 30), "normal": (100, 50), "slow": (1000, 60)}
"""Examples, and steps of each: of Hypothesis machines, and of walks."""

MARKERS = (
    "cgstate_cuda: needs a CUDA device; runs with --cgstate-backend=cuda, and is reported as skipped without",
    "cgstate_stateful: a stateful test, for selecting with -m",
    "cgstate_schedule: explores schedules, for selecting with -m",
)

_SEEN = pytest.StashKey["list[str]"]()
_SUMMARY = "cgstate.testing.stateful.coverage"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("cgstate", "lifecycle of CUDA graphs")
    group.addoption("--cgstate-backend", choices=("sim", "cuda"), default="sim", help="What `cgstate_bed` runs on.")
    group.addoption("--cgstate-seed", type=int, default=0, metavar="N", help="The first seed of `cgstate_walk`.")
    group.addoption(
        "--cgstate-schedule",
        default="",
        metavar="SCHEDULE",
        help="The schedule to replay, as a failure printed it: `cgstate_schedule`.",
    )
    group.addoption(
        "--cgstate-preset",
        choices=tuple(PRESETS),
        default=None,
        help="How many examples walks, and Hypothesis tests by their profile, take; left out: normal, and Hypothesis as it is.",
    )
    group.addoption(
        "--cgstate-fail-under",
        type=float,
        default=None,
        metavar="PERCENT",
        help="Fail if stateful tests covered fewer of the rows, or of the guard outcomes.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, if one was asked for, the preset.

    Raises:
        pytest.UsageError: CUDA was asked for and is not here, or a preset was and Hypothesis is not.
    """
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_SEEN] = []
    if config.getoption("--cgstate-backend") == "cuda":
        from cgstate.backends.choose import cuda_is_here

        if not cuda_is_here():
            raise pytest.UsageError("--cgstate-backend=cuda: there is no CUDA device here (or no torch)")
    if preset := config.getoption("--cgstate-preset"):
        _load_profile(preset)


def _load_profile(preset: str) -> None:
    try:
        from hypothesis import settings
    except ImportError:
        return  # then there is no test that it could concern but walks
    examples, steps = PRESETS[preset]
    settings.register_profile(f"cgstate-{preset}", settings.default, max_examples=examples, stateful_step_count=steps)
    settings.load_profile(f"cgstate-{preset}")


def pytest_report_header(config: pytest.Config) -> str:
    """Versions, and what was chosen."""
    import cgstate
    from cgstate.lifecycle.tables import table_hash

    options = config.option
    preset = options.cgstate_preset or "normal"
    return (
        f"cgstate: {cgstate.__version__}, tables {table_hash()[:8]}, backend {options.cgstate_backend}, preset {preset}, "
        f"seed {options.cgstate_seed}"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs the other backend."""
    if config.getoption("--cgstate-backend") != "cuda":
        skipped = pytest.mark.skip(reason="needs --cgstate-backend=cuda")
        for item in items:
            if item.get_closest_marker("cgstate_cuda") is not None:
                item.add_marker(skipped)


# -- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cgstate_bed(pytestconfig: pytest.Config) -> type[Bed]:
    """The test bed of the chosen backend, to be used as it is or subclassed."""
    if pytestconfig.getoption("--cgstate-backend") == "cuda":
        from cgstate.testing.stateful.on_torch import CudaBed

        return CudaBed
    from cgstate.testing.stateful.bed import Bed

    return Bed


@pytest.fixture
def cgstate_walk(pytestconfig: pytest.Config) -> Callable[[type[Bed]], FuzzReport]:
    """Walks over a bed, as many as the preset says, from the chosen seed; fails the test with what they found."""

    def walk(bed: type[Bed]) -> FuzzReport:
        from cgstate.testing.stateful.fuzzing import fuzz

        examples, steps = PRESETS[pytestconfig.getoption("--cgstate-preset") or "normal"]
        report = fuzz(bed, seed=pytestconfig.getoption("--cgstate-seed"), examples=examples, steps=steps)
        for failed in report.failures:
            pytest.fail(str(failed), pytrace=False)
        return report

    return walk


@pytest.fixture
def cgstate_schedule(pytestconfig: pytest.Config) -> str:
    """The schedule to replay; empty if none was given."""
    schedule: str = pytestconfig.getoption("--cgstate-schedule")
    return schedule


# -- what was covered -------------------------------------------------------------------------------------------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker sends what it has covered; whoever has it all compares with the threshold."""
    config = session.config
    seen = _seen_here()
    output: Any = getattr(config, "workeroutput", None)
    if output is not None:
        output["cgstate"] = seen
        return
    if seen:
        config.stash[_SEEN].append(seen)
    if _shortfall(config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of xdist has ended: take what it has covered."""
    seen = getattr(node, "workeroutput", {}).get("cgstate")
    if seen:
        node.config.stash[_SEEN].append(seen)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Rows and guard outcomes, what was missed where a threshold asks for it, and how much is too little."""
    coverage = _covered(config)
    wanted = config.getoption("--cgstate-fail-under")
    if coverage is None and wanted is None:
        return
    terminalreporter.section("cgstate")
    if coverage is not None:
        seen = coverage.document()
        terminalreporter.line(f"rows taken: {seen['rows_covered']} of {seen['rows']}")
        terminalreporter.line(f"guard outcomes seen: {seen['guard_outcomes_covered']} of {seen['guard_outcomes']}")
    for line in _shortfall(config):
        terminalreporter.line(line, red=True)


def _seen_here() -> str:
    """What this process has covered, as text; empty if it has run no stateful test."""
    module: Any = sys.modules.get(_SUMMARY)
    return json.dumps(module.TOTAL.packed()) if module is not None and module.TOTAL.rows else ""


def _covered(config: pytest.Config) -> Coverage | None:
    """What all processes have covered together."""
    packed = config.stash[_SEEN]
    if not packed:
        return None
    from cgstate.testing.stateful.coverage import Coverage

    total = Coverage()
    for each in packed:
        total.add(Coverage.unpacked(json.loads(each)))
    return total


def _shortfall(config: pytest.Config) -> list[str]:
    """What falls short of the threshold, in words."""
    wanted = config.getoption("--cgstate-fail-under")
    if wanted is None:
        return []
    coverage = _covered(config)
    if coverage is None:
        return [f"--cgstate-fail-under={wanted:g}: no stateful test has run"]
    seen: dict[str, Any] = coverage.document()
    short = []
    for what, covered, there, missed in (
        ("rows", seen["rows_covered"], seen["rows"], seen["rows_missed"]),
        ("guard outcomes", seen["guard_outcomes_covered"], seen["guard_outcomes"], seen["guard_outcomes_missed"]),
    ):
        if 100 * covered < wanted * there:
            short.append(f"--cgstate-fail-under={wanted:g}: {100 * covered / there:.1f} % of the {what}")
            short += [f"  not seen: {each}" for each in missed]
    return short
