"""``cgstate trace``: does a recorded run obey the tables? What happened in it?"""

from __future__ import annotations

import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgstate.cli.document import print_document
from cgstate.cli.exits import Exit
from cgstate.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from cgstate.trace import Report

trace = typer.Typer(name="trace", help="Check and show recorded runs.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace: JSON Lines, also compressed (.gz).", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


class ExportFormat(StrEnum):
    """What a trace can be made into."""

    chrome = "chrome"


@trace.command("check")
def check_trace(file: File, as_json: AsJson = False) -> None:
    """Say whether a trace obeys the tables, the step properties and every invariant that a trace can show.

    Exit 0: it does, and nothing of it is missing. 1: it does not. 2: it is no whole trace of these tables. 3: it does as far as it
    goes, but the recorder has dropped events.
    """
    from rich.console import Console

    from cgstate import trace as traces

    report = traces.check(traces.read(file))
    if as_json:
        print_document("trace check", report.document())
    else:
        _draw(report, Console())
    if not report.holds:
        raise typer.Exit(Exit.VIOLATED)
    raise typer.Exit(Exit.HOLDS if report.whole else Exit.INCONCLUSIVE)


@trace.command()
def show(
    file: File,
    entity: Annotated[str, typer.Option(help="Only entities whose name contains this.")] = "",
    first: Annotated[int, typer.Option(min=1, help="Number of the first event.")] = 1,
    last: Annotated[int | None, typer.Option(min=1, help="Number of the last event.", show_default="the last")] = None,
    listed: Annotated[int, typer.Option("--list", min=0, help="List the events one by one if there are no more than this.")] = 60,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="OUT", help="Write one page instead, to step through the whole trace in a browser."),
    ] = None,
) -> None:
    """Draw a timeline: one lane an entity; the events themselves where they are few."""
    from rich.console import Console

    from cgstate import trace as traces
    from cgstate.trace import timeline

    if html is not None:
        if entity or first != 1 or last is not None:
            raise ConfigError("a page holds the whole trace: leave out --entity, --first and --last, and choose in the browser")
        _write_page(file, html)
        return
    if last is not None and last < first:
        raise ConfigError(f"--first {first} comes after --last {last}: there is nothing between them")
    view = timeline.View(entity, first, last if last is not None else timeline.END, listed)
    timeline.draw(lambda: traces.read(file), Console(), view)


@trace.command()
def export(
    file: File,
    out: Annotated[Path, typer.Option(help="Where to write; - for stdout.")] = Path("-"),
    format_: Annotated[
        ExportFormat, typer.Option("--format", help="chrome: for Perfetto and chrome://tracing.")
    ] = ExportFormat.chrome,
) -> None:
    """Make a trace into what other tools read."""
    from cgstate import trace as traces
    from cgstate.trace import chrome

    assert format_ is ExportFormat.chrome
    if str(out) == "-":
        chrome.export(traces.read(file), sys.stdout)
        return
    try:
        with out.open("w", encoding="utf-8") as target:
            count = chrome.export(traces.read(file), target)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from None
    print(f"{count:,} trace events written to {out}; open it at ui.perfetto.dev", file=sys.stderr)


def _write_page(file: Path, out: Path) -> None:
    """The page of a trace; nothing is left where the trace is none."""
    from cgstate import trace as traces
    from cgstate.trace import html

    text = io.StringIO()
    document = html.write(lambda: traces.read(file), file.name, text)
    try:
        out.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from None
    print(f"{len(document['events']):,} events written to {out}; open it in a browser", file=sys.stderr)


def _draw(report: Report, console: Console) -> None:
    """What was checked, and what was found."""
    taken, rows = report.rows
    steps = ", ".join(f"{machine} {count:,}" for machine, count in report.steps.items())
    met = ", ".join(f"{count:,} {machine}" for machine, count in report.entities.items())
    console.print(f"  {report.events:,} events ({steps}), {report.transactions:,} transactions; {taken} of {rows} rows taken")
    console.print(f"  entities: {met or 'none'}", highlight=False)
    for broken in report.broken:
        console.print(f"  {broken}", style="red", markup=False, highlight=False)
    if report.violations > len(report.broken):
        console.print(f"  and {report.violations - len(report.broken):,} more", style="red")
    if report.missing:
        console.print(f"  {report.missing:,} events were not kept by the recorder", style="yellow")
    if not report.holds:
        console.print(f"  [bold red]violated[/]: {report.violations:,} times")
    elif report.whole:
        console.print("  [bold green]holds[/]: every event obeys the tables, from the first to the last")
    else:
        console.print("  [bold yellow]inconclusive[/]: what is there obeys the tables")
