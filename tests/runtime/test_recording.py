"""Recording by a block: for engines that warm up and open their captures by a ``with`` of their own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import captured
from cgstate.backends.sim.memory import ITEM_BYTES
from cgstate.runtime.transaction import Transaction
from tests.runtime.helpers import WIDTH, Model


class Engine:
    """Static input and output, and work that was warmed up already."""

    def __init__(self) -> None:
        self.model = Model()
        self.x = self.model.input(2)
        self.y = self.model.dev.zeros(2, WIDTH)
        self.stream = self.model.dev.new_stream(exclusive=True)
        with self.model.dev.on_stream(self.stream):
            self.work()
        self.manager = self.model.manager(isolation="per_component")
        self.entry = self.manager.entry("low", 2)

    def work(self) -> None:
        self.y.copy_(self.model.net(self.x))

    def record(self, transaction: Transaction, entry: cgstate.Entry | None = None, **keys: Any) -> None:
        with transaction.recording(entry or self.entry, stream=self.stream, **keys):
            self.work()

    def bound(self) -> None:
        with self.manager.transaction() as transaction:
            self.record(transaction)

    def answer(self, value: float) -> object:
        self.x.copy_(self.model.input(2, value))
        self.entry.replay()
        return self.y.tolist()

    def right(self, value: float) -> object:
        return self.model.net(self.model.input(2, value)).tolist()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_what_the_block_did_is_replayed(engine: Engine) -> None:
    engine.bound()
    assert engine.entry.state == "BOUND"
    assert [engine.answer(value) for value in (2.0, 3.0)] == [engine.right(value) for value in (2.0, 3.0)]


def test_the_block_runs_once_on_the_given_stream_and_inside_the_capture(engine: Engine) -> None:
    seen: list[tuple[int, bool]] = []
    before = engine.model.dev.current_handle()
    with engine.manager.transaction() as transaction:
        with transaction.recording(engine.entry, stream=engine.stream):
            seen.append((engine.model.dev.current_handle(), engine.model.backend.capturing()))
            assert not gc.isenabled()
            engine.work()
        assert engine.model.dev.current_handle() == before
        assert gc.isenabled()
        assert engine.entry.state == "CAPTURING", "it is bound when the transaction ends"
    assert seen == [(engine.stream.handle, True)]


def test_without_a_stream_it_is_that_of_the_domain(engine: Engine) -> None:
    with engine.manager.transaction() as transaction, transaction.recording(engine.entry):
        handle = engine.model.dev.current_handle()
        engine.work()
    assert handle == engine.entry.domain.stream.handle  # type: ignore[union-attr]
    assert engine.answer(2.0) == engine.right(2.0)


def test_a_block_that_raises_is_undone_with_all_that_was_recorded_before(engine: Engine) -> None:
    other = engine.manager.entry("low", 3)
    before = engine.model.backend.footprint()

    def both(transaction: Transaction) -> None:
        engine.record(transaction)
        with transaction.recording(other, stream=engine.stream):
            engine.work()
            raise LookupError("a layer is missing")

    with pytest.raises(cgstate.CaptureFailed) as caught, engine.manager.transaction() as transaction:
        both(transaction)
    assert (caught.value.kind, caught.value.descriptor) == (cgstate.FailureKind.USER, 3)
    assert isinstance(caught.value.__cause__, LookupError)
    assert (engine.entry.state, other.state) == ("EAGER", "FAILED")
    after = engine.model.backend.footprint()
    assert (after.pools, after.stream, after.generator) == (before.pools, before.stream, before.generator)
    engine.bound()
    assert engine.answer(2.0) == engine.right(2.0)


def test_an_interrupt_goes_through_and_is_no_failure_of_the_entry(engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        with engine.manager.transaction() as transaction, transaction.recording(engine.entry, stream=engine.stream):
            raise KeyboardInterrupt
    assert engine.entry.state == "EAGER"
    engine.bound()


def test_what_a_capture_forbids_is_refused_in_the_block(engine: Engine) -> None:
    with pytest.raises(cgstate.CaptureFailed) as caught:
        with engine.manager.transaction() as transaction, transaction.recording(engine.entry, stream=engine.stream):
            engine.model.dev.synchronize()
    assert caught.value.kind == cgstate.FailureKind.REJECTED


def test_a_block_in_a_block_is_refused_before_it_runs(engine: Engine) -> None:
    other = engine.manager.entry("low", 3)
    with engine.manager.transaction() as transaction:
        with transaction.recording(engine.entry, stream=engine.stream):
            with pytest.raises(cgstate.CaptureActive):
                engine.record(transaction, other)
            engine.work()
    assert (engine.entry.state, other.state) == ("BOUND", "EAGER")


def test_random_numbers_are_as_the_engine_says(engine: Engine) -> None:
    def draw() -> None:
        engine.y.copy_(engine.model.dev.rand(2, WIDTH))

    with engine.manager.transaction() as transaction, transaction.recording(engine.entry, stream=engine.stream, uses_random=True):
        draw()
    assert engine.entry.uses_random
    assert engine.answer(1.0) != engine.answer(1.0)


def test_a_block_that_is_still_open_when_its_transaction_ends_is_undone(engine: Engine) -> None:
    other = engine.manager.entry("low", 3)
    before = engine.model.backend.footprint()
    left: list[AbstractContextManager[None]] = []

    def leave(transaction: Transaction) -> None:
        engine.record(transaction, other)
        left.append(transaction.recording(engine.entry, stream=engine.stream))
        left[0].__enter__()
        engine.work()

    with pytest.raises(cgstate.CaptureActive, match="no block is being recorded"), engine.manager.transaction() as transaction:
        leave(transaction)
    assert (engine.entry.state, other.state) == ("EAGER", "EAGER")
    after = engine.model.backend.footprint()
    assert (after.pools, after.stream, after.generator) == (before.pools, before.stream, before.generator)
    assert gc.isenabled()
    left[0].__exit__(None, None, None)  # too late to matter
    engine.bound()
    assert engine.answer(2.0) == engine.right(2.0)


def test_an_error_ends_the_block_that_a_generator_keeps_open(engine: Engine) -> None:
    left: list[Iterator[None]] = []

    def engines_own(transaction: Transaction) -> Iterator[None]:
        with transaction.recording(engine.entry, stream=engine.stream):
            engine.work()
            yield

    def fail(transaction: Transaction) -> None:
        left.append(engines_own(transaction))
        next(left[0])
        raise LookupError

    with pytest.raises(LookupError), engine.manager.transaction() as transaction:
        fail(transaction)
    assert engine.entry.state == "EAGER"
    assert list(left[0]) == []
    engine.bound()


@pytest.mark.parametrize("what", ["routine", "stranger", "nothing"])
def test_only_an_entry_of_the_engines_own_is_recorded(engine: Engine, what: str) -> None:
    net = engine.model.component()
    served = engine.model.serving(net)
    wrong: Any = {"routine": served.entry("net", 4), "stranger": served.entry("low", 1), "nothing": 7}[what]
    manager = served if what == "routine" else engine.manager
    with manager.transaction() as transaction, pytest.raises(cgstate.ConfigError):
        with transaction.recording(wrong):
            raise AssertionError("the block ran")


def test_a_profile_measures_it_and_leaves_nothing(engine: Engine) -> None:
    engine.manager.prepare([])
    before = engine.model.backend.footprint()
    with engine.manager.profile() as profile, engine.manager.transaction() as transaction:
        engine.record(transaction)
    [sample] = profile.samples
    assert (sample.component, sample.descriptor, sample.error) == ("low", "2", None)
    assert sample.pool_bytes > 0
    assert engine.entry.state == "EAGER"
    after = engine.model.backend.footprint()
    assert (after.pools, after.stream, after.generator) == (before.pools, before.stream, before.generator)


def test_graphs_of_the_engine_share_the_pool_of_a_profile(engine: Engine) -> None:
    """So what they leave free there is not counted a second time."""
    manager = engine.model.manager()
    manager.prepare([])

    reserved = {}
    for cells in (4096, 8192):
        before = engine.model.backend.footprint()
        with manager.profile() as profile:
            pool: Any = profile.pool_id()
            graph, output = captured(engine.model.dev, lambda: engine.model.dev.zeros(4096), engine.stream, pool)
            del output  # its memory is free in the pool, for the next capture on the stream
            with manager.transaction() as transaction, transaction.recording(manager.entry("low", 1), stream=engine.stream):
                engine.model.dev.zeros(cells)
            assert profile.pool_id() == pool
            reserved[cells] = engine.model.backend.footprint().pools[pool]
            graph.destroy()
            del graph
        assert engine.model.backend.footprint().pools == before.pools
    assert reserved[8192] > reserved[4096] == reserved[8192] - 8192 * ITEM_BYTES
