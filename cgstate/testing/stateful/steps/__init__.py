"""Every kind of step, and which of them a run may take now."""

from __future__ import annotations

from cgstate.testing.stateful.step import Step
from cgstate.testing.stateful.steps.calling import Call
from cgstate.testing.stateful.steps.capturing import Begin, Capture, CaptureAll, Commit, GiveUp, How, Meanwhile, Prepare
from cgstate.testing.stateful.steps.device import Advance, Break, BreakRoutine, Collect, Disagree, Idle, Lose
from cgstate.testing.stateful.steps.ending import Close, DropManager, Release, Renew
from cgstate.testing.stateful.steps.illegal import ClosedDoor, KeptEvent, RefusedEvent
from cgstate.testing.stateful.steps.leasing import Drop, GiveBack, Read, Replay, ReplayLeased, Take
from cgstate.testing.stateful.steps.memory import (
    Evict,
    ForgetFailures,
    Invalidate,
    MovePinned,
    Mutate,
    Reclaim,
    Resume,
    SetBudget,
    Suspend,
)
from cgstate.testing.stateful.steps.nesting import DeclareInside
from cgstate.testing.stateful.steps.profiling import ProfileByHand, ProfileMemory

__all__ = [
    "DOORS",
    "GROUPS",
    "KINDS",
    "REFUSABLE",
    "Advance",
    "Begin",
    "Break",
    "BreakRoutine",
    "Call",
    "Capture",
    "CaptureAll",
    "Close",
    "ClosedDoor",
    "Collect",
    "Commit",
    "DeclareInside",
    "Disagree",
    "Drop",
    "DropManager",
    "Evict",
    "ForgetFailures",
    "GiveBack",
    "GiveUp",
    "How",
    "Idle",
    "Invalidate",
    "KeptEvent",
    "Lose",
    "Meanwhile",
    "MovePinned",
    "Mutate",
    "Prepare",
    "ProfileByHand",
    "ProfileMemory",
    "Read",
    "Reclaim",
    "RefusedEvent",
    "Release",
    "Renew",
    "Replay",
    "ReplayLeased",
    "Resume",
    "SetBudget",
    "Suspend",
    "Take",
]

GROUPS: dict[str, tuple[type[Step], ...]] = {
    "capture": (Prepare, CaptureAll, ProfileMemory, ProfileByHand, Begin, Capture, DeclareInside, Commit, GiveUp),
    "call": (Call,),
    "lease": (Replay, Take, ReplayLeased, Read, GiveBack, Drop),
    "memory": (Evict, Invalidate, Suspend, Resume, Mutate, MovePinned, Reclaim, SetBudget, ForgetFailures),
    "device": (Advance, Idle, Collect),
    "end": (Release, Close, DropManager, Renew),
    "fault": (Break, BreakRoutine, Disagree, Lose),
}
"""Everything that can be done, by what it is about."""

DOORS: tuple[type[Step], ...] = tuple(kind for group in GROUPS.values() for kind in group)
"""Everything that can be done."""

REFUSABLE: tuple[type[Step], ...] = (
    Release,
    Close,
    Suspend,
    Take,
    ReplayLeased,
    CaptureAll,
    Evict,
    Mutate,
    Resume,
    Invalidate,
    Begin,
    Capture,
    DeclareInside,
    ProfileMemory,
    ProfileByHand,
    Replay,
    SetBudget,
    Reclaim,
    Prepare,
    ForgetFailures,
)
"""What the runtime has to refuse at times."""

KINDS: tuple[type[Step], ...] = (*DOORS, KeptEvent, RefusedEvent, ClosedDoor)
"""The same, and what must be refused."""
