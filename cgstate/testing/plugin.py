"""The pytest plugin: options, fixtures, a header line, and a summary of what the stateful tests of a session have covered.

Loaded for every pytest run where cgstate is installed, so it imports nothing heavy until a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from cgstate.testing.tally import Tally

if TYPE_CHECKING:
    from cgstate.testing.everyfault import FaultReport
    from cgstate.testing.schedules import Make
    from cgstate.testing.stateful.bed import Bed
    from cgstate.testing.stateful.fuzzing import FuzzReport

PRESETS = {"fast": (20, 30), "normal": (100, 50), "slow": (1000, 60)}
"""Examples, and steps of each: of Hypothesis machines, and of walks. So many faults are drawn as well."""

MARKERS = {
    "cgstate_cuda": "needs a CUDA device; runs with --cgstate-backend=cuda, and is named in the summary without",
    "cgstate_stateful": "a stateful test; whatever uses `cgstate_walk` or `cgstate_faults` has it",
    "cgstate_schedule": "explores schedules; whatever uses `cgstate_explore` or `cgstate_schedule` has it",
}
MARKED_BY = {
    "cgstate_faults": "cgstate_stateful",
    "cgstate_walk": "cgstate_stateful",
    "cgstate_explore": "cgstate_schedule",
    "cgstate_schedule": "cgstate_schedule",
}
"""The marker that the use of a fixture brings."""

SCHEDULE = "--cgstate-schedule"
WALK = "--cgstate-walk"

_TALLY = pytest.StashKey[Tally]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("cgstate", "lifecycle of CUDA graphs")
    group.addoption("--cgstate-backend", choices=("sim", "cuda"), default="sim", help="What `cgstate_bed` runs on.")
    group.addoption("--cgstate-seed", type=int, default=0, metavar="N", help="The seed of walks, the first one's, and of faults.")
    group.addoption(SCHEDULE, default="", metavar="SCHEDULE", help="Run this one schedule instead of all: `cgstate_explore`.")
    group.addoption(WALK, default="", metavar="TOKEN", help="Take this one walk again, as a failure printed it: `cgstate_walk`.")
    group.addoption(
        "--cgstate-preset",
        choices=tuple(PRESETS),
        default=None,
        help="How many walks and faults there are, and examples of Hypothesis; left out: normal, and Hypothesis as it is.",
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
        pytest.UsageError: CUDA was asked for and is not here, or the walk to take again is none.
    """
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    given = {option: config.getoption(option) for option in (SCHEDULE, WALK)}
    config.stash[_TALLY] = Tally(config.getoption("--cgstate-fail-under"), {key: text for key, text in given.items() if text})
    config.pluginmanager.register(_Skips(config.stash[_TALLY]), "cgstate-skips")
    if config.getoption("--cgstate-backend") == "cuda":
        from cgstate.backends.choose import cuda_is_here

        if not cuda_is_here():
            raise pytest.UsageError("--cgstate-backend=cuda: there is no CUDA device here (or no torch)")
    if given[WALK]:
        _parsed(given[WALK])
    if preset := config.getoption("--cgstate-preset"):
        _load_profile(preset)


def _parsed(token: str) -> tuple[int, int]:
    from cgstate.errors import ConfigError
    from cgstate.testing.stateful.failing import parse_token

    try:
        return parse_token(token)
    except ConfigError as wrong:
        raise pytest.UsageError(f"{WALK}: {wrong}") from None


