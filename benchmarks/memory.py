"""Measures what graphs hold on a real GPU: the estimate against it, the order of capture, random rounds, retiring under load.

python -m benchmarks.memory --commit SHA --out docs/evidence/memory-h200.json

With ``--backend sim`` the same runs on the simulator, small, and writes nothing: a test of the measuring itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from benchmarks.ordering import compacted, comparable, ordered, ordered_expandable
from benchmarks.shapes import Shape, deep, shapes_on
from benchmarks.sharing import shared_stream_saving
from cgstate import GraphManager, Isolation
from cgstate.backends.base import Backend
from cgstate.backends.choose import choose
from cgstate.testing.evidence import Row, at_least, at_most, exactly, write

ORDERS = 20
"""Random orders of capture that largest first is compared with."""
ROUNDS = 1000
"""Random rounds in each isolation, with and without expandable segments."""

ISOLATIONS = (Isolation.shared, Isolation.per_component, Isolation.per_entry)

BARS = {
    "shapes": at_least(6),
    "shapes_outside": exactly(0),
    "worst_upper_over_actual": at_most(1.10),
    "profile_share": at_most(0.5),
    "profile_share_model": at_most(0.33),
    "order_ratio": at_most(1.02),
    "order_ratio_unnested_profiled": at_most(1.02),
    "compact_saved_bytes_least": at_least(0),
    "rounds": at_least(4 * len(ISOLATIONS) * ROUNDS),
    "rounds_wrong": exactly(0),
    "leaked_bytes": exactly(0),
    "retire_added_us": at_most(10),
    "shared_stream_saved_bytes": at_least(1),
    "shared_stream_unequal": exactly(0),
}


def estimated(backend: Backend, shape: Shape, *, thorough: bool = False) -> dict[str, float | str | bool]:
    """Estimate a shape twice, as what libraries do at their first use is not the estimate's, then capture it."""
    with GraphManager(backend, isolation=shape.isolation) as manager:
        manager.prepare(shape.components())
        manager.profile_memory()
        estimate = manager.profile_memory(thorough=thorough)
        report = manager.capture_and_bind(progress=False)
        comparison = report.comparison
        assert comparison is not None
        return {
            "shape": shape.name,
            "thorough": thorough,
            "graphs": estimate.graphs,
            "samples": len(estimate.samples),
            "rehearsed": estimate.rehearsed,
            "sample_seconds": sum(sample.seconds for sample in estimate.samples),
            "profile_seconds": estimate.seconds,
            "capture_seconds": report.seconds,
            "lower": comparison.lower,
            "actual": comparison.actual,
            "upper": comparison.upper,
            "within": comparison.within,
            "upper_over_actual": comparison.ratio,
            "driver_bytes": estimate.driver,
            "trusted": estimate.trusted,
        }


def _share(*rows: dict[str, float | str | bool]) -> float:
    """How long estimates took beside the captures that they are about."""
    return sum(float(row["profile_seconds"]) for row in rows) / sum(float(row["capture_seconds"]) for row in rows)


def rounds(backend: str, number: int) -> list[dict[str, object]]:
    """Random rounds in each isolation, each in a process of its own.

    With and without expandable segments where there are any; alone, and beside a graph of somebody else's.
    """
    settings = ["expandable_segments:False", "expandable_segments:True"] if backend == "cuda" else [""]
    started = []
    for isolation, setting, beside in product(ISOLATIONS, settings, (False, True)):
        command = [sys.executable, "-m", "benchmarks.rounds", "--backend", backend]
        command += ["--isolation", isolation.value, "--rounds", str(number), *(["--beside"] if beside else [])]
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting} if setting else dict(os.environ)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(({"isolation": isolation.value, "setting": setting, "beside": beside}, process))
    rows: list[dict[str, object]] = []
    for what, process in started:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the rounds {what} ended with {process.returncode}")
        rows.append({**what, **json.loads(output)})
    return rows


def shared_stream(backend: Backend) -> dict[str, float]:
    """Bytes that a graph in another one's eager break saves by sharing its capture stream, and how many outputs were wrong."""
    part = next(shape for shape in shapes_on(backend) if shape.name == "mlp").parts[0]
    size = part.sizes[-1]
    saving = shared_stream_saving(backend, part.call, lambda: part.example(size)[0])
    return {"shared_stream_saved_bytes": saving.saved, "shared_stream_unequal": int(not saving.equal)}


