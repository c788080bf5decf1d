"""One first block for all graphs of a pool, where none of them is the largest: a profile finds it, and production gets it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cgstate
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice
from cgstate.backends.sim.errors import SimOutOfMemory
from cgstate.backends.sim.faults import InjectedFault
from cgstate.backends.sim.memory import ITEM_BYTES
from cgstate.runtime.entry import Entry
from cgstate.runtime.lazy import capture_on_miss
from cgstate.runtime.segment_sizes import segments_for
from tests.runtime.shapes import MIB, Shape, Shaped, linear

SCALE = 20 * MIB


def crossed(sizes: int, scale: float = SCALE) -> Shape:
    """Temporaries of which one kind grows as the other shrinks, two of each; no order by size is a good one."""
    rising, falling = linear(scale), linear(-scale, scale * (sizes + 3))
    return Shape([rising, rising, falling, falling], [linear(1)], list(range(2, sizes + 2)), alive=2, inputs=linear(0, 100))


CROSSED = crossed(16)
NESTED = Shape([linear(SCALE)] * 4, [linear(1)], list(range(2, 18)), alive=2, inputs=linear(0, 100))


class Bench:
    """A prepared manager of one component ``c``, largest first or in another order, and how often its work was run."""

    def __init__(self, shape: Shape = CROSSED, *, order: list[int] | None = None, lazy: int = 0, **options: Any) -> None:
        self.device = SimDevice(SimConfig(capacity_bytes=1 << 30))
        self.backend = SimBackend(self.device)
        self.routine = Shaped(self.device, shape)
        self.rounds = 0
        self.during: Callable[[int], object] = lambda round: None
        forward = self.routine.forward_for_capture

        def counted(descriptor: int, buffers: Any) -> object:
            self.rounds += 1
            self.during(self.rounds)
            return forward(descriptor, buffers)

        self.routine.forward_for_capture = counted  # type: ignore[method-assign]
        key = None if order is None else {size: -place for place, size in enumerate(order)}.__getitem__
        mode = cgstate.CaptureMode.PRECAPTURE_LAZY if lazy else cgstate.CaptureMode.PRECAPTURE
        collective = options.pop("collective", False)
        self.component = cgstate.Component(
            "c", self.routine, list(shape.descriptors), capture_order_key=key, capture_mode=mode, collective=collective
        )
        self.manager = cgstate.GraphManager(self.backend, **{"check": True, **options})
        self.manager.prepare([self.component], {"c": {"max_extra_graphs": lazy}} if lazy else None)

    @property
    def common(self) -> dict[Any, int]:
        """What is known of common blocks."""
        return self.manager._books.components["c"].common_blocks

    def profiled(self) -> Bench:
        """Profile."""
        self.estimate = self.manager.profile_memory()
        return self

    def miss(self, descriptor: int) -> object:
        """What a call of that size comes to."""
        resolution = cgstate.Resolution(descriptor, descriptor)
        self.routine.resolve_runtime = lambda args, kwargs, available: resolution  # type: ignore[method-assign]
        return capture_on_miss(self.manager._books.components["c"], self.routine, (), {}, descriptor)

    def held(self) -> int:
        """Bytes held once all is captured."""
        return self.manager.capture_and_bind(progress=False).memory.total


# -- what it is good for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [5, 16, 40])
def test_after_a_profile_a_set_in_which_no_graph_is_the_largest_takes_much_less(sizes: int) -> None:
    bench = Bench(crossed(sizes)).profiled()
    held = bench.held()
    assert held < 0.8 * Bench(crossed(sizes)).held()
    assert bench.estimate.trusted
    assert bench.estimate.lower == held == bench.estimate.upper


def test_no_order_takes_less() -> None:
    sizes, rng = list(CROSSED.descriptors), random.Random(0)
    orders = [sorted(sizes), sizes, *(rng.sample(sizes, len(sizes)) for _ in range(8))]
    least = min(Bench(order=order, check=False).profiled().held() for order in orders)
    assert Bench(check=False).profiled().held() <= 1.02 * least


def test_all_temporaries_of_all_graphs_lie_in_it() -> None:
    bench = Bench().profiled()
    bench.held()
    (pool,) = bench.manager._books.pools
    (size,) = bench.common.values()
    unit = bench.backend.mebibyte
    large = [segment.reserved for segment in pool.handle.segments() if not segment.small and segment.reserved > 32 * unit]
    assert large == [size]


def test_a_later_generation_has_it_as_well() -> None:
    bench = Bench().profiled()
    held = bench.held()
    bench.manager.evict("c")
    bench.manager.reclaim(flush=True)
    assert bench.held() == held


def test_what_the_estimate_needs_is_enough_where_any_warm_up_may_be_the_largest() -> None:
    for sizes in (5, 16, 40):
        bench = Bench(crossed(sizes), check=False).profiled()
        bench.device.memory.foreign_bytes = bench.backend.device_memory().free - bench.estimate.needed
        bench.held()


def test_a_second_profile_says_the_same() -> None:
    bench = Bench().profiled()
    first = bench.estimate
    second = bench.profiled().estimate
    assert (first.lower, first.upper, first.warmup, first.needed) == (second.lower, second.upper, second.warmup, second.needed)
    assert max(sample.grown_bytes for sample in first.samples) < first.warmup < first.upper


@pytest.mark.parametrize("sizes", [16, 40])
def test_what_each_graph_makes_once_is_no_doubt(sizes: int) -> None:
    """Also of those that nobody ran before the block was found."""
    bench = Bench(crossed(sizes))
    made: dict[int, object] = {}
    forward = bench.routine.forward_for_capture

    def work(descriptor: int, buffers: Any) -> object:
        if descriptor not in made:
            made[descriptor] = bench.device.empty(50)
        return forward(descriptor, buffers)

    bench.routine.forward_for_capture = work  # type: ignore[method-assign]
    assert bench.profiled().estimate.distrust == ()
    assert bench.common


# -- when there is none -------------------------------------------------------------------------------------------------


def test_where_smaller_graphs_fit_where_larger_ones_have_been_it_is_not_looked_for() -> None:
    bench = Bench(NESTED).profiled()
    assert bench.common == {}
    assert bench.rounds <= 3 * len(NESTED.descriptors) + 10, "a warm-up, a run, and the trials of the first block"


def test_for_little_it_is_not_looked_for() -> None:
    little = crossed(16, 2 * MIB)
    bench = Bench(little).profiled()
    assert bench.common == {}
    assert bench.rounds < 3 * len(little.descriptors)


def test_no_rank_looks_for_it_where_others_would_have_to_run_as_often() -> None:
    device = SimDevice(SimConfig(capacity_bytes=1 << 30))
    alone, together = Shaped(device, CROSSED), Shaped(device, NESTED)
    for collective in (False, True):
        manager = cgstate.GraphManager(SimBackend(device), check=True)
        others = cgstate.Component("b", together, list(NESTED.descriptors), collective=collective)
        manager.prepare([cgstate.Component("a", alone, list(CROSSED.descriptors)), others])
        manager.profile_memory()
        assert bool(manager._books.components["a"].common_blocks) is not collective
        manager.close()


@pytest.mark.parametrize("options", [{"compact": False}, {"collective": True}, {"isolation": "per_entry"}])
def test_there_is_none(options: dict[str, Any]) -> None:
    """Switched off; where other ranks would have to run as often; where each graph has a pool."""
    assert Bench(**options).profiled().common == {}


def test_a_miss_into_a_fresh_pool_takes_only_what_it_needs() -> None:
    """And the budget does not take what the first graph of a whole set has brought for what it needs alone."""
    with_common, without = Bench(lazy=2).profiled(), Bench(lazy=2)
    for bench in (without, with_common):
        bench.held()
        bench.manager.evict("c")
        bench.manager.reclaim(flush=True)
        if bench is with_common:
            bench.manager.set_budget(without.manager.memory().total)
        entry = bench.miss(max(CROSSED.descriptors))
        assert isinstance(entry, Entry), entry
    assert with_common.manager.memory().total == without.manager.memory().total


# -- what goes wrong ----------------------------------------------------------------------------------------------------


def _rounds(act: Callable[[Bench], object]) -> int:
    bench = Bench()
    act(bench)
    return bench.rounds


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyboardInterrupt(), SimOutOfMemory("full")])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 1.0])
def test_what_the_work_raises_in_a_trial_leaves_nothing(share: float, raised: BaseException) -> None:
    number = int(share * _rounds(Bench.profiled))
    bench = Bench()
    bench.backend.flush()
    before = bench.backend.footprint()

    def fail(current: int) -> None:
        if current == number:
            bench.device.empty(20 * 1024)
            raise raised

    bench.during = fail
    with pytest.raises(KeyboardInterrupt) if isinstance(raised, KeyboardInterrupt) else nullcontext():
        bench.profiled()
    raised.with_traceback(None)
    if isinstance(raised, KeyboardInterrupt):
        assert bench.common == {}
    bench.during = lambda round: None
    bench.backend.flush()
    assert bench.backend.footprint() == before
    assert bench.profiled().held() < 0.8 * Bench().held()


def test_a_trial_that_finds_no_memory_is_one_that_does_not_fit() -> None:
    trials = Bench().profiled().backend.faults.calls["hold"] - 1
    bench = Bench()
    bench.backend.faults.inject("hold", nth=trials, error=SimOutOfMemory("full"))
    assert bench.profiled().estimate.trusted
    assert bench.held() < 0.8 * Bench().held()


def _calls() -> Iterator[tuple[str, int]]:
    bench = Bench()
    bench.profiled()
    for name in ("cached_segments", "flush", "hold", "new_pool", "pool_drop", "pool_segments"):
        made = bench.backend.faults.calls[name]
        yield from ((name, nth) for nth in sorted({made and 1, made // 2, made * 3 // 4, made * 7 // 8, made} - {0}))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "nth"), list(_calls()))
def test_any_call_of_the_device_may_fail(call: str, nth: int, when: str) -> None:
    bench = Bench()
    bench.backend.faults.inject(call, nth=nth, when=when)  # type: ignore[arg-type]
    try:
        bench.profiled()
    except (cgstate.CaptureFailed, InjectedFault) as error:
        error.with_traceback(None)
    bench.backend.faults.clear()
    bench.manager.reclaim(flush=True)
    bench.backend.flush()
    if (call, when) != ("pool_drop", "before"):  # the pool that nobody dropped goes with its last handle
        assert bench.backend.footprint().pools == {}
    assert bench.held() <= Bench().held()
    bench.manager.close()


# -- little memory ------------------------------------------------------------------------------------------------------


def tight(bench: Bench, free: int) -> None:
    """Another process takes what is left on the device beside ``free`` bytes."""
    bench.backend.flush()
    bench.device.memory.foreign_bytes += bench.backend.device_memory().free - free


APART = Shape(
    [linear(0, 1132), lambda size: {50: 54_404, 30: 108_808}[size], lambda size: {50: 28_469, 30: 22_775}[size]],
    [linear(1)],
    [30, 50],
    inputs=linear(0, 384),
)
"""The graph that is captured second takes more than the first. The temporaries of each are in several segments, or in one block."""


def test_a_known_first_block_is_had_where_warm_ups_have_left_the_rest_of_the_device_cached() -> None:
    bench = Bench(APART, isolation="per_entry").profiled()
    tight(bench, bench.estimate.needed)
    assert bench.held() == bench.estimate.upper


def test_it_is_looked_for_there_as_well() -> None:
    whole = Bench(APART, isolation="per_entry").held()
    bench = Bench(APART, isolation="per_entry")
    tight(bench, whole + whole // 5)
    assert bench.held() == whole


# -- static inputs ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(sizes=st.lists(st.sampled_from([1, 100, 800, 1024, 1025, 7000, 9999, 10240, 12000]), max_size=30))
def test_segments_are_counted_as_the_allocator_takes_them(sizes: list[int]) -> None:
    device = SimDevice(SimConfig(capacity_bytes=1 << 30))
    held = [device.empty(max(1, size // ITEM_BYTES)) for size in sizes]
    assert segments_for([size // ITEM_BYTES * ITEM_BYTES or ITEM_BYTES for size in sizes], 1024) == device.reserved_bytes()
    del held


def test_inputs_that_leave_much_of_their_segments_free_are_named() -> None:
    shape = replace(NESTED, inputs=linear(0, 7 * MIB))
    estimate = Bench(shape).profiled().estimate
    assert estimate.parts["buffers"] == 16 * 7 * MIB * ITEM_BYTES
    assert estimate.rounding == 8 * 20 * MIB * ITEM_BYTES - estimate.parts["buffers"]
    scoped = Bench(shape)
    with scoped.manager.profile() as profile:
        scoped.manager.capture_and_bind(progress=False)
    assert profile.estimate.rounding == estimate.rounding
    assert profile.estimate.needed >= profile.estimate.upper + estimate.rounding
