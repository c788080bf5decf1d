"""The explicit captures of a manager: one transaction that moves the manager's own machine."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgstate.errors import BudgetExceeded, CaptureActive, CaptureFailed, InvariantViolation, describe
from cgstate.lifecycle.states import FailureKind, ManagerState
from cgstate.runtime import memory, residency
from cgstate.runtime.budget import offers
from cgstate.runtime.memory import Comparison, MemoryEstimate, MemoryReport
from cgstate.runtime.progress import track
from cgstate.runtime.room import await_bytes
from cgstate.runtime.routines import capture_by_routine
from cgstate.runtime.transaction import Transaction, TransactionKind
from cgstate.runtime.vote import Ballot

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry

log = logging.getLogger("cgstate")


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What `GraphManager.capture_and_bind` did.

    Attributes:
        bound: By component, how many graphs were bound by this call.
        seconds: How long it took.
        memory: What the manager holds now.
        estimate: The last estimate of `GraphManager.profile_memory`, if there was one.
    """

    bound: Mapping[str, int]
    seconds: float
    memory: MemoryReport
    estimate: MemoryEstimate | None

    @property
    def comparison(self) -> Comparison | None:
        """The estimate against what is held now; None without one, or where other graphs are held than those it is about."""
        if self.estimate is None or len(self.memory.entries) != self.estimate.graphs or self.memory.retired:
            return None
        return Comparison(self.estimate.lower, self.memory.total, self.estimate.upper)


def capture_and_bind(books: Books, estimate: MemoryEstimate | None, *, progress: bool | None) -> CaptureReport:
    """See `GraphManager.capture_and_bind`; ``estimate``: the last one."""
    started = books.sync.now_ns()
    with transaction(books) as capturing:
        bound = _capture_all(capturing, estimate, progress)
    seconds = (books.sync.now_ns() - started) / 1e9
    if not capturing.committed:
        bound.clear()  # in a profile
    books.settle()
    report = CaptureReport(dict(bound), seconds, memory.report(books), estimate)
    if report.comparison is not None and report.comparison.actual > report.comparison.upper:
        log.warning("%s: %s", books.name, report.comparison)
    return report


def _capture_all(capturing: Transaction, estimate: MemoryEstimate | None, progress: bool | None) -> Counter[str]:
    """Capture what is declared and not bound; how many, by component.

    Raises:
        CaptureFailed: of kind BUDGET and before anything is captured, if by a trusted estimate of the same graphs in fresh pools
            they do not fit.
    """
    books = capturing.books
    bound: Counter[str] = Counter()
    todo: list[Entry] = []
    estimated = 0
    with books.gate.lock:
        for record in books.routine_records():
            capturing.include(record)
            if not record.pure_lazy:
                todo += [record.entry(d) for d in record.startup_order if d not in record.available]
        for entry in todo:
            residency.check_capture(entry)
        pools = [entry.domain.pool for entry in todo]
        fresh = not any(pool is not None and offers(pool) for pool in pools)  # as those of a profile
        if estimate is not None and estimate.trusted and estimate.graphs == len(todo) and fresh:
            estimated = estimate.lower
    if todo and capturing.evicts:
        _foresee(capturing, todo, estimated)
    for entry in track(todo, "Capturing graphs", show=progress):
        record = entry.component
        assert record.routine is not None
        if record.collective and not books.vote.agree(Ballot.capture, record.component_id, entry.descriptor):
            raise books.refuse("capture", "all ranks agree")
        capture_by_routine(capturing, entry, record.routine)
        bound[record.component_id] += 1
    return bound


def _foresee(capturing: Transaction, todo: Sequence[Entry], estimated: int) -> None:
    """Evict for the whole set, or nobody for any of it: where it is known not to fit, they would go in vain.

    Raises:
        CaptureFailed: it does not fit even so, by the bytes that were ``estimated``.
    """
    books = capturing.books
    with books.gate.lock:
        need = max(estimated, books.budget.need_all(todo))
    capturing.evicts = await_bytes(books, need, {entry.domain for entry in todo})
    if not estimated:
        return
    last = todo[-1]
    with books.gate.lock:
        try:
            books.budget.foresee_all(len(todo), estimated)
        except BudgetExceeded as error:
            raise CaptureFailed(FailureKind.BUDGET, last.component.component_id, last.descriptor) from error


@contextmanager
def transaction(books: Books) -> Iterator[Transaction]:
    """See `GraphManager.transaction`."""
    profile = books.profile
    if profile is not None and profile.thread == books.thread_id():
        with profile.transaction() as profiled:
            yield profiled
        return
    with books.exclusive("capture") as thread:
        capturing = Transaction(books, TransactionKind.explicit)
        begun = False
        try:
            _begin(books, thread)
            begun = True
            books.reclaimer.settle()
            books.reclaimer.finish()  # what is retired and still in flight would count against the capacity (I11)
            books.reclaimer.drop_pools()  # the peak is the larger of old and new, not their sum
            books.hear()
            yield capturing
            if not capturing.committed and not capturing.aborted:
                capturing.commit()
            with books.gate.lock:
                books.commit() if capturing.committed else books.fail()
            books.reclaimer.flush()  # warm-ups have left memory cached for the capture streams, which nobody else can use (fact P4)
        except BaseException as error:
            try:
                _end(capturing)
            except InvariantViolation:
                raise
            except Exception as problem:
                error.add_note(f"ending the transaction raised {describe(problem)}")
            except BaseException:  # an interrupt
                _end(capturing)
                raise
            if begun:
                _give_back(books, error)
            raise


def _begin(books: Books, thread: int) -> None:
    with books.gate.lock:
        books.check_open("capture")
        if books.inside_call(thread):
            raise books.refuse("capture", "this thread is not inside a component call", CaptureActive)
        books.refuse_in_profile(thread)
        if books.state is ManagerState.NEW:
            books.prepare()
        books.capture()


def _end(capturing: Transaction) -> None:
    """Something was raised: drop what is not bound, and move the manager on. May be said again."""
    books = capturing.books
    try:
        capturing.abort()
    finally:
        with books.gate.lock:
            if books.state is ManagerState.CAPTURING:
                books.commit() if capturing.committed else books.fail()


def _give_back(books: Books, error: BaseException) -> None:
    """Return what the transaction has left to the device; what that raises is noted, as the first error is the one to see."""
    if books.state is ManagerState.POISONED:
        return
    try:
        books.reclaimer.finish()
        books.reclaimer.flush()
    except InvariantViolation:
        raise
    except Exception as problem:
        error.add_note(f"giving memory back afterwards raised {describe(problem)}")