def measure(backend: Backend, *, number: int, orders: int) -> tuple[dict[str, float], list[Row]]:
    """All figures, and the rows they come from."""
    shapes = shapes_on(backend)
    model = deep(backend)
    estimates = [estimated(backend, shape) for shape in (*shapes, model)]
    thorough = estimated(backend, model, thorough=True)
    orderings = [(shape, ordered(backend, shape.parts[0], orders)) for shape in comparable(backend)]
    nested = [row["order_ratio"] for shape, row in orderings if shape.nests]
    unnested = [(shape, row) for shape, row in orderings if not shape.nests]
    saved = {shape.name: compacted(backend, shape) for shape in shapes}
    played = rounds(backend.name, number)
    figures: dict[str, float] = {
        "shapes": len(estimates),
        "shapes_within": sum(bool(row["within"]) for row in estimates),
        "shapes_outside": sum(not row["within"] for row in (*estimates, thorough)),
        "worst_upper_over_actual": max(float(row["upper_over_actual"]) for row in (*estimates, thorough)),
        "profile_seconds": sum(float(row["profile_seconds"]) for row in estimates),
        "capture_seconds": sum(float(row["capture_seconds"]) for row in estimates),
        "profile_share": _share(*estimates),
        "profile_share_model": _share(*(row for row in estimates if row["shape"] == model.name)),
        "profile_share_thorough": _share(thorough),
        "profile_share_many_graphs": _share(max(estimates, key=lambda row: row["graphs"])),
        "profile_share_most": max(_share(row) for row in estimates),
        "order_ratio": max(nested),
        "compact_saved_bytes_least": min(row["compact_saved_bytes"] for row in saved.values()),
        "compact_saved_bytes_most": max(row["compact_saved_bytes"] for row in saved.values()),
        "rounds": sum(int(str(row["rounds"])) for row in played),
        "rounds_wrong": sum(int(str(row["wrong"])) for row in played),
        "leaked_bytes": sum(int(str(row["leaked_bytes"])) for row in played),
        **shared_stream(backend),
    }
    rows: list[Row] = [{"part": "estimate", **row} for row in (*estimates, thorough)]
    rows += [{"part": "order", "shape": shape.name, **row} for shape, row in orderings]
    if backend.name == "cuda":
        for shape, row in unnested:  # no order by size there: a profile finds a block for all, and the bar is for what then is held
            profiled = ordered(backend, shape.parts[0], orders, profiled=True)
            expandable = ordered_expandable(shape, orders)
            figures |= {
                "order_ratio_unnested": row["order_ratio"],
                "order_ratio_unnested_expandable": expandable["order_ratio"],
                "order_ratio_unnested_profiled": profiled["largest_first"] / row["least"],
                "order_ratio_unnested_all_profiled": profiled["order_ratio"],
                "unnested_saved_bytes": row["largest_first"] - profiled["largest_first"],
            }
            rows.append({"part": "order, expandable segments", "shape": shape.name, **expandable})
            rows.append({"part": "order, after a profile", "shape": shape.name, **profiled})
        from benchmarks import retiring

        figures |= retiring.measure()
    rows += [{"part": "compact", "shape": name, **row} for name, row in saved.items()]
    rows += [{"part": "rounds", **row} for row in played]
    return figures, rows


def main() -> int:
    """Measure, print, write; 0 if every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda", choices=["cuda", "sim"])
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/memory-h200.json"))
    parser.add_argument("--commit", default="", help="the measured commit, where the checkout has no history")
    arguments = parser.parse_args()
    real = arguments.backend == "cuda"
    figures, rows = measure(choose(arguments.backend), number=ROUNDS if real else 20, orders=ORDERS if real else 3)
    for name, figure in figures.items():
        bar = BARS.get(name)
        verdict = "" if bar is None else f"  {bar.text}  {'holds' if bar.holds(figure) else 'BROKEN'}"
        print(f"{name:28} {figure:14.6g}{verdict}")
    for row in rows:
        if row["part"] == "estimate":
            print(row)
    if not real:
        return 0
    command = "python -m benchmarks.memory"
    return 0 if write(arguments.out, command=command, commit=arguments.commit, figures=figures, bars=BARS, rows=rows) else 1


if __name__ == "__main__":
    sys.exit(main())
