"""What every single step of a table must satisfy, and what a table must make possible.

State predicates alone do not pin a table down: a row may lead to the wrong state and leave every World looking right. A **step
property** therefore judges a step by the situations before and after it; a **goal** judges a whole exploration.

Step properties are data, like the rows: written over the machine's variables, their values after the step (`then`) and the event.
An **acceptance** says when an event must not be refused: a table that does nothing at all would
break no step property.

On an explored edge all of a property is evaluated. On a recorded trace only states and events are known, and a condition over
anything else is passed over. The properties themselves are in `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from cgstate.lifecycle import tables as t
from cgstate.lifecycle.engine import Env
from cgstate.lifecycle.explore import Exploration
from cgstate.lifecycle.expr import Add, Eq, Expr, Value, Var, evaluate, python, variables


@dataclass(frozen=True, slots=True)
class StepProperty:
    """A rule for steps.

    Attributes:
        machine: Name of the machine.
        name: What it demands, in words.
        when: The steps it speaks of.
        must: What holds for each of them, all of it.
    """

    machine: str
    name: str
    when: Expr
    must: tuple[Expr, ...]

    def violations(self, step: Env) -> Iterator[str]:
        """The conditions that a step (see `step_of`) breaks."""
        if not _holds(self.when, step):
            return
        for condition in self.must:
            if _holds(condition, step) is False:
                names = frozenset(var.name for var in variables(condition))
                move = f"{step['state']} --{step['event']}--> {step[_STATE_THEN]}"
                yield f"{self.machine}: {self.name}: {move} breaks: {python(condition, names)}"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A rule for refusals: an event that must be taken in some situations, so that nothing is refused without a reason.

    Attributes:
        machine: Name of the machine.
        event: The event.
        when: The situations in which a refusal is wrong.
    """

    machine: str
    event: StrEnum
    when: Expr

    @property
    def name(self) -> str:
        """What it demands, in words."""
        return f"{self.event} is refused only for a reason"

    def violations(self, situation: Env) -> Iterator[str]:
        """What is wrong with refusing the event in a situation."""
        if _holds(self.when, situation):
            yield f"{self.machine}: {self.name}: it is refused in {dict(situation)}"


@dataclass(frozen=True, slots=True)
class Goal:
    """Something that must be possible.

    Attributes:
        machine: Name of the machine.
        name: What must be possible, in words.
        violations: Where an exploration of the machine shows that it is not.
    """

    machine: str
    name: str
    violations: Callable[[Exploration], Iterator[str]]


def step_of(before: Env, event: str, after: Env) -> dict[str, Value]:
    """The situation before, the event, and the situation afterwards under primed names; for a trace, ``state`` is enough."""
    return {**before, "event": event, **{f"{name}'": value for name, value in after.items()}}


def comes_to(homes: frozenset[StrEnum], of: Expr, exploration: Exploration) -> Iterator[str]:
    """The reachable nodes that ``of`` picks and from which no path leads to one of the states ``homes``."""
    key = exploration.key_of
    sources: dict[tuple[Value, ...], list[tuple[Value, ...]]] = {}
    for edge in exploration.edges:
        if edge.rows:
            sources.setdefault(key(edge.after), []).append(key(edge.env))
    queue = [key(node) for node in exploration.nodes if node["state"] in homes]
    arriving = set(queue)
    for node in queue:
        for source in sources.get(node, ()):
            if source not in arriving:
                arriving.add(source)
                queue.append(source)
    for node_env in exploration.nodes:
        if evaluate(of, node_env) and key(node_env) not in arriving:
            yield f"{exploration.machine.name}: no way to {' or '.join(sorted(homes))} from {dict(node_env)}"


def every_row_is_taken(exploration: Exploration) -> Iterator[str]:
    """The rows that are never the one taken."""
    taken = {id(edge.row) for edge in exploration.edges}
    for row in exploration.machine.rows:
        if id(row) not in taken:
            yield f"{exploration.machine.name}: {row.label} is never taken"


def _holds(expr: Expr, step: Env) -> bool | None:
    """Whether a condition holds; None where it hangs on a variable that the step does not tell."""
    try:
        return bool(evaluate(expr, step))
    except KeyError:
        return None


# -- words for the rules ----------------------------------------------------------------------------------------------

_STATE_THEN = "state'"


def then(var: Var) -> Var:
    """The variable's value after the step."""
    return Var(f"{var.name}'", var.domain, var.doc)


def implies(condition: Expr, consequence: Expr) -> Expr:
    """The consequence, wherever the condition holds."""
    return ~condition | consequence


def grows(var: Var, number: int) -> Eq:
    """The variable moves by exactly ``number``."""
    return then(var).eq(Add(var, number))


def enters(*states: StrEnum) -> Expr:
    """The step leads into one of these states from outside."""
    state = t.same(type(states[0]))
    return ~state.among(*states) & then(state).among(*states)


def leaves(*states: StrEnum) -> Expr:
    """The step leads out of these states."""
    state = t.same(type(states[0]))
    return state.among(*states) & ~then(state).among(*states)


def by(*events: StrEnum) -> Expr:
    """The event is one of these."""
    return Var("event", tuple(type(events[0]))).among(*events)
