"""Log lines say whom they are about: the manager, what of it, and why."""

from __future__ import annotations

import ast
import contextlib
import logging
from pathlib import Path

import pytest

import cgstate
from tests.runtime.helpers import Model

RUNTIME = Path(cgstate.__file__).parent / "runtime"


def log_calls() -> list[tuple[str, ast.Call]]:
    """Every call of the runtime's logger, with its place."""
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in sorted(RUNTIME.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "log"
    ]


def test_every_line_of_the_runtime_begins_with_its_manager() -> None:
    calls = log_calls()
    assert len(calls) >= 10
    for place, call in calls:
        text, who = call.args[:2]
        assert isinstance(text, ast.Constant), place
        assert str(text.value).startswith("%s: "), place
        assert ast.unparse(who) in ("books.name", "self.books.name", "self.name", "name"), place


def test_a_failure_is_logged_with_manager_component_descriptor_kind_and_cause(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()

    def broken(x: object) -> object:
        raise ValueError("the model has a bug")

    net = model.component("net", (4,), call=broken)
    with model.manager() as manager, caplog.at_level(logging.WARNING, "cgstate"):
        manager.prepare([net])
        with contextlib.suppress(cgstate.CaptureFailed):
            manager.capture_and_bind(progress=False)
        name = repr(manager).split()[1]
    assert [record.getMessage() for record in caplog.records] == [f"{name}: net[4] failed (USER): ValueError: the model has a bug"]


def test_a_dropped_output_is_logged_with_manager_component_and_descriptor(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    net = model.leased("net", (4,))
    with model.serving(net) as manager, caplog.at_level(logging.WARNING, "cgstate"):
        net(model.input(4))
        name = repr(manager).split()[1]
    assert [record.getMessage() for record in caplog.records] == [f"{name}: a leased output of net[4] was dropped without release"]


def test_nothing_is_printed_where_the_application_configures_no_logging() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("cgstate").handlers)
