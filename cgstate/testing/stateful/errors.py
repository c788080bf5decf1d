"""What a run raises when something is wrong."""

from __future__ import annotations

from cgstate.errors import CGStateError

__all__ = ["Violated"]


class Violated(CGStateError, AssertionError):
    """The runtime did something that it must not, or a component answered wrongly."""
