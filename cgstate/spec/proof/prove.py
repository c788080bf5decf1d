"""The obligations, and their proofs.

Nothing is quantified: a lemma is shown for objects of which nothing is known but that the row may have stepped one of them. The
lemmas before the step are used for these objects, for the stepping one, and for what belongs to it: that is all a step can touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from time import process_time

import z3  # type: ignore[import-untyped]  # it ships no types

from cgstate.lifecycle.expr import Expr, Var, variables
from cgstate.lifecycle.properties import Acceptance, StepProperty
from cgstate.lifecycle.rules import ACCEPTANCES, STEP_PROPERTIES
from cgstate.lifecycle.table import Machine, Row
from cgstate.lifecycle.tables import ENTRY, MACHINE, MACHINES
from cgstate.spec.proof.encode import (
    SORTS,
    Situation,
    Step,
    Term,
    World,
    component_of,
    constant,
    domain_of,
    domain_of_pool,
    is_live,
    over_cells,
    settle,
    situation,
    step,
    term,
)
from cgstate.spec.proof.lemmas import COUNTERS, LEMMAS, Counter, Lemma

TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Obligation:
    """One thing to prove, and how it went.

    Attributes:
        of: The lemma, counter or rule.
        by: The row, or ``at first``.
        proven: Whether it was proven; None: z3 gave up.
        counterexample: If not, a situation in words, by variable.
    """

    of: str
    by: str
    proven: bool | None
    counterexample: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """All obligations.

    Attributes:
        obligations: One by one.
        seconds: CPU time that they took.
    """

    obligations: tuple[Obligation, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether all are proven."""
        return all(each.proven for each in self.obligations)

    @property
    def unknown_only(self) -> bool:
        """Whether what is not proven is not refuted either."""
        return not any(each.proven is False for each in self.obligations)

    def lines(self, *, verbose: bool) -> Iterator[str]:
        """The report as text."""
        for each in self.obligations:
            if verbose or not each.proven:
                yield f"{_WORDS[each.proven]}: {each.of}; {each.by}"
            for name, value in each.counterexample.items():
                yield f"    {name} = {value}"
        proven = sum(bool(each.proven) for each in self.obligations)
        yield f"{proven} of {len(self.obligations)} obligations proven, {self.seconds:.1f} s"

    def document(self) -> Mapping[str, object]:
        """The report as data."""
        return {
            "proven": sum(bool(each.proven) for each in self.obligations),
            "seconds": self.seconds,
            "obligations": [
                {"of": each.of, "by": each.by, "proven": each.proven, "counterexample": each.counterexample}
                for each in self.obligations
            ],
        }


_WORDS = {True: "proven", False: "NOT TRUE", None: "unknown"}


def prove_all(
    machines: Sequence[Machine] = MACHINES,
    lemmas: Sequence[Lemma] = LEMMAS,
    counters: Sequence[Counter] = COUNTERS,
    rules: Sequence[StepProperty] = STEP_PROPERTIES,
    acceptances: Sequence[Acceptance] = ACCEPTANCES,
) -> Report:
    """Prove everything."""
    started = process_time()
    obligations = [
        *_at_first(lemmas, counters),
        *of_rows(machines, lemmas, counters, rules),
        *of_refusals(machines, lemmas, acceptances),
        *_moved_by_others(machines, counters),
    ]
    return Report(tuple(obligations), process_time() - started)


def of_rows(
    machines: Sequence[Machine] = MACHINES,
    lemmas: Sequence[Lemma] = LEMMAS,
    counters: Sequence[Counter] = COUNTERS,
    rules: Sequence[StepProperty] = STEP_PROPERTIES,
    *,
    which: Callable[[Machine, Row], bool] = lambda machine, row: True,
) -> Iterator[Obligation]:
    """What the rows must satisfy, one proof after the other; only of those rows that ``which`` picks."""
    for machine in machines:
        its_rules = [rule for rule in rules if rule.machine == machine.name]
        for row in machine.rows:
            if which(machine, row):
                yield from _of_row(step(machine, row), lemmas, counters, its_rules)


