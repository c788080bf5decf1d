"""The command line: one file a command.

Exit codes are a contract: 0 holds, 1 violated, 2 the user's mistake or an answer that could not be written (one line on stderr;
none where the reader of a pipe has left), 3 inconclusive, 4 a missing tool or device.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

import cgstate
from cgstate.cli import spec
from cgstate.cli.bench import bench
from cgstate.cli.demo import demo
from cgstate.cli.diagram import diagram
from cgstate.cli.exits import Exit
from cgstate.cli.fidelity import fidelity
from cgstate.cli.fuzz import fuzz
from cgstate.cli.mutants import mutants
from cgstate.cli.stdout import Unanswered, answering
from cgstate.cli.trace import trace
from cgstate.errors import ConfigError

_UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]
"""Every mistake on a command line. Typer exports this kind of it alone; the others are click's or its own, by version."""

app = typer.Typer(
    name="cgstate",
    help="The lifecycle of CUDA graphs: see it run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(fidelity)
app.command()(fuzz)
app.command()(mutants)
app.command()(diagram)
app.command()(bench)
app.add_typer(spec.app, name="spec")
app.add_typer(trace)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"cgstate {cgstate.__version__}")
        raise typer.Exit(Exit.HOLDS)


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")] = False,
) -> None:
    """The lifecycle of CUDA graphs: see it run."""


def main() -> None:
    """The entry point."""
    try:
        with answering():
            code = app(standalone_mode=False)
    except Unanswered as unanswered:
        if not unanswered.reader_left:
            _tell(str(unanswered))
        code = Exit.USAGE
    except ConfigError as error:
        _tell(str(error))
        code = Exit.USAGE
    except _UsageError as error:
        if words := error.format_message():  # without any, a group has printed its help
            _tell(_one_line(words))
        code = Exit.USAGE
    raise SystemExit(code or Exit.HOLDS)


def _tell(words: str) -> None:
    if sys.stderr is None:
        return  # closed; `print` would take stdout for it
    with suppress(OSError):  # stderr may be full, too: the exit code says it as well
        print(f"cgstate: {words}", file=sys.stderr)


def _one_line(words: str) -> str:
    """What typer says of a mistake, without the mark of the library that found it."""
    return " ".join(words.replace(": Value error, ", ": ").split())
