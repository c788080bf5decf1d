"""Where cgstate loses, in words for a page, from the evidence alone: which bars it missed and by how much, who is quicker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cgstate.bench.figures import SUBJECTS, figure
from cgstate.bench.parts import PartName

Evidence = Mapping[str, Any]
Shape = tuple[int, int]
"""Numbers of inputs and of outputs."""


def missed_by(bar: str, value: float) -> str:
    """How far a figure is beyond its bar, as a share of it; the figure's difference to a bar of zero."""
    limit = float(bar.split()[-1])
    if not limit:
        return f"{abs(value):g}"
    share = 100 * abs(value - limit) / abs(limit)
    return f"{share:,.0f} %" if share >= 10 else f"{share:.2g} %"


def missed(evidence: Evidence) -> Iterator[str]:
    """An item for each bar that was missed."""
    for name, each in evidence["bars"].items():
        if each["holds"]:
            continue
        value = evidence["figures"].get(name)
        if value is None:
            yield f"- `{name}` was not measured, and `{each['bar']}` was asked: **missed**."
        else:
            yield f"- `{name}` is {value:.3f}, and `{each['bar']}` was asked: **missed** by {missed_by(each['bar'], value)}."


def beyond(evidence: Evidence) -> Iterator[str]:
    """An item for each bar that was asked of one shape only and that other shapes are beyond."""
    for subject, peer in _pairs(evidence):
        asked = evidence["bars"].get(figure(subject, peer, 1, 1), {}).get("bar", "")
        found = re.fullmatch(r"<= (\S+)", asked)
        if found is None:
            continue
        over = {shape: ratio for shape, ratio in ratios(evidence, subject, peer).items() if ratio > float(found[1])}
        over.pop((1, 1), None)
        if over:
            shown = ", ".join(f"{said(shape)} ({ratio:.2f})" for shape, ratio in over.items())
            bar = f"The bar `{asked}` over `{peer}` is asked of {said((1, 1))} alone."
            yield f"- {bar} A call of `{subject}` is beyond it with {shown}."


def quicker(evidence: Evidence) -> Iterator[str]:
    """An item for each candidate that is quicker than one of ours for some shape."""
    for subject, peer in _pairs(evidence):
        found = ratios(evidence, subject, peer)
        lost = {shape: ratio for shape, ratio in found.items() if ratio > 1}
        if lost:
            least, most = f"{min(lost.values()):.2f}", f"{max(lost.values()):.2f}"
            times = least if least == most else f"{least} to {most}"
            where = "whatever the inputs and outputs" if lost.keys() == found.keys() else f"with {' and '.join(map(said, lost))}"
            yield f"- A call of `{subject}` takes {times} × as long as one of `{peer}` {where}."


def does(evidence: Evidence) -> dict[str, str]:
    """What a call of each candidate does, in the order in which they were measured."""
    return {row["what"]: row["does"] for row in evidence["rows"] if row.get("part") == PartName.peers}


def shapes(evidence: Evidence) -> list[Shape]:
    """Shapes that were measured."""
    return list(dict.fromkeys((row["inputs"], row["outputs"]) for row in evidence["rows"] if row.get("part") == PartName.peers))


def ratios(evidence: Evidence, subject: str, peer: str) -> dict[Shape, float]:
    """A call of ours over one of a peer, for each shape that has it."""
    names = {shape: figure(subject, peer, *shape) for shape in shapes(evidence)}
    return {shape: evidence["figures"][name] for shape, name in names.items() if name in evidence["figures"]}


def said(shape: Shape) -> str:
    """A shape in words."""
    return f"{shape[0]} in, {shape[1]} out"


def _pairs(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Ours, each with every other candidate."""
    for subject in SUBJECTS:
        yield from ((subject, peer) for peer in does(evidence))
