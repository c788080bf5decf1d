"""What is counted: totals exact, detail bounded, every reason to be eager reachable (I13)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from cgstate import AloneInTheWorld, Ballot, CaptureMode, FailureKind, Fallback, ManagerState
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimTensor, captured
from cgstate.runtime.stats import OTHER, BoundedCounter
from tests.runtime.failing import KIB, Bench, Toy


def test_a_bounded_counter_keeps_its_total() -> None:
    counter = BoundedCounter(3)
    for key in range(100):
        counter.add(key % 10)
    assert counter.total == 100
    assert len(counter) == 4
    assert counter.snapshot() == {0: 10, 1: 10, 2: 10, OTHER: 70}


@pytest.mark.parametrize("seed", range(4))
def test_totals_are_exact_and_detail_is_bounded_under_any_traffic(seed: int) -> None:
    random = Random(seed)
    bench = Bench.lazily(lazy=(8, 16), extra=1, isolation="per_entry", stats_detail=5).serving()
    calls = 0
    for _ in range(150):
        x = bench.device.zeros(random.randint(1, 60), 4)
        bench.component(x)
        calls += 1
    stats = bench.manager.stats().components["toy"]
    assert stats.calls == calls == stats.hits + sum(stats.fallbacks.values())
    assert stats.fallbacks[Fallback.miss] + stats.fallbacks.get(Fallback.capacity, 0) == sum(stats.misses.values())
    assert len(stats.misses) == 6
    assert OTHER in stats.misses
    assert stats.captures - stats.evictions == len(bench.component.available_descriptors)


def test_hits_survive_eviction_release_and_close() -> None:
    bench = Bench("a", isolation="per_entry").serving()
    for _ in range(3):
        bench.call(4)
    bench.manager.evict("a", 4)
    bench.call(4)
    assert bench.manager.stats().components["a"].hits == 4
    bench.manager.release()
    assert bench.manager.stats().components["a"].hits == 4
    bench.manager.capture_and_bind()
    bench.call(4)
    bench.manager.entry("a", 4).replay()
    bench.manager.close()
    bench.call(4)
    stats = bench.manager.stats().components["a"]
    assert (stats.hits, stats.fallbacks) == (6, {Fallback.closed: 1})
    assert stats.captures == 6
    assert stats.evictions == 1


def test_a_failed_call_is_no_hit() -> None:
    bench = Bench().serving()
    for method in ("copy_runtime_inputs", "output_after_replay"):
        bench.routine.fail(method, ValueError("boom"))
        with pytest.raises(ValueError, match="boom"):
            bench.call(4)
    bench.faults.inject("graph_replay", error=ValueError("boom"))
    with pytest.raises(ValueError, match="boom"):
        bench.call(4)
    stats = bench.manager.stats().components["toy"]
    assert stats.hits == 0
    assert stats.failures == {FailureKind.USER: 1}


def test_profiling_and_failed_captures_bind_nothing_and_count_no_capture() -> None:
    bench = Bench("a", "b").prepared()
    bench.manager.profile_memory()
    bench.routines["b"].fail("capture", ValueError())
    with pytest.raises(Exception, match="capture of b"):
        bench.manager.capture_and_bind()
    counts = {name: (stats.captures, dict(stats.failures)) for name, stats in bench.manager.stats().components.items()}
    assert counts == {"a": (0, {}), "b": (0, {FailureKind.USER: 1})}


def test_statistics_are_a_snapshot() -> None:
    bench = Bench().serving()
    before = bench.manager.stats().components["toy"]
    bench.call(40)
    bench.call(4)
    assert (before.hits, dict(before.fallbacks), dict(before.misses)) == (0, {}, {})


# -- every reason -------------------------------------------------------------------------------------------------------


class No(AloneInTheWorld):
    """Agrees to nothing that is lazy."""

    def agree(self, ballot: Ballot, component: str, descriptor: Any) -> bool:
        return bool(descriptor == 4)


class Budgeted(SimBackend):
    """Has a budget, which no backend of ours has."""

    def failure_kind(self, error: BaseException) -> FailureKind | None:
        return FailureKind.BUDGET if str(error) == "over budget" else super().failure_kind(error)


def miss() -> Bench:
    bench = Bench().serving()
    bench.call(40)
    return bench


def not_serving() -> Bench:
    bench = Bench().prepared()
    bench.call(4)
    return bench


def closed() -> Bench:
    bench = Bench().serving()
    bench.manager.close()
    bench.call(4)
    return bench


def in_capture() -> Bench:
    bench = Bench().serving()
    x = bench.device.zeros(4, 4)
    bench.device.library.workspace()
    captured(bench.device, lambda: bench.component(x), bench.device.new_stream())
    return bench


def capacity() -> Bench:
    bench = Bench.lazily(extra=0).serving()
    bench.call(8)
    return bench


def rejected() -> Bench:
    bench = Bench.lazily().serving()
    bench.routine.rejected.add(8)
    bench.call(8)
    return bench


def blocked() -> Bench:
    bench = rejected()
    bench.call(8)
    return bench


def oom() -> Bench:
    bench = Bench.lazily().serving()
    bench.routine.body = lambda routine, descriptor, buffers: routine.device.zeros(1 << 20)
    bench.call(8)
    return bench


def foreign() -> Bench:
    bench = Bench.lazily().serving()

    def body(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
        for capture in routine.device.captures._open:
            capture.broken = True  # what another thread's doing comes to

    bench.routine.body = body
    bench.call(8)
    return bench


def budget() -> Bench:
    bench = Bench.lazily(backend=Budgeted(SimDevice(SimConfig(capacity_bytes=4096 * KIB)))).serving()
    bench.faults.inject("close_capture", error=RuntimeError("over budget"))
    bench.call(8)
    return bench


def autograd() -> Bench:
    bench = Bench().serving()
    x = bench.device.zeros(4, 4)
    x.requires_grad = True
    bench.component(x)
    return bench


def autocast() -> Bench:
    torch = pytest.importorskip("torch")
    bench = Bench().serving()
    with torch.autocast("cpu", torch.bfloat16):
        bench.call(4)
    return bench


def unavailable() -> Bench:
    bench = Bench().serving()
    bench.routine.during["resolve_runtime"] = lambda: bench.manager.evict("toy")
    bench.component(bench.device.zeros(4, 4))
    return bench


def turn_held() -> Bench:
    bench = Bench().serving()
    bench.routine.during["copy_runtime_inputs"] = lambda: bench.component(bench.device.zeros(8, 4))
    bench.component(bench.device.zeros(4, 4))
    return bench


def vote() -> Bench:
    bench = Bench.lazily(component={"collective": True}, vote=No()).serving()
    bench.call(8)
    return bench


def capture_busy() -> Bench:
    bench = Bench("a", "b", descriptors=(4,), mode=CaptureMode.PRECAPTURE_LAZY, lazy=(8,), config={"max_extra_graphs": 1})
    bench.serving()
    x = bench.device.zeros(8, 4)
    with bench.manager.transaction():
        bench.component(x)
    return bench


def not_admitted() -> Bench:
    config = {"max_extra_graphs": 1, "admit_after": 2}
    bench = Bench(descriptors=(4,), mode=CaptureMode.PRECAPTURE_LAZY, lazy=(8,), config=config).serving()
    bench.call(8)
    return bench


REASONS: list[Callable[[], Bench]] = [
    miss, not_serving, closed, in_capture, capture_busy, capacity, blocked, rejected, oom, foreign, budget, autograd, autocast,
    unavailable, turn_held, vote, not_admitted,
]  # fmt: skip


def test_every_reason_has_a_test() -> None:
    assert {reason.__name__ for reason in REASONS} == {reason.value for reason in Fallback}


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.__name__)
def test_a_call_may_be_eager_for(reason: Callable[[], Bench]) -> None:
    bench = reason()
    stats = bench.manager.stats().components[next(iter(bench.components))]
    assert stats.fallbacks.get(Fallback(reason.__name__)) == 1
    assert stats.hits + sum(stats.fallbacks.values()) == stats.calls
    bench.quiet()


# -- telling ------------------------------------------------------------------------------------------------------------


def test_a_summary_is_logged_every_so_many_calls_and_at_close(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(summary_every=3).serving()
    caplog.set_level(logging.INFO, "cgstate")
    for _ in range(7):
        bench.call(4)
    lines = [record.getMessage() for record in caplog.records if "by graph" in record.getMessage()]
    assert [line.split(": ")[1:] for line in lines] == [
        ["toy", f"{calls} calls, 100.0% by graph, captures 3, evictions 0"] for calls in (3, 6)
    ]
    bench.call(40)
    bench.manager.close()
    last = [record.getMessage() for record in caplog.records if "by graph" in record.getMessage()][-1]
    assert "8 calls, 87.5% by graph, captures 3, evictions 0, eager: miss 1" in last
    assert bench.manager.state is ManagerState.CLOSED


def test_bytes_that_come_back_are_counted() -> None:
    bench = Bench(isolation="per_entry").serving()
    bench.answers()
    held = bench.manager.memory()
    before = bench.manager.stats()
    bench.manager.evict("toy")
    bench.manager.reclaim(flush=True)
    stats = bench.manager.stats()
    assert stats.reclaims - before.reclaims == 3
    assert stats.reclaimed_bytes - before.reclaimed_bytes >= sum(held.pools.values())
    assert stats.flushes > before.flushes
