"""Draws the demonstration's result for a person."""

from __future__ import annotations

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cgstate.demo.job import Chapter, DemoResult


def draw(result: DemoResult, console: Console) -> None:
    """Print the summary."""
    console.print()
    console.print(f"  A two-component vocoder on [bold]{result.device}[/], seed {result.seed}")
    console.print()
    console.print(_chapters(result, "+x" if console.options.ascii_only else "✓✗"))
    console.print(_verdict(result))


def _chapters(result: DemoResult, marks: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=True, show_header=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for chapter in result.chapters:
        mark = Text(marks[0], style="green") if chapter.holds else Text(marks[1], style="bold red")
        table.add_row(mark, chapter.title.capitalize(), _facts(chapter))
    return table


def _facts(chapter: Chapter) -> str:
    facts = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {_value(name, value)}" for name, value in chapter.facts.items()
    )
    return facts if chapter.holds else f"expected: {chapter.expected}; seen: {facts}"


def _value(name: str, value: object) -> str:
    if "bytes" in name and isinstance(value, int):
        return _size(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def _size(count: int) -> str:
    size, units = float(count), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024 and unit != "GiB":
        size, unit = size / 1024, next(units)
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"


def _verdict(result: DemoResult) -> Panel:
    check = result.check
    share = check.by_graph / check.outputs if check.outputs else 0.0
    decided = "[bold green]all equal[/]" if not check.unequal else f"[bold red]{check.unequal} unequal[/]"
    lines = [
        f"{check.outputs} outputs compared with eager: {decided}",
        f"{share:.0%} came from graphs, bit for bit as eager on the same padded shapes; "
        f"largest difference to the unpadded call {check.worst:.1e}",
        f"{result.seconds:.1f} s",
    ]
    broken = sum(not chapter.holds for chapter in result.chapters)
    if broken:
        lines.insert(0, f"[bold red]{broken} of {len(result.chapters)} steps did not hold[/]")
    return Panel(Group(*lines), border_style="green" if result.passed else "red", expand=False, padding=(0, 2))
