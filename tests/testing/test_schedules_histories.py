"""Histories are explained by the tables, or not."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from cgstate.errors import IllegalTransition
from cgstate.testing.schedules import Unexplained
from cgstate.testing.schedules.histories import OPEN, Event, History, check_history, diagram
from cgstate.testing.schedules.reference import Reference


def history(*events: tuple[str, str, Hashable]) -> History:
    """Events: who, what was called, and OPEN, or what it returned."""
    made = History()
    made.events = [Event(thread, tuple(operation.split()), result) for thread, operation, result in events]
    return made


def sequence(*operations: tuple[str, Hashable]) -> History:
    """One thread's operations, one after the other."""
    return history(*[event for operation, result in operations for event in (("a", operation, OPEN), ("a", operation, result))])


def reference() -> Reference:
    return Reference(["e", "f"], bound=["e"])


class TestSerial:
    """What one thread sees is what the tables say."""

    @pytest.mark.parametrize(
        "operations",
        [
            [("acquire e", "ok"), ("acquire e", "ok"), ("release e", "ok"), ("launch e", "ok"), ("release e", "ok")],
            [("acquire f", "IllegalTransition"), ("capture f", "ok"), ("replay f", "ok"), ("evict", 2)],
            [("acquire e", "ok"), ("evict", 1), ("launch e", "IllegalTransition"), ("release e", "ok"), ("evict", 0)],
            [("evict", 1), ("call e", "eager"), ("capture e", "ok"), ("call e", "graph")],
            [("invalidate", 1), ("replay e", "IllegalTransition"), ("capture e", "ok"), ("replay e", "ok")],
            [("suspend", "ok"), ("replay e", "NotResident"), ("call e", "NotResident"), ("resume", "ok"), ("call e", "graph")],
            [("close", "ok"), ("replay e", "ManagerClosed"), ("call e", "eager"), ("capture f", "ManagerClosed"), ("close", "ok")],
        ],
    )
    def test_what_the_tables_say(self, operations: list[tuple[str, Hashable]]) -> None:
        assert check_history(sequence(*operations), reference()) > len(operations)

    @pytest.mark.parametrize(
        "operations",
        [
            [("evict", 2)],
            [("evict", 1), ("replay e", "ok")],
            [("acquire f", "ok")],
            [("suspend", "ok"), ("call e", "eager")],
            [("acquire e", "ok"), ("close", "ok")],
            [("acquire e", "ok"), ("suspend", "ok")],
            [("invalidate", 1), ("call e", "graph")],
            [("close", "ok"), ("call e", "graph")],
            [("acquire e", "ok"), ("evict", 1), ("acquire e", "ok")],
        ],
    )
    def test_what_they_do_not(self, operations: list[tuple[str, Hashable]]) -> None:
        with pytest.raises(Unexplained):
            check_history(sequence(*operations), reference())


class TestConcurrent:
    def test_operations_that_overlap_may_come_in_either_order(self) -> None:
        calls = ("a", "replay e", OPEN), ("b", "evict", OPEN), ("b", "evict", 1)
        check_history(history(*calls, ("a", "replay e", "ok")), reference())
        check_history(history(*calls, ("a", "replay e", "IllegalTransition")), reference())

    def test_operations_that_do_not_overlap_come_in_the_one_they_had(self) -> None:
        with pytest.raises(Unexplained):
            check_history(
                history(("b", "evict", OPEN), ("b", "evict", 1), ("a", "replay e", OPEN), ("a", "replay e", "ok")), reference()
            )

    def test_another_operation_may_come_between_the_steps_of_a_capture(self) -> None:
        between = ("b", "replay f", OPEN), ("b", "replay f", "IllegalTransition"), ("b", "replay e", OPEN), ("b", "replay e", "ok")
        check_history(history(("a", "capture f", OPEN), *between, ("a", "capture f", "ok")), reference())

    def test_a_capture_of_memory_that_moves_meanwhile_does_not_bind(self) -> None:
        moves = ("b", "invalidate", OPEN), ("b", "invalidate", 0)
        check_history(history(("a", "capture f", OPEN), *moves, ("a", "capture f", "StaleBinding")), reference())

    def test_four_threads(self) -> None:
        threads = "abcd"
        calls = [(thread, "acquire e", OPEN) for thread in threads]
        returns = [(thread, "acquire e", "ok") for thread in threads]
        check_history(history(*calls, *returns), reference())
        with pytest.raises(Unexplained):
            check_history(history(*calls, *returns, ("a", "evict", OPEN), ("a", "evict", 0)), reference())

    def test_an_operation_that_never_returned_may_have_happened_or_not(self) -> None:
        for result in ("ok", "IllegalTransition"):
            check_history(history(("a", "evict", OPEN), ("b", "replay e", OPEN), ("b", "replay e", result)), reference())


def test_a_violation_is_drawn() -> None:
    with pytest.raises(Unexplained) as found:
        check_history(
            history(("a", "acquire e", OPEN), ("b", "evict", OPEN), ("a", "acquire e", "ok"), ("b", "evict", 0)), reference()
        )
    assert str(found.value).splitlines()[1:] == [
        "  a            b",
        "  ┌ acquire e",
        "  │            ┌ evict",
        "  └ ok         │",
        "!              └ 0",
    ]


def test_what_an_operation_raises_is_its_result() -> None:
    made = History()

    def refuse() -> None:
        raise IllegalTransition("entry", "e", "EAGER", "acquire", "no")

    with pytest.raises(IllegalTransition):
        made.call("a", ("acquire", "e"), refuse)
    assert made.call("a", ("evict",), lambda: 3, int) == 3
    assert diagram(made.events).splitlines() == ["  a", "  ┌ acquire e", "  └ IllegalTransition", "  ┌ evict", "  └ 3"]
