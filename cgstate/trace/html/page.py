"""Puts the page together: a frame, a style, a program and the data, all in one file."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import TextIO

from cgstate.trace.html.collecting import Document, collect
from cgstate.trace.records import Record


def write(read: Callable[[], Iterable[Record]], title: str, file: TextIO) -> Document:
    """Write the page of a trace; what is in it.

    Args:
        read: Makes the records; called twice.
        title: What the page is called, e.g. the name of the trace's file.
        file: Where to.

    Raises:
        TraceError: from the records; see `cgstate.trace.read`. Nothing was written.
        ConfigError: the trace is too long for a page. Nothing was written.
    """
    document = collect(read)
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")  # no name may end the script
    parts = {"TITLE": html.escape(title), "STYLE": _part("page.css"), "PROGRAM": _part("page.js"), "DATA": data}
    for piece in _part("page.html").split("@@"):  # every second one is the name of a part
        file.write(parts.get(piece, piece))
    return document


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
