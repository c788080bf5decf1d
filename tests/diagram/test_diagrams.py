"""The drawings are the tables: every row is on an edge, no edge is without a row, and what is committed is what is drawn now."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cgstate.cli import main
from cgstate.diagram import dot, drawing, markdown, mermaid
from cgstate.diagram.drawing import NAMES, Format
from cgstate.diagram.machines import ANY, diagram, targets
from cgstate.diagram.model import Diagram
from cgstate.diagram.overview import ACTS, overview
from cgstate.diagram.svg import RendererMissing, Theme
from cgstate.diagram.taken import taken
from cgstate.lifecycle.table import Machine, Row
from cgstate.lifecycle.tables import MACHINE
from cgstate.trace import Record, TransitionRecord
from tests.trace.runs import recorded, records

COMMITTED = Path(__file__).parents[2] / "docs" / "diagrams"
DIAGRAMS = [*(diagram(machine) for machine in MACHINE.values()), overview()]


def moves(machine: Machine) -> Iterator[tuple[Row, StrEnum, StrEnum]]:
    for row in machine.rows:
        for source in row.sources:
            for target in targets(row, source):
                yield row, source, target


# -- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINE)
def test_every_row_is_on_an_edge_and_every_edge_has_a_row(name: str) -> None:
    drawn = {(edge.source, edge.target, line.event) for edge in diagram(MACHINE[name]).edges for line in edge.lines}
    everywhere = {(event, target) for source, target, event in drawn if source == ANY}
    due = set()
    for row, source, target in moves(MACHINE[name]):
        if (row.event, ANY) in everywhere or (row.event, target) in everywhere:
            continue
        due.add((source.value, target.value, row.event.value))
    assert {each for each in drawn if each[0] != ANY} == due


@pytest.mark.parametrize("name", MACHINE)
def test_an_event_that_leads_to_several_states_says_which_when(name: str) -> None:
    for edge in diagram(MACHINE[name]).edges:
        if edge.source in (ANY, edge.target):
            continue
        for line in edge.lines:
            rows = [
                row
                for row, source, target in moves(MACHINE[name])
                if (source, target, row.event) == (edge.source, edge.target, line.event)
            ]
            others = {row for row, source, _ in moves(MACHINE[name]) if (source, row.event) == (edge.source, line.event)} - set(
                rows
            )
            if line.when:
                assert others
                assert any(set(line.when.split(", ")) <= {guard.name for guard in row.guards} | _halves(row) for row in rows)


def _halves(row: Row) -> set[str]:
    """Names of guards that hold a comma themselves, in pieces."""
    return {piece for guard in row.guards for piece in guard.name.split(", ")}


def test_initial_and_final_states_are_marked() -> None:
    for machine in MACHINE.values():
        nodes = {node.key: node for node in diagram(machine).nodes}
        assert {key for key, node in nodes.items() if node.initial} == {machine.initial}
        assert {key for key, node in nodes.items() if node.final} == set(machine.final)


def test_every_event_belongs_to_one_act_or_is_alone() -> None:
    belonging = [(type(event), event) for act in ACTS for event in act.events]
    assert len(belonging) == len(set(belonging))
    text = markdown.overview()
    for machine in MACHINE.values():
        for event in machine.events:
            assert f"`{event}`" in text


@pytest.fixture(scope="module")
def run() -> list[Record]:
    return list(records(recorded()))


TOGETHER = {
    ("entry", "capture_begin"): ("pool", {"begin"}),
    ("entry", "capture_end"): ("pool", {"end"}),
    ("entry", "capture_fail"): ("pool", {"fail"}),
    ("component", "first_lease"): ("entry", {"acquire"}),
    ("component", "last_release"): ("entry", {"release", "replay_fail"}),
    ("component", "last_retired"): ("entry", {"evict"}),
    ("component", "lazy_bind"): ("entry", {"bind"}),
}


def test_the_events_of_an_act_come_together_in_a_run(run: list[Record]) -> None:
    steps = [record for record in run if isinstance(record, TransitionRecord)]
    met = set()
    for index, step in enumerate(steps):
        wanted = TOGETHER.get((step.machine, step.event))
        if wanted is not None:
            near = steps[max(0, index - 3) : index + 2]
            assert any(each.machine == wanted[0] and each.event in wanted[1] for each in near), step
            met.add((step.machine, step.event))
    assert met == set(TOGETHER)
    for (machine, event), (other, events) in TOGETHER.items():
        (act,) = (act for act in ACTS if any(isinstance(each, MACHINE[machine].events) and each == event for each in act.events))
        assert any(isinstance(each, MACHINE[other].events) and each in events for each in act.events)


# -- what a trace has taken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINE)
def test_counts_are_those_of_the_trace(run: list[Record], name: str) -> None:
    found = diagram(MACHINE[name], taken(run))
    steps = sum(isinstance(record, TransitionRecord) and record.machine == name for record in run)
    assert sum(edge.count or 0 for edge in found.edges) == steps > 0
    visited = {node.key for node in found.nodes if node.visited and not node.stands}
    assert visited == {
        state
        for record in run
        if isinstance(record, TransitionRecord) and record.machine == name
        for state in (record.source, record.target)
    }


def test_the_overview_counts_the_same(run: list[Record]) -> None:
    found = overview(taken(run))
    (acquire,) = (line for edge in found.edges for line in edge.lines if line.event == "acquire")
    assert acquire.count == sum(isinstance(record, TransitionRecord) and record.event == "acquire" for record in run)
    assert f"acquire ×{acquire.count}" in mermaid.render(found)


def test_what_was_not_taken_is_told_apart(run: list[Record]) -> None:
    found = diagram(MACHINE["manager"], taken(run))
    assert "class POISONED unmet" in mermaid.render(found)
    assert "class SERVING visited" in mermaid.render(found)
    assert re.search(r"POISONED \[.*dashed", dot.render(found))


# -- renderers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", DIAGRAMS, ids=lambda found: found.name)
def test_mermaid_and_graphviz_hold_every_state_and_edge(found: Diagram) -> None:
    as_mermaid, as_dot = mermaid.render(found), dot.render(found)
    for edge in found.edges:
        assert f"{edge.source} --> {edge.target}: " in as_mermaid
        assert f"{edge.source} -> {edge.target} [" in as_dot
    for node in found.nodes:
        assert f'label="{node.label}"' in as_dot
        assert node.key in as_mermaid
    assert as_dot.count("{") == as_dot.count("}")


@pytest.mark.parametrize("found", DIAGRAMS, ids=lambda found: found.name)
def test_no_label_ends_a_mermaid_line_early(found: Diagram) -> None:
    for edge in found.edges:
        assert not set(mermaid.label(edge)) & set(";:#")


@pytest.mark.parametrize("name", MACHINE)
def test_the_markdown_table_holds_the_whole_row(name: str) -> None:
    text = markdown.machine(MACHINE[name])
    for row in MACHINE[name].rows:
        assert row.doc in text
        for guard in row.guards:
            assert guard.name in text
            assert guard.refusal.__name__ in text or guard.refusal.__name__ == "IllegalTransition"
        for effect in row.effects:
            assert f"`{effect.var.name} := " in text


def test_no_cell_breaks_its_table() -> None:
    for machine in MACHINE.values():
        rows = [line for line in markdown.machine(machine).splitlines() if line.startswith("|")]
        assert {line.replace("\\|", "").count("|") for line in rows} == {7, 4}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("theme", Theme)
def test_an_svg_holds_every_label_and_nothing_covers_another(name: str, theme: Theme) -> None:
    pytest.importorskip("mermaid_render")
    text = drawing.draw(name, Format.svg, theme=theme)
    root = ElementTree.fromstring(text)
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    said = " ".join(texts)
    found = next(each for each in DIAGRAMS if each.name == name)
    for node in found.nodes:
        assert node.label in texts
    for edge in found.edges:
        for line in edge.lines:
            assert line.event in said
    frames = [Box(0, 0, float(part.attrib["width"]), float(part.attrib["height"])) for part in root.iter(f"{SVG}svg")]
    parts = [part for part in root.iter(f"{SVG}svg") if part is not root]
    assert len(parts) == max(1, len(found.content.groups))
    for part, frame in zip(parts, frames[1:], strict=True):
        boxes = list(drawn_boxes(part))
        assert len(boxes) >= len(found.nodes) / 4
        assert all(frame.holds(box) for box in boxes)
        assert not [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]


SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Box:
    """Where something is drawn."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: Box) -> bool:
        return self.left <= other.left <= other.right <= self.right and self.top <= other.top <= other.bottom <= self.bottom

    def overlaps(self, other: Box) -> bool:
        apart = self.right <= other.left or other.right <= self.left or self.bottom <= other.top or other.bottom <= self.top
        return not apart


