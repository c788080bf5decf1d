"""What a capture does with an operation of torch: nothing is computed, the kernel is noted with addresses, and results get memory.

Shapes, strides and types of results come from torch's meta kernels. Views are made as always, since no data is touched. What a GPU
would refuse is refused with its error, what cannot be noted faithfully with `SimUnrecordable`; both break the capture, so that
nobody who swallows the error gets a graph that lacks something.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from cgstate.backends.sim.errors import CAPTURE_UNSUPPORTED, SimAcceleratorError, SimError, SimUnrecordable
from cgstate.backends.sim.host import current_host
from cgstate.backends.sim.memory import Span
from cgstate.backends.sim.recorder.operation import TorchOperation
from cgstate.backends.sim.recorder.overlap import may_overlap, rehearse
from cgstate.backends.sim.recorder.overload import Overload, describe, drops_nothing, mapped, operand_at, tensors_in, waits
from cgstate.backends.sim.recorder.promise import promise
from cgstate.backends.sim.recorder.tensor import ArenaTensor, is_known

if TYPE_CHECKING:
    from cgstate.backends.sim.blocks import Block
    from cgstate.backends.sim.capture import Capture
    from cgstate.backends.sim.recorder.recorder import Recorder
    from cgstate.backends.sim.streams import StreamQueue

_MASKS = (torch.bool, torch.uint8)
_VIEW_TRACKING = torch._C.DispatchKey.ADInplaceOrView
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class RecordingMode(TorchDispatchMode):
    """Sees every operation of the thread that captures. On a stream that is not being captured, it changes nothing."""

    supports_higher_order_operators = True  # else torch would refuse them, in words about this class

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def leave(self) -> bool:
        """Take it off this thread's modes, whichever were entered since; False if it is not among them."""
        modes: list[Any] = _get_current_dispatch_mode_stack()
        if self not in modes:
            return False
        above = modes[modes.index(self) + 1 :]
        for _ in above:
            _pop_mode()
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in above:
            _push_mode(mode)
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the operation.

        Raises:
            SimAcceleratorError: 900, a GPU would not capture it; or 901, the capture was invalidated.
            SimUnrecordable: this recorder cannot.
            SimOutOfMemory: no memory for its results.
        """
        kwargs = kwargs or {}
        queue = self._recorder.device.current_queue()
        if queue.capture is None:
            return func(*args, **kwargs)
        queue.capture.check()
        call = _Call(self._recorder, queue, queue.capture, func, args, kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            call.unrecordable("it is a higher-order operation")
        call.overload = overload = describe(func)
        if overload.composite:
            # As eager does: in C++ (there may be another in Python), and with views that know what they are views of.
            with self, torch._C._SetExcludeDispatchKeyGuard(_VIEW_TRACKING, False):
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        with self._recorder.device.door, torch._C._DisableTorchDispatch():
            return call.record()


class _Call:
    """One operation on its way into a capture.

    Attributes:
        overload: What is known of the operation.
    """

    __slots__ = ("_args", "_blocks", "_by_address", "_capture", "_func", "_kwargs", "_queue", "_recorder", "overload")

    overload: Overload

    def __init__(self, recorder: Recorder, queue: StreamQueue, capture: Capture, func: Any, args: Any, kwargs: Any) -> None:
        self._recorder = recorder
        self._queue = queue
        self._capture = capture
        self._func = func
        self._args = args
        self._kwargs = kwargs
        self._blocks: list[Block] = []
        self._by_address: dict[int, Tensor] = {}

    def record(self) -> Any:
        """Note it; what the operation returns. Called with torch's dispatch disabled."""
        overload = self.overload
        operands = list(tensors_in([*self._args, *self._kwargs.values()]))
        if self._is_meta(operands):
            return self._func(*self._args, **self._kwargs)
        self._check_operands(operands)
        self._check_data()
        if overload.name == "aten::lift_fresh":
            return self._lifted(self._args[0])
        if overload.moves_memory:
            self.unrecordable("it gives a tensor other memory")
        if overload.aliases or overload.relabels:
            return self._view()
        return self._kernel()

    # -- what is refused ----------------------------------------------------------------------------------------------

    def refused(self, why: str) -> NoReturn:
        """Refuse it with the error of a GPU."""
        self._break(SimAcceleratorError(CAPTURE_UNSUPPORTED, f"{self._name()}: {why}"))

    def unrecordable(self, why: str, cause: BaseException | None = None) -> NoReturn:
        """Refuse it, since it cannot be noted faithfully."""
        self._break(SimUnrecordable(self._name(), why), cause)

    def _break(self, error: SimError, cause: BaseException | None = None) -> NoReturn:
        error.__cause__ = cause
        self._recorder.device.captures.refuse_inside(self._queue, current_host(), error)
        raise error

    def _name(self) -> str:
        return self._func.name() if isinstance(self._func, torch._ops.OpOverload) else str(self._func)

    def _is_meta(self, operands: list[Tensor]) -> bool:
        """Whether it is about shapes alone, whoever asks."""
        device = self._kwargs.get("device")
        if device is not None and torch.device(device).type == "meta":
            return True
        return bool(operands) and all(tensor.is_meta for tensor in operands)

    def _autocasts(self) -> bool:
        """Whether autocast may be converting a weight that it keeps: for that it lets autograd record, whoever has forbidden it."""
        return self._func is torch.ops.aten._to_copy.default and torch.is_autocast_cache_enabled()

    def _check_operands(self, operands: Iterable[Tensor]) -> None:
        recording = torch.is_grad_enabled() and not self._autocasts()
        for tensor in operands:
            self._recorder.check_own(self._func, tensor)
            if not is_known(type(tensor)):
                self.unrecordable(f"a {type(tensor).__name__} is no plain tensor")
            self._check_plain(tensor)
            if recording and tensor.requires_grad:
                self.unrecordable("autograd would record it; capture under torch.no_grad()")
        device = self._kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            self.unrecordable(f"its result would be on {device}")
        if self._kwargs.get("pin_memory"):
            self.unrecordable("its result would be in pinned memory")
        if self._kwargs.get("generator") is not None:
            self.unrecordable("it draws from a generator of its own")

    def _check_plain(self, tensor: Tensor) -> None:
        self._check_layout(tensor)
        if not tensor.is_cpu:
            self.unrecordable(f"it involves a tensor on {tensor.device}")

    def _check_layout(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            self.unrecordable("it involves a sparse, nested or quantised tensor")
        if tensor.is_conj() or tensor.is_neg():
            self.unrecordable("it involves a lazily conjugated or negated tensor")

    def _check_data(self) -> None:
        """Refuse what the host has to see values for."""
        overload, args = self.overload, self._args
        if waits(overload, args, self._kwargs):
            self.refused("the host would have to wait for values")
        if overload.indexes and any(index.dtype in _MASKS for index in tensors_in(args[1])):
            value = args[2] if len(args) > 2 else None
            filled = isinstance(value, ArenaTensor) and hasattr(value, "host_scalar")
            if not filled or self._accumulates():
                self.refused("the number of elements that a mask selects is not known to the host")
        if overload.name == "aten::lift_fresh" and args[0].dim():
            self.refused("a copy from pageable memory of the host")

    def _accumulates(self) -> bool:
        return bool(self._kwargs.get("accumulate", self._args[3] if len(self._args) > 3 else False))

    # -- what is noted ------------------------------------------------------------------------------------------------

    def _view(self) -> Any:
        for tensor in tensors_in(self._args):
            if isinstance(tensor, torch.nn.Parameter):
                self._outside(tensor)  # its views are no parameters, and are its memory
        made = mapped(self._func(*self._args, **self._kwargs), self._recorder.wrapped)
        for tensor in tensors_in(made):
            self._check_plain(tensor)
        return made

    def _lifted(self, value: Tensor) -> Tensor:
        """A number of the host, baked in."""
        made = self._placed(value)
        self._note(
            TorchOperation(describe(torch.ops.aten.clone.default), (value.clone(),), {}, self._targets([made]), self._spans())
        )
        made.host_scalar = True
        return made

    def _kernel(self) -> Any:
        overload = self.overload
        try:
            promised = promise(overload, self._args, self._kwargs)
        except NotImplementedError as error:
            self.unrecordable("there is no meta kernel to tell the shape of its results", error)
        if any(promised.aliases):
            if all(promised.aliases):
                return self._view()
            self.unrecordable("some of its results are views of its operands, and some are not")
        if may_overlap(overload, self._args, self._kwargs):
            if overload.draws:
                self.unrecordable("it draws random numbers into memory that overlaps")
            rehearse(overload, self._args, self._kwargs)
        if promised.resizes:
            self.unrecordable("it gives a tensor other memory")
        for tensor in tensors_in(promised.result):
            self._check_layout(tensor)
        if overload.typed and self._kwargs.get("dtype") is None:
            self._kwargs = {**self._kwargs, "dtype": promised.result.dtype}  # torch's default may be another when it is replayed
        return self._emit(promised.result)

    def _emit(self, promised: Any) -> Any:
        overload = self.overload
        values = [
            mapped(value, self._placed) if operand is None else operand_at(operand, self._args, self._kwargs)
            for value, operand in zip(overload.each(promised), overload.returned, strict=True)
        ]
        result = values[0] if len(values) == 1 else tuple(values) if values else None
        placed = list(overload.new_tensors(result))
        if overload.draws and not drops_nothing(self._func, self._args, self._kwargs):
            self._recorder.device.generator.draw_in_graph(sum(tensor.numel() for tensor in tensors_in(values)))
            self._capture.in_host_order = True
        if overload.kernel:
            args = mapped(self._args, self._address)
            kwargs = {name: mapped(value, self._address) for name, value in self._kwargs.items()}
            self._note(TorchOperation(overload, args, kwargs, self._targets(placed), self._spans()))
        return result

    def _note(self, operation: TorchOperation) -> None:
        self._capture.record(self._queue, operation, self._blocks)

    def _spans(self) -> list[Span]:
        return [slice(block.start, block.start + block.size) for block in self._blocks]

    # -- memory -------------------------------------------------------------------------------------------------------

    def _placed(self, like: Tensor) -> ArenaTensor:
        made = self._recorder.wrapped(self._recorder.arena.empty_strided(tuple(like.size()), like.stride(), like.dtype))
        assert isinstance(made, ArenaTensor)
        return made

    def _targets(self, placed: Iterable[Tensor | None]) -> list[Tensor | None]:
        return [None if tensor is None else self._address(tensor) for tensor in placed]

    def _address(self, tensor: Tensor) -> Tensor:
        """An operand as the graph keeps it; one that occurs twice is one tensor there too, since kernels look at that."""
        known = self._by_address.get(id(tensor))
        if known is None:
            arena = self._recorder.arena
            block = arena.block_of(tensor)
            if block is None:
                known = self._outside(tensor)
            else:
                self._blocks.append(block)
                known = arena.by_address(tensor)
            self._by_address[id(tensor)] = known
        return known

    def _outside(self, tensor: Tensor) -> Tensor:
        if not tensor.untyped_storage().nbytes():
            return tensor
        outside = self._recorder.outside.of(tensor)
        self._capture.outside.setdefault(outside, self._name())
        if not outside.constant:
            self._capture.in_host_order = True
        return outside.by_address(tensor)
