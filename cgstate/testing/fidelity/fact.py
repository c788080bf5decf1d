"""One fact of the device: its claim in words, the program that shows it, and what of it no simulator shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cgstate.testing.fidelity.bench import Bench
from cgstate.testing.fidelity.lab import Lab, Observation, Value


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that releases of torch differ in, and that the simulator has a switch for.

    Attributes:
        switch: The name of the switch in `SimConfig`.
        label: The observation that tells the rule.
        newer: What is seen there under the newer rule.
    """

    switch: str
    label: str
    newer: Value


@dataclass(frozen=True, slots=True)
class Limit:
    """A clause of the fact that the simulator does not show.

    Attributes:
        clause: What the device does.
        reason: Why the simulator cannot, or need not.
    """

    clause: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the facts.

    Attributes:
        id: E.g. ``P1``.
        title: The claim, in one sentence.
        program: Shows it.
        rule: What it says of the torch release, if it differs between them.
        limits: What of it is not shown.
        alone: Whether it looks at the memory of the whole device, so that no other process may run meanwhile.
    """

    id: str
    title: str
    program: Callable[[Lab[Any]], None]
    rule: Rule | None = None
    limits: tuple[Limit, ...] = ()
    alone: bool = False

    def run(self, bench: Bench[Any]) -> list[Observation]:
        """Run the program on a fresh bench; what was seen. It may leave the bench in ruins."""
        lab = Lab(bench)
        self.program(lab)
        return lab.seen
