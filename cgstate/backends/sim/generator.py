"""The default random number generator: counter based, so that a number depends on (seed, offset) alone.

Called by the device for every draw and by graphs at capture and replay. While a capture is open it counts inside the graph
instead; the flag that says so is what a failed capture leaves behind (fact F2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cgstate.backends.sim.errors import SimGeneratorError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEP = 4
"""Offsets move in steps of four, as the real generator's do."""


def uniform(seed: int, offset: int, count: int) -> list[float]:
    """``count`` numbers in [0, 1) for ``offset`` and those that follow it (splitmix64 of the counter)."""
    values = []
    state = (seed * 0xD1342543DE82EF95 + offset * _GOLDEN) & _MASK
    for _ in range(count):
        state = (state + _GOLDEN) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        values.append(((z ^ (z >> 31)) >> 11) * 2.0**-53)
    return values


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """What decides the next eager draw."""

    seed: int
    offset: int


class Generator:
    """The default generator of one device.

    Attributes:
        capturing: Whether it believes that a capture is open: eager draws and replays of graphs that draw raise then (F2, S2).
    """

    def __init__(self, seed: int, captures_open: Callable[[], bool]) -> None:
        self._state = GeneratorState(seed, 0)
        self._captures_open = captures_open
        self._in_graph = 0
        self.capturing = False

    def manual_seed(self, seed: int) -> None:
        """Start again from ``seed``. Does not heal a generator left in a capture (fact F2)."""
        self._state = GeneratorState(seed, 0)

    def get_state(self) -> GeneratorState:
        """Seed and offset."""
        return self._state

    def set_state(self, state: GeneratorState) -> None:
        """Put seed and offset back. Does not heal, either."""
        self._state = state

    def heal(self) -> None:
        """Leave the capture that no longer is: what ``graphsafe_set_state(clone_state())`` does in torch (fact F2)."""
        self.capturing = self._captures_open()

    def draw(self, count: int) -> GeneratorState:
        """Where an eager draw of ``count`` numbers starts; moves the offset on.

        Raises:
            SimGeneratorError: it believes in a capture; nothing moved.
        """
        if self.capturing:
            raise SimGeneratorError
        start = self._state
        self._state = GeneratorState(start.seed, start.offset + _rounded(count))
        return start

    def draw_in_graph(self, count: int) -> int:
        """Where a recorded draw of ``count`` numbers starts, from the beginning of its graph."""
        position = self._in_graph
        self._in_graph += _rounded(count)
        return position

    def begin_capture(self) -> None:
        """Count inside a graph from now on."""
        self.capturing = True
        self._in_graph = 0

    def end_capture(self) -> int:
        """Count outside again; how far one replay of the graph moves the offset."""
        self.capturing = False
        return self._in_graph

    def replay(self, advance: int) -> GeneratorState:
        """Where a replay starts that moves the offset by ``advance``; 0 for a graph that draws nothing.

        Raises:
            SimGeneratorError: the graph draws and a capture is open (fact S2).
        """
        if not advance:
            return self._state
        return self.draw(advance)


def _rounded(count: int) -> int:
    return -(-count // _STEP) * _STEP
