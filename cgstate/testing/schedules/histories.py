"""What concurrent calls did, as their callers saw it, and whether any serial order explains that.

A history is a list of calls and returns. It is explained if every operation can be given moments between its call and its return at
which it takes effect, one step after the other, so that the model answers as the operation did. Most operations are a single step;
one that has several (a capture begins, and binds) lets others in between them, as it does in the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cgstate.testing.schedules.errors import Unexplained

S = TypeVar("S", bound=Hashable)
R = TypeVar("R")

Operation = tuple[Hashable, ...]
"""What was called: a name and its arguments."""


class _Open:
    """The result of an operation that is not over in a model."""


OPEN = _Open()


@dataclass(frozen=True, slots=True)
class Event:
    """A call, or a return.

    Attributes:
        thread: Whose.
        operation: Which.
        result: What it returned; `OPEN` in a call.
    """

    thread: str
    operation: Operation
    result: Hashable


class Model(Protocol[S]):
    """What operations may do. States and progress are plain values, and are never changed."""

    def start(self) -> S:
        """The first state."""
        ...

    def steps(self, state: S, operation: Operation, progress: int) -> Iterable[tuple[S, int, Hashable]]:
        """What the operation may do next, having come as far as ``progress``: 0 at first.

        Returns:
            For each way the state after it, the progress, and the operation's result, or `OPEN` if it goes on.
        """
        ...


class History:
    """Records. Calls and returns come in the order in which they happened, since one program runs at a time.

    Args:
        pause: Called with a name before each operation: a scheduler's `Scheduler.pause`, so that others may come in between two.
    """

    def __init__(self, pause: Callable[[str], object] = lambda name: None) -> None:
        self.events: list[Event] = []
        self._pause = pause

    def call(
        self, thread: str, operation: Operation, work: Callable[[], R], result: Callable[[R], Hashable] = lambda answer: "ok"
    ) -> R:
        """Do ``work`` as the operation of a thread; what it raises is a result as well, by the name of its type, and goes on.

        Args:
            thread: Whose operation it is.
            operation: As the model knows it.
            work: Does it.
            result: What the model is to say of it, from what ``work`` returned.
        """
        self._pause(f"before.{operation[0]}")
        self.events.append(Event(thread, operation, OPEN))
        try:
            answer = work()
        except Exception as error:
            self.events.append(Event(thread, operation, type(error).__name__))
            raise
        self.events.append(Event(thread, operation, result(answer)))
        return answer


@dataclass(frozen=True, slots=True)
class _Pending:
    operation: Operation
    progress: int
    result: Hashable
    observed: Hashable


def check_history(history: History, model: Model[S]) -> int:
    """Look for an order that explains the history.

    Returns:
        How many states were looked at.

    Raises:
        Unexplained: there is none.
    """
    events = tuple(history.events)
    results = [_result_of(events, index) for index in range(len(events))]
    first: tuple[int, S, frozenset[tuple[str, _Pending]]] = (0, model.start(), frozenset())
    seen = {first}
    stack = [first]
    furthest = 0
    while stack:
        index, state, pending = stack.pop()
        furthest = max(furthest, index)
        if index == len(events):
            return len(seen)
        for node in _following(events, results, model, index, state, pending):
            if node not in seen:
                seen.add(node)
                stack.append(node)
    raise Unexplained(
        f"no serial order of these operations is allowed; none explains the line marked !\n{diagram(events, furthest)}"
    )


def _following(
    events: Sequence[Event],
    results: Sequence[Hashable],
    model: Model[S],
    index: int,
    state: S,
    pending: frozenset[tuple[str, _Pending]],
) -> Iterable[tuple[int, S, frozenset[tuple[str, _Pending]]]]:
    """One step further: the next event, or a step of an operation that is under way."""
    event = events[index]
    own = next((each for each in pending if each[0] == event.thread), None)
    if event.result is OPEN:
        assert own is None, "a thread has one operation at a time"
        yield index + 1, state, pending | {(event.thread, _Pending(event.operation, 0, OPEN, results[index]))}
        return  # to begin at once excludes nothing: its steps may come as late as before
    assert own is not None
    if own[1].result == event.result:
        yield index + 1, state, pending - {own}
    for thread, each in pending:
        if each.result is not OPEN:
            continue
        for after, progress, result in model.steps(state, each.operation, each.progress):
            if result is OPEN or each.observed is OPEN or result == each.observed:  # one that never returned may have done anything
                moved = _Pending(each.operation, progress, result, each.observed)
                yield index, after, pending - {(thread, each)} | {(thread, moved)}


def _result_of(events: Sequence[Event], index: int) -> Hashable:
    """What the operation that is called at ``index`` returned."""
    thread = events[index].thread
    return next((each.result for each in events[index + 1 :] if each.thread == thread), OPEN)


def diagram(events: Sequence[Event], marked: int | None = None) -> str:
    """A column a thread, a line an event; ``marked`` is the index of the one to point at."""
    threads = list(dict.fromkeys(event.thread for event in events))
    cells = {index: _cell(event) for index, event in enumerate(events)}
    widths = {t: max([len(t), *(len(cells[i]) for i, event in enumerate(events) if event.thread == t)]) for t in threads}
    lines = ["  " + "  ".join(thread.ljust(widths[thread]) for thread in threads)]
    under_way: set[str] = set()
    for index, event in enumerate(events):
        row = [
            (cells[index] if thread == event.thread else "│" if thread in under_way else "").ljust(widths[thread])
            for thread in threads
        ]
        under_way ^= {event.thread}
        lines.append(f"{'!' if index == marked else ' '} {'  '.join(row)}")
    return "\n".join(line.rstrip() for line in lines)


def _cell(event: Event) -> str:
    if event.result is OPEN:
        return "┌ " + " ".join(map(str, event.operation))
    return f"└ {event.result}"
