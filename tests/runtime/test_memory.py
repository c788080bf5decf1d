"""Every byte that is held has somebody it is held for, and every way of adding up gives the same (I7)."""

from __future__ import annotations

import io
import json
import random
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from cgstate import CaptureFailed, MemoryReport
from cgstate.backends.sim import SimTensor
from cgstate.backends.sim.memory import ITEM_BYTES
from cgstate.runtime.segment_sizes import LARGE_SEGMENT
from tests.runtime.failing import KIB, Bench, Toy
from tests.runtime.shapes import Shape, linear, manager_of

ISOLATIONS = ["shared", "per_component", "per_entry"]
WORKSPACE = 32 * KIB


def check(bench: Bench) -> MemoryReport:
    """Every sum is the total, and the total is what the allocator has and what is charged."""
    report = bench.manager.memory()
    books = bench.books
    pools = sum(pool.reserved for pool in report.details)
    retired = sum(report.retired.values())
    assert pools == sum(pool.bytes() for pool in books.pools) == sum(pool.charged for pool in books.pools)
    assert report.total == pools + report.buffers == books.budget.held()
    assert sum(report.pools.values()) + retired == pools
    assert sum(report.streams.values()) == pools
    assert sum(c.exclusive for c in report.components) + report.shared + report.stranded + retired == pools
    shared = {entry.pool: entry.shared for entry in report.entries}
    assert sum(e.exclusive for e in report.entries) + sum(shared.values()) + report.stranded + retired == pools
    assert sum(e.buffers for e in report.entries) + report.retired_buffers == report.buffers
    assert sum(c.buffers for c in report.components) == sum(e.buffers for e in report.entries)
    assert sum(c.entries for c in report.components) == len(report.entries) == sum(pool.entries for pool in report.details)
    assert sum(pool.workspaces for pool in report.details) <= pools
    return report


def test_a_pool_of_one_component_is_its_own() -> None:
    report = check(Bench("a", "b", isolation="per_component").serving())
    assert [component.component for component in report.components] == ["a", "b"]
    for component in report.components:
        assert component.exclusive > WORKSPACE
        assert component.shared == 0
        assert component.entries == 3
    assert report.shared == 0
    assert all(entry.shared > WORKSPACE and not entry.exclusive for entry in report.entries)


def test_a_pool_of_several_is_shared() -> None:
    report = check(Bench("a", "b").serving())
    (pool,) = report.details
    assert pool.components == ("a", "b")
    assert report.shared == pool.reserved > WORKSPACE
    assert {component.shared for component in report.components} == {pool.reserved}
    assert not any(component.exclusive for component in report.components)


def test_a_pool_of_one_entry_is_its_own() -> None:
    report = check(Bench(isolation="per_entry").serving())
    assert len(report.details) == 3
    assert all(entry.exclusive > WORKSPACE and not entry.shared for entry in report.entries)
    assert len(report.streams) == 3
    assert all(pool.workspaces == WORKSPACE for pool in report.details)


def test_an_evicted_entry_is_retired_until_its_bytes_are_given_back() -> None:
    bench = Bench(isolation="per_entry").serving()
    held = bench.manager.memory()
    bench.component(bench.device.rand(4, 4))  # still on its way: the reclaimer has to wait
    bench.manager.evict("toy", 4)
    report = check(bench)
    assert report.total == held.total
    assert sum(report.retired.values()) == WORKSPACE + 2 * KIB
    assert report.retired_buffers == 4 * 4 * 8
    bench.manager.reclaim(flush=True)
    report = check(bench)
    assert report.retired == {}
    assert report.total == held.total - WORKSPACE - 2 * KIB - 4 * 4 * 8


def test_what_a_failed_attempt_grew_beside_others_is_stranded() -> None:
    bench = Bench().serving()
    x = bench.device.zeros(2, 4)
    held = check(bench).total

    def fail() -> SimTensor:
        bench.device.empty(20 * KIB // 8)
        raise ValueError("boom")

    for _ in range(2):  # the second attempt finds the room of the first
        with pytest.raises(CaptureFailed), bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("own", 1), lambda warmup: (lambda: bench.routine.work(x)) if warmup else fail)
        bench.manager.forget_failures()
        report = check(bench)
        assert report.stranded == report.total - held == 20 * KIB
    bench.manager.release()
    assert bench.manager.memory().total == 0


def test_what_a_dropped_capture_grew_beside_others_is_stranded() -> None:
    bench = Bench().serving()
    x = bench.device.zeros(2, 4)
    held = check(bench).total

    def work() -> SimTensor:
        bench.device.empty(20 * KIB // 8)
        return bench.routine.work(x)

    for _ in range(2):  # the second one finds the room of the first
        with suppress(KeyError), bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("own", 1), lambda warmup: (lambda: bench.routine.work(x)) if warmup else work)
            raise KeyError
        bench.manager.reclaim(flush=True)
        report = check(bench)
        assert report.stranded == report.total - held >= 20 * KIB
    bench.manager.release()
    assert bench.manager.memory().total == 0


