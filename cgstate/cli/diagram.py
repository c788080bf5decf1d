"""``cgstate diagram``: the lifecycle as pictures and tables, from the tables that run."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgstate.cli.document import print_document
from cgstate.cli.exits import Exit
from cgstate.errors import ConfigError

if TYPE_CHECKING:
    from cgstate.diagram.taken import Taken


class Name(StrEnum):
    """What is drawn."""

    entry = "entry"
    component = "component"
    pool = "pool"
    manager = "manager"
    overview = "overview"


class FormatName(StrEnum):
    """How it is written."""

    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"
    markdown = "markdown"


class ThemeName(StrEnum):
    """On which ground an SVG is read."""

    light = "light"
    dark = "dark"


def diagram(
    machine: Annotated[
        Name | None, typer.Argument(help="Which machine; overview, the default: how the four step together.", show_default=False)
    ] = None,
    format_: Annotated[FormatName | None, typer.Option("--format", help="How it is written, else in Mermaid.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A recorded run: what it has taken is highlighted, with counts.")] = None,
    theme: Annotated[ThemeName | None, typer.Option(help="On which ground an SVG is read, else light.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write it into this file instead of stdout.")] = None,
    check: Annotated[Path | None, typer.Option(help="Compare all diagrams in all formats with those in this directory.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write all diagrams in all formats into this directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Draw a machine, or keep the committed drawings up to date.

    Exit 1: with --check, something differs. 4: SVGs are asked for, and what lays them out is not installed.
    """
    from cgstate.diagram import drawing
    from cgstate.diagram.svg import RendererMissing, Theme

    if sum(each is not None for each in (out, check, write)) > 1:
        raise ConfigError("--out, --check and --write exclude each other")
    if trace is not None and (check is not None or write is not None):
        raise ConfigError("--check and --write are about the tables alone; --trace goes with neither")
    if any(given is not None for given in (machine, format_, theme)) and (check is not None or write is not None):
        raise ConfigError("--check and --write are about all diagrams; MACHINE, --format and --theme go with neither")
    if theme is not None and format_ is not FormatName.svg:
        raise ConfigError("--theme is about an SVG: it goes with --format svg")
    try:
        if check is not None:
            _report(drawing.check(check), check, as_json=as_json)
        elif write is not None:
            written = drawing.write(write)
            if as_json:
                print_document("diagram", {"directory": str(write), "written": written})
            else:
                print(f"{len(written)} files written to {write}", file=sys.stderr)
        else:
            name, how, ground = machine or Name.overview, format_ or FormatName.mermaid, theme or ThemeName.light
            text = drawing.draw(name, drawing.Format(how), theme=Theme(ground), taken=_taken(trace))
            _deliver(text, name, how, out, as_json=as_json)
    except RendererMissing as missing:
        print(f"cgstate: {missing}", file=sys.stderr)
        raise typer.Exit(Exit.MISSING) from None


def _taken(trace: Path | None) -> Taken | None:
    if trace is None:
        return None
    from cgstate.diagram.taken import taken
    from cgstate.trace import read

    return taken(read(trace))


def _report(wrong: list[str], directory: Path, *, as_json: bool) -> None:
    if as_json:
        print_document("diagram", {"directory": str(directory), "wrong": wrong, "holds": not wrong})
    else:
        for line in wrong:
            print(f"{directory}: {line}")
        if wrong:
            print(f"cgstate: the drawings are not of these tables; say cgstate diagram --write {directory}", file=sys.stderr)
    if wrong:
        raise typer.Exit(Exit.VIOLATED)


def _deliver(text: str, machine: Name, format_: FormatName, out: Path | None, *, as_json: bool) -> None:
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from None
    if as_json:
        print_document("diagram", {"machine": machine, "format": format_, "out": None if out is None else str(out), "text": text})
    elif out is None:
        print(text, end="")
