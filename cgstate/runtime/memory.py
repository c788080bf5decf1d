"""What graphs cost: the estimate before they are captured, and the bytes they hold afterwards.

Only a pool's own segments are exact (fact P5). The estimate captures the two largest graphs of each component into throwaway pools
that are shared as the real ones will be (where each entry has a pool of its own, every graph), and reads those: with largest first,
the later graphs fit into the freed blocks of the first ones (fact P9: the two largest alone reached 96-100 % of the whole set on
six model shapes).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cgstate.backends.undo import UndoLog
from cgstate.errors import CaptureFailed, describe
from cgstate.lifecycle.states import FailureKind, PoolKind
from cgstate.runtime.domain import Domain, Isolation
from cgstate.runtime.entry import Entry
from cgstate.runtime.routines import capture_by_routine
from cgstate.runtime.transaction import Transaction, TransactionKind

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.record import ComponentRecord

SLACK = 1.10
"""Upper over lower bound: the largest shortfall of two samples that fact P9 met was 4 %; the bar for the upper bound is 10 %."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One graph captured while profiling.

    Attributes:
        component: Component id.
        descriptor: Its descriptor, as text.
        pool_bytes: What the throwaway pool held after it, all samples so far together.
        buffer_bytes: Its static inputs.
        error: Why it could not be captured; None if it could.
    """

    component: str
    descriptor: str
    pool_bytes: int
    buffer_bytes: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What capturing everything will hold.

    Attributes:
        lower: Bytes that it holds at least: pool segments and library workspaces of the samples, and all static inputs.
        upper: Bytes that it holds at most, if larger graphs come first.
        parts: ``pools`` (segments, library workspaces included) and ``buffers`` (static inputs), bytes.
        samples: What was captured to know.
        graphs: How many graphs will be captured; the estimate is zero only if none.
    """

    lower: int
    upper: int
    parts: dict[str, int]
    samples: tuple[Sample, ...]
    graphs: int

    @property
    def trusted(self) -> bool:
        """Whether every sample could be captured."""
        return all(sample.error is None for sample in self.samples)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What the manager holds now, bytes.

    Attributes:
        pools: By pool name: segments of live pools, library workspaces included.
        retired: By pool name: pools that hold nothing live any more and were not given back yet.
        buffers: Static inputs of live entries.
    """

    pools: dict[str, int]
    retired: dict[str, int]
    buffers: int

    @property
    def total(self) -> int:
        """All of it: what is charged (I7)."""
        return sum(self.pools.values()) + sum(self.retired.values()) + self.buffers


def report(books: Books) -> MemoryReport:
    """Read what the manager holds."""
    with books.gate.lock:
        pools = list(books.pools)
        buffers = [entry.buffers for entry in books.entries() if entry.buffers is not None]
        live = {pool.name: bool(pool.domain.live) for pool in pools}
    sizes = {pool.name: pool.charged for pool in pools}
    return MemoryReport(
        pools={name: size for name, size in sizes.items() if live[name]},
        retired={name: size for name, size in sizes.items() if not live[name] and size},
        buffers=books.backend.nbytes(buffers),
    )


def estimate(books: Books, records: Sequence[ComponentRecord]) -> MemoryEstimate:
    """Profile; the manager is PROFILING and ours. Everything made here is gone afterwards (I4)."""
    samples: list[Sample] = []
    pools = 0
    for group in _groups(records):
        with _throwaway(books) as (domain, transaction):
            taken = [sample for record, descriptors in group for sample in _sample(transaction, record, descriptors, domain)]
        pools += max(sample.pool_bytes for sample in taken)
        samples += taken
    buffers = 0
    for record in records:
        made, failed = _buffers(books, record)
        buffers += made
        samples += failed
    lower = pools + buffers
    return MemoryEstimate(
        lower=lower,
        upper=int(lower * SLACK),
        parts={"pools": pools, "buffers": buffers},
        samples=tuple(samples),
        graphs=sum(len(record.startup_order) for record in records if not record.pure_lazy),
    )


Group: TypeAlias = "list[tuple[ComponentRecord, Sequence[Hashable]]]"


def _groups(records: Sequence[ComponentRecord]) -> Iterator[Group]:
    """What is sampled into one throwaway pool: as production will share, the two largest of each component."""
    shared: Group = []
    for record in records:
        if record.pure_lazy:
            continue  # nothing of it is captured at startup
        match record.config.isolation:
            case Isolation.shared:
                shared.append((record, record.startup_order[:2]))
            case Isolation.per_component:
                yield [(record, record.startup_order[:2])]
            case Isolation.per_entry:
                for descriptor in record.startup_order:
                    yield [(record, (descriptor,))]
    if shared:
        yield shared


@contextmanager
def _throwaway(books: Books) -> Iterator[tuple[Domain, Transaction]]:
    """A domain for the length of one profile, its pool and stream with it, and the transaction that captures into it."""
    with books.gate.lock:
        domain = books.new_domain("profile", "profile", PoolKind.throwaway)
    transaction = Transaction(books, TransactionKind.profile)
    try:
        yield domain, transaction
    finally:
        transaction.abort()
        with books.gate.lock:
            if domain.pool is not None:
                books.retire_pool(domain.pool)
        try:
            books.reclaimer.finish()
            books.reclaimer.flush()
        finally:
            with books.gate.lock:
                domain.entries = {entry for entry in domain.entries if entry.unreclaimed}  # none, unless the device failed us
                books.drop_domain(domain)


def _sample(transaction: Transaction, record: ComponentRecord, descriptors: Sequence[Hashable], domain: Domain) -> Iterator[Sample]:
    """Capture some of a component's graphs into the throwaway pool, on entries that nobody else sees."""
    assert record.routine is not None
    books = record.manager
    for descriptor in descriptors:
        with books.gate.lock:
            entry = Entry(record, descriptor, startup=False)
            entry.domain = domain
            domain.entries.add(entry)
        error = None
        try:
            capture_by_routine(transaction, entry, record.routine)
        except CaptureFailed as failure:
            if failure.kind == FailureKind.DEVICE:
                raise
            error = str(failure)
        size = domain.pool.charged if domain.pool is not None else 0
        yield Sample(record.component_id, repr(descriptor), size, books.backend.nbytes(entry.buffers), error)


def _buffers(books: Books, record: ComponentRecord) -> tuple[int, list[Sample]]:
    """Bytes of the static inputs of all startup graphs, by making each once and dropping it; and what could not be made."""
    assert record.routine is not None
    total = 0
    failed = []
    undo = UndoLog()
    try:
        books.backend.keep_generator(undo)
        for descriptor in () if record.pure_lazy else record.startup_order:
            try:
                with books.backend.allocating_mode():
                    total += books.backend.nbytes(record.routine.allocate_buffers(descriptor))
            except Exception as error:
                books.notice(error)
                if books.lost:
                    raise
                failed.append(Sample(record.component_id, repr(descriptor), 0, 0, describe(error)))
    finally:
        undo.fail()
    return total, failed
