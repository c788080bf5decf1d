"""Evidence files: what a command of the repository measured on a real device, with where and when, never written by hand."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cgstate.lifecycle.tables import table_hash
from cgstate.testing.machine import Machine
from cgstate.testing.machine import commit as checkout

SCHEMA = 1

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must satisfy; ``text`` says it to people."""

    text: str
    holds: Callable[[float], bool]


def at_most(limit: float) -> Bar:
    """No more than ``limit``."""
    return Bar(f"<= {limit:g}", lambda value: value <= limit)


def at_least(limit: float) -> Bar:
    """No less than ``limit``."""
    return Bar(f">= {limit:g}", lambda value: value >= limit)


def exactly(number: float) -> Bar:
    """That number."""
    return Bar(f"= {number:g}", lambda value: value == number)


def write(
    path: Path,
    *,
    command: str,
    commit: str,
    figures: Mapping[str, float],
    bars: Mapping[str, Bar],
    rows: Sequence[Row],
    machine: Machine | None = None,
    date: str = "",
) -> bool:
    """Write an evidence file; whether every bar holds. A figure that a bar asks for and that is not there is a failure.

    ``machine`` and ``date`` are those of the measurement; left out: this machine, now.
    """
    verdicts = {name: name in figures and bar.holds(figures[name]) for name, bar in bars.items()}
    document = {
        "schema": SCHEMA,
        "command": command,
        "date": date or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **asdict(machine or Machine.here()),
        "commit": commit or checkout() or "unknown",
        "table_hash": table_hash(),
        "pass": all(verdicts.values()),
        "figures": dict(figures),
        "bars": {name: {"bar": bar.text, "holds": verdicts[name]} for name, bar in bars.items()},
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return all(verdicts.values())
