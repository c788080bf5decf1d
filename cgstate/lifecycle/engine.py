"""Runs a table as it stands: the reference meaning of the rows.

An environment maps every variable name, and ``state``, to its value. Stepping is pure: a new environment comes back. The runtime
uses the generated `steps` instead, which a test holds equal to this interpreter; it comes here only to explain a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from operator import attrgetter

from cgstate.errors import IllegalTransition
from cgstate.lifecycle.expr import Value, Var, evaluate
from cgstate.lifecycle.table import Machine, Row
from cgstate.lifecycle.tables import STATE_REFUSALS

Env = Mapping[str, Value]


def initial(machine: Machine) -> dict[str, Value]:
    """The own variables and the state of a new entity."""
    return {"state": machine.initial, **{var.name: first for var, first in machine.own}}


def holds(row: Row, env: Env) -> bool:
    """Whether every guard of the row holds."""
    return all(evaluate(guard.expr, env) for guard in row.guards)


def enabled(machine: Machine, env: Env, event: StrEnum) -> tuple[Row, ...]:
    """Rows that ``event`` could take now; one at most, unless the table declares an overlap."""
    return tuple(row for row in machine.rows_for(state_of(machine, env), event) if holds(row, env))


def apply(machine: Machine, row: Row, env: Env) -> dict[str, Value]:
    """The environment after taking ``row``; its effects all read the values from before."""
    after = dict(env)
    for effect in row.effects:
        after[effect.var.name] = evaluate(effect.expr, env)
    after["state"] = env[row.target.name] if isinstance(row.target, Var) else row.target
    return after


def step(machine: Machine, env: Env, event: StrEnum, entity: str = "?") -> tuple[Row, dict[str, Value]]:
    """Take the first enabled row.

    Raises:
        IllegalTransition: no row is enabled; ``env`` is untouched.
    """
    for row in machine.rows_for(state_of(machine, env), event):
        if holds(row, env):
            return row, apply(machine, row, env)
    raise refusal(machine, env, event, entity)


def refusal(machine: Machine, env: Env, event: StrEnum, entity: str) -> IllegalTransition:
    """Say why ``event`` is refused: the first failing guard of the row that came closest."""
    state = state_of(machine, env)
    best: tuple[int, IllegalTransition] | None = None
    for row in machine.rows_for(state, event):
        for position, guard in enumerate(row.guards):
            if not evaluate(guard.expr, env):
                if best is None or position > best[0]:
                    best = position, guard.refusal(machine.name, entity, state, event, guard.name)
                break
    if best is not None:
        return best[1]
    return STATE_REFUSALS.get(state, IllegalTransition)(machine.name, entity, state, event)


def state_of(machine: Machine, env: Env) -> StrEnum:
    """The state in ``env``, as a member of the machine's enum."""
    return machine.states(str(env["state"]))


def observe(machine: Machine, entity: object, event: StrEnum, parameters: Env) -> dict[str, Value]:
    """Read a live entity into an environment: only what the rows of ``event`` look at."""
    env: dict[str, Value] = {"state": attrgetter("state")(entity), **parameters}
    for name in machine.read_for(state_of(machine, env), event):
        if name not in env:
            env[name] = attrgetter(name)(entity)
    return env
