"""Residency: memory that graphs depend on may go for a while (sleep modes), and nothing may touch it meanwhile.

Suspending drains first: no new lease on what depends on the memory, those of others end, the device finishes. Resuming may say that
memory came back elsewhere; then the graphs that knew the old place are retired before calls are let in again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cgstate.backends.base import Backend, Event, Stream
from cgstate.errors import CaptureActive, ConfigError, LeaseOutstanding, NotResident
from cgstate.lifecycle.states import EntryState, ManagerState, PoolKind
from cgstate.runtime.dependency import DependencyRecord, checked_names, declare, declared, dependents, invalidate
from cgstate.runtime.ending import await_leases, check_timeout
from cgstate.runtime.witness import Notice

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import ComponentRecord


# -- what calls ask -------------------------------------------------------------------------------------------------------


def missing(record: ComponentRecord) -> tuple[str, ...]:
    """Names of suspended memory that a component depends on; the lock is held."""
    dependencies = record.manager.dependencies.values()
    return tuple(each.name for each in dependencies if each.suspended and record.component_id in each.components)


def refusal(record: ComponentRecord, machine: str, entity: str, state: str, event: str) -> NotResident:
    """The refusal that names what is missing; the lock is held."""
    return NotResident(machine, entity, state, event, "dependencies resident", missing(record))


def check(record: ComponentRecord) -> None:
    """Refuse a call whose memory is not there; the lock is held.

    A closed manager does not know any more. While `suspend` still waits for calls, what these call themselves is answered.

    Raises:
        NotResident: something that the component depends on is suspended.
    """
    books = record.manager
    if record.resident or books.state is ManagerState.CLOSED or (books.draining and books.holds_lease(books.thread_id())):
        return
    raise refusal(record, "component", record.name, record.state, "call")


def check_capture(entry: Entry) -> None:
    """Refuse to capture what would bake in memory that is not there; the lock is held.

    Raises:
        NotResident: something that the component depends on is suspended.
    """
    if not entry.component.resident:
        raise refusal(entry.component, "entry", entry.name, entry.state, "capture_begin")


def refresh(records: Iterable[ComponentRecord]) -> None:
    """Look again whether components have all that they need, after something was suspended, resumed or declared."""
    for record in records:
        resident = not missing(record)
        if resident is record.resident:
            continue
        record.note_resident(resident)
        record.manager.tell(record, Notice.resident, record.resident)


def inherit(record: ComponentRecord) -> None:
    """A component is recorded inside the capture of another: that one's graph bakes in the same memory; the lock is held."""
    books = record.manager
    if books.gate.holder != books.thread_id():
        return  # a capture of somebody else's, of which nothing is known here
    capturing = {
        entry.component
        for domain in books.domains.values()
        for entry in domain.entries
        if entry.state is EntryState.CAPTURING and not entry.recorded and domain.kind is not PoolKind.throwaway
    }
    for dependency in books.dependencies.values():
        if record.component_id in dependency.components:
            dependency.components |= {outer.component_id for outer in capturing}


def depend(record: ComponentRecord, names: Sequence[str]) -> None:
    """Let a component depend on more; the lock is held.

    Raises:
        LeaseOutstanding: it is in use, and one of the dependencies is suspended. Nothing was changed.
    """
    books = record.manager
    gone = [name for name in names if name in books.dependencies and books.dependencies[name].suspended]
    if gone and _in_use(record):
        raise books.refuse("entry", f"no lease held on {record.name}, since {gone} are suspended", LeaseOutstanding)
    declare(books, names, record)
    refresh((record,))


class EagerCalls:
    """Eager calls of one component, which touch the memory it depends on without a lease. Guarded by the device's lock.

    Attributes:
        threads: Calls in progress, by thread.
        streams: Streams that calls came on since the device was last waited for, by raw handle.
        tracked: Whether streams are remembered: the component depends on something that could be taken away.
    """

    __slots__ = ("streams", "threads", "tracked")

    def __init__(self) -> None:
        self.tracked = False
        self.threads: dict[int, int] = {}
        self.streams: dict[int, Stream] = {}

    def enter(self, thread: int, calls: dict[int, int] | None, backend: Backend) -> None:
        """Count a call in, here and among ``calls``, and remember the stream that its work goes to."""
        if self.tracked and (handle := backend.current_handle(backend.index)) not in self.streams:
            self.streams[handle] = backend.current_stream()
        number, among = self.threads.get(thread, 0) + 1, 0 if calls is None else calls.get(thread, 0) + 1
        self.threads[thread] = number  # no call from here on: an interrupt must not come in between
        if calls is not None:
            calls[thread] = among

    def leave(self, thread: int, calls: dict[int, int] | None) -> None:
        """Count it out again, likewise; the caller tells those who wait."""
        if self.threads[thread] > 1:
            self.threads[thread] -= 1
        else:
            del self.threads[thread]
        if calls is None:
            return
        if calls[thread] > 1:
            calls[thread] -= 1
        else:
            del calls[thread]


# -- what the manager does ------------------------------------------------------------------------------------------------


def suspend(books: Books, names: Sequence[object], timeout: float | None) -> None:
    """See `GraphManager.suspend`."""
    with books.exclusive("suspend"):
        _take_away(books, "suspend", names, timeout)


