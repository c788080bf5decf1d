"""What is wrong with a trace that cannot be judged."""

from __future__ import annotations

from cgstate.errors import ConfigError


class TraceError(ConfigError):
    """A file is no trace, or not a whole one, or of other tables than these: nothing can be said about it.

    A trace that can be read and breaks a rule is no error; `cgstate.trace.check` reports it.
    """
