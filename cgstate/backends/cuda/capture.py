"""One capture: begin, end, and what puts everything back when it fails (facts F1-F5, I12).

A capture that CUDA invalidated leaves three things open: the allocation routing of the device's allocator, that of the
allocator of pinned memory, and the generator's capture mode. Only one thing closes all three in torch 2.11: ending the capture
again, successfully. So an empty capture is begun behind torch's back on the same stream and the failed graph ended once more;
its reset then gives the pool back. Newer releases close all of it by themselves, and are left alone (not run on CUDA). Whether
a repair worked is judged by what is left, never by which release this is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto

import torch

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.cuda import generator
from cgstate.backends.cuda.driver import DriverError, driver
from cgstate.backends.cuda.failures import means_lost, note
from cgstate.backends.cuda.graphs import CudaGraph
from cgstate.backends.cuda.immortal import immortalise
from cgstate.backends.cuda.pools import AnyPool, CudaPool
from cgstate.backends.cuda.quiet import quiet
from cgstate.backends.cuda.streams import CudaStream, current_handle, reselect, select, selection, status_of
from cgstate.backends.undo import UndoLog
from cgstate.errors import CaptureActive, ConfigError, PoolRetired


class Phase(Enum):
    """How far a capture got."""

    new = auto()
    refused = auto()
    """torch's ``capture_begin`` raised, possibly half way."""
    open = auto()
    broken = auto()
    """It is over for CUDA, but torch's ``capture_end`` raised."""
    lost = auto()
    """It is over since the device is lost."""
    ended = auto()


def open_capture(pool: AnyPool, stream: CudaStream, mode: CaptureErrorMode, undo: UndoLog) -> CudaGraph:
    """As `base.Backend.open_capture`.

    Raises:
        CaptureActive: a capture is open on the current stream, on ``stream``, or by us on this device. Nothing was touched.
        ConfigError: ``stream`` is the default stream. Nothing was touched.
        PoolRetired: the pool was dropped, or an earlier failure left it unable to record. Nothing was touched.
    """
    _check(pool, stream)
    before = selection(stream.index)
    undo.always("restore the current stream", lambda: reselect(before))
    select(stream)
    if isinstance(pool, CudaPool) and pool.anchor is None:
        _record_anchor(pool, stream, undo)
    graph = CudaGraph()
    graph.capture = Capture(graph, pool, stream, undo)
    graph.capture.begin(mode)
    return graph


def close_capture(graph: CudaGraph) -> None:
    """As `base.Backend.close_capture`. Waits for the capture stream: a graph replayed too early drew wrong random numbers."""
    capture = graph.capture
    if capture is None or capture.phase is not Phase.open:
        raise ConfigError("this graph has no open capture")
    capture.end()
    graph.capture = None
    capture.stream.synchronize()


