"""The generated steps are the table: the same file, and the same step, as the interpreter's on every explored edge."""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace

import pytest

from cgstate.errors import IllegalTransition
from cgstate.lifecycle import Machine, engine, generate
from cgstate.lifecycle.engine import Env
from cgstate.lifecycle.explore import Edge, Exploration
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.steps import ComponentSteps, EntrySteps, ManagerSteps, PoolSteps, Steps
from cgstate.lifecycle.table import Row


class AnEntry(EntrySteps):
    name = "decoder[64]"


class AComponent(ComponentSteps):
    name = "decoder"


class APool(PoolSteps):
    name = "shared/1"


class AManager(ManagerSteps):
    name = "cuda:0"


KINDS: dict[str, type[Steps]] = {kind.machine.name: kind for kind in (AnEntry, AComponent, APool, AManager)}


class Subject:
    """A stepping entity whose variables are put where a situation says, with whatever it needs around it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.entity = KINDS[machine.name]()
        attrgetter("reset_variables")(self.entity)()
        self.told: list[tuple[Row, str]] = []
        self.entity.observer = lambda entity, row, state: self.told.append((machine.rows[row], state))
        for var in machine.related:
            owner, _, _ = var.name.rpartition(".")
            setattr(self.entity, owner, SimpleNamespace())
        for var in machine.related:
            self._put(var.name, var.domain[0])
        self.names = ["state", *(var.name for var, _ in machine.own), *(var.name for var in machine.related)]
        self.read = attrgetter(*self.names)

    def place(self, env: Env) -> None:
        for name in self.names:
            if name in env:
                self._put(name, env[name])
        self.told.clear()

    def _put(self, name: str, value: Value) -> None:
        owner, _, attribute = name.rpartition(".")
        setattr(attrgetter(owner)(self.entity) if owner else self.entity, attribute, value)

    def variables(self) -> dict[str, Value]:
        return dict(zip(self.names, self.read(self.entity), strict=True))

    def parameters(self, edge: Edge) -> dict[str, Value]:
        return {var.name: edge.env[var.name] for var in self.machine.parameters.get(edge.event, ())}

    def fire(self, edge: Edge) -> IllegalTransition | None:
        """Call the edge's event; the refusal, if it was refused. (`pytest.raises` costs seconds at sixty thousand refusals.)"""
        try:
            attrgetter(edge.event.value)(self.entity)(**self.parameters(edge))
        except IllegalTransition as refusal:
            return refusal
        return None


@pytest.fixture
def subject(machine: Machine) -> Subject:
    return Subject(machine)


def test_the_file_is_what_the_tables_generate() -> None:
    assert generate.OUTPUT.read_text() == generate.source(), "run: python -m cgstate.lifecycle.generate"


def test_an_entity_starts_as_the_table_says(machine: Machine, subject: Subject) -> None:
    variables = subject.variables()
    assert {name: variables[name] for name in engine.initial(machine)} == engine.initial(machine)


def test_the_generated_steps_are_the_interpreters(subject: Subject, exploration: Exploration) -> None:
    for edge in exploration.edges:
        if edge.row is not None:
            subject.place(edge.env)
            before = subject.variables()
            assert subject.fire(edge) is None
            after = {name: edge.after.get(name, value) for name, value in before.items()}
            assert subject.variables() == after, edge
            assert subject.told == [(edge.row, edge.env["state"])]


def test_a_refusal_names_who_what_and_why_and_changes_nothing(subject: Subject, exploration: Exploration) -> None:
    machine = exploration.machine
    for edge in exploration.edges:
        if edge.row is None:
            subject.place(edge.env)
            before = subject.variables()
            expected = engine.refusal(machine, edge.env, edge.event, subject.entity.name)
            refusal = subject.fire(edge)
            assert refusal is not None, edge
            assert type(refusal) is type(expected)
            assert refusal.args == expected.args
            assert refusal.args == (machine.name, subject.entity.name, edge.env["state"], edge.event, refusal.guard)
            assert subject.variables() == before
            assert subject.told == []


def test_the_guard_that_a_refusal_names_said_no(exploration: Exploration) -> None:
    machine = exploration.machine
    for edge in exploration.edges:
        if edge.row is None:
            rows = machine.rows_for(engine.state_of(machine, edge.env), edge.event)
            refused = engine.refusal(machine, edge.env, edge.event, "it")
            blamed = [guard for row in rows for guard in row.guards if guard.name == refused.guard]
            assert bool(blamed) == bool(rows)
            assert all(guard.refusal is type(refused) for guard in blamed)


def test_questions_are_answered_as_the_event_would_be(subject: Subject, exploration: Exploration) -> None:
    asked = {event for event in exploration.machine.events if event in generate.QUESTIONS}
    for edge in exploration.edges:
        if edge.event in asked:
            subject.place(edge.env)
            before = subject.variables()
            answer = attrgetter(f"may_{edge.event.value}")(subject.entity)(**subject.parameters(edge))
            assert answer == (edge.row is not None)
            assert subject.variables() == before


def test_an_entity_must_name_itself() -> None:
    with pytest.raises(TypeError, match="names itself"):
        _ = Steps().name
