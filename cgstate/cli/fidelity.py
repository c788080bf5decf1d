"""``cgstate fidelity``: does the simulator do what the GPU did, fact by fact and program by program?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgstate.cli.document import print_document
from cgstate.cli.exits import Exit
from cgstate.errors import ConfigError

if TYPE_CHECKING:
    from cgstate.testing.fidelity.fact import Fact


class Device(StrEnum):
    """What is held against the recording."""

    sim = "sim"
    cuda = "cuda"


def fidelity(
    backend: Annotated[Device, typer.Option(help="What to run: the simulator, or the GPU at hand.")] = Device.sim,
    record: Annotated[Path | None, typer.Option(help="Write what the GPU does, and hold the simulator against that.")] = None,
    against: Annotated[Path | None, typer.Option(help="The recording to compare with; else the one that is bundled.")] = None,
    evidence: Annotated[Path | None, typer.Option(help="Write what the simulator was compared with, and the result.")] = None,
    only: Annotated[str | None, typer.Option(help="Facts to run, e.g. P1,P3; drawn programs are left out then.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="With --record: the first seed of the drawn programs, else 0.")] = None,
    programs: Annotated[int | None, typer.Option(min=0, help="With --record: how many programs to draw, else 200.")] = None,
    commit: Annotated[str | None, typer.Option(help="With --record: the commit, where the checkout has no history.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Run the facts and the drawn programs, and compare with what a GPU did."""
    from rich.console import Console

    from cgstate.backends.choose import cuda_is_here
    from cgstate.testing.fidelity import running, show
    from cgstate.testing.fidelity.document import check_writable
    from cgstate.testing.fidelity.proof import PROGRAMS, write_evidence
    from cgstate.testing.machine import commit as checkout

    if record is None and any(given is not None for given in (seed, programs, commit)):
        raise ConfigError("--seed, --programs and --commit go with --record")
    if record is not None and (backend is not Device.cuda or only is not None or against is not None):
        raise ConfigError("--record needs --backend cuda, and goes with neither --only nor --against")
    if evidence is not None and (only is not None or (backend is Device.cuda and record is None)):
        raise ConfigError("--evidence is about the whole simulator: it goes with --backend sim or --record, and not with --only")
    facts = _chosen(only)
    for path in (record, evidence):
        if path is not None:
            check_writable(path)
    if backend is Device.cuda and not cuda_is_here():
        print("cgstate: there is no CUDA device here (or no torch); try --backend sim", file=sys.stderr)
        raise typer.Exit(Exit.MISSING)
    with _progress() as tick:
        if record is not None:
            drawn = PROGRAMS if programs is None else programs
            report = running.record(record, drawn, seed or 0, commit or checkout(), tick)
        elif backend is Device.cuda:
            report = running.compare_gpu(against, facts, programs=only is None, tick=tick)
        else:
            report = running.compare_simulator(against, facts, programs=only is None, tick=tick)
    if evidence is not None:
        write_evidence(evidence, report, "cgstate fidelity --backend cuda --record; cgstate fidelity --evidence")
    if as_json:
        print_document("fidelity", report.document())
    else:
        show.draw(report, Console())
    raise typer.Exit(Exit.HOLDS if report.holds else Exit.VIOLATED)


def _chosen(only: str | None) -> list[Fact]:
    """The facts that ``only`` names, in the order of the book; None: all.

    Raises:
        ConfigError: it names none, or one that there is not.
    """
    from cgstate.testing.fidelity.facts import FACTS

    if only is None:
        return list(FACTS.values())
    ids = {id_.strip().upper() for id_ in only.split(",")}
    unknown = sorted(ids - FACTS.keys())
    if unknown:
        raise ConfigError(f"no such fact: {', '.join(map(repr, unknown))}; there are {', '.join(FACTS)}")
    return [fact for id_, fact in FACTS.items() if id_ in ids]


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    errors = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=errors, transient=True, disable=not errors.is_terminal
    )
    with bar:
        task = bar.add_task("Starting", total=None)
        yield lambda done: bar.update(task, description=done.splitlines()[0])
