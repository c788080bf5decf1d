"""A program is a list of steps, and what was seen after each: plain JSON values, so that a recording outlives its generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TypeAlias

from cgstate.errors import ConfigError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Step: TypeAlias = "dict[str, Json]"
"""``op`` names what is done, the other keys are its arguments."""
Seen: TypeAlias = "dict[str, Json]"
"""What was seen after a step, by label; ``did`` is the step's own outcome."""


class Layer(StrEnum):
    """What a program speaks to."""

    device = auto()
    """The framework itself: raw graphs and pools, with all their bad manners."""
    runtime = auto()
    """A `cgstate.GraphManager` on the device's backend."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    Attributes:
        layer: What it speaks to.
        seed: What it was drawn from; its name, together with the layer.
        steps: What is done, in order.
    """

    layer: Layer
    seed: int
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """E.g. ``device 17``."""
        return f"{self.layer} {self.seed}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device made of a program.

    Attributes:
        program: The program.
        seen: One for each step, and a last one for what was left after cleaning up.
    """

    program: Program
    seen: tuple[Seen, ...]


def to_json(outcome: Outcome) -> dict[str, Json]:
    """As it is stored: of each observation, what differs from the one before; None for a label that is gone."""
    stored: list[Json] = []
    before: Seen = {}
    for seen in outcome.seen:
        changed: Seen = {label: value for label, value in seen.items() if label not in before or before[label] != value}
        changed.update(dict.fromkeys(before.keys() - seen.keys()))
        stored.append(changed)
        before = seen
    return {**program_to_json(outcome.program), "seen": stored}


def from_json(document: object) -> Outcome:
    """The outcome that `to_json` stored.

    Raises:
        ConfigError: not such a document.
    """
    program = program_from_json(document)
    stored = document.get("seen") if isinstance(document, dict) else None
    if not isinstance(stored, list) or len(stored) != len(program.steps) + 1:
        raise ConfigError(f"{program.name}: it needs an observation for each of its steps, and one for the cleaning up")
    seen: list[Seen] = []
    now: Seen = {}
    changed: object
    for changed in stored:
        if not isinstance(changed, dict):
            raise ConfigError(f"{program.name}: not an observation: {str(changed)[:80]}")
        now = {label: value for label, value in {**now, **changed}.items() if value is not None}
        seen.append(now)
    return Outcome(program, tuple(seen))


def program_to_json(program: Program) -> dict[str, Json]:
    """As it is stored."""
    return {"layer": program.layer.value, "seed": program.seed, "steps": list(program.steps)}


def program_from_json(document: object) -> Program:
    """The program that `program_to_json` or `to_json` stored.

    Raises:
        ConfigError: not such a document.
    """
    match document:
        case {"layer": str(layer), "seed": int(seed), "steps": list(steps)} if layer in {each.value for each in Layer}:
            if all(isinstance(step, dict) and isinstance(step.get("op"), str) for step in steps):
                return Program(Layer(layer), seed, tuple(steps))
    raise ConfigError(f"not a program: {str(document)[:80]}")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that two devices did not agree about.

    Attributes:
        program: The program.
        step: Index of the step; the number of steps for the cleaning up.
        label: What differs.
        recorded: What the recording says.
        found: What was found now.
    """

    program: Program
    step: int
    label: str
    recorded: Json
    found: Json

    def __str__(self) -> str:
        lines = [f"{self.program.name} differs at step {self.step}, {self.label}:"]
        lines += [f"  recorded: {self.recorded}", f"  found:    {self.found}", "  program:"]
        steps: list[Step] = [*self.program.steps, {"op": "clean up"}]
        for index, step in enumerate(steps):
            arguments = " ".join(f"{key}={value}" for key, value in step.items() if key != "op")
            lines.append(f"  {'>' if index == self.step else ' '} {index:2} {step['op']} {arguments}")
        return "\n".join(lines)


def first_difference(recorded: Outcome, found: Outcome) -> Difference | None:
    """Where ``found`` first departs from ``recorded``; None if nowhere.

    Raises:
        ConfigError: they are outcomes of different programs.
    """
    if recorded.program != found.program:
        raise ConfigError(f"outcomes of {recorded.program.name} and {found.program.name} cannot be compared")
    for index, (before, now) in enumerate(zip(recorded.seen, found.seen, strict=True)):
        for label in sorted(before.keys() | now.keys()):
            if _value(before, label) != _value(now, label):
                return Difference(recorded.program, index, label, _value(before, label), _value(now, label))
    return None


def _value(seen: Mapping[str, Json], label: str) -> Json:
    return seen.get(label)
