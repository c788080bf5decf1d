"""The first block of a fresh pool: one piece of memory that all temporaries of the pool's first graph fit into, or of all graphs.

In a pool without one, each large temporary that finds no free block gets a segment of its own. Segments never merge, so together
they take more than the temporaries ever need at once. Inside one block freed neighbours merge again, and what is captured later
finds its place there, too. How large the block has to be depends on the layout, not only on what lives at once: a block of the
peak of live bytes may be too small, and what overflows it then comes on top. So sizes are tried, each in a pool of its own that is
given back at once, and only one that was seen to do is used.

A block for the first graph serves the others where their temporaries fit where those of a larger one have been. Where they do not,
such as for heights and widths of which neither is the larger in both, each brings segments of its own, whatever the order. Only a
profile knows, since it runs them all; it then looks for one block in which the whole set fits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from cgstate.backends.base import Backend, MemoryPool, SegmentView, Stream
from cgstate.backends.undo import UndoLog
from cgstate.lifecycle.states import FailureKind
from cgstate.runtime.failure import clear_frames
from cgstate.runtime.segment_sizes import GRANULE, LARGE_SEGMENT, OWN_LIMIT

FINEST = 32
"""Part of the range of possible sizes that two tried ones differ by at least; five trials after the first at most."""


@dataclass(frozen=True, slots=True)
class FirstBlock:
    """How a fresh pool gets its first block.

    Attributes:
        known: Bytes of the block by descriptor, as far as it was looked for; 0: none helps.
        descriptor: Of the graph that is captured first.
        common: Bytes of the block in which the pool's whole set fits; 0 where the first graph's own serves the others.
        may_search: Whether to look for it where it is not known: a miss must not wait for that, and collective work must not be
            run as often as one rank finds worth it.
    """

    known: dict[Hashable, int]
    descriptor: Hashable
    may_search: bool
    common: int = 0

    def make(self, backend: Backend, pool: MemoryPool, stream: Stream, run: Callable[[], object], undo: UndoLog) -> None:
        """Leave the block in ``pool``, free for the capture that comes next; nothing where none helps or no memory is left.

        Args:
            backend: The device.
            pool: Nothing was captured into it yet.
            stream: The capture stream; current, and the work has just been warmed up on it.
            run: Runs the work once more.
            undo: Told of what trials have to give back.

        Raises:
            BaseException: what ``run`` raised, unless that was for want of memory; or what the device did.
        """
        size = self.common or self.known.get(self.descriptor)
        if size is None:
            if not self.may_search:
                return
            size = smallest_block(backend, stream, run, undo) if _worth_trying(backend, stream) else 0
            if size is None:
                return
            self.known[self.descriptor] = size
        if size:
            make_room(backend)
            try:
                backend.hold(pool, stream, size)  # and let it go: it stays in the pool
            except Exception as error:
                if backend.failure_kind(error) is not FailureKind.OOM:
                    raise


def smallest_block(backend: Backend, stream: Stream, run: Callable[[], object], undo: UndoLog) -> int | None:
    """Bytes of the smallest block in which one run of the work was seen to fit; 0 if none smaller than separate segments did.

    None if a run found no memory: then nothing is known.

    Runs the work up to six times, on the current stream, which must be ``stream``; returns the allocator's cache to the device
    after each.

    Raises:
        BaseException: what ``run`` raised, unless that was for want of memory; or what the device did.
    """
    unit = backend.mebibyte
    granule = GRANULE * unit
    tried: list[MemoryPool] = []
    undo.on_failure("give back what trials of a first block took", partial(_give_back, backend, tried))
    trial = partial(_trial, backend, stream, run, tried)
    make_room(backend)  # the warm-up has left some cached
    separate = trial(0)
    if separate is None:
        return None
    if len(separate) < 2:
        return 0
    largest = max(separate)  # of one temporary, unless it is a segment that several share
    low = max(OWN_LIMIT * unit, largest if largest > LARGE_SEGMENT * unit else 0) // granule * granule
    high = sum(separate) // granule * granule
    step = max(granule, (high - low) // FINEST)
    found = 0
    while high - low > step:
        size = -(-(low + high) // (2 * granule)) * granule
        segments = trial(size)
        if segments is None:
            return None
        if len(segments) == 1:
            found = high = size
        else:
            low = size
    return found


def smallest_common_block(
    backend: Backend,
    stream: Stream,
    runs: Sequence[Callable[[MemoryPool], object]],
    low: int,
    high: int,
    undo: UndoLog,
    *,
    guess: int = 0,
) -> int:
    """Bytes of the smallest block in which a set of graphs was seen to fit; 0 if none up to ``high`` was.

    Small sizes are tried first, as there the first graphs tell already that not all fit. What trials take is returned in the end,
    or once it is more than ``high``.

    Args:
        backend: The device.
        stream: The capture stream; current, and all the work has been warmed up on it.
        runs: Each graph's work, in order of capture: runs it with memory from a pool, and gives what a graph would keep.
        low: Bytes in which the set does not fit, or hardly more than its largest graph needs.
        high: Bytes that it takes in separate segments.
        undo: Told of what trials have to give back.
        guess: Bytes to try first.

    Raises:
        BaseException: what a run raised, unless that was for want of memory; or what the device did.
    """
    granule = GRANULE * backend.mebibyte
    tried: list[MemoryPool] = []
    undo.on_failure("give back what trials of a common block took", partial(_give_back, backend, tried))
    found = taken = 0
    while high - low > max(granule, high // FINEST):
        middle = (low + high) // 2
        size = guess or -(-(middle if found else min(middle, 2 * low)) // granule) * granule
        guess = 0
        taken += size
        if taken > high:
            _give_back(backend, tried)
            taken = size
        if _all_fit(backend, stream, runs, tried, size):
            found = high = size
        else:
            low = size
    _give_back(backend, tried)
    return found


def _all_fit(
    backend: Backend, stream: Stream, runs: Sequence[Callable[[MemoryPool], object]], tried: list[MemoryPool], nbytes: int
) -> bool:
    """Whether a set of graphs takes no large segment beside a first block of ``nbytes``. The first that does ends the trial."""
    pool = backend.new_pool()
    tried.append(pool)
    kept = list[object]()
    try:
        backend.hold(pool, stream, nbytes)
        block = sum(segment.reserved for segment in _large(pool.segments(), stream))
        held = backend.device_memory().reserved
        for run in runs:
            kept.append(run(pool))
            now = backend.device_memory().reserved
            if now > held and sum(segment.reserved for segment in _large(pool.segments(), stream)) > block:
                return False
            held = now
        return True
    except BaseException as error:
        clear_frames(error)  # else what they hold would keep the trial's memory
        if backend.failure_kind(error) is FailureKind.OOM:
            return False
        raise
    finally:
        kept.clear()
        pool.drop()


def bytes_alone(backend: Backend, run: Callable[[MemoryPool], object], undo: UndoLog) -> int:
    """Bytes that one run takes where nothing is free; returned at once.

    Raises:
        BaseException: what the run raised, or the device.
    """
    tried = [backend.new_pool()]
    undo.on_failure("give back what a run alone took", partial(_give_back, backend, tried))
    try:
        run(tried[0])
        return sum(segment.reserved for segment in tried[0].segments())
    except BaseException as error:
        clear_frames(error)
        raise
    finally:
        _give_back(backend, tried)


def make_room(backend: Backend) -> None:
    """Give back what the allocator has cached if the device has less left: in a capture the allocator does not do that itself.

    Most of it is what warm-ups have taken on streams of their own, and a capture takes as much where its pool has nothing free.
    """
    now = backend.device_memory()
    if now.reserved - backend.allocated_bytes() > now.free:
        backend.flush()


def _worth_trying(backend: Backend, stream: Stream) -> bool:
    """Whether the warm-up has left free memory in at least two large segments, outside of all pools."""
    return sum(segment.live < segment.reserved for segment in _large(backend.cached_segments(stream), stream)) > 1


def _trial(backend: Backend, stream: Stream, run: Callable[[], object], tried: list[MemoryPool], nbytes: int) -> list[int] | None:
    """Bytes of the large segments that one run takes in a pool with a first block of ``nbytes``; None if it found no memory."""
    pool = backend.new_pool()
    tried.append(pool)
    try:
        if nbytes:
            backend.hold(pool, stream, nbytes)
        with backend.allocating_from(pool, stream):
            run()
        return [segment.reserved for segment in _large(pool.segments(), stream)]
    except BaseException as error:
        clear_frames(error)  # else what they hold would keep the trial's memory
        if backend.failure_kind(error) is FailureKind.OOM:
            return None
        raise
    finally:
        _give_back(backend, tried)


def _large(segments: Sequence[SegmentView], stream: Stream) -> list[SegmentView]:
    return [segment for segment in segments if segment.stream == stream.handle and not segment.small]


def _give_back(backend: Backend, tried: list[MemoryPool]) -> None:
    """Drop the pools of trials, and return their memory; goes on where it was broken off."""
    for pool in tried:
        pool.drop()
    if tried:
        backend.flush()
        tried.clear()
