"""Symmetry: entries of one component that share a domain are alike, so a state counts as any of its renamings."""

from __future__ import annotations

from itertools import permutations, product
from operator import itemgetter

from cgstate.lifecycle.expr import Value
from cgstate.spec.cells import NOBODY
from cgstate.spec.compiled import State, System
from cgstate.spec.terms import cell, parts


class Canonical:
    """Picks one state of those that differ only in the numbers of like entries: the least.

    Entries are alike when they belong to the same component and are equally isolated. Isolated entries have domains of their own,
    which are renamed along.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        shape = system.shape
        groups: dict[int, list[int]] = {}
        for entry, component in enumerate(shape.component_of):
            if not shape.profiled(entry):
                groups.setdefault(component, []).append(entry)
        self._renamings = []
        for orders in product(*(permutations(group) for group in groups.values())):
            names = list(range(len(shape.component_of)))
            for group, order in zip(groups.values(), orders, strict=True):
                for old, new in zip(group, order, strict=True):
                    names[old] = new
            if names != sorted(names):
                self._renamings.append(self._renaming(names))
        self._turns = [place for place, name in enumerate(system.cells) if parts(name)[0::2] == ("domain", "turn")]

    def _renaming(self, names: list[int]) -> tuple[itemgetter[State], dict[Value, Value]]:
        """How to fetch the renamed state's cells from a state, and what becomes of cells that hold an entry."""
        shape = self.system.shape
        domains = {shape.domain_of[old]: shape.domain_of[new] for old, new in enumerate(names)}
        places = []
        for name in self.system.cells:
            kind, index, field = parts(name)
            numbers = [int(each) for each in index]
            match kind:
                case "entry":
                    numbers = [names[numbers[0]]]
                case "domain":
                    numbers = [domains[numbers[0]]]
                case "pool":
                    numbers = [_moved(numbers[0], domains)]
                case "left":
                    numbers = [names[numbers[0]], _moved(numbers[1], domains)]
            places.append(self.system.places[cell(kind, field, *map(str, numbers)).name])
        back: dict[Value, Value] = {new: old for old, new in enumerate(names)}
        return itemgetter(*places), {NOBODY: NOBODY, **back}

    def of(self, state: State) -> State:
        """The least of its renamings."""
        best, key = state, _key(state)
        for fetch, back in self._renamings:
            renamed = list(fetch(state))
            for place in self._turns:
                renamed[place] = back[renamed[place]]
            other = tuple(renamed)
            if (other_key := _key(other)) < key:
                best, key = other, other_key
        return best


def _moved(pool: int, domains: dict[int, int]) -> int:
    domain, slot = divmod(pool, 2)
    return 2 * domains[domain] + slot


def _key(state: State) -> tuple[str, ...]:
    return tuple(map(str, state))
