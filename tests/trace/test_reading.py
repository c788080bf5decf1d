"""What is no whole trace of these tables is refused, in one line that says where."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cgstate.errors import ConfigError
from cgstate.trace import TraceError, check, read, read_lines, reading
from cgstate.trace.reading import MAX_LINE
from tests.trace.runs import Lines, renumbered

WRITTEN: dict[str, tuple[str, str]] = {"as by hand": (", ", ": "), "as by a recorder": (",", ":")}
"""Separators; what a recorder has written is read a shorter way."""


def written(lines: Lines, how: str = "as by hand") -> list[str]:
    return [json.dumps(line, separators=WRITTEN[how]) + "\n" for line in lines]


def first(lines: Lines, kind: str) -> int:
    return next(index for index, line in enumerate(lines) if line["record"] == kind)


def changed(kind: str, **fields: Any) -> Callable[[Lines], Lines]:
    """The first record of a kind with other fields; None removes one."""

    def change(lines: Lines) -> Lines:
        made = [dict(line) for line in lines]
        line = made[first(lines, kind)]
        for name, value in fields.items():
            line[name] = value
            if value is None:
                del line[name]
        return made

    return change


WRONG: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "no head": (lambda lines: lines[1:], "the head is the first line"),
    "a second head": (lambda lines: [lines[0], lines[0], *lines[1:]], "the head is the first line"),
    "no end": (lambda lines: lines[:-1], "truncated"),
    "half of it": (lambda lines: lines[: len(lines) // 2], "truncated"),
    "nothing": (lambda lines: [], "truncated"),
    "two ends": (lambda lines: [*lines, lines[-1]], "something follows the end"),
    "an event too few": (
        lambda lines: [*lines[: first(lines, "step")], *lines[first(lines, "step") + 1 :]],
        "where number 1 is due",
    ),
    "an event twice": (lambda lines: [*lines[: first(lines, "step") + 1], *lines[first(lines, "step") :]], "where number 2 is due"),
    "a line too few": (changed("end", lines=3), "3 lines with"),
    "another schema": (changed("head", schema=2), "schema 2"),
    "other tables": (changed("head", table_hash="0" * 64), "other tables"),
    "an unknown record": (changed("step", record="leap"), "no record of a trace"),
    "an unknown field": (changed("step", colour="red"), "no record of a trace"),
    "a missing field": (changed("step", guard=None), "no record of a trace"),
    "a number as text": (changed("step", t_ns="soon"), "wrong type"),
    "a flag as number": (changed("step", thread=True), "wrong type"),
    "a time before the start": (changed("step", t_ns=-1), "wrong type"),
    "values that are none": (changed("step", values={"gate.free": [1]}), "no mapping of names"),
    "a pool that is none": (changed("step", pool=3), "wrong type"),
    "a machine that is none": (changed("entity", machine="engine"), "no machine 'engine'"),
    "an entity without a manager": (lambda lines: _orphan(lines), "belongs to something that is not said"),
    "a notice that is none": (changed("notice", what="heard"), "no record of a trace"),
    "a notice of the wrong kind": (changed("notice", value=[1]), "no value of"),
    "counts as text": (changed("end", events="all"), "wrong type"),
}


def _orphan(lines: Lines) -> Lines:
    index = next(index for index, line in enumerate(lines) if line.get("machine") == "entry" and line["record"] == "entity")
    return [*lines[:index], {**lines[index], "manager": None}, *lines[index + 1 :]]


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(good: Lines, name: str, how: str) -> None:
    change, said = WRONG[name]
    with pytest.raises(TraceError, match=said) as refused:
        check(read_lines(written(change(good), how)))
    assert "\n" not in str(refused.value)


def test_both_ways_of_reading_a_step_find_the_same(good: Lines) -> None:
    by_hand, by_recorder = (list(read_lines(written(good, how))) for how in WRITTEN)
    assert by_hand == by_recorder
    assert reading._rest.cache_info().hits > 0


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ('"seq":1,', '"seq":01,'),
        ('"seq":1,', '"seq":\N{FULLWIDTH DIGIT ONE},'),
        ('"t_ns":', '"t_ns":0'),
        ('"t_ns":', '"t_ns":-'),
        ('"thread":1', '"thread":1,"seq":2'),
        ('"thread":1', '"thread":1,"t_ns":-1'),
        ('"thread":1', '"thread":1,"record":"end"'),
        ('"thread":1', '"thread":01'),
        ('"thread":1', '"thread":1.0'),
        ('"thread":1', '"thread":true'),
        ('"thread":1', '"thread":1,"stream":"0"'),
        ('"thread":1', '"thread":1,"colour":1'),
        ("}\n", "}}\n"),
        ("}\n", "} {}\n"),
        ("}\n", "}\n\n"),
        ("}\n", "\n"),
    ],
)
def test_a_recorders_line_that_was_changed_is_refused(good: Lines, part: str, wrong: str) -> None:
    lines = written(good, "as by a recorder")
    index = first(good, "step")
    assert part in lines[index]
    lines[index] = lines[index].replace(part, wrong)
    with pytest.raises(TraceError, match=f"line {index + 1}"):
        check(read_lines(lines))


@pytest.mark.parametrize(
    "line", ["", "\n", "nonsense\n", "[]\n", '"step"\n', "{}\n", '{"record": 5}\n', '{"record":"step"} {}\n', "NaN\n"]
)
def test_a_line_that_is_no_record_is_refused(good: Lines, line: str) -> None:
    lines = written(good)
    lines[4] = line
    with pytest.raises(TraceError, match=r"line 5"):
        check(read_lines(lines))


def test_an_entity_that_nobody_has_introduced_is_refused(good: Lines) -> None:
    index = first(good, "entity")
    with pytest.raises(TraceError, match="nobody has introduced the manager"):
        check(read_lines(written(renumbered([*good[:index], *good[index + 1 :]]))))


def test_a_trace_can_be_read_as_of_other_tables(good: Lines) -> None:
    lines = written(changed("head", table_hash="0" * 64)(good))
    assert sum(1 for _ in read_lines(lines, tables="0" * 64)) == len(lines)


def test_a_file_that_is_missing_damaged_or_no_text_is_refused(tmp_path: Path, good: Lines) -> None:
    whole = gzip.compress("".join(written(good)).encode())
    for name, content in {
        "missing.jsonl": None,
        "cut.jsonl.gz": whole[: len(whole) // 2],
        "plain.jsonl.gz": b"nothing compressed",
        "binary.jsonl": bytes(range(128, 256)),
    }.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TraceError, match=name):
            check(read(path))
    with pytest.raises(TraceError):
        check(read(tmp_path))


def test_lines_and_files_have_a_longest(tmp_path: Path, good: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.jsonl"
    lines = written(good)
    lines[3] = "[" * (MAX_LINE + 5) + "\n"
    path.write_text("".join(lines))
    with pytest.raises(TraceError, match="line 4 is longer"):
        check(read(path))
    path.write_text("".join(written(good)))
    monkeypatch.setattr(reading, "MAX_BYTES", 1000)
    with pytest.raises(TraceError, match="longer than 1000"):
        check(read(path))


def test_deep_nesting_is_refused_and_not_an_overflow(good: Lines) -> None:
    lines = written(good)
    lines[3] = "[" * 60_000 + "\n"
    with pytest.raises(TraceError, match="line 4"):
        check(read_lines(lines))


def test_a_refusal_is_a_users_mistake() -> None:
    assert issubclass(TraceError, ConfigError)
