"""Every fact that the code cites is told in docs/facts.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOLD = set(re.findall(r"^\| ([A-Z]\d)", (ROOT / "docs" / "facts.md").read_text(), re.MULTILINE))


def test_every_cited_fact_is_told() -> None:
    cited: dict[str, str] = {}
    for path in [*ROOT.glob("cgstate/**/*.py"), *ROOT.glob("cgstate/**/*.in"), *ROOT.glob("benchmarks/*.py")]:
        for fact in re.findall(r"\b([PFTSWX]\d)\b", path.read_text()):
            cited.setdefault(fact, path.name)
    assert len(cited) > 20
    assert {fact: where for fact, where in cited.items() if fact not in TOLD} == {}
