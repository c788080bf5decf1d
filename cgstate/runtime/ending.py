"""How a manager stops serving: drained, released, closed, or dropped without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from cgstate.errors import ConfigError, LeaseOutstanding
from cgstate.lifecycle.states import EntryState, ManagerState, PoolState

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.preparing import AnyComponent


@contextmanager
def drained(books: Books, event: str, timeout: float | None) -> Iterator[None]:
    """Refuse new leases, wait for those that other threads hold, then run the block; the lock is held.

    Raises:
        ConfigError: ``timeout`` is no number of seconds.
        LeaseOutstanding: this thread holds a lease itself, or others outlasted ``timeout`` seconds. Serving goes on as before.
    """
    check_timeout(timeout)
    thread = books.thread_id()
    _refuse_own(books, event, thread)
    was_serving = books.serving
    try:
        if was_serving:
            books.drain()
        await_leases(books, event, timeout, lambda: books.leases)
        yield
    finally:
        if was_serving and books.state is ManagerState.SERVING and not books.serving:
            books.undrain()


def check_timeout(timeout: float | None) -> None:
    """Refuse what is no time to wait.

    Raises:
        ConfigError: neither None nor a number of seconds.
    """
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= TIMEOUT_MAX
    ):
        raise ConfigError(f"timeout must be None or 0 to {TIMEOUT_MAX:.0f} seconds, not {timeout!r}")


def await_leases(books: Books, event: str, timeout: float | None, held: Callable[[], int]) -> None:
    """Wait, with the lock held, until ``held`` counts nothing any more; new leases are refused already.

    Raises:
        LeaseOutstanding: something outlasted ``timeout`` seconds.
        BaseException: what an observer has raised before it would wait.
    """
    gate = books.gate
    deadline = None if timeout is None else books.sync.now_ns() + int(timeout * 1e9)
    try:
        books.draining = True
        gate.notify()  # whoever waits for the manager and holds a lease must not go on waiting
        while number := held():
            left = None if deadline is None else (deadline - books.sync.now_ns()) / 1e9
            if left is not None and left <= 0:
                raise books.refuse(event, f"no lease held after {timeout} s; {number} are", LeaseOutstanding)
            books.overhear()  # nobody knows for how long
            gate.wait(left)
            gate.end_dropped()
    finally:
        books.draining = False


def refuse_own_lease(books: Books, event: str) -> None:
    """Refuse an ending by a thread that holds a lease, before it waits for anything.

    Raises:
        LeaseOutstanding: it does.
    """
    with books.gate.lock:
        books.gate.end_dropped()
        books.end_forgotten()
        _refuse_own(books, event, books.thread_id())


def _refuse_own(books: Books, event: str, thread: int) -> None:
    if books.holds_lease(thread):
        raise books.refuse(event, "this thread holds no lease", LeaseOutstanding)


def release(books: Books, timeout: float | None) -> None:
    """See `GraphManager.release`."""
    with books.heard():
        refuse_own_lease(books, "release")
    with books.exclusive("release"):
        books.check_open("release")
        if books.state is not ManagerState.SERVING:
            raise books.refuse("release", "the manager is serving")
        with books.gate.lock, drained(books, "release", timeout):
            books.check_open("release")  # the device may have been lost meanwhile
            retire_everything(books)
            books.release(leases=books.leases)
        return_bytes(books)


def close(books: Books, timeout: float | None) -> bool:
    """See `GraphManager.close`; False if that was done already."""
    check_timeout(timeout)  # also where it has no lease to wait for
    if books.ended():
        return False
    with books.heard():
        refuse_own_lease(books, "close")
    with books.exclusive("close"):
        if books.ended():
            return False  # another thread was faster
        if not books.closed():
            with books.gate.lock, drained(books, "close", timeout):
                if not books.lost:
                    retire_everything(books)
                books.close(leases=books.leases)
        return_bytes(books, mark=True)
        books.reclaimer.await_releases(timeout)
        if books.lost:  # before, or noticed only now
            books.reclaimer.let_go()
        with books.gate.lock:
            books.part()
            books.given_back = not any(pool.state is PoolState.RETIRED for pool in books.pools)  # else the next call goes on
    return True


def return_bytes(books: Books, *, mark: bool = False) -> None:
    """Reclaim and flush; waits for replays still running on the device. Nothing if that is lost. ``mark``: as `Reclaimer.flush`."""
    if not books.lost:
        books.reclaimer.finish()
    if books.lost:
        return
    books.reclaimer.flush(mark=mark)
    with books.gate.lock:
        forget_everything(books)


def retire_everything(books: Books) -> None:
    """Retire every domain, and give components their first states back where nothing holds them; the lock is held."""
    for domain in list(books.domains.values()):
        books.evict_domain(domain, counted=False)
    for pool in list(books.pools):
        books.retire_pool(pool)
    for record in books.components.values():
        if record.state in (EntryState.EVICTED, EntryState.FAILED) or (record.state is EntryState.BOUND and not record.bound):
            record.forget()


def forget_everything(books: Books) -> None:
    """After reclaiming: startup entries that have nothing left start anew, remembered failures are dropped; the lock is held."""
    books.negative.forget()
    books.budget.forget()
    for entry in books.entries():
        if entry.state in (EntryState.EVICTED, EntryState.FAILED) and not entry.unreclaimed:
            entry.forget()


def abandon(books: Books, components: MutableSequence[AnyComponent]) -> None:
    """A manager was dropped without `close`.

    Runs as a finalizer: in any thread, at any moment, perhaps under the device's lock, inside a capture or in the middle of another
    destruction. So it waits for no lock: the components turn eager, and the rest goes to the capture gate. It is taken from there
    at once if nothing is in the way, waiting for the device as `close` does; else by the next reclaimer.
    """
    for component in components:
        component.detach()
    if books.ended():
        return
    gate = books.gate
    gate.orphans.append(lambda by: _bury(books, wait=by is books))
    if not gate.held() and gate.lock.acquire(blocking=False):
        quiet = gate.free and not gate.destroying
        gate.lock.release()
        if quiet:
            with books.heard():
                books.reclaimer.settle()


def _bury(books: Books, *, wait: bool) -> bool:
    """Retire and reclaim what an abandoned manager left; True when nothing is left of it."""
    gate = books.gate
    if books.backend.capturing():
        return False  # somebody else's capture, of which the gate knows nothing
    with gate.lock:
        if not gate.free:
            return False
        if not books.lost:
            retire_everything(books)
    if books.lost:
        books.reclaimer.let_go()
    else:
        if wait and not books.leases:
            books.reclaimer.await_device()  # perhaps nobody else ever comes by
        books.reclaimer.settle_own()
        with gate.lock:
            if books.reclaimer.queue or books.leases:
                return False
        books.reclaimer.drop_pools()
    with gate.lock:
        if books.state in (ManagerState.NEW, ManagerState.PREPARED, ManagerState.SERVING, ManagerState.POISONED):
            books.close(leases=0)
    if not books.lost:
        books.reclaimer.drop_pools()  # the homes of workspaces, which nobody uses any more
    with gate.lock:
        books.part()
        books.given_back = True
    return True
