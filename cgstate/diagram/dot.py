"""Graphviz text."""

from __future__ import annotations

from collections.abc import Iterator

from cgstate.diagram.model import Diagram, Edge, Group, Node

HEAD = (
    'graph [rankdir=TB, fontname="Helvetica", nodesep=0.5, ranksep=0.6, labelloc=b, labeljust=l]',
    'node [shape=box, style="rounded,filled", fillcolor="#ececff", color="#9370db", fontname="Helvetica"]',
    'edge [fontname="Helvetica", fontsize=11, color="#333333"]',
)


def render(diagram: Diagram) -> str:
    """The text of a directed graph."""
    lines = [f"digraph {diagram.name} {{", *(f"    {line};" for line in HEAD)]
    if diagram.notes:
        lines.append(f'    label="{_lines(diagram.notes)}";')
    lines += (f"    {line}" for line in _content(diagram.content))
    lines += (f"    {_edge(edge)}" for edge in diagram.edges)
    return "\n".join([*lines, "}", ""])


def _content(group: Group) -> Iterator[str]:
    for node in group.nodes:
        yield _node(node)
        if node.initial:
            yield f'{node.key}_first [shape=point, width=0.14, label="", style=filled, fillcolor="#333333"];'
            yield f"{node.key}_first -> {node.key};"
    for inner in group.groups:
        yield f"subgraph cluster_{inner.key} {{"
        yield f'    label="{_escape(inner.label)}"; labelloc=t; margin=24; color="#d0d7de"; style=rounded;'
        yield from (f"    {line}" for line in _content(inner))
        yield "}"


def _node(node: Node) -> str:
    look = {"label": node.label}
    if node.final:
        look["peripheries"] = "2"
    if node.stands:
        look |= {"style": "rounded,dashed", "color": "#8a8f98"}
    elif node.visited is not None:
        look |= (
            {"fillcolor": "#1f7a4d", "fontcolor": "#ffffff"}
            if node.visited
            else {"style": "rounded,dashed", "color": "#8a8f98", "fontcolor": "#8a8f98"}
        )
    return f"{node.key} [{_attributes(look)}];"


def _edge(edge: Edge) -> str:
    look = {"label": "\n".join(line.text for line in edge.lines)}
    if edge.count is not None:
        look |= {"color": "#1f7a4d", "penwidth": "2.5"} if edge.count else {"color": "#c0c4ca", "fontcolor": "#8a8f98"}
    return f"{edge.source} -> {edge.target} [{_attributes(look)}];"


def _attributes(look: dict[str, str]) -> str:
    return ", ".join(f'{name}="{_escape(value)}"' for name, value in look.items())


def _lines(texts: tuple[str, ...]) -> str:
    """Several lines, each to the left."""
    return "".join(f"{_escape(text)}\\l" for text in texts)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
