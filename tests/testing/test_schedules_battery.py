"""The standard battery holds on the simulator: every schedule with at most two preemptions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.schedules import Case, sample
from cgstate.testing.schedules.battery import CASES, check_case, on_stage

EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@EVERY
def test_every_schedule_with_two_preemptions(case: Callable[..., Case]) -> None:
    explored = check_case(case)
    assert explored.complete
    assert len(explored.by_preemptions) == 3
    assert explored.by_preemptions[2] > explored.by_preemptions[1] > 0, "nobody was ever taken off"


@EVERY
def test_the_hot_path_with_one_preemption(case: Callable[..., Case]) -> None:
    explored = check_case(case, preemptions=1, hot=True)
    assert explored.complete


@EVERY
def test_drawn_schedules(case: Callable[..., Case]) -> None:
    assert sample(on_stage(case), schedules=20, seed=1, depth=None).schedules == 20


def test_a_case_is_played_on_the_bench_that_was_asked_for() -> None:
    made: list[SimBench] = []

    def bench() -> SimBench:
        made.append(SimBench())
        return made[-1]

    explored = check_case(CASES[0], bench, preemptions=0)
    assert len(made) == explored.schedules == 2
    assert all(each.device.faults.calls["open_capture"] for each in made)
