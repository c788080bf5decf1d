"""Graphs: what a capture leaves behind, and its way through begin, end, replay and destruction.

A `SimGraph` is the object that the runtime holds; its `Recording` is what the device instantiates. The steps of `capture_begin` and
`capture_end` stand in the order of the real one, because a failure half way leaves exactly what was done before it (facts P2, F2,
F4, F5). Each of the ``undo`` methods heals one of these and does nothing where nothing is to be healed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim.allocator import Route
from cgstate.backends.sim.blocks import PoolId
from cgstate.backends.sim.errors import (
    CAPTURE_UNSUPPORTED,
    SimAcceleratorError,
    SimError,
    SimMemoryError,
)
from cgstate.backends.sim.faults import Faults, faulted
from cgstate.backends.sim.host import Host, current_host
from cgstate.backends.sim.streams import SimStream, StreamQueue
from cgstate.backends.sim.work import Launch, Loan, Operation

if TYPE_CHECKING:
    from cgstate.backends.sim.capture import Capture
    from cgstate.backends.sim.device import SimDevice

_DRIVER_BYTES_A_GRAPH = 74
_DRIVER_BYTES_A_NODE = 2.6
"""What the driver keeps for a graph, scaled like all sizes: 100 KiB for 10 nodes, 0.58 MiB for 200 (fact P8)."""


class Baked(NamedTuple):
    """Memory from outside the graph's pool whose address it has recorded."""

    loan: Loan
    address: int
    first_use: int
    """Index of the first operation that touches it."""


class Recording:
    """An instantiated graph."""

    __slots__ = ("advance", "baked", "driver_bytes", "epoch", "in_host_order", "loans", "operations", "outside")

    def __init__(self, capture: Capture, advance: int) -> None:
        self.operations: tuple[Operation, ...] = tuple(capture.operations)
        self.advance = advance
        """How far one replay moves the generator's offset."""
        self.epoch = -1
        """The allocator's epoch in which nothing of `baked` was stale."""
        self.baked = [Baked(Loan(block, generation), block.start, first) for block, (generation, first) in capture.touched.items()]
        self.loans = tuple(entry.loan for entry in self.baked)
        for loan in self.loans:
            loan.block.baked += 1
        self.outside = capture.outside
        self.in_host_order = capture.in_host_order
        self.driver_bytes = _DRIVER_BYTES_A_GRAPH + int(_DRIVER_BYTES_A_NODE * len(self.operations))

    def stale(self) -> list[Baked]:
        """What of its outside memory was given back since, whoever has it now."""
        return [entry for entry in self.baked if entry.loan.block.generation != entry.loan.generation]

    def release(self) -> None:
        """Forget the outside memory."""
        for loan in self.loans:
            loan.block.baked -= 1
        self.baked.clear()


