"""The evidence file of a comparison: what the recording's GPU ran, and whether the simulator does the same."""

from __future__ import annotations

from pathlib import Path

from cgstate.errors import ConfigError
from cgstate.testing import evidence
from cgstate.testing.fidelity.facts import FACTS
from cgstate.testing.fidelity.report import Report
from cgstate.testing.machine import Machine

PROGRAMS = 200
"""Drawn programs of a recording."""

BARS = {
    "facts": evidence.at_least(len(FACTS)),
    "facts_recorded": evidence.at_least(len(FACTS)),
    "facts_departing": evidence.exactly(0),
    "programs": evidence.at_least(PROGRAMS),
    "programs_departing": evidence.exactly(0),
}


def write_evidence(path: Path, report: Report, command: str) -> bool:
    """Write what ``report``, a comparison of the simulator, found; whether every bar holds. Date and device are the recording's.

    Raises:
        ConfigError: it cannot be written.
    """
    origin = report.origin
    figures = {
        "facts": len(report.facts),
        "facts_recorded": sum(bool(verdict.recorded) for verdict in report.facts),
        "facts_departing": sum(not verdict.agrees for verdict in report.facts),
        "observations": sum(len(verdict.recorded) for verdict in report.facts),
        "programs": report.programs,
        "programs_departing": len(report.departures),
    }
    rows = [
        {
            "fact": verdict.fact.id,
            "claim": verdict.fact.title,
            "observations": len(verdict.recorded),
            "agrees": verdict.agrees,
            "not_shown": [limit.clause for limit in verdict.fact.limits],
        }
        for verdict in report.facts
    ]
    try:
        return evidence.write(
            path,
            command=command,
            commit=origin.commit,
            figures=figures,
            bars=BARS,
            rows=rows,
            machine=Machine(origin.device, origin.driver, origin.torch, origin.python),
            date=origin.date,
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
