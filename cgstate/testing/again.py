"""Every name that a printed failure uses: ``from cgstate.testing.again import *``, paste the steps, and they are taken again."""

from cgstate.backends.base import CaptureErrorMode
from cgstate.lifecycle.states import ComponentEvent, EntryEvent, ManagerEvent, PoolEvent
from cgstate.runtime.component import CaptureMode
from cgstate.runtime.domain import Isolation
from cgstate.testing.stateful import steps
from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.failing import played
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.steps import *  # noqa: F403  # any of them may be printed
from cgstate.testing.stateful.walk import steady

__all__ = [
    "Bed",
    "CaptureErrorMode",
    "CaptureMode",
    "ComponentEvent",
    "EntryEvent",
    "Isolation",
    "ManagerEvent",
    "PoolEvent",
    "Setup",
    "played",
    "steady",
    *steps.__all__,
]
