"""``cgstate spec``: the lifecycle written down as TLA+, proven, model-checked, walked, and driven through the runtime."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgstate.cli.document import print_document
from cgstate.cli.exits import Exit
from cgstate.errors import ConfigError
from cgstate.spec.tools import ToolMissing

if TYPE_CHECKING:
    from cgstate.spec.shape import Shape
    from cgstate.spec.tlc import Result
    from cgstate.spec.walk import Counterexample

app = typer.Typer(
    help="The lifecycle as TLA+, proven, model-checked, walked, and driven through the runtime.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Entries = Annotated[str, typer.Option(help="Entries of each component, e.g. 1,1.")]
Threads = Annotated[int, typer.Option(min=1, max=4, help="Leases held at a time at most.")]
Isolated = Annotated[bool, typer.Option("--isolated", help="Each entry in a domain of its own.")]


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="The directory to write to.")] = Path("specs"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file there differs.")] = False,
) -> None:
    """Write the TLA+ modules and TLC's configurations from the tables."""
    from cgstate.spec import configs

    if check and not out.is_dir():
        raise ConfigError(f"there is no directory {out}")
    changed = configs.differing(out) if check else configs.write(out)
    for name in changed:
        print(f"{out / name} {'differs' if check else 'written'}")
    raise typer.Exit(Exit.VIOLATED if check and changed else Exit.HOLDS)


@app.command()
def check(
    config: Annotated[str, typer.Option(help="ci, components, entries, liveness, large, or a .cfg file beside its module.")] = "ci",
    workers: Annotated[int, typer.Option(min=1, help="TLC's threads.")] = 2,
    heap: Annotated[int, typer.Option(min=256, help="Java's heap, MiB.")] = 2048,
    limit: Annotated[float | None, typer.Option(min=1, help="Give up after so many seconds (exit 3).")] = None,
    log: Annotated[Path | None, typer.Option(help="A directory for TLC's output, one file a configuration.")] = None,
    as_json: Json = False,
) -> None:
    """Let TLC check the properties: in every state, for every step, and, with the configuration liveness, under fairness."""
    from cgstate.spec import tlc
    from cgstate.spec.configs import configs

    if config.endswith(".cfg"):
        own, name = tlc.read_files(Path(config))
        runs: list[tuple[str, Mapping[str, str], str]] = [(name, own, name)]
    else:
        runs = [(each.name, each.files(), each.module) for each in configs(config)]
    if log is not None:
        _make(log)
    worst, results = Exit.HOLDS, {}
    for name, files, module in runs:
        options = tlc.Options(workers, heap, limit, log=log and log / f"{name}.log")
        with _tools(), _progress(name) as tick:
            result = tlc.check(files, module, options, tick)
        code = _exit_of(result)
        results[name] = _document(result)
        worst = worst if code is Exit.HOLDS else code if worst is Exit.HOLDS else worst
        if not as_json:
            _show(name, result)
        if code is Exit.USAGE:
            print(f"cgstate: TLC rejects {name}: {result.message}", file=sys.stderr)
    if as_json:
        print_document("spec check", results)
    raise typer.Exit(worst)


@app.command()
def prove(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name every obligation.")] = False,
    as_json: Json = False,
) -> None:
    """Prove the inductive invariants for any number of entries, and the rules of single steps for all values, with z3."""
    from cgstate.spec.proof import prove as proof
    from cgstate.spec.tools import need_z3

    with _tools():
        need_z3()
    report = proof.prove_all()
    if as_json:
        print_document("spec prove", report.document())
    else:
        for line in report.lines(verbose=verbose):
            print(line)
    raise typer.Exit(Exit.HOLDS if report.holds else Exit.INCONCLUSIVE if report.unknown_only else Exit.VIOLATED)


@app.command()
def walk(
    entries: Entries = "1,1",
    threads: Threads = 2,
    isolated: Isolated = False,
    symmetry: Annotated[
        bool, typer.Option("--symmetry", help="One state of those that differ in which like entry is which.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Give up after so many states (exit 3).")] = 2_000_000,
    as_json: Json = False,
) -> None:
    """Walk every reachable state without TLC: properties, goals, and that steps of progress come to rest."""
    from cgstate.lifecycle import MACHINES
    from cgstate.spec import walk as walking
    from cgstate.spec.compiled import System

    system = System(_shape(entries, threads, isolated=isolated), coverage=True)
    graph = walking.walk(system, limit=limit, symmetry=symmetry, keep_edges=not symmetry)
    broken = [graph.broken] if graph.broken else []
    if graph.complete and not symmetry:
        broken += [*walking.unreached(graph), *walking.unsettled(graph)]
    rows = [
        f"{machine.name}: {row.label}"
        for machine in MACHINES
        for row in machine.rows
        if (machine.name, row.label) not in system.taken
    ]
    if as_json:
        counts = {"states": len(graph.states), "steps": graph.steps, "depth": graph.depth, "complete": graph.complete}
        print_document("spec walk", {**counts, "rows_not_taken": rows, "broken": [_words(each) for each in broken]})
    else:
        print(f"{system.shape.name}: {len(graph.states):,} states, {graph.steps:,} steps, {graph.depth} deep")
        for each in rows:
            print(f"never taken here: {each}")
        for counterexample in broken:
            _show_counterexample(counterexample)
    raise typer.Exit(Exit.VIOLATED if broken else Exit.HOLDS if graph.complete else Exit.INCONCLUSIVE)


