"""Writes every generated page of this folder: `python -m docs.pages`."""

from __future__ import annotations

from docs.pages import DOCS, PAGES

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
