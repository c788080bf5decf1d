"""``cgstate demo``: the whole lifecycle on a small vocoder, every output checked."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgstate.cli.document import print_document
from cgstate.cli.exits import Exit

if TYPE_CHECKING:
    from cgstate.trace import FileRecorder


LARGEST_SEED = 2**64 - 1
"""Torch's generators take none that is larger."""


class BackendName(StrEnum):
    """Where to run."""

    auto = "auto"
    sim = "sim"
    cuda = "cuda"


class ModelName(StrEnum):
    """What the vocoder is written in."""

    auto = "auto"
    torch = "torch"
    sim = "sim"


def demo(
    backend: Annotated[BackendName, typer.Option(help="Where to run; auto takes CUDA if there is a device.")] = BackendName.auto,
    model: Annotated[
        ModelName, typer.Option(help="Torch modules, on either backend, or simulated kernels; auto: torch on CUDA only.")
    ] = ModelName.auto,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Of the weights and the requests.")] = 0,
    requests: Annotated[int, typer.Option(min=50, max=100_000, help="How many requests are served.")] = 200,
    trace: Annotated[Path | None, typer.Option(help="Record every transition into this file; .gz compresses it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the summary.")] = False,
) -> None:
    """Profile, capture, bind, serve, extend, evict, fail and recover a small vocoder; check every output against eager."""
    from rich.console import Console
    from rich.progress import Progress

    from cgstate.backends.choose import cuda_is_here
    from cgstate.demo import job, show

    if backend is BackendName.cuda and model is ModelName.sim:
        print("cgstate: simulated kernels do not run on a CUDA device; try --backend sim", file=sys.stderr)
        raise typer.Exit(Exit.USAGE)
    if backend is BackendName.cuda and not cuda_is_here():
        print("cgstate: there is no CUDA device here (or no torch); try --backend sim", file=sys.stderr)
        raise typer.Exit(Exit.MISSING)
    if model is ModelName.torch and importlib.util.find_spec("torch") is None:
        print("cgstate: there is no torch here; try --model sim", file=sys.stderr)
        raise typer.Exit(Exit.MISSING)
    on_cuda = backend is BackendName.cuda or (backend is BackendName.auto and model is not ModelName.sim and cuda_is_here())
    errors = Console(stderr=True)
    bars = Progress(console=errors, transient=True, disable=not errors.is_terminal)
    with _recording(trace) as observer, bars as progress:
        bar = progress.add_task("Starting", total=requests)
        tick: job.Tick = lambda title: progress.update(bar, advance=1, description=title.capitalize())  # noqa: E731 - one use
        run = partial(job.run, seed=seed, requests=requests, tick=tick, observer=observer)
        if on_cuda:
            from cgstate.backends.cuda import CudaBackend
            from cgstate.demo.vocoder_torch import TorchVocoder

            result = run(TorchVocoder(CudaBackend(), seed))
        elif model is ModelName.torch:
            from cgstate.backends.sim import SimBackend

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch tells at its first import what else is not installed
                from cgstate.demo.vocoder_torch import TorchVocoder

            result = run(TorchVocoder(SimBackend(), seed))
        else:
            from cgstate.backends.sim import SimBackend
            from cgstate.demo.vocoder_sim import SimVocoder

            result = run(SimVocoder(SimBackend(), seed))
    if as_json:
        print_document("demo", result.document())
    else:
        show.draw(result, Console())
    raise typer.Exit(Exit.HOLDS if result.passed else Exit.VIOLATED)


def _recording(path: Path | None) -> AbstractContextManager[FileRecorder | None]:
    """A recorder for the run, if a trace is wanted."""
    if path is None:
        return nullcontext()
    from cgstate.trace import record

    return record(path)
