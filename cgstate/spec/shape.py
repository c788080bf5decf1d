"""How big the modelled system is: which objects there are, and which belong together. Plain numbers, fixed for a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cgstate.errors import ConfigError
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import PoolKind
from cgstate.spec.terms import Objects

NOW, OLD, SLOTS = 0, 1, 2
"""A domain's pools: the one in use, and one retired generation that is not gone yet."""


@dataclass(frozen=True)
class Shape:
    """A finite system.

    Attributes:
        entries: Entries of each component; also its capacity.
        threads: How many leases are held at a time at most.
        isolated: Each entry has a domain of its own; else one domain is shared by all.
        profile: There is one more entry, of the first component, that is only ever captured while profiling, into a throwaway pool.

    Raises:
        ConfigError: nothing to model.
    """

    entries: tuple[int, ...] = (1, 1)
    threads: int = 2
    isolated: bool = False
    profile: bool = True

    def __post_init__(self) -> None:
        if not self.entries or any(count < 1 for count in self.entries) or self.threads < 1:
            raise ConfigError("a system has at least one component with at least one entry each, and one thread")

    @property
    def name(self) -> str:
        """E.g. ``1+1-2t``: the components' entries, threads."""
        extras = f"{'-isolated' if self.isolated else ''}{'' if self.profile else '-unprofiled'}"
        return f"{'+'.join(map(str, self.entries))}-{self.threads}t{extras}"

    @cached_property
    def component_of(self) -> tuple[int, ...]:
        """By entry; the profiled one comes last."""
        served = [component for component, count in enumerate(self.entries) for _ in range(count)]
        return (*served, *([0] if self.profile else []))

    @cached_property
    def domain_of(self) -> tuple[int, ...]:
        """By entry."""
        served = sum(self.entries)
        domains = list(range(served)) if self.isolated else [0] * served
        return (*domains, *([max(domains) + 1] if self.profile else []))

    def profiled(self, entry: int) -> bool:
        """Whether it is the entry that is only profiled."""
        return self.profile and entry == len(self.domain_of) - 1

    def kind_of(self, pool: int) -> PoolKind:
        """Whose pool it is."""
        if self.profile and pool // SLOTS == max(self.domain_of):
            return PoolKind.throwaway
        return PoolKind.per_entry if self.isolated else PoolKind.shared

    def count(self, kind: str) -> int:
        """How many objects there are of a kind."""
        domains = max(self.domain_of) + 1
        pools = SLOTS * domains - self.profile  # what was profiled has gone before the next profile
        return {"entry": len(self.domain_of), "component": len(self.entries), "domain": domains, "pool": pools}[kind]

    def members(self, objects: Objects, at: Mapping[str, int]) -> tuple[int, ...]:
        """The objects of a set, where ``at`` gives the numbers of the parameters."""
        if objects.of is None:
            return tuple(range(self.count(objects.kind)))
        owner, parameter = objects.of
        components: tuple[int, ...] = ()
        number = at[parameter]
        match owner:
            case "entry":
                domain, components = self.domain_of[number], (self.component_of[number],)
            case "domain":
                domain = number
            case "pool":
                domain = number // SLOTS
            case _:
                return tuple(entry for entry, component in enumerate(self.component_of) if component == number)
        pools = range(SLOTS * domain, min(SLOTS * (domain + 1), self.count("pool")))
        return {
            "component": components,
            "domain": (domain,),
            "pool": tuple(pools),
            "now": tuple(pools[NOW:OLD]),
            "old": tuple(pools[OLD:]),
            "entry": tuple(entry for entry, its in enumerate(self.domain_of) if its == domain),
        }[objects.kind]

    def constant(self, kind: str, index: tuple[int, ...], field: str) -> Value | None:
        """The value of a cell that never changes; None for one that does."""
        match kind, field:
            case "component", "capacity":
                return self.entries[index[0]]
            case "component", "pure_lazy":
                return False
            case "entry", "concurrent":
                return True
            case "entry", "profiled":
                return self.profiled(index[0])
            case "pool", "kind":
                return self.kind_of(index[0])
            case "pool", "now":
                return index[0] % SLOTS == NOW
            case "shape", "threads":
                return self.threads
        return None
