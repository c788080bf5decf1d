"""Marks on the timeline of Nsight Systems, where an observer is given: captures as ranges, what else is rare as points.

Replays, leases and eager answers are left out: they are many, the driver shows the launches by itself, and `GraphManager.stats`
counts the rest.
"""

from __future__ import annotations

from typing import Protocol

from cgstate.errors import ConfigError, describe
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import EntryEvent
from cgstate.lifecycle.steps import Steps
from cgstate.runtime.witness import Notice

_ENDS = frozenset({EntryEvent.capture_end, EntryEvent.capture_fail, EntryEvent.abort})
_RARE = frozenset({EntryEvent.bind, EntryEvent.evict, EntryEvent.capture_fail, EntryEvent.replay_fail, EntryEvent.reclaim})


class Markers(Protocol):
    """What `torch.cuda.nvtx` offers, as far as it is used."""

    def range_start(self, msg: str) -> int:
        """Open a range that may end in another place; its handle."""
        ...

    def range_end(self, range_id: int) -> None:
        """End it."""
        ...

    def mark(self, msg: str) -> None:
        """Mark a point."""
        ...


class Marker:
    """An observer for `cgstate.GraphManager` that marks what happens to entries.

    Args:
        markers: What marks; None: `torch.cuda.nvtx`, which is imported then.

    Raises:
        ConfigError: this torch was built without NVTX.
    """

    def __init__(self, markers: Markers | None = None) -> None:
        self._markers: Markers = _torch() if markers is None else markers
        self._open: dict[Steps, int] = {}

    def step(self, entity: Steps, row: int, state: str) -> None:
        """Mark an entry's step, if it is rare."""
        if entity.machine.name != "entry":
            return
        event = entity.machine.rows[row].event
        if event == EntryEvent.capture_begin:
            self._open[entity] = self._markers.range_start(f"cgstate capture {entity.name}")
        elif event in _ENDS and entity in self._open:
            self._markers.range_end(self._open.pop(entity))
        if event in _RARE:
            self._markers.mark(f"cgstate {event} {entity.name}")

    def notice(self, entity: Steps, what: Notice, value: Value) -> None:
        """Mark a flush: it stalls other threads' launches (fact S3)."""
        if what is Notice.flushed:
            self._markers.mark(f"cgstate flushed {value} bytes {entity.name}")


def _torch() -> Markers:
    from torch.cuda import nvtx

    try:
        nvtx.mark("cgstate marks")  # refused here, and not later under the device's lock
    except (AttributeError, RuntimeError) as error:
        raise ConfigError(f"this torch cannot mark for NVTX: {describe(error)}") from None
    return nvtx
