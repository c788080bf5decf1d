"""A trace as one page: what is in it is the trace, nothing comes from outside, and it can be stepped through."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cgstate.cli import main
from cgstate.errors import ConfigError
from cgstate.trace import Ring, read_lines, record
from cgstate.trace.html import collect, write
from tests.runtime.helpers import Model
from tests.trace.runs import Lines, record_run, records


class Page(HTMLParser):
    """What a page refers to, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.refers: list[str] = []
        self.scripts: list[str] = []
        self.ids: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.refers += [values[name] or "" for name in ("src", "href", "action", "srcset") if name in values]
        self.ids += [values["id"] or ""] if "id" in values else []
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def written(lines: Lines, title: str = "run.jsonl") -> str:
    text = io.StringIO()
    write(lambda: records(lines), title, text)
    return text.getvalue()


def test_the_page_holds_every_event_of_the_trace(good: Lines) -> None:
    document = json.loads(Page(written(good)).scripts[0])
    happened = [line for line in good if line["record"] in ("step", "notice")]
    assert len(document["events"]) == len(happened)
    for line, (seq, t_ns, lane, what, source, target, thread, rest) in zip(happened, document["events"], strict=True):
        assert (seq, t_ns, thread) == (line["seq"], line["t_ns"], line["thread"])
        assert document["lanes"][lane]["name"] == line["entity"]
        if line["record"] == "step":
            assert document["lanes"][lane]["machine"] == line["machine"]
            assert (what, source, target) == (line["event"], line["source"], line["target"])
            assert rest.get("values") == line.get("values")
        else:
            assert (what, source, target, rest) == (line["what"], None, None, {"value": line["value"]})


def test_every_state_has_a_look_with_a_meaning(good: Lines) -> None:
    document = collect(lambda: records(good))
    states = {event[5] for event in document["events"]} - {None}
    assert {document["looks"][state] for state in states} <= set(range(len(document["legend"])))


def test_bytes_of_a_pool_are_those_of_the_trace_and_nothing_once_it_has_gone(good: Lines) -> None:
    document = collect(lambda: records(good))
    held: dict[str, int] = {}
    changes = iter([*document["bytes"], [len(document["events"]), None, 0]])
    change = next(changes)
    said = 0
    for index, line in enumerate(line for line in good if line["record"] in ("step", "notice")):
        while change[0] == index:
            held[document["lanes"][change[1]]["name"]] = change[2]
            change = next(changes)
        if line.get("machine") == "pool":
            said += 1
            assert held.get(line["entity"], 0) == (0 if line["target"] == "GONE" else line["bytes"])
        elif line.get("event") == "bind":
            said += 1
            assert held[line["pool"]] == line["bytes"] > 0
    assert said > 20
    assert not any(held.values())  # everything was closed


def test_what_the_checker_finds_is_on_the_page(good: Lines) -> None:
    wrong = [{**line, "target": "FAILED"} if line.get("event") == "bind" else line for line in good]
    document = json.loads(Page(written(wrong)).scripts[0])
    assert document["violations"] > 0
    assert any("no row of the entry table" in found["what"] for found in document["broken"])
    assert json.loads(Page(written(good)).scripts[0])["violations"] == 0


def test_nothing_comes_from_outside(good: Lines) -> None:
    text = written(good)
    assert Page(text).refers == []
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "default-src 'none'" in text


def test_the_program_asks_for_no_element_that_the_page_lacks(good: Lines) -> None:
    page = Page(written(good))
    asked = set(re.findall(r'\bat\("(\w+)"\)', page.scripts[1]))
    assert len(asked) > 10
    assert asked <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_no_name_ends_the_script_or_becomes_html() -> None:
    model, ring, evil = Model(), Ring(10_000), "</script><img src=x onerror=alert(1)>"
    with model.manager(observer=ring, check=False) as manager:
        ((entry, _),) = model.bind(manager, evil)
        entry.replay()
    text = io.StringIO()
    write(lambda: read_lines(ring.lines()), "<b>", text)
    page = Page(text.getvalue())
    assert page.refers == []
    assert len(page.scripts) == 2
    assert any(evil in lane["name"] for lane in json.loads(page.scripts[0])["lanes"])
    assert "<b>" not in text.getvalue()


def test_a_trace_that_no_browser_would_hold_is_refused(good: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgstate.trace.html.collecting.MOST", 10)
    with pytest.raises(ConfigError, match="a page at most 10"):
        collect(lambda: records(good))


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["cgstate", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with record(tmp_path / "run.jsonl.gz") as recorder:
        record_run(recorder)
    assert command(monkeypatch, "trace", "show", tmp_path / "run.jsonl.gz", "--html", tmp_path / "run.html") == 0
    assert "events written to" in capsys.readouterr().err
    assert "<title>run.jsonl.gz</title>" in (tmp_path / "run.html").read_text()


@pytest.mark.parametrize("words", [("--entity", "net"), ("--first", "2"), ("--last", "9")])
def test_a_page_of_a_part_is_refused(
    words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "trace", "show", tmp_path / "run.jsonl", "--html", tmp_path / "run.html", *words) == 2
    assert "a page holds the whole trace" in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[Lines], Any]]:
    """Opens the page of a trace in a browser that may not use the network; nothing may go wrong there."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright and a chromium to look at the page")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a chromium to look at the page")
    wrong: list[str] = []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(offline=True, viewport={"width": 390, "height": 844})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)

        def show(lines: Lines) -> Any:
            path = tmp_path / "run.html"
            path.write_text(written(lines))
            page.goto(path.as_uri())
            return page

        yield show
        browser.close()
    assert wrong == []


def states(page: Any) -> dict[tuple[str, str], str]:
    """The states that the page shows, by machine and name."""
    rows = page.eval_on_selector_all("#states tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))")
    return {(machine, name): state for machine, name, state, _ in rows}


def test_the_keyboard_steps_through_the_trace_and_the_states_follow(opened: Callable[[Lines], Any], good: Lines) -> None:
    page = opened(good)
    happened = [line for line in good if line["record"] in ("step", "notice")]
    expected: dict[tuple[str, str], str] = {}
    for index, line in enumerate(happened):
        if line["record"] == "step":
            expected[line["machine"], line["entity"]] = line["target"]
        if index < 40:
            assert f"event {line['seq']} at" in page.inner_text("#event")
            assert expected.items() <= states(page).items()
            page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert expected.items() <= states(page).items()
    page.keyboard.press("ArrowLeft")
    assert f"event {happened[-2]['seq']} at" in page.inner_text("#event")
    page.keyboard.press("Home")
    assert page.inner_text("#event").startswith("event 1 at")
    assert page.is_disabled("#back")


def test_it_fits_a_phone_and_the_filter_leaves_only_what_it_names(opened: Callable[[Lines], Any], good: Lines) -> None:
    page = opened(good)
    page.keyboard.press("End")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.fill("#filter", "net[16]")
    shown = page.eval_on_selector_all(
        "#lanes .lane button", "each => each.filter(button => button.checkVisibility()).map(button => button.textContent)"
    )
    assert shown
    assert all("net[16]" in name for name in shown)


def test_a_finding_leads_to_its_event(opened: Callable[[Lines], Any], good: Lines) -> None:
    page = opened([{**line, "target": "FAILED"} if line.get("event") == "bind" else line for line in good])
    assert page.inner_text("#verdict").startswith("violated")
    first = page.locator("#findings button").first
    number = re.match(r"event (\d+): table", first.inner_text())
    assert number is not None
    first.click()
    assert page.inner_text("#event").startswith(f"event {number[1]} at")
