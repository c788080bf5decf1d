"""What an error is called in an outcome: by its meaning, so that both devices use the same words."""

from __future__ import annotations

from enum import StrEnum

from cgstate.errors import CGStateError


class ErrorName(StrEnum):
    """What a device and its framework may refuse. A device's own code is called ``device error CODE``."""

    out_of_memory = "out of memory"
    internal_assert = "internal assert"
    already_recording = "already recording"
    generator_in_capture = "generator in capture"
    library = "library error"
    never_captured = "never captured"
    graph_in_use = "graph in use"
    default_stream = "default stream"
    not_capturing = "not capturing"
    wrong_stream = "wrong stream"


_PHRASES = (
    ("CUBLAS_STATUS_", ErrorName.library),
    ("INTERNAL ASSERT FAILED", ErrorName.internal_assert),
    ("already recording to mempool_id", ErrorName.already_recording),
    ("Offset increment outside graph capture", ErrorName.generator_in_capture),
    ("without a preceding successful capture", ErrorName.never_captured),
    ("already owns a capture", ErrorName.graph_in_use),
    ("must be captured on a non-default stream", ErrorName.default_stream),
    ("before capture_begin", ErrorName.not_capturing),
    ("must end on the", ErrorName.wrong_stream),
)


def by_phrase(error: BaseException) -> str:
    """The name of an error that is known by its text; that of its class for a Python error or one of the library's own.

    An error of the device that nothing here knows is called by its text, so that it agrees with nothing by accident.
    """
    text = str(error)
    if isinstance(error, RuntimeError) and not isinstance(error, CGStateError):
        found = next((name for phrase, name in _PHRASES if phrase in text), None)
        return found or f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
    return type(error).__name__
