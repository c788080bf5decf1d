"""Captures are ranges, what else is rare is a mark, and replays are neither."""

from __future__ import annotations

import contextlib

import pytest

import cgstate
from cgstate.observe.nvtx import Marker
from tests.runtime.helpers import Model


class Timeline:
    """Keeps what is marked."""

    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.ranges: list[str] = []
        self.marks: list[str] = []

    def range_start(self, msg: str) -> int:
        number = len(self.ranges) + len(self.open) + 1
        self.open[number] = msg
        return number

    def range_end(self, range_id: int) -> None:
        self.ranges.append(self.open.pop(range_id))

    def mark(self, msg: str) -> None:
        self.marks.append(msg)


def test_a_capture_is_a_range_and_its_replays_are_nothing() -> None:
    model, timeline = Model(), Timeline()
    with model.manager(observer=Marker(timeline)) as manager:
        ((entry, _),) = model.bind(manager, "low")
        assert timeline.ranges == ["cgstate capture low[2]"]
        flushed = "cgstate flushed 2048 bytes " + manager._books.name
        assert timeline.marks == ["cgstate bind low[2]", flushed]
        for _ in range(5):
            entry.replay()
        assert len(timeline.marks) == 2
        manager.evict("low")
        manager.reclaim(flush=True)
    assert timeline.marks[2:4] == ["cgstate evict low[2]", "cgstate reclaim low[2]"]
    assert any(mark.startswith("cgstate flushed ") for mark in timeline.marks[4:])
    assert timeline.open == {}


def test_a_failed_capture_ends_its_range_and_is_marked() -> None:
    model, timeline = Model(), Timeline()

    def boom() -> None:
        raise ValueError("no")

    with model.manager(observer=Marker(timeline)) as manager:
        with contextlib.suppress(cgstate.CaptureFailed), manager.transaction() as transaction:
            transaction.capture(manager.entry("low", 2), lambda warmup: boom)
        assert timeline.ranges == ["cgstate capture low[2]"]
        assert "cgstate capture_fail low[2]" in timeline.marks
    assert timeline.open == {}


@pytest.mark.torch
def test_a_torch_without_nvtx_is_refused_at_once() -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has it")
    with pytest.raises(cgstate.ConfigError, match="cannot mark for NVTX"):
        Marker()
