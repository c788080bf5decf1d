"""The whole table of mutants and checkers as an evidence file, written and read."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cgstate.errors import ConfigError
from cgstate.lifecycle.tables import table_hash
from cgstate.testing import evidence
from cgstate.testing.machine import Machine
from cgstate.testing.mutants.verdict import Cell, CheckerName, Fate, Outcome, Tried

__all__ = ["Table", "figures", "read", "write"]

BARS = {
    "survived": evidence.exactly(0),
    "undecided": evidence.exactly(0),
}


@dataclass(frozen=True, slots=True)
class Table:
    """What was recorded.

    Attributes:
        date: When.
        python: Python's version.
        table_hash: Of the tables that were broken.
        tried: Every mutant.
    """

    date: str
    python: str
    table_hash: str
    tried: tuple[Tried, ...]


def figures(tried: Sequence[Tried]) -> dict[str, int]:
    """How many mutants there were, what became of them, and how many each checker killed."""
    return {
        "mutants": len(tried),
        **{fate.value: sum(each.fate is fate for each in tried) for fate in Fate},
        **{
            f"killed_by_{name.value}": sum(each.killer is not None and each.killer[0] is name for each in tried)
            for name in CheckerName
        },
    }


def write(path: Path, tried: Sequence[Tried], command: str, commit: str, order: Sequence[str] = ()) -> bool:
    """Write the file; whether nothing survived, and nothing is undecided.

    Args:
        path: The file. Where it holds a table of the same tables already, mutants that were not tried now stay as they are there.
        tried: The mutants.
        command: What was run.
        commit: Of what.
        order: The ids of all mutants there are; what was recorded of others goes. Empty: nothing that was recorded stays.
    """
    known = {each.id: each for each in tried}
    if order and path.exists():
        before = read(path)
        if before.table_hash == table_hash():
            known = {each.id: each for each in before.tried} | known
    tried = [known[id] for id in order if id in known] if order else tried
    machine = Machine("no GPU", "none", _version("torch"), platform.python_version())
    rows = [_row(each) for each in tried]
    return evidence.write(path, command=command, commit=commit, figures=figures(tried), bars=BARS, rows=rows, machine=machine)


def read(path: Path) -> Table:
    """What `write` has written.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """
    try:
        document = json.loads(path.read_text())
        tried = tuple(_tried(row) for row in document["rows"])
        return Table(document["date"], document["python"], document["table_hash"], tried)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no table of mutants: {error}") from error


def _row(tried: Tried) -> Mapping[str, object]:
    return {
        "id": tried.id,
        "operator": tried.operator,
        "subject": tried.subject,
        "story": tried.story,
        "fate": tried.fate.value,
        "cells": {name.value: _cell(cell) for name, cell in tried.cells.items()},
    }


def _cell(cell: Cell) -> object:
    if cell.outcome in (Outcome.not_run, Outcome.blind):
        return cell.outcome.value
    return {"outcome": cell.outcome.value, "by": cell.by, "seconds": round(cell.seconds, 3)}


def _tried(row: Mapping[str, Any]) -> Tried:
    return Tried(row["id"], row["operator"], row["subject"], row["story"], dict(_cells(row["cells"])))


def _cells(cells: Mapping[str, Any]) -> Iterator[tuple[CheckerName, Cell]]:
    for name, cell in cells.items():
        if isinstance(cell, str):
            yield CheckerName(name), Cell(Outcome(cell))
        else:
            yield CheckerName(name), Cell(Outcome(cell["outcome"]), cell["by"], cell["seconds"])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
