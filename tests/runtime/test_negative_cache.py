"""Remembered failures: each kind says when a retry makes sense; the memory is bounded, and keyed by value."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cgstate import CaptureFailed, FailureKind, Fallback, IllegalTransition
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimTensor
from cgstate.lifecycle.states import FailureKind as Kind
from cgstate.runtime.failure import Failure, NegativeCache
from tests.runtime.failing import KIB, Bench, Toy


def reason_of(bench: Bench, size: int) -> Fallback | None:
    """Why a call of that size was eager; None if it was not."""
    before = dict(bench.manager.stats().components["toy"].fallbacks)
    bench.call(size)
    after = bench.manager.stats().components["toy"].fallbacks
    return next((reason for reason, count in after.items() if count != before.get(reason, 0)), None)


def reads(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    buffers.tolist()


def fills(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
    routine.device.zeros(1 << 20)


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
def test_what_was_rejected_is_not_tried_again_while_it_is_remembered(isolation: str) -> None:
    bench = Bench.lazily(isolation=isolation).serving()
    bench.routine.body = reads
    assert reason_of(bench, 8) is Fallback.rejected
    bench.routine.cure()
    captures = bench.routine.calls["warmup"]
    assert [reason_of(bench, 8) for _ in range(3)] == [Fallback.blocked] * 3
    bench.manager.reclaim(flush=True)
    assert reason_of(bench, 8) is Fallback.blocked
    assert bench.routine.calls["warmup"] == captures
    with pytest.raises(IllegalTransition, match="blocked"):
        with bench.manager.transaction() as transaction:
            transaction.capture_entry(bench.manager.entry("toy", 8), lambda warmup: lambda: None)
    bench.manager.forget_failures("toy")
    assert reason_of(bench, 8) is None


def test_what_the_routine_refused_is_not_asked_again_while_it_is_remembered() -> None:
    bench = Bench.lazily().serving()
    bench.routine.rejected.add(8)
    asked = bench.routine.calls["validate_descriptor"]
    assert reason_of(bench, 8) is Fallback.rejected
    assert reason_of(bench, 8) is Fallback.blocked
    assert bench.routine.calls["validate_descriptor"] == asked + 1
    assert bench.manager.stats().components["toy"].failures == {FailureKind.REJECTED: 1}
    bench.routine.rejected.clear()
    bench.manager.forget_failures()
    assert reason_of(bench, 8) is None


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
def test_what_the_user_broke_waits_for_an_explicit_attempt(isolation: str) -> None:
    bench = Bench.lazily(isolation=isolation).serving()
    bench.routine.fail("capture", ValueError("boom"))
    with pytest.raises(ValueError, match="boom"):
        bench.call(8)
    assert [reason_of(bench, 8) for _ in range(3)] == [Fallback.blocked] * 3
    bench.manager.reclaim(flush=True)
    assert reason_of(bench, 8) is Fallback.blocked
    entry, x = bench.manager.entry("toy", 8), bench.device.zeros(8, 4)
    with bench.manager.transaction() as transaction:
        transaction.capture_entry(entry, lambda warmup: lambda: bench.routine.work(x))
    assert 8 in bench.component.available_descriptors
    assert len(bench.books.negative) == 0


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
def test_what_ran_out_of_memory_waits_until_something_was_reclaimed(isolation: str) -> None:
    bench = Bench.lazily(isolation=isolation).serving()
    bench.routine.body = fills
    assert reason_of(bench, 8) is Fallback.oom
    attempts = bench.routine.calls["allocate_buffers"]
    assert [reason_of(bench, 8) for _ in range(4)] == [Fallback.blocked] * 4
    assert bench.routine.calls["allocate_buffers"] == attempts, "not one full capture a request"
    bench.routine.cure()
    assert reason_of(bench, 8) is Fallback.blocked
    bench.manager.evict("toy", 4)
    bench.manager.reclaim(flush=True)
    assert reason_of(bench, 8) is None


def test_what_another_thread_broke_is_tried_again_at_once() -> None:
    bench = Bench.lazily().serving()
    bench.faults.inject("close_capture", error=foreign())
    assert reason_of(bench, 8) is Fallback.foreign
    assert reason_of(bench, 8) is None
    assert bench.manager.stats().components["toy"].failures == {FailureKind.FOREIGN: 1}


def foreign() -> Exception:
    from cgstate.backends.sim.errors import CAPTURE_INVALIDATED, SimAcceleratorError

    return SimAcceleratorError(CAPTURE_INVALIDATED)


class Budgeted(SimBackend):
    """Says BUDGET for one error; no backend of ours does, as yet."""

    def failure_kind(self, error: BaseException) -> Kind | None:
        return FailureKind.BUDGET if str(error) == "over budget" else super().failure_kind(error)


def test_what_was_over_the_budget_waits_until_bytes_came_back() -> None:
    bench = Bench.lazily(backend=Budgeted(SimDevice(SimConfig(capacity_bytes=4096 * KIB)))).serving()
    bench.faults.inject("close_capture", error=RuntimeError("over budget"))
    assert reason_of(bench, 8) is Fallback.budget
    assert reason_of(bench, 8) is Fallback.blocked
    bench.manager.evict("toy", 4)
    bench.manager.reclaim(flush=True)
    assert reason_of(bench, 8) is None


def test_a_startup_failure_of_the_users_is_tried_again_by_the_next_explicit_call() -> None:
    bench = Bench().prepared()
    for _ in range(3):
        bench.routine.fail("capture", ValueError("boom"))
        with pytest.raises(CaptureFailed):
            bench.manager.capture_and_bind()
    bench.manager.capture_and_bind()
    bench.answers()


def test_a_failed_launch_is_remembered_too() -> None:
    bench = Bench.lazily().serving()
    bench.call(8)
    bench.faults.inject("graph_replay", error=ValueError("boom"))
    with pytest.raises(ValueError, match="boom"):
        bench.call(8)
    assert reason_of(bench, 8) is Fallback.blocked
    bench.manager.forget_failures()
    assert reason_of(bench, 8) is None


def test_the_memory_is_bounded_and_forgets_the_oldest_first() -> None:
    sizes = tuple(range(5, 45))
    bench = Bench.lazily(lazy=sizes, extra="unbounded", negative_cache=8).serving()
    bench.routine.rejected.update(sizes)
    for size in sizes:
        assert reason_of(bench, size) is Fallback.rejected
    assert len(bench.books.negative) == 8
    assert bench.manager.stats().components["toy"].failures == {FailureKind.REJECTED: len(sizes)}
    assert reason_of(bench, sizes[-1]) is Fallback.blocked
    assert reason_of(bench, sizes[0]) is Fallback.rejected
    assert len(bench.books.components["toy"].entries) <= 1


def test_a_failed_lazy_entry_leaves_no_record_of_its_own() -> None:
    sizes = tuple(range(5, 25))
    bench = Bench.lazily(lazy=sizes, extra="unbounded", isolation="per_entry").serving()
    bench.routine.body = reads
    for size in sizes:
        assert reason_of(bench, size) is Fallback.rejected
    bench.manager.reclaim(flush=True)
    assert set(bench.books.components["toy"].entries) == {4}
    assert len(bench.books.domains) == 1


@dataclass(frozen=True)
class Key:
    size: int


def test_failures_are_remembered_by_value() -> None:
    cache = NegativeCache(4)
    cache.remember("a", Key(1), Failure(FailureKind.USER, "", 0))
    assert cache.get("a", Key(1)) is not None
    assert cache.get("b", Key(1)) is None
    cache.remember("a", Key(1), Failure(FailureKind.OOM, "", 0))
    assert len(cache) == 1


def test_one_component_or_one_descriptor_can_be_forgotten() -> None:
    cache = NegativeCache(9)
    failure = Failure(FailureKind.USER, "", 0)
    for component in "ab":
        for size in (1, 2):
            cache.remember(component, size, failure)
    cache.forget("a", 1)
    assert len(cache) == 3
    cache.forget("b")
    assert (cache.get("a", 2), len(cache)) == (failure, 1)
    cache.forget()
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("kind", "now", "later", "explicit"),
    [
        (FailureKind.REJECTED, True, True, True),
        (FailureKind.USER, True, True, False),
        (FailureKind.OOM, True, False, False),
        (FailureKind.BUDGET, True, False, False),
        (FailureKind.FOREIGN, False, False, False),
        (FailureKind.DEVICE, True, True, True),
    ],
)
def test_what_each_kind_blocks(kind: FailureKind, now: bool, later: bool, explicit: bool) -> None:
    failure = Failure(kind, "", 7)
    assert failure.blocks(reclaimed=7, explicit=False) is now
    assert failure.blocks(reclaimed=8, explicit=False) is later
    assert failure.blocks(reclaimed=7, explicit=True) is explicit


def test_an_error_that_is_remembered_keeps_no_memory() -> None:
    bench = Bench().prepared()
    bench.routine.fail("capture", ValueError("boom"))
    with pytest.raises(CaptureFailed):
        bench.manager.capture_and_bind()
    remembered = bench.books.negative.get("toy", 16)
    assert remembered is not None
    assert remembered.error == "ValueError: boom"
