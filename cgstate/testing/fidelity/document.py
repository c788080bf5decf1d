"""Recordings as JSON files: data, never code, and read with suspicion."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NoReturn

from cgstate.errors import ConfigError

MAX_BYTES = 16 << 20
"""A larger file is refused unread."""


def read_object(path: Path, schema: int) -> dict[str, object]:
    """The JSON object in ``path``.

    Raises:
        ConfigError: it cannot be read, is larger than `MAX_BYTES`, is no JSON object, or says another ``schema``.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        document = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a JSON object")
    if document.get("schema") != schema:
        raise ConfigError(f"{path}: schema {document.get('schema')!r}, where {schema} is known here")
    return document


def check_writable(path: Path) -> None:
    """Find out before the work that a file could not be written after it.

    Raises:
        ConfigError: that is so, as far as can be told by looking.
    """
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if path.is_dir() or (existing != path and not existing.is_dir()) or not os.access(existing, os.W_OK):
        raise ConfigError(f"{path}: cannot be written")


def write_object(path: Path, document: dict[str, object]) -> None:
    """Write ``document`` so that people can read it and diffs stay small: small lists on one line.

    Raises:
        ConfigError: it cannot be written.
    """
    text = "{\n" + ",\n".join(f" {json.dumps(key)}: {_laid_out(value)}" for key, value in document.items()) + "\n}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def _laid_out(value: object, depth: int = 1) -> str:
    flat = json.dumps(value, allow_nan=False)
    if len(flat) + depth <= 120 or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key))}: {_laid_out(part, depth + 1)}" for key, part in value.items()]
        return "{\n" + ",\n".join(pad + part for part in parts) + "\n" + pad[1:] + "}"
    return "[\n" + ",\n".join(pad + _laid_out(part, depth + 1) for part in value) + "\n" + pad[1:] + "]"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
