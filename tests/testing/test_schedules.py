"""The scheduler decides every interleaving, finds what is wrong in one, and can do it again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgstate.backends.sim.host import current_host
from cgstate.errors import ConfigError
from cgstate.runtime.sync import Lock
from cgstate.testing.schedules import (
    Case,
    Deadlock,
    Drawn,
    Endless,
    Explored,
    NotDeterministic,
    NotReplayed,
    ScheduleError,
    ScheduleFailed,
    Scheduler,
    Unscheduled,
    explore,
    replay,
    run_once,
    sample,
)
from cgstate.testing.schedules import scheduler as scheduler_module
from cgstate.testing.schedules.choosing import Deviations, Uniform, parse
from cgstate.testing.schedules.program import Decision
from cgstate.testing.schedules.strategies import moves


def counters(programs: int = 2, rounds: int = 1, *, torn: bool) -> Callable[[Scheduler], Case]:
    """Programs that count up; ``torn``: the number is read and written in two locked sections."""

    def make(sync: Scheduler) -> Case:
        lock, number = sync.lock(), [0]

        def count() -> None:
            for _ in range(rounds):
                if torn:
                    with lock:
                        before = number[0]
                    with lock:
                        number[0] = before + 1
                else:
                    with lock:
                        number[0] += 1

        def finish() -> None:
            assert number[0] == programs * rounds, f"{number[0]}"

        return Case(dict.fromkeys("abcd"[:programs], count), finish)

    return make


def crossing(sync: Scheduler) -> Case:
    """Two programs that take two locks in two orders."""
    locks = sync.lock(), sync.lock()

    def both(first: int) -> Callable[[], None]:
        def take() -> None:
            with locks[first]:
                with locks[1 - first]:
                    pass

        return take

    return Case({"a": both(0), "b": both(1)})


class TestExploring:
    def test_a_torn_update_takes_one_preemption(self) -> None:
        assert explore(counters(torn=True), preemptions=0) == Explored(2, (2,), 3, complete=True)
        with pytest.raises(ScheduleFailed) as found:
            explore(counters(torn=True), preemptions=1)
        assert found.value.schedule == "a:lock(counters.make.count)#2>b"
        assert isinstance(found.value.__cause__, AssertionError)

    def test_what_is_right_is_right_in_every_schedule(self) -> None:
        """Each program has four pieces; with 3 preemptions one of them comes in three parts around two parts of the other."""
        assert explore(counters(rounds=3, torn=False), preemptions=3) == Explored(44, (2, 6, 18, 18), 7, complete=True)

    def test_each_interleaving_comes_once(self) -> None:
        """Two programs of n points have binomial(2n, n) interleavings; no bound that matters leaves one out or repeats one."""
        seen: list[str] = []

        def make(sync: Scheduler) -> Case:
            order: list[str] = []

            def steps(name: str) -> Callable[[], None]:
                def run() -> None:
                    for _ in range(2):
                        sync.pause("step")
                        order.append(name)

                return run

            return Case({"a": steps("a"), "b": steps("b")}, lambda: seen.append("".join(order)))

        explored = explore(make, preemptions=9)
        assert set(seen) == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}
        assert explored.schedules == len(seen) == 20  # a program's beginning is a step as well: binomial(6, 3)

    def test_three_programs_come_in_every_order(self) -> None:
        assert explore(counters(3, torn=False), preemptions=0).schedules == 6

    def test_a_limit_makes_it_incomplete(self) -> None:
        assert explore(counters(rounds=3, torn=False), limit=5) == Explored(5, (2, 3, 0), 7, complete=False)

    def test_what_is_looked_at_after_a_release_is_found_when_releases_are_points(self) -> None:
        def make(sync: Scheduler) -> Case:
            lock, shared = sync.lock(), [0]

            def write() -> None:
                with lock:
                    shared[0] += 1

            def look() -> None:
                with lock:
                    before = shared[0]
                assert shared[0] == before

            return Case({"looker": look, "writer": write})

        assert explore(make).complete
        with pytest.raises(ScheduleFailed, match=r'schedule="looker:unlock\(.*look\)>writer"'):
            explore(make, releases=True)

    @pytest.mark.parametrize("wrong", [{"preemptions": -1}])
    def test_a_bound_must_be_a_count(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ConfigError):
            explore(counters(torn=False), **wrong)  # type: ignore[arg-type]  # that is the point


class TestDrawing:
    @pytest.mark.parametrize("depth", [None, 2, 3])
    def test_drawn_schedules_find_it(self, depth: int | None) -> None:
        with pytest.raises(ScheduleFailed) as found:
            sample(counters(rounds=3, torn=True), schedules=200, depth=depth)
        with pytest.raises(ScheduleFailed):
            replay(counters(rounds=3, torn=True), found.value.schedule)

    def test_the_same_seed_draws_the_same(self) -> None:
        def drawn(seed: int) -> list[str]:
            random = Random(seed)
            return [run_once(counters(rounds=3, torn=False), Uniform(random)) for _ in range(5)]

        assert drawn(1) == drawn(1) != drawn(2)

    @pytest.mark.parametrize("wrong", [{"schedules": 0}, {"schedules": 1, "depth": 0}])
    def test_counts_must_be_positive(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ConfigError):
            sample(counters(torn=False), **wrong)  # type: ignore[arg-type]  # that is the point

    @settings(max_examples=50, deadline=None)
    @given(rounds=st.integers(1, 3), chooser=moves())
    def test_programs_and_schedules_are_drawn_together(self, rounds: int, chooser: Drawn) -> None:
        run_once(counters(rounds=rounds, torn=False), chooser)

    def test_both_shrink(self) -> None:
        failing: list[tuple[int, tuple[tuple[int, int], ...], str]] = []

        @settings(max_examples=200, deadline=None, database=None, derandomize=True, report_multiple_bugs=False)
        @given(rounds=st.integers(1, 3), chooser=moves())
        def search(rounds: int, chooser: Drawn) -> None:
            try:
                run_once(counters(rounds=rounds, torn=True), chooser)
            except ScheduleFailed as error:
                failing.append((rounds, chooser.moves, error.schedule))
                raise

        with pytest.raises(ScheduleFailed):
            search()
        rounds, shrunk, schedule = failing[-1]
        assert (rounds, len(shrunk), schedule) == (1, 1, "a:lock(counters.make.count)#2>b")


class TestReplaying:
    def test_a_string_runs_the_schedule_that_it_came_from(self) -> None:
        random = Random(3)
        for _ in range(20):
            schedule = run_once(counters(3, 2, torn=False), Uniform(random))
            again: list[str] = []

            def make(sync: Scheduler, again: list[str] = again) -> Case:
                case = counters(3, 2, torn=False)(sync)
                return Case(case.programs, lambda: again.extend(d.candidates[d.chosen] for d in sync.decisions))

            replay(make, schedule)
            assert again
            assert schedule.count(">") <= len(again)

    def test_the_empty_string_is_the_schedule_without_preemptions(self) -> None:
        replay(counters(torn=True), "")

    @pytest.mark.parametrize("schedule", ["a:lock(elsewhere)>b", "a:lock(counters.make.count)#7>b", "a:end>b"])
    def test_a_point_that_nobody_comes_to_is_no_pass(self, schedule: str) -> None:
        with pytest.raises(NotReplayed, match="nobody came"):
            replay(counters(torn=False), schedule)

    def test_a_program_that_cannot_go_on_is_no_pass(self) -> None:
        with pytest.raises(NotReplayed, match="c cannot go on"):
            replay(counters(torn=False), "a:lock(counters.make.count)>c")

    @pytest.mark.parametrize("schedule", ["a", "a:>b", "a:x", "a:x#y>b", ">b"])
    def test_what_is_no_schedule_is_refused(self, schedule: str) -> None:
        with pytest.raises(NotReplayed, match="no part of a schedule"):
            parse(schedule)

    def test_programs_that_depend_on_something_else_are_noticed(self) -> None:
        runs: list[int] = []

        def make(sync: Scheduler) -> Case:
            runs.append(0)
            name = f"step{len(runs)}"
            return Case({"a": lambda: sync.pause(name), "b": lambda: sync.pause(name)})

        with pytest.raises(NotDeterministic):
            explore(make)

    def test_fewer_decisions_than_before_are_noticed(self) -> None:
        def make(sync: Scheduler) -> Case:
            return Case({"a": lambda: None})

        [decision] = _decisions(counters(torn=False))[:1]
        with pytest.raises(NotDeterministic, match="0 decisions"):
            run_once(make, Deviations(((0, 1),), (decision,)))


def _decisions(make: Callable[[Scheduler], Case]) -> list[Decision]:
    scheduler = Scheduler(Deviations())
    scheduler.run(make(scheduler))
    return scheduler.decisions


class TestWaiting:
    def test_a_deadlock_is_reported_with_who_waits_for_what(self) -> None:
        with pytest.raises(ScheduleFailed) as found:
            explore(crossing)
        assert isinstance(found.value.__cause__, Deadlock)
        assert str(found.value.__cause__).splitlines() == [
            "nobody can go on:",
            "  a waits for the lock that b has, at lock(crossing.both.take)",
            "  b waits for the lock that a has, at lock(crossing.both.take)",
        ]

    def test_a_lock_that_is_taken_twice_waits_for_itself(self) -> None:
        def make(sync: Scheduler) -> Case:
            lock = sync.lock()

            def twice() -> None:
                with lock:
                    lock.acquire()

            return Case({"a": twice})

        with pytest.raises(ScheduleFailed, match="a waits for the lock that itself has"):
            explore(make)

    def test_a_waiter_that_nobody_notifies_is_a_deadlock(self) -> None:
        with pytest.raises(ScheduleFailed, match=r"a waits to be notified, at wait\(.*wait\)\n  b has ended"):
            explore(_waiter(timeout=None, notify=False))

    def test_a_timeout_passes_when_nobody_else_can_go_on_or_as_a_preemption(self) -> None:
        seen: set[tuple[bool, int]] = set()
        explore(_waiter(timeout=5.0, notify=True, seen=seen), preemptions=0)
        assert seen == {(True, 0), (False, 5_000_000_000)}  # whoever is notified first waits in vain, and no time passes otherwise
        explored = explore(_waiter(timeout=5.0, notify=True, seen=seen), preemptions=2)
        assert explored.by_preemptions[1] > 0

    @pytest.mark.parametrize(("blocking", "timeout"), [(False, -1.0), (True, 2.0)])
    def test_a_lock_that_is_not_to_be_had(self, blocking: bool, timeout: float) -> None:
        got: set[bool] = set()

        def make(sync: Scheduler) -> Case:
            lock = sync.lock()

            def hold() -> None:
                with lock:
                    sync.pause("holding")

            def attempt() -> None:
                taken = lock.acquire(blocking, timeout)
                got.add(taken)
                if taken:
                    lock.release()

            return Case({"holder": hold, "other": attempt})

        explore(make)
        assert got == {True, False}

    @pytest.mark.parametrize("act", ["release", "wait", "notify"])
    def test_who_does_not_have_a_lock_cannot_use_it(self, act: str) -> None:
        def make(sync: Scheduler) -> Case:
            lock = sync.lock()
            condition = sync.condition(lock)
            acts: dict[str, Callable[[], object]] = {
                "release": lock.release,
                "wait": condition.wait,
                "notify": condition.notify_all,
            }
            return Case({"a": acts[act]})

        with pytest.raises(ScheduleFailed, match="RuntimeError"):
            explore(make)

    def test_outside_of_the_programs_nobody_else_would_help(self) -> None:
        scheduler = Scheduler(Deviations())
        lock = scheduler.lock()
        condition = scheduler.condition(lock)
        with lock:
            assert not lock.acquire(blocking=False)
            with pytest.raises(Deadlock):
                lock.acquire()
            with pytest.raises(Deadlock):
                condition.wait()
            assert not condition.wait(3)
        assert scheduler.now_ns() == 3_000_000_000

    def test_going_round_in_a_circle_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler_module, "MAX_STEPS", 50)

        def make(sync: Scheduler) -> Case:
            def spin() -> None:
                while True:
                    sync.pause("spin")

            return Case({"a": spin, "b": spin})

        with pytest.raises(ScheduleFailed) as found:
            explore(make)
        assert isinstance(found.value.__cause__, Endless)


def _waiter(*, timeout: float | None, notify: bool, seen: set[tuple[bool, int]] | None = None) -> Callable[[Scheduler], Case]:
    def make(sync: Scheduler) -> Case:
        lock = sync.lock()
        condition = sync.condition(lock)
        got: list[tuple[bool, int]] = []

        def wait() -> None:
            with lock:
                got.append((condition.wait(timeout), sync.now_ns()))

        def tell() -> None:
            with lock:
                if notify:
                    condition.notify_all()

        return Case({"a": wait, "b": tell}, lambda: seen.update(got) if seen is not None else None)

    return make


class TestPrograms:
    def test_each_is_a_thread_of_its_own_to_the_runtime_and_to_the_device(self) -> None:
        def make(sync: Scheduler) -> Case:
            seen = [(sync.thread_id(), id(current_host()))]
            hosts = []

            def look() -> None:
                hosts.append(current_host())
                seen.append((sync.thread_id(), id(current_host())))

            def finish() -> None:
                assert len({number for number, _ in seen}) == len({host for _, host in seen}) == 3
                assert all(number for number, _ in seen)

            return Case({"a": look, "b": look}, finish)

        assert explore(make).complete

    def test_what_one_raises_ends_the_run_and_unwinds_the_others(self) -> None:
        unwound: list[str] = []

        def make(sync: Scheduler) -> Case:
            lock = sync.lock()

            def fail() -> None:
                with lock:
                    raise ValueError("wrong")

            def other() -> None:
                try:
                    sync.pause("here")
                finally:
                    unwound.append("other")

            return Case({"other": other, "failing": fail})

        threads = threading.active_count()
        with pytest.raises(ScheduleFailed, match="ValueError: wrong"):
            replay(make, "other:here>failing")
        assert unwound == ["other"]
        assert threading.active_count() == threads

    def test_a_destructor_after_a_failure_gets_no_lock(self) -> None:
        tried: list[bool] = []

        class Dropped:
            def __init__(self, lock: Lock) -> None:
                self.lock = lock

            def __del__(self) -> None:
                tried.append(self.lock.acquire(blocking=False))

        def make(sync: Scheduler) -> Case:
            dropped = Dropped(sync.lock())

            def fail() -> None:
                assert dropped is None

            return Case({"a": fail})

        with pytest.raises(ScheduleFailed):
            explore(make)
        gc.collect()
        assert tried == [False]

    def test_a_thread_that_is_no_program_is_refused(self) -> None:
        def make(sync: Scheduler) -> Case:
            lock = sync.lock()
            errors: list[BaseException] = []

            def stranger() -> None:
                try:
                    lock.acquire()
                except Unscheduled as error:
                    errors.append(error)

            def start() -> None:
                thread = threading.Thread(target=stranger)
                thread.start()
                thread.join()
                raise errors[0]

            return Case({"a": start})

        with pytest.raises(Unscheduled, match="none of the programs"):
            explore(make)

    def test_a_program_that_waits_for_something_else_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler_module, "PATIENCE", 0.05)
        event = threading.Event()

        def make(sync: Scheduler) -> Case:
            return Case({"a": event.wait})

        with pytest.raises(Unscheduled, match="a can go on, at start"):
            explore(make)
        event.set()

    @pytest.mark.parametrize("names", [[], ["a b"], [""], ["a>b"]])
    def test_names_must_fit_into_a_schedule(self, names: list[str]) -> None:
        def make(sync: Scheduler) -> Case:
            return Case({name: lambda: None for name in names})

        with pytest.raises(ScheduleError):
            explore(make)

    def test_the_collector_stays_out_of_a_run(self) -> None:
        def make(sync: Scheduler) -> Case:
            def look() -> None:
                assert not gc.isenabled()

            return Case({"a": look})

        assert gc.isenabled()
        explore(make)
        assert gc.isenabled()
