"""What a GPU made of drawn programs: the file that the simulator is held against, beside that of the facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from cgstate.errors import ConfigError
from cgstate.testing.fidelity.document import read_object, write_object
from cgstate.testing.fidelity.origin import Origin
from cgstate.testing.fidelity.programs.program import Outcome, from_json, to_json

SCHEMA = 1
BUNDLED = "programs-h200.json"


@dataclass(frozen=True, slots=True)
class ProgramRecording:
    """The outcomes of drawn programs on one GPU.

    Attributes:
        origin: Which GPU, and when.
        outcomes: What came of each program there. The programs are stored step by step, so they do not depend on the generator.
    """

    origin: Origin
    outcomes: Sequence[Outcome]


def beside(path: Path) -> Path:
    """Where the programs are that were recorded together with the facts in ``path``."""
    return path.with_name(f"programs-{path.name}")


def bundled() -> ProgramRecording:
    """The recording that comes with the library."""
    with as_file(files("cgstate.testing.fidelity") / "recordings" / BUNDLED) as path:
        return read(path)


def read(path: Path) -> ProgramRecording:
    """The recording in ``path``.

    Raises:
        ConfigError: there is none, or it is malformed.
    """
    document = read_object(path, SCHEMA)
    programs = document.get("programs")
    try:
        if not isinstance(programs, list) or not programs:
            raise ConfigError("no list 'programs'")
        outcomes = [from_json(each) for each in programs]
        if len({outcome.program.name for outcome in outcomes}) < len(outcomes):
            raise ConfigError("a program is recorded twice")
        return ProgramRecording(Origin.from_json(document.get("origin")), outcomes)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def write(path: Path, recording: ProgramRecording) -> None:
    """Write ``recording``.

    Raises:
        ConfigError: it cannot be written.
    """
    programs: list[object] = [to_json(outcome) for outcome in recording.outcomes]
    write_object(path, {"schema": SCHEMA, "origin": recording.origin.to_json(), "programs": programs})
