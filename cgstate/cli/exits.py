"""Exit codes, a contract with scripts."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit status says."""

    HOLDS = 0
    VIOLATED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    MISSING = 4
