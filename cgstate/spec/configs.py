"""What TLC checks: shapes with names, and the files that they are written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cgstate.errors import ConfigError
from cgstate.spec.shape import Shape
from cgstate.spec.tla import config, module


@dataclass(frozen=True, slots=True)
class Config:
    """One run of TLC.

    Attributes:
        name: What ``--config`` calls it.
        module: Name of its module; also of its files.
        shape: The system.
        liveness: Whether I15 is checked, under fairness, instead of what always holds.
    """

    name: str
    module: str
    shape: Shape
    liveness: bool = False

    def files(self) -> Mapping[str, str]:
        """File names and texts."""
        return _files(self)


@cache
def _files(of: Config) -> Mapping[str, str]:
    return {f"{of.module}.tla": module(of.module, of.shape), f"{of.module}.cfg": config(liveness=of.liveness)}


CONFIGS = (
    Config("components", "CGStateComponents", Shape((1, 1), threads=2)),
    Config("entries", "CGStateEntries", Shape((2,), threads=2)),
    Config("liveness", "CGStateLiveness", Shape((1,), threads=2), liveness=True),
    Config("large", "CGStateLarge", Shape((2, 2), threads=2)),
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    "ci": ("components", "entries"),
    **{each.name: (each.name,) for each in CONFIGS},
}
"""What ``--config`` may name: one configuration, or several."""


def configs(name: str) -> tuple[Config, ...]:
    """The configurations of a name.

    Raises:
        ConfigError: there is no such name.
    """
    if name not in GROUPS:
        raise ConfigError(f"no configuration {name!r}; there are {', '.join(GROUPS)}, or give a .cfg file")
    return tuple(each for each in CONFIGS if each.name in GROUPS[name])


def all_files() -> Iterator[tuple[str, str]]:
    """Name and text of every generated file."""
    for each in CONFIGS:
        yield from each.files().items()


def differing(directory: Path) -> tuple[str, ...]:
    """Names of generated files that are missing in a directory or have another text there."""
    return tuple(name for name, text in all_files() if not (directory / name).is_file() or (directory / name).read_text() != text)


def write(directory: Path) -> tuple[str, ...]:
    """Write every generated file; the names of those that changed.

    Raises:
        ConfigError: the directory cannot be written.
    """
    changed = differing(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in all_files():
            if name in changed:
                (directory / name).write_text(text)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror or error}") from error
    return changed
