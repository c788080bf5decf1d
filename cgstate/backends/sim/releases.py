"""A mark behind what the driver has to let go of."""

from __future__ import annotations

from collections.abc import Sequence

from cgstate.backends.sim.door import Door
from cgstate.backends.sim.schedule import Executor
from cgstate.backends.sim.streams import StreamQueue


class SimReleaseMark:
    """As `base.ReleaseMark`: behind errands of the driver. Whoever waits for it moves the clock."""

    __slots__ = ("_door", "_errands", "_executor")

    def __init__(self, door: Door, executor: Executor, errands: Sequence[StreamQueue]) -> None:
        self._door = door
        self._executor = executor
        self._errands = errands

    def wait(self, timeout: float | None) -> bool:
        """As `base.ReleaseMark.wait`. It is never late; when the context is lost nothing is due any more."""
        with self._door.even_if_lost:
            for errand in self._errands:
                self._executor.finish(errand)
        return True
