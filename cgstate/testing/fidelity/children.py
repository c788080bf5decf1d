"""Fact programs on the GPU, each in a process of its own, several at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from cgstate.testing.fidelity import child
from cgstate.testing.fidelity.fact import Fact
from cgstate.testing.fidelity.lab import Observation

AT_A_TIME = 8
_TOLD = 4000
"""Characters of a failed process's last words."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A program that did not come to its end.

    Attributes:
        words: What its process said last.
    """

    words: str


def run(facts: Sequence[Fact], done: Callable[[str], None] = lambda fact: None) -> dict[str, list[Observation] | Crash]:
    """Run ``facts`` on the GPU; what each saw, in their order. ``done`` is told of each that ends."""
    found: dict[str, list[Observation] | Crash] = {}
    with ThreadPoolExecutor(AT_A_TIME) as workers:
        work = {workers.submit(_run, fact): fact for fact in facts if not fact.alone}
        for future in as_completed(work):
            fact = work[future]
            found[fact.id] = future.result()
            done(fact.id)
        for fact in facts:
            if fact.alone:
                found[fact.id] = _run(fact)
                done(fact.id)
    return {fact.id: found[fact.id] for fact in facts}


def _run(fact: Fact) -> list[Observation] | Crash:
    ended = subprocess.run(child.command("fact"), input=json.dumps(fact.id), capture_output=True, text=True, check=False)
    if ended.returncode or not ended.stdout:
        return Crash(f"exit status {ended.returncode}\n{ended.stderr[-_TOLD:]}")
    return [Observation(label, value, within) for label, value, within in json.loads(ended.stdout)]
