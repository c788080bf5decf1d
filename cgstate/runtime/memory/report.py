"""What the manager holds now, byte by byte: by pool and stream, by component and entry.

Read from the allocator's segments at one moment; every way of adding it up gives the same total (I7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cgstate.lifecycle.states import PoolKind
from cgstate.runtime.domain import LIVE
from cgstate.runtime.statics import Statics, apportioned

if TYPE_CHECKING:
    from rich.table import Table

    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.pool import Pool


@dataclass(frozen=True, slots=True)
class StreamMemory:
    """What of a pool belongs to one stream.

    Attributes:
        handle: The raw handle.
        reserved: Bytes of its segments.
        live: Bytes lent out of them.
        captures: Whether the pool goes on to capture on it. What is free on another stream serves nobody any more (fact P4).
    """

    handle: int
    reserved: int
    live: int
    captures: bool


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """One pool.

    Attributes:
        name: The domain and its generation.
        kind: Whose pool it is.
        components: Ids of the components that have live entries in it.
        entries: How many live entries it has.
        retired: Whether it has none, and was not given back yet.
        streams: What belongs to which stream.
        workspaces: Bytes of library workspaces in it.
        stranded: Bytes that serve no graph: free on a stream that captures no more, or grown by attempts that failed (fact S4).
    """

    name: str
    kind: PoolKind
    components: tuple[str, ...]
    entries: int
    retired: bool
    streams: tuple[StreamMemory, ...]
    workspaces: int
    stranded: int

    @property
    def reserved(self) -> int:
        """Bytes of its segments."""
        return sum(stream.reserved for stream in self.streams)

    @property
    def used(self) -> int:
        """Bytes that serve its live entries; 0 when it is retired."""
        return 0 if self.retired else self.reserved - self.stranded


@dataclass(frozen=True, slots=True)
class ForeignMemory:
    """The host engine's pool, of which only a part is ours.

    Attributes:
        name: Its domain's name.
        reserved: Bytes of its segments, whoever has grown them.
        charged: Those that captures of ours have grown.
        stranded: Those of the charged ones that serve no graph of ours: all of them, where none lives there; else what is free of
            that which failed attempts have grown (fact S4).
    """

    name: str
    reserved: int
    charged: int
    stranded: int

    @property
    def used(self) -> int:
        """Bytes that serve graphs of ours."""
        return self.charged - self.stranded


@dataclass(frozen=True, slots=True)
class EntryMemory:
    """One live entry.

    Attributes:
        component: Component id.
        descriptor: Its descriptor, as text.
        pool: Name of its pool.
        exclusive: Bytes of the pool, where nothing else lives there; they come back when the entry goes.
        shared: Bytes of the pool, where others live there, too: that of all of them together.
        buffers: Bytes of its static inputs; those that several entries have are counted with the first.
    """

    component: str
    descriptor: str
    pool: str
    exclusive: int
    shared: int
    buffers: int


@dataclass(frozen=True, slots=True)
class ComponentMemory:
    """One component with live entries.

    Attributes:
        component: Component id.
        entries: How many are live.
        exclusive: Bytes of pools in which no other component lives.
        shared: Bytes of pools in which others live, too: that of all of them together.
        buffers: Bytes of its static inputs.
    """

    component: str
    entries: int
    exclusive: int
    shared: int
    buffers: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What the manager holds, bytes.

    Attributes:
        details: Every pool that holds anything, or may.
        entries: Every live entry.
        retired_buffers: Static inputs of recordings that the reclaimer still has.
        components: Every component that has live entries.
        guests: The host engine's pool, if graphs of ours were recorded into it.
    """

    details: tuple[PoolMemory, ...]
    entries: tuple[EntryMemory, ...]
    retired_buffers: int
    components: tuple[ComponentMemory, ...]
    guests: tuple[ForeignMemory, ...] = ()

    @property
    def pools(self) -> dict[str, int]:
        """By pool name: segments of live pools, library workspaces included; of the host engine's, what ours grew."""
        own = {pool.name: pool.reserved for pool in self.details if not pool.retired}
        return own | {pool.name: pool.charged for pool in self.guests}

    @property
    def foreign(self) -> dict[str, int]:
        """By pool name: all segments of the host engine's pool, whoever has grown them. Apart from the total."""
        return {pool.name: pool.reserved for pool in self.guests}

    @property
    def retired(self) -> dict[str, int]:
        """By pool name: pools that hold nothing live any more and were not given back yet."""
        return {pool.name: pool.reserved for pool in self.details if pool.retired and pool.reserved}

    @property
    def streams(self) -> dict[int, int]:
        """By stream handle: segments of all pools."""
        sums: dict[int, int] = {}
        for pool in self.details:
            for stream in pool.streams:
                sums[stream.handle] = sums.get(stream.handle, 0) + stream.reserved
        return sums

    @property
    def buffers(self) -> int:
        """Static inputs, also those that wait for the reclaimer."""
        return sum(entry.buffers for entry in self.entries) + self.retired_buffers

    @property
    def shared(self) -> int:
        """Bytes that serve entries of more than one component."""
        return sum(pool.used for pool in self.details if len(pool.components) > 1)

    @property
    def stranded(self) -> int:
        """Bytes of live pools that serve no graph; of the host engine's, of what ours grew."""
        own = sum(pool.stranded for pool in self.details if not pool.retired)
        return own + sum(pool.stranded for pool in self.guests)

    @property
    def total(self) -> int:
        """All of it: what is charged (I7)."""
        return sum(pool.reserved for pool in self.details) + sum(pool.charged for pool in self.guests) + self.buffers

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        sums: Mapping[str, object] = {
            "total": self.total,
            "pools": self.pools,
            "retired": self.retired,
            "buffers": self.buffers,
            "shared": self.shared,
            "stranded": self.stranded,
        }
        return {**sums, **asdict(self)}

    def __rich__(self) -> Table:
        """A table for a person: who holds what, in bytes; the lines add up to the last one."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        table.add_column("held by")
        table.add_column("bytes", justify="right")
        for name, size in self._lines():
            table.add_row(name, f"{size:,}")
        table.add_section()
        table.add_row("total", f"{self.total:,}")
        return table

    def _lines(self) -> Iterator[tuple[str, int]]:
        for component in self.components:
            graphs = f"{component.entries} graph{'s' * (component.entries != 1)}"
            yield f"{component.component}: pools of {graphs}", component.exclusive
            yield f"{component.component}: static inputs", component.buffers
        for name, size in {
            "grown in the host engine's pool": sum(pool.used for pool in self.guests),
            "shared by components": self.shared,
            "stranded": self.stranded,
            "retired, not given back": sum(self.retired.values()) + self.retired_buffers,
        }.items():
            if size:
                yield name, size


def report(books: Books) -> MemoryReport:
    """Read what the manager holds."""
    with books.gate.lock:
        users: dict[Pool, list[Entry]] = {pool: [] for pool in books.pools}
        stand_ins = (entry for pool in books.pools for entry in pool.domain.entries)  # of a profile; the books do not know them
        for entry in dict.fromkeys([*books.entries(), *stand_ins]):
            if entry.state in LIVE and entry.pool in users:
                users[entry.pool].append(entry)
        pools = {pool: _pool(pool, users[pool]) for pool in books.pools if pool.kind is not PoolKind.foreign}
        for home in books.homes():
            if home.pool is not None and home.guest in users:
                pools[home.pool] = _pool(home.pool, users[home.guest])
        guests = tuple(_guest(pool, users[pool]) for pool in books.pools if pool.kind is PoolKind.foreign)
        places = [(pool, inside, entry) for pool, inside in users.items() for entry in inside]
        entries = [entry for _, _, entry in places]
        *buffers, retired = apportioned(books.backend, [*(entry.statics for entry in entries), _retired(books)])
    rows = tuple(
        EntryMemory(
            component=entry.component.component_id,
            descriptor=repr(entry.descriptor),
            pool=pool.name,
            exclusive=pools[pool].used if pool in pools and len(inside) == 1 else 0,
            shared=pools[pool].used if pool in pools and len(inside) > 1 else 0,
            buffers=size,
        )
        for (pool, inside, entry), size in zip(places, buffers, strict=True)
    )
    components = tuple(_component(name, pools.values(), rows) for name in dict.fromkeys(e.component.component_id for e in entries))
    return MemoryReport(tuple(pools.values()), rows, retired, components, guests)


def _retired(books: Books) -> Statics:
    """All static inputs that wait for the reclaimer; the lock is held."""
    queue = [retired.statics for retired in books.reclaimer.queue]
    return Statics([each.buffers for each in queue], tuple(each.pinned for each in queue))


def _streams(pool: Pool) -> tuple[StreamMemory, ...]:
    """What of a pool belongs to which stream; the lock is held."""
    domain = pool.domain
    captures = domain.stream.handle if domain.stream is not None and domain.pool is pool else None
    streams: dict[int, StreamMemory] = {}
    for segment in pool.handle.segments():
        known = streams.get(segment.stream)
        streams[segment.stream] = StreamMemory(
            handle=segment.stream,
            reserved=segment.reserved + (known.reserved if known is not None else 0),
            live=segment.live + (known.live if known is not None else 0),
            captures=bool(domain.adopted) or segment.stream == captures,  # a stream of the user's may be captured on again
        )
    return tuple(streams.values())


def _free(streams: Iterable[StreamMemory], *, captures: bool) -> int:
    """Bytes that are free on the streams that capture, or on the others."""
    return sum(stream.reserved - stream.live for stream in streams if stream.captures is captures)


def _pool(pool: Pool, users: Sequence[Entry]) -> PoolMemory:
    """One pool; the lock is held."""
    streams = _streams(pool)
    wasted = min(pool.wasted, _free(streams, captures=True))
    return PoolMemory(
        name=pool.name,
        kind=pool.kind,
        components=tuple(dict.fromkeys(entry.component.component_id for entry in users)),
        entries=len(users),
        retired=not users,
        streams=streams,
        workspaces=pool.handle.workspace_bytes(),
        stranded=_free(streams, captures=False) + wasted if users else 0,
    )


def _guest(pool: Pool, users: Sequence[Entry]) -> ForeignMemory:
    """The host engine's pool; the lock is held."""
    charged = pool.charged
    wasted = min(pool.wasted, _free(_streams(pool), captures=True))
    return ForeignMemory(pool.name, pool.bytes(), charged, stranded=min(wasted, charged) if users else charged)


def _component(component: str, pools: Iterable[PoolMemory], entries: Iterable[EntryMemory]) -> ComponentMemory:
    mine = [pool for pool in pools if component in pool.components]
    rows = [entry for entry in entries if entry.component == component]
    return ComponentMemory(
        component=component,
        entries=len(rows),
        exclusive=sum(pool.used for pool in mine if len(pool.components) == 1),
        shared=sum(pool.used for pool in mine if len(pool.components) > 1),
        buffers=sum(row.buffers for row in rows),
    )
