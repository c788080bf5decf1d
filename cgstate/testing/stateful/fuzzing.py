"""Fuzzing without pytest: many walks, one report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cgstate.testing import evidence
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.coverage import Coverage, every_row
from cgstate.testing.stateful.failing import WalkFailed
from cgstate.testing.stateful.walk import STEPS, steady, walk_or_tell

__all__ = ["BARS", "FuzzReport", "fuzz", "write_evidence"]

MOST_FAILURES = 5
"""After so many failed runs there is nothing more to learn."""

BARS = {
    "steps": evidence.at_least(20_000),
    "violations": evidence.exactly(0),
    "leaked_bytes": evidence.exactly(0),
}


@dataclass
class FuzzReport:
    """What fuzzing came to.

    Attributes:
        coverage: What was seen.
        runs: How many runs.
        steps: How many steps they took.
        failures: Those that failed.
        tally: What they did: captures, replays, evictions, and values that were compared.
        bytes_before: What was in use before the first run on a device that all runs share.
        bytes_after: The same after the last one.
        lost_bytes: Bytes of private pools that a failed run has left.
        stopped: Whether time was up before all runs were taken.
        seconds: CPU time, seconds.
        seed: The seed of the first run.
    """

    seed: int
    coverage: Coverage = field(default_factory=Coverage)
    runs: int = 0
    steps: int = 0
    failures: list[WalkFailed] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    bytes_before: int = 0
    bytes_after: int = 0
    lost_bytes: int = 0
    stopped: bool = False
    seconds: float = 0.0

    @property
    def leaked_bytes(self) -> int:
        """Bytes that were left behind."""
        return self.lost_bytes + max(0, self.bytes_after - self.bytes_before)

    @property
    def figures(self) -> dict[str, int]:
        """What was done, and what was found, in numbers."""
        return {
            "seed": self.seed,
            "runs": self.runs,
            "steps": self.steps,
            **{name: self.tally[name] for name in ("captures", "replays", "evictions", "compared")},
            "violations": len(self.failures),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "leaked_bytes": self.leaked_bytes,
        }

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.failures and not self.leaked_bytes

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            **self.figures,
            "stopped": self.stopped,
            "cpu_seconds": round(self.seconds, 3),
            **self.coverage.document(),
            "failures": [
                {"token": each.token, "why": each.why, "setup": repr(each.setup), "steps": [repr(step) for step in each.steps]}
                for each in self.failures
            ],
        }


def fuzz(
    bed: type[Bed] = Bed,
    *,
    seed: int = 0,
    examples: int = 400,
    steps: int = STEPS,
    most_failures: int = MOST_FAILURES,
    limit: float | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> FuzzReport:
    """Walk ``examples`` times; run ``n`` has seed ``seed + n``. So many failures are collected, and made as short as they go.

    After ``limit`` seconds no further run begins. Where a failed run has left something on a device that all runs share, it is the
    last: what comes after it would say nothing.
    """
    report = FuzzReport(seed)
    began, started = time.monotonic(), time.process_time()
    with steady():
        report.bytes_before = bed.held_bytes()
        for number in range(examples):
            try:
                play = walk_or_tell(bed, seed + number, steps, report.coverage)
            except WalkFailed as failed:
                report.failures.append(failed)
                report.lost_bytes += failed.leaked
                if len(report.failures) >= most_failures or bed.held_bytes() > report.bytes_before:
                    break
            else:
                report.steps += len(play.steps)
                report.tally += play.tally
                del play
            report.runs += 1
            tick(report.runs)
            if limit is not None and time.monotonic() - began >= limit and report.runs < examples:
                report.stopped = True
                break
        report.bytes_after = bed.held_bytes()
    report.seconds = time.process_time() - started
    return report


def write_evidence(path: Path, report: FuzzReport, command: str, commit: str) -> bool:
    """Write what was run on the device at hand; whether every bar holds."""
    figures = {
        **report.figures,
        "cpu_seconds": round(report.seconds, 3),
        "rows_covered": report.coverage.rows_covered,
        "rows": len(every_row()),
    }
    rows = [
        {"machine": machine.name, "row": row.label, "taken": report.coverage.rows[machine.name, number]}
        for machine, number, row in every_row()
    ]
    return evidence.write(path, command=command, commit=commit, figures=figures, bars=BARS, rows=rows)
