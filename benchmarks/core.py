"""Measures the core on a real GPU: the demo, the capture-failure matrix, and what guarding costs.

python -m benchmarks.core --out docs/evidence/core-h200.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import failures, replay
from cgstate.backends.cuda import CudaBackend
from cgstate.demo import job
from cgstate.demo.vocoder_torch import TorchVocoder
from cgstate.testing.evidence import Row, at_least, at_most, exactly, write

REQUESTS = 1000

BARS = {
    "lease_ns": at_most(1200),
    "lease_traced_ns": at_most(2000),
    "replay_added_ns_10": at_most(700),
    "replay_added_ns_100": at_most(700),
    "replay_added_ns_1000": at_most(700),
    "replay_ratio_1000": at_most(1.10),
    "call_ratio": at_most(1.15),
    "demo_outputs": at_least(REQUESTS),
    "demo_unequal": exactly(0),
    "demo_chapters_failed": exactly(0),
    "failure_cases": at_least(2 * len(failures.CASES)),
    "failure_cases_unclean": exactly(0),
}


def main() -> int:
    """Measure, print, write; 0 if every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/core-h200.json"))
    parser.add_argument("--commit", default="", help="the measured commit, where the checkout has no history")
    arguments = parser.parse_args()
    outcomes = failures.matrix()  # first: one of its cases wants a process that has not used cuBLAS yet
    demo = job.run(TorchVocoder(CudaBackend(), 0), seed=0, requests=REQUESTS)
    figures, rows = replay.measure()
    clean = sum(outcome.clean for outcome in outcomes)
    figures |= {
        "demo_outputs": demo.check.outputs,
        "demo_unequal": demo.check.unequal,
        "demo_worst_difference": demo.check.worst,
        "demo_chapters_failed": sum(not chapter.holds for chapter in demo.chapters),
        "failure_cases": len(outcomes),
        "failure_cases_clean": clean,
        "failure_cases_unclean": len(outcomes) - clean,
    }
    evidence: list[Row] = [{"part": "timing", **row} for row in rows]
    evidence += [{"part": "failure", **outcome.row()} for outcome in outcomes]
    evidence += [{"part": "demo", "title": c.title, "expected": c.expected, "holds": c.holds, **c.facts} for c in demo.chapters]
    holds = write(
        arguments.out,
        command="python -m benchmarks.core",
        commit=arguments.commit,
        figures=figures,
        bars=BARS,
        rows=evidence,
    )
    for name, figure in figures.items():
        bar = BARS.get(name)
        verdict = "" if bar is None else f"  {bar.text}  {'holds' if bar.holds(figure) else 'BROKEN'}"
        print(f"{name:28} {figure:14.4g}{verdict}")
    for outcome in outcomes:
        if not outcome.clean:
            print("not clean:", {name: value for name, value in outcome.row().items() if value is not True})
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
