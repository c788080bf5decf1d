"""A whole comparison: facts and drawn programs, of the simulator or of the GPU at hand, with a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cgstate.testing.fidelity.compare import Verdict
from cgstate.testing.fidelity.origin import Origin
from cgstate.testing.fidelity.programs.program import Difference as ProgramDifference


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared, and what came of it.

    Attributes:
        device: ``simulator``, or the GPU's name.
        origin: Where the recording comes from.
        verdicts: One by fact, and one more for each outcome under a rule that no device has shown.
        crashes: Last words of the processes of programs that did not come to their end, by fact or program.
        programs: How many drawn programs were compared.
        departures: Where drawn programs depart from the recording.
    """

    device: str
    origin: Origin
    verdicts: Sequence[Verdict]
    crashes: Mapping[str, str] = field(default_factory=dict)
    programs: int = 0
    departures: Sequence[ProgramDifference] = ()

    @property
    def facts(self) -> list[Verdict]:
        """The verdicts on what a device did."""
        return [verdict for verdict in self.verdicts if not verdict.other_rule]

    @property
    def holds(self) -> bool:
        """Whether everything agrees, and there was something to compare."""
        compared = bool(self.verdicts) and all(verdict.agrees for verdict in self.verdicts)
        return compared and not self.crashes and not self.departures

    def document(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "device": self.device,
            "recording": self.origin.to_json(),
            "holds": self.holds,
            "facts": [
                {
                    "id": verdict.fact.id,
                    "title": verdict.fact.title,
                    "under_the_other_rule": verdict.other_rule,
                    "observations": len(verdict.recorded),
                    "agrees": verdict.agrees,
                    "differences": [
                        {"label": each.label, "recorded": each.recorded, "seen": each.seen} for each in verdict.differences
                    ],
                    "not_shown": [{"clause": limit.clause, "reason": limit.reason} for limit in verdict.fact.limits],
                }
                for verdict in self.verdicts
            ],
            "crashes": dict(self.crashes),
            "programs": self.programs,
            "programs_departing": [str(each) for each in self.departures],
        }
