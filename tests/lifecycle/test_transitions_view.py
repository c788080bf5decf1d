"""The `transitions` view and the engine, walked side by side over everything that can happen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cgstate.lifecycle import ENTRY, MANAGER, EntryState, Machine
from cgstate.lifecycle.engine import initial
from cgstate.lifecycle.explore import Edge, Exploration, explore
from cgstate.lifecycle.view import Variables, to_transitions

if TYPE_CHECKING:
    import transitions
else:
    transitions = pytest.importorskip("transitions")


def fire(view: transitions.Machine, model: Any, edge: Edge, machine: Machine) -> bool:
    """Put the model where the edge starts and trigger its event; False if it was refused."""
    parameters = {var.name: edge.env[var.name] for var in machine.parameters.get(edge.event, ())}
    view.set_state(str(edge.env["state"]), model)
    model.variables = {name: value for name, value in edge.env.items() if name not in {"state", *parameters}}
    try:
        assert getattr(model, edge.event.value)(**parameters) is True
    except transitions.MachineError:
        return False
    return True


def test_both_machines_agree_everywhere(machine: Machine, exploration: Exploration) -> None:
    view = to_transitions(machine)
    model: Any = view.model
    legal = 0
    for edge in exploration.edges:
        taken = fire(view, model, edge, machine)
        assert taken == (edge.row is not None), edge
        assert model.state == edge.after["state"], edge
        assert model.variables == {name: edge.after[name] for name in model.variables}, edge
        legal += taken
    assert 0 < legal < len(exploration.edges)


def test_the_view_is_a_machine_of_plain_strings(machine: Machine) -> None:
    view = to_transitions(machine)
    assert isinstance(view, transitions.Machine)
    assert [type(name) for name in view.states] == [str] * len(machine.states)
    assert list(view.states) == [state.value for state in machine.states]
    assert set(view.events) == {event.value for event in machine.events}, "auto transitions would add more"
    assert type(view.initial) is str


def test_the_model_starts_as_the_table_says(machine: Machine) -> None:
    model: Any = to_transitions(machine).model
    assert isinstance(model, Variables)
    assert {"state": model.state, **model.variables}.items() >= initial(machine).items()
    assert {var.name for var in machine.related} <= model.variables.keys()


def test_a_model_of_ones_own_is_moved() -> None:
    model = SimpleNamespace(variables={"serving": False, "before": MANAGER.initial})
    to_transitions(MANAGER, model)
    model.prepare()
    assert model.state == "PREPARED"


def test_a_refusal_by_a_guard_is_an_error_and_not_false() -> None:
    model: Any = to_transitions(ENTRY).model
    model.variables |= {"gate.free": False}
    with pytest.raises(transitions.MachineError, match="every condition of capture_begin failed"):
        model.capture_begin(blocked=False)
    assert model.state == EntryState.EAGER


def test_a_refusal_by_the_state_is_the_same_error() -> None:
    model: Any = to_transitions(ENTRY).model
    with pytest.raises(transitions.MachineError, match="bind"):
        model.bind()


def test_the_differential_test_would_notice_a_difference() -> None:
    edges = [edge for edge in explore(MANAGER).edges if edge.row is not None]
    view = to_transitions(MANAGER)
    view.events["prepare"].transitions.clear()
    assert not all(fire(view, view.model, edge, MANAGER) for edge in edges)


def test_transitions_is_imported_only_when_a_view_is_made() -> None:
    code = "import sys, cgstate.lifecycle.view, cgstate.lifecycle.rules; sys.exit('transitions' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
