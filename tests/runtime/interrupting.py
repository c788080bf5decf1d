"""Raises `KeyboardInterrupt` at one place after the other where CPython may run a signal handler.

A handler runs where the interpreter looks whether something is pending: when a function or a resumed generator begins, after a call
into C, and at a jump backwards; and while a lock is waited for. So not between any two instructions: two stores that follow each
other cannot be parted, and nothing comes between the last store of a function written in Python and the next one of its caller. The
runtime rests on that, as the hot path has no time for anything else, so the places are found by instruction and not by line.

An interrupt that CPython would raise at the last call inside a ``try`` cannot be raised here, since tracing comes one instruction
later; it goes to the same handler as one at the instruction before.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cgstate

ROOT = Path(cgstate.__file__).parent
WATCHED = (str(ROOT / "runtime"), str(ROOT / "lifecycle" / "steps.py"), str(ROOT / "backends" / "undo.py"))
BORDERS = contextlib.__file__
"""Where a ``with`` block of a generator begins and ends."""

Place = tuple[tuple[CodeType, int], ...]
"""Functions and instructions, innermost first."""


class Instructions:
    """What is asked about the instructions of one function, by offset."""

    def __init__(self, code: CodeType) -> None:
        instructions = list(dis.get_instructions(code))
        self.names = {each.offset: each.opname for each in instructions}
        self.begins = {
            after.offset for before, after in pairwise(instructions) if before.opname == "RESUME" and (before.arg or 0) < 2
        }
        self._guarded = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]  # typeshed does not know it

    def handler(self, offset: int) -> int | None:
        """Where an exception goes; None: out of the function."""
        return next((entry.target for entry in self._guarded if entry.start <= offset < entry.end), None)

    def may_interrupt(self, before: int | None, here: int, *, into_python: bool) -> bool:
        """Whether an interrupt may come ahead of ``here``, behind ``before``, the instruction that ran last."""
        name = self.names.get(before, "") if before is not None else ""
        called = name.startswith("CALL") and not into_python and before is not None and self.handler(before) == self.handler(here)
        return here in self.begins or called or "BACKWARD" in name or self.names[here] == "BEFORE_WITH"


instructions = cache(Instructions)


class Interrupter:
    """Runs an act and interrupts it at one place, the ``nth`` that it comes by, counted from 1; 0: nowhere.

    Attributes:
        places: Those that it came by, in order.
    """

    def __init__(self, nth: int = 0) -> None:
        self.nth = nth
        self.places: list[Place] = []
        self._last: dict[FrameType, int] = {}
        self._into_python: set[FrameType] = set()

    def run(self, act: Callable[[], object]) -> None:
        """Run ``act``; what it raises is raised."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            act()
        finally:
            sys.settrace(before)
            self._last.clear()
            self._into_python.clear()

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """A function, or a generator once more, is entered."""
        caller, code = frame.f_back, frame.f_code
        by_c = code.co_flags & inspect.CO_GENERATOR or code.co_name.startswith("__")  # `next`, a class, an operator
        if caller is not None and caller in self._last and not by_c:
            self._into_python.add(caller)
        if not _watched(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            before, here = self._last.get(frame), frame.f_lasti
            into_python = frame in self._into_python
            self._last[frame] = here
            self._into_python.discard(frame)
            if instructions(frame.f_code).may_interrupt(before, here, into_python=into_python):
                self.places.append(tuple(_stack(frame)))
                if len(self.places) == self.nth:
                    raise KeyboardInterrupt
        elif event == "return":
            self._last.pop(frame, None)
            self._into_python.discard(frame)
        return self._step


def worth_trying(places: list[Place]) -> list[int]:
    """Numbers of places, from 1: of each instruction the first time that it is come to."""
    first: dict[tuple[CodeType, int], int] = {}
    for number, place in enumerate(places, 1):
        first.setdefault(place[0], number)
    return list(first.values())


def described(place: Place) -> str:
    """For people: the function and the line, and where that was called."""
    return " < ".join(f"{code.co_name}:{_line(code, offset)}" for code, offset in place[:5])


def _line(code: CodeType, offset: int) -> int | None:
    return next((line for start, end, line in code.co_lines() if start <= offset < end), None)


def _watched(frame: FrameType) -> bool:
    """Whether interrupts are raised in a function: one of the runtime's, or what begins and ends its ``with`` blocks.

    Not in a finalizer: what is raised there is printed, and goes no further.
    """
    while frame.f_code.co_filename == BORDERS and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(WATCHED) and frame.f_code.co_name != "__del__"


def _stack(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    while frame is not None and _watched(frame):
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back
