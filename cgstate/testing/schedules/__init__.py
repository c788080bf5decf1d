"""Threads under a scheduler that decides every interleaving, and can do so again.

A case is a few programs over one manager that was made with the scheduler as its ``sync``:

    def make(sync):
        manager = GraphManager(my_backend(), check=True, sync=sync)
        ...
        return Case({"caller": lambda: answers.append(net(x)), "evictor": lambda: manager.evict("net")}, finish=compare)

    explore(make, preemptions=2)     # every schedule with at most two preemptions
    sample(make, schedules=1000)     # drawn ones, by priorities that fall (PCT)
    replay(make, "caller:launch>evictor")

A finding is a `ScheduleFailed`, whose string replays it. `battery` has cases for everything in the runtime that can meet, over any
backend; `histories` checks what calls returned against the serial orders that the lifecycle's tables allow.
"""

from cgstate.testing.schedules.choosing import Chooser, Drawn
from cgstate.testing.schedules.errors import (
    Deadlock,
    Endless,
    NotDeterministic,
    NotReplayed,
    ScheduleError,
    ScheduleFailed,
    Unexplained,
    Unscheduled,
)
from cgstate.testing.schedules.exploring import Explored, Make, explore, replay, run_once, sample
from cgstate.testing.schedules.program import Case
from cgstate.testing.schedules.scheduler import Scheduler

__all__ = [
    "Case",
    "Chooser",
    "Deadlock",
    "Drawn",
    "Endless",
    "Explored",
    "Make",
    "NotDeterministic",
    "NotReplayed",
    "ScheduleError",
    "ScheduleFailed",
    "Scheduler",
    "Unexplained",
    "Unscheduled",
    "explore",
    "replay",
    "run_once",
    "sample",
]
