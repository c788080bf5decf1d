"""What a run raises when something is wrong, and how errors hang together."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from cgstate.errors import CGStateError

__all__ = ["Violated", "chain", "forget_frames"]


class Violated(CGStateError, AssertionError):
    """The runtime did something that it must not, or a component answered wrongly."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and all that it came from."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [each.__cause__, each.__context__]


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold, and keep where they were: the next run may be on the same device."""
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
