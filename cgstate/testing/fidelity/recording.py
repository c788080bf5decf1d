"""What a GPU did when it ran the fact programs: the file that the simulator is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeAlias, cast

from cgstate.errors import ConfigError
from cgstate.testing.fidelity.document import read_object, write_object
from cgstate.testing.fidelity.facts import FACTS
from cgstate.testing.fidelity.lab import Observation, Value
from cgstate.testing.fidelity.origin import Origin

SCHEMA = 1
BUNDLED = "h200.json"

Said: TypeAlias = "tuple[str, Value]"
"""A label, and what was seen."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The outcomes of fact programs on one GPU.

    Attributes:
        origin: Which GPU, and when.
        facts: What each program saw there.
        rules: By switch of `SimConfig`, whether that torch release has the newer rule. Read off the outcomes.
        unseen: What the simulator sees under the other rule, by fact. No device has said so.
    """

    origin: Origin
    facts: Mapping[str, Sequence[Said]]
    rules: Mapping[str, bool] = field(default_factory=dict)
    unseen: Mapping[str, Sequence[Said]] = field(default_factory=dict)


def told_rules(facts: Mapping[str, Sequence[Observation]]) -> dict[str, bool]:
    """Which rules the torch release has that produced these outcomes, by switch of `SimConfig`."""
    rules = {}
    for id_, seen in facts.items():
        rule = FACTS[id_].rule
        if rule is not None:
            rules[rule.switch] = any(each.label == rule.label and each.value == rule.newer for each in seen)
    return rules


def bundled() -> Recording:
    """The recording that comes with the library."""
    with as_file(files("cgstate.testing.fidelity") / "recordings" / BUNDLED) as path:
        return read(path)


def read(path: Path) -> Recording:
    """The recording in ``path``.

    Raises:
        ConfigError: there is none, or it is malformed.
    """
    document = read_object(path, SCHEMA)
    try:
        return Recording(
            Origin.from_json(document.get("origin")),
            _outcomes(document.get("facts"), "facts"),
            _rules(document.get("rules")),
            _outcomes(document.get("not_recorded_on_a_device"), "not_recorded_on_a_device"),
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def write(path: Path, recording: Recording) -> None:
    """Write ``recording``.

    Raises:
        ConfigError: it cannot be written.
    """
    write_object(
        path,
        {
            "schema": SCHEMA,
            "origin": recording.origin.to_json(),
            "rules": dict(recording.rules),
            "facts": {id_: [list(said) for said in seen] for id_, seen in recording.facts.items()},
            "not_recorded_on_a_device": {id_: [list(said) for said in seen] for id_, seen in recording.unseen.items()},
        },
    )


def _outcomes(document: object, name: str) -> dict[str, list[Said]]:
    if not isinstance(document, dict):
        raise ConfigError(f"no object '{name}'")
    unknown = sorted(document.keys() - FACTS.keys())
    if unknown:
        raise ConfigError(f"{name}: unknown facts {', '.join(unknown)}")
    outcomes = {}
    for id_, seen in document.items():
        if not isinstance(seen, list):
            raise ConfigError(f"{name}: {id_} is not a list")
        outcomes[id_] = [_said(each, id_) for each in seen]
    return outcomes


def _said(document: object, id_: str) -> Said:
    match document:
        case [str(label), value] if _is_value(value):
            return label, cast("Value", value)
    raise ConfigError(f"{id_}: not an observation: {str(document)[:80]}")


def _is_value(value: object) -> bool:
    match value:
        case bool() | int() | float() | str():
            return True
        case list():
            return all(map(_is_value, value))
        case dict():
            return all(map(_is_value, value.values()))
    return False


def _rules(document: object) -> dict[str, bool]:
    known = {fact.rule.switch for fact in FACTS.values() if fact.rule is not None}
    if not isinstance(document, dict) or not document.keys() <= known or not all(type(each) is bool for each in document.values()):
        raise ConfigError(f"'rules' must say true or false for some of {', '.join(sorted(known))}")
    return document
