"""What can go wrong under a scheduler."""

from __future__ import annotations


class ScheduleError(Exception):
    """The schedule could not be run as asked: this is no finding about the programs."""


class NotReplayed(ScheduleError):
    """A schedule string names a point that was never reached, or a program that could not go on there."""


class NotDeterministic(ScheduleError):
    """The same choices led to other choices than before: the programs depend on something that the scheduler does not decide."""


class Unscheduled(ScheduleError):
    """A thread that is none of the programs came in, or a program waits for something that the scheduler knows nothing of."""


class Deadlock(AssertionError):
    """Nobody can go on. The message says who waits for what, and where."""


class Endless(AssertionError):
    """A schedule took more steps than allowed: the programs run in a circle."""


class Unexplained(AssertionError):
    """No serial order of a history's operations is allowed. The message shows the history."""


class ScheduleFailed(AssertionError):
    """Under this schedule something went wrong; the cause is what.

    Attributes:
        schedule: Replays it.
        number: Which of the schedules that were tried it is, from 1.
    """

    def __init__(self, schedule: str, number: int, error: BaseException) -> None:
        self.schedule = schedule
        self.number = number
        lines = str(error).strip()
        super().__init__(f'schedule {number} fails with {type(error).__name__}: {lines}\n\nreplay it with schedule="{schedule}"')


class Abandoned(BaseException):
    """Unwinds a program whose run is over. Internal; a program must let it through."""
