"""Everything that is known to live in vLLM's graph pools: our entries and vLLM's own graphs, pool by pool."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from cgstate.integrations.vllm.observe import WrapperGraphs
from cgstate.integrations.vllm.owner import Owner


@dataclass(frozen=True, slots=True)
class PoolReport:
    """One pool.

    Attributes:
        pool: Its id.
        reserved: Bytes of its segments, whoever has grown them.
        entries: By component: entries of ours that can be replayed.
        charged: Bytes that captures of ours have grown.
        guests: vLLM's wrappers that capture into it.
    """

    pool: Hashable
    reserved: int
    entries: Mapping[str, int]
    charged: int
    guests: tuple[WrapperGraphs, ...]


def by_pool(owners: Iterable[Owner], wrappers: Iterable[WrapperGraphs]) -> tuple[PoolReport, ...]:
    """Every pool in which there is an entry of ours, or may be, with what else is there."""
    everybody = tuple(wrappers)
    pools: dict[Hashable, list[Owner]] = {}
    for owner in owners:
        if owner.manager is not None:
            pools.setdefault(owner.pool, []).append(owner)
    return tuple(_report(pool, theirs, everybody) for pool, theirs in pools.items())


def _report(pool: Hashable, owners: list[Owner], wrappers: tuple[WrapperGraphs, ...]) -> PoolReport:
    held = {owner.component: owner.manager.memory() for owner in owners if owner.manager is not None}
    return PoolReport(
        pool=pool,
        reserved=sum(segment.reserved for segment in owners[0].backend.adopt_pool(pool).segments()),
        entries={component: len(memory.entries) for component, memory in held.items()},
        charged=sum(memory.total for memory in held.values()),
        guests=tuple(wrapper for wrapper in wrappers if wrapper.pool == pool),
    )
