"""The walk by the tables alone: no device and no runtime, only the system of their rows, and what must hold in it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from cgstate.lifecycle.expr import Expr
from cgstate.spec.compiled import Instance, State, System
from cgstate.spec.properties import INVARIANTS, STEPS, Property
from cgstate.spec.shape import Shape
from cgstate.testing.stateful.errors import Violated

__all__ = ["TableWalk", "walk_tables"]

RESTART = 200
"""Steps after which a walk begins anew, so that it does not stay where a manager was closed."""
REMEMBERED = 20_000
"""States whose successors are kept."""


@dataclass
class TableWalk:
    """What a walk by the tables came to.

    Attributes:
        steps: How many steps.
        taken: How often each action was taken.
        seconds: CPU time, seconds.
    """

    steps: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def walk_tables(shape: Shape | None = None, *, seed: int = 0, steps: int = 100_000) -> TableWalk:
    """Take ``steps`` drawn steps of the system that the tables describe, and judge each.

    Raises:
        Violated: a step or a state breaks a property; the message has the way there.
    """
    system = System(shape or Shape((2, 2), 2))
    holds_in, holds_by = system.predicate(_all(INVARIANTS)), system.step_predicate(_all(STEPS))
    random = Random(seed)
    walked = TableWalk()
    known: dict[State, list[tuple[Instance, State]]] = {}
    started = time.process_time()
    state, way = system.initial, list[str]()
    while walked.steps < steps:
        out = known.get(state)
        if out is None:
            out = []
            for instance in system.instances:
                after = instance.step(state)
                if after is not None:
                    if not (holds_by(state, after) and holds_in(after)):
                        raise Violated(f"{' '.join([*way, instance.label])}: {_broken(system, state, after)}")
                    out.append((instance, after))
            if len(known) < REMEMBERED:
                known[state] = out
        if not out or len(way) >= RESTART:
            state, way = system.initial, []
            continue
        instance, state = random.choice(out)
        way.append(instance.label)
        walked.taken[instance.action.name] += 1
        walked.steps += 1
    walked.seconds = time.process_time() - started
    return walked


def _all(properties: Sequence[Property]) -> Expr:
    result, *others = (each.expr for each in properties)
    for other in others:
        result = result & other
    return result


def _broken(system: System, before: State, after: State) -> str:
    steps = [each for each in STEPS if not system.step_predicate(each.expr)(before, after)]
    states = [each for each in INVARIANTS if not system.predicate(each.expr)(after)]
    return "; ".join(each.name for each in (*steps, *states))
