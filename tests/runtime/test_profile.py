"""Profiling measures and leaves nothing behind (I4)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cgstate import CaptureFailed, CaptureMode, FailureKind, IllegalTransition, ManagerState
from cgstate.backends.sim import SimTensor
from tests.runtime.failing import Bench, Toy

ISOLATIONS = ["shared", "per_component", "per_entry"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")])
def test_profiling_leaves_everything_as_it_was(names: tuple[str, ...], isolation: str) -> None:
    bench = Bench(*names, isolation=isolation).prepared()
    before, states, stats = bench.footprint(), bench.states(), bench.manager.stats().components
    bench.manager.profile_memory()
    exclusive = bench.device.streams.exclusive
    assert exclusive == len(bench.books.idle_streams)  # kept for the captures to come
    bench.manager.profile_memory()
    assert bench.footprint() == before
    assert bench.states() == states
    assert bench.manager.stats().components == stats
    assert bench.books.pools == []
    assert not any(domain.entries for domain in bench.books.domains.values())
    assert bench.device.streams.exclusive == exclusive
    assert bench.manager.state is ManagerState.PREPARED
    bench.quiet()


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")])
def test_the_estimate_holds_what_is_captured_then(names: tuple[str, ...], isolation: str) -> None:
    bench = Bench(*names, isolation=isolation).prepared()
    estimate = bench.manager.profile_memory()
    actual = bench.manager.capture_and_bind().memory.total
    assert estimate.lower <= actual <= estimate.upper
    assert estimate.trusted
    assert estimate.graphs == 3 * len(names)
    assert {sample.component for sample in estimate.samples} == set(names)


def test_profiling_twice_says_the_same() -> None:
    bench = Bench("a", "b").prepared()
    assert bench.manager.profile_memory() == bench.manager.profile_memory()


def test_a_foreign_allocation_does_not_change_the_estimate() -> None:
    bench = Bench().prepared()
    first = bench.manager.profile_memory()
    held = bench.device.zeros(5000)
    assert bench.manager.profile_memory() == first
    assert held.shape == (5000,)


def test_streams_that_graphs_own_alone_are_never_those_that_were_profiled_on() -> None:
    bench = Bench("a", isolation="per_entry").prepared()
    bench.manager.profile_memory()
    bench.manager.profile_memory()
    bench.manager.capture_and_bind()
    pooled = {queue.handle for queue in bench.device.streams._pool}
    handles = [domain.stream.handle for domain in bench.books.domains.values() if domain.stream is not None]
    assert len(handles) == len(set(handles)) == 3
    assert not pooled & set(handles)


def test_a_component_may_have_any_name() -> None:
    bench = Bench("profile", "shared", "profile[4]", isolation="per_component").serving()
    bench.answers()
    assert len({pool.id for pool in bench.books.pools}) == 3
    bench.manager.release()
    bench.manager.profile_memory()
    bench.manager.capture_and_bind()
    bench.answers()
    assert bench.manager.evict("profile") == 3
    assert {name: component.state for name, component in bench.components.items()} == {
        "profile": "EVICTED",
        "shared": "BOUND",
        "profile[4]": "BOUND",
    }
    bench.manager.release()
    assert bench.manager.memory().total == 0
    bench.quiet()


@dataclass(frozen=True)
class Hidden:
    size: int
    shown: str = field(repr=False)


def test_descriptors_that_look_alike_have_domains_of_their_own() -> None:
    bench = Bench(isolation="per_entry").serving()
    x = bench.device.zeros(2, 4)
    first, second = (bench.manager.entry("own", Hidden(1, shown)) for shown in "ab")
    with bench.manager.transaction() as transaction:
        for entry in (first, second):
            transaction.capture(entry, lambda warmup: lambda: bench.routine.work(x))
    assert bench.manager.evict("own", Hidden(1, "a")) == 1
    assert second.state == "BOUND"
    assert len(bench.manager.memory().pools) == 4


def test_what_cannot_be_captured_goes_into_the_estimate_and_marks_nothing() -> None:
    bench = Bench().prepared()
    bench.routine.fail("capture", ValueError("boom"))
    states = bench.states()
    estimate = bench.manager.profile_memory()
    assert not estimate.trusted
    assert [sample.error is None for sample in estimate.samples] == [False, True]
    assert "boom" in str(estimate.samples[0].error)
    assert bench.states() == states
    assert bench.manager.stats().components["toy"].failures == {}
    assert len(bench.books.negative) == 0
    bench.manager.capture_and_bind()


def test_without_any_static_inputs_there_is_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("a", "b").prepared()
    states, before = bench.states(), bench.footprint()

    def unable(routine: Toy, descriptor: int) -> SimTensor:
        cells = routine.device.zeros(descriptor)
        raise ValueError(f"not {cells.shape}")

    monkeypatch.setattr(Toy, "allocate_buffers", unable)
    with pytest.raises(CaptureFailed) as failed:
        bench.manager.profile_memory()
    assert (failed.value.kind, failed.value.component, failed.value.descriptor) == (FailureKind.USER, "a", 16)
    assert isinstance(failed.value.__cause__, ValueError)
    assert (bench.states(), bench.footprint()) == (states, before)
    assert len(bench.books.negative) == 0
    bench.quiet()
    monkeypatch.undo()
    bench.routines["a"].fail("allocate_buffers", ValueError("just this one"))
    estimate = bench.manager.profile_memory()
    assert (estimate.trusted, estimate.graphs) == (False, 6)
    assert bench.manager.profile_memory().trusted
    bench.manager.capture_and_bind()


def test_a_body_out_of_memory_is_an_estimate_that_is_not_trusted() -> None:
    bench = Bench().prepared()
    before = bench.footprint()

    def fill(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
        routine.device.zeros(1 << 20)

    bench.routine.body = fill
    assert not bench.manager.profile_memory().trusted
    bench.routine.cure()
    assert bench.footprint() == before
    bench.quiet()


def test_components_that_come_by_misses_cost_nothing_at_startup() -> None:
    bench = Bench(mode=CaptureMode.PURE_LAZY).prepared()
    estimate = bench.manager.profile_memory()
    assert (estimate.lower, estimate.upper, estimate.graphs, estimate.samples) == (0, 0, 0, ())


def test_a_manager_without_components_estimates_nothing() -> None:
    bench = Bench()
    bench.manager.prepare([])
    assert bench.manager.profile_memory().upper == 0


def test_only_a_prepared_manager_profiles() -> None:
    bench = Bench()
    with pytest.raises(IllegalTransition):
        bench.manager.profile_memory()
    bench.serving()
    states, before = bench.states(), bench.footprint()
    with pytest.raises(IllegalTransition):
        bench.manager.profile_memory()
    assert (bench.states(), bench.footprint()) == (states, before)
    bench.answers()
    bench.manager.release()
    bench.manager.profile_memory()


def test_profiling_after_a_release_leaves_nothing_either() -> None:
    bench = Bench("a", "b", isolation="per_entry").serving()
    bench.manager.release()
    before = bench.footprint()
    first = bench.manager.profile_memory()
    assert bench.footprint() == before
    assert bench.manager.profile_memory() == first
    bench.manager.capture_and_bind()
    bench.answers()
