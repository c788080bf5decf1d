"""What a user of vLLM may say: one environment variable that switches the adapter on, and one key of ``additional_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from cgstate.errors import ConfigError

SWITCH = "CGSTATE_VLLM"
"""Environment variable: ``1`` switches the adapter on; ``0``, empty or unset leave vLLM alone."""

KEY = "cgstate"
"""Key of vLLM's ``additional_config`` under which the options are."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one engine.

    Attributes:
        enabled: Whether the engine's graphs are managed, where the adapter is switched on.
        check: Check every invariant after each operation; slow.
        trace: Write a trace of every transition to this file, with the process id before its suffix; None: none.
    """

    enabled: bool = True
    check: bool = False
    trace: str | None = None


def switched_on(environ: Mapping[str, str]) -> bool:
    """Whether the environment switches the adapter on.

    Raises:
        ConfigError: the variable has a value that means nothing.
    """
    match environ.get(SWITCH, ""):
        case "" | "0":
            return False
        case "1":
            return True
        case other:
            raise ConfigError(f"{SWITCH} must be '0' or '1', not {other!r}")


def parse(additional_config: object) -> Options:
    """The options in vLLM's ``additional_config``; all defaults where it has none.

    Raises:
        ConfigError: an unknown key or a wrong type; the message names the key and what is allowed.
    """
    given = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"additional_config[{KEY!r}] must be a mapping, not {given!r}")
    known = sorted(field.name for field in fields(Options))
    for key in given:
        if key not in known:
            raise ConfigError(f"additional_config[{KEY!r}] has unknown key {key!r}; it may have {known}")
    for key in ("enabled", "check"):
        if not isinstance(given.get(key, False), bool):
            raise ConfigError(f"{key} in additional_config[{KEY!r}] must be True or False, not {given[key]!r}")
    trace = given.get("trace")
    if trace is not None and (not isinstance(trace, str) or not trace):
        raise ConfigError(f"trace in additional_config[{KEY!r}] must be a file name or None, not {trace!r}")
    return Options(**given)
