"""The byte budget: refused before or after the recording, made room for, remembered just while it does not fit (K04, I7)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from cgstate import (
    Break,
    BudgetExceeded,
    CaptureActive,
    CaptureFailed,
    CaptureMode,
    ConfigError,
    Eviction,
    FailureKind,
    Fallback,
    GraphManager,
    IllegalTransition,
    ManagerClosed,
    ManagerState,
    Resolution,
)
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimTensor
from cgstate.runtime.room import make_bytes
from cgstate.runtime.routines import capture_by_routine
from tests.runtime.failing import KIB, Bench, Toy

LAZY, PURE = CaptureMode.PRECAPTURE_LAZY, CaptureMode.PURE_LAZY
ISOLATIONS = ["shared", "per_component", "per_entry"]
WORKSPACE = 34 * KIB
"""Segments of a pool of its own: a library workspace, and one segment of small blocks."""
ROW = 32
"""Bytes of one row of a static input."""


def alone(size: int) -> int:
    """Bytes of one small graph in a pool of its own."""
    return WORKSPACE + size * ROW


def lazily(*names: str, budget: int | None, lazy: tuple[int, ...] = (8, 16, 32), mode: CaptureMode = LAZY, **manager: Any) -> Bench:
    """One startup graph of 4 rows a component, each graph in a pool of its own; larger ones by misses."""
    config = {"max_extra_graphs": "unbounded"}
    return Bench(
        *names,
        descriptors=(4,),
        mode=mode,
        lazy=lazy,
        config=config,
        budget_bytes=budget,
        **{"isolation": "per_entry", **manager},
    ).serving()


def peaks_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is held at the beginning of each capture from now on."""
    peaks: list[int] = []
    open_capture = bench.backend.open_capture

    def watched(*args: Any) -> Any:
        peaks.append(held(bench))
        return open_capture(*args)

    monkeypatch.setattr(bench.backend, "open_capture", watched)
    return peaks


def held(bench: Bench) -> int:
    """Counted anew, on the device: all segments of private pools, and the static inputs."""
    bench.manager.memory()
    buffers = [entry.buffers for entry in bench.books.entries() if entry.buffers is not None]
    buffers += [retired.statics.buffers for retired in bench.books.reclaimer.queue]
    return sum(bench.backend.footprint().pools.values()) + bench.backend.nbytes(buffers)


def ask(bench: Bench, size: int, name: str = "toy") -> Fallback | None:
    """Call one component; the answer equals eager, the device is idle afterwards. Why it was eager, if it was."""
    before = dict(bench.manager.stats().components[name].fallbacks)
    x = bench.device.rand(size, 4)
    assert bench.components[name](x).tolist() == bench.routines[name].work(x).tolist(), size
    bench.device.synchronize()
    after = bench.manager.stats().components[name].fallbacks
    return next((reason for reason, count in after.items() if count != before.get(reason, 0)), None)


def recorded(bench: Bench) -> int:
    """How many recordings were made, by all components."""
    return sum(routine.calls["capture"] for routine in bench.routines.values())


def bound(bench: Bench, name: str = "toy") -> set[object]:
    return set(bench.components[name].available_descriptors)


