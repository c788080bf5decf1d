"""What tests of programs that use cgstate are made of, and how the simulator is held against a GPU.

Importing this imports nothing: what is named here comes when it is asked for; `LifecycleMachine` and `Battery` bring Hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cgstate.testing.battery import Battery
    from cgstate.testing.conformance.backend import BackendConformance
    from cgstate.testing.conformance.routine import check_routine
    from cgstate.testing.everyfault import every_fault
    from cgstate.testing.faults import RoutineFaults
    from cgstate.testing.stateful.bed import Bed, Capabilities
    from cgstate.testing.stateful.failing import WalkFailed, played
    from cgstate.testing.stateful.machine import LifecycleMachine
    from cgstate.testing.stateful.setup import Setup
    from cgstate.testing.stateful.subject import Subject
    from cgstate.testing.stateful.walk import walk

__all__ = [
    "BackendConformance",
    "Battery",
    "Bed",
    "Capabilities",
    "LifecycleMachine",
    "RoutineFaults",
    "Setup",
    "Subject",
    "WalkFailed",
    "check_routine",
    "every_fault",
    "played",
    "walk",
]

_PLACES = {
    "BackendConformance": "conformance.backend",
    "Battery": "battery",
    "Bed": "stateful.bed",
    "Capabilities": "stateful.bed",
    "LifecycleMachine": "stateful.machine",
    "RoutineFaults": "faults",
    "Setup": "stateful.setup",
    "Subject": "stateful.subject",
    "WalkFailed": "stateful.failing",
    "check_routine": "conformance.routine",
    "every_fault": "everyfault",
    "played": "stateful.failing",
    "walk": "stateful.walk",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