class Capture:
    """A capture, and the four steps that undo it.

    Attributes:
        graph: What it records into.
        pool: Where its memory comes from.
        stream: The capture stream.
        uses: The pool's use count before.
        phase: How far it got.
        kept: Whether the graph stays, whatever happens later.
    """

    def __init__(self, graph: CudaGraph, pool: AnyPool, stream: CudaStream, undo: UndoLog, *, heals: bool = True) -> None:
        torch_graph = graph.torch_graph
        if torch_graph is None:
            raise ConfigError("this graph was destroyed")
        self.graph = graph
        self.pool = pool
        self.stream = stream
        self.uses = pool.use_count()
        self.phase = Phase.new
        self.kept = False
        self._raw = torch_graph
        self._routing = True
        if heals:
            undo.on_failure("heal the generator", self._heal_generator)
        undo.on_failure("release the pool", self._release_pool)
        undo.on_failure("destroy the graph", self._destroy_graph)
        undo.on_failure("end the capture", self._stop)

    # -- the good way -------------------------------------------------------------------------------------------------

    def begin(self, mode: CaptureErrorMode) -> None:
        """Begin to record, on the current stream."""
        if not quiet.open(self.stream.index):
            raise _active(self.stream, "no capture of ours is open on the device")
        self.phase = Phase.refused
        try:
            self._raw.capture_begin(pool=self.pool.id, capture_error_mode=mode.value)  # type: ignore[arg-type]
        except RuntimeError as error:
            # Somebody else's routing of this pool is open, and ours was not added to it: not ours to end.
            self._routing = "already recording" not in str(error)
            if "use_count > 0" in str(error):  # a foreign pool that its owner let go, of which only the id was known
                raise PoolRetired("pool", repr(self.pool), "RETIRED", "begin", "its owner keeps it open") from error
            raise
        self.phase = Phase.open

    def end(self) -> None:
        """End the recording. Raises what torch raises when the capture was invalidated."""
        select(self.stream)  # the work may have left another stream current, and torch ends a capture only from its own
        try:
            self._raw.capture_end()
        except BaseException as error:
            self.phase = self._phase_after(error)
            raise
        self.phase = Phase.ended
        quiet.close(self.stream.index)

    # -- the steps of the undo log, newest first ----------------------------------------------------------------------

    def _stop(self) -> None:
        """End what is still open of it: the recording, the routing of allocations, the generator's capture mode."""
        if self.phase in (Phase.new, Phase.ended):
            return
        select(self.stream)
        try:
            if self.phase is Phase.refused and self.stream.capturing():
                self.phase = Phase.open  # interrupted just after it had begun: the stream was free before, so it is ours
            if self.phase is Phase.open:
                self._end_somehow()
            if self.phase is Phase.broken or (self.phase is Phase.refused and self._routing):
                self._raw.reset()  # enough where a failed capture cleans up behind itself
                if self._left_something():
                    self._end_again()
        except RuntimeError as error:
            if note(self.stream.index, error):
                self.phase = Phase.lost
            raise
        finally:
            if self.phase is not Phase.open:
                quiet.close(self.stream.index)

    def _destroy_graph(self) -> None:
        """Destroy the recording. One whose capture could not be ended is kept for good: its destructor aborts the process."""
        if self.kept or self.phase is Phase.new:
            return
        if self.phase is not Phase.ended:
            immortalise(self._raw)
        self.graph.destroy()

    def _release_pool(self) -> None:
        """Take back what a capture that could not be repaired still holds of the pool."""
        uses = self.pool.use_count()
        if self.phase not in (Phase.refused, Phase.broken) or self.uses is None or uses is None or uses <= self.uses:
            return
        if self._routing:
            with suppress(RuntimeError, AttributeError):  # not recording any more
                torch._C._cuda_endAllocateToPool(self.pool.index, self.pool.id)
        for _ in range(uses - self.uses):
            torch._C._cuda_releasePool(self.pool.index, self.pool.id)
        if self.phase is Phase.broken:
            self.pool.spoiled = True
            raise RuntimeError(f"{self.pool!r} cannot record any more: the allocator of pinned memory holds it open")

    def _heal_generator(self) -> None:
        """Lead the generator out of capture mode where ending the capture again did not: by a successful capture elsewhere."""
        if self.phase in (Phase.refused, Phase.broken) and generator.stuck(self.stream.index):
            select(self.stream)
            spare = CudaPool(self.stream.index)
            undo = UndoLog()
            try:
                _record_anchor(spare, self.stream, undo, heals=False)
            except BaseException:
                undo.fail()
                raise
            finally:
                spare.drop()

    # -- their parts --------------------------------------------------------------------------------------------------

    def _end_somehow(self) -> None:
        try:
            with _no_warnings():
                self.end()
        except RuntimeError:
            if self.phase is not Phase.broken:
                raise  # still open, since it was begun by another thread; or the device is lost

    def _phase_after(self, error: BaseException) -> Phase:
        """Where torch's ``capture_end`` left the capture when it raised ``error``."""
        if note(self.stream.index, error):
            return Phase.lost
        try:
            return Phase.open if self.stream.capturing() else Phase.broken
        except DriverError as answer:
            return Phase.lost if note(self.stream.index, answer) else Phase.open

    def _left_something(self) -> bool:
        uses = self.pool.use_count()
        grown = self.uses is not None and uses is not None and uses > self.uses
        return grown or generator.stuck(self.stream.index)

    def _end_again(self) -> None:
        handle, index = self.stream.handle, self.stream.index
        driver().begin_capture(handle)
        try:
            with _no_warnings():
                self._raw.capture_end()
            self.phase = Phase.ended
        except RuntimeError as error:
            if means_lost(error):
                raise  # else the next steps see what is left, and try otherwise
        finally:
            if status_of(handle, index):
                driver().discard_capture(handle)


def _check(pool: AnyPool, stream: CudaStream) -> None:
    index = stream.index
    if not stream.handle:
        raise ConfigError("the default stream cannot be captured")
    if pool.dropped or pool.spoiled:
        guard = "the pool is not dropped" if pool.dropped else "the pool can still record"
        raise PoolRetired("pool", repr(pool), "RETIRED", "begin", guard)
    if quiet.is_open(index):
        raise _active(stream, "no capture of ours is open on the device")
    # torch would go ahead in both cases: abort the process later, or break both captures.
    if status_of(current_handle(index), index):
        raise _active(stream, "the current stream is not capturing")
    if stream.capturing():
        raise _active(stream, "the capture stream is not capturing")


def _active(stream: CudaStream, guard: str) -> CaptureActive:
    return CaptureActive("stream", f"{stream.handle:#x} of cuda:{stream.index}", "CAPTURING", "open_capture", guard)


def _record_anchor(pool: CudaPool, stream: CudaStream, undo: UndoLog, *, heals: bool = True) -> None:
    """Record the pool's anchor graph; ``stream`` is current. It is not undone with the capture that needed it first."""
    graph = CudaGraph()
    capture = Capture(graph, pool, stream, undo, heals=heals)
    capture.begin(CaptureErrorMode.thread_local)
    generator.cell(stream.index).zero_()
    capture.end()
    capture.kept = True
    pool.anchor, graph.torch_graph = graph.torch_graph, None


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Silence torch on empty graphs: those of a clean-up are meant to be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