def large(by: dict[int, int]) -> Callable[[Toy, int, SimTensor], object]:
    """Extra temporaries, in KiB by descriptor."""

    def body(routine: Toy, descriptor: int, buffers: SimTensor) -> object:
        return routine.device.zeros(by.get(descriptor, 0) * KIB // 8 or 1)

    return body


def always_large(bench: Bench, by: dict[int, tuple[int, ...]], name: str = "toy") -> None:
    """Temporaries one after the other, in KiB by descriptor, of a component's work: while it is warmed up, too."""
    routine = bench.routines[name]
    forward = routine.forward_for_capture

    def work(descriptor: int, buffers: SimTensor) -> object:
        for size in by.get(descriptor, ()):
            routine.device.zeros(size * KIB // 8)
        return forward(descriptor, buffers)

    routine.forward_for_capture = work  # type: ignore[method-assign]


class TestExplicit:
    @pytest.mark.parametrize("isolation", ISOLATIONS)
    def test_a_set_that_does_not_fit_is_not_bound_at_all_and_the_error_says_by_how_much(self, isolation: str) -> None:
        bench = Bench(isolation=isolation).prepared()
        bench.routine.body = large({4: 64, 8: 64, 16: 64})
        bench.manager.capture_and_bind()
        whole = held(bench)
        bench.manager.release()
        assert held(bench) == 0
        before, generator = bench.footprint(), bench.device.generator
        bench.manager.set_budget(whole - 1)
        with pytest.raises(CaptureFailed) as failed:
            bench.manager.capture_and_bind()
        cause = failed.value.__cause__
        assert failed.value.kind == FailureKind.BUDGET
        assert failed.value.descriptor == 4, "the last one"
        assert isinstance(cause, BudgetExceeded)
        assert (cause.need + cause.have, cause.budget) == (whole, whole - 1)
        assert f"{cause.need} bytes" in str(failed.value)
        assert (bound(bench), bench.manager.state) == (set(), ManagerState.PREPARED)
        assert (bench.footprint(), bench.device.generator) == (before, generator)
        bench.quiet()
        bench.manager.set_budget(whole)
        bench.manager.capture_and_bind()
        assert held(bench) == whole
        bench.answers()

    def test_what_is_known_not_to_fit_is_refused_before_it_is_captured(self) -> None:
        bench = Bench(descriptors=(4, 8), isolation="per_entry", budget_bytes=alone(8) + alone(4) - 1).prepared()
        with pytest.raises(CaptureFailed):
            bench.manager.capture_and_bind()
        assert recorded(bench) == 2
        states, calls = bench.states(), bench.faults.calls["open_capture"]
        with pytest.raises(CaptureFailed) as failed:
            bench.manager.capture_and_bind()
        assert isinstance(failed.value.__cause__, BudgetExceeded)
        assert (failed.value.__cause__.need, failed.value.__cause__.have) == (alone(4), alone(8))
        assert bench.faults.calls["open_capture"] == calls + 1, "the one before it, which fits"
        assert bench.states() == states
        bench.quiet()

    @pytest.mark.parametrize("isolation", ISOLATIONS)
    def test_a_set_that_by_the_estimate_does_not_fit_is_refused_before_anything_is_captured(self, isolation: str) -> None:
        bench = Bench(isolation=isolation).prepared()
        estimate = bench.manager.profile_memory(thorough=True)
        before, states, calls = bench.footprint(), bench.states(), bench.faults.calls["open_capture"]
        bench.manager.set_budget(estimate.lower - 1)
        with pytest.raises(CaptureFailed, match=r"the set of 3 graphs") as failed:
            bench.manager.capture_and_bind()
        assert (failed.value.kind, bench.faults.calls["open_capture"]) == (FailureKind.BUDGET, calls)
        assert (bench.footprint(), bench.states()) == (before, states)
        bench.manager.set_budget(estimate.upper)
        bench.manager.capture_and_bind()
        assert held(bench) <= estimate.upper
        bench.answers()

    def test_an_estimate_refuses_nothing_where_the_pool_has_free_blocks_already(self) -> None:
        """It is about empty pools: other graphs of the pool were captured since, and have freed what these take."""
        bench = Bench(isolation="shared").prepared()
        always_large(bench, dict.fromkeys((4, 8, 16), (100,)))
        estimate = bench.manager.profile_memory()
        with bench.manager.transaction() as transaction:
            work = [300, 1]
            transaction.capture(
                bench.manager.entry("low", 1), lambda warmup: lambda: [bench.device.zeros(size * KIB // 8) for size in work][1:]
            )
        before = held(bench)
        bench.manager.set_budget(before + estimate.lower // 2)
        bench.manager.capture_and_bind()
        assert bound(bench) == {4, 8, 16}
        assert held(bench) < before + estimate.lower // 2

    def test_static_inputs_that_graphs_share_are_there_for_the_next_one(self) -> None:
        bench = Bench(descriptors=(4, 64), isolation="per_entry").prepared()
        whole = bench.device.zeros(64, 64)

        def slices(descriptor: int) -> SimTensor:
            return whole.narrow(0, 0, descriptor).narrow(1, 0, 4)

        bench.routine.allocate_buffers = slices  # type: ignore[method-assign]
        bench.manager.capture_and_bind()
        total = held(bench)
        bench.manager.release()
        bench.manager.set_budget(total)
        bench.manager.capture_and_bind()
        bench.manager.evict("toy", 64)
        bench.device.synchronize()
        bench.manager.reclaim(flush=True)
        bench.manager.capture_and_bind()
        assert bound(bench) == {4, 64}

    def test_a_profile_is_no_capture_but_says_what_one_takes(self) -> None:
        bench = Bench(isolation="per_entry", budget_bytes=alone(16) - 1).prepared()
        assert bench.manager.profile_memory().lower > alone(16)
        bench.manager._estimate = None  # which would refuse all of them together
        assert held(bench) == 0
        before = recorded(bench)
        with pytest.raises(CaptureFailed, match=rf"toy\[16\] alone needs {alone(16)} bytes, more than the whole budget") as failed:
            bench.manager.capture_and_bind()
        assert failed.value.kind == FailureKind.BUDGET
        assert recorded(bench) == before
        bench.manager.set_budget(None)
        bench.manager.capture_and_bind()
        bench.answers()

    def test_a_profile_of_a_callers_work_teaches_nothing(self) -> None:
        bench = Bench(budget_bytes=100 * KIB).prepared()

        def capture(size: int) -> None:
            with bench.manager.transaction() as transaction:
                transaction.capture(bench.manager.entry("own", 1), lambda warmup: lambda: bench.device.zeros(size * KIB // 8))

        capture(10)
        bench.manager.release()
        known = len(bench.books.budget)
        with bench.manager.profile() as profile:
            capture(200)
        assert profile.estimate.lower > 200 * KIB
        assert len(bench.books.budget) == known
        capture(10)
        bench.manager.entry("own", 1).replay()

    def test_a_low_level_capture_is_refused_in_the_same_way(self) -> None:
        bench = Bench(budget_bytes=100 * KIB)
        entry = bench.manager.entry("low", 1)

        def work() -> SimTensor:
            return bench.device.zeros(100 * KIB // 8)

        for recordings in (1, 1):  # the second is foreseen
            with pytest.raises(CaptureFailed, match="low"), bench.manager.transaction() as transaction:
                transaction.capture(entry, lambda warmup: work)
            assert bench.faults.calls["open_capture"] == recordings
            assert held(bench) == 0
        bench.manager.forget_failures()
        bench.manager.set_budget(200 * KIB)
        with bench.manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: work)
        entry.replay()

    def test_a_failure_of_one_leaves_the_serving_ones_as_they_were(self) -> None:
        bench = Bench(descriptors=(4, 8), isolation="per_entry").serving()
        bench.manager.set_budget(held(bench))
        bench.call(8)
        bench.device.synchronize()
        before = held(bench)
        with pytest.raises(CaptureFailed), bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("low", 1), lambda warmup: lambda: bench.device.zeros(4))
        assert (bound(bench), held(bench), bench.manager.state) == ({4, 8}, before, ManagerState.SERVING)
        bench.answers()


class TestExplicitEvicts:
    """An explicit capture makes room as a miss does, and waits for it."""

    def full(self, **manager: Any) -> Bench:
        """A startup graph, and two lazy ones of which 8 was used last; nothing more fits."""
        bench = lazily(budget=None, **manager)
        assert [ask(bench, 8), ask(bench, 16), ask(bench, 8)] == [None] * 3
        bench.manager.set_budget(held(bench))
        return bench

    def test_an_owed_startup_graph_gets_the_bytes_of_the_least_recently_used_lazy_one(self) -> None:
        bench = self.full()
        bench.manager.evict("toy", 4)
        bench.manager.reclaim(flush=True)
        bench.manager.set_budget(alone(8) + alone(16))
        bench.manager.capture_and_bind()
        assert bound(bench) == {4, 8}
        assert held(bench) == alone(4) + alone(8)
        assert bench.manager.stats().components["toy"].evicted == {Eviction.asked: 1, Eviction.budget: 1}
        bench.answers(4)

    @pytest.mark.parametrize("known", [False, True])
    def test_a_capture_by_hand_gets_them_whether_or_not_it_is_known_what_it_takes(self, known: bool) -> None:
        bench = self.full()
        entry, limit = bench.manager.entry("low", 1), bench.manager.budget_bytes

        def capture() -> None:
            with bench.manager.transaction() as transaction:
                transaction.capture(entry, lambda warmup: lambda: bench.device.zeros(4))
                assert held(bench) <= (bench.manager.budget_bytes or 1 << 20), "given back at once"

        if known:
            bench.manager.set_budget(None)
            capture()
            bench.manager.evict("low", 1)
            bench.manager.reclaim(flush=True)
            bench.manager.set_budget(limit)
        before = recorded(bench)
        capture()
        assert (bound(bench), recorded(bench)) == ({4, 8}, before)
        entry.replay()

    def test_a_block_that_is_recorded_gets_them(self) -> None:
        bench = self.full()
        entry = bench.manager.entry("low", 1)
        with bench.manager.transaction() as transaction, transaction.recording(entry):
            bench.device.zeros(4)
        assert bound(bench) == {4, 8}
        assert held(bench) <= (bench.manager.budget_bytes or 0)

    def test_what_is_known_is_made_room_for_before_the_capture_opens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = self.full()
        bench.manager.evict("toy", 4)
        bench.manager.reclaim(flush=True)
        bench.manager.set_budget(alone(8) + alone(16))
        peaks = peaks_of(bench, monkeypatch)
        bench.manager.capture_and_bind()
        assert max(peaks) <= alone(4) + alone(8)

    def test_a_victim_in_flight_is_waited_for_and_its_answer_is_right(self) -> None:
        bench = self.full()
        bench.manager.evict("toy", 4)
        bench.manager.reclaim(flush=True)
        bench.manager.set_budget(alone(8) + alone(16))
        x = bench.device.rand(16, 4)
        late = bench.component(x)
        y = bench.device.rand(8, 4)
        bench.component(y)
        bench.manager.capture_and_bind()
        assert bound(bench) == {4, 8}
        assert late.tolist() == bench.routine.work(x).tolist()

    def test_nobody_goes_in_vain_and_leased_and_startup_graphs_stay(self) -> None:
        bench = self.full()
        with bench.manager.entry("toy", 8).lease() as lease, bench.manager.entry("toy", 16).lease() as other:
            lease.replay()
            other.replay()
            with pytest.raises(CaptureFailed, match="low") as failed, bench.manager.transaction() as transaction:
                transaction.capture(bench.manager.entry("low", 1), lambda warmup: lambda: bench.device.zeros(4))
        assert failed.value.kind == FailureKind.BUDGET
        large = bench.manager.budget_bytes or 0
        with pytest.raises(CaptureFailed, match="low"), bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("low", 2), lambda warmup: lambda: bench.device.zeros(large // 8))
        assert bound(bench) == {4, 8, 16}
        assert bench.manager.stats().components["toy"].evicted == {}

    def test_nobody_goes_for_the_first_of_a_set_that_is_known_not_to_fit(self) -> None:
        bench = Bench(
            "toy", "other", descriptors=(4,), mode=LAZY, lazy=(8,), config={"max_extra_graphs": 1}, isolation="per_entry"
        ).serving()
        assert ask(bench, 8) is None
        for name in bench.components:
            bench.manager.evict(name, 4)
        bench.manager.reclaim(flush=True)
        bench.manager.set_budget(2 * WORKSPACE - 1)
        with pytest.raises(CaptureFailed):
            bench.manager.capture_and_bind()
        assert bound(bench) == {8}
        bench.manager.set_budget(2 * alone(4))
        bench.manager.capture_and_bind()
        assert (bound(bench), bound(bench, "other")) == ({4}, {4})

    def test_an_estimate_makes_room_for_the_whole_set(self) -> None:
        bench = Bench(descriptors=(4,), mode=LAZY, lazy=(8,), config={"max_extra_graphs": 1}, isolation="per_entry").prepared()
        estimate = bench.manager.profile_memory(thorough=True)
        assert estimate.trusted
        bench.manager.capture_and_bind()
        assert ask(bench, 8) is None
        bench.manager.evict("toy", 4)
        bench.manager.reclaim(flush=True)
        bench.manager.set_budget(max(estimate.lower, alone(8)))
        bench.manager.capture_and_bind()
        assert bound(bench) == {4}

    @pytest.mark.parametrize("known", [False, True])
    def test_a_pool_of_lazy_graphs_goes_as_a_whole_where_those_that_go_alone_do_not_suffice(self, known: bool) -> None:
        bench = lazily("toy", "other", budget=None, isolation="per_component", mode=PURE)
        assert [ask(bench, 8), ask(bench, 16), ask(bench, 8, "other")] == [None] * 3
        entry = bench.manager.entry("low", 1)

        def capture() -> None:
            with bench.manager.transaction() as transaction:
                transaction.capture(entry, lambda warmup: lambda: bench.device.zeros(4))

        if known:
            capture()
            bench.manager.evict("low", 1)
            bench.manager.reclaim(flush=True)
        bench.manager.set_budget(held(bench))
        assert ask(bench, 32, "other") is Fallback.budget
        assert (bound(bench), bound(bench, "other")) == ({8, 16}, {8}), "a miss retires no pool"
        bench.manager.set_budget(held(bench))  # what that has grown is there to stay
        capture()
        assert (bound(bench), bound(bench, "other")) == (set(), {8}), "the least recently used"
        assert bench.manager.stats().components["toy"].evicted == {Eviction.budget: 2}
        assert held(bench) <= (bench.manager.budget_bytes or 0)
        entry.replay()
        bench.answers(8)

    def test_a_pool_with_a_leased_or_a_startup_graph_stays(self) -> None:
        bench = lazily("toy", "other", budget=None, isolation="per_component")
        assert [ask(bench, 8), ask(bench, 8, "other")] == [None] * 2
        bench.manager.set_budget(held(bench))
        with pytest.raises(CaptureFailed, match="low"), bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("low", 1), lambda warmup: lambda: bench.device.zeros(4))
        assert (bound(bench), bound(bench, "other")) == ({4, 8}, {4, 8})
        pure = lazily(budget=None, isolation="per_component", mode=PURE)
        assert [ask(pure, 8), ask(pure, 16)] == [None] * 2
        pure.manager.set_budget(held(pure))
        with pure.manager.entry("toy", 16).lease() as lease:
            lease.replay()
            with pytest.raises(CaptureFailed, match="low"), pure.manager.transaction() as transaction:
                transaction.capture(pure.manager.entry("low", 1), lambda warmup: lambda: pure.device.zeros(4))
            lease.replay()
        assert bound(pure) == {8, 16}

    def test_what_another_guard_refuses_evicts_nobody(self) -> None:
        bench = self.full()
        entry = bench.manager.entry("low", 1)
        bench.manager.set_budget(None)
        with bench.manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: lambda: bench.device.zeros(4))
        bench.manager.set_budget(held(bench))
        with pytest.raises(IllegalTransition), bench.manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: lambda: bench.device.zeros(4))
        assert bound(bench) == {4, 8, 16}


class TestLazy:
    def test_a_miss_evicts_the_least_recently_used_lazy_graph_of_any_component_before_it_captures(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budget = 2 * alone(4) + alone(8) + alone(16)
        bench = lazily("a", "b", budget=budget)
        peaks = peaks_of(bench, monkeypatch)
        assert [ask(bench, 8, "a"), ask(bench, 8, "b"), ask(bench, 8, "a")] == [None] * 3
        flushes = bench.manager.stats().flushes
        assert ask(bench, 16, "a") is Fallback.budget, "the victim is retired, and nobody waits for the device"
        assert ask(bench, 16, "a") is None
        assert held(bench) == budget
        assert (bound(bench, "a"), bound(bench, "b")) == ({4, 8, 16}, {4})
        assert bench.manager.stats().components["b"].evicted == {Eviction.budget: 1}
        assert bench.manager.stats().components["a"].evicted == {}
        assert bench.manager.stats().flushes > flushes
        assert max(peaks) + 2 * KIB == budget, "of the pool, only the workspace was made before the capture opened"
        bench.answers(4, 8)

    def test_a_first_attempt_is_measured_and_the_second_one_makes_room(self) -> None:
        bench = lazily(budget=alone(4) + alone(8) + alone(16) - 1)
        assert ask(bench, 8) is None
        assert ask(bench, 16) is Fallback.budget, "it was not known what it takes"
        assert (bound(bench), held(bench)) == ({4, 8}, alone(4) + alone(8))
        assert ask(bench, 16) is Fallback.budget
        assert (bound(bench), held(bench)) == ({4}, alone(4) + WORKSPACE), "charged until its pool is given back"
        assert ask(bench, 16) is None
        assert (bound(bench), held(bench)) == ({4, 16}, alone(4) + alone(16))
        assert bench.manager.stats().components["toy"].failures == {FailureKind.BUDGET: 1}

    def test_what_exceeds_the_whole_budget_is_captured_once_and_nobody_goes_for_it(self) -> None:
        bench = lazily(budget=200 * KIB)
        bench.routine.body = large({16: 300})
        assert ask(bench, 8) is None
        before = recorded(bench)
        assert [ask(bench, 16) for _ in range(5)] == [Fallback.budget] * 5
        bench.manager.reclaim(flush=True)
        bench.manager.evict("toy", 4)
        bench.manager.reclaim(flush=True)
        assert [ask(bench, 16) for _ in range(5)] == [Fallback.budget] * 5
        assert recorded(bench) == before + 1
        assert bench.manager.stats().components["toy"].evicted == {Eviction.asked: 1}
        bench.manager.set_budget(500 * KIB)
        assert ask(bench, 16) is None

    def test_forgetting_failures_lets_it_be_measured_anew(self) -> None:
        bench = lazily(budget=200 * KIB)
        bench.routine.body = large({16: 300})
        assert [ask(bench, 16), ask(bench, 16)] == [Fallback.budget] * 2
        bench.routine.cure()  # it takes less now, and nobody can know
        assert ask(bench, 16) is Fallback.budget
        bench.manager.forget_failures("toy")
        assert ask(bench, 16) is None

    def test_a_release_forgets_what_graphs_took(self) -> None:
        bench = lazily(budget=200 * KIB)
        bench.routine.body = large({16: 300})
        assert [ask(bench, 16), ask(bench, 16)] == [Fallback.budget] * 2
        bench.manager.release()
        bench.routine.cure()
        bench.manager.capture_and_bind()
        assert ask(bench, 16) is None

    def test_nobody_makes_place_for_what_does_not_fit_anyway(self) -> None:
        bench = Bench(
            descriptors=(4,), mode=LAZY, lazy=(8, 16), config={"max_extra_graphs": 1}, isolation="per_entry", budget_bytes=200 * KIB
        ).serving()
        bench.routine.body = large({16: 300})
        assert ask(bench, 16) is Fallback.budget, "measured"
        assert ask(bench, 8) is None
        assert [ask(bench, 16) for _ in range(3)] == [Fallback.budget] * 3
        assert make_bytes(bench.books.components["toy"], 16) is Fallback.budget
        assert bound(bench) == {4, 8}

    def test_a_refusal_lasts_until_the_bytes_are_there_and_no_longer(self) -> None:
        bench = lazily("a", "b", budget=2 * alone(4) + alone(8) - 1)
        before = recorded(bench)
        assert [ask(bench, 8, "a") for _ in range(4)] == [Fallback.budget] * 4
        assert recorded(bench) == before + 1, "not one full capture a request"
        bench.manager.forget_failures("b")
        bench.manager.reclaim(flush=True)
        assert ask(bench, 8, "a") is Fallback.budget
        bench.manager.evict("b", 4)
        assert ask(bench, 8, "a") is None
        assert recorded(bench) == before + 2

    def test_one_that_is_larger_than_one_that_does_not_fit_is_not_tried(self) -> None:
        bench = lazily(budget=alone(4) + alone(16) - 1)
        assert ask(bench, 16) is Fallback.budget
        before = recorded(bench)
        assert ask(bench, 32) is Fallback.budget
        assert recorded(bench) == before
        assert ask(bench, 8) is None, "a smaller one may fit"

    def test_a_pair_that_is_larger_in_one_number_alone_is_no_larger_one(self) -> None:
        record = lazily(budget=None).books.components["toy"]
        assert record.smaller([(2, 60), (1, 1), (3, 1), (2,)], (3, 2)) == {(1, 1), (3, 1)}
        assert record.smaller([2, 5], 4) == {2}

    def test_what_is_smaller_is_said_by_the_components_own_order(self) -> None:
        bench = Bench(
            descriptors=(4,),
            mode=LAZY,
            lazy=(16, 32),
            config={"max_extra_graphs": 2},
            component={"capture_order_key": lambda size: -size},
            isolation="per_entry",
            budget_bytes=alone(4) + alone(16) - 1,
        ).serving()
        assert ask(bench, 16) is Fallback.budget
        before = recorded(bench)
        assert ask(bench, 32) is Fallback.budget
        assert recorded(bench) == before + 1

    @pytest.mark.parametrize("budget", [alone(4) + alone(16) - 1, alone(4) + alone(16) + alone(32)])
    def test_that_order_is_never_asked_under_the_lock(self, budget: int) -> None:
        held: list[bool] = []

        class Key(int):
            def __lt__(self, other: int) -> bool:
                held.append(bench.books.gate.held())
                return int(self) < int(other)

        bench = Bench(
            descriptors=(4,),
            mode=LAZY,
            lazy=(16, 32),
            config={"max_extra_graphs": 2},
            component={"capture_order_key": lambda size: Key(size)},
            isolation="per_entry",
            budget_bytes=budget,
        ).serving()
        ask(bench, 16)
        ask(bench, 32)
        assert held
        assert not any(held)

    def test_startup_graphs_and_leased_ones_stay(self) -> None:
        bench = lazily(budget=alone(4) + alone(16))
        assert ask(bench, 8) is None
        with bench.manager.entry("toy", 8).lease() as lease:
            lease.replay()
            assert [ask(bench, 16) for _ in range(3)] == [Fallback.budget] * 3
            assert bound(bench) == {4, 8}
        assert [ask(bench, 16), ask(bench, 16)] == [Fallback.budget, None], "what refused was the lease"
        assert bound(bench) == {4, 16}

    def test_a_victim_in_flight_is_retired_once_and_its_bytes_are_used_when_it_is_done(self) -> None:
        bench = lazily(budget=alone(4) + 2 * alone(8) + ROW, lazy=(7, 8, 9))
        assert [ask(bench, size) for size in (7, 8)] == [None, None]
        x = bench.device.rand(8, 4)
        late = [bench.component(x.narrow(0, 0, size)) for size in (7, 8)]
        for _ in range(3):
            y = bench.device.rand(9, 4)
            bench.component(y)
        stats = bench.manager.stats().components["toy"]
        assert (stats.fallbacks, stats.evicted) == ({Fallback.budget: 3}, {Eviction.budget: 1})
        assert bound(bench) == {4, 8}
        assert held(bench) <= alone(4) + 2 * alone(8) + ROW
        assert [x.tolist() for x in late] == [bench.routine.work(x.narrow(0, 0, size)).tolist() for size in (7, 8)]
        bench.device.synchronize()
        assert ask(bench, 9) is None
        assert bound(bench) == {4, 8, 9}

    def test_a_victim_of_a_collective_component_needs_all_ranks(self) -> None:
        class Never:
            def agree(self, ballot: Any, component_id: str, descriptor: object) -> bool:
                return str(ballot) != "evict"

        bench = Bench(
            descriptors=(4,),
            mode=LAZY,
            lazy=(8, 16),
            config={"max_extra_graphs": 2},
            component={"collective": True},
            isolation="per_entry",
            budget_bytes=alone(4) + alone(16),
            vote=Never(),
        ).serving()
        assert ask(bench, 8) is None
        assert [ask(bench, 16) for _ in range(3)] == [Fallback.vote] * 3
        assert bound(bench) == {4, 8}


class TestSharedPool:
    @pytest.mark.parametrize("isolation", ["shared", "per_component"])
    def test_what_a_refused_attempt_grew_stays_charged_and_is_used_when_it_fits(self, isolation: str) -> None:
        bench = lazily(budget=200 * KIB, isolation=isolation)
        bench.routine.body = large({16: 300})
        x = bench.device.rand(16, 4)
        expected = bench.routine.work(x).tolist()
        before, footprint = held(bench), bench.footprint()
        assert bench.component(x).tolist() == expected
        grown, after = held(bench), bench.footprint()
        assert (after.stream, after.generator, after.allocated) == (footprint.stream, footprint.generator, footprint.allocated)
        assert [ask(bench, 16) for _ in range(3)] == [Fallback.budget] * 3
        assert recorded(bench) == 2
        assert grown == before + 300 * KIB
        bench.answers(1, 4)
        assert ask(bench, 8) is Fallback.budget, "nothing is captured while more is held than may be"
        bench.manager.set_budget(grown + 16 * ROW)
        assert ask(bench, 16) is None
        assert held(bench) == grown + 16 * ROW, "the free blocks were used (S4)"

    @pytest.mark.parametrize("isolation", ["shared", "per_component"])
    @pytest.mark.parametrize("temporaries", [(300,), (60, 70, 80, 90)])
    def test_what_by_its_warm_up_will_not_fit_is_refused_before_the_pool_grows(
        self, isolation: str, temporaries: tuple[int, ...]
    ) -> None:
        bench = lazily(budget=200 * KIB, isolation=isolation)
        always_large(bench, {16: temporaries, 32: temporaries})
        before, captured = held(bench), recorded(bench)
        assert ask(bench, 16) is Fallback.budget
        assert (held(bench), bench.manager.memory().stranded, recorded(bench)) == (before, 0, captured)
        (domain,) = bench.books.domains.values()
        cached = bench.backend.cached_segments(domain.open_stream(bench.books))
        assert all(segment.small for segment in cached), "what its warm-up has left there would hide what the next one takes"
        warmed_up = bench.routine.calls["warmup"]
        assert [ask(bench, size) for size in (16, 32, 16)] == [Fallback.budget] * 3
        assert bench.routine.calls["warmup"] == warmed_up, "neither it nor a larger one is tried again"
        assert ask(bench, 8) is None, "others are captured as before"
        assert ask(bench, 16) is Fallback.budget
        assert bench.routine.calls["warmup"] > warmed_up
        assert bound(bench) == {4, 8}
        bench.manager.set_budget(500 * KIB)
        assert [ask(bench, 32), ask(bench, 16)] == [None, None]
        bench.answers(1, 4)

    def test_what_exceeded_an_empty_pool_is_not_tried_in_one_that_is_smaller(self) -> None:
        bench = lazily("toy", "other", budget=2 * alone(8) + 10 * KIB, isolation="per_component", mode=PURE)
        bench.routine.body = large({16: 60})
        assert ask(bench, 8, "other") is None
        assert ask(bench, 16) is Fallback.budget
        assert ask(bench, 8) is None
        before, captured = held(bench), recorded(bench)
        assert [ask(bench, 16), ask(bench, 32)] == [Fallback.budget] * 2
        assert (held(bench), recorded(bench)) == (before, captured)
        bench.manager.set_budget(before + 60 * KIB + 16 * ROW)
        assert ask(bench, 16) is None

    def test_it_is_remembered_of_a_component_without_entries(self) -> None:
        bench = Bench("a", "b", mode=PURE, lazy=(8, 16), config={"max_extra_graphs": 2}, budget_bytes=200 * KIB).serving()
        always_large(bench, {8: (300,), 16: (300,)}, "b")
        assert [ask(bench, 8, "a"), ask(bench, 8, "b")] == [None, Fallback.budget]
        bench.manager.reclaim()
        assert not bench.books.components["b"].entries
        warmed_up = bench.routines["b"].calls["warmup"]
        assert ask(bench, 8, "b") is Fallback.budget
        assert bench.routines["b"].calls["warmup"] == warmed_up

    def test_what_is_smaller_than_a_graph_that_is_bound_is_tried_whatever_its_warm_up_took(self) -> None:
        bench = Bench(descriptors=(16,), mode=LAZY, lazy=(8,), config={"max_extra_graphs": 1}, isolation="shared")
        bench.routine.resolve_runtime = lambda args, kwargs, available: Resolution(8, 8 if 8 in available else None)  # type: ignore[method-assign]
        bench.prepared()
        always_large(bench, {16: (60,), 8: (40, 50)})
        bench.manager.capture_and_bind()
        bench.manager.set_budget(held(bench) + 2 * KIB + 8 * ROW)
        assert ask(bench, 8) is None
        assert bound(bench) == {8, 16}, "one after the other they fit into what the larger one has freed"

    def test_an_explicit_capture_is_refused_by_its_warm_up_in_the_same_way(self) -> None:
        bench = lazily(budget=200 * KIB, isolation="shared")
        before, opened = held(bench), bench.faults.calls["open_capture"]
        with pytest.raises(CaptureFailed, match="low") as failed, bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("low", 1), lambda warmup: lambda: bench.device.zeros(300 * KIB // 8))
        assert failed.value.kind == FailureKind.BUDGET
        assert (held(bench), bench.faults.calls["open_capture"]) == (before, opened)
        bench.quiet()

    def test_what_a_warm_up_has_taken_in_a_break_refuses_nothing(self) -> None:
        bench = lazily(budget=200 * KIB, isolation="shared")

        def body() -> Any:
            bench.device.zeros(40 * KIB // 8)
            yield Break(lambda: bench.device.zeros(300 * KIB // 8) and None)

        with bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("low", 1), lambda warmup: body)
        assert held(bench) <= 200 * KIB

    def test_what_only_the_first_round_has_taken_refuses_nothing(self) -> None:
        """As a library that tries out algorithms, each with a workspace."""
        bench = lazily(budget=200 * KIB, isolation="shared")
        rounds: list[int] = []

        def work() -> None:
            rounds.append(0)
            bench.device.zeros((300 if len(rounds) == 1 else 40) * KIB // 8)

        with bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("low", 1), lambda warmup: work)
        assert held(bench) <= 200 * KIB

    def test_what_another_warm_up_has_left_cached_hides_nothing(self) -> None:
        bench = lazily(budget=500 * KIB, isolation="shared")
        seen: list[int] = []

        def capture(transaction: Any, number: int, size: int) -> None:
            cells = size * KIB // 8
            transaction.capture(bench.manager.entry("low", number), lambda warmup: lambda: [bench.device.zeros(cells), cells][:1])
            seen.append(held(bench))

        def both() -> None:
            with bench.manager.transaction() as transaction:
                capture(transaction, 1, 300)
                capture(transaction, 2, 290)

        with pytest.raises(CaptureFailed, match="low"):
            both()
        assert seen == [held(bench)], "its pool did not grow by what failed"

    def test_it_is_run_once_more_only_where_it_may_not_fit_and_by_no_rank_alone(self) -> None:
        rounds = []
        for budget, collective in ((10_000, False), (310, False), (310, True)):
            kind = {"collective": collective}
            bench = Bench(descriptors=(16,), mode=LAZY, lazy=(32,), config={"max_extra_graphs": 1}, component=kind).prepared()
            always_large(bench, {32: (300,)})
            bench.manager.capture_and_bind()
            bench.manager.set_budget(budget * KIB)
            before = bench.routine.calls["warmup"]
            ask(bench, 32)
            rounds.append(bench.routine.calls["warmup"] - before)
        assert rounds[0] < rounds[1]
        assert rounds[2] == rounds[0]

    @pytest.mark.parametrize("found", [False, True])
    def test_a_refusal_ends_when_what_was_captured_before_it_in_the_same_pool_was_dropped(self, found: bool) -> None:
        """The bytes stay charged, and are free now; also where the pool did not grow by it."""
        bench = lazily(budget=400 * KIB, isolation="shared")

        def capture(*sizes: int, number: int = 0) -> None:
            with bench.manager.transaction() as transaction:
                for size in sizes:
                    number += 1
                    entry = bench.manager.entry("low", number)
                    transaction.capture(entry, lambda warmup, size=size: lambda: bench.device.zeros(size * KIB // 8))  # type: ignore[misc]
                if sizes == (250,):
                    transaction.abort()

        if found:
            capture(250)
        for _ in range(2):
            with pytest.raises(CaptureFailed, match="low"):
                capture(250, 200)
        capture(200, number=1)
        assert held(bench) <= 400 * KIB

    def test_an_explicit_capture_that_fits_once_lazy_graphs_went_is_not_refused_by_its_warm_up(self) -> None:
        bench = Bench("toy", "alone", descriptors=(4,), mode=LAZY, lazy=(8,), config={"max_extra_graphs": 1})
        assert bench.config is not None
        bench.config["alone"] = {"isolation": "per_entry", **bench.config["alone"]}
        bench.serving()
        always_large(bench, {8: (100,)}, "alone")
        assert ask(bench, 8, "alone") is None
        bench.manager.set_budget(held(bench))
        with bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("low", 1), lambda warmup: lambda: bench.device.zeros(80 * KIB // 8) and None)
        assert (bound(bench), bound(bench, "alone")) == ({4}, {4})

    def test_without_a_budget_nobody_looks_at_what_warm_ups_take(self) -> None:
        bench = lazily(budget=None, isolation="shared")
        looked = bench.faults.calls["cached_segments"]
        assert ask(bench, 8) is None
        assert bench.faults.calls["cached_segments"] == looked

    def test_what_an_empty_pool_would_take_does_not_refuse_beside_others(self) -> None:
        bench = Bench(descriptors=(16,), mode=LAZY, lazy=(32,), config={"max_extra_graphs": 1}, isolation="shared").prepared()
        bench.routine.body = large({16: 64, 32: 64})
        bench.manager.capture_and_bind()
        whole = held(bench)
        small = 2 * KIB
        """One more segment of small blocks."""
        bench.manager.set_budget(whole + small + 32 * ROW)
        assert ask(bench, 32) is None, "its temporaries fit into free blocks"
        assert held(bench) == whole + small + 32 * ROW

    def test_what_it_took_of_an_empty_pool_is_not_forgotten_for_less(self) -> None:
        bench = Bench(descriptors=(16, 32), isolation="shared").prepared()
        bench.routine.body = large({16: 64, 32: 64})
        bench.manager.profile_memory()
        bench.manager._estimate = None  # which would refuse both together
        whole = bench.books.budget.need(bench.manager.entry("toy", 32).component, 32)
        assert whole > 64 * KIB
        bench.manager.capture_and_bind()
        bench.manager.evict("toy")
        with bench.manager.transaction() as transaction:  # 32 comes second now, into free blocks
            for size in (16, 32):
                capture_by_routine(transaction, bench.manager.entry("toy", size), bench.routine)
        bench.manager.evict("toy")
        bench.manager.reclaim(flush=True)
        bench.manager.set_budget(whole - 1)
        before = recorded(bench)
        with pytest.raises(CaptureFailed, match=rf"toy\[32\] alone needs {whole} bytes"):
            bench.manager.capture_and_bind()
        assert recorded(bench) == before


class TestChange:
    def test_lowering_it_evicts_what_can_go_least_recently_used_first(self) -> None:
        bench = lazily(budget=None)
        for size in (8, 16, 32, 8):
            ask(bench, size)
        unlimited = bench.manager.budget_bytes
        assert unlimited is None
        assert bench.manager.set_budget(held(bench)) == 0
        assert bench.manager.set_budget(held(bench) - 1) == 1
        assert bound(bench) == {4, 8, 32}
        assert held(bench) == alone(4) + alone(8) + alone(32)
        assert bench.manager.set_budget(1) == 2
        assert (bound(bench), held(bench)) == ({4}, alone(4))
        assert bench.manager.budget_bytes == 1
        assert bench.manager.stats().components["toy"].evicted == {Eviction.budget: 3}
        bench.answers(4, 8)
        assert bound(bench) == {4}

    def test_lowering_it_waits_for_replays_in_flight_and_their_answers_are_right(self) -> None:
        bench = lazily(budget=None)
        ask(bench, 8)
        x = bench.device.rand(8, 4)
        late = bench.component(x)
        assert bench.manager.set_budget(alone(4)) == 1
        assert held(bench) == alone(4)
        assert late.tolist() == bench.routine.work(x).tolist()

    def test_lowering_it_leaves_what_is_leased(self) -> None:
        bench = lazily(budget=None)
        ask(bench, 8)
        with bench.manager.entry("toy", 8).lease() as lease:
            lease.replay()
            assert bench.manager.set_budget(1) == 0
            lease.replay()
        assert bench.manager.set_budget(1) == 1

    @pytest.mark.parametrize("wrong", [0, -1, True, False, 1.5, "1", b"1", [1], float("inf")])
    def test_a_budget_that_can_hold_nothing_is_refused_and_changes_nothing(self, wrong: Any) -> None:
        bench = lazily(budget=alone(4) + alone(8))
        with pytest.raises(ConfigError, match="budget_bytes"):
            bench.manager.set_budget(wrong)
        with pytest.raises(ConfigError, match="budget_bytes"):
            GraphManager(bench.backend, budget_bytes=wrong)
        assert bench.manager.budget_bytes == alone(4) + alone(8)
        assert ask(bench, 8) is None

    def test_a_closed_manager_and_an_open_transaction_refuse_and_it_works_afterwards(self) -> None:
        bench = lazily(budget=None)
        with bench.manager.transaction(), pytest.raises(CaptureActive):
            bench.manager.set_budget(1 << 20)
        unchanged = bench.manager.budget_bytes
        assert unchanged is None
        bench.manager.set_budget(1 << 20)
        bench.manager.close()
        with pytest.raises(ManagerClosed):
            bench.manager.set_budget(1)
        assert bench.manager.budget_bytes == 1 << 20

    def test_two_managers_have_budgets_of_their_own(self) -> None:
        first = lazily(budget=alone(4) + alone(8))
        second = lazily(budget=alone(4) + alone(8), backend=first.backend)
        assert [ask(first, 8), ask(second, 8)] == [None, None]


def test_without_a_budget_no_capture_looks_at_the_static_inputs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    right = SimBackend.nbytes

    def nbytes(self: SimBackend, value: object) -> int:
        looked.append(0)
        return right(self, value)

    monkeypatch.setattr(SimBackend, "nbytes", nbytes)
    needed = []
    for number in (8, 32):
        bench = Bench(descriptors=tuple(range(1, number + 1)), check=False).prepared()
        looked.clear()
        with bench.manager.transaction() as transaction:
            for size in range(1, number + 1):
                capture_by_routine(transaction, bench.manager.entry("toy", size), bench.routine)
        needed.append(len(looked))
    assert needed == [0, 0]


def test_costs_are_bounded() -> None:
    sizes = tuple(range(5, 45))
    bench = lazily(budget=None, lazy=sizes, negative_cache=8)
    for size in sizes:
        assert ask(bench, size) is None
    assert len(bench.books.budget) == 8


ACTS = ("call", "call", "call", "call", "call", "evict", "reclaim", "profile", "clear", "explicit", "budget", "forget", "flight")


@pytest.mark.parametrize("isolation", ["per_entry", "per_component"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_ledger_is_exact_and_the_budget_holds(seed: int, isolation: str) -> None:
    """K04: commits, rejections, evictions, clears and profiles, with a budget for a few graphs, recounted after each step."""
    draw = random.Random(seed)
    names, sizes = ("a", "b"), (3, 8, 12, 16, 24)
    bench = Bench(
        *names,
        descriptors=(4,),
        mode=PURE,
        lazy=sizes,
        config={"max_extra_graphs": 3, "thrash_protection": bool(seed % 2)},
        budget_bytes=3 * alone(16),
        isolation=isolation,
        backend=SimBackend(SimDevice(SimConfig(capacity_bytes=8192 * KIB))),
    ).serving()
    for name, routine in bench.routines.items():
        routine.body = large({size: draw.choice((0, 0, 2, 40, 200)) for size in (*sizes, 4)} if name == "a" else {24: 100})
    manager, books = bench.manager, bench.books
    refused: set[tuple[str, int]] = set()
    kinds: set[str] = set()
    last, rejections, most = 0, 0, 3 * alone(16)
    for _ in range(120):
        act, name = draw.choice(ACTS), draw.choice(names)
        evictions = sum(stats.evictions for stats in manager.stats().components.values())
        recordings = recorded(bench)
        match act:
            case "call":
                size = draw.choice(sizes)
                reason = ask(bench, size, name)
                if reason is Fallback.budget and recorded(bench) > recordings:
                    rejections += 1
                    room_was_made = evictions < sum(stats.evictions for stats in manager.stats().components.values())
                    assert room_was_made or (name, size) not in refused, "one attempt a descriptor until bytes come back"
                    refused.add((name, size))
            case "flight":
                bench.components[name](bench.device.rand(draw.choice(sizes), 4))
            case "evict":
                manager.evict(name)
            case "reclaim":
                manager.reclaim(flush=draw.random() < 0.5)
            case "profile":
                manager.release()
                manager.profile_memory()
                manager.capture_and_bind()
                refused.clear()
            case "clear":
                manager.release()
                assert held(bench) == manager.memory().total == 0
                manager.capture_and_bind()
                refused.clear()
            case "explicit":
                entry = manager.entry("low", draw.randrange(3))
                if entry.state in ("EAGER", "EVICTED", "FAILED") and not entry.unreclaimed:
                    try:
                        with manager.transaction() as transaction:
                            transaction.capture(entry, lambda warmup: lambda: bench.device.zeros(draw.choice((8, 4096))))
                    except CaptureFailed as failed:
                        kinds.add(str(failed.kind))
                if evictions < sum(stats.evictions for stats in manager.stats().components.values()):
                    refused.clear()  # bytes came back, and are taken already
            case "budget":
                most = draw.choice((1, 2, 3, 4)) * alone(16)
                manager.set_budget(most)
                refused.clear()
            case "forget":
                manager.forget_failures()
                refused.clear()
        now = held(bench)
        assert now == books.budget.held()
        assert manager.memory().total <= now
        if isolation == "per_entry":
            assert now <= max(most, last), f"{act} exceeded the budget"
        if now < last:
            refused.clear()
        last = now
    assert rejections, "the walk met no refusal"
    assert kinds <= {"BUDGET"}
    manager.close()
    assert held(bench) == 0
