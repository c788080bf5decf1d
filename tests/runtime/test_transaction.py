"""A transaction binds everything or nothing, whatever happens between its first capture and its commit (I1)."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Thread

import pytest

from cgstate import (
    Ballot,
    CaptureFailed,
    ConfigError,
    Entry,
    EntryState,
    Fallback,
    IllegalTransition,
    StaleBinding,
    Transaction,
    WrongThread,
)
from cgstate.runtime.capture import MakeFunction
from tests.runtime.failing import Bench

NAMES = "abcd"


def work(bench: Bench) -> MakeFunction:
    x = bench.device.zeros(2, 4)
    return lambda warmup: lambda: bench.routine.work(x)


def broken(warmup: bool) -> object:
    raise ValueError("boom")


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
@pytest.mark.parametrize("nth", range(1, 13))
def test_whichever_capture_fails_nothing_is_bound(nth: int, isolation: str) -> None:
    bench = Bench(*NAMES, isolation=isolation).prepared()
    before, states = bench.footprint(), bench.states()
    component = NAMES[(nth - 1) // 3]
    bench.routines[component].fail("capture", ValueError("boom"), nth=(nth - 1) % 3 + 1)
    with pytest.raises(CaptureFailed) as failure:
        bench.manager.capture_and_bind()
    assert failure.value.component == component
    assert bench.states() == {**states, component: "FAILED", f"{component}[{failure.value.descriptor}]": "FAILED"}
    assert all(not each.available_descriptors for each in bench.components.values())
    assert bench.footprint() == before
    assert all(stats.captures == 0 for stats in bench.manager.stats().components.values())
    bench.answers()
    bench.quiet()
    bench.manager.capture_and_bind()
    bench.answers()


@pytest.mark.parametrize("isolation", ["shared", "per_component"])
def test_work_after_many_captures_waits_once_for_each_stream_that_they_came_on(isolation: str) -> None:
    bench = Bench(*NAMES, isolation=isolation).prepared()
    bench.manager.capture_and_bind()
    turns = {entry.pool.turn for entry in bench.books.entries()}
    assert len(turns) == (1 if isolation == "shared" else len(NAMES))
    assert [len(turn.waits) for turn in turns] == [1] * len(turns)
    bench.answers()


def test_no_call_sees_a_mixture_while_a_transaction_is_open() -> None:
    bench = Bench("a", "b").prepared()
    seen: set[frozenset[Hashable]] = set()
    bench.routines["b"].body = lambda *_: seen.update(each.available_descriptors for each in bench.components.values())
    bench.manager.capture_and_bind()
    assert seen == {frozenset()}


@pytest.mark.parametrize("bound_before", [False, True])
def test_memory_that_moved_between_capture_and_commit_binds_nothing(bound_before: bool) -> None:
    bench = Bench("a", "b", isolation="per_entry", component={"dependencies": ["kv"]}).serving()
    if not bound_before:
        bench.manager.release()
    else:
        bench.manager.evict("a", 8)
    states = bench.states()
    before = bench.footprint()
    entries = [bench.manager.entry("own", each) for each in (1, 2)]

    def move_and_commit() -> None:
        with bench.manager.transaction() as transaction:
            for entry in entries:
                transaction.capture(entry, work(bench))
            with bench.books.gate.lock:  # `invalidate` waits for the transaction; memory that moves by itself does not
                bench.books.components["own"].epoch += 1

    with pytest.raises(StaleBinding):
        move_and_commit()
    assert {name: state for name, state in bench.states().items() if not name.startswith("own")} == states
    assert [entry.state for entry in entries] == [EntryState.EAGER] * 2
    bench.quiet()
    after = bench.footprint()
    assert (after.pools, after.stream, after.generator) == (before.pools, before.stream, before.generator)
    with bench.manager.transaction() as transaction:
        for entry in entries:
            transaction.capture(entry, work(bench))
    assert [entry.state for entry in entries] == [EntryState.BOUND] * 2


def test_invalidating_from_another_thread_waits_for_the_transaction_and_then_retires_what_it_bound() -> None:
    bench = Bench(component={"dependencies": ["kv"]}).prepared()
    retired: list[int] = []
    thread = Thread(target=lambda: retired.append(bench.manager.invalidate("kv")))
    done: list[bool] = []

    def start(*_: object) -> None:
        if not done:
            done.append(True)
            thread.start()
            while not bench.books.gate.waiting:
                assert thread.is_alive()

    bench.routine.body = start
    bench.manager.capture_and_bind()
    thread.join(10)
    assert not thread.is_alive()
    assert retired == [3]
    assert bench.component.state == "EVICTED"
    bench.manager.capture_and_bind()
    bench.answers()


def test_an_invalidated_component_is_captured_again_and_only_it() -> None:
    bench = Bench("a", "b", isolation="per_component", component={"dependencies": ["kv"]}).prepared()
    bench.components["b"].dependencies = ()
    bench.manager.capture_and_bind()
    bench.books.dependencies["kv"].components.discard("b")
    assert bench.manager.invalidate("kv") == 3
    assert (bench.components["a"].state, bench.components["b"].state) == ("EVICTED", "BOUND")
    bench.answers()
    assert dict(bench.manager.capture_and_bind().bound) == {"a": 3}
    bench.answers()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_gives_its_captures_up(error: type[BaseException]) -> None:
    bench = Bench().serving()
    states, before = bench.states(), bench.footprint()
    entry = bench.manager.entry("own", 1)

    def give_up() -> None:
        with bench.manager.transaction() as transaction:
            transaction.capture(entry, work(bench))
            raise error

    with pytest.raises(error):
        give_up()
    after = bench.footprint()
    assert entry.state == "EAGER"
    assert bench.states() == {**states, "own": "EAGER"}
    assert (after.stream, after.generator) == (before.stream, before.generator)
    bench.quiet()
    bench.answers()


def test_a_block_may_give_its_captures_up_itself() -> None:
    bench = Bench().serving()
    states = bench.states()
    entry = bench.manager.entry("own", 1)
    with bench.manager.transaction() as transaction:
        transaction.capture(entry, work(bench))
        transaction.abort()
    assert entry.state == "EAGER"
    assert bench.states() == {**states, "own": "EAGER"}
    bench.quiet()
    bench.answers()


def test_a_failure_that_the_block_swallows_still_binds_nothing() -> None:
    bench = Bench().serving()
    first, second, third = (bench.manager.entry("own", each) for each in (1, 2, 3))

    def go_on() -> None:
        with bench.manager.transaction() as transaction:
            transaction.capture(first, work(bench))
            with pytest.raises(CaptureFailed):
                transaction.capture(second, broken)  # type: ignore[arg-type]
            with pytest.raises(IllegalTransition, match="failed"):
                transaction.capture(third, work(bench))

    with pytest.raises(IllegalTransition, match="failed"):
        go_on()
    assert [entry.state for entry in (first, second, third)] == ["EAGER", "FAILED", "EAGER"]
    assert bench.states()["own"] == "FAILED"
    bench.quiet()
    with bench.manager.transaction() as transaction:
        for entry in (first, second, third):
            transaction.capture(entry, work(bench))
    assert [entry.state for entry in (first, second, third)] == ["BOUND"] * 3


def test_a_refusal_that_the_block_swallows_does_not_spoil_the_rest() -> None:
    bench = Bench().serving()
    entry = bench.manager.entry("own", 1)
    with bench.manager.transaction() as transaction:
        with pytest.raises(IllegalTransition):
            transaction.capture_entry(bench.manager.entry("toy", 4), work(bench))  # bound already
        transaction.capture_entry(entry, work(bench))
    assert entry.state == "BOUND"
    bench.answers()


def test_an_entry_is_captured_once_in_a_transaction() -> None:
    bench = Bench().serving()
    entry = bench.manager.entry("own", 1)
    with bench.manager.transaction() as transaction:
        transaction.capture(entry, work(bench))
        with pytest.raises(IllegalTransition):
            transaction.capture(entry, work(bench))
    assert entry.state == "BOUND"


@pytest.mark.parametrize("ended", ["committed", "given up"])
def test_a_transaction_that_is_over_captures_nothing(ended: str) -> None:
    bench = Bench().serving()
    kept: list[Transaction] = []
    try:
        with bench.manager.transaction() as transaction:
            kept.append(transaction)
            if ended == "given up":
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    entry = bench.manager.entry("own", 1)
    with pytest.raises(IllegalTransition, match="open"):
        kept[0].capture(entry, work(bench))
    with pytest.raises(IllegalTransition, match="open"):
        kept[0].commit()
    kept[0].abort()
    assert entry.state == "EAGER"
    bench.quiet()
    bench.answers()


def test_a_transaction_is_used_by_its_own_thread_alone() -> None:
    bench = Bench().serving()
    entry = bench.manager.entry("own", 1)
    errors: list[BaseException] = []

    def use(transaction: Transaction) -> None:
        try:
            transaction.capture(entry, work(bench))
        except BaseException as error:
            errors.append(error)

    with bench.manager.transaction() as transaction:
        thread = Thread(target=use, args=(transaction,))
        thread.start()
        thread.join(10)
    assert [type(error) for error in errors] == [WrongThread]
    assert entry.state == "EAGER"
    bench.quiet()


def test_entries_of_another_manager_are_not_captured() -> None:
    bench, other = Bench().serving(), Bench().serving()
    entry = other.manager.entry("own", 1)
    with bench.manager.transaction() as transaction, pytest.raises(ConfigError):
        transaction.capture(entry, work(bench))
    assert entry.state == "EAGER"


class Naysayer:
    """Says no to one kind of ballot, from the nth on."""

    def __init__(self, no: Ballot, nth: int = 1) -> None:
        self.no, self.left = no, nth
        self.asked: list[tuple[Ballot, str, Hashable]] = []

    def agree(self, ballot: Ballot, component: str, descriptor: Hashable) -> bool:
        self.asked.append((ballot, component, descriptor))
        if ballot is self.no:
            self.left -= 1
        return self.left > 0


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("ballot", [Ballot.capture, Ballot.commit])
def test_a_rank_that_says_no_leaves_everything_as_it_was(ballot: Ballot, nth: int) -> None:
    vote = Naysayer(ballot, nth)
    bench = Bench(component={"collective": True}, vote=vote).prepared()
    before, states = bench.footprint(), bench.states()
    with pytest.raises(IllegalTransition, match="ranks"):
        bench.manager.capture_and_bind()
    assert bench.states() == states
    assert bench.footprint() == before
    bench.quiet()
    bench.answers()
    vote.left = 100
    bench.manager.capture_and_bind()
    bench.answers()


def test_only_collective_components_are_voted_on() -> None:
    vote = Naysayer(Ballot.capture)
    bench = Bench(vote=vote).serving()
    bench.answers()
    assert vote.asked == []


@pytest.mark.parametrize("ballot", [Ballot.capture, Ballot.commit])
def test_a_rank_that_says_no_to_a_lazy_capture_makes_it_eager(ballot: Ballot) -> None:
    vote = Naysayer(ballot, 99)
    bench = Bench.lazily(vote=vote, component={"collective": True}).serving()
    vote.left = 1
    states = bench.states()
    bench.call(8)
    assert bench.manager.stats().components["toy"].fallbacks == {Fallback.vote: 1}
    assert bench.states() == states
    bench.quiet()
    vote.left = 99
    bench.call(8)
    assert 8 in bench.component.available_descriptors


def test_a_rank_that_says_no_to_an_eviction_keeps_the_graph() -> None:
    vote = Naysayer(Ballot.evict, 1)
    bench = Bench.lazily(vote=vote, extra=1, isolation="per_entry", component={"collective": True}).serving()
    bench.call(8)
    bench.call(16)
    assert bench.component.available_descriptors == {4, 8}
    assert bench.manager.stats().components["toy"].fallbacks == {Fallback.vote: 1}
    assert bench.manager.stats().components["toy"].evictions == 0
    vote.left = 99
    bench.call(16)  # retires the graph of 8, whose work still runs
    bench.call(16)
    assert bench.component.available_descriptors == {4, 16}


def test_an_evicted_domain_that_still_runs_does_not_keep_a_new_generation_from_being_captured() -> None:
    bench = Bench.lazily().serving()
    x = bench.device.rand(4, 4)
    bench.component(x)  # queued, not run yet
    bench.manager.evict("toy")
    answer = bench.component(x)
    assert bench.component.available_descriptors == {4}
    assert answer.tolist() == bench.routine.work(x).tolist()


def test_everything_bound_is_an_empty_transaction() -> None:
    bench = Bench().serving()
    states = bench.states()
    assert dict(bench.manager.capture_and_bind().bound) == {}
    assert bench.states() == states


def test_an_entry_belongs_to_the_component_and_descriptor_by_value() -> None:
    bench = Bench().serving()
    assert isinstance(bench.manager.entry("own", (1, "a")), Entry)
    assert bench.manager.entry("own", (1, "a")) is bench.manager.entry("own", (1, "a"))


def test_memory_that_moved_under_one_of_two_components_binds_neither() -> None:
    bench = Bench().serving()
    still, moved = bench.manager.entry("still", 1), bench.manager.entry("moved", 1)

    def move_and_commit() -> None:
        with bench.manager.transaction() as transaction:
            transaction.capture(still, work(bench))
            transaction.capture(moved, work(bench))
            with bench.books.gate.lock:
                bench.books.components["moved"].epoch += 1

    with pytest.raises(StaleBinding):
        move_and_commit()
    assert (still.state, moved.state) == ("EAGER", "EAGER")
    assert {bench.states()["still"], bench.states()["moved"]} == {"EAGER"}
    bench.quiet()
