"""Mermaid text, as GitHub draws it."""

from __future__ import annotations

from collections.abc import Iterator

from cgstate.diagram.model import Diagram, Edge, Group

VISITED = "fill:#1f7a4d,color:#ffffff,stroke:#145236"
STANDS = "fill:none,stroke-dasharray:3"
WIDE = 30
"""Characters that a line may have before its reason goes into the next one."""
UNMET = "fill:none,color:#8a8f98,stroke:#8a8f98,stroke-dasharray:4"


def render(diagram: Diagram) -> str:
    """The text of a state diagram."""
    lines = ["stateDiagram-v2", "    direction TB"]
    lines += (f"    {line}" for line in _content(diagram.content))
    lines += (f"    {line}" for line in _edges(diagram))
    lines += (f"    %% {note}" for note in diagram.notes)
    if any(node.stands for node in diagram.nodes):
        lines += [f"    classDef stands {STANDS}", *(f"    class {node.key} stands" for node in diagram.nodes if node.stands)]
    if diagram.traced:
        lines += [f"    classDef visited {VISITED}", f"    classDef unmet {UNMET}"]
        lines += (f"    class {node.key} {'visited' if node.visited else 'unmet'}" for node in diagram.nodes if not node.stands)
    return "\n".join(lines) + "\n"


def _content(group: Group) -> Iterator[str]:
    for node in group.nodes:
        if node.label != node.key:
            yield f'state "{node.label}" as {node.key}'
        if node.initial:
            yield f"[*] --> {node.key}"
        if node.final:
            yield f"{node.key} --> [*]"
    for inner in group.groups:
        yield f'state "{inner.label}" as {inner.key} {{'
        yield from (f"    {line}" for line in _content(inner))
        yield "}"


def _edges(diagram: Diagram) -> Iterator[str]:
    for edge in diagram.edges:
        yield f"{edge.source} --> {edge.target}: {label(edge)}"


def label(edge: Edge) -> str:
    """An edge's label, in lines; of an edge that leads back, two in a line, since its label stands beside others' edges."""
    texts = [line.text for line in edge.lines]
    if edge.source == edge.target:
        return "<br/>".join(", ".join(texts[start : start + 2]) for start in range(0, len(texts), 2))
    return "<br/>".join(text if len(text) <= WIDE else text.replace(" [", "<br/>[", 1) for text in texts)
