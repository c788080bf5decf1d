"""From samples to the graphs that were not sampled: arithmetic on byte counts, knowing nothing of managers.

What a later graph adds to a pool is mostly its output, which stays lent out; its temporaries fit into blocks that larger graphs
have freed (fact P9). Small allocations (up to 1 MiB) never come from the segments of large ones, so graphs whose temporaries are
small add segments of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cgstate.runtime.segment_sizes import GRANULE, LARGE_SEGMENT, OWN_LIMIT, SMALL_LIMIT

NEAR = 1.07
"""Upper bound over what was held so far, up to which no further graph needs to be run."""
STRAY = 1.05
"""What placeholders for outputs may miss of the segments: real outputs are placed while temporaries are still there."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured graph: the bytes of its static inputs, and those that stay lent out after its capture."""

    buffers: int
    output: int


@dataclass(frozen=True, slots=True)
class Peak:
    """What a pool held after the samples, bytes.

    Attributes:
        small: Segments for small allocations.
        large: Other segments.
        workspaces: Library workspaces among all.
    """

    small: int
    large: int
    workspaces: int

    @property
    def reserved(self) -> int:
        """All segments."""
        return self.small + self.large


@dataclass(frozen=True, slots=True)
class Bound:
    """What one production pool will hold: bytes at least and at most, library workspaces included and apart.

    Attributes:
        peak: What those graphs alone have held that were run.
    """

    lower: int = 0
    upper: int = 0
    workspaces: int = 0
    peak: int = 0

    @property
    def far(self) -> bool:
        """Whether the upper bound is too far from what was seen."""
        return self.upper > NEAR * self.peak

    def narrowed(self, rehearsed: Bound | None, *, thorough: bool) -> Bound:
        """By a rehearsal, if it came to its end: wholly if that was thorough, else with the slack that any estimate has."""
        if rehearsed is None:
            return self
        if thorough:
            return Bound(rehearsed.lower, rehearsed.upper, self.workspaces, self.peak)
        return Bound(max(rehearsed.lower, self.lower), max(rehearsed.upper, int(NEAR * self.peak)), self.workspaces, self.peak)


def output_at_most(buffers: int, points: Sequence[Point]) -> int:
    """The most that a graph with static inputs of ``buffers`` bytes leaves lent out.

    Exact where outputs grow in proportion to inputs, or by a constant and a proportion; above it where they grow ever faster, or
    ever slower. Never more than the nearest larger sample's.

    Args:
        buffers: Bytes of its static inputs.
        points: The samples of its component; at least one.
    """
    same = [point.output for point in points if point.buffers == buffers]
    if same:
        return max(same)
    larger = sorted((point for point in points if point.buffers > buffers), key=lambda point: point.buffers)
    smaller = sorted((point for point in points if point.buffers < buffers), key=lambda point: -point.buffers)
    if not larger:
        top = smaller[0]
        return max(max(point.output for point in points), top.output * buffers // max(1, top.buffers))
    near = larger[0]
    guesses = [_line(near, smaller[0], buffers) if smaller else near.output * buffers / near.buffers]
    further = next((point for point in larger if point.buffers > near.buffers), None)
    if further is not None:
        guesses.append(_line(further, near, buffers))
    cap = max(near.output, smaller[0].output if smaller else 0)
    return min(cap, int(max(guesses)) + 1)


def _line(one: Point, other: Point, buffers: int) -> float:
    slope = (one.output - other.output) / (one.buffers - other.buffers)
    return other.output + slope * (buffers - other.buffers)


def pool_at_most(peak: Peak, outputs: Iterable[int], unit: int) -> int:
    """The most that the pool holds once the graphs that were not sampled are captured as well.

    Args:
        peak: The pool after the samples, captured in production's order.
        outputs: What each of the others leaves lent out at most.
        unit: Bytes of a MiB.
    """
    others = list(outputs)
    if not others:
        return peak.reserved
    small = _up(sum(size for size in others if size <= SMALL_LIMIT * unit), GRANULE * unit)
    large = sum(_rounded(size, unit) for size in others if size > SMALL_LIMIT * unit)
    # Between two samples there may be one whose temporaries have just become small ones.
    turning = max(3 * GRANULE * unit, peak.small if peak.large > peak.workspaces else 0)
    return peak.reserved + small + large + turning


def pool_at_least(peak: Peak, unit: int) -> int:
    """The least that the pool holds then: what was sampled, but for what the others, captured in between, may spare it.

    Args:
        peak: The pool after the samples, captured in production's order.
        unit: Bytes of a MiB.
    """
    return max(peak.workspaces, int(peak.reserved / STRAY) - GRANULE * unit)


def _rounded(size: int, unit: int) -> int:
    """A large allocation's part of the segments that are mapped for many like it."""
    if size >= OWN_LIMIT * unit:
        return _up(size, GRANULE * unit)
    return LARGE_SEGMENT * unit // (LARGE_SEGMENT * unit // size)


def _up(size: int, granule: int) -> int:
    return -(-size // granule) * granule
