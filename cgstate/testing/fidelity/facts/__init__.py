"""Every row of the facts as a program."""

from __future__ import annotations

from cgstate.testing.fidelity.fact import Fact
from cgstate.testing.fidelity.facts import failures, pools, streams, threads, workspaces

FACTS: dict[str, Fact] = {fact.id: fact for room in (pools, failures, threads, workspaces, streams) for fact in room.FACTS}
"""By id, in the order of the facts."""
