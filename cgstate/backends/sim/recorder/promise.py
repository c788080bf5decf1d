"""What an operation's results will look like, without computing them: torch's meta kernels say.

Results of point-wise operations, reductions, softmax and matrix products follow from shapes alone, and most of norms. For all
others the kernel that a device has decides about layouts too, so torch's fake tensors are asked, which know the device. Either may
cost a millisecond, so answers are remembered.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from cgstate.backends.sim.recorder.overload import Overload, mapped, tensors_in

_CPU = torch.device("cpu")
_PYTHON = torch._C.DispatchKey.Python
_PYTHON_SNAPSHOT = torch._C.DispatchKey.PythonTLSSnapshot
_REMEMBERED = 4096
_answers: dict[Hashable, Promise] = {}
_dtypes: dict[Hashable, torch.dtype] = {}
_fake_lock = Lock()


class Promise(NamedTuple):
    """What a call will return.

    Attributes:
        result: Its return value, with tensors that have no data.
        aliases: By new tensor: whether it is a view of an operand, though the schema does not say so.
        resizes: Whether an operand that it writes gets another shape.
    """

    result: Any
    aliases: tuple[bool, ...]
    resizes: bool


def promise(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Promise:
    """What the call will return. Called with torch's dispatch disabled.

    Raises:
        NotImplementedError: torch cannot tell.
        Exception: what the operation has against its operands, in torch's words.
    """
    named = tuple((name, _layout(value)) for name, value in kwargs.items())
    key = (overload.call, torch.get_default_dtype(), _layout(args), named)
    try:
        answer = _answers.get(key)
    except TypeError:  # an operand without a hash
        return _ask(overload, args, kwargs)
    if answer is None:
        answer = _like_operands(overload, args, kwargs) if overload.pointwise else _ask(overload, args, kwargs)
        for remembered in (_answers, _dtypes):
            if len(remembered) >= _REMEMBERED:
                remembered.clear()
        _answers[key] = answer
    return answer


def _like_operands(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Promise:
    """Of a point-wise operation: where all operands lie alike and without gaps, so does the result, whatever their shape.

    Then only its type has to be asked for, and that once for all shapes: each asking takes up to a millisecond.
    """
    operands = list(tensors_in([*args, *kwargs.values()]))
    size = operands[0].size() if operands else ()
    if not size or any(tensor.size() != size or not tensor.is_contiguous() for tensor in operands):
        return _ask(overload, args, kwargs)
    key = (overload.call, torch.get_default_dtype(), _kind(args), tuple((name, _kind(value)) for name, value in kwargs.items()))
    dtype = _dtypes.get(key)
    if dtype is None:
        answer = _ask(overload, args, kwargs)
        made = answer.result
        if made.size() == size and made.is_contiguous() and not answer.aliases[0]:
            _dtypes[key] = made.dtype
        return answer
    return Promise(torch.empty(size, dtype=dtype, device="meta"), (False,), False)


def _ask(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Promise:
    operands = {id(tensor): tensor for tensor in tensors_in([*args, *kwargs.values()])}
    by_shape = not operands or overload.follows_shapes(operands.values())
    twins = {key: (_meta if by_shape else _fake)(tensor) for key, tensor in operands.items()}

    def twin(tensor: Tensor) -> Tensor:
        return twins[id(tensor)]

    call = _call if by_shape else _call_fake
    result = call(overload.call, mapped(args, twin), {name: mapped(value, twin) for name, value in kwargs.items()})
    given = {tensor.untyped_storage()._cdata for tensor in twins.values()}
    return Promise(
        result,
        tuple(tensor.untyped_storage()._cdata in given for tensor in overload.new_tensors(result) if tensor is not None),
        any(twins[key].size() != tensor.size() for key, tensor in operands.items()),
    )


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("meta")
    return func(*args, **kwargs)


@cache
def _fakes() -> FakeTensorMode:
    mode = FakeTensorMode(allow_fallback_kernels=False)
    mode.cache_enabled = False  # answers are remembered here already
    return mode


def _fake(tensor: Tensor) -> Tensor:
    return FakeTensor(_fakes(), _meta(tensor), _CPU)


def _call_fake(func: Any, args: Any, kwargs: Any) -> Any:
    enabled = torch._C._SetExcludeDispatchKeyGuard
    with _fake_lock, _disable_current_modes(), enabled(_PYTHON, False), enabled(_PYTHON_SNAPSHOT, False), _fakes():
        try:
            return func(*args, **kwargs)
        except (UnsupportedFakeTensorException, UnsupportedOperatorException) as error:
            raise NotImplementedError from error


def _kind(value: Any) -> Hashable:
    """An operand as far as the type of a point-wise result depends on it."""
    if isinstance(value, Tensor):
        return value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    return type(value), value


def _layout(value: Any) -> Hashable:
    """An operand as far as the layout of results depends on it. Equal numbers of different types are different operands."""
    if isinstance(value, Tensor):
        return tuple(value.size()), value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_layout, value))
    return type(value), value
