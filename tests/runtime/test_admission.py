"""Which misses capture: the k-th, and later ones of what was evicted to make room; fights for a place stay cheap (K16)."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from cgstate import CaptureMode, ComponentStats, Eviction, Fallback
from cgstate.runtime.admission import MOST, Admission
from tests.runtime.failing import Bench

SIZES = (8, 9, 12, 16, 20, 24, 28, 32)


def lazily(places: int, *, sizes: tuple[int, ...] = SIZES, isolation: str = "per_entry", manager: Any = None, **keys: Any) -> Bench:
    """One startup graph, and places for lazy ones of ``sizes``."""
    return Bench(
        descriptors=(4,),
        mode=CaptureMode.PRECAPTURE_LAZY,
        lazy=sizes,
        config={"max_extra_graphs": places, **keys},
        isolation=isolation,
        **(manager or {}),
    ).serving()


def ask(bench: Bench, size: int) -> None:
    """A call that wants the graph of just this size; its answer equals eager, and the device is idle afterwards."""
    x = bench.device.rand(size, 4)
    assert bench.component(x).tolist() == bench.routine.work(x).tolist()
    bench.device.synchronize()


def stats_of(bench: Bench) -> ComponentStats:
    return bench.manager.stats().components["toy"]


def exactly(bench: Bench) -> None:
    """Let every call want the graph of its own size: a larger one is no help."""
    routine = bench.routine
    resolve = routine.resolve_runtime

    def strict(args: Any, kwargs: Any, available: frozenset[int]) -> Any:
        return resolve(args, kwargs, available & {args[0].shape[0]})

    routine.resolve_runtime = strict  # type: ignore[method-assign]
    for component in bench.components.values():
        assert component.caller is not None
        component.caller.resolve = strict


class TestAdmitAfter:
    @pytest.mark.parametrize("after", [1, 2, 5])
    def test_the_kth_miss_of_a_descriptor_captures(self, after: int) -> None:
        bench = lazily(4, admit_after=after)
        exactly(bench)
        for number in range(1, after + 3):
            ask(bench, 8)
            ask(bench, 4)
            stats = stats_of(bench)
            assert stats.captures == (2 if number >= after else 1)
            assert stats.fallbacks.get(Fallback.not_admitted, 0) == min(number, after - 1)
        assert stats_of(bench).calls == 2 * (after + 2)

    def test_each_descriptor_is_counted_by_itself_and_by_value(self) -> None:
        bench = lazily(4, admit_after=2)
        exactly(bench)
        for size in (8, 12, 16):
            ask(bench, size)
        assert stats_of(bench).captures == 1
        ask(bench, 12)
        assert bench.component.available_descriptors == {4, 12}

    def test_what_was_evicted_on_request_is_counted_from_nothing(self) -> None:
        bench = lazily(4, admit_after=2)
        exactly(bench)
        for _ in range(2):
            ask(bench, 8)
        bench.manager.evict("toy", 8)
        bench.manager.memory()
        ask(bench, 8)
        assert bench.component.available_descriptors == {4}
        ask(bench, 8)
        assert bench.component.available_descriptors == {4, 8}

    def test_it_stays_admitted_until_a_capture_succeeds(self) -> None:
        bench = lazily(4, admit_after=3)
        exactly(bench)
        for _ in range(2):
            ask(bench, 8)
        bench.routine.fail("capture", ValueError("boom"))
        with pytest.raises(ValueError, match="boom"):
            ask(bench, 8)
        bench.manager.forget_failures()
        ask(bench, 8)
        assert bench.component.available_descriptors == {4, 8}

    def test_the_table_is_bounded_and_what_is_forgotten_starts_anew(self) -> None:
        sizes = tuple(range(5, 45))
        bench = lazily(40, sizes=sizes, admit_after=2, manager={"negative_cache": 8})
        exactly(bench)
        for size in sizes:
            ask(bench, size)
        admission = bench.books.components["toy"].admission
        assert len(admission) == admission.limit == 8
        ask(bench, sizes[0])
        assert stats_of(bench).captures == 1
        ask(bench, sizes[-1])
        assert stats_of(bench).captures == 2
        assert stats_of(bench).fallbacks == {Fallback.not_admitted: 41}


def most_captures(keys: int, calls: int) -> int:
    """What the doublings allow each key at first, and after that one for each `MOST` misses or replays."""
    return keys * (1 + round(math.log2(MOST))) + 2 * calls // MOST


class TestThrash:
    @pytest.mark.parametrize("places", [1, 2, 4])
    def test_one_key_too_many_in_turn_captures_ever_more_rarely(self, places: int) -> None:
        calls = 1200
        bench = lazily(places)
        exactly(bench)
        keys = SIZES[: places + 1]
        half = 0
        for number in range(calls):
            ask(bench, keys[number % len(keys)])
            half = stats_of(bench).captures if number == calls // 2 else half
        stats = stats_of(bench)
        captures = stats.captures - 1
        assert captures <= most_captures(len(keys), calls)
        assert stats.captures - half <= captures / 2, "rarer later than at first"
        assert stats.calls == calls
        assert stats.hits >= calls * 0.7 * places / len(keys)
        assert stats.evicted == {Eviction.capacity: captures - places}

    def test_without_protection_the_same_captures_at_every_other_call(self) -> None:
        bench = lazily(1, thrash_protection=False)
        exactly(bench)
        for number in range(120):
            ask(bench, SIZES[number % 2])
        stats = stats_of(bench)
        assert stats.captures > 50
        assert Fallback.not_admitted not in stats.fallbacks

    def test_hot_keys_keep_replaying_while_two_others_fight_for_the_last_place(self) -> None:
        bench = lazily(3)
        exactly(bench)
        hot, cold = SIZES[:2], SIZES[2:]
        for number in range(400):
            for size in hot:
                ask(bench, size)
            ask(bench, cold[number % len(cold)])
        stats = stats_of(bench)
        assert stats.captures - 1 <= len(hot) + most_captures(len(cold), 400)
        assert stats.hits >= 400 * len(hot)
        assert not stats.misses.keys() & set(hot)
        assert stats.calls == 400 * (len(hot) + 1) == stats.hits + sum(stats.fallbacks.values())

    def test_a_random_fight_stays_bounded_and_every_total_is_exact(self) -> None:
        draw = random.Random(1)
        bench = lazily(2)
        exactly(bench)
        for _ in range(600):
            ask(bench, draw.choice(SIZES))
        stats = stats_of(bench)
        assert stats.captures - 1 <= most_captures(len(SIZES), 600)
        assert stats.captures - stats.evictions == len(bench.component.available_descriptors)
        assert stats.calls == 600
        assert sum(stats.misses.values()) == sum(stats.fallbacks.values())

    def test_a_fight_for_bytes_is_as_cheap_as_one_for_places(self) -> None:
        bench = lazily(4)
        exactly(bench)
        ask(bench, 8)
        bench.manager.set_budget(bench.manager.memory().total + 64)
        for number in range(300):
            ask(bench, (8, 9)[number % 2])
        stats = stats_of(bench)
        assert 2 < stats.captures - 1 <= most_captures(2, 300)
        assert set(stats.evicted) == {Eviction.budget}
        assert stats.calls == 301

    def test_a_pattern_that_ends_is_forgiven(self) -> None:
        bench = lazily(1)
        exactly(bench)
        for number in range(200):
            ask(bench, SIZES[number % 2])
        for _ in range(8 * MOST):
            ask(bench, SIZES[0])
        assert bench.component.available_descriptors == {4, SIZES[0]}
        for _ in range(MOST + 2):
            ask(bench, SIZES[1])  # takes the place, at last
        assert bench.component.available_descriptors == {4, SIZES[1]}
        before = stats_of(bench).fallbacks[Fallback.not_admitted]
        for _ in range(2):
            ask(bench, SIZES[0])
        assert stats_of(bench).fallbacks[Fallback.not_admitted] == before, "its replays have paid for its return"
        assert bench.component.available_descriptors == {4, SIZES[0]}


class TestStandings:
    def test_each_eviction_doubles_up_to_a_bound(self) -> None:
        admission = Admission(1, protect=True, limit=4)
        for expected in (2, 4, 8, 16, 32, 64, 64):
            admission.evicted("a", hits=0)
            admission.captured("a")
            assert [admission.admits("a") for _ in range(expected)] == [False] * (expected - 1) + [True]
        assert admission.admits("b")

    def test_replays_halve_down_to_what_is_asked_anyway(self) -> None:
        admission = Admission(3, protect=True, limit=4)
        for hits, expected in ((0, 6), (0, 12), (MOST - 1, 24), (MOST, 24), (3 * MOST, 6), (10**9, 3)):
            admission.evicted("a", hits=hits)
            admission.captured("a")
            assert [admission.admits("a") for _ in range(expected)] == [False] * (expected - 1) + [True]

    def test_a_bound_of_its_own_that_is_larger_is_kept(self) -> None:
        admission = Admission(2 * MOST, protect=True, limit=4)
        admission.evicted("a", hits=0)
        assert [admission.admits("a") for _ in range(2 * MOST)].count(True) == 1
