"""What the figures of the comparison with the peers are called, for who measures them and for who reads them."""

from __future__ import annotations

from collections.abc import Mapping

COMPONENT = "component"
LEASED = "component, leased"
SUBJECTS: Mapping[str, str] = {COMPONENT: "call", LEASED: "leased_call"}
"""Ours among the candidates, with the word that their figures begin with; a clone is all that tells the two apart."""


def figure(subject: str, peer: str, inputs: int, outputs: int) -> str:
    """The figure of the ratio of one of `SUBJECTS` over another candidate; that for one input and output has no suffix."""
    suffix = "" if (inputs, outputs) == (1, 1) else f"_{inputs}_in_{outputs}_out"
    return f"{SUBJECTS[subject]}_over_{peer.replace(', ', '_').replace(' ', '_').replace('-', '_')}{suffix}"