def of_refusals(
    machines: Sequence[Machine] = MACHINES,
    lemmas: Sequence[Lemma] = LEMMAS,
    acceptances: Sequence[Acceptance] = ACCEPTANCES,
) -> Iterator[Obligation]:
    """That each event which is owed is taken by one of its rows."""
    for machine in machines:
        for owed in acceptances:
            if owed.machine == machine.name:
                here = situation(machine, owed.event)
                solver = _solver([*here.given, *_known(here, lemmas, {}), term(owed.when, here.value)])
                taken = z3.Or(*(here.enabled(row) for row in machine.rows if row.event is owed.event))
                yield _prove(solver, owed.name, f"{machine.name}: no row", taken, _shown(here, {}))


def _at_first(lemmas: Sequence[Lemma], counters: Sequence[Counter]) -> Iterator[Obligation]:
    world = World.first()
    for lemma in lemmas:
        at = _arbitrary(lemma)
        solver = _solver([world.cells["component.capacity"](at["c"]) >= 0] if "c" in at else [])
        yield _prove(solver, lemma.name, "at first", over_cells(lemma.holds, world, settle(lemma.parameters, world, at)), {})
    for counter in counters:
        entry = z3.Const("x", SORTS["entry"])
        zero = z3.And(_part(counter, world, entry) == 0, world.cells[f"{counter.owner}.{counter.field}"](None) == 0)
        yield _prove(_solver([]), counter.name, "at first", zero, {})


def _of_row(
    taken: Step, lemmas: Sequence[Lemma], counters: Sequence[Counter], rules: Sequence[StepProperty]
) -> Iterator[Obligation]:
    by = f"{taken.machine.name}: {taken.row.label}"
    solver = _solver([taken.taken, *_known(taken, lemmas, {})])
    yield Obligation("some situation allows the row, or its proofs would be empty", by, solver.check() == z3.sat, {})
    for lemma in lemmas:
        if taken.assigned.isdisjoint(lemma.variables):
            yield Obligation(lemma.name, f"{by} (assigns nothing of it)", True, {})
            continue
        at = _arbitrary(lemma)
        goal = over_cells(lemma.holds, taken.after, settle(lemma.parameters, taken.after, at))
        yield _prove(solver, lemma.name, by, goal, _shown(taken, at), _known(taken, lemmas, at))
    if taken.machine.name == ENTRY.name:
        owner = {"component": component_of, "domain": domain_of}
        for counter in counters:
            cell, whose = f"{counter.owner}.{counter.field}", owner[counter.owner](taken.at)
            moved = taken.after.cells[cell](whose) - taken.before.cells[cell](whose)
            part = _part(counter, taken.after, taken.at) - _part(counter, taken.before, taken.at)
            yield _prove(solver, counter.name, by, moved == part, _shown(taken, {}))
    for rule in rules:
        yield _prove(solver, rule.name, by, _rule(rule, taken), _shown(taken, {}))


def _moved_by_others(machines: Sequence[Machine], counters: Sequence[Counter]) -> Iterator[Obligation]:
    """That no table but the entry's assigns a counter: a look at the rows is proof enough."""
    for counter in counters:
        for machine in machines:
            if machine.name != ENTRY.name:
                names = {f"{counter.owner}.{counter.field}", *([counter.field] if machine.name == counter.owner else [])}
                moved = any(effect.var.name in names for row in machine.rows for effect in row.effects)
                yield Obligation(counter.name, f"{machine.name}: no row assigns it", not moved, {})


