"""Nested values: tensors inside tuples, lists, dicts and dataclasses. Called by the backend."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar, cast

from cgstate.backends.sim.tensor import SimTensor

T = TypeVar("T")


def leaves(value: object) -> Iterator[object]:
    """Every part of ``value`` that has no parts of its own, in order; the same one as often as it occurs."""
    if isinstance(value, SimTensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from leaves(getattr(value, field.name))
    else:
        yield value


def tensors_in(value: object) -> Iterator[SimTensor]:
    """The tensors among the `leaves`."""
    return (part for part in leaves(value) if isinstance(part, SimTensor))


def clone(value: T) -> T:
    """``value`` rebuilt with a copy of each tensor, one copy a tensor; what holds no tensors is kept as it is."""
    if isinstance(value, SimTensor):
        return cast(T, value.clone())
    copies: dict[int, SimTensor] = {}

    def copy_of(tensor: SimTensor) -> SimTensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.clone()
        return copies[id(tensor)]

    return cast(T, _map(value, copy_of))


def _map(value: object, of: Callable[[SimTensor], SimTensor]) -> object:
    if isinstance(value, SimTensor):
        return of(value)
    if next(tensors_in(value), None) is None:
        return value
    if isinstance(value, tuple):
        parts = [_map(part, of) for part in value]
        make = getattr(type(value), "_make", tuple)  # a named tuple is made again as what it was
        return cast(object, make(parts))
    if isinstance(value, list):
        return [_map(part, of) for part in value]
    if isinstance(value, Mapping):
        return {key: _map(part, of) for key, part in value.items()}
    twin = copy.copy(value)
    for field in fields(cast("type", value)):
        object.__setattr__(twin, field.name, _map(getattr(value, field.name), of))
    return twin
