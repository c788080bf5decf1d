"""The simulated device: what belongs to it, the calls of a user, and the clock that only tests and waiting hosts move.

For tests and programs that run without a GPU; the runtime reaches it through `SimBackend`. What a user calls is here and on the
tensors, streams, graphs and pools that it makes. The methods under "for the room" are for the other modules alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from cgstate.backends.sim.allocator import Allocator
from cgstate.backends.sim.blocks import Block, PoolId
from cgstate.backends.sim.capture import OpenCaptures
from cgstate.backends.sim.config import SimConfig
from cgstate.backends.sim.door import Door
from cgstate.backends.sim.errors import DEVICE_ASSERT
from cgstate.backends.sim.faults import Faults
from cgstate.backends.sim.generator import Generator
from cgstate.backends.sim.host import current_host, handle_getter
from cgstate.backends.sim.memory import POISON, DeviceMemory
from cgstate.backends.sim.pool import SimPool
from cgstate.backends.sim.schedule import Executor, InOrder, Schedule
from cgstate.backends.sim.streams import SimEvent, SimStream, StreamQueue, StreamTable
from cgstate.backends.sim.tensor import Nested, SimTensor, flatten
from cgstate.backends.sim.work import Draw, Kernel, Launch, Operation, Poison, Work
from cgstate.backends.sim.workspace import Library

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
        self.library = Library(self, self.config.workspace_bytes)

    # -- tensors and kernels ------------------------------------------------------------------------------------------

    def tensor(self, data: Nested) -> SimTensor:
        """A tensor with the values of ``data``, nested sequences.

        Raises:
            SimAcceleratorError: 900, an open capture forbids copies from the host, and is broken by it (facts F2, T4).
        """
        values, shape = flatten(data)
        self.faults.before("host_write")
        with self.door:
            self.captures.refuse_waiting_for(self.current_queue(), current_host())
            target = SimTensor.empty(self, shape)
            self.launch("copy_from_host", lambda: (values,), (), (target,))
            return target

    def empty(self, *shape: int) -> SimTensor:
        """A tensor with whatever is in its memory."""
        return SimTensor.empty(self, shape)

    def zeros(self, *shape: int) -> SimTensor:
        """A tensor full of zeros."""
        return self.empty(*shape).zero_()

    def rand(self, *shape: int) -> SimTensor:
        """A tensor of uniform numbers in [0, 1) from the default generator. A replayed graph draws new ones.

        Raises:
            SimGeneratorError: the generator believes in a capture that the current stream is not part of (facts F2, S2).
        """
        target = SimTensor.empty(self, shape)
        size = target.numel()
        self.faults.before("launch")
        with self.door:
            queue = self.current_queue()
            if queue.capture is None:
                start = self.generator.draw(size)
                self.submit(queue, Launch((Draw((target.view, size), 0),), start.seed, start.offset))
            else:
                draw = Draw((target.view, size), self.generator.draw_in_graph(size))
                queue.capture.record(queue, draw, (target.storage.block,))
        return target

    def launch(self, name: str, kernel: Kernel, inputs: Sequence[SimTensor], outputs: Sequence[SimTensor]) -> None:
        """Queue a kernel on the current stream, or record it. It runs later: results and device faults show when somebody waits.

        Raises:
            ValueError: a tensor of another device.
            SimAcceleratorError: 901, the capture was invalidated; or the sticky error of a lost context.
        """
        self.faults.before("launch")
        tensors = (*inputs, *outputs)
        for tensor in tensors:
            if tensor.storage.device is not self:
                raise ValueError(f"{name}: {tensor!r} is not on {self.name}")
        reads = tuple([tensor.view for tensor in inputs])
        writes = tuple([(tensor.view, tensor.numel()) for tensor in outputs])
        operation = Operation(name, kernel, reads, writes)
        with self.door:
            queue = self.current_queue()
            if queue.capture is None:
                self.submit(queue, operation)
            else:
                queue.capture.record(queue, operation, [tensor.storage.block for tensor in tensors])

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
        """Make ``stream`` the caller's current one."""
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
        """Let the device run one kernel of one stream; False when it is idle. No host waits for it."""
        with self.door.even_if_lost:
            return self.executor.step()

    def run_until(self, event: SimEvent) -> None:
        """Let the device run until ``event`` has passed. No host waits for it."""
        with self.door.even_if_lost:
            self.executor.finish_event(event)

    def synchronize(self) -> None:
        """Wait for the whole device.

        Raises:
            SimAcceleratorError: 900 while a capture is open, which breaks it (fact S2); or the sticky error of a lost context.
        """
        self.faults.before("synchronize")
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

    def flush(self) -> int:
        """Return unused cached memory to the device; the bytes returned. Waits for the device; does nothing in a capture (S2)."""
        self.faults.before("flush")
        with self.door.even_if_lost:
            return self.allocator.return_unused() if self.settle() else 0

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

    # -- for the room -------------------------------------------------------------------------------------------------

    def current_queue(self) -> StreamQueue:
        """The device's side of the current stream."""
        stream = current_host().streams.get(self.index)
        if stream is None:
            return self.streams.default
        stream.queue.check_open()
        return stream.queue

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

    def settle(self) -> bool:
        """Wait for the device so that memory can be unmapped; False, and no wait, while a capture is open."""
        if self.captures:
            return False
        self.executor.finish_all()
        return True

    def allocate(self, size: int) -> Block:
        """Memory for ``size`` cells on the current stream. Raises as `Allocator.allocate`."""
        self.faults.before("allocate")
        with self.door:
            return self.allocator.allocate(size, self.current_queue(), current_host())

    def _take_back(self, block: Block) -> None:
        queue, start, size = block.segment.queue, block.start, block.size
        self.allocator.free(block)
        if block.recorded:
            return  # its graph, and those that were captured over the same memory, may be running now
        if queue.work:
            self.executor.submit(queue, Poison(start, size))
        else:
            self.memory.cells[start : start + size] = [POISON] * size
