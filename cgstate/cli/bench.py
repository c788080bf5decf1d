"""``cgstate bench``: what cgstate costs beside the peers, and how it scales, in one run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cgstate.bench.parts import PartName
from cgstate.cli.demo import BackendName
from cgstate.cli.document import print_document
from cgstate.cli.exits import Exit
from cgstate.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from cgstate.bench.parts import Part


def bench(
    context: typer.Context,
    backend: Annotated[
        BackendName, typer.Option(help="Where to measure; auto takes CUDA if there is a device. The peers need one.")
    ] = BackendName.auto,
    part: Annotated[
        list[PartName] | None, typer.Option(help="Measure only this part; may be given several times.", show_default="all")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=4, max=10_000, help="How often each candidate is timed.", show_default="by backend")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write an evidence file; on a CUDA device only.")] = None,
    commit: Annotated[str, typer.Option(help="With --out: the measured commit, where the checkout has no history.")] = "",
    plot: Annotated[Path | None, typer.Option(help="Draw the result into this SVG.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Draw this evidence file instead of measuring.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Measure what cgstate costs beside the peers, by entries and components, traced and checked, and what captures take."""
    from rich.console import Console
    from rich.status import Status

    from cgstate.backends.choose import cuda_is_here
    from cgstate.bench import run

    if commit and out is None:
        raise ConfigError("--commit goes with --out")
    if source is not None:
        if plot is None or out is not None:
            raise ConfigError("--from goes with --plot, and not with --out")
        if useless := [f"--{name}" for name in ("backend", "part", "rounds") if _was_given(context, name)]:
            raise ConfigError(f"--from measures nothing: leave out {', '.join(useless)}")
        if as_json:
            raise ConfigError("--from draws a result that is a JSON document already: leave out --json")
        _draw_from(source, plot)
        return
    if backend is BackendName.cuda and not cuda_is_here():
        print("cgstate: there is no CUDA device here (or no torch); try --backend sim", file=sys.stderr)
        raise typer.Exit(Exit.MISSING)
    bed = run.bed(backend.value)
    on_cuda = bed.backend.name == "cuda"
    if out is not None and not on_cuda:
        raise ConfigError("evidence is of a device: leave --out out on the simulator, and take --json")
    effort = bed.effort if rounds is None else replace(bed.effort, rounds=rounds)
    errors = Console(stderr=True)
    with Status("Starting", console=errors) as status:
        whole = run.run(bed, part or tuple(PartName), effort, lambda name: status.update(f"Measuring {name}"))
    if out is not None:
        from cgstate.testing import evidence

        rows: list[evidence.Row] = [
            *whole.rows,
            *({"part": "not run", "what": what, "why": why} for what, why in whole.missing.items()),
        ]
        evidence.write(out, command="cgstate bench", commit=commit, figures=whole.figures, bars=run.BARS, rows=rows)
    if plot is not None:
        _draw(whole.rows, f"cgstate bench on {bed.backend.device}", plot)
    if as_json:
        print_document(
            "bench", {"backend": bed.backend.name, "figures": whole.figures, "rows": whole.rows, "missing": whole.missing}
        )
    else:
        _show(whole, Console(), judged=on_cuda)


def _was_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter comes from the command line, be it with the value that it has by default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _show(whole: Part, console: Console, *, judged: bool) -> None:
    from rich.table import Table

    from cgstate.bench.run import BARS

    table = Table(box=None, title="ratios, median of the rounds", title_justify="left", padding=(0, 1))
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("bar")
    for name, value in whole.figures.items():
        bar = BARS.get(name) if judged else None
        verdict = "" if bar is None else f"{bar.text}, {'holds' if bar.holds(value) else 'missed'}"
        table.add_row(name, f"{value:.2f}", verdict)
    if whole.figures:
        console.print(table)
    costs = ("part", "act", "inputs", "outputs", "what", "does", "p05_ns", "median_ns", "p95_ns")
    captures = ("isolation", "graphs", "ms_a_graph", "bytes", "estimate_over_held", "extrapolated_over_held")
    for kind, columns in {(PartName.peers, PartName.scaling, PartName.watching): costs, (PartName.capturing,): captures}.items():
        rows = [row for row in whole.rows if row["part"] in kind]
        if rows:
            _table(rows, [column for column in columns if any(column in row for row in rows)], console)
    for what, why in whole.missing.items():
        console.print(f"  not run: {what}: {why}", style="yellow", markup=False, highlight=False)


def _table(rows: list[dict[str, Any]], columns: list[str], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1))
    for column in columns:
        table.add_column(
            column.replace("_", " "), justify="left" if column in ("part", "act", "what", "does", "isolation") else "right"
        )
    for row in rows:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    console.print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _draw_from(source: Path, out: Path) -> None:
    """Draw an evidence file."""
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{source} is no evidence file: it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source} is no evidence file: it holds no JSON object")
    if missing := [key for key in ("command", "device", "torch", "rows") if key not in document]:
        raise ConfigError(f"{source} is no evidence file: it does not have {', '.join(missing)}")
    rows = document["rows"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{source} is no evidence file: its rows are no list of JSON objects")
    _draw(rows, f"{document['command']} on {document['device']}, torch {document['torch']}", out)


def _draw(rows: list[dict[str, object]], title: str, out: Path) -> None:
    from cgstate.bench.plot import svg

    text = svg(rows, title)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from None
