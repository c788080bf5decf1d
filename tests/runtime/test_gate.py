"""Captures and calls that a graph answers keep out of each other's way; a mixture at the end of a transaction is noticed."""

from __future__ import annotations

import threading
import time

import pytest

import cgstate
from cgstate.runtime.capturing import Capture
from cgstate.runtime.transaction import Transaction
from tests.runtime.helpers import PATIENCE, Model, before, reached, running


def wait_for_a_pending_capture(manager: cgstate.GraphManager) -> None:
    """Until another thread waits to capture."""
    deadline = time.monotonic() + PATIENCE
    while not manager._books.gate.pending:
        assert time.monotonic() < deadline, "no capture waits"
        threading.Event().wait(0.001)


def test_a_capture_waits_for_a_call_that_a_graph_answers_and_that_call_may_call_others_meanwhile() -> None:
    model = Model()
    outer, inner = model.component("outer"), model.component("inner")
    inside, captured, answers = threading.Event(), threading.Event(), list[object]()
    x = model.input(4)
    armed: list[bool] = []

    def call_another() -> None:
        if not armed:
            return
        inside.set()
        wait_for_a_pending_capture(manager)
        answers.append(inner(x).tolist())  # must not wait for the capture, which waits for this call
        assert not captured.is_set(), "the capture did not wait"

    before(outer, "copy_runtime_inputs", call_another)
    manager = model.serving(outer, inner, isolation="per_component")
    right = model.net(x).tolist()
    armed.append(True)

    def capture() -> None:
        reached(inside)
        with manager.transaction() as transaction:
            transaction.capture(manager.entry("low", 1), lambda warmup: captured.set)

    with running(capture, lambda: answers.append(outer(x).tolist())):
        pass
    assert captured.is_set()
    assert answers == [right, right]


def test_a_transaction_that_binds_half_is_noticed_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, bound = Transaction._bind, list[str]()

    def half(self: Transaction, captured: Capture) -> None:
        if not bound:
            honest(self, captured)
        bound.append(captured.entry.name)

    model = Model()
    manager, static = model.manager(), model.input(2)
    monkeypatch.setattr(Transaction, "_bind", half)

    def capture_two() -> None:
        with manager.transaction() as transaction:
            for size in (1, 2):
                transaction.capture(manager.entry("low", size), lambda warmup: lambda: model.net(static))

    with pytest.raises(cgstate.InvariantViolation, match="I1"):
        capture_two()
    assert len(bound) == 2
