"""Runs whole comparisons: the simulator or the GPU at hand against a recording, and the making of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from cgstate.errors import ConfigError
from cgstate.testing.fidelity import children, recording
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.fidelity.children import Crash
from cgstate.testing.fidelity.compare import STOPPED, Verdict, other_rules, simulate, verdicts_of_simulator
from cgstate.testing.fidelity.fact import Fact
from cgstate.testing.fidelity.facts import FACTS
from cgstate.testing.fidelity.lab import Observation
from cgstate.testing.fidelity.origin import Origin
from cgstate.testing.fidelity.programs import children as program_children
from cgstate.testing.fidelity.programs import recording as program_recording
from cgstate.testing.fidelity.programs.play import draw_many, play
from cgstate.testing.fidelity.programs.program import Difference, Outcome, Program, first_difference
from cgstate.testing.fidelity.programs.recording import ProgramRecording
from cgstate.testing.fidelity.recording import Recording, Said
from cgstate.testing.fidelity.report import Report

Tick: TypeAlias = Callable[[str], None]
"""Told what was just done."""


def compare_simulator(against: Path | None, facts: Sequence[Fact], *, programs: bool, tick: Tick) -> Report:
    """Hold the simulator against the recording in ``against``, or the bundled one.

    Raises:
        ConfigError: the recording cannot be read.
    """
    recorded, drawn = _recordings(against, programs=programs)
    return _simulate(recorded, drawn, facts, tick)


def compare_gpu(against: Path | None, facts: Sequence[Fact], *, programs: bool, tick: Tick) -> Report:
    """Hold the GPU at hand against the recording in ``against``, or the bundled one.

    Raises:
        ConfigError: the recording cannot be read.
    """
    recorded, drawn = _recordings(against, programs=programs)
    here = Origin.here("")
    seen, crashes = _facts_on_gpu(facts, tick)
    verdicts = [Verdict(fact, recorded.facts.get(fact.id, ()), seen[fact.id]) for fact in facts if fact.id in seen]
    outcomes: list[Outcome] = []
    if drawn is not None:
        outcomes, crashed = _programs_on_gpu([each.program for each in drawn.outcomes], tick)
        crashes |= crashed
    played = {outcome.program.name: outcome for outcome in outcomes}
    pairs = [(each, played[each.program.name]) for each in (drawn.outcomes if drawn else ()) if each.program.name in played]
    return Report(here.device, recorded.origin, verdicts, crashes, len(pairs), _departures(pairs))


def record(path: Path, count: int, seed: int, commit: str, tick: Tick) -> Report:
    """Write what the GPU at hand makes of all facts, and of ``count`` programs drawn from ``seed`` on; then compare the simulator.

    Neither file is written if one of its programs did not come to its end: the report says which.

    Raises:
        ConfigError: the files cannot be written.
    """
    origin = Origin.here(commit)
    seen, crashed_facts = _facts_on_gpu(list(FACTS.values()), tick)
    rules = recording.told_rules(seen)
    facts = {id_: _said(observations) for id_, observations in seen.items()}
    recorded = Recording(origin, facts, rules, _under_other_rules(rules))
    if not crashed_facts:
        recording.write(path, recorded)
    outcomes, crashed_programs = _programs_on_gpu(list(draw_many(count, seed)), tick)
    drawn = ProgramRecording(origin, outcomes)
    if count and not crashed_programs:
        program_recording.write(program_recording.beside(path), drawn)
    report = _simulate(recorded, drawn, list(FACTS.values()), tick)
    return replace(report, crashes=crashed_facts | crashed_programs)


def _recordings(against: Path | None, *, programs: bool) -> tuple[Recording, ProgramRecording | None]:
    """The recording of the facts, and if wanted that of the drawn programs beside it; a file of one's own may have none.

    Raises:
        ConfigError: one cannot be read, or they come from different devices or releases.
    """
    if against is None:
        facts, drawn = recording.bundled(), program_recording.bundled() if programs else None
    else:
        facts, beside = recording.read(against), program_recording.beside(against)
        drawn = program_recording.read(beside) if programs and beside.exists() else None
    if drawn is not None and (drawn.origin.device, drawn.origin.torch) != (facts.origin.device, facts.origin.torch):
        raise ConfigError(f"the facts were recorded on another device than the drawn programs: {facts.origin}; {drawn.origin}")
    return facts, drawn


def _simulate(recorded: Recording, drawn: ProgramRecording | None, facts: Iterable[Fact], tick: Tick) -> Report:
    verdicts = []
    for verdict in verdicts_of_simulator(recorded, facts):
        verdicts.append(verdict)
        tick(verdict.fact.id)
    pairs: list[tuple[Outcome, Outcome]] = []
    for each in drawn.outcomes if drawn else ():
        pairs.append((each, play(each.program, SimBench())))
        tick(each.program.name)
    return Report("simulator", recorded.origin, verdicts, programs=len(pairs), departures=_departures(pairs))


def _under_other_rules(rules: dict[str, bool]) -> dict[str, list[Said]]:
    """What the simulator sees under the rule that this GPU's torch does not have."""
    found = {fact.id: simulate(fact, other_rules(fact, rules).items()) for fact in FACTS.values() if fact.rule is not None}
    return {id_: _said(seen) for id_, seen in found.items() if seen[-1].label != STOPPED}


def _departures(pairs: Iterable[tuple[Outcome, Outcome]]) -> list[Difference]:
    differences = (first_difference(recorded, seen) for recorded, seen in pairs)
    return [difference for difference in differences if difference is not None]


def _facts_on_gpu(facts: Sequence[Fact], tick: Tick) -> tuple[dict[str, list[Observation]], dict[str, str]]:
    seen: dict[str, list[Observation]] = {}
    crashes: dict[str, str] = {}
    for id_, found in children.run(facts, tick).items():
        if isinstance(found, Crash):
            crashes[id_] = found.words
        else:
            seen[id_] = found
    return seen, crashes


def _programs_on_gpu(programs: Sequence[Program], tick: Tick) -> tuple[list[Outcome], dict[str, str]]:
    results = program_children.play_on_gpu(programs, tick)
    crashed = {crash.program.name: crash.words for crash in program_children.crashes(results)}
    return [result for result in results if isinstance(result, Outcome)], crashed


def _said(seen: Iterable[Observation]) -> list[Said]:
    return [(each.label, each.value) for each in seen]
