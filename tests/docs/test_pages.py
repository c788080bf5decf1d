"""What the pages say is so: their code runs, their commands exist, their links lead somewhere, and none of them is lost."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cgstate
from cgstate.errors import CGStateError
from docs.pages import DOCS, PAGES, commands, errors

FILES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
BLOCK = re.compile(r"^(?:<!-- run by (?P<test>\S+) -->\n)?```(?P<language>python|sh)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(DOCS))


def blocks(path: Path, language: str) -> Iterator[tuple[str, int, str | None]]:
    """Code of a page, with the line before its first, and the test that runs it where this one cannot."""
    text = path.read_text()
    for found in BLOCK.finditer(text):
        if found["language"] == language:
            yield found["code"], text.count("\n", 0, found.start("code")), found["test"]


RUN = [path for path in FILES if any(test is None for _, _, test in blocks(path, "python"))]


def test_there_are_pages_with_code() -> None:
    assert {"tutorial.md", "howto/embed.md", "howto/debug.md", "theory.md"} <= set(map(named, RUN))


@pytest.mark.torch
@pytest.mark.parametrize("path", RUN, ids=named)
def test_the_code_of_a_page_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for code, line, test in blocks(path, "python"):
        if test is not None:
            continue
        tree = ast.increment_lineno(ast.parse(code), line)
        for module in sorted(imported(tree) - sys.stdlib_module_names - {"cgstate"}):
            pytest.importorskip(module)
        exec(compile(tree, str(path), "exec"), names)


def imported(tree: ast.AST) -> set[str]:
    """Top-level names of the modules that some code imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_code_that_is_run_elsewhere_is_run_there() -> None:
    elsewhere = {(path, test) for path in FILES for _, _, test in blocks(path, "python") if test is not None}
    assert elsewhere
    for path, test in elsewhere:
        assert path.name in (DOCS.parent / test).read_text(), f"{test} does not read {path.name}"


def test_no_code_is_written_where_it_would_not_be_run() -> None:
    """Code that is indented, or whose fence says more than the language, would be passed over."""
    for path in FILES:
        fences = re.findall(r"^\s*(?:```|~~~)\s*(?:python|py)\b.*$", path.read_text(), re.MULTILINE)
        assert len(fences) == len(list(blocks(path, "python"))), named(path)


@pytest.mark.parametrize("path", [path for path in FILES if any(blocks(path, "sh"))], ids=named)
def test_the_commands_of_a_page_exist_with_their_options(path: Path) -> None:
    known = commands.commands()
    for code, _, _ in blocks(path, "sh"):
        for line in re.findall(r"^(?:\$ )?cgstate (.*)$", code, re.MULTILINE):
            words = shlex.split(line, comments=True)
            name = next((name for name in (" ".join(words[:2]), words[0]) if name in known), None)
            assert name is not None, line
            options = {option for parameter in known[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options | {"--help"}, line


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_link_and_picture_leads_somewhere(path: Path) -> None:
    text = re.sub(r"^```python\n.*?^```$|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert "[](" not in path.read_text()  # nothing to click where the page is read in the repository
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        place, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        there = (path.parent / place) if place else path
        assert there.exists(), f"{named(path)}: {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{named(path)}: {target}"


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_contents() -> None:
    listed = {DOCS / "index.md", DOCS / "diagrams" / "README.md"}  # the latter is for those who read on GitHub
    for index in (DOCS / "index.md", DOCS / "reference" / "index.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), re.DOTALL):
            for line in block.split():
                listed |= set() if line.startswith(":") else set(index.parent.glob(f"{line}.md"))
    assert set(FILES) - listed == set()


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_what_their_generator_writes(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "python -m docs.pages"


def test_every_public_name_is_in_the_reference_once() -> None:
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    documented = Counter(re.findall(r"^\.\. auto\w+:: cgstate\.(\w+)$", text, re.MULTILINE))
    values = {name: getattr(cgstate, name) for name in cgstate.__all__}
    exceptions = {name for name, value in values.items() if isinstance(value, type) and issubclass(value, Exception)}
    assert documented == Counter(set(cgstate.__all__) - exceptions)
    assert exceptions - {"CGStateError"} <= {error.__name__ for error in errors.ADVICE}


def test_every_error_of_the_tree_is_explained() -> None:
    tree = {error for error in below(CGStateError) if error.__module__ in ("cgstate.errors", "cgstate.trace.errors")}
    assert len(tree) > 15
    assert set(errors.ADVICE) == tree


def below(error: type[Exception]) -> set[type[Exception]]:
    """Everything that derives from an error, as far as it is imported."""
    direct = set(error.__subclasses__())
    return direct.union(*map(below, direct))
