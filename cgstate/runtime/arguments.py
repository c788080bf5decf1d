"""What a manager is made with: looked at before anything is made."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from cgstate.errors import ConfigError

E = TypeVar("E", bound=StrEnum)


def check_counts(*, least: int, **values: object) -> None:
    """Refuse what is no whole number, or less than ``least``.

    Raises:
        ConfigError: naming the argument.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} must be a {'positive ' if least else ''}count, not {value!r}")


def check_flags(**values: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ConfigError: naming the argument.
    """
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, not {value!r}")


def member(kind: type[E], name: str, value: object) -> E:
    """The member that ``value`` is, or names.

    Raises:
        ConfigError: naming the argument, and what it may be.
    """
    try:
        return kind(str(value))
    except ValueError:
        raise ConfigError(f"{name} must be one of {[each.value for each in kind]}, not {value!r}") from None
