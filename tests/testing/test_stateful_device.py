"""Runs that share one device, as they do a GPU: each leaves it as it found it, and what one run did is no part of the next."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from cgstate.backends.base import Backend
from cgstate.backends.sim import Drawn, SimBackend, SimConfig, SimDevice
from cgstate.runtime.domain import Isolation
from cgstate.testing.machine import Machine
from cgstate.testing.stateful import fuzzing
from cgstate.testing.stateful import planted as bugs
from cgstate.testing.stateful.bed import Bed, Capabilities
from cgstate.testing.stateful.failing import WalkFailed
from cgstate.testing.stateful.fuzzing import fuzz, write_evidence
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.steps import Call, CaptureAll, Prepare
from cgstate.testing.stateful.subject import Subject
from cgstate.testing.stateful.sync import sync_of
from cgstate.testing.stateful.walk import steady, walk, walk_once


class SharedDevice(Bed):
    """One simulated device for all runs, on which nothing can be broken: what a GPU is to the harness."""

    can: ClassVar[Capabilities] = Capabilities(dependencies=True)

    @classmethod
    @cache
    def shared(cls) -> SimBackend:
        return SimBackend(SimDevice(SimConfig(workspace_bytes=1024), Drawn(Random(1))))

    @classmethod
    def held_bytes(cls) -> int:
        gc.collect()
        backend = cls.shared()
        backend.sim.synchronize()
        backend.clear_workspaces()
        backend.flush()
        left = backend.footprint()
        return left.allocated + sum(left.pools.values())

    def make_backend(self) -> Backend:
        gc.collect()
        return self.shared()


def test_runs_on_one_device_leave_it_as_they_found_it() -> None:
    report = fuzz(SharedDevice, examples=12)
    assert not report.failures
    assert report.runs == 12
    assert report.bytes_after == report.bytes_before
    assert report.holds


def test_a_run_may_begin_while_the_last_one_is_not_collected_yet() -> None:
    with steady():
        first, second = (Play(SharedDevice(), Setup()) for _ in range(2))
        assert first.books.gate is second.books.gate
        first.finish()
        second.finish()


def test_all_runs_on_a_device_have_one_sync() -> None:
    assert sync_of("a device") is not sync_of("another device")
    kept = sync_of("a device")
    assert sync_of("a device") is kept


def test_an_engines_pool_is_gone_after_the_run() -> None:
    run = Play(SharedDevice(), Setup(isolation=Isolation.foreign))
    for step in (Prepare(), CaptureAll(), Call("net")):
        run.take(step)
    assert any(run.backend.footprint().pools.values())
    run.finish()
    assert not any(run.backend.footprint().pools.values())


def test_a_bed_without_an_engine_has_no_runs_in_its_pool() -> None:
    class NoEngine(SharedDevice):
        can = Capabilities(foreign=False)

    assert Play(NoEngine(), Setup(isolation=Isolation.foreign)).setup.isolation is Isolation.shared


class LeavesPools(SharedDevice):
    """Whose components are on the device for good."""

    kept: ClassVar[list[object]] = []

    def make_components(self) -> Sequence[Subject]:
        pool, stream = self.backend.new_pool(), self.backend.new_stream(exclusive=True)
        self.kept.append((pool, self.backend.hold(pool, stream, 64)))
        return super().make_components()


def test_what_a_run_leaves_is_a_violation_and_the_last_run() -> None:
    report = fuzz(LeavesPools, examples=3)
    assert len(report.failures) == 1
    assert "bytes are left in private pools" in report.failures[0].why
    assert report.failures[0].leaked > 0
    assert report.leaked_bytes > report.failures[0].leaked, "it is still there after the last run"
    assert not report.holds


def test_a_run_that_failed_is_not_kept_alive_by_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plays: list[weakref.ref[Play]] = []

    class Noted(Play):
        def __init__(self, *args: object) -> None:
            plays.append(weakref.ref(self))
            super().__init__(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("cgstate.testing.stateful.walk.Play", Noted)
    bug = next(each for each in bugs.PLANTED if each.kind == "K15")
    with bug.planting(), pytest.raises(WalkFailed) as failed:
        walk(seed=0, runs=20)
    gc.collect()
    assert failed.value.__cause__ is not None
    assert plays
    assert not any(play() for play in plays)


def test_what_was_done_is_counted() -> None:
    with steady():
        runs = [walk_once(Bed, seed) for seed in range(20)]
    report = fuzz(examples=20)
    for name in ("captures", "replays", "evictions", "compared"):
        counted = sum(run.tally[name] for run in runs)
        assert report.figures[name] == counted > 0


def test_the_evidence_has_the_figures_and_fails_below_its_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: Machine("a device", "1", "2", "3")))
    report = fuzz(examples=2)
    assert not write_evidence(tmp_path / "few.json", report, "cgstate fuzz", "c")
    document = json.loads((tmp_path / "few.json").read_text())
    assert document["bars"]["steps"]["holds"] is False
    assert document["bars"]["violations"]["holds"] is True
    assert document["device"] == "a device"
    assert {"seed", "steps", "captures", "replays", "evictions", "compared", "violations", "leaked_bytes"} <= set(
        document["figures"]
    )
    report.steps = 20_000
    assert write_evidence(tmp_path / "many.json", report, "cgstate fuzz", "c")
    assert fuzzing.BARS.keys() <= document["figures"].keys()


def test_the_model_in_torch_is_played_with_on_the_recorder() -> None:
    pytest.importorskip("torch")
    from cgstate.testing.stateful.on_torch import TorchBed

    class Recorded(TorchBed):
        place = "cpu"

        @classmethod
        @cache
        def shared(cls) -> SimBackend:
            return SimBackend(SimDevice(SimConfig(workspace_bytes=1024), Drawn(Random(1))))

        @classmethod
        def wait(cls) -> None:
            cls.shared().sim.synchronize()

    report = fuzz(Recorded, seed=3, examples=6, steps=30)
    assert report.holds, [failed.why for failed in report.failures]
    assert report.tally["replays"]
