"""The page about what the harness finds: its format, and that nothing planted is missing from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgstate.testing import page
from cgstate.testing.schedules.planted import RACES
from cgstate.testing.stateful.planted import PLANTED

HARNESS = Path(__file__).parents[2] / "docs" / "harness.md"
KINDS = {f"K{number:02}" for number in range(1, 18)} - {"K14"}


def test_counts_become_medians_and_what_was_not_found_says_so() -> None:
    found = [(PLANTED[0], [4, 6, 8]), (PLANTED[1], [4, 0, 8]), (PLANTED[2], [0, 7, 0])]
    text = page.tables(found, [(RACES[0], 6), (RACES[1], 0)])
    assert f"| {PLANTED[0].story} | 3 of 3 | 6 | 8 |" in text
    assert f"| {PLANTED[1].story} | 2 of 3 | 8 | > 400 |" in text
    assert f"| {PLANTED[2].story} | 1 of 3 | > 400 | > 400 |" in text
    assert f"| {RACES[0].story} | `{RACES[0].case.__name__}` | 6 |" in text
    assert f"| {RACES[1].story} | `{RACES[1].case.__name__}` | not found |" in text


def test_tables_are_put_between_their_marks(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write(path, f"{page.BEGIN}\nnew\n{page.END}")
    assert path.read_text() == f"before\n{page.BEGIN}\nnew\n{page.END}\nafter\n"
    path.write_text("no marks")
    with pytest.raises(ValueError, match="no place for the tables"):
        page.write(path, "new")
    assert path.read_text() == "no marks"


def test_every_kind_of_fault_is_found() -> None:
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in HARNESS.read_text().splitlines()
        if line.startswith("| K")
    ]
    walks = {(cells[0], cells[1]): int(cells[2].split(" of ")[0]) for cells in rows if len(cells) == 5}
    races = {(cells[0], cells[1]): cells[3] for cells in rows if len(cells) == 4}
    assert walks.keys() == {(f"{each.kind} {each.name}", each.story) for each in PLANTED}
    assert races.keys() == {(f"{each.kind} {each.name}", each.story) for each in RACES}
    assert all(walks.values())
    assert "not found" not in races.values()
    assert {kind[:3] for kind, _ in walks} == KINDS
