"""Ratios that can be trusted: candidates interleaved in one run, CPU time of the calling thread, with the spread.

Figures are 5th percentiles: on a shared host, neighbours only ever add time, by a factor of two at moments, and the low percentile
repeats from run to run to a few percent where the median does not. The rows of the evidence give medians and 95th percentiles beside.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds for each call, over rounds: the 5th percentile, the median, the 95th percentile."""

    quiet: float
    median: float
    loud: float


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
    return {name: _summary(values) for name, values in samples.items()}


def ratio(measured: Mapping[str, Timing], over: str, under: str) -> float:
    """Of two candidates of one run."""
    return measured[over].quiet / measured[under].quiet


def _summary(values: list[float]) -> Timing:
    ordered = sorted(values)
    return Timing(ordered[len(ordered) // 20], statistics.median(ordered), ordered[-1 - len(ordered) // 20])
