"""Pages that are generated: `python -m docs.pages` writes them, a test compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.pages import commands, errors, evidence, invariants, peers

DOCS = Path(__file__).parents[1]

PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "errors.md": errors.page,
    "evidence.md": evidence.page,
    "invariants.md": invariants.page,
    "peers.md": peers.page,
}
"""What makes each page, by its name under docs/."""
