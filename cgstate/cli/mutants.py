"""``cgstate mutants``: the lifecycle with one thing broken at a time, and which of the checkers notices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgstate.cli.document import print_document
from cgstate.cli.exits import Exit
from cgstate.errors import ConfigError
from cgstate.spec.tools import ToolMissing

if TYPE_CHECKING:
    from cgstate.testing.mutants.verdict import CheckerName, Tried


def mutants(
    only: Annotated[str, typer.Option(help="Mutants whose id matches, e.g. 'entry/release-*' or '*/drop-guard/*'.")] = "*",
    sample: Annotated[int | None, typer.Option(min=1, help="Draw so many of them.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="With --sample: another seed draws others.")] = 0,
    checkers: Annotated[str | None, typer.Option(help="Some of z3,walker,tlc,stateful,schedules; else all.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many mutants at a time.")] = 1,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that one checker has for one mutant.")] = 300,
    evidence: Annotated[
        Path | None, typer.Option(help="Write the table to this file; what it says of other mutants stays.")
    ] = None,
    commit: Annotated[str, typer.Option(help="With --evidence: the commit, where the checkout has no history.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Break one row, guard or effect at a time, or plant a fault; say which checkers notice."""
    names = _checkers(checkers)
    if evidence is not None and checkers is not None:
        raise ConfigError("--evidence is about all checkers: leave out --checkers")
    if commit and evidence is None:
        raise ConfigError("--commit goes with --evidence")
    from cgstate.testing.mutants.checkers import Limits
    from cgstate.testing.mutants.evidence import figures, write
    from cgstate.testing.mutants.ladder import chosen, climb_all
    from cgstate.testing.mutants.ladder import mutants as every
    from cgstate.testing.mutants.verdict import Fate, ReviewedFails

    which = chosen(only, sample, seed, names)
    try:
        with _progress(len(which)) as tick:
            tried = climb_all(which, names, Limits(limit), jobs=jobs, tick=tick)
    except ToolMissing as missing:
        print(f"cgstate: {missing}", file=sys.stderr)
        raise typer.Exit(Exit.MISSING) from None
    except ReviewedFails as failing:
        print(f"cgstate: {failing}", file=sys.stderr)
        raise typer.Exit(Exit.VIOLATED) from None
    if evidence is not None:
        write(evidence, tried, f"cgstate mutants --evidence {evidence}", commit, order=list(every()))
    if as_json:
        print_document("mutants", {"figures": figures(tried), "mutants": [_words(each) for each in tried]})
    else:
        _show(tried)
    fates = {each.fate for each in tried}
    if Fate.survived in fates:
        raise typer.Exit(Exit.VIOLATED)
    raise typer.Exit(Exit.INCONCLUSIVE if Fate.undecided in fates else Exit.HOLDS)


def _checkers(text: str | None) -> tuple[CheckerName, ...]:
    from cgstate.testing.mutants.verdict import CheckerName

    known = {each.value: each for each in CheckerName}
    names = list(known) if text is None else text.split(",")
    for name in names:
        if name not in known:
            raise ConfigError(f"no checker {name!r}; there are {', '.join(known)}")
    return tuple(known[name] for name in names)


def _words(tried: Tried) -> dict[str, object]:
    return {
        "id": tried.id,
        "subject": tried.subject,
        "story": tried.story,
        "fate": tried.fate.value,
        "cells": {
            name.value: {"outcome": cell.outcome.value, "by": cell.by, "seconds": round(cell.seconds, 3)}
            for name, cell in tried.cells.items()
        },
    }


_SHORT = {"not run": "·", "blind": "–"}
_WIDE = 240
"""Columns of the table where nobody's terminal says how many there are."""


def _show(tried: Sequence[Tried]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from cgstate.testing.mutants.evidence import figures
    from cgstate.testing.mutants.verdict import CheckerName, Fate

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    mutant, by = (Column(name, overflow="fold") for name in ("mutant", "by"))
    table = Table(mutant, *(name.value for name in CheckerName), by, box=None)
    colours = {Fate.killed: "green", Fate.equivalent: "cyan", Fate.survived: "bold red", Fate.undecided: "yellow"}
    for each in tried:
        cells = [_SHORT.get(each.cells[name].outcome.value, each.cells[name].outcome.value) for name in CheckerName]
        why = each.killer[1] if each.killer is not None else each.fate.value
        table.add_row(Text(each.id, colours[each.fate]), *cells, Text(why))
    console.print(table)
    counts = figures(tried)
    console.print(
        f"{counts['mutants']} mutants: {', '.join(f'{counts[fate.value]} {fate.value}' for fate in Fate)}; "
        f"{sum(each.seconds for each in tried):.0f} s"
    )


@contextmanager
def _progress(number: int) -> Iterator[Callable[[Tried], None]]:
    from rich.console import Console
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("Mutants", total=number)

        def tick(tried: Tried) -> None:
            bar.update(task, advance=1, description=tried.id.rsplit("/", 1)[0])

        yield tick
