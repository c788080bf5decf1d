"""Workspaces of the linear algebra library: one by (handle, stream), born in whichever pool is in use when first needed (fact W1).

Called by the kernels that need one, by the device and by the backend. A graph bakes the address in and does not own the memory:
that is how evicting one graph makes another write into somebody else's tensor (facts W2, W3, W5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cgstate.backends.sim.blocks import PoolId
from cgstate.backends.sim.errors import SimLibraryError
from cgstate.backends.sim.host import Host, current_host
from cgstate.backends.sim.memory import ITEM_BYTES
from cgstate.backends.sim.streams import StreamQueue
from cgstate.backends.sim.tensor import SimTensor

if TYPE_CHECKING:
    from cgstate.backends.sim.device import SimDevice


class _Workspace:
    """One workspace.

    Attributes:
        tensor: All of it.
    """

    __slots__ = ("_halves", "tensor")

    def __init__(self, tensor: SimTensor) -> None:
        self.tensor = tensor
        self._halves: dict[int, tuple[SimTensor, SimTensor]] = {}  # there are few sizes, and each product asks

    def halves(self, size: int) -> tuple[SimTensor, SimTensor] | None:
        """Its first ``size`` elements, and as many behind them; None where it has not so many."""
        found = self._halves.get(size)
        if found is None and 2 * size <= self.tensor.numel():
            found = self._halves[size] = self.tensor.narrow(0, 0, size), self.tensor.narrow(0, size, size)
        return found


class Library:
    """The library's state on one device. Handles belong to threads and are used again when a thread is gone."""

    def __init__(self, device: SimDevice, workspace_bytes: int) -> None:
        self._device = device
        self._size = workspace_bytes // ITEM_BYTES
        self._handles: WeakKeyDictionary[Host, int] = WeakKeyDictionary()
        self._made = 0
        self._workspaces: dict[tuple[int, int], _Workspace] = {}

    def workspace(self) -> _Workspace:
        """The workspace of the calling thread for its current stream, made if it is the first time.

        Raises:
            SimLibraryError: there is no handle yet and the stream is being captured, which breaks the capture (fact F8).
            SimOutOfMemory: no memory for it.
        """
        with self._device.door:
            queue = self._device.current_queue()
            key = (self._handle(queue), queue.handle)
            found = self._workspaces.get(key)
            if found is None:
                found = self._workspaces[key] = _Workspace(SimTensor.empty(self._device, (self._size,)))
            return found

    def _handle(self, queue: StreamQueue) -> int:
        host = current_host()
        handle = self._handles.get(host)
        if handle is None:
            unused = set(range(self._made)) - set(self._handles.values())
            if not unused:
                if queue.capture is not None:
                    self._device.captures.refuse_inside(queue, host, SimLibraryError())
                unused = {self._made}
                self._made += 1
            handle = self._handles[host] = min(unused)
        return handle

    def bytes_in(self, pool_id: PoolId) -> int:
        """Bytes of the workspaces that were born in one pool."""
        blocks = [workspace.tensor.storage.block for workspace in self._workspaces.values()]
        return sum(block.size for block in blocks if block.segment.pool.id == pool_id) * ITEM_BYTES

    def clear(self) -> None:
        """Free every workspace of the device, all streams (fact W3); graphs that have one baked in are not asked."""
        self._workspaces.clear()

    def clear_stream(self, queue: StreamQueue) -> None:
        """Free the workspaces of one stream."""
        for key in [key for key in self._workspaces if key[1] == queue.handle]:
            del self._workspaces[key]
