"""SVG, drawn offline from the Mermaid text by ``mermaid-render``, which lays it out without a browser.

What that library leaves open is added: a ground of the theme's colour, fonts that are there on every machine, what a trace has
taken. Several machines are laid out one by one and set side by side.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from enum import StrEnum
from html import escape

from cgstate.diagram import mermaid
from cgstate.diagram.model import Diagram

FONTS = "'Noto Sans', 'DejaVu Sans', Helvetica, Arial, sans-serif"
GAP = 24
"""Pixels around parts and lines."""
LINE = 24
"""Pixels from one line of notes to the next."""
NOTE = 280
"""Pixels from one column of notes to the next."""


class Theme(StrEnum):
    """On which ground it is read."""

    light = "light"
    dark = "dark"


_THEIRS = {Theme.light: "default", Theme.dark: "dark"}
_GROUND = {Theme.light: "#ffffff", Theme.dark: "#1f2020"}
_INK = {Theme.light: "#24292f", Theme.dark: "#eeeeee"}
_FAINT = {Theme.light: "#d0d7de", Theme.dark: "#4a4f57"}
_STALE = {Theme.light: "#8a8f98", Theme.dark: "#8a8f98"}
_TAKEN = {Theme.light: "#1f7a4d", Theme.dark: "#5bd198"}


class RendererMissing(Exception):
    """The library that lays out SVGs is not installed."""

    def __str__(self) -> str:
        return "SVGs are laid out by mermaid-render, which is not here; try pip install 'cgstate[docs]'"


def render(diagram: Diagram, theme: Theme = Theme.light) -> str:
    """The text of an SVG.

    Raises:
        RendererMissing: the ``docs`` extra is not installed.
    """
    parts = [diagram.part(group) for group in diagram.content.groups] or [diagram]
    drawn = [_Part(part, theme) for part in parts]
    titled = len(drawn) > 1
    top = GAP + (LINE if titled else 0)
    columns = [drawn[0::2], drawn[1::2]] if titled else [drawn]
    return _compose(diagram, columns, top, theme, titled=titled)


class _Part:
    """One laid out diagram."""

    def __init__(self, diagram: Diagram, theme: Theme) -> None:
        text = _lay_out(mermaid.render(diagram), theme)
        found = re.match(r'<svg[^>]* width="(\d+)" height="(\d+)"', text)
        if found is None:
            raise ValueError("mermaid-render has written something else than expected")
        self.diagram = diagram
        self.width, self.height = int(found[1]), int(found[2])
        self.text = _mark(text, diagram, theme).replace("font-family:Noto Sans", f"font-family:{FONTS}")

    def at(self, x: int, y: int) -> str:
        """The same, somewhere else."""
        return self.text.replace("<svg ", f'<svg x="{x}" y="{y}" ', 1)


def _compose(diagram: Diagram, columns: list[list[_Part]], top: int, theme: Theme, *, titled: bool) -> str:
    body: list[str] = []
    x = GAP
    height = 0
    for column in columns:
        y = top
        width = max(part.width for part in column)
        for part in column:
            if titled:
                body += _frame(part, x, y, width, theme)
            body.append(part.at(x, y))
            y += part.height + GAP + (LINE + GAP if titled else 0)
        height = max(height, y)
        x += width + GAP + (GAP if titled else 0)
    deep = -(-len(diagram.notes) // max(1, x // NOTE))
    for index, note in enumerate(diagram.notes):
        place, line = divmod(index, deep)
        body.append(f'<text x="{GAP + place * NOTE}" y="{height + line * LINE}" fill="{_INK[theme]}">{escape(note)}</text>')
    height += deep * LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {x} {height}" width="{x}" height="{height}" '
        f'style="font:16px {FONTS}" role="img"><title>{escape(diagram.title)}</title>'
        f'<rect width="{x}" height="{height}" fill="{_GROUND[theme]}" />'
    )
    return head + "\n".join(["", *body, "</svg>", ""])


def _frame(part: _Part, x: int, y: int, width: int, theme: Theme) -> Iterator[str]:
    """A title and a frame around a part."""
    yield (
        f'<rect x="{x - GAP // 2}" y="{y - LINE - GAP // 4}" width="{width + GAP}" height="{part.height + LINE + GAP // 2}" '
        f'rx="8" fill="none" stroke="{_FAINT[theme]}" />'
    )
    yield f'<text x="{x}" y="{y - GAP // 4}" fill="{_INK[theme]}" font-weight="bold">{escape(part.diagram.title)}</text>'


def _mark(text: str, diagram: Diagram, theme: Theme) -> str:
    """Let edges that a trace has taken stand out, and the others stand back."""
    if not diagram.traced:
        return text
    first = sum(node.initial + node.final for node in diagram.nodes)  # the marks' edges come first
    for index, edge in enumerate(diagram.edges, first):
        look = f'stroke="{_TAKEN[theme]}" stroke-width="2.5"' if edge.count else 'opacity="0.35"'
        text = text.replace(f'transition" data-id="edge{index}"', f'transition" data-id="edge{index}" {look}')
        if not edge.count:
            text = text.replace(f'edge-label" data-id="edge{index}"', f'edge-label" data-id="edge{index}" fill="{_STALE[theme]}"')
    return text


def _lay_out(source: str, theme: Theme) -> str:
    try:
        library = importlib.import_module("mermaid_render")
    except ImportError:
        raise RendererMissing from None
    return bytes(library.convert(source, format="svg", theme=_THEIRS[theme])).decode()
