"""Evidence files: what a command of the repository measured on a real device, with where and when, never written by hand."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cgstate.lifecycle.tables import table_hash

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
) -> bool:
    """Write an evidence file; whether every bar holds. A figure that a bar asks for and that is not there is a failure."""
    verdicts = {name: name in figures and bar.holds(figures[name]) for name, bar in bars.items()}
    document = {
        "schema": SCHEMA,
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_machine(),
        "python": platform.python_version(),
        "commit": commit or _commit(),
        "table_hash": table_hash(),
        "pass": all(verdicts.values()),
        "figures": dict(figures),
        "bars": {name: {"bar": bar.text, "holds": verdicts[name]} for name, bar in bars.items()},
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return all(verdicts.values())


def _machine() -> dict[str, str]:
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return {"device": torch.cuda.get_device_name(0), "driver": driver, "torch": torch.__version__}


def _commit() -> str:
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return head.stdout.strip() or "unknown"
