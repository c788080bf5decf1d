"""Draws a comparison for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cgstate.testing.fidelity.report import Report
from cgstate.testing.fidelity.words import in_words


def draw(report: Report, console: Console) -> None:
    """A table of the facts, and every departure label by label."""
    table = Table(title=f"{report.device} against {report.origin}", title_justify="left")
    for title in ("fact", "claim", "recorded", "the same", "agrees"):
        table.add_column(title)
    for verdict in report.verdicts:
        fact, total = verdict.fact, len(verdict.recorded)
        title = f"{fact.title} (rule of another release)" if verdict.other_rule else fact.title
        same = total - sum(each.recorded is not None for each in verdict.differences)
        table.add_row(fact.id, title, str(total), str(same), "yes" if verdict.agrees else "[bold red]NO[/]")
    console.print(table)
    for verdict in report.verdicts:
        if not verdict.recorded:
            console.print(f"[bold]{verdict.fact.id}[/]: the recording does not have it")
        for each in verdict.differences if verdict.recorded else ():
            console.print(f"[bold]{verdict.fact.id}[/] {escape(each.label)}:")
            console.print(f"   recorded: {escape(in_words(each.recorded))}", highlight=False)
            console.print(f"   seen:     {escape(in_words(each.seen))}", highlight=False)
    for name, words in report.crashes.items():
        console.print(f"[bold red]{escape(name)} did not come to its end[/]: {escape(words)}", highlight=False)
    for departure in report.departures:
        console.print(escape(str(departure)), highlight=False)
    agreeing = sum(verdict.agrees for verdict in report.facts)
    console.print(f"{agreeing} of {len(report.facts)} facts agree", end="")
    console.print(f", {report.programs - len(report.departures)} of {report.programs} drawn programs" if report.programs else "")
