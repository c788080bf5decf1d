"""Outcome against outcome: does a device do what was recorded?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from cgstate.backends.sim import SimConfig
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.fidelity.fact import Fact
from cgstate.testing.fidelity.facts import FACTS
from cgstate.testing.fidelity.lab import FINE, Lab, Observation, Value
from cgstate.testing.fidelity.recording import Recording, Said

STOPPED = "the program stopped"
"""Label of the last observation of a program that an error ended which it did not expect."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One observation that two devices do not share.

    Attributes:
        label: What was looked at.
        recorded: What the recording says; None if it does not have it.
        seen: What was seen now; None if it was not.
    """

    label: str
    recorded: Value | None
    seen: Value | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One fact, compared.

    Attributes:
        fact: The fact.
        recorded: What the recording says.
        seen: What was seen now.
        other_rule: Whether this is the outcome under the rule that no device has shown yet.
    """

    fact: Fact
    recorded: Sequence[Said]
    seen: Sequence[Observation]
    other_rule: bool = False

    @property
    def differences(self) -> list[Difference]:
        """Where they depart, in the program's order."""
        return list(_differences(self.recorded, self.seen))

    @property
    def agrees(self) -> bool:
        """Whether they do not, and there was something to compare."""
        return bool(self.recorded) and not self.differences


def simulate(fact: Fact, rules: Iterable[tuple[str, bool]] = ()) -> list[Observation]:
    """Run ``fact`` on a fresh simulated device with the switches ``rules`` of `SimConfig`.

    An error that the program did not expect ends it, and is its last observation, `STOPPED`.
    """
    lab = Lab(SimBench(SimConfig(sanitize=False, **dict(rules))))
    stopped = lab.attempt(lambda: fact.program(lab))
    if stopped != FINE:
        lab.say(STOPPED, stopped)
    return lab.seen


def verdicts_of_simulator(recording: Recording, facts: Iterable[Fact] = FACTS.values()) -> Iterable[Verdict]:
    """Run ``facts`` on the simulator, under the recorded release's rules, and compare; one by one.

    A fact that differs between releases is run under the other rule as well, and compared with what the simulator did when the
    recording was made.
    """
    rules = dict(recording.rules)
    for fact in facts:
        yield Verdict(fact, recording.facts.get(fact.id, ()), simulate(fact, rules.items()))
        if fact.rule is not None and fact.id in recording.unseen:
            yield Verdict(fact, recording.unseen[fact.id], simulate(fact, other_rules(fact, rules).items()), other_rule=True)


def other_rules(fact: Fact, rules: dict[str, bool]) -> dict[str, bool]:
    """``rules`` with the one of ``fact`` turned round."""
    assert fact.rule is not None
    return {**rules, fact.rule.switch: not rules.get(fact.rule.switch, False)}


def _differences(recorded: Sequence[Said], seen: Sequence[Observation]) -> Iterable[Difference]:
    for said, found in zip_longest(recorded, seen):
        if said is None:
            yield Difference(found.label, None, found.value)
        elif found is None:
            yield Difference(said[0], said[1], None)
        elif said[0] != found.label:
            yield Difference(said[0], said[1], None)
            yield Difference(found.label, None, found.value)
        elif not _alike(said[1], found.value, found.within):
            yield Difference(found.label, said[1], found.value)


def _alike(recorded: Value, seen: Value, within: float) -> bool:
    match recorded, seen:
        case bool(), bool():
            return recorded == seen
        case (bool(), _) | (_, bool()):
            return False
        case ((int() | float()), (int() | float())):
            return abs(recorded - seen) <= within
        case list(), list():
            return len(recorded) == len(seen) and all(_alike(*pair, within) for pair in zip(recorded, seen, strict=True))
        case dict(), dict():
            return recorded.keys() == seen.keys() and all(_alike(recorded[key], seen[key], within) for key in recorded)
    return recorded == seen
