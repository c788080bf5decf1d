"""The hot path is the template with the tables' rows written out, and costs what it may."""

from __future__ import annotations

import ast
from pathlib import Path

from cgstate.lifecycle.tables import table_hash
from cgstate.runtime import generate


def test_the_committed_hot_path_is_what_the_generator_writes() -> None:
    assert generate.OUTPUT.read_text() == generate.source()


def test_it_says_in_its_first_line_that_it_is_generated_and_from_which_tables() -> None:
    first = generate.OUTPUT.read_text().splitlines()[0]
    assert "Generated" in first
    assert "python -m cgstate.runtime.generate" in first
    assert table_hash() in first


def test_the_template_holds_no_guard_of_its_own() -> None:
    template = Path(generate.TEMPLATE).read_text()
    for word in ("serving", "resident", "epoch", "retiring"):
        assert word not in template, f"{word} is the tables' business"


def test_nothing_slow_is_called_where_everything_is_undisturbed() -> None:
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(generate.OUTPUT.read_text())) if isinstance(node, ast.Call)}
    assert not {name for name in called if name.startswith(("log", "torch", "str", "repr", "print", "dict", "list"))}
    assert "self.backend.current_stream" not in called
