"""Names of the places where a program can be stopped.

A named point is called what the runtime calls it. A lock or a wait is called after the function that does it, so that a schedule
goes on meaning the same when lines move or code is added elsewhere.
"""

from __future__ import annotations

import contextlib
from types import CodeType, FrameType

from cgstate.runtime.gate import CaptureGate

_PASSED_ON = {CaptureGate.wait.__code__, CaptureGate.wait_for.__code__}
"""Functions that wait for somebody else: who calls them is the one to name."""


def caller(frame: FrameType | None) -> CodeType:
    """The function that ``frame`` belongs to, or the one on whose behalf it works."""
    while frame is not None and (frame.f_code in _PASSED_ON or frame.f_code.co_filename == contextlib.__file__):
        frame = frame.f_back
    assert frame is not None
    return frame.f_code


def point_name(kind: str, where: CodeType | str | None) -> str:
    """E.g. ``launch`` for a named point, ``lock(Books.exclusive)``, ``end``."""
    match where:
        case None:
            return kind
        case str():
            return where
        case _:
            return f"{kind}({where.co_qualname.replace('<locals>.', '')})"
