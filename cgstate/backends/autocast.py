"""Torch's autocast, which a graph bakes in: both backends that run torch's operations ask here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def dtype_of(device_type: str) -> torch.dtype | None:
    """What autocast converts this thread's work on such a device to; None while it is off."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


@contextmanager
def without_cache() -> Iterator[None]:
    """Let autocast convert weights anew each time.

    Those that it keeps are freed when the caller's outermost autocast block ends. A graph that was recorded after a warm-up in the
    same block would read the warm-up's, and then memory that is somebody else's.

    An autocast of the work's own may keep them all the same, such as one that decorates a method: it brings the switch along from
    when it was made. So nothing that was kept before is there in the block, nor afterwards what a graph has in its pool.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        forget()
        yield
    finally:
        forget()
        torch.set_autocast_cache_enabled(before)


def forget() -> None:
    """Let autocast keep no weight that it has converted so far."""
    torch.clear_autocast_cache()
