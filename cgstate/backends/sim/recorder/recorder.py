"""The torch side of one simulated device: what becomes of an operation on tensors in its memory.

Called by `SimBackend`, by `SimGraph` (a capture begins and ends) and by arena tensors. Made when the device first meets torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from cgstate.backends import autocast
from cgstate.backends.sim.errors import CAPTURE_UNSUPPORTED, SimAcceleratorError, SimUnrecordable
from cgstate.backends.sim.host import current_host
from cgstate.backends.sim.recorder import randomness, statics
from cgstate.backends.sim.recorder.arena import Arena
from cgstate.backends.sim.recorder.outside import OutsideTable
from cgstate.backends.sim.recorder.overload import describe, drops_nothing, mapped, tensors_in, waits
from cgstate.backends.sim.recorder.placing import PlacingMode
from cgstate.backends.sim.recorder.recording import RecordingMode
from cgstate.backends.sim.recorder.tensor import ArenaTensor, is_known

if TYPE_CHECKING:
    from cgstate.backends.sim.capture import Capture
    from cgstate.backends.sim.device import SimDevice
    from cgstate.backends.sim.streams import StreamQueue

V = TypeVar("V", bound="Tensor | nn.Module")


class Recorder:
    """What the device knows of torch.

    Attributes:
        device: The device.
        arena: Its memory as torch sees it.
        outside: Other memory that its graphs use.
    """

    def __init__(self, device: SimDevice) -> None:
        self.device = device
        self.arena = Arena(device)
        device.executor.also_poison = self.arena.poison
        self.outside = OutsideTable()
        self._modes: dict[Capture, RecordingMode] = {}
        self._left: list[RecordingMode] = []

    # -- captures -----------------------------------------------------------------------------------------------------

    def open(self, capture: Capture) -> None:
        """Record what this thread does on the streams of ``capture`` from now on."""
        self._left = [mode for mode in self._left if not mode.leave()]
        mode = self._modes[capture] = RecordingMode(self)
        mode.__enter__()  # type: ignore[no-untyped-call]

    def close(self, capture: Capture) -> None:
        """Stop. No-op for a capture that was not opened here.

        If another thread ends it, the mode stays with the one that began it, and changes nothing until that begins another.
        """
        mode = self._modes.pop(capture, None)
        if mode is not None and not mode.leave():
            self._left.append(mode)

    def check_complete(self, capture: Capture) -> None:
        """Break a capture in which torch was imported: what it did there was not seen."""
        if capture not in self._modes:
            capture.invalidate(current_host(), SimUnrecordable("import torch", "import it before the capture begins"))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What warm-up and capture run under: alike, so that compiled code is left out of both."""
        mode = RecordingMode(self)
        mode.__enter__()  # type: ignore[no-untyped-call]
        try:
            with torch.no_grad(), autocast.without_cache():
                yield
        finally:
            mode.leave()  # whatever a capture that failed has left above it

    # -- the backend's questions --------------------------------------------------------------------------------------

    generator_mark = staticmethod(randomness.mark)
    keep_generator = staticmethod(randomness.keep)

    forget_casts = staticmethod(autocast.forget)
    autocast = staticmethod(partial(autocast.dtype_of, "cpu"))

    def check_static(self, tensor: Tensor) -> None:
        """As `statics.check`."""
        statics.check(self, tensor)

    # -- operations outside a capture ---------------------------------------------------------------------------------

    def operate(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operation with arena tensors: record it, or run it once the current stream is idle.

        Of a thread that takes part in somebody else's capture, only such operations are seen: a new tensor that it makes from
        nothing is memory outside.

        That it has run when the call returns is one of the schedules that a device has, whatever the others are.

        Raises:
            ValueError: it involves a tensor of another device.
            SimGeneratorError: it draws random numbers, and the generator believes in a capture (facts F2, S2).
            SimAcceleratorError: it needs values, and an open capture forbids waiting; or the sticky error of a lost context.
        """
        if not isinstance(func, torch._ops.OpOverload) or not all(map(is_known, types)):
            return NotImplemented
        queue = self.device.current_queue()
        if queue.capture is not None:  # a thread that did not open the capture, on a stream that takes part
            with RecordingMode(self):
                return func(*args, **kwargs)
        for tensor in tensors_in((*args, *kwargs.values())):
            self.check_own(func, tensor)
        with self.device.door:
            self._wait_before(func, queue, args, kwargs)
            with torch._C._DisableTorchDispatch():
                return mapped(func(*args, **kwargs), self.wrapped)

    def check_own(self, func: torch._ops.OpOverload, tensor: Tensor) -> None:
        """Raise `ValueError` for an operand of ``func`` that lies on another simulated device."""
        if isinstance(tensor, ArenaTensor) and tensor.recorder is not self:
            raise ValueError(f"{func.name()}: a tensor of {tensor.recorder.device.name}, not {self.device.name}")

    def _wait_before(self, func: Any, queue: StreamQueue, args: Any, kwargs: Any) -> None:
        overload = describe(func)
        if overload.draws and not drops_nothing(func, args, kwargs):
            self.device.generator.draw(1)
        if waits(overload, args, kwargs):
            self.device.wait_for(queue)
        elif not (overload.aliases or overload.relabels):
            self.device.executor.finish(queue)

    # -- tensors ------------------------------------------------------------------------------------------------------

    def wrapped(self, tensor: Tensor) -> Tensor:
        """An arena tensor, if that is where ``tensor`` lies; else itself. Called with torch's dispatch disabled."""
        if isinstance(tensor, ArenaTensor) or self.arena.block_of(tensor) is None:
            return tensor
        wrapped = Tensor._make_subclass(ArenaTensor, tensor, False)
        wrapped.recorder = self
        return wrapped

    def read(self, tensor: Tensor) -> Tensor:
        """The memory of an arena tensor as a plain one, once the current stream is idle. Raises as `SimDevice.wait_for`."""
        device = self.device
        device.faults.before("host_read")
        with device.door:
            device.wait_for(device.current_queue())
        with torch._C._DisableTorchDispatch():
            plain = torch.empty(0, dtype=tensor.dtype)
            return plain.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    def place(self, value: V, *, empty: bool = False) -> V:
        """A copy of a tensor in the device's memory, or a module whose parameters and buffers were moved there.

        ``empty``: with whatever is in that memory.

        Raises:
            ConfigError: a tensor of another kind than the simulator works on; of a module nothing was moved.
            SimAcceleratorError: 900, in a capture, which is broken by it: a copy from pageable memory.
            SimOutOfMemory: as `Allocator.allocate`; of a module nothing was moved.
        """
        if isinstance(value, Tensor):
            return cast(V, self._place_tensor(value, empty))
        self._place_module(value)
        return value

    def _place_tensor(self, tensor: Tensor, empty: bool = False) -> Tensor:
        device = self.device
        statics.check_plain(tensor)
        source = tensor.on_host() if isinstance(tensor, ArenaTensor) and tensor.recorder is not self else tensor
        with device.door, torch._C._DisableTorchDispatch(), torch.no_grad():
            device.captures.refuse_inside(device.current_queue(), current_host(), SimAcceleratorError(CAPTURE_UNSUPPORTED))
            dense = torch.empty_like(tensor, device="meta")  # in the same order, without gaps or overlaps
            target = self.arena.empty_strided(tuple(dense.size()), dense.stride(), dense.dtype)
            if not empty:
                device.executor.finish(device.current_queue())  # the memory's last user, poison included
                target.copy_(source.detach())
            return self.wrapped(target)

    def _place_module(self, module: nn.Module) -> None:
        homes = [(tensors, name) for part in module.modules() for tensors in (part._parameters, part._buffers) for name in tensors]
        moved: dict[int, Tensor] = {}  # a tied weight stays tied
        for tensors, name in homes:
            tensor = tensors[name]
            if tensor is not None and id(tensor) not in moved:
                placed = self._place_tensor(tensor)
                moved[id(tensor)] = nn.Parameter(placed, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else placed
        for tensors, name in homes:
            if tensors[name] is not None:
                tensors[name] = moved[id(tensors[name])]  # type: ignore[assignment]  # a parameter for a parameter

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Let the tensors that this thread makes be ordinary ones in the device's memory."""
        with torch.inference_mode(False), torch.no_grad(), PlacingMode(self):
            yield
