"""Replays inside of replays: who is called in an eager break is answered by a graph wherever it would be outside of the break."""

from __future__ import annotations

from cgstate.testing.stateful.counting import counted, counts
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.model import Model
from cgstate.testing.stateful.play import Play

__all__ = ["Nesting"]


class Nesting:
    """Looks at a replay of an entry, from before it to after it.

    Args:
        play: The run.
        name: The entry.
    """

    def __init__(self, play: Play, name: str) -> None:
        outer, bracket, descriptor = name.partition("[")
        subject = play.subjects.get(outer)
        self._play = play
        self._quiet = not play.pending_faults and not play.lost
        self._before = [
            (callee, _by_graph(play.model, callee, f"{callee}{bracket}{descriptor}"), counts(play, callee))
            for callee in (subject.calls if subject is not None else ())
        ]

    def judge(self) -> None:
        """It was replayed once.

        Raises:
            Violated: a component that it calls was not called once, or answered otherwise than it has to be.
        """
        for callee, by_graph, before in self._before:
            hits, reasons = counted(before, counts(self._play, callee))
            if self._quiet and (hits + sum(reasons.values()) != 1 or by_graph not in (None, hits == 1)):
                right = {True: " by its graph", False: " eagerly", None: ""}[by_graph]
                raise Violated(f"{callee} should be answered once{right} in the break, and was by {hits} graphs, eagerly {reasons}")


def _by_graph(model: Model, component: str, entry: str) -> bool | None:
    """Whether a call that ``entry`` can serve is answered by a graph; None where perhaps by another entry, that can as well."""
    if model.gives_lease(entry):
        return True
    return None if any(map(model.gives_lease, model.available(component))) else False
