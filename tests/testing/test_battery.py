"""The battery goes red for each way to break a runner that it is there for, and stays green for a sound one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cgstate import BucketedRoutine, CaptureMode, Component
from cgstate.backends.sim import SimBackend, kernels
from cgstate.testing import everyfault, meetings
from cgstate.testing.battery import graphs_of
from cgstate.testing.everyfault import every_fault, scenario
from cgstate.testing.schedules import ScheduleFailed, explore
from cgstate.testing.schedules.planted import RACES
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.steps import Call
from cgstate.testing.stateful.subject import Subject
from tests.testing.loading import LOAD_PLUGIN

ROOT = Path(__file__).parents[2]

RUNNERS = '''
from hypothesis import Phase, settings

from cgstate import BucketedRoutine, CaptureMode, Component
from cgstate.backends.sim import kernels
from cgstate.testing import Battery, Capabilities, Subject


settings.register_profile("here", max_examples=20, stateful_step_count=30, phases=[Phase.generate], derandomize=True)
settings.load_profile("here")


class TestSound(Battery):
    can = Capabilities(faults=True, clock=True, dependencies=True, by_hand=False)
    routine = BucketedRoutine

    def make_components(self):
        self.device = self.backend.sim
        self.value, self.weights = 2.0, self.full(2, 2.0)
        work = lambda x: kernels.relu(kernels.matmul(x, self.weights))
        routine = self.routine(work, lambda size: (self.device.zeros(size, 2),), sizes=[2, 4])
        samples = [(self.full(size, value),) for size, value in ((1, 1.0), (2, 2.0), (2, 3.0), (3, 4.0), (9, 5.0))]
        component = Component("layer", routine, [2], capture_mode=CaptureMode.PRECAPTURE_LAZY, dependencies=self.needs())
        return [Subject(component, samples, {"max_extra_graphs": 1}), self.other()]

    def full(self, rows, value):
        return self.device.tensor([[value, value]] * rows)

    def needs(self):
        return ["weights"]

    def other(self):
        routine = BucketedRoutine(kernels.relu, lambda size: (self.device.zeros(size, 2),))
        samples = [(self.full(1, 1.0),), (self.full(2, 2.0),)]
        return Subject(Component("other", routine, [2], dependencies=["weights"]), samples)

    def take_away(self, dependency):
        self.weights.fill_(float("nan"))
        self.device.synchronize()

    def bring_back(self, dependency, *, elsewhere):
        if elsewhere:
            self.value += 1
            self.weights = self.full(2, self.value)
        else:
            self.weights.fill_(self.value)
        self.device.synchronize()


class TestUndeclared(TestSound):
    def needs(self):
        return []


class Baking(BucketedRoutine):
    def copy_runtime_inputs(self, descriptor, buffers, x):
        pass


class TestBaking(TestSound):
    routine = Baking


class Latched(BucketedRoutine):
    busy = False

    def prepare_for_capture(self, descriptor, buffers):
        if self.busy:
            raise RuntimeError("it is being captured")
        self.busy = True

    def forward_for_capture(self, descriptor, buffers):
        output = super().forward_for_capture(descriptor, buffers)
        self.busy = False
        return output


class TestLatched(TestSound):
    routine = Latched


class Stashing(BucketedRoutine):
    def resolve_runtime(self, args, kwargs, available):
        self.size = args[0].shape[0]
        return super().resolve_runtime(args, kwargs, available)

    def output_after_replay(self, descriptor, buffers, output, x):
        return output.narrow(0, 0, self.size)


class TestStashing(TestSound):
    routine = Stashing


class TestBare(TestSound):
    """Without dependencies, nothing to break, and answers that nobody can know."""

    can = Capabilities(by_hand=False)

    def make_components(self):
        self.device = self.backend.sim
        routine = BucketedRoutine(kernels.relu, lambda size: (self.device.zeros(size, 2),))
        return [Subject(Component("other", routine, [2]), [(self.full(2, 1.0),)], pure=False)]
'''

THREADS = ("called_twice", "called_while_evicted", "called_while_captured", "called_while_closed", "called_while_moved")
TESTS = frozenset({"routines_answer_as_eager", "walks_find_nothing", "hypothesis_finds_nothing", "faults_do_no_harm", *THREADS})
RED = {
    "Sound": frozenset(),
    "Undeclared": frozenset({"walks_find_nothing", "called_while_moved"}),
    "Baking": TESTS,
    "Latched": frozenset({"faults_do_no_harm"}),
    "Stashing": frozenset({"called_twice"}),
}
DRAWN = {
    "Undeclared": frozenset({"hypothesis_finds_nothing"}),
    "Latched": frozenset({"walks_find_nothing", "hypothesis_finds_nothing"}),
}
"""Tests that find it as well, in more examples than they are given here."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What became of each test of each runner, in a pytest of its own."""
    folder = tmp_path_factory.mktemp("runners")
    (folder / "test_runners.py").write_text(RUNNERS)
    command = [sys.executable, "-m", "pytest", "-v", "--tb=no", "-p", "no:cacheprovider", *LOAD_PLUGIN, "--cgstate-preset=fast"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    ended = subprocess.run(
        command, cwd=folder, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    found: dict[str, dict[str, str]] = {}
    line = re.compile(r"test_runners\.py::Test(\w+)::test_(?:threads_meet_well\[)?(\w+)\]? (PASSED|FAILED|SKIPPED|ERROR)")
    for runner, test, outcome in line.findall(ended.stdout):
        found.setdefault(runner, {})[test] = outcome
    assert found, ended.stdout + ended.stderr
    return found


@pytest.mark.parametrize("runner", RED)
def test_what_is_wrong_with_a_runner_is_found(outcomes: dict[str, dict[str, str]], runner: str) -> None:
    assert outcomes[runner].keys() == TESTS
    red = {test for test, outcome in outcomes[runner].items() if outcome != "PASSED"}
    assert red - DRAWN.get(runner, frozenset()) == RED[runner]


def test_what_a_runner_cannot_do_is_not_asked_of_it(outcomes: dict[str, dict[str, str]]) -> None:
    assert outcomes["Bare"].keys() == TESTS - {"called_while_moved"}
    skipped = {test for test, outcome in outcomes["Bare"].items() if outcome == "SKIPPED"}
    assert skipped == {"routines_answer_as_eager", "faults_do_no_harm"}
    assert "FAILED" not in outcomes["Bare"].values()


MET = {
    meetings.called_twice: "calls into one pool do not take turns",
    meetings.called_while_evicted: "an eviction does not wait for leases",
    meetings.called_while_captured: "waiters are not woken",
    meetings.called_while_closed: "closing does not wait for replays",
    meetings.called_while_moved: "suspending does not wait for calls",
}


def test_each_meeting_has_a_race_planted_for_it() -> None:
    assert list(MET) == list(meetings.meetings(Bed.can))


@pytest.mark.parametrize(("meeting", "story"), MET.items(), ids=lambda each: getattr(each, "__name__", "race"))
def test_a_race_in_the_runtime_is_met(meeting: meetings.Meeting, story: str) -> None:
    explore(partial(meeting, Bed), preemptions=0)
    race = next(each for each in RACES if each.story == story)
    with race.planting(), pytest.raises(ScheduleFailed):
        explore(partial(meeting, Bed), preemptions=1)


def test_a_faults_failure_is_printed_as_steps_that_do_it_again() -> None:
    class Latched(Bed):
        def make_components(self) -> list[Subject]:
            subjects = list(super().make_components())
            routine: Any = subjects[0].component.routine
            begin, end = routine.prepare_for_capture, routine.forward_for_capture

            def prepare(descriptor: object, buffers: object) -> None:
                if vars(routine).get("busy"):
                    raise RuntimeError("it is being captured")
                routine.busy = True
                begin(descriptor, buffers)

            def forward(descriptor: object, buffers: object) -> object:
                output = end(descriptor, buffers)
                routine.busy = False
                return output

            routine.prepare_for_capture, routine.forward_for_capture = prepare, forward
            return subjects

    report = every_fault(bed=Latched, only=frozenset({"forward_for_capture"}), most=4)
    assert report.tried == 4
    first, *_ = report.failures
    code = first.split("fails:\n")[1]
    with pytest.raises(AssertionError, match="it is being captured"):
        exec(code, {"Latched": Latched})


def test_faults_are_drawn_by_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def happened(steps: object, bed: object, setup: object, plan: object) -> bool:
        tried.append(plan)
        return True

    monkeypatch.setattr(everyfault, "_happened", happened)
    for seed in (1, 1, 2):
        every_fault(most=3, seed=seed)
    assert tried[:3] == tried[3:6] != tried[6:]
    assert len(tried) == 9


def test_the_scenario_of_a_bed_calls_each_component_with_each_sample() -> None:
    bed = Bed()
    bed.backend = bed.make_backend()
    called = [(step.component, step.sample) for step in scenario(Bed) if isinstance(step, Call)]
    wanted = [(subject.name, sample) for subject in bed.make_components() for sample in range(len(subject.samples))]
    assert called == [*wanted, *wanted]


@pytest.mark.parametrize(("mode", "graphs"), [(CaptureMode.PRECAPTURE, [2]), (CaptureMode.PRECAPTURE_LAZY, [2, 4])])
def test_a_routine_is_examined_with_the_graphs_that_its_samples_reach(mode: CaptureMode, graphs: list[int]) -> None:
    device = SimBackend().sim
    routine = BucketedRoutine(kernels.relu, lambda size: (device.zeros(size),), sizes=[2, 4])
    samples = [(device.zeros(size),) for size in (1, 2, 3, 9)]
    assert graphs_of(Subject(Component("layer", routine, [2], capture_mode=mode), samples)) == graphs