def _known(taken: Step | Situation, lemmas: Sequence[Lemma], others: Mapping[str, Term]) -> Iterator[Term]:
    """The lemmas before the step, for the objects at hand."""
    world = taken.before
    objects: dict[str, list[Term]] = {kind: [] for kind in SORTS}
    for name, each in [(taken.machine.name, taken.at), *((str(each.sort()).lower(), each) for each in others.values())]:
        if each is not None:
            objects[name].append(each)
    objects["component"] += [component_of(entry) for entry in objects["entry"]]
    objects["pool"] += [world.pool_of(entry) for entry in objects["entry"]]
    for entry in objects["entry"]:
        yield domain_of_pool(world.pool_of(entry)) == domain_of(entry)
        yield z3.Implies(is_live(world, entry), world.cells["domain.live"](domain_of(entry)) > 0)  # it counts the live ones
    for lemma in lemmas:
        free = [(name, its.kind) for name, its in lemma.parameters if its.of is None]
        for chosen in product(*(objects[kind] for _, kind in free)):
            at = settle(lemma.parameters, world, dict(zip((name for name, _ in free), chosen, strict=True)))
            yield over_cells(lemma.holds, world, at)


def _arbitrary(lemma: Lemma) -> dict[str, Term]:
    return {name: z3.Const(name, SORTS[its.kind]) for name, its in lemma.parameters if its.of is None}


def _part(counter: Counter, world: World, entry: Term) -> Term:
    at = {"x": entry}
    return z3.If(over_cells(counter.counted, world, at), 1, 0) + over_cells(counter.more, world, at)


def _rule(rule: StepProperty, taken: Step) -> Term:
    machine = taken.machine

    def value(var: Var) -> Term:
        name = var.name
        if name == "event":
            return constant(taken.row.event)
        if name in taken.parameters:
            return taken.parameters[name]
        world = taken.after if name.endswith("'") else taken.before
        owner, _, own = name.rstrip("'").rpartition(".")
        kind = owner or machine.name
        return world.cells[f"{kind}.{own}"](*world.related(kind, machine, taken.at))

    unknown = {var.name for event, known in machine.parameters.items() if event is not taken.row.event for var in known}
    unknown -= taken.parameters.keys()

    def tells(condition: Expr) -> bool:
        return unknown.isdisjoint(var.name for var in variables(condition))

    musts = [term(condition, value) for condition in rule.must if tells(condition)]
    return z3.Implies(term(rule.when, value), z3.And(*musts)) if tells(rule.when) else z3.BoolVal(True)


def _shown(taken: Step | Situation, others: Mapping[str, Term]) -> dict[str, Term]:
    """What a counterexample tells: the variables of the objects at hand, before the step."""
    shown: dict[str, Term] = {}
    objects = {taken.machine.name: taken.at, **others}
    for name, each in objects.items():
        kind = "manager" if each is None else str(each.sort()).lower()
        machine = MACHINE.get(kind)
        fields = ["state", *(var.name for var, _ in machine.own)] if machine else []
        for field in fields:
            arguments = () if each is None else (each,)
            shown[f"{name}.{field}"] = taken.before.cells[f"{kind}.{field}"](*arguments)
    if taken.machine.name == ENTRY.name:
        for var in taken.machine.related:
            kind, _, field = var.name.partition(".")
            shown[var.name] = taken.before.cells[var.name](*taken.before.related(kind, taken.machine, taken.at))
    return {**shown, **taken.parameters}


def _solver(known: Sequence[Term]) -> z3.Solver:
    solver = z3.SimpleSolver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*known)
    return solver


def _prove(solver: z3.Solver, of: str, by: str, goal: Term, shown: Mapping[str, Term], also: Iterable[Term] = ()) -> Obligation:
    solver.push()
    try:
        solver.add(*also, z3.Not(goal))
        answer = solver.check()
        if answer == z3.unsat:
            return Obligation(of, by, True, {})
        if answer == z3.unknown:
            return Obligation(of, by, None, {})
        model = solver.model()
        words = {name: str(model.eval(value, model_completion=True)) for name, value in shown.items()}
        return Obligation(of, by, False, words)
    finally:
        solver.pop()