def test_what_is_free_on_a_stream_that_captures_no_more_is_stranded() -> None:
    bench = Bench().serving()
    domain = next(iter(bench.books.domains.values()))
    x = bench.device.zeros(2, 4)
    with bench.books.gate.lock:
        domain.leave_stream(bench.books)
    with bench.manager.transaction() as transaction:
        transaction.capture(bench.manager.entry("own", 1), lambda warmup: lambda: bench.routine.work(x))
    report = check(bench)
    old, new = report.details[0].streams
    assert (old.captures, new.captures) == (False, True)
    assert report.stranded == old.reserved - old.live > 0


def test_it_can_be_printed_and_written_down() -> None:
    report = check(Bench("a", "b", isolation="per_component").serving())
    assert json.loads(json.dumps(report.as_dict()))["total"] == report.total
    console = Console(width=100, file=io.StringIO())
    console.print(report)
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # an IO of strings
    assert "a: pools of 3 graphs" in shown
    numbers = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) *$", shown, re.MULTILINE)]
    assert sum(numbers[:-1]) == numbers[-1] == report.total


ACTS = ["call", "evict", "capture", "fail", "reclaim", "flush", "profile", "invalidate", "release"]


@settings(max_examples=40, deadline=None)
@given(
    acts=st.lists(st.sampled_from(ACTS), min_size=1, max_size=12), isolation=st.sampled_from(ISOLATIONS), seed=st.integers(0, 99)
)
def test_the_sums_agree_after_every_step_of_any_history(acts: list[str], isolation: str, seed: int) -> None:
    bench = Bench("a", "b", isolation=isolation, component={"dependencies": ["kv"]}).prepared()
    rng = random.Random(seed)
    grow = [(KIB << rng.randrange(5)) // 8]

    def body(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
        routine.device.empty(grow[0])

    for act in acts:
        state = bench.manager.state
        name = rng.choice(["a", "b"])
        match act:
            case "call":
                bench.components[name](bench.device.rand(rng.randrange(1, 18), 4))
            case "evict":
                bench.manager.evict(name)
            case "capture":
                bench.routines[name].body = body
                bench.manager.capture_and_bind()
            case "fail":
                bench.routines[name].fail("capture", ValueError("boom"))
                with suppress(CaptureFailed):
                    bench.manager.capture_and_bind()
                bench.routines[name].cure()
            case "reclaim" | "flush":
                bench.manager.reclaim(flush=act == "flush")
            case "profile" if state == "PREPARED":
                bench.manager.profile_memory()
            case "invalidate":
                bench.manager.invalidate("kv")
            case "release" if state == "SERVING":
                bench.manager.release()
            case _:
                pass
        check(bench)
    bench.manager.close()
    assert check(bench).total == 0


@pytest.mark.parametrize("sizes", [[2**power for power in range(13)], list(range(10, 400, 30))], ids=["doubling", "even"])
def test_largest_first_costs_no_more_than_any_other_order(sizes: list[int]) -> None:
    shape = Shape([linear(8), linear(32), linear(32), linear(8)] * 2, [linear(2)], sizes)

    def held(order: list[int]) -> int:
        manager = manager_of(shape, check=False, order=order)
        return manager.capture_and_bind(progress=False).memory.total

    rng = random.Random(0)
    others = [sorted(sizes), rng.sample(sizes, len(sizes)), *(rng.sample(sizes, len(sizes)) for _ in range(20))]
    assert held(sorted(sizes, reverse=True)) <= 1.02 * min(map(held, others))


def test_static_inputs_of_many_pools_lie_in_the_same_segments() -> None:
    """A stream has segments of its own (fact P4): capture streams would each take one for them that no report counts."""
    bench = Bench(isolation="per_entry", descriptors=tuple(range(300, 332))).serving()
    counted, reserved = bench.manager.memory().total, bench.footprint().reserved
    assert counted <= reserved <= counted + 2 * LARGE_SEGMENT * bench.backend.mebibyte


@pytest.mark.parametrize("lazily", [False, True])
def test_what_is_only_cached_keeps_no_graph_from_being_captured(lazily: bool) -> None:
    bench = Bench.lazily(isolation="per_entry") if lazily else Bench(isolation="per_entry")
    bench.serving() if lazily else bench.prepared()
    x = bench.device.zeros(8, 4)
    left = bench.backend.device_memory().free - 8 * KIB  # a workspace takes 32
    cached = bench.device.empty(left // ITEM_BYTES)
    del cached
    if lazily:
        bench.component(x)
        bench.component(x)
        assert bench.manager.stats().components["toy"].hits == 2
    else:
        bench.manager.capture_and_bind(progress=False)
    bench.quiet()
