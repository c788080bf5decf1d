"""What must be refused: doors that are closed now, and events that a table has no row for in the present situation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any, ClassVar

from cgstate.errors import IllegalTransition
from cgstate.lifecycle import engine
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import ComponentEvent, ComponentState, PoolKind
from cgstate.lifecycle.steps import Steps
from cgstate.lifecycle.table import Machine
from cgstate.lifecycle.tables import MACHINES
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.step import TRIES, Event, Step

__all__ = ["ClosedDoor", "KeptEvent", "RefusedEvent", "attempt_all", "entities"]


@dataclass(frozen=True, repr=False)
class RefusedEvent(Step):
    """Let an entity take an event that its table refuses now: it must say so, in the table's words, and nothing may change.

    Attributes:
        entity: Its name, e.g. ``net[1]`` or ``manager``.
        event: The event.
        says: The facts that the caller brings along, in the table's order.
    """

    entity: str
    event: str
    says: tuple[Value, ...] = ()

    weight: ClassVar[int] = 16

    @classmethod
    def draw(cls, play: Play, random: Random) -> Step | None:
        """As `Step.draw`; there are too many to list them for each step of a walk."""
        there, drawn = list(entities(play)), random.random
        for _ in range(TRIES):
            name, entity = there[int(drawn() * len(there))]
            events = _EVENTS[entity.machine.name]
            event = events[int(drawn() * len(events))]
            says = tuple([var.domain[:2][int(drawn() * 2)] for var in entity.machine.parameters.get(event, ())])
            step = cls(name, event.value, says)
            if step.refused_by(entity):
                return step
        return None

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every event of every entity, with all that can be said of it."""
        for name, entity in entities(play):
            yield from cls.of(name, entity)

    @classmethod
    def of(cls, name: str, entity: Steps) -> Iterator[RefusedEvent]:
        """Every event of one entity, with all that can be said of it."""
        machine = entity.machine
        for event in machine.events:
            for says in product(*(var.domain[:2] for var in machine.parameters.get(event, ()))):
                yield cls(name, event.value, says)

    def legal(self, play: Play) -> bool:
        """Only where no row allows it."""
        found = self._find(play)
        return found is not None and self.refused_by(found)

    def refused_by(self, entity: Steps) -> bool:
        """Whether no row of the entity allows it."""
        machine = entity.machine
        event = machine.events(self.event)
        if not machine.rows_for(entity.state, event):  # type: ignore[attr-defined]  # every entity has one
            return True
        return not engine.enabled(machine, engine.observe(machine, entity, event, self._parameters(machine)), event)

    def _find(self, play: Play) -> Steps | None:
        return next((entity for name, entity in entities(play) if name == self.entity), None)

    def _parameters(self, machine: Machine) -> dict[str, Value]:
        names = [var.name for var in machine.parameters.get(machine.events(self.event), ())]
        return dict(zip(names, self.says, strict=True))

    def run(self, play: Play) -> None:
        """Attempt it under the device's lock."""
        before, entity = play.world, self._find(play)
        assert entity is not None  # else it would not be legal
        self.attempt(play, entity)
        play.seen = play.look()
        if play.seen != before:
            raise Violated("a refused event has changed something")

    def attempt(self, play: Play, entity: Any) -> None:
        """Let the entity that it names attempt it, and hold the refusal against the table."""
        machine: Machine = entity.machine
        event, parameters = machine.events(self.event), self._parameters(machine)
        with play.books.gate.lock:
            env = engine.observe(machine, entity, event, parameters)
            right = engine.refusal(machine, env, event, entity.name)
            try:
                getattr(entity, self.event)(**parameters)
            except IllegalTransition as refusal:
                found = refusal
            else:
                raise Violated(f"it was not refused, where {right}")
        play.coverage.attempted(machine, self.event, env)
        if (type(found), found.args) != (type(right), right.args):
            raise Violated(f"it was refused with '{found}', and should have been with '{right}'")


def attempt_all(play: Play) -> None:
    """Attempt, in the middle of something, every event that the tables refuse; nothing may change.

    Raises:
        Violated: something was not refused, or not in the table's words, or has changed something.
    """
    before = play.look()
    for name, entity in entities(play):
        for step in RefusedEvent.of(name, entity):
            if step.refused_by(entity):
                step.attempt(play, entity)
    if play.look() != before:
        raise Violated("a refused event has changed something")


_KEPT = (ComponentEvent.abort, ComponentEvent.begin, ComponentEvent.commit, ComponentEvent.fail)


@dataclass(frozen=True, repr=False)
class KeptEvent(Step):
    """Let a component take an event that leaves it as it is: a bound one keeps its state through any transaction.

    Attributes:
        component: Its name.
        event: The event.
    """

    component: str
    event: ComponentEvent

    weight: ClassVar[int] = 2
    brings: ClassVar[frozenset[Event]] = frozenset(_KEPT)

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every bound component with every such event."""
        for view in play.world.components:
            if view.state in (ComponentState.BOUND, ComponentState.REPLAYING):
                yield from (cls(view.name, event) for event in _KEPT)

    def run(self, play: Play) -> None:
        """Let it take the event."""
        before = play.look()
        with play.books.gate.lock:
            getattr(play.books.components[self.component], self.event)()
        play.seen = play.look()
        if play.seen != before:
            raise Violated("it has changed something")


_EVENTS = {machine.name: list(machine.events) for machine in MACHINES}


def entities(play: Play) -> Iterator[tuple[str, Steps]]:
    """Everything that has a table, by a name that does not depend on the run."""
    books = play.books
    yield "manager", books
    for record in books.components.values():
        yield record.name, record
        for entry in record.entries.values():
            yield entry.name, entry
    for domain in books.domains.values():
        if domain.kind is PoolKind.throwaway:
            yield from ((f"{entry.name} while profiling", entry) for entry in sorted(domain.entries, key=lambda each: each.name))
    for number, pool in enumerate(books.pools):
        yield f"pool {number}", pool


@dataclass(frozen=True, repr=False)
class ClosedDoor(Step):
    """Go through a door that must be closed now.

    Attributes:
        step: What is attempted.
    """

    step: Step

    weight: ClassVar[int] = 24

    def legal(self, play: Play) -> bool:
        """What is attempted decides: it must be refused."""
        return False

    def attempted(self, play: Play) -> bool:
        """Where it is still there, and closed."""
        return self.step.legal(play) is False and any(each == self.step for each in type(self.step).candidates(play))

    def run(self, play: Play) -> None:
        """Attempt it."""
        self.step.run(play)
