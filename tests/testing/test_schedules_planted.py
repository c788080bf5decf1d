"""The battery finds planted races: each is one that the code could really have, and there is a case that shows it."""

from __future__ import annotations

import pytest

from cgstate.testing.schedules import ScheduleFailed, replay
from cgstate.testing.schedules.battery import check_case, on_stage
from cgstate.testing.schedules.planted import RACES, PlantedRace, schedules_until_found

# How many schedules it takes, with slack for a runtime that has a few points more or less.
SLACK = 2
WITHIN = {
    "an eviction does not wait for leases": 6,
    "who ends a lease looks for an eviction before the lock is taken": 265,
    "a replay that had to wait does not look at its lease again": 6,
    "suspending does not wait for calls": 78,
    "replays on two streams do not wait for each other": 1,
    "calls into one pool do not take turns": 4,
    "a lease ends without the lock": 5,
    "the gate is looked at before the lock is taken": 233,
    "waiters are not woken": 4,
    "two have a manager for themselves": 6,
    "what is retired is destroyed while a capture is open": 95,
    "a capture begins during a destruction": 180,
    "closing does not wait for replays": 6,
    "closing is not told of a lease's end": 8,
}


def test_every_planted_race_is_looked_for() -> None:
    assert {race.story for race in RACES} == WITHIN.keys()


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.story)
def test_the_battery_finds(race: PlantedRace) -> None:
    with race.planting():
        with pytest.raises(ScheduleFailed) as found:
            check_case(race.case)
        assert found.value.number <= SLACK * WITHIN[race.story]
        with pytest.raises(ScheduleFailed) as again:
            replay(on_stage(race.case), found.value.schedule)
    assert type(again.value.__cause__) is type(found.value.__cause__)
    assert again.value.schedule == found.value.schedule


def test_schedules_are_counted_until_one_fails() -> None:
    race = next(race for race in RACES if WITHIN[race.story] == 1)
    assert schedules_until_found(race) == 1