@app.command()
def replay(
    threads: Annotated[int, typer.Option(min=1, max=2, help="Leases held at a time at most.")] = 2,
    paths: Annotated[
        int | None, typer.Option(min=1, help="Take so many paths of the tour, not all (exit 3 if that leaves steps).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take every step of a small system on the real runtime, over the simulator, and compare all states after each."""
    from itertools import islice

    from cgstate.spec import walk as walking
    from cgstate.spec.compiled import System
    from cgstate.spec.replay.drive import replay as drive
    from cgstate.spec.replay.tour import tour
    from cgstate.spec.shape import Shape

    logging.getLogger("cgstate").addHandler(logging.NullHandler())  # failures are driven on purpose
    logging.getLogger("cgstate").propagate = False
    graph = walking.walk(System(Shape((1,), threads=threads)), keep_edges=True)
    with _progress("replay") as tick:
        result = drive(graph, paths=islice(tour(graph), paths), tick=tick)
    if as_json:
        print_document("spec replay", dataclasses.asdict(result))
    else:
        print(f"{result.edges:,} of {result.of:,} steps taken on the runtime, {result.steps:,} in all, {result.paths:,} runtimes")
        for difference in result.differences:
            print("model and runtime differ after:")
            for step in difference.steps:
                print(f"  {step}")
            for words in difference.words:
                print(f"      {words}")
    complete = Exit.HOLDS if result.edges == result.of else Exit.INCONCLUSIVE
    raise typer.Exit(Exit.VIOLATED if result.differences else complete)


def _shape(entries: str, threads: int, *, isolated: bool) -> Shape:
    from cgstate.spec.shape import Shape

    try:
        counts = tuple(int(count) for count in entries.split(","))
    except ValueError:
        raise ConfigError(f"--entries takes numbers, such as 1,1, not {entries!r}") from None
    return Shape(counts, threads, isolated=isolated)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror or error}") from error


# -- words --------------------------------------------------------------------------------------------------------------


def _exit_of(result: Result) -> Exit:
    from cgstate.spec.tlc import Verdict

    return {
        Verdict.holds: Exit.HOLDS,
        Verdict.violated: Exit.VIOLATED,
        Verdict.rejected: Exit.USAGE,
        Verdict.limit: Exit.INCONCLUSIVE,
    }[result.verdict]


def _document(result: Result) -> Mapping[str, object]:
    return {
        "verdict": result.verdict.name,
        "property": result.property,
        "message": result.message,
        "states": result.states,
        "generated": result.generated,
        "depth": result.depth,
        "seconds": result.seconds,
        "trace": [{"action": step.action, "changed": step.changed} for step in result.trace],
    }


def _show(name: str, result: Result) -> None:
    from cgstate.spec.tlc import Verdict

    counts = f"{result.states:,} states, {result.generated:,} generated, depth {result.depth}, {result.seconds:.0f} s"
    match result.verdict:
        case Verdict.holds:
            print(f"{name}: holds ({counts})")
        case Verdict.violated:
            print(f"{name}: {result.property} is violated ({counts})")
            for step in result.trace[1:]:
                print(f"  {step.action}")
                for variable, (before, after) in step.changed.items():
                    print(f"      {variable}: {before} -> {after}")
        case Verdict.limit:
            print(f"{name}: not finished ({counts}) {result.message}")
        case Verdict.rejected:
            pass


def _words(broken: Counterexample) -> Mapping[str, object]:
    return {"property": broken.property.name, "statement": broken.property.statement, "steps": broken.steps, "state": broken.state}


def _show_counterexample(broken: Counterexample) -> None:
    print(f"{broken.property.name} is violated: {broken.property.statement}")
    for step in broken.steps:
        print(f"  {step}")
    print(f"  then: {', '.join(f'{cell} = {value}' for cell, value in broken.state.items())}")


@contextmanager
def _tools() -> Iterator[None]:
    try:
        yield
    except ToolMissing as missing:
        print(f"cgstate: {missing}", file=sys.stderr)
        raise typer.Exit(Exit.MISSING) from None


@contextmanager
def _progress(title: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    errors = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda words: bar.update(task, description=f"{title}: {words}")
