"""What one pytest session came to: what its stateful tests covered, which replays were taken, and which tests could not run.

For the plugin. The summary is made by the process that sees all of it; workers of xdist send their part there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cgstate.testing.stateful.coverage import Coverage

__all__ = ["Tally"]

_COVERAGE = "cgstate.testing.stateful.coverage"
"""Looked up, not imported: where no test has imported it, none has covered anything."""


@dataclass
class Tally:
    """What is known so far.

    Attributes:
        fail_under: The least percentage of rows, and of guard outcomes, that must be covered; None: none.
        replays: What is to be taken again, by option: a schedule, a walk.
        taken: Options whose replay some test has taken.
        not_run: Tests of ours that were skipped, by node id, with the reason.
        covered: What each process has covered, as text.
    """

    fail_under: float | None = None
    replays: Mapping[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    not_run: dict[str, str] = field(default_factory=dict)
    covered: list[str] = field(default_factory=list)

    # -- between processes --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Note what this process has covered; once, at its end."""
        module: Any = sys.modules.get(_COVERAGE)
        if module is not None and module.TOTAL.rows:
            self.covered.append(json.dumps(module.TOTAL.packed()))

    def packed(self) -> dict[str, Any]:
        """What a worker sends; skipped tests are reported to everybody anyway."""
        return {"taken": sorted(self.taken), "covered": self.covered}

    def add(self, packed: Mapping[str, Any]) -> None:
        """Take what a worker has sent."""
        self.taken |= set(packed["taken"])
        self.covered += packed["covered"]

    # -- telling ------------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """What was covered, and what was not run; nothing where no test was one of ours."""
        coverage = self._coverage()
        if coverage is not None:
            seen = coverage.document()
            yield f"rows taken: {seen['rows_covered']} of {seen['rows']}"
            yield f"guard outcomes seen: {seen['guard_outcomes_covered']} of {seen['guard_outcomes']}"
        for test, reason in self.not_run.items():
            yield f"not run: {test}: {reason}"

    def faults(self) -> Iterator[str]:
        """Why the session has failed though no test did: too little was covered, or nobody took what was to be taken again."""
        for option in sorted(self.replays.keys() - self.taken):
            yield f"{option}={self.replays[option]}: no test has taken it"
        if self.fail_under is None:
            return
        coverage = self._coverage()
        if coverage is None:
            yield f"--cgstate-fail-under={self.fail_under:g}: no stateful test has run"
            return
        seen: dict[str, Any] = coverage.document()
        for what, key in (("rows", "rows"), ("guard outcomes", "guard_outcomes")):
            covered, there = seen[f"{key}_covered"], seen[key]
            if 100 * covered < self.fail_under * there:
                yield f"--cgstate-fail-under={self.fail_under:g}: {100 * covered / there:.1f} % of the {what}"
                yield from (f"  not seen: {each}" for each in seen[f"{key}_missed"])

    def _coverage(self) -> Coverage | None:
        """What all processes have covered together."""
        if not self.covered:
            return None
        from cgstate.testing.stateful.coverage import Coverage

        total = Coverage()
        for each in self.covered:
            total.add(Coverage.unpacked(json.loads(each)))
        return total
