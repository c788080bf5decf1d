from __future__ import annotations

import functools

import pytest

from cgstate.lifecycle import MACHINES, Machine
from cgstate.lifecycle.explore import Exploration, explore


@functools.cache
def _explored(name: str) -> Exploration:
    return explore(next(machine for machine in MACHINES if machine.name == name))


@pytest.fixture(params=MACHINES, ids=lambda machine: machine.name)
def machine(request: pytest.FixtureRequest) -> Machine:
    """Each of the four."""
    value: Machine = request.param
    return value


@pytest.fixture
def exploration(machine: Machine) -> Exploration:
    """Everything that can happen to it; walked once."""
    return _explored(machine.name)
