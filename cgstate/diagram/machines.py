"""From a table to its diagram.

Rows between the same two states share an edge, one line an event. A guard is written only where an event leads elsewhere and its
name does not say where, and what may happen everywhere starts at one mark that stands for all states. All guards, effects and
refusals are in the Markdown table.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from cgstate.diagram.model import Diagram, Edge, Group, Line, Node
from cgstate.diagram.taken import Taken
from cgstate.lifecycle.expr import Var
from cgstate.lifecycle.table import Machine, Row

ANY = "ANY"
"""Key of the mark that stands for every state."""


def diagram(machine: Machine, taken: Taken | None = None) -> Diagram:
    """The diagram of one machine, with what a trace has taken if there is one."""
    nodes = [node(machine, state, taken) for state in machine.states]
    if any(_is_everywhere(machine, row) for row in machine.rows):
        but = "".join(f" but {state}" for state in machine.states if state in machine.final)
        nodes.append(Node(ANY, f"any state{but}", stands=True, visited=None if taken is None else True))
    title = f"{machine.name}: {machine.doc}"
    return Diagram(machine.name, title, Group(machine.name, machine.name, tuple(nodes)), tuple(_edges(machine, taken)))


def node(machine: Machine, state: StrEnum, taken: Taken | None, prefix: str = "") -> Node:
    """A state as it is drawn."""
    return Node(
        key=f"{prefix}{state.value}",
        label=state.value,
        initial=state is machine.initial,
        final=state in machine.final,
        visited=None if taken is None else (machine.name, state.value) in taken.states,
    )


def targets(row: Row, source: StrEnum) -> tuple[StrEnum, ...]:
    """Where a row may lead from a state."""
    if not isinstance(row.target, Var):
        return (row.target,)
    if row.target.name == "state":
        return (source,)
    return tuple(state for state in row.target.domain if isinstance(state, StrEnum))


def _is_everywhere(machine: Machine, row: Row) -> bool:
    """Whether a row is open in every state that is not the last."""
    return set(row.sources) >= set(machine.states) - machine.final


def _edges(machine: Machine, taken: Taken | None) -> Iterator[Edge]:
    lines: dict[tuple[str, str], dict[str, Line]] = {}

    def add(source: str, target: str, line: Line) -> None:
        """Write a line on an edge: an event once, with all its counts, and with its reason if that is always the same."""
        of_edge = lines.setdefault((source, target), {})
        old = of_edge.get(line.event, line)
        count = line.count if old is line or old.count is None else old.count + (line.count or 0)
        of_edge[line.event] = Line(line.event, line.when if line.when == old.when and source != target else "", count=count)

    for row in machine.rows:
        if _is_everywhere(machine, row):
            stays = isinstance(row.target, Var)
            counts = [_count(machine, row, source, target, taken) for source in row.sources for target in targets(row, source)]
            line = Line(row.event.value, count=None if taken is None else sum(count or 0 for count in counts))
            add(ANY, ANY if stays else str(row.target), line)
            continue
        for source in row.sources:
            rivals = [other for other in machine.rows_for(source, row.event) if targets(other, source) != targets(row, source)]
            for target in targets(row, source):
                count = _count(machine, row, source, target, taken)
                add(source.value, target.value, Line(row.event.value, _distinction(row, rivals), count=count))
    for (before, after), of_edge in lines.items():
        yield Edge(before, after, tuple(of_edge.values()))


def _count(machine: Machine, row: Row, source: StrEnum, target: StrEnum, taken: Taken | None) -> int | None:
    return None if taken is None else taken.count(machine.name, row, source, target)


def _distinction(row: Row, rivals: list[Row]) -> str:
    """The guards that tell a row from its rivals; of two opposite ones only the positive is said, on the edge where it holds."""
    if not rivals:
        return ""
    of_rivals = [{guard.name for guard in rival.guards} for rival in rivals]
    anyones, everyones = set.union(*of_rivals), set.intersection(*of_rivals)
    return ", ".join(
        guard.name
        for guard in row.guards
        if guard.name not in everyones and not ("not " in guard.name and guard.name.replace("not ", "", 1) in anyones)
    )
