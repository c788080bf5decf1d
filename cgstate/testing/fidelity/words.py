"""Values of observations in words, for tables."""

from __future__ import annotations

from cgstate.testing.fidelity.lab import Value


def in_words(value: Value | None) -> str:
    """What was seen, as a person would say it."""
    match value:
        case None:
            return "not looked at"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value:g}"
        case str():
            return value
        case list():
            return ", ".join(map(in_words, value)) or "nothing"
        case dict():
            return " and ".join(f"{in_words(part)} on {name}" for name, part in value.items()) or "nothing"
