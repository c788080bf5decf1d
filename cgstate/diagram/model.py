"""What a diagram is: named states, merged edges with one line a happening, groups of states. Renderers know nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an edge's label.

    Attributes:
        event: What happens.
        when: What tells it from the same event on other edges; empty where nothing has to.
        number: Number of the act that it belongs to; 0 for none.
        count: How often it happened in a trace; None without a trace.
    """

    event: str
    when: str = ""
    number: int = 0
    count: int | None = None

    @property
    def text(self) -> str:
        """The line as it is drawn."""
        number = f"{self.number}. " if self.number else ""
        when = f" [{self.when}]" if self.when else ""
        count = f" ×{self.count:,}" if self.count else ""
        return f"{number}{self.event}{when}{count}"


@dataclass(frozen=True, slots=True)
class Edge:
    """All ways from one state to another.

    Attributes:
        source, target: Keys of the states.
        lines: Its label.
    """

    source: str
    target: str
    lines: tuple[Line, ...]

    @property
    def count(self) -> int | None:
        """How often it was taken in a trace; None without a trace."""
        counts = [line.count for line in self.lines if line.count is not None]
        return sum(counts) if counts else None


@dataclass(frozen=True, slots=True)
class Node:
    """A state.

    Attributes:
        key: Its key, an identifier.
        label: What is written in it.
        initial, final: Whether it has such a mark.
        stands: Whether it stands for other states, and is none itself.
        visited: Whether it was met in a trace; None without a trace.
    """

    key: str
    label: str
    initial: bool = False
    final: bool = False
    stands: bool = False
    visited: bool | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """States that are drawn inside a frame, and frames inside it.

    Attributes:
        key: Its key, an identifier.
        label: Its title.
        nodes: The states directly in it.
        groups: Smaller frames.
    """

    key: str
    label: str
    nodes: tuple[Node, ...] = ()
    groups: tuple[Group, ...] = ()

    def all_nodes(self) -> Iterator[Node]:
        """Its states, those of smaller frames included."""
        yield from self.nodes
        for group in self.groups:
            yield from group.all_nodes()


@dataclass(frozen=True, slots=True)
class Diagram:
    """A whole diagram.

    Attributes:
        name: ``entry``, ``component``, ``pool``, ``manager`` or ``overview``.
        title: What it shows.
        content: What is drawn; its own frame is not.
        edges: The ways between the states.
        notes: Lines that are written below it.
    """

    name: str
    title: str
    content: Group
    edges: tuple[Edge, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All states."""
        return tuple(self.content.all_nodes())

    @property
    def traced(self) -> bool:
        """Whether it tells what a trace has taken."""
        return any(node.visited is not None for node in self.nodes)

    def part(self, group: Group) -> Diagram:
        """One of its frames as a diagram of its own."""
        keys = {node.key for node in group.all_nodes()}
        edges = tuple(edge for edge in self.edges if edge.source in keys and edge.target in keys)
        return Diagram(group.key, group.label, Group(group.key, group.label, group.nodes, group.groups), edges)
