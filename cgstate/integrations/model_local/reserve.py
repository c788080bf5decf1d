"""What lazy captures may add, component by component.

Each graph is taken to be like the largest sample of its component. A component of which nothing is captured at startup has none:
its largest graph is captured once more for this, in a throwaway pool of which nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cgstate.errors import CaptureFailed
from cgstate.runtime.component import CaptureMode
from cgstate.runtime.config import ComponentConfig
from cgstate.runtime.domain import Isolation
from cgstate.runtime.memory import Sample
from cgstate.runtime.routines import capture_by_routine

if TYPE_CHECKING:
    from cgstate.runtime.manager import GraphManager
    from cgstate.runtime.preparing import AnyComponent


@dataclass(frozen=True, slots=True)
class LazyReserve:
    """Bytes that misses may add.

    Attributes:
        by_component: Of the components that may capture lazily; None where it cannot be told: no limit, or no sample.
    """

    by_component: Mapping[str, int | None]

    @property
    def total(self) -> int:
        """All that can be told."""
        return sum(each or 0 for each in self.by_component.values())

    @property
    def untold(self) -> tuple[str, ...]:
        """Components of which it cannot be told."""
        return tuple(name for name, each in self.by_component.items() if each is None)


def lazy_reserve(
    graphs: GraphManager,
    components: Iterable[AnyComponent],
    options: Mapping[str, ComponentConfig],
    startup: Iterable[Sample],
) -> LazyReserve:
    """Work it out, sampling what was not.

    Args:
        graphs: Has the components, and does not serve yet.
        components: The active ones.
        options: Of each of them.
        startup: Samples of what is captured at startup.

    Raises:
        CaptureFailed: the device was lost.
    """
    found: dict[str, int | None] = {}
    known = tuple(startup)
    for component in components:
        name, option = component.component_id, options[component.component_id]
        extra = option.max_extra_graphs
        pure = component.capture_mode is CaptureMode.PURE_LAZY
        if not component.capture_mode.allows_lazy or (extra == 0 and not pure):
            continue
        if extra == "unbounded":
            found[name] = None
            continue
        samples = [_largest(graphs, component)] if pure else [sample for sample in known if sample.component == name]
        count = extra + (len(component.descriptors) if pure else 0)
        found[name] = _cost(count, [sample for sample in samples if sample.error is None], option.isolation, opens_pool=pure)
    return LazyReserve(found)


def _largest(graphs: GraphManager, component: AnyComponent) -> Sample:
    """A sample of the largest declared graph."""
    routine: Any = component.routine
    with graphs.profile() as profile, profile.transaction() as transaction:
        entry = graphs.entry(component.component_id, component.descriptors[0])
        try:
            capture_by_routine(transaction, entry, routine)
        except CaptureFailed:
            if profile.books.lost:
                raise
    return profile.samples[0]


def _cost(count: int, samples: list[Sample], isolation: Isolation, *, opens_pool: bool) -> int | None:
    """Graphs share all of a pool that is not lent out, unless each has one of its own."""
    if not samples:
        return None
    if isolation is Isolation.per_entry:
        return count * max(sample.buffer_bytes + sample.pool_bytes for sample in samples)
    first = max(sample.pool_bytes - sample.output_bytes for sample in samples) if opens_pool else 0
    return first + count * max(sample.buffer_bytes + sample.output_bytes for sample in samples)