def drawn_boxes(part: ElementTree.Element) -> Iterator[Box]:
    """The ground of every state and every label."""
    for group in part.iter(f"{SVG}g"):
        kind = group.attrib.get("class", "")
        rect = group.find(f"{SVG}rect")
        if rect is None or not kind.startswith(("pele-edge-label", "pele-node")):
            continue
        moved = re.match(r"translate\(([-\d.]+),([-\d.]+)\)", group.attrib.get("transform", "translate(0,0)"))
        assert moved is not None
        left, top = float(rect.attrib["x"]) + float(moved[1]), float(rect.attrib["y"]) + float(moved[2])
        yield Box(left, top, left + float(rect.attrib["width"]), top + float(rect.attrib["height"]))


def test_light_and_dark_differ_in_colours_alone() -> None:
    pytest.importorskip("mermaid_render")
    light, dark = (drawing.draw("entry", Format.svg, theme=theme) for theme in Theme)
    assert light != dark
    assert re.sub(r"#[0-9a-fA-F]{6}", "", light) == re.sub(r"#[0-9a-fA-F]{6}", "", dark)


def test_without_the_library_an_svg_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mermaid_render", None)
    with pytest.raises(RendererMissing, match=r"pip install 'cgstate\[docs\]'"):
        drawing.draw("entry", Format.svg)


