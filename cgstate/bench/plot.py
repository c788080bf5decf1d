"""Draws a result: costs beside the peers, how they scale, and what captures take. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cgstate.bench.figures import SUBJECTS
from cgstate.bench.parts import PartName, Row
from cgstate.errors import ConfigError

COLOURS = ("#3b82c4", "#2e9e5b", "#d9a514", "#9a4fc0", "#cf2e2e", "#5c6370", "#3aa7b0", "#e07fa8")
"""Of the candidates, in the order in which they come; ours have the first two."""


def svg(rows: Sequence[Row], title: str) -> str:
    """The picture as an SVG; the same rows make the same text.

    Args:
        rows: Of a `cgstate.bench.parts.Part`, or of an evidence file.
        title: Where it was measured.

    Raises:
        ConfigError: there is nothing to draw, or matplotlib is not installed.
    """
    panels = [(draw, found) for part, draw in _PANELS.items() if (found := [row for row in rows if row.get("part") == part])]
    if not panels:
        raise ConfigError("no row of a benchmark is there to be drawn")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("drawing needs matplotlib: pip install 'cgstate[bench]'") from None
    with rc_context({"svg.hashsalt": "cgstate", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7, 3 * len(panels)), layout="constrained", facecolor="white")
        figure.suptitle(title)
        for axes, (draw, found) in zip(figure.subplots(len(panels), 1, squeeze=False).flat, panels, strict=True):
            draw(axes, found)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _peers(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    shapes = list(dict.fromkeys((row["inputs"], row["outputs"]) for row in rows))
    names = sorted(dict.fromkeys(row["what"] for row in rows), key=lambda name: name not in SUBJECTS)
    for number, name in enumerate(names):
        mine = {(row["inputs"], row["outputs"]): row for row in rows if row["what"] == name}
        does = next(iter(mine.values()))["does"]
        places = [place + number / (len(names) + 1) for place, shape in enumerate(shapes) if shape in mine]
        found = [mine[shape] for shape in shapes if shape in mine]
        height = [row["median_ns"] / 1000 for row in found]
        below = [(row["median_ns"] - row["p05_ns"]) / 1000 for row in found]
        above = [(row["p95_ns"] - row["median_ns"]) / 1000 for row in found]
        spread = {"lw": 0.8, "ecolor": "#555"}
        axes.bar(
            places,
            height,
            1 / (len(names) + 1),
            yerr=[below, above],
            color=COLOURS[number],
            label=f"{name}: {does}",
            error_kw=spread,
        )
    axes.set_xticks([place + 0.4 for place in range(len(shapes))], [f"{inputs} in, {outputs} out" for inputs, outputs in shapes])
    axes.set_ylabel("µs of CPU a call\nmedian, 5th to 95th percentile")
    _legend(axes, columns=1)


def _scaling(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, act in enumerate(dict.fromkeys(row["act"] for row in rows)):
        mine = [row for row in rows if row["act"] == act]
        counts = [int(row["what"].split()[0]) for row in mine]
        kind = mine[0]["what"].split()[1]
        axes.plot(counts, [row["p05_ns"] / 1000 for row in mine], "o-", color=COLOURS[number], label=f"{act}, by number of {kind}")
    axes.set_xscale("log")
    _plain(axes.xaxis, sorted({int(row["what"].split()[0]) for row in rows}))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("µs of CPU\n5th percentile")
    _legend(axes)


def _watching(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    labels = [f"{row['act']}, {row['what']}" for row in rows]
    axes.plot([row["p05_ns"] / 1000 for row in rows], labels, "o", color=COLOURS[0])
    axes.grid(axis="y", color="#ddd")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("µs of CPU, 5th percentile")


def _capturing(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, isolation in enumerate(dict.fromkeys(row["isolation"] for row in rows)):
        mine = [row for row in rows if row["isolation"] == isolation]
        sizes = [row["bytes"] / 2**20 for row in mine]
        axes.plot([row["graphs"] for row in mine], sizes, "o-", color=COLOURS[number], label=isolation)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes.xaxis, sorted({row["graphs"] for row in rows}))
    axes.set_xlabel("graphs")
    axes.set_ylabel("MiB held")
    _legend(axes)


def _plain(axis: Any, counts: Sequence[int]) -> None:
    """Mark these numbers of things, as they are written elsewhere, and nothing else."""
    axis.set_ticks(counts, [f"{count:,}" for count in counts])
    axis.set_ticks([], minor=True)


def _legend(axes: Any, columns: int = 3) -> None:
    """Above the panel, where it hides nothing."""
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns)


_PANELS: Mapping[str, Callable[[Any, Sequence[Mapping[str, Any]]], None]] = {
    PartName.peers: _peers,
    PartName.scaling: _scaling,
    PartName.watching: _watching,
    PartName.capturing: _capturing,
}
