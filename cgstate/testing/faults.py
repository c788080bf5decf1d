"""Faults in routines: any method of a routine can be made to raise, before or after it has done its work.

Those of a backend's calls are the simulator's own business (`cgstate.backends.sim.faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from cgstate.routine import Routine

__all__ = ["METHODS", "RoutineFault", "RoutineFaults", "When"]

When: TypeAlias = Literal["before", "after"]

METHODS = (
    "eager_call",
    "validate_runtime_inputs",
    "resolve_runtime",
    "make_lazy_descriptor",
    "validate_descriptor",
    "allocate_buffers",
    "prepare_for_capture",
    "capture_context",
    "forward_for_capture",
    "after_capture",
    "copy_runtime_inputs",
    "output_after_replay",
)
"""The methods of a routine that calls and captures go through."""


class RoutineFault(Exception):
    """What an injected fault raises."""


@dataclass(slots=True)
class _Plan:
    method: str
    when: When
    left: int


class RoutineFaults:
    """Makes methods of routines raise.

    Attributes:
        quiet: Let calls through, uncounted.
    """

    def __init__(self) -> None:
        self._planned: list[_Plan] = []
        self.quiet = False

    def install(self, routine: Routine[..., Any, Any, Any]) -> None:
        """Let the methods of a routine be broken; before a manager has its component."""
        for method in METHODS:
            setattr(routine, method, partial(self._call, method, getattr(routine, method)))

    def inject(self, method: str, *, when: When = "before", nth: int = 1) -> None:
        """Let the ``nth`` call of ``method`` from now on raise `RoutineFault`, once; ``after``: it has done all it does by then.

        Raises:
            ValueError: no method of a routine is named so, or calls are not counted from 1.
        """
        if method not in METHODS or nth < 1:
            raise ValueError(f"no call number {nth} of a method {method!r}; there are {', '.join(METHODS)}")
        self._planned.append(_Plan(method, when, nth))

    def pending(self) -> int:
        """How many faults have not been raised yet."""
        return len(self._planned)

    def clear(self) -> None:
        """Forget what was injected."""
        self._planned.clear()

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._planned or self.quiet:
            return method(*args, **kwargs)
        self._due(name, "before")
        answer = method(*args, **kwargs)
        self._due(name, "after")
        return answer

    def _due(self, method: str, when: When) -> None:
        for plan in [each for each in self._planned if each.method == method and each.when == when]:
            plan.left -= 1
            if plan.left <= 0:
                self._planned.remove(plan)
                raise RoutineFault(f"{when} {method}")