def _preset(config: pytest.Config) -> tuple[int, int]:
    """Examples, and steps of each."""
    chosen: str = config.getoption("--cgstate-preset") or "normal"
    return PRESETS[chosen]


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


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses our fixtures; skip, with the reason, what needs the other backend."""
    skipped = pytest.mark.skip(reason="needs --cgstate-backend=cuda")
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKED_BY:
                item.add_marker(MARKED_BY[fixture])
        if item.get_closest_marker("cgstate_cuda") is not None and config.getoption("--cgstate-backend") != "cuda":
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
def cgstate_walk(request: pytest.FixtureRequest) -> Callable[[type[Bed]], FuzzReport]:
    """Walks over a bed, as many as the preset says, from the chosen seed; fails the test with what they found.

    With ``--cgstate-walk`` it takes that walk alone.
    """
    config = request.config
    token: str = config.getoption(WALK)

    def walk(bed: type[Bed]) -> FuzzReport:
        from cgstate.testing.stateful.fuzzing import fuzz

        seed = config.getoption("--cgstate-seed")
        examples, steps = _preset(config)
        if token:
            config.stash[_TALLY].taken.add(WALK)
            examples, (seed, steps) = 1, _parsed(token)
        report = fuzz(bed, seed=seed, examples=examples, steps=steps, most_failures=1)
        for failed in report.failures:
            pytest.fail(f"{failed}\nagain: pytest '{request.node.nodeid}' {WALK}={failed.token}", pytrace=False)
        return report

    return walk


@pytest.fixture
def cgstate_faults(pytestconfig: pytest.Config) -> Callable[[type[Bed]], FaultReport]:
    """Plays a bed's scenario with one fault after another, as many as the preset says, drawn by the chosen seed.

    Fails the test with the first that does harm.
    """

    def faults(bed: type[Bed]) -> FaultReport:
        from cgstate.testing.everyfault import every_fault

        report = every_fault(bed=bed, most=_preset(pytestconfig)[0], seed=pytestconfig.getoption("--cgstate-seed"))
        for failure in report.failures:
            pytest.fail(failure, pytrace=False)
        return report

    return faults


@pytest.fixture
def cgstate_explore(request: pytest.FixtureRequest, cgstate_schedule: str) -> Callable[..., None]:
    """Runs every schedule with at most so many preemptions, two unless told; or, with ``--cgstate-schedule``, that one alone."""

    def explore(make: Make, *, preemptions: int = 2) -> None:
        from cgstate.testing import schedules

        try:
            if cgstate_schedule:
                schedules.replay(make, cgstate_schedule)
            else:
                schedules.explore(make, preemptions=preemptions)
        except schedules.ScheduleFailed as failed:
            failed.add_note(f"again: pytest '{request.node.nodeid}' {SCHEDULE}='{failed.schedule}'")
            raise

    return explore


@pytest.fixture
def cgstate_schedule(pytestconfig: pytest.Config) -> str:
    """The schedule to replay; empty if none was given."""
    schedule: str = pytestconfig.getoption(SCHEDULE)
    pytestconfig.stash[_TALLY].taken.add(SCHEDULE)
    return schedule


# -- what it came to --------------------------------------------------------------------------------------------------


class _Skips:
    """Notes the tests of ours that did not run; those of workers are reported here as well."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        if report.skipped and not hasattr(report, "wasxfail") and MARKERS.keys() & report.keywords:
            place: Any = report.longrepr
            self._tally.not_run[report.nodeid] = str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker sends what it knows; whoever has it all judges."""
    config = session.config
    tally = config.stash[_TALLY]
    tally.look()
    output: Any = getattr(config, "workeroutput", None)
    if output is not None:
        output["cgstate"] = tally.packed()
    elif session.exitstatus == pytest.ExitCode.OK and any(tally.faults()) and not config.option.collectonly:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of xdist has ended: take what it has sent; one that crashed has sent nothing."""
    if sent := getattr(node, "workeroutput", {}).get("cgstate"):
        node.config.stash[_TALLY].add(sent)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was covered, which tests of ours did not run, and what falls short."""
    if config.option.collectonly:
        return
    tally = config.stash[_TALLY]
    told, wrong = list(tally.lines()), list(tally.faults())
    if told or wrong:
        terminalreporter.section("cgstate")
    for line in told:
        terminalreporter.line(line)
    for line in wrong:
        terminalreporter.line(line, red=True)
