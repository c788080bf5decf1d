"""What a run plays with: components, what they may be called with, and when two answers are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, TypeAlias

from cgstate.errors import ConfigError
from cgstate.runtime.component import Component, LeasedComponent

__all__ = ["AnyComponent", "Subject", "difference", "values"]

AnyComponent: TypeAlias = Component[..., Any] | LeasedComponent[..., Any]


@dataclass(frozen=True)
class Subject:
    """A component under test.

    Attributes:
        component: Fresh: no manager has it.
        samples: Arguments to call it with, again and again; a call may not change them. Give some that no graph serves, too.
        config: Its part of the manager's configuration.
        calls: Components that its graphs call in their eager breaks, each once a replay, with what a graph of the same descriptor
            serves there.
        pure: Whether the eager answer depends on the arguments and the declared dependencies alone: then it is asked for once.

    Raises:
        ConfigError: there are no samples, or they are no tuples.
    """

    component: AnyComponent
    samples: Sequence[tuple[Any, ...]]
    config: Mapping[str, object] = field(default_factory=dict)
    calls: Sequence[str] = ()
    pure: bool = True

    def __post_init__(self) -> None:
        if not self.samples or not all(isinstance(sample, tuple) for sample in self.samples):
            raise ConfigError(f"{self.component!r} needs samples, each a tuple of arguments")

    @property
    def name(self) -> str:
        """The component's id."""
        return self.component.component_id

    @property
    def tolerance(self) -> float:
        """The largest difference to eager that the component allows; 0: every bit."""
        return self.component.tolerance or 0.0


def values(answer: object) -> object:
    """An answer as nested lists of numbers: what is compared. Waits for the device.

    Raises:
        ConfigError: it holds something that has no values.
    """
    to_list = getattr(answer, "tolist", None)
    if to_list is not None:
        return to_list()
    if isinstance(answer, tuple | list):
        return [values(each) for each in answer]
    if isinstance(answer, Mapping):
        return {key: values(each) for key, each in answer.items()}
    if answer is None or isinstance(answer, bool | int | float | str):
        return answer
    raise ConfigError(f"an answer of type {type(answer).__name__} cannot be compared: it has no tolist()")


def difference(one: object, other: object) -> float:
    """The largest difference between two values of `values`; infinite where shapes differ, or one of two numbers is NaN.

    Two NaNs are equal: what is compared was computed twice from the same memory, which may hold them.
    """
    if one == other or (_is_nan(one) and _is_nan(other)):
        return 0.0
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, int | float) and isinstance(other, int | float):
        apart = abs(one - other)
        return apart if apart == apart else float("inf")
    return float("inf")


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and isnan(value)
