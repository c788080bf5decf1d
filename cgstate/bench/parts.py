"""The parts of the measurement, and what each gives: figures, rows of detail, and what could not be run, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto

from cgstate.bench.timing import Timing

Row = dict[str, object]


class PartName(StrEnum):
    """The parts, in the order in which they run."""

    peers = auto()
    scaling = auto()
    watching = auto()
    capturing = auto()


@dataclass(slots=True)
class Part:
    """One part.

    Attributes:
        figures: Numbers by name; names of all parts are distinct.
        rows: Details, for a table or a plot.
        missing: What could not be run here, and why.
    """

    figures: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def time(self, part: PartName, measured: Mapping[str, Timing], **about: object) -> None:
        """Add a row for each candidate: its cost in quiet moments, its median, and its 95th percentile, nanoseconds a call."""
        for name, timing in measured.items():
            spread = {"p05_ns": timing.quiet, "median_ns": timing.percentile(0.5), "p95_ns": timing.percentile(0.95)}
            self.rows.append({"part": part, "what": name, **about, **spread})