class SimGraph:
    """A graph of the simulated device."""

    def __init__(self, device: SimDevice) -> None:
        self._device = device
        self._capture: Capture | None = None
        self._recording: Recording | None = None
        self._pool_id: PoolId | None = None
        self._route: Route | None = None
        self._holds_use = False
        self._holds_host_use = False
        self._routes_on_host = False
        self._ended = False
        self._stream: SimStream | None = None
        self._retained: list[Callable[[], None]] = []

    @property
    def device(self) -> SimDevice:
        """The device that it runs on."""
        return self._device

    @property
    def faults(self) -> Faults:
        """The fault injector of its device."""
        return self._device.faults

    @property
    def pool_id(self) -> PoolId | None:
        """The pool that it was captured into; None before that."""
        return self._pool_id

    @property
    def stream(self) -> SimStream | None:
        """The stream that its capture began on; None before that."""
        return self._stream

    @property
    def nodes(self) -> int:
        """Kernels of one replay."""
        return 0 if self._recording is None else len(self._recording.operations)

    def retain(self, release: Callable[[], None]) -> None:
        """Let the graph keep something alive, as ``cudaGraphRetainUserObject`` does; ``release`` is how the driver lets go of it.

        The driver calls it once, at some step of the device's clock after the graph was destroyed (or its capture failed) and its
        last launch has ended: inside any call of any thread that moves the clock, open captures or not. No call waits for it but at
        a mark of `SimDevice.mark_releases`. It must not block, nor call the device (800); what it raises goes to
        `sys.unraisablehook`. When the context is lost first, it is never called: CUDA promises nothing then, and launches do not
        end any more.

        Raises:
            SimError: it has no capture, open or ended.
            SimAcceleratorError: the sticky error of a lost context.
        """
        with self._device.door:
            if self._capture is None and not self._ended:
                raise SimError("nothing to retain it: this graph has no capture")
            self._retained.append(release)

    def capture_begin(self, pool_id: PoolId | None, mode: CaptureErrorMode) -> None:
        """Begin to record the current stream, with memory of ``pool_id`` (None: of a new pool).

        Raises:
            SimError: this graph is in use, or the current stream is the default one.
            SimInternalAssert: the pool is latched (P1).
            SimRecordingError: a recording into it was never ended (F5).
            SimAcceleratorError: 401, the stream is being captured; or the sticky error of a lost context.
        """
        device, faults = self._device, self._device.faults
        with device.door:
            if self._ended or self._capture is not None:
                raise SimError("this graph already owns a capture; make a new one")
            with faults.around("begin_generator"):
                device.generator.begin_capture()  # P2: before anything that can fail
            stream, origin = device.current_stream(), device.current_queue()
            if origin.handle == 0:
                raise SimError("graphs must be captured on a non-default stream")
            allocator = device.allocator
            self._stream = stream
            self._pool_id = allocator.mint(by_user=False) if pool_id is None else pool_id
            with faults.around("retain_pool"):
                allocator.retain(self._pool_id)
                self._holds_use = True
            with faults.around("begin_route"):
                route = Route(self._pool_id, self._claims)
                allocator.begin_route(route)
                self._route = route
            with faults.around("retain_host_pool"):
                allocator.retain_on_host(self._pool_id)
                self._holds_host_use = True
                allocator.begin_route_on_host(self._pool_id)
                self._routes_on_host = True
            with faults.around("begin_stream_capture"):
                self._capture = device.captures.begin(origin, self._pool_id, mode, current_host())
                if device.recorder is not None:
                    device.recorder.open(self._capture)

    def capture_end(self) -> None:
        """End the recording and instantiate it.

        Raises:
            SimError: nothing is being captured here, or the current stream is not the one that it began on; it goes on then.
            SimAcceleratorError: 908, another thread began it, and it goes on; 901, it was invalidated, or 904, a side stream was
                not joined: the capture is over then, and what `capture_begin` did is not undone (facts F2-F5).
        """
        device, faults = self._device, self._device.faults
        with device.door:
            capture = self._capture
            if capture is None:
                raise SimError("capture_end() called before capture_begin()")
            if device.current_queue() is not capture.origin:
                raise SimError("a capture must end on the stream it began on")
            capture.check_ender(current_host())
            with faults.around("end_stream_capture"):
                if device.recorder is not None:
                    device.recorder.check_complete(capture)
                verdict = capture.verdict()
                self.undo_capture()
            if verdict is not None:
                self._let_go(())
                raise verdict from capture.refusal
            self.undo_route()
            advance = device.generator.end_capture()
            self._ended = True
            with faults.around("instantiate"):
                self._recording = Recording(capture, advance)
                device.memory.charge_graph(self._recording.driver_bytes)

    @faulted("graph_replay")
    def replay(self) -> None:
        """As `base.Graph.replay`.

        Raises:
            SimError: never captured, or destroyed (fact F9).
            SimGeneratorError: it draws random numbers while a capture is open (fact S2).
            SimAcceleratorError: 900, the current stream is being captured; or the sticky error of a lost context.
            SimMemoryError: memory that it has recorded was given back; see `SimConfig.sanitize`.
        """
        device = self._device
        with device.door:
            recording = self._recording
            if recording is None:
                raise SimError("Called CUDAGraph::replay without a preceding successful capture.")
            start = device.generator.replay(recording.advance)
            queue = device.current_queue()
            if queue.capture is not None:
                device.captures.refuse_inside(queue, current_host(), SimAcceleratorError(CAPTURE_UNSUPPORTED))
            fault_at = None
            if recording.epoch != device.allocator.epoch:
                fault_at = self._judge_stale(recording)
            if recording.outside and device.config.sanitize:
                _check_outside(recording)
            loans = recording.loans if device.config.sanitize else ()
            device.executor.submit(queue, Launch(recording.operations, start.seed, start.offset, fault_at, loans))
            if recording.in_host_order:
                device.executor.finish(queue)

    def _judge_stale(self, recording: Recording) -> int | None:
        """What the memory that was given back means for a launch: fine, an error, or a fault when the device gets there."""
        device = self._device
        stale = recording.stale()
        if not stale:
            recording.epoch = device.allocator.epoch
            return None
        if device.config.sanitize:
            first = min(stale, key=lambda entry: entry.first_use)
            raise SimMemoryError(
                f"replay uses {len(stale)} block(s) that were given back since the capture; "
                f"'{recording.operations[first.first_use].name}' would touch address {first.address}"
            )
        for at, operation in enumerate(recording.operations):
            if not all(device.memory.is_mapped(span.start, span.stop) for span in operation.spans()):
                return at
        return None

    @faulted("graph_destroy")
    def destroy(self) -> None:
        """As `base.Graph.destroy`: replays in flight finish (T2); inside a capture it breaks that capture (T3)."""
        with self._device.door.even_if_lost:
            self.discard()

    def discard(self) -> None:
        """Destroy it as part of another call."""
        self._destroy(current_host())

    def _destroy(self, host: Host) -> None:
        device = self._device
        recording, self._recording = self._recording, None
        ended, self._ended = self._ended, False
        if ended and device.config.clear_workspaces_on_destroy and self._stream is not None:
            device.library.clear_stream(self._stream.queue)
        if ended or device.config.release_pool_on_destroy:
            self.undo_pool_use()
        if recording is not None:
            recording.release()
            device.memory.discharge_graph(recording.driver_bytes)
            device.captures.break_by_destruction(host)
        self._let_go(() if recording is None else recording.operations)

    def _let_go(self, operations: tuple[Operation, ...]) -> None:
        """Leave to the driver what was retained, for after the queued launches of ``operations``."""
        retained, self._retained = self._retained, []
        for release in retained:
            self._device.release_after(operations, release)

    def __del__(self) -> None:
        unended = self._holds_use and self._device.config.release_pool_on_destroy
        if self._recording is not None or self._ended or unended:
            # A destructor may run inside any other call, and resurrecting is allowed once: the next call finishes it.
            self._device.door.when_next_entered(partial(self._destroy, current_host()))

    # -- what a failed capture leaves behind, one by one ----------------------------------------------------------------

    def undo_capture(self) -> None:
        """End the stream capture, sound or not."""
        if self._capture is not None:
            self._device.captures.end(self._capture)
            if self._device.recorder is not None:
                self._device.recorder.close(self._capture)
            self._capture = None

    def undo_route(self) -> None:
        """Stop routing allocations to its pool and to the twin in host memory."""
        self._undo_device_route()
        if self._pool_id is not None and self._routes_on_host:
            self._routes_on_host = False
            self._device.allocator.end_route_on_host(self._pool_id)

    def undo_pool_use(self) -> None:
        """Give back the use of the pool and of its twin in host memory."""
        self._undo_device_use()
        if self._pool_id is not None and self._holds_host_use:
            self._holds_host_use = False
            self._device.allocator.release_on_host(self._pool_id)

    def undo_on_device_only(self) -> None:
        """Stop routing, and give the use back, in the device's allocator alone: what a user can do by hand (facts F4, F5)."""
        self._undo_device_route()
        self._undo_device_use()

    def _undo_device_route(self) -> None:
        if self._route is not None:
            self._device.allocator.end_route(self._route)
            self._route = None

    def _undo_device_use(self) -> None:
        if self._pool_id is not None and self._holds_use:
            self._holds_use = False
            self._device.allocator.release(self._pool_id)

    def _claims(self, queue: StreamQueue) -> bool:
        """Whether an allocation belongs to this capture."""
        capture = self._capture
        return capture is not None and queue.capture is capture and not capture.broken


def _check_outside(recording: Recording) -> None:
    for memory, operation in recording.outside.items():
        if memory.freed():
            raise SimMemoryError(f"replay uses memory that its owner has freed since the capture: '{operation}' of {memory.name}")