# -- what is committed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format_", [Format.mermaid, Format.dot, Format.markdown])
def test_what_is_committed_is_what_is_drawn_now(name: str, format_: Format) -> None:
    suffix = {"mermaid": "mmd", "dot": "dot", "markdown": "md"}[format_]
    assert (COMMITTED / f"{name}.{suffix}").read_text() == drawing.draw(name, format_)


def test_the_whole_committed_set_is_what_is_drawn_now() -> None:
    pytest.importorskip("mermaid_render")
    assert drawing.check(COMMITTED) == []


def test_the_first_line_says_that_it_is_generated() -> None:
    for path in COMMITTED.iterdir():
        if path.name != "README.md":
            assert "do not edit" in path.read_text().splitlines()[0]


# -- the command ------------------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["cgstate", "diagram", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("format_", ["mermaid", "dot", "markdown"])
def test_a_diagram_is_printed(format_: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "entry", "--format", format_) == 0
    assert capsys.readouterr().out == drawing.draw("entry", Format(format_))


def test_a_diagram_is_written_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "pool", "--out", tmp_path / "pool.mmd", "--json") == 0
    assert (tmp_path / "pool.mmd").read_text() == drawing.draw("pool", Format.mermaid)
    assert json.loads(capsys.readouterr().out)["result"]["machine"] == "pool"


def test_a_set_that_differs_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mermaid_render")
    assert command(monkeypatch, "--write", tmp_path) == 0
    assert command(monkeypatch, "--check", tmp_path) == 0
    (tmp_path / "entry.dot").write_text("digraph {}")
    (tmp_path / "pool.md").unlink()
    (tmp_path / "engine.mmd").write_text("")
    capsys.readouterr()
    assert command(monkeypatch, "--check", tmp_path) == 1
    out = capsys.readouterr().out
    assert "entry.dot differs" in out
    assert "pool.md is missing" in out
    assert "engine.mmd belongs to no diagram" in out


@pytest.mark.parametrize(
    "words",
    [
        ("--out", "x", "--check", "y"),
        ("--trace", "x", "--check", "y"),
        ("--check", "nowhere"),
        ("entry", "--check", "docs/diagrams"),
        ("overview", "--write", "x"),
        ("--format", "mermaid", "--write", "x"),
        ("--theme", "light", "--check", "docs/diagrams"),
        ("entry", "--theme", "dark"),
        ("entry", "--theme", "light", "--format", "dot"),
        ("entry", "--trace", "nowhere.jsonl"),
        ("--out", "nowhere/x"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_library_is_exit_four(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mermaid_render", None)
    assert command(monkeypatch, "entry", "--format", "svg") == 4
    assert "pip install" in capsys.readouterr().err