def resume(books: Books, names: Sequence[object], restore: Callable[[], object] | None, moved: bool | Iterable[str]) -> int:
    """See `GraphManager.resume`."""
    if restore is not None and not callable(restore):
        raise ConfigError(f"restore must be a function, not {restore!r}")
    elsewhere = names if moved is True else () if moved is False else checked_names("moved", moved)
    if strangers := [name for name in elsewhere if name not in names]:
        raise ConfigError(f"moved names {strangers}, which are not resumed; resumed are {list(names)}")
    with books.exclusive("resume"):
        with books.gate.lock:
            books.check_open("resume")
            for dependency in _named(books, "resume", names):
                if not dependency.suspended:
                    raise books.refuse("resume", f"{dependency.name} suspended")
        if restore is not None:
            try:
                restore()
            except BaseException as error:
                books.notice(error)
                raise
        with books.gate.lock:
            books.check_open("resume")  # restoring may have lost the device
            retired = invalidate(books, declared(books, elsewhere))
            _give_back(books, declared(books, names))
        return retired


@contextmanager
def mutating(books: Books, names: Sequence[object], timeout: float | None) -> Iterator[int]:
    """See `GraphManager.mutating`."""
    with books.exclusive("mutate"):
        dependencies = _take_away(books, "mutate", names, timeout)
        try:
            with books.gate.lock:
                retired = invalidate(books, dependencies)
            books.reclaimer.settle()
            books.hear()
            yield retired
        finally:
            try:
                with books.gate.lock:
                    _give_back(books, dependencies)
            except BaseException:  # an interrupt
                with books.gate.lock:
                    _give_back(books, dependencies)
                raise


def _named(books: Books, event: str, names: Sequence[object]) -> list[DependencyRecord]:
    if not names:
        raise ConfigError(f"{event} takes the names of dependencies, and got none")
    return declared(books, names)


def _take_away(books: Books, event: str, names: Sequence[object], timeout: float | None) -> list[DependencyRecord]:
    """Make memory not resident once nothing uses it any more; the manager is ours. Nothing is changed if anything refuses."""
    check_timeout(timeout)
    if books.backend.capturing():
        raise books.refuse(event, "the caller's stream is not capturing", CaptureActive)
    gate = books.gate
    taken = False
    try:
        with gate.lock:
            books.check_open(event)
            dependencies = _named(books, event, names)
            for dependency in dependencies:
                if dependency.suspended:
                    raise books.refuse(event, f"{dependency.name} resident")
            records = dependents(books, dependencies)
            _refuse_own(books, event, records)
            taken = True
            for dependency in dependencies:
                dependency.suspended = True
            refresh(records)
        with gate.lock:
            await_leases(books, event, timeout, lambda: sum(map(_in_use, records)))
            while not gate.free:
                gate.wait()  # waiting for the device could break the capture
            marks, streams = _in_flight(books, event, records)
        for mark in marks:
            mark.synchronize()
        for stream in streams:
            stream.synchronize()
    except BaseException as error:
        if taken:
            with gate.lock:
                books.judge(error)
                _give_back(books, dependencies)
        raise
    with gate.lock:
        for record in records:
            record.eager.streams.clear()
    return dependencies


def _refuse_own(books: Books, event: str, records: Sequence[ComponentRecord]) -> None:
    thread = books.thread_id()
    leases = (lease for lease in books.held_leases if lease.thread == thread)
    if (
        books.inside_call(thread)
        or any(lease.entry.component in records for lease in leases)
        or any(thread in record.eager.threads for record in records)
    ):
        raise books.refuse(event, "this thread holds no lease on what depends on it", LeaseOutstanding)


def _in_use(record: ComponentRecord) -> int:
    return sum(entry.leases for entry in record.entries.values()) + sum(record.eager.threads.values())


def _in_flight(books: Books, event: str, records: Sequence[ComponentRecord]) -> tuple[list[Event], list[Stream]]:
    """What the device may still have to do for these components: marks behind their replays, streams of eager calls."""
    turns = {entry.pool.turn for record in records for entry in record.entries.values() if entry.graph is not None}
    turns |= {retired.pool.turn for retired in books.reclaimer.queue if retired.entry.component in records}
    marks: list[Event] = []
    for turn in turns:
        fence = turn.fence()
        if fence is None:
            raise books.refuse(event, f"the stream of the last replay in {turn.name} is not capturing", CaptureActive)
        marks += fence
    streams = {handle: stream for record in records for handle, stream in record.eager.streams.items()}
    if any(stream.capturing() for stream in streams.values()):
        raise books.refuse(event, "the streams of the last eager calls are not capturing", CaptureActive)
    return marks, list(streams.values())


def _give_back(books: Books, dependencies: Sequence[DependencyRecord]) -> None:
    """Make memory resident again, all of it or none; the lock is held."""
    try:
        _resume(books, dependencies)
    except BaseException:  # an interrupt
        _resume(books, dependencies)
        raise


def _resume(books: Books, dependencies: Sequence[DependencyRecord]) -> None:
    for dependency in dependencies:
        dependency.suspended = False
    refresh(dependents(books, dependencies))
    books.gate.notify()
