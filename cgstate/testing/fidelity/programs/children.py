"""Plays programs on the GPU: in a few processes side by side, each for many programs, since starting one takes seconds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import IO

from cgstate.testing.fidelity import child
from cgstate.testing.fidelity.programs.play import is_clean
from cgstate.testing.fidelity.programs.program import Outcome, Program, from_json, program_to_json

SIDE_BY_SIDE = 8
_TOLD = 4000
"""Characters of a failed process's last words."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A program that did not come to its end: a defect of the programs, or of the library.

    Attributes:
        program: The program.
        words: What its process said last.
    """

    program: Program
    words: str


def play_on_gpu(programs: Iterable[Program], tell: Callable[[str], None] = lambda line: None) -> list[Outcome | Crash]:
    """Play every program; what came of each, in their order.

    A process whose program crashed, or left something behind, is replaced, and ``tell`` is told so.
    """
    workers: SimpleQueue[_Child] = SimpleQueue()
    for _ in range(SIDE_BY_SIDE):
        workers.put(_Child())

    def run(program: Program) -> Outcome | Crash:
        child = workers.get()
        try:
            result = child.play(program)
            if isinstance(result, Crash):
                tell(f"{program.name} crashed: {result.words}")
            elif not is_clean(result):
                tell(f"{program.name} left the process dirty: {result.seen[-1]}")
            if isinstance(result, Crash) or not is_clean(result):
                child.stop()
            return result
        finally:
            workers.put(child)

    try:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
            return list(threads.map(run, programs))
    finally:
        for _ in range(SIDE_BY_SIDE):
            workers.get().stop()


class _Child:
    """A process for programs, started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def play(self, program: Program) -> Outcome | Crash:
        """Play one program there."""
        if self._process is None:
            self._errors = TemporaryFile("w+")  # noqa: SIM115 - it is open for as long as the process writes to it
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(child.command("program"), stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        process, errors = self._process, self._errors
        assert process.stdin is not None
        assert process.stdout is not None
        assert errors is not None
        try:
            process.stdin.write(json.dumps(program_to_json(program)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return from_json(json.loads(line))
        process.wait()
        errors.seek(0)
        return Crash(program, f"exit status {process.returncode}\n{errors.read()[-_TOLD:]}")

    def stop(self) -> None:
        """End the process; the next program gets a new one."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if process is not None and errors is not None:
            process.kill()
            process.communicate()
            errors.close()


def crashes(results: Iterable[Outcome | Crash]) -> Iterator[Crash]:
    """Those that did not come to their end."""
    return (result for result in results if isinstance(result, Crash))
