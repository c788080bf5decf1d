"""Torch tensors in the simulated device's memory.

An `ArenaTensor` is a real CPU tensor: address, strides, aliasing and storage are its own. Only the operations on it are looked at
first: in a capture they are recorded, outside they wait for what is queued on the current stream. What reads values without going
through torch's dispatcher waits here, and is refused in a capture as a copy to the host is (fact F2). Addresses handed out
(``data_ptr``, ``untyped_storage``) are the user's own affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cgstate.backends.sim.recorder.recorder import Recorder


class ArenaTensor(Tensor):
    """A tensor in a block of the simulated allocator.

    Attributes:
        recorder: Of its device.
        host_scalar: Whether the capture made it of a number of the host, which a GPU's kernels take as an argument.
    """

    recorder: Recorder
    host_scalar: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own subclasses do

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Let the device of the first tensor see to the operation."""
        return _first(args, kwargs or {}).recorder.operate(func, types, args, kwargs or {})

    # -- to the host --------------------------------------------------------------------------------------------------

    def on_host(self) -> Tensor:
        """The same memory as a plain tensor, once the current stream is idle.

        Raises:
            SimAcceleratorError: 900, an open capture forbids waiting, and is broken by it (facts F2, T4).
        """
        return self.recorder.read(self)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """A copy outside the device's memory. Raises as `on_host`."""
        return self.on_host().clone(memory_format=memory_format)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """As on a GPU: ``to("cpu")`` copies to the host, and raises as `on_host`.

        A `torch.device` object is that of some tensor here, which is called ``cpu`` too: that stays on the device.
        """
        wanted = kwargs.get("device", args[0] if args else None)
        if isinstance(wanted, str) and torch.device(wanted).type == "cpu":
            plain = self.on_host()
            moved = plain.to(*args, **kwargs)
            return moved.clone() if moved is plain else moved
        return super().to(*args, **kwargs)

    def tolist(self) -> Any:
        """The values. Raises as `on_host`."""
        return self.on_host().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """The memory as an array. Raises as `on_host`."""
        return self.on_host().numpy(force=force)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.on_host().__array__(*args, **kwargs)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.on_host().__dlpack__(**kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A pickle holds the values, and becomes a plain tensor, or a plain parameter."""
        return self._as_before(self.on_host()).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        """A copy in the device's memory, which is a parameter if this is one."""
        if id(self) not in memo:
            memo[id(self)] = self._as_before(self.recorder.place(self.on_host()))
        return cast(Tensor, memo[id(self)])

    def _as_before(self, copied: Tensor) -> Tensor:
        """What autograd and modules see in this tensor, of another one."""
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(copied, self.requires_grad)
        return copied.requires_grad_(self.requires_grad and self.is_leaf)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no types
        return repr(self.on_host())

    def __format__(self, spec: str) -> str:
        return format(self.on_host(), spec)


def is_known(kind: type[Tensor]) -> bool:
    """Whether tensors of that class are plain ones or the simulator's, and not somebody's who sees to operations himself."""
    return issubclass(kind, ArenaTensor) or kind.__torch_dispatch__ is Tensor.__torch_dispatch__


def _first(args: Any, kwargs: Any) -> ArenaTensor:
    """Some arena tensor among the operands; there is one."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, ArenaTensor):
            return value
        if isinstance(value, list | tuple):
            for part in value:
                if isinstance(part, ArenaTensor):
                    return part
    raise AssertionError("an operation on arena tensors has one among its operands")
