"""A component as the runtime sees it: its machine, its entries, its counters. How calls are answered is `calling`'s business."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import gt
from typing import TYPE_CHECKING, Any, TypeAlias

from cgstate.errors import ConfigError, describe
from cgstate.lifecycle.states import EntryState
from cgstate.lifecycle.steps import ComponentSteps
from cgstate.routine import Routine
from cgstate.runtime.admission import Admission
from cgstate.runtime.config import ComponentConfig
from cgstate.runtime.domain import Isolation
from cgstate.runtime.entry import Entry
from cgstate.runtime.residency import EagerCalls
from cgstate.runtime.stats import Counters, Fallback
from cgstate.runtime.witness import Notice

if TYPE_CHECKING:
    from cgstate.runtime.books import Books

AnyRoutine: TypeAlias = Routine[..., Any, Any, Any]
"""Some routine: the runtime hands a routine's own descriptors and buffers back to it and never looks inside."""

Found: TypeAlias = "tuple[Hashable, Hashable | None, bool, Entry | None]"
"""A call's resolution, and the entry of its descriptor, which is None for a miss."""


class _Hot(ComponentSteps):
    """What a replay reads, next to each other in memory."""

    __slots__ = ("epoch", "resident")


class ComponentRecord(_Hot):
    """The runtime's record of one active component, or of a routine-less one made by `GraphManager.entry`.

    Attributes:
        entries: By descriptor: declared ones, live lazy ones, those that wait for the reclaimer, and those asked for by name.
        available: Snapshot of the descriptors that are bound; replaced, never changed.
        known: What is known of calls by their shapes, as long as ``available`` is what it is.
        declared: The startup descriptors, as a snapshot.
        order_key: Orders descriptors by size; None: they compare themselves.
        admission: Which misses may capture.
        blocks: Bytes of the first block of a pool whose first graph is the descriptor's, where that was looked for.
        common_blocks: Bytes of the one in which, by a profile, all startup graphs of that pool fit; none where it is the same.
        answered: Calls answered by a graph, while summaries are logged.
        eager: Its eager calls in progress.
        inside: The component in whose eager breaks its graphs replay, sharing the domain; None: it has its own.
        held, capacity, epoch, resident: See the entry table.
    """

    __slots__ = (
        "__weakref__",
        "admission",
        "allows_lazy",
        "answered",
        "available",
        "blocks",
        "capacity",
        "collective",
        "common_blocks",
        "component_id",
        "concurrent_leases",
        "config",
        "counters",
        "declared",
        "eager",
        "entries",
        "held",
        "inside",
        "known",
        "manager",
        "order_key",
        "overlaps_capture",
        "routine",
        "startup_order",
    )

    def __init__(
        self,
        books: Books,
        component_id: str,
        routine: AnyRoutine | None,
        config: ComponentConfig,
        *,
        startup_order: Sequence[Hashable] = (),
        order_key: Callable[[Any], Any] | None = None,
        allows_lazy: bool = False,
        pure_lazy: bool = False,
        overlaps_capture: bool = False,
        collective: bool = False,
        concurrent_leases: bool = True,
    ) -> None:
        self.reset_variables()
        self.manager = books
        books.watch(self)
        self.component_id = component_id
        self.routine = routine
        self.config = config
        self.startup_order = tuple(startup_order)
        self.declared: frozenset[Hashable] = frozenset(startup_order)
        self.order_key = order_key
        self.allows_lazy = allows_lazy
        self.pure_lazy = pure_lazy
        self.overlaps_capture = overlaps_capture
        self.collective = collective
        self.concurrent_leases = concurrent_leases
        self.entries: dict[Hashable, Entry] = {}
        self.available: frozenset[Hashable] = frozenset()
        self.known: dict[Hashable, Found] = {}
        self.blocks: dict[Hashable, int] = {}
        self.common_blocks: dict[Hashable, int] = {}
        self.held = 0
        self.epoch = 0
        self.resident = True
        self.inside: ComponentRecord | None = None
        self.answered = 0
        self.eager = EagerCalls()
        self.counters = Counters(books.stats_detail)
        self.admission = Admission(config.admit_after, protect=config.thrash_protection, limit=books.negative.limit)
        if config.max_extra_graphs == "unbounded" or routine is None:
            self.capacity = sys.maxsize
        else:
            self.capacity = len(self.declared) + config.max_extra_graphs

    @property
    def name(self) -> str:
        """The component id."""
        return self.component_id

    @property
    def outermost(self) -> ComponentRecord:
        """The component whose domain its entries belong to."""
        return self if self.inside is None else self.inside.outermost

    @property
    def isolation(self) -> Isolation:
        """How far its entries are kept apart: inside another component, as that one's are."""
        return self.outermost.config.isolation

    @property
    def has_room(self) -> bool:
        """Whether one more entry fits."""
        return self.held < self.capacity

    def smaller(self, others: Iterable[Hashable], descriptor: Hashable) -> frozenset[Hashable]:
        """Those of ``others`` that the component's order is known to call smaller; none for low-level entries.

        Of tuples those are smaller that are smaller in order, and larger in nothing: (2, 60) may well take more than (3, 1). The
        order is the user's code, so that the lock is not held.
        """
        key: Callable[[Any], Any] = self.order_key or _itself

        def less(other: Hashable) -> bool:
            try:
                return bool(key(other) < key(descriptor)) and not _larger_in_some(other, descriptor)
            except Exception:
                return False  # an order of the declared descriptors need not know those of misses

        return frozenset(filter(less, others)) if self.routine is not None else frozenset()

    def entry(self, descriptor: Hashable) -> Entry:
        """The entry of a descriptor, made on first use; the lock is held.

        Raises:
            ConfigError: the descriptor is unhashable or is compared by address.
        """
        check_descriptor(self.component_id, descriptor)
        entry = self.entries.get(descriptor)
        if entry is None:
            startup = not self.pure_lazy and (descriptor in self.declared or self.routine is None)
            entry = Entry(self, descriptor, startup=startup)
            entry.domain = self.manager.domain_for(self, descriptor)
            self.entries[descriptor] = entry
            entry.domain.entries.add(entry)
        return entry

    def refresh(self) -> None:
        """Take a new snapshot of what is bound and gives leases; the lock is held."""
        self.available = frozenset(
            d
            for d, entry in self.entries.items()
            if entry.state is EntryState.BOUND or (entry.state is EntryState.REPLAYING and not entry.retiring and not entry.failed)
        )
        self.known = {}  # after the snapshot: who has the new one finds nothing in it that is of the old

    def drop(self, entry: Entry) -> None:
        """Forget an entry that is EAGER, lazily made, and has nothing left; the lock is held."""
        entry.domain.entries.discard(entry)
        self.manager.drop_domain(entry.domain)
        self.blocks.pop(entry.descriptor, None)
        self.known = {}  # a routine may have named it though it was not available
        del self.entries[entry.descriptor]  # last: as long as it is known here, an interrupted drop is done again

    def fall_back(self, reason: Fallback) -> None:
        """Count a call answered eagerly; the lock is held."""
        self.counters.fallbacks[reason] += 1
        self.manager.tell(self, Notice.answered, reason)

    def note_move(self) -> None:
        """Memory that it depends on has moved; the lock is held."""
        self.manager.unseal()
        self.epoch += 1

    def note_resident(self, resident: bool) -> None:
        """Memory that it depends on is all there, or is not; the lock is held."""
        self.manager.unseal()
        self.resident = resident

    @property
    def live_hits(self) -> int:
        """Hits on the entries there are now."""
        return sum(entry.hits for entry in self.entries.values())


