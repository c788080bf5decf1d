"""A progress bar for long work: on a terminal's stderr only, and only then is the drawing library imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def track(items: Sequence[T], description: str, *, show: bool | None = None) -> Iterator[T]:
    """Iterate over ``items`` with a progress bar.

    Args:
        items: What is worked on.
        description: Shown before the bar.
        show: Draw or not; None draws on a terminal.
    """
    if show is None:
        show = sys.stderr.isatty()
    if not show or not items:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as draw

    yield from draw(items, description, console=Console(stderr=True), transient=True)
