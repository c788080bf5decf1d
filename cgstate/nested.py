"""Nested values of the user's: which classes are opened, so that the tensors inside are found, copied and trimmed.

These are tuples, named ones too, lists, dicts, OrderedDict, defaultdict and deque, dataclasses, and what is registered with torch's
pytree. How a class that derives from one of these is made of its parts, nobody knows: it is taken as it is, as any other.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple, cast

LEVELS = 4
"""How far an object of an unknown class is looked into for tensors."""

PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None)})
"""Classes that have no parts, and are common."""


class Opened(NamedTuple):
    """One layer of a value taken off.

    Attributes:
        parts: What it directly consists of.
        make: Makes the like of it of other parts, as many.
    """

    parts: list[object]
    make: Callable[[list[object]], object]


def opened(value: Any) -> Opened | None:
    """Take one layer off; None where the class has no parts, or none that are known. On the path of component calls."""
    kind = type(value)
    if kind in PLAIN:
        return None
    if kind is tuple or kind is list:
        return Opened(list(value), kind)
    if kind is dict or kind is OrderedDict:
        return Opened(list(value.values()), lambda parts: kind(zip(value, parts)))  # noqa: B905 - strict takes longer
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return Opened(list(value), kind._make)
    if kind is defaultdict:
        return Opened(list(value.values()), lambda parts: kind(value.default_factory, zip(value, parts, strict=True)))
    if kind is deque:
        return Opened(list(value), lambda parts: kind(parts, value.maxlen))
    node = getattr(sys.modules.get("torch.utils._pytree"), "SUPPORTED_NODES", {}).get(kind)
    if node is not None:
        parts, context = node.flatten_fn(value)
        return Opened(list(parts), lambda parts: node.unflatten_fn(parts, context))
    if is_dataclass(kind):  # of a class that is a value itself, the kind is none
        names = [field.name for field in fields(value)]
        return Opened([getattr(value, name) for name in names], lambda parts: _twin(value, names, parts))
    return None


def _twin(value: object, names: Sequence[str], parts: Sequence[object]) -> object:
    twin = copy.copy(value)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(twin, name, part)
    return twin


def hiding(value: object, tensors: tuple[type, ...]) -> type | None:
    """The first class inside ``value`` that is not opened and yet holds tensors, of the classes given; None if none does."""
    if isinstance(value, tensors):
        return None
    layer = opened(value)
    if layer is None:
        return type(value) if _holds(value, tensors) else None
    return next((kind for part in layer.parts if (kind := hiding(part, tensors)) is not None), None)


def _holds(value: object, tensors: tuple[type, ...]) -> bool:
    """Whether some tensor can be reached from ``value``, in a few steps."""
    seen = {id(value): value}
    layer = seen
    for _ in range(LEVELS):
        layer = {id(part): part for each in layer.values() for part in _inside(each) if id(part) not in seen}
        if any(isinstance(part, tensors) for part in layer.values()):
            return True
        seen = seen | layer  # the objects as well: while they are kept, no other has the id of one
    return False


def _inside(value: object) -> Iterator[object]:
    """Elements and attributes, past whatever the class does to be iterated or asked for them."""
    if type(value) in PLAIN or isinstance(value, type | ModuleType):
        return
    for sequence in (list, tuple, set, frozenset, deque):
        if isinstance(value, sequence):
            yield from sequence.__iter__(cast(Any, value))
    for mapping in (dict, MappingProxyType):
        if isinstance(value, mapping):
            yield from mapping.values(cast(Any, value))
    yield from getattr(value, "__dict__", {}).values()
    for base in type(value).__mro__:
        for member in vars(base).values() if "__slots__" in vars(base) else ():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # a slot that was never filled
                    yield member.__get__(value)
