"""Static inputs as bytes: what routines have made for their graphs to read. What is pinned is the caller's, and charged to nobody.

Graphs may read the same memory, such as slices of one large tensor: it is counted once, however many have it, and they take turns,
whichever pools they are in (`Capture.share_turn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cgstate.backends.base import Backend


@dataclass(frozen=True, slots=True, eq=False)
class Statics:
    """What one graph reads from outside its pool.

    Attributes:
        buffers: What its routine has made; None where there is no routine. May hold pinned inputs as well.
        pinned: Pinned inputs.
    """

    buffers: object
    pinned: tuple[object, ...] = ()


def static_bytes(backend: Backend, statics: Iterable[Statics]) -> int:
    """Bytes of all of them together, pinned inputs left out."""
    return sum(static_sizes(backend, statics))


def static_sizes(backend: Backend, statics: Iterable[Statics]) -> list[int]:
    """Bytes of each storage that they are in, pinned inputs left out."""
    every = list(statics)
    pinned = backend.storages([each.pinned for each in every])
    return [size for key, size in backend.storages([each.buffers for each in every]).items() if key not in pinned]


def apportioned(backend: Backend, statics: Sequence[Statics]) -> list[int]:
    """Bytes of each: what several share is counted with the first of them, so that the sum is `static_bytes` of all."""
    alone = [static_bytes(backend, [each]) for each in statics]
    if sum(alone) == static_bytes(backend, statics):
        return alone
    pinned = Statics(None, tuple(each.pinned for each in statics))  # pinned by one is the caller's for all
    upto = [static_bytes(backend, [*statics[:count], pinned]) for count in range(len(statics) + 1)]
    return [after - before for before, after in pairwise(upto)]
