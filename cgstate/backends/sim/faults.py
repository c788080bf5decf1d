"""Fault injection: any call of the backend and its handles, and the steps inside a capture, can be made to raise.

Tests call `Faults.inject`; the room passes every call through `faulted` or `Faults.before`. `Faults.calls` counts them all, so a
test can first count what a scenario does and then break each call of it in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class InjectedFault(Exception):
    """The default of what an injected fault raises. It is no error of the device."""


class HasFaults(Protocol):
    """Whatever belongs to a device."""

    @property
    def faults(self) -> Faults:
        """The injector of its device."""
        ...


S = TypeVar("S", bound=HasFaults)


@dataclass(slots=True)
class _Plan:
    name: str
    when: str
    left: int
    error: BaseException


class Faults:
    """The injector of one device.

    Attributes:
        calls: How often each call was made, by name.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._plans: list[_Plan] = []

    def inject(
        self,
        name: str,
        *,
        when: Literal["before", "after"] = "before",
        nth: int = 1,
        error: BaseException | None = None,
    ) -> None:
        """Let the ``nth`` call of ``name`` from now on raise ``error``, once.

        ``before``: the call then does nothing. ``after``: it has done all it does, and its caller does not learn the result.
        """
        if nth < 1:
            raise ValueError("calls are counted from 1")
        self._plans.append(_Plan(name, when, nth, error or InjectedFault(f"{when} {name}")))

    def pending(self) -> int:
        """How many injected faults have not been raised yet."""
        return len(self._plans)

    def clear(self) -> None:
        """Forget what was injected; the counts stay."""
        self._plans.clear()

    def before(self, name: str) -> None:
        """Count the call; raise when it is the one."""
        self.calls[name] += 1
        if self._plans:
            error = self.due(name, "before")
            if error is not None:
                raise error

    def due(self, name: str, when: str) -> BaseException | None:
        """What this call of ``name`` has to raise now, if anything."""
        here = [plan for plan in self._plans if plan.name == name and plan.when == when]
        for plan in here:
            plan.left -= 1
        for plan in here:
            if plan.left <= 0:
                self._plans.remove(plan)
                return plan.error
        return None


def faulted(name: str) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Make a method a call that faults can be injected into, as ``name``."""

    def decorate(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            faults = self.faults
            faults.before(name)
            result = method(self, *args, **kwargs)
            error = faults.due(name, "after") if faults.pending() else None
            if error is not None:
                del result  # the traceback would keep alive what the caller never gets
                raise error
            return result

        return call

    return decorate
