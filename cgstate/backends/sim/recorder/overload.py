"""What the recorder has to know of an operation of torch, read off its schema and tags where they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_UNINITIALISED = frozenset(
    {
        "aten::empty.memory_format",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)
"""Memory as it is: no kernel."""

_MOVES_MEMORY = ("aten::set_", "aten::resize_", "aten::_resize_")
"""Operations that give a tensor other memory."""

_INDEXING = frozenset(
    {
        "aten::index.Tensor",
        "aten::_unsafe_index.Tensor",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index_put",
    }
)
"""Here it is a mask among the indices that makes a shape of data."""

_WAITS = frozenset(
    {
        "aten::_linalg_check_errors",  # the end of inv, solve, cholesky, lu_factor, ldl_factor
        "aten::_linalg_eigh",
        "aten::_linalg_eigvals",
        "aten::_linalg_svd",
        "aten::linalg_eig",
        "aten::linalg_pinv",
        "aten::normal.Tensor_Tensor",
        "aten::normal.float_Tensor",  # no deviation may be negative
    }
)
"""The host waits for values inside, say torch's documentation or headers, and no tag. With an overload: only that one."""

_NUMBERS = {
    "aten::masked_fill.Tensor": ("value",),
    "aten::masked_fill_.Tensor": ("value",),
    "aten::index_fill.int_Tensor": ("value",),
    "aten::index_fill_.int_Tensor": ("value",),
    **{
        f"aten::{name}.{start}_{end}": ("start", "end")
        for name in ("linspace", "logspace")
        for start, end in (("Tensor", "Tensor"), ("Tensor", "Scalar"), ("Scalar", "Tensor"))
    },
}
"""Operands that a kernel takes as numbers: the host waits for them where they are tensors of the device."""

_NEED_DATA = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_FROM_SHAPES = tuple(
    tag for name in ("pointwise", "reduction", "inplace", "out") if (tag := getattr(torch.Tag, name, None)) is not None
)
"""Tags of older releases are fewer."""
_POINTWISE = torch.Tag.pointwise
_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::cat", "aten::stack"})
_SOFTMAX = frozenset({"aten::_softmax", "aten::_log_softmax"})
_NORMS = frozenset({"aten::native_layer_norm"})
_FULL_PRECISION = (torch.float32, torch.float64)

_NEW = None


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload of an operation.

    Attributes:
        name: As torch's schema has it, e.g. ``aten::add.Tensor``.
        call: The overload itself.
        composite: Written in terms of others; seen only in inference mode.
        aliases: Returns views of its operands, and touches no data.
        relabels: Changes shape or strides of an operand in place, and touches no data.
        moves_memory: Gives an operand other memory.
        kernel: Whether there is anything to run.
        draws: May draw random numbers.
        needs_data: What it returns, or its shape, depends on values, or it looks at some; the host waits for them.
        checks: Position and name of the operand that asks it to look whether all went well, if it has one.
        numbers: Position and name of each operand that it takes as a number, whose value the host waits for.
        indexes: Takes indices, masks among them.
        from_shapes: How results lie in memory follows from shapes and strides, on every device.
        norm: The same holds where all operands are of full precision; else the device decides about the type of what it averaged.
        pointwise: Computes each element of its one new result from the elements at the same place, and takes no wish where that is.
        typed: Makes something of nothing, of torch's default type where no other is given.
        written: Position and name of each operand that it writes.
        returned: By return value: position and name of the operand that it is, or None for something new.
    """

    name: str
    call: Callable[..., Any]
    composite: bool
    aliases: bool
    relabels: bool
    moves_memory: bool
    kernel: bool
    draws: bool
    needs_data: bool
    checks: tuple[int, str] | None
    numbers: tuple[tuple[int, str], ...]
    indexes: bool
    from_shapes: bool
    pointwise: bool
    norm: bool
    typed: bool
    written: tuple[tuple[int, str], ...]
    returned: tuple[tuple[int, str] | None, ...]

    def each(self, made: Any) -> Sequence[Any]:
        """The return values, one by one."""
        return made if len(self.returned) > 1 else (made,) if self.returned else ()

    def follows_shapes(self, operands: Iterable[Tensor]) -> bool:
        """Whether how the results of this call lie in memory follows from shapes and strides, on every device."""
        return self.from_shapes or (self.norm and all(tensor.dtype in _FULL_PRECISION for tensor in operands))

    def new_tensors(self, made: Any) -> Iterator[Tensor | None]:
        """Those tensors of a result that are no operands, in order; None for one that is left out."""
        for value, operand in zip(self.each(made), self.returned, strict=True):
            if operand is _NEW and value is None:
                yield None
            elif operand is _NEW:
                yield from tensors_in(value)


@cache
def describe(func: Any) -> Overload:
    """What is known of the overload ``func``."""
    schema = func._schema
    name = func.name()
    packet = name.partition(".")[0]
    tags = func.tags
    returned = tuple(_operand_of(schema, value) for value in schema.returns)
    return Overload(
        name=name,
        call=func,
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"),
        aliases=func.is_view,
        relabels=torch.Tag.inplace_view in tags,
        moves_memory=name.startswith(_MOVES_MEMORY),
        kernel=name not in _UNINITIALISED,
        draws=torch.Tag.nondeterministic_seeded in tags,
        needs_data=name not in _INDEXING and (any(tag in tags for tag in _NEED_DATA) or not _WAITS.isdisjoint((name, packet))),
        checks=next(((at, a.name) for at, a in enumerate(schema.arguments) if a.name == "check_errors"), None),
        numbers=tuple((at, a.name) for at, a in enumerate(schema.arguments) if a.name in _NUMBERS.get(name, ())),
        indexes=name in _INDEXING,
        from_shapes=name in _PRODUCTS | _SOFTMAX or any(tag in tags for tag in _FROM_SHAPES),
        pointwise=_POINTWISE in tags and returned == (_NEW,) and not any(a.name == "memory_format" for a in schema.arguments),
        norm=name in _NORMS,
        typed=any(a.name == "dtype" for a in schema.arguments) and not any("Tensor" in str(a.type) for a in schema.arguments),
        written=tuple(
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
        returned=returned,
    )


def operand_at(operand: tuple[int, str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The operand of that position or name; None if it is left out."""
    position, name = operand
    return kwargs[name] if name in kwargs else args[position] if position < len(args) else None


def waits(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the host waits for values in this call. Of indices that are masks, `Overload.indexes` tells."""
    if overload.needs_data:
        return kwargs.get("output_size") is None
    if overload.checks is not None and operand_at(overload.checks, args, kwargs):
        return True
    given = (operand_at(operand, args, kwargs) for operand in overload.numbers)
    return any(isinstance(value, Tensor) and not hasattr(value, "host_scalar") for value in given)


def drops_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has a dropout probability, and it is 0: then nothing is drawn."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = kwargs.get("dropout_p", args[position] if position < len(args) else argument.default_value)
            return bool(given == 0.0)
    return False


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an operand or result: itself, or those of a list."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


def mapped(value: Any, of: Callable[[Tensor], Any]) -> Any:
    """An operand or result with each tensor replaced."""
    if isinstance(value, Tensor):
        return of(value)
    if isinstance(value, list | tuple):
        return type(value)([mapped(part, of) for part in value])
    return value


def _operand_of(schema: Any, returned: Any) -> tuple[int, str] | None:
    """The operand that a return value is, if the operation writes it and hands it back."""
    if returned.alias_info is None or not returned.alias_info.is_write:
        return _NEW
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write and alias.before_set == returned.alias_info.before_set:
            return position, argument.name
    return _NEW