def _larger_in_some(one: Hashable, other: Hashable) -> bool:
    """Whether one tuple is larger than another in some place, or they are of different lengths."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return False
    return len(one) != len(other) or any(map(gt, one, other))


def _itself(descriptor: Any) -> Any:
    return descriptor


def check_descriptor(component_id: str, descriptor: Hashable) -> None:
    """Refuse what cannot name a graph by value.

    Raises:
        ConfigError: unhashable, without a text, compared by address, not to be compared, or unequal to itself.
    """
    try:
        text = repr(descriptor)
    except Exception as error:
        raise ConfigError(f"a descriptor of {component_id} has no text: its repr raised {describe(error)}") from error
    try:
        hash(descriptor)
    except Exception as error:
        raise ConfigError(f"descriptor {text} of {component_id} is not hashable; use a frozen value ({describe(error)})") from None
    if descriptor is None or type(descriptor).__eq__ is object.__eq__:
        raise ConfigError(f"descriptor {text} of {component_id} is compared by address; use a frozen value")
    try:
        equal = bool(descriptor == descriptor)
    except Exception as error:
        raise ConfigError(f"descriptor {text} of {component_id} cannot be compared: {describe(error)}") from error
    if not equal:
        raise ConfigError(f"descriptor {text} of {component_id} is not equal to itself")
