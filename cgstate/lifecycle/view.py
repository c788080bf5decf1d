"""A table as a `transitions.Machine`: the view that people know, and the oracle that a differential test walks beside the engine.

Nothing runs on it: a trigger costs microseconds there. It needs the ``transitions`` package, which only the tests bring along.

The model carries ``state``, a plain string, and ``variables``, a flat mapping by the table's names: the entity's own variables
(``leases``) and those of related objects (``gate.free``). The parameters of an event are keyword arguments of its trigger:
``model.acquire(stream_capturing=False)``. Conditions evaluate the guards on all three, effects are written back to ``variables``.

Its habits that this adapter works around (transitions 0.9.3): states must be plain value strings, since enum members are
registered by name; a trigger whose conditions all fail returns False, so here it raises `transitions.MachineError` like one that
has no transition from the state; a target is fixed, so a row that returns to an earlier state becomes one transition for each
state it may return to; effects run before the state changes, where an exception still leaves it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from cgstate.lifecycle.expr import Expr, Value, Var, evaluate
from cgstate.lifecycle.table import Machine, Row

if TYPE_CHECKING:
    import transitions


class Model(Protocol):
    """What `to_transitions` needs of a model; ``state`` and a method for each event are added to it."""

    variables: dict[str, Value]


class Variables:
    """The model made when none is given: the first value of every variable.

    Attributes:
        state: The state, as ``transitions`` keeps it.
        variables: Own and related variables, by the table's names.
    """

    state: str

    def __init__(self, machine: Machine) -> None:
        self.variables: dict[str, Value] = {var.name: var.domain[0] for var in machine.related}
        self.variables |= {var.name: first for var, first in machine.own}


def to_transitions(machine: Machine, model: Model | None = None) -> transitions.Machine:
    """Make a `transitions.Machine` that accepts and refuses exactly what the table does.

    Args:
        machine: The table.
        model: What it shall move; `Variables` if not given, found as ``.model`` of the result.
    """
    import transitions

    class Event(transitions.Event):
        """An event that is refused loudly."""

        def trigger(self, model: object, *args: Any, **kwargs: Any) -> bool:
            if not super().trigger(model, *args, **kwargs):
                raise transitions.MachineError(f"every condition of {self.name} failed")
            return True

    class View(transitions.Machine):
        event_cls = Event

    view = View(
        model=Variables(machine) if model is None else model,
        states=[state.value for state in machine.states],
        initial=machine.initial.value,
        auto_transitions=False,
        send_event=True,
        name=machine.name,
    )
    for row in machine.rows:
        _add(view, machine, row)
    return view


def _add(view: transitions.Machine, machine: Machine, row: Row) -> None:
    guards = [_condition(machine, guard.expr) for guard in row.guards]
    for source in row.sources:
        for target, returning in _targets(row, source):
            view.add_transition(
                row.event.value,
                source.value,
                target.value,
                conditions=[*guards, *(_condition(machine, expr) for expr in returning)],
                before=_effects(machine, row),
            )


def _targets(row: Row, source: StrEnum) -> list[tuple[StrEnum, list[Expr]]]:
    """Where the row leads from ``source``, and for a target that is a variable, what it must hold for that."""
    if not isinstance(row.target, Var):
        return [(row.target, [])]
    if row.target.name == "state":
        return [(source, [])]
    return [(state, [row.target.eq(state)]) for state in row.target.domain if isinstance(state, StrEnum)]


def _condition(machine: Machine, expr: Expr) -> Callable[[transitions.EventData], bool]:
    return lambda data: bool(evaluate(expr, _env(machine, data)))


def _effects(machine: Machine, row: Row) -> Callable[[transitions.EventData], None]:
    def write(data: transitions.EventData) -> None:
        env = _env(machine, data)
        _variables(data).update({effect.var.name: evaluate(effect.expr, env) for effect in row.effects})

    return write


def _env(machine: Machine, data: transitions.EventData) -> dict[str, Value]:
    return {**_variables(data), **data.kwargs, "state": machine.states(data.state.name)}


def _variables(data: transitions.EventData) -> dict[str, Value]:
    model: Any = data.model  # what `to_transitions` was given: a `Model`
    variables: dict[str, Value] = model.variables
    return variables
