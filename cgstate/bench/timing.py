"""Ratios that can be trusted: candidates interleaved in one run, CPU time of the calling thread, with the spread.

A shared host changes speed by a factor of two from second to second. So candidates take turns within each round, and what compares
them (`ratio`, `added`) is the median over rounds of what they took in the same round; a single cost is the 5th percentile, as
neighbours only ever add. The rows of the evidence give the spread.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds for each call, round by round."""

    rounds: tuple[float, ...]

    def percentile(self, share: float) -> float:
        """The cost that ``share`` of the rounds did not exceed."""
        ordered = sorted(self.rounds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    @property
    def quiet(self) -> float:
        """The cost in quiet moments."""
        return self.percentile(0.05)


def interleave(
    candidates: Mapping[str, Call], *, rounds: int, calls: int, settle: Callable[[], object] = lambda: None
) -> dict[str, Timing]:
    """Time every candidate in every round.

    Args:
        candidates: What to call, by name.
        rounds: How often each is timed.
        calls: Calls in one timing; few enough that a device's launch queue does not fill.
        settle: Runs outside the timings, e.g. to wait for the device.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates.items())
    enabled = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds + 3):
            for name, call in order:
                call()  # whatever ran before has cooled this candidate's caches
                settle()
                started = time.thread_time_ns()
                for _ in range(calls):
                    call()
                spent = time.thread_time_ns() - started
                settle()
                if index >= 3:  # the first rounds warm caches
                    samples[name].append(spent / calls)
            order.append(order.pop(0))
    finally:
        if enabled:
            gc.enable()
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def merged(passes: Sequence[Mapping[str, Timing]]) -> dict[str, Timing]:
    """The rounds of several passes over the same candidates."""
    return {name: Timing(tuple(cost for each in passes for cost in each[name].rounds)) for name in passes[0]}


def ratio(measured: Mapping[str, Timing], over: str, under: str) -> float:
    """How many times as long one took as the other, in the same round."""
    pairs = zip(measured[over].rounds, measured[under].rounds, strict=True)
    return statistics.median(one / other for one, other in pairs)


def added(measured: Mapping[str, Timing], over: str, under: str) -> float:
    """How much longer one took than the other in the same round, nanoseconds; in the quieter quarter of the rounds.

    Quiet is where both together took little. Where one of them did, some of it was its own luck, which would count against the
    other: of two that cost the same, each would seem to cost more than the other.
    """
    pairs = sorted(zip(measured[over].rounds, measured[under].rounds, strict=True), key=sum)
    return statistics.median(one - other for one, other in pairs[: max(1, len(pairs) // 4)])
