"""The simulated device: what belongs to it, the calls of a user, and the clock that only tests and waiting hosts move.

For tests and programs that run without a GPU; the runtime reaches it through `SimBackend`. What a user calls is here and on the
tensors, streams, graphs and pools that it makes. The methods under "for the room" are for the other modules alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from cgstate.backends.sim.allocator import Allocator
from cgstate.backends.sim.blocks import Block, PoolId
from cgstate.backends.sim.capture import OpenCaptures
from cgstate.backends.sim.config import SimConfig
from cgstate.backends.sim.door import Door
from cgstate.backends.sim.errors import DEVICE_ASSERT
from cgstate.backends.sim.faults import Faults, faulted
from cgstate.backends.sim.generator import Generator
from cgstate.backends.sim.host import current_host, handle_getter, queue_getter
from cgstate.backends.sim.memory import DeviceMemory
from cgstate.backends.sim.pool import SimPool
from cgstate.backends.sim.releases import SimReleaseMark
from cgstate.backends.sim.schedule import Executor, InOrder, Schedule
from cgstate.backends.sim.streams import SimEvent, SimStream, StreamQueue, StreamTable
from cgstate.backends.sim.tensor import Nested, SimTensor, checked, flatten
from cgstate.backends.sim.work import BorrowingOperation, Draw, Kernel, Launch, Loan, Operation, Release, Work
from cgstate.backends.sim.workspace import Library

if TYPE_CHECKING:
    from cgstate.backends.sim.recorder import Recorder

_indices = count()


class SimDevice:
    """One simulated device.

    Attributes:
        name: Process-wide unique, e.g. ``sim:0``.
        config: Its data sheet.
        faults: Where tests inject faults, and what calls were made.
        memory: Its address space; ``memory.foreign_bytes`` is what other processes hold.
        allocator: The books, for looking at.
        generator: The default random number generator.
        captures: The open captures; true while there is one.
        library: The linear algebra library and its workspaces.
        current_handle: Returns the raw handle of the caller's current stream; cheap.
        current_queue: Returns the device's side of it, for the room.
    """

    def __init__(self, config: SimConfig | None = None, schedule: Schedule | None = None) -> None:
        self.config = config or SimConfig()
        self.index = next(_indices)
        self.name = f"sim:{self.index}"
        self.current_handle = handle_getter(self.index)
        self.faults = Faults()
        self.door = Door(self._take_back)
        self.memory = DeviceMemory(self.config.capacity_bytes)
        self.allocator = Allocator(self.memory, self.settle)
        self.captures = OpenCaptures()
        self.generator = Generator(self.config.seed, lambda: bool(self.captures))
        self.executor = Executor(self.memory.cells, schedule or InOrder(), self._lose)
        self.streams = StreamTable()
        self.default_stream = SimStream(self, self.streams.default)
        self.current_queue = queue_getter(self.index, self.streams.default)
        self.library = Library(self, self.config.workspace_bytes)
        self._recorder: Recorder | None = None

    # -- tensors and kernels ------------------------------------------------------------------------------------------

    @faulted("host_write")
    def tensor(self, data: Nested) -> SimTensor:
        """A tensor with the values of ``data``, nested sequences.

        Raises:
            SimAcceleratorError: 900, an open capture forbids copies from the host, and is broken by it (facts F2, T4).
        """
        values, shape = flatten(data)
        with self.door:
            self.captures.refuse_waiting_for(self.current_queue(), current_host())
            target = SimTensor.empty(self, shape)
            self.launch("copy_from_host", lambda: (values,), (), (target,))
            return target

    def empty(self, *shape: int) -> SimTensor:
        """A tensor with whatever is in its memory."""
        return SimTensor.empty(self, checked(shape))

    def zeros(self, *shape: int) -> SimTensor:
        """A tensor full of zeros."""
        return self.empty(*shape).zero_()

    def rand(self, *shape: int) -> SimTensor:
        """A tensor of uniform numbers in [0, 1) from the default generator. A replayed graph draws new ones.

        Raises:
            SimGeneratorError: the generator believes in a capture that the current stream is not part of (facts F2, S2).
        """
        target = self.empty(*shape)
        size = target.numel()
        self.faults.before("launch")
        with self.door:
            queue = self.current_queue()
            if queue.capture is None:
                start = self.generator.draw(size)
                self.executor.submit(queue, Launch((Draw(target.target, 0),), start.seed, start.offset))
            else:
                draw = Draw(target.target, self.generator.draw_in_graph(size))
                queue.capture.record(queue, draw, (target.storage.block,))
        if self.faults.planned:
            self.faults.after("launch")
        return target

    def launch(self, name: str, kernel: Kernel, inputs: Sequence[SimTensor], outputs: Sequence[SimTensor]) -> None:
        """Queue a kernel on the current stream, or record it. It runs later: results and device faults show when somebody waits.

        Raises:
            ValueError: a tensor of another device.
            SimAcceleratorError: 901, the capture was invalidated; or the sticky error of a lost context.
        """
        self.faults.before("launch")
        queue = self.current_queue()
        blocks: list[Block] = []
        borrows = False
        for tensor in (*inputs, *outputs):
            storage = tensor.storage
            if storage.device is not self:
                raise ValueError(f"{name}: {tensor!r} is not on {self.name}")
            block = storage.block
            blocks.append(block)
            if block.segment.queue is not queue:
                borrows = True
        reads, writes = [tensor.view for tensor in inputs], [tensor.target for tensor in outputs]
        with self.door:
            if queue.capture is not None:
                queue.capture.record(queue, Operation(name, kernel, reads, writes), blocks)
            elif borrows and self.config.sanitize:
                loans = [Loan(block, block.generation) for block in blocks if block.segment.queue is not queue]
                self.executor.submit(queue, BorrowingOperation(name, kernel, reads, writes, loans))
            else:
                self.executor.submit(queue, Operation(name, kernel, reads, writes))
        if self.faults.planned:
            self.faults.after("launch")

    def manual_seed(self, seed: int) -> None:
        """Seed the default generator."""
        self.generator.manual_seed(seed)

    # -- streams ------------------------------------------------------------------------------------------------------

    def new_stream(self, *, exclusive: bool = False) -> SimStream:
        """A stream of the framework's pool, whose handles repeat (fact S1), or one with a handle of its own."""
        with self.door:
            queue = self.streams.new_exclusive() if exclusive else self.streams.pooled()
            return SimStream(self, queue, owner=exclusive)

    def current_stream(self) -> SimStream:
        """The caller's current stream."""
        return current_host().streams.get(self.index, self.default_stream)

    def set_stream(self, stream: SimStream) -> None:
        """Make ``stream`` the caller's current one.

        Raises:
            ValueError: a stream of another device.
        """
        if stream.device is not self:
            raise ValueError(f"{stream!r} is not a stream of {self.name}")
        streams = current_host().streams
        if stream.queue is self.streams.default:
            streams.pop(self.index, None)
        else:
            streams[self.index] = stream

    @contextmanager
    def on_stream(self, stream: SimStream) -> Iterator[None]:
        """Make ``stream`` current for the block."""
        before = self.current_stream()
        self.set_stream(stream)
        try:
            yield
        finally:
            self.set_stream(before)

    # -- the clock ----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let the device run one kernel of one stream, or one release callback; False when it is idle. No host waits for it."""
        with self.door.even_if_lost:
            return self.executor.step()

    def run_until(self, event: SimEvent) -> None:
        """Let the device run until ``event`` has passed. No host waits for it."""
        with self.door.even_if_lost:
            self.executor.finish_event(event)

    @faulted("synchronize")
    def synchronize(self) -> None:
        """Wait for the whole device.

        Raises:
            SimAcceleratorError: 900 while a capture is open, which breaks it (fact S2); or the sticky error of a lost context.
        """
        with self.door:
            self.captures.refuse_device_wait(current_host())
            self.executor.finish_all()
            self.door.raise_if_lost()

    def lose(self, error_code: int = DEVICE_ASSERT) -> None:
        """Lose the context (fact F7): what is queued is dropped, and every later call but destruction and `flush` raises."""
        with self.door.even_if_lost:
            self._lose(error_code)

    def _lose(self, error_code: int) -> None:
        self.door.lose(error_code)
        self.executor.drop_all()

    # -- memory -------------------------------------------------------------------------------------------------------

    def new_pool(self) -> SimPool:
        """An anchored private pool (fact P3)."""
        with self.door:
            return SimPool(self, self.allocator.mint(by_user=True), anchored=True)

    def pool_handle(self) -> PoolId:
        """A pool id that nothing anchors: latched for good once its last graph is destroyed (fact P1)."""
        with self.door:
            return self.allocator.mint(by_user=True)

    @faulted("flush")
    def flush(self) -> int:
        """Return unused cached memory to the device; the bytes returned. Waits for the device; does nothing in a capture (S2)."""
        with self.door.even_if_lost:
            return self.allocator.return_unused() if self.settle() else 0

    def flush_host(self) -> None:
        """Return unused pinned host memory, as ``torch._C._host_emptyCache``: what latched a pool there is forgotten (fact P1)."""
        with self.door.even_if_lost:
            self.allocator.return_unused_on_host()

    def allocated_bytes(self) -> int:
        """Bytes of live allocations."""
        with self.door.even_if_lost:
            return self.allocator.allocated_bytes

    def reserved_bytes(self) -> int:
        """Bytes that the allocator holds, all pools together."""
        with self.door.even_if_lost:
            return self.memory.mapped_bytes

    def free_bytes(self) -> int:
        """What the device has left for everybody; asks the device (fact F7)."""
        with self.door:
            return self.memory.free_bytes()

    def peak_allocated_bytes(self) -> int:
        """The most that `allocated_bytes` ever was, or since `reset_peaks`."""
        with self.door.even_if_lost:
            return self.allocator.peak_allocated_bytes

    def peak_reserved_bytes(self) -> int:
        """The most that `reserved_bytes` ever was, or since `reset_peaks`."""
        with self.door.even_if_lost:
            return self.allocator.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """Let both high-water marks start again from what is held now."""
        with self.door.even_if_lost:
            self.allocator.reset_peaks()

    # -- for the room -------------------------------------------------------------------------------------------------

    @property
    def recorder(self) -> Recorder | None:
        """What sees to torch code; None as long as the program has not imported torch."""
        if self._recorder is None and sys.modules.get("torch") is not None:
            from cgstate.backends.sim.recorder import Recorder

            self._recorder = Recorder(self)
        return self._recorder

    def submit(self, queue: StreamQueue, work: Work) -> None:
        """Queue ``work``, unless the stream's handle was destroyed."""
        queue.check_open()
        self.executor.submit(queue, work)

    def wait_for(self, queue: StreamQueue) -> None:
        """Block the host until ``queue`` is idle.

        Raises:
            SimAcceleratorError: 900 where an open capture forbids it, which breaks that capture (facts F2, T4).
        """
        with self.door:
            self.captures.refuse_waiting_for(queue, current_host())
            self.executor.finish(queue)
            self.door.raise_if_lost()

    def release_after(self, operations: Sequence[Operation], release: Callable[[], None]) -> None:
        """Call ``release`` some time after the queued launches of ``operations`` have ended; never, if the context is lost."""
        if self.door.error is None:
            self.executor.submit_release(Release(release, self.door.call_barred), operations)

    def mark_releases(self) -> SimReleaseMark:
        """A mark behind every release callback that is due, or will be once launches in flight have ended."""
        with self.door:
            return SimReleaseMark(self.door, self.executor, self.executor.errands())

    def settle(self) -> bool:
        """Wait for the device so that memory can be unmapped; False, and no wait, in a capture or for a kernel that asks."""
        if self.captures or self.executor.running:
            return False
        self.executor.finish_all()
        return True

    def allocate(self, size: int) -> Block:
        """Memory for ``size`` cells on the current stream. Raises as `Allocator.allocate`."""
        self.faults.before("allocate")
        with self.door:
            block = self.allocator.allocate(size, self.current_queue())
        if self.faults.planned:
            try:
                self.faults.after("allocate")
            except BaseException:
                self.door.give_back(block)
                raise
        return block

    def _take_back(self, block: Block) -> None:
        start, size = block.start, block.size
        self.allocator.free(block)
        if not block.recorded:  # else its graph, and those that were captured over the same memory, may be running now
            self.executor.poison(block, start, size)
