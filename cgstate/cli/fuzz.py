"""``cgstate fuzz``: components, graphs and the device in any order of everything that can happen to them."""

from __future__ import annotations

import sys
import warnings
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
    from cgstate.testing.stateful.bed import Bed
    from cgstate.testing.stateful.fuzzing import FuzzReport


class Device(StrEnum):
    """Where to run."""

    sim = "sim"
    cuda = "cuda"


def fuzz(
    backend: Annotated[Device, typer.Option(help="Where to run: the simulator, or the GPU at hand.")] = Device.sim,
    examples: Annotated[int, typer.Option(min=1, help="How many runs.")] = 2400,
    steps: Annotated[int, typer.Option(min=1, help="How many steps a run takes before it is brought to its end.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run; the next ones follow.")] = 0,
    limit: Annotated[float | None, typer.Option(min=1, help="Begin no further run after so many seconds.")] = None,
    fail_under: Annotated[
        float | None, typer.Option(min=0, max=100, help="Fail below this percentage of the rows, or of the guard outcomes.")
    ] = None,
    replay: Annotated[str, typer.Option(help="Take one walk again, by the token that a failure printed.")] = "",
    evidence: Annotated[Path | None, typer.Option(help="With --backend cuda: write what was run, and the result.")] = None,
    commit: Annotated[str, typer.Option(help="With --evidence: the commit, where the checkout has no history.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the summary.")] = False,
) -> None:
    """Walk at random through captures, replays, evictions, failures and ends; print what was covered."""
    from cgstate.testing.stateful.failing import parse_token
    from cgstate.testing.stateful.fuzzing import fuzz as run
    from cgstate.testing.stateful.fuzzing import write_evidence

    if evidence is not None and backend is not Device.cuda:
        raise ConfigError("--evidence is about a GPU: it needs --backend cuda")
    if commit and evidence is None:
        raise ConfigError("--commit goes with --evidence")
    if replay:
        seed, steps = parse_token(replay)
        examples = 1
    bed = _bed(backend)
    with _progress(examples) as tick:
        report = run(bed, seed=seed, examples=examples, steps=steps, limit=limit, tick=tick)
    if evidence is not None:
        command = f"cgstate fuzz --backend cuda --examples {examples} --steps {steps} --seed {seed}"
        command += f" --limit {limit:g}" if limit is not None else ""
        write_evidence(evidence, report, command, commit)
    if as_json:
        print_document("fuzz", report.document())
    else:
        _show(report)
    short = fail_under is not None and report.coverage.percent < fail_under
    if short:
        print(f"cgstate: {report.coverage.percent:.1f} % were covered, and {fail_under:g} % asked for", file=sys.stderr)
    raise typer.Exit(Exit.VIOLATED if short or not report.holds else Exit.INCONCLUSIVE if report.stopped else Exit.HOLDS)


def _bed(device: Device) -> type[Bed]:
    from cgstate.backends.choose import cuda_is_here
    from cgstate.testing.stateful.bed import Bed

    if device is Device.sim:
        return Bed
    if not cuda_is_here():
        print("cgstate: there is no CUDA device here (or no torch); try --backend sim", file=sys.stderr)
        raise typer.Exit(Exit.MISSING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells at its first import what else is not installed
        from cgstate.testing.stateful.on_torch import CudaBed
    return CudaBed


def _show(report: FuzzReport) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for failed in report.failures:
        console.print(str(failed), markup=False)
    seen = report.coverage.document()
    console.print(f"{report.runs} runs, {report.steps} steps, {report.seconds:.1f} s of CPU time, seed {report.seed}")
    done = ", ".join(f"{report.tally[name]} {name}" for name in ("captures", "replays", "evictions"))
    console.print(f"{done}, {report.tally['compared']} values compared")
    if report.stopped:
        console.print("stopped: the time was up before all runs were taken")
    console.print(f"rows taken: {seen['rows_covered']} of {seen['rows']}")
    console.print(f"guard outcomes seen: {seen['guard_outcomes_covered']} of {seen['guard_outcomes']}")
    for missed in (*report.coverage.rows_missed(), *map(str, report.coverage.outcomes_missed())):
        console.print(f"  not seen: {missed}", markup=False)
    console.print(f"violations: {len(report.failures)}; bytes left behind: {report.leaked_bytes}")


@contextmanager
def _progress(examples: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("Walking", total=examples)
        yield lambda done: bar.update(task, completed=done)
