"""The profiling scope: whatever is captured inside is measured, and nothing of it is left (I4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from cgstate import (
    CaptureActive,
    CaptureFailed,
    CaptureMode,
    ConfigError,
    Fallback,
    IllegalTransition,
    ManagerClosed,
    ManagerPoisoned,
    ManagerState,
)
from cgstate.backends.sim import SimTensor
from tests.runtime.failing import Bench
from tests.runtime.helpers import elsewhere

ISOLATIONS = ["shared", "per_component", "per_entry"]


def make(bench: Bench, x: SimTensor, cells: int = 0) -> Callable[[bool], Callable[[], SimTensor]]:
    """Work of a runner with buffers of its own."""

    def body() -> SimTensor:
        scratch = bench.device.empty(max(1, cells))
        assert scratch.shape
        return bench.routine.work(x)

    return lambda warmup: body


def books_of(bench: Bench) -> dict[str, Any]:
    """Everything that the books know."""
    books = bench.books
    return {
        "states": bench.states(),
        "entries": {name: list(record.entries) for name, record in books.components.items()},
        "held": {name: record.held for name, record in books.components.items()},
        "dependencies": {name: set(each.components) for name, each in books.dependencies.items()},
        "domains": list(books.domains),
        "pools": list(books.pools),
        "streams": (list(books.idle_streams), list(books.spent_streams), bench.device.streams.exclusive),
        "stats": bench.manager.stats(),
        "failures": len(books.negative),
    }


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_captures_are_measured_and_leave_nothing(isolation: str) -> None:
    bench = Bench(isolation=isolation).prepared()
    x = bench.device.zeros(2, 4)
    known = bench.manager.entry("own", 0, dependencies=["weights"])
    before, footprint = books_of(bench), bench.backend.footprint()
    with bench.manager.profile() as profile:
        assert bench.states()["manager"] == "PROFILING"
        with bench.manager.transaction() as transaction:
            transaction.capture(known, make(bench, x))
            transaction.capture(bench.manager.entry("own", 1), make(bench, x, 3000))
        with bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("made inside", 2, dependencies=["kv", "weights"]), make(bench, x))
            transaction.commit()
        assert bench.manager.memory().total > 0
    assert books_of(bench) == before
    assert bench.backend.footprint() == footprint
    assert bench.manager.state is ManagerState.PREPARED
    assert known.state == "EAGER"
    assert [sample.component for sample in profile.samples] == ["own", "own", "made inside"]
    bench.quiet()
    estimate = profile.estimate
    assert estimate.trusted
    assert estimate.graphs == 3
    with bench.manager.transaction() as transaction:
        transaction.capture(known, make(bench, x))
        transaction.capture(bench.manager.entry("own", 1), make(bench, x, 3000))
        transaction.capture(bench.manager.entry("made inside", 2), make(bench, x))
    assert estimate.lower == bench.manager.memory().total == estimate.upper


def test_all_captures_of_one_shared_domain_go_into_one_pool_and_stream() -> None:
    bench = Bench().prepared()
    x = bench.device.zeros(2, 4)
    with bench.manager.profile():
        for number in range(3):
            with bench.manager.transaction() as transaction:
                transaction.capture(bench.manager.entry(f"component {number}", 1), make(bench, x))
        (pool,) = bench.manager.memory().details
        assert pool.entries == 3
        assert len(pool.streams) == 1
        assert pool.kind == "throwaway"


def test_components_are_profiled_by_capture_and_bind_as_well() -> None:
    bench = Bench("a", "b").prepared()
    before, footprint = books_of(bench), bench.backend.footprint()
    with bench.manager.profile() as profile:
        report = bench.manager.capture_and_bind()
        assert report.bound == {}
        bench.answers()  # eagerly
        assert bench.components["a"].state == "EAGER"
    assert profile.estimate.graphs == 6
    assert bench.backend.footprint().pools == footprint.pools
    assert bench.backend.footprint().reserved == footprint.reserved
    assert books_of(bench)["entries"] == before["entries"] == {"a": [], "b": []}
    assert bench.manager.capture_and_bind().memory.total == profile.estimate.upper


def test_what_was_made_inside_cannot_be_bound_afterwards() -> None:
    bench = Bench().prepared()
    x = bench.device.zeros(2, 4)
    with bench.manager.profile():
        stale = bench.manager.entry("own", 1)
    with pytest.raises(ConfigError, match="forgotten"), bench.manager.transaction() as transaction:
        transaction.capture(stale, make(bench, x))
    with bench.manager.transaction() as transaction:
        transaction.capture(bench.manager.entry("own", 1), make(bench, x))
    assert bench.manager.entry("own", 1).state == "BOUND"
    bench.quiet()


def test_a_miss_captures_nothing_while_profiling() -> None:
    bench = Bench.lazily().prepared()
    with bench.manager.profile() as profile:
        bench.call(8)
    assert profile.samples == ()
    assert bench.manager.stats().components["toy"].fallbacks == {"not_serving": 1}
    assert (profile.estimate.lower, profile.estimate.upper) == (0, 0)


def test_an_exception_in_the_block_cleans_up_and_goes_on_as_it_is() -> None:
    bench = Bench().prepared()
    x = bench.device.zeros(2, 4)
    before, footprint = books_of(bench), bench.backend.footprint()
    error = RuntimeError("boom")
    profile: cgstate.Profile | None = None

    def run() -> None:
        nonlocal profile
        with bench.manager.profile() as profile:
            with bench.manager.transaction() as transaction:
                transaction.capture(bench.manager.entry("own", 1), make(bench, x))
            raise error

    with pytest.raises(RuntimeError) as caught:
        run()
    assert caught.value is error
    assert (books_of(bench), bench.backend.footprint()) == (before, footprint)
    assert profile is not None
    with pytest.raises(IllegalTransition):
        _ = profile.estimate
    bench.quiet()
    bench.manager.capture_and_bind()


def test_the_first_error_wins_over_that_of_the_cleaning_up() -> None:
    bench = Bench().prepared()
    x = bench.device.zeros(2, 4)
    error = RuntimeError("boom")

    def run() -> None:
        with bench.manager.profile():
            with bench.manager.transaction() as transaction:
                transaction.capture(bench.manager.entry("own", 1), make(bench, x))
            bench.faults.inject("flush", error=OSError("no flush today"))
            raise error

    with pytest.raises(RuntimeError) as caught:
        run()
    assert caught.value is error
    assert any("no flush today" in note for note in error.__notes__)
    assert bench.manager.state is ManagerState.PREPARED
    bench.manager.capture_and_bind()
    bench.answers()


def test_a_failed_capture_is_a_sample_and_the_profile_goes_on() -> None:
    bench = Bench().prepared()
    x = bench.device.zeros(2, 4)
    before, footprint = books_of(bench), bench.backend.footprint()

    def fail() -> SimTensor:
        raise ValueError("no")

    with bench.manager.profile() as profile:
        with pytest.raises(CaptureFailed), bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("own", 1), lambda warmup: fail)
        with bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("own", 1), make(bench, x))
    assert [sample.error is None for sample in profile.samples] == [False, True]
    assert not profile.estimate.trusted
    assert profile.estimate.graphs == 1
    assert (books_of(bench), bench.backend.footprint()) == (before, footprint)


def test_the_device_may_be_lost_inside() -> None:
    bench = Bench(check=False).prepared()
    x = bench.device.zeros(2, 4)

    def lose() -> SimTensor:
        bench.device.lose()
        return bench.routine.work(x)

    with pytest.raises(CaptureFailed), bench.manager.profile():
        with bench.manager.transaction() as transaction:
            transaction.capture(bench.manager.entry("own", 1), lambda warmup: lose)
    assert bench.manager.state is ManagerState.POISONED
    with pytest.raises(ManagerPoisoned), bench.manager.profile():
        raise AssertionError("never")


class TestRefused:
    """Typed, changes nothing, works once the condition is cured."""

    def test_unless_prepared(self) -> None:
        bench = Bench()
        with pytest.raises(IllegalTransition), bench.manager.profile():
            raise AssertionError("never")
        bench.serving()
        states = bench.states()
        with pytest.raises(IllegalTransition), bench.manager.profile():
            raise AssertionError("never")
        assert bench.states() == states
        bench.answers()
        bench.manager.release()
        with bench.manager.profile():
            pass
        bench.manager.close()
        with pytest.raises(ManagerClosed), bench.manager.profile():
            raise AssertionError("never")

    def test_inside_each_other(self) -> None:
        bench = Bench().prepared()
        manager = bench.manager
        with manager.profile():
            for act in (
                manager.profile_memory,
                manager.close,
                manager.release,
                lambda: manager.evict("toy"),
                lambda: manager.prepare([]),
            ):
                with pytest.raises(CaptureActive):
                    act()
            with manager.transaction(), pytest.raises(CaptureActive), manager.transaction():
                raise AssertionError("never")
        with manager.transaction(), pytest.raises(CaptureActive), manager.profile():
            raise AssertionError("never")

    def test_inside_a_component_call(self) -> None:
        bench = Bench().prepared()
        refused: list[type[BaseException]] = []

        def profile() -> None:
            try:
                with bench.manager.profile():
                    raise AssertionError("never")
            except CaptureActive as refusal:
                refused.append(type(refusal))

        with bench.manager.profile():
            bench.call(4)
        bench.manager.capture_and_bind()
        bench.routine.during["copy_runtime_inputs"] = profile
        bench.call(4)
        assert refused == [CaptureActive]

    def test_the_estimate_before_the_end(self) -> None:
        bench = Bench().prepared()
        with bench.manager.profile() as profile, pytest.raises(IllegalTransition):
            _ = profile.estimate
        assert profile.estimate.upper == 0

    def test_a_pool_after_the_end(self) -> None:
        bench = Bench().prepared()
        with bench.manager.profile() as profile:
            profile.pool_id()
        before, footprint = books_of(bench), bench.backend.footprint()
        with pytest.raises(IllegalTransition, match="the profile has not ended"):
            profile.pool_id()
        with bench.manager.profile(), pytest.raises(IllegalTransition):  # another one
            profile.pool_id()
        assert (books_of(bench), bench.backend.footprint()) == (before, footprint)

    def test_after_a_commit_of_the_same_transaction(self) -> None:
        bench = Bench().prepared()
        x = bench.device.zeros(2, 4)
        with bench.manager.profile(), bench.manager.transaction() as transaction:
            transaction.commit()
            with pytest.raises(IllegalTransition):
                transaction.capture(bench.manager.entry("own", 1), make(bench, x))


class TestOtherManagers:
    """Inside a profile its thread captures nothing real, for no manager of the device; other threads do as they like."""

    def test_what_this_thread_captures_for_another_one_is_refused_and_works_afterwards(self) -> None:
        bench = Bench().prepared()
        other = Bench("other", backend=bench.backend).prepared()
        x = bench.device.zeros(2, 4)
        own = other.manager.entry("own", 1)
        states, footprint = other.states(), bench.backend.footprint()
        with bench.manager.profile() as profile:
            for act in (other.manager.capture_and_bind, lambda: other.manager.transaction().__enter__()):
                with pytest.raises(CaptureActive, match=f"profile of {bench.books.name}"):
                    act()
            assert (other.states(), bench.backend.footprint()) == (states, footprint)
            bench.manager.capture_and_bind()
        assert profile.estimate.trusted
        assert bench.backend.footprint().pools == footprint.pools
        other.manager.capture_and_bind()
        with other.manager.transaction() as transaction:
            transaction.capture(own, make(bench, x))
        other.answers()
        assert bench.manager.capture_and_bind().memory.total == profile.estimate.upper

    def test_also_of_a_transaction_and_for_a_manager_that_were_there_before(self) -> None:
        bench = Bench().prepared()
        other = Bench("other", backend=bench.backend).prepared()
        x = bench.device.zeros(2, 4)
        own = other.manager.entry("own", 1)
        with other.manager.transaction() as transaction:
            with bench.manager.profile():
                with pytest.raises(CaptureActive, match=f"profile of {bench.books.name}"):
                    transaction.capture(own, make(bench, x))
            transaction.capture(own, make(bench, x))
        assert own.state == "BOUND"

    def test_a_miss_of_another_one_is_eager_and_its_replays_go_on(self) -> None:
        bench = Bench().prepared()
        other = Bench(
            "other",
            backend=bench.backend,
            descriptors=(4,),
            mode=CaptureMode.PRECAPTURE_LAZY,
            lazy=(8,),
            config={"max_extra_graphs": 1},
        ).serving()
        with bench.manager.profile() as profile:
            other.answers(8, 4)
        stats = other.manager.stats().components["other"]
        assert (stats.hits, stats.captures, stats.fallbacks) == (1, 1, {Fallback.capture_busy: 1})
        assert profile.estimate.trusted
        other.answers(8)
        assert other.manager.stats().components["other"].captures == 2

    def test_a_capture_of_another_one_in_another_thread_is_doubted_and_a_replay_is_not(self) -> None:
        bench = Bench().prepared()
        other = Bench("other", backend=bench.backend).prepared()
        with bench.manager.profile() as profile:
            bench.manager.capture_and_bind()
            assert elsewhere(lambda: other.manager.capture_and_bind().bound) == {"other": 3}
        assert not profile.estimate.trusted
        assert profile.estimate.distrust == (f"{other.books.name} captured in another thread meanwhile",)
        assert other.manager.state is ManagerState.SERVING
        with bench.manager.profile() as profile:
            bench.manager.capture_and_bind()
            elsewhere(other.answers)
        assert profile.estimate.trusted

    def test_another_one_may_profile_inside(self) -> None:
        bench = Bench().prepared()
        other = Bench("other", backend=bench.backend).prepared()
        with bench.manager.profile() as profile:
            bench.manager.capture_and_bind()
            estimate = other.manager.profile_memory(thorough=True)
        assert estimate.trusted
        assert profile.estimate.trusted
        assert profile.estimate.upper == bench.manager.capture_and_bind().memory.total

    def test_a_component_that_is_made_inside_cannot_be_prepared_there_and_the_refusal_says_what_to_do(self) -> None:
        bench = Bench().prepared()
        made = cgstate.Component("made", bench.routine, [4, 8])
        with bench.manager.profile(), pytest.raises(CaptureActive, match="prepare components before"):
            bench.manager.prepare([made])
        assert bench.states() == Bench().prepared().states()
        with cgstate.GraphManager(bench.backend, check=True) as another:
            another.prepare([made])
            another.capture_and_bind()
            assert made.is_bound


def test_another_thread_waits_for_the_profile_to_end() -> None:
    bench = Bench().prepared()
    with bench.manager.profile():
        assert elsewhere(lambda: bench.component.state) == "EAGER"
        with pytest.raises(CaptureActive):
            bench.manager.evict("toy")
    assert elsewhere(lambda: bench.manager.capture_and_bind().bound) == {"toy": 3}


def test_an_entry_is_captured_once_in_a_profile_as_it_would_be_bound_once() -> None:
    bench = Bench().prepared()
    x = bench.device.zeros(2, 4)
    entry = bench.manager.entry("own", 1)
    with bench.manager.profile():
        with bench.manager.transaction() as transaction:
            transaction.capture(entry, make(bench, x))
        with pytest.raises(IllegalTransition), bench.manager.transaction() as transaction:
            transaction.capture(entry, make(bench, x))
    assert isinstance(entry, cgstate.Entry)
    bench.quiet()
