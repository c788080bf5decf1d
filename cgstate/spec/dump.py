"""Reads TLC's dump of a state graph, to hold it against the walker's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from cgstate.spec.compiled import State, System
from cgstate.spec.tla import value, variable

NODE = re.compile(r'^(-?\d+) \[label="(.*?)"(?:,.*)?\];?$')
EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"')


def read_dump(path: Path, system: System) -> tuple[set[State], set[tuple[State, str, State]]]:
    """The states of a dump, and its steps with the names of their actions.

    Args:
        path: A DOT file, written with action labels.
        system: Whose states they are.

    Raises:
        KeyError: a state lacks a cell, or a step leads to a state that is not there.
    """
    texts = {variable(name): place for place, name in enumerate(system.cells)}
    constants = [{value(each): each for each in _values(first)} for first in system.first.values()]
    states: dict[str, State] = {}
    steps: list[tuple[str, str, str]] = []
    with path.open() as lines:
        for line in lines:
            if edge := EDGE.match(line):
                steps.append((edge[1], edge[3], edge[2]))
            elif node := NODE.match(line.rstrip()):
                cells: list[object] = [None] * len(texts)
                for name, text in _cells(node[2]):
                    place = texts[name]
                    known = constants[place]
                    cells[place] = known[text] if known else int(text)
                if None in cells:
                    raise KeyError(f"{node[1]} lacks a cell")
                states[node[1]] = tuple(cells)  # type: ignore[arg-type]  # none is None
    return set(states.values()), {(states[before], action, states[after]) for before, action, after in steps}


def _values(first: object) -> Iterator[bool | str]:
    """The values that a cell may have, from its first; none for numbers."""
    if isinstance(first, bool):
        yield from (False, True)
    elif isinstance(first, StrEnum):
        yield from type(first)


def _cells(label: str) -> Iterator[tuple[str, str]]:
    for line in label.replace('\\"', '"').split("\\n"):
        name, _, text = line.replace("\\\\", "\\").removeprefix("/\\ ").partition(" = ")
        yield name, text
