"""Failures of captures: what is remembered, for how long, and what a kind allows. The negative cache is bounded, keyed by value."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from types import FrameType
from typing import assert_never

from cgstate.lifecycle.states import FailureKind


@dataclass(frozen=True, slots=True)
class Failure:
    """One remembered failure.

    Attributes:
        kind: Its kind.
        error: What was raised, as text: keeping the error itself would keep the frames, and with them device memory.
        reclaimed: How often something had been reclaimed by then; OOM and BUDGET are tried again when that moved.
    """

    kind: FailureKind
    error: str
    reclaimed: int

    def blocks(self, *, reclaimed: int, explicit: bool) -> bool:
        """Whether a further attempt is pointless now.

        Args:
            reclaimed: How often something has been reclaimed by now.
            explicit: The attempt is asked for by name, not by a miss.
        """
        match self.kind:
            case FailureKind.REJECTED | FailureKind.DEVICE:
                return True
            case FailureKind.USER:
                return not explicit
            case FailureKind.OOM | FailureKind.BUDGET:
                return not explicit and reclaimed == self.reclaimed
            case FailureKind.FOREIGN:
                return False
            case other:
                assert_never(other)


class NegativeCache:
    """The last failures, oldest forgotten first."""

    __slots__ = ("_records", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._records: OrderedDict[tuple[str, Hashable], Failure] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, component: str, descriptor: Hashable) -> Failure | None:
        """The remembered failure of a descriptor."""
        return self._records.get((component, descriptor))

    def remember(self, component: str, descriptor: Hashable, failure: Failure) -> None:
        """Keep a failure; the oldest goes when there are too many."""
        key = component, descriptor
        self._records[key] = failure
        self._records.move_to_end(key)
        while len(self._records) > self.limit:
            self._records.popitem(last=False)

    def forget(self, component: str | None = None, descriptor: Hashable | None = None) -> None:
        """Forget one failure, all of one component, or all."""
        if component is None:
            self._records.clear()
        elif descriptor is not None:
            self._records.pop((component, descriptor), None)
        else:
            for key in [key for key in self._records if key[0] == component]:
                del self._records[key]


def clear_frames(*errors: BaseException) -> None:
    """Let go of what the frames of errors and of all errors behind them hold: tensors of a failed capture must come back (I12)."""
    seen: set[int] = set()
    left: list[BaseException | None] = [*errors]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        trace = each.__traceback__
        caller = trace.tb_frame.f_back if trace is not None else None
        while trace is not None:
            _clear(trace.tb_frame)
            trace = trace.tb_next
        while caller is not None and _clear(caller):  # an error that was swallowed half way up keeps its callers as well
            caller = caller.f_back
        left += [each.__cause__, each.__context__, *(each.exceptions if isinstance(each, BaseExceptionGroup) else ())]


def _clear(frame: FrameType) -> bool:
    """Clear a frame; False if it still runs. A generator is left alone: it may be suspended, and clearing would end it."""
    if not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        try:
            frame.clear()
        except RuntimeError:
            return False
    return True
