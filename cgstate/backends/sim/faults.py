"""Fault injection: any call of the backend and its handles, and the steps inside a capture, can be made to raise.

Tests call `Faults.inject`; the room passes every call through `faulted` or `Faults.before`. `Faults.calls` counts them all, so a
test can first count what a scenario does and then break each call of it in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


CALLS: set[str] = set()
"""The calls that a fault can be injected into, those of tensors and of the device included."""

STEPS = frozenset(
    {
        "allocate",
        "begin_generator",
        "begin_route",
        "begin_stream_capture",
        "end_stream_capture",
        "instantiate",
        "launch",
        "retain_host_pool",
        "retain_pool",
    }
)
"""The steps inside of calls that can be broken as well; so can each undo step, as ``undo: NAME``."""


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
        planned: What was injected and not raised yet, for the room.
    """

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}  # a Counter would take several times as long
        self.planned: list[_Plan] = []

    @property
    def calls(self) -> Counter[str]:
        """How often each call was made, by name."""
        return Counter(self._calls)

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

        Raises:
            ValueError: it could never be raised: nothing here is named so.
        """
        if nth < 1:
            raise ValueError("calls are counted from 1")
        if name not in CALLS and name not in STEPS and not name.startswith("undo: "):
            raise ValueError(f"no call is named {name!r}")
        self.planned.append(_Plan(name, when, nth, error or InjectedFault(f"{when} {name}")))

    def pending(self) -> int:
        """How many injected faults have not been raised yet."""
        return len(self.planned)

    def clear(self) -> None:
        """Forget what was injected; the counts stay."""
        self.planned.clear()

    def before(self, name: str) -> None:
        """Count the call; raise when it is the one."""
        calls = self._calls
        calls[name] = calls.get(name, 0) + 1
        if self.planned:
            self._raise(name, "before")

    def after(self, name: str) -> None:
        """Raise when the call that is done now is the one."""
        self._raise(name, "after")

    def _raise(self, name: str, when: str) -> None:
        error = self.due(name, when)
        try:
            if error is not None:
                raise error
        finally:
            error = None  # it has this frame: with the frame having it, what is in the frames below would wait for the collector

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """The block is what ``name`` does."""
        self.before(name)
        yield
        self.after(name)

    def due(self, name: str, when: str) -> BaseException | None:
        """What this call of ``name`` has to raise now, if anything."""
        here = [plan for plan in self.planned if plan.name == name and plan.when == when]
        for plan in here:
            plan.left -= 1
        for plan in here:
            if plan.left <= 0:
                self.planned.remove(plan)
                return plan.error
        return None


def faulted(name: str) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Make a method a call that faults can be injected into, as ``name``."""
    CALLS.add(name)

    def decorate(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            faults = self.faults
            faults.before(name)
            result = method(self, *args, **kwargs)
            if faults.planned:
                error = faults.due(name, "after")
                if error is not None:
                    del result  # the traceback would keep alive what the caller never gets
                    try:
                        raise error
                    finally:
                        del error  # as in `Faults._raise`
            return result

        return call

    return decorate
