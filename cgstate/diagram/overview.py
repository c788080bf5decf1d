"""How the four machines step together: one picture of all, and what each of them does in each act.

An act is what happens at once, or one right after the other under the device's lock. Which events belong to one act is the
runtime's doing and stands in no table, so it is written here; a test holds it against a recorded run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from cgstate.diagram.machines import diagram
from cgstate.diagram.model import Diagram, Edge, Group, Line, Node
from cgstate.diagram.taken import Taken
from cgstate.lifecycle.states import ComponentEvent as C
from cgstate.lifecycle.states import EntryEvent as E
from cgstate.lifecycle.states import ManagerEvent as M
from cgstate.lifecycle.states import PoolEvent as P
from cgstate.lifecycle.tables import MACHINE


@dataclass(frozen=True, slots=True)
class Act:
    """Events that come together.

    Attributes:
        name: What is done.
        events: What it does to each machine; some of it only where it applies.
    """

    name: str
    events: tuple[StrEnum, ...]


ACTS = (
    Act("a transaction opens", (M.capture, C.begin)),
    Act("a capture begins", (E.capture_begin, P.begin)),
    Act("a capture ends", (E.capture_end, P.end)),
    Act("a capture fails", (E.capture_fail, P.fail, C.fail)),
    Act("the transaction commits", (E.bind, C.commit, C.lazy_bind, M.commit)),
    Act("the transaction gives up", (E.abort, C.abort, M.fail)),
    Act("a lease is taken", (E.acquire, C.first_lease)),
    Act("a lease ends", (E.release, E.replay_fail, C.last_release)),
    Act("a domain is evicted", (E.evict, C.last_retired, P.retire)),
    Act("a recording is reclaimed", (E.reclaim, P.destroyed)),
    Act("a pool is given back", (P.reclaimed,)),
    Act("release or close", (M.drain, M.release, M.close, C.forget, E.forget)),
)
"""In the order of a life."""

NUMBER = {(type(event), event): number for number, act in enumerate(ACTS, 1) for event in act.events}

IDLE, RESIDENT = "idle", "resident"
SUPER = {"EAGER": IDLE, "EVICTED": IDLE, "FAILED": IDLE, "BOUND": RESIDENT, "REPLAYING": RESIDENT}
"""States of entries and components that are one in the overview: there is no graph, or one that calls may use."""


def overview(taken: Taken | None = None) -> Diagram:
    """All four machines, each event with the number of its act."""
    groups, edges = [], []
    for name in ("manager", "entry", "component", "pool"):
        whole = diagram(MACHINE[name], taken)
        above = SUPER if name in ("component", "entry") else {}
        groups.append(Group(name, name, tuple(_nodes(whole, above))))
        edges += _edges(whole, above)
    notes = tuple(f"{number}. {act.name}" for number, act in enumerate(ACTS, 1))
    content = Group("overview", "overview", groups=tuple(groups))
    return Diagram("overview", "The four machines step together", content, tuple(edges), notes)


def _key(whole: Diagram, state: str, above: dict[str, str]) -> str:
    return f"{whole.name}_{above.get(state, state)}"


def _nodes(whole: Diagram, above: dict[str, str]) -> list[Node]:
    nodes: dict[str, Node] = {}
    for node in whole.nodes:
        key = _key(whole, node.key, above)
        old = nodes.get(key)
        if old is None:
            nodes[key] = replace(node, key=key)
        else:
            label = f"{old.label} / {node.label}"
            nodes[key] = replace(old, label=label, initial=old.initial or node.initial, visited=old.visited or node.visited)
    return list(nodes.values())


def _edges(whole: Diagram, above: dict[str, str]) -> list[Edge]:
    """The machine's edges; those that meet in the overview are one, and those that keep a component as it is are left out."""
    events = MACHINE[whole.name].events
    merged: dict[tuple[str, str], dict[str, Line]] = {}
    for edge in whole.edges:
        if whole.name == "component" and edge.source == edge.target:
            continue
        lines = merged.setdefault((_key(whole, edge.source, above), _key(whole, edge.target, above)), {})
        for line in edge.lines:
            old = lines.get(line.event)
            count = line.count if old is None or old.count is None else old.count + (line.count or 0)
            number = NUMBER.get((events, events(line.event)), 0)
            lines[line.event] = Line(line.event, number=number, count=count)
    return [Edge(source, target, _in_order(lines.values())) for (source, target), lines in merged.items()]


def _in_order(lines: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(sorted(lines, key=lambda line: line.number))
