"""Fuzzing without pytest: many walks, one report."""

from __future__ import annotations

import time
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
        leaked_bytes: Bytes of private pools that were left after the end of a manager.
        seconds: CPU time, seconds.
        seed: The seed of the first run.
    """

    seed: int
    coverage: Coverage = field(default_factory=Coverage)
    runs: int = 0
    steps: int = 0
    failures: list[WalkFailed] = field(default_factory=list)
    leaked_bytes: int = 0
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.failures and not self.leaked_bytes

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "seed": self.seed,
            "runs": self.runs,
            "steps": self.steps,
            "violations": len(self.failures),
            "leaked_bytes": self.leaked_bytes,
            "cpu_seconds": round(self.seconds, 3),
            **self.coverage.document(),
            "failures": [
                {"token": each.token, "why": each.why, "setup": repr(each.setup), "steps": [repr(step) for step in each.steps]}
                for each in self.failures
            ],
        }


def fuzz(
    bed: type[Bed] = Bed, *, seed: int = 0, examples: int = 400, steps: int = STEPS, tick: Callable[[int], None] = lambda done: None
) -> FuzzReport:
    """Walk ``examples`` times; run ``n`` has seed ``seed + n``. Failures are collected, and made as short as they go."""
    report = FuzzReport(seed)
    started = time.process_time()
    with steady():
        for number in range(examples):
            try:
                play = walk_or_tell(bed, seed + number, steps, report.coverage)
            except WalkFailed as failed:
                report.failures.append(failed)
                report.leaked_bytes += failed.leaked
                if len(report.failures) >= MOST_FAILURES:
                    break
            else:
                report.steps += len(play.steps)
            report.runs += 1
            tick(report.runs)
    report.seconds = time.process_time() - started
    return report


def write_evidence(path: Path, report: FuzzReport, command: str, commit: str) -> bool:
    """Write what was run on the device at hand; whether every bar holds."""
    figures = {
        "steps": report.steps,
        "runs": report.runs,
        "violations": len(report.failures),
        "leaked_bytes": report.leaked_bytes,
        "rows_covered": report.coverage.rows_covered,
        "rows": len(every_row()),
    }
    rows = [
        {"machine": machine.name, "row": row.label, "taken": report.coverage.rows[machine.name, number]}
        for machine, number, row in every_row()
    ]
    return evidence.write(path, command=command, commit=commit, figures=figures, bars=BARS, rows=rows)
