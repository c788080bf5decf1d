"""The low-level door: entries, transactions, leases and replays for runners with buffers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimTensor
from tests.runtime.helpers import WIDTH, Model


class TestEntries:
    def test_an_entry_is_the_same_object_for_equal_descriptors(self) -> None:
        manager = Model().manager()
        assert manager.entry("low", ("a", 1)) is manager.entry("low", ("a", 1))
        assert manager.entry("low", ("a", 1)) is not manager.entry("low", ("a", 2))
        assert manager.entry("low", 1) is not manager.entry("other", 1)

    @pytest.mark.parametrize("descriptor", [[1], None, object(), float("nan"), {1: 2}])
    def test_a_descriptor_names_a_graph_by_value(self, descriptor: Any) -> None:
        manager = Model().manager()
        with pytest.raises(cgstate.ConfigError):
            manager.entry("low", descriptor)
        assert list(manager._books.entries()) == []

    @pytest.mark.parametrize("component", ["", None, 3, b"low"])
    def test_a_component_id_is_a_non_empty_string(self, component: Any) -> None:
        manager = Model().manager()
        with pytest.raises(cgstate.ConfigError):
            manager.entry(component, 1)

    def test_the_door_reaches_the_entries_of_components(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        entry = manager.entry("net", 4)
        net(model.input(4, 2.0))
        entry.replay()
        assert entry.output.tolist() == model.net(model.input(4, 2.0)).tolist()  # type: ignore[attr-defined]
        assert manager.stats().components["net"].hits == 2

    def test_an_entry_that_was_never_captured_refuses(self) -> None:
        manager = Model().manager()
        entry = manager.entry("low", 1)
        with pytest.raises(cgstate.IllegalTransition) as refusal:
            entry.replay()
        assert (refusal.value.entity, refusal.value.state, refusal.value.event) == ("low[1]", "EAGER", "acquire")


class TestTransactions:
    def test_make_fn_is_called_before_each_warm_up_and_once_more_before_the_capture(self) -> None:
        model = Model()
        manager = model.manager(warmup_rounds=3)
        static = model.dev.zeros(2, WIDTH)
        calls: list[str] = []

        def make(warmup: bool) -> Callable[[], SimTensor]:
            assert not model.backend.capturing()
            calls.append(f"make {warmup}")

            def run() -> SimTensor:
                calls.append("recorded" if model.backend.capturing() else "run")
                return model.net(static)

            return run

        with manager.transaction() as tx:
            output = tx.capture(manager.entry("low", 2), make)
        assert calls[-2:] == ["make False", "recorded"]
        assert calls[:-2] == ["make True", "run"] * (len(calls) // 2 - 1)
        assert 1 <= len(calls) // 2 - 1 <= 3
        assert manager.entry("low", 2).output is output

    def test_nothing_is_bound_before_the_end_of_the_block(self) -> None:
        model = Model()
        manager = model.manager()
        entries = [manager.entry("low", n) for n in (1, 2)]
        static = model.dev.zeros(2, WIDTH)
        with manager.transaction() as tx:
            for entry in entries:
                tx.capture(entry, lambda warmup: lambda: model.net(static))
                assert entry.state == "CAPTURING"
                with pytest.raises(cgstate.IllegalTransition):
                    entry.replay()
        assert [entry.state for entry in entries] == ["BOUND", "BOUND"]

    def test_an_exception_in_the_block_binds_nothing(self) -> None:
        model = Model()
        manager = model.manager()
        before = model.backend.footprint()
        static = model.dev.zeros(2, WIDTH)
        with pytest.raises(KeyError), manager.transaction() as tx:  # noqa: PT012 - the block is what is tested
            tx.capture(manager.entry("low", 1), lambda warmup: lambda: model.net(static))
            raise KeyError
        assert manager.entry("low", 1).state == "EAGER"
        assert manager.state == "PREPARED"
        manager.reclaim(flush=True)
        assert {p: n for p, n in model.backend.footprint().pools.items() if n} == {p: n for p, n in before.pools.items() if n}

    def test_a_failed_capture_takes_its_siblings_with_it_and_leaves_the_bound_ones(self) -> None:
        model = Model()
        manager = model.manager()
        [(kept, static)] = model.bind(manager, "kept")
        first, second = manager.entry("low", 1), manager.entry("low", 2)

        def broken(warmup: bool) -> Callable[[], SimTensor]:
            def run() -> SimTensor:
                if not warmup:
                    raise ValueError("mine")
                return model.net(static)

            return run

        with pytest.raises(cgstate.CaptureFailed) as failure, manager.transaction() as tx:  # noqa: PT012 - the second one raises
            tx.capture(first, lambda warmup: lambda: model.net(static))
            tx.capture(second, broken)
        assert isinstance(failure.value.__cause__, ValueError)
        assert (first.state, second.state, kept.state) == ("EAGER", "FAILED", "BOUND")
        kept.replay()
        assert kept.output.tolist() == model.net(static).tolist()
        with manager.transaction() as tx:
            for entry in (first, second):
                tx.capture(entry, lambda warmup: lambda: model.net(static))
        assert (first.state, second.state) == ("BOUND", "BOUND")

    @pytest.mark.parametrize("state", ["BOUND", "REPLAYING", "CAPTURING"])
    def test_an_entry_that_has_a_graph_is_not_captured_again(self, state: str) -> None:
        model = Model()
        manager = model.manager()
        [(entry, static)] = model.bind(manager, "low")
        other = manager.entry("other", 1)

        def again() -> None:
            with manager.transaction() as tx:
                target = entry
                if state == "CAPTURING":
                    tx.capture(other, lambda warmup: lambda: model.net(static))
                    target = other
                before = target.pool
                with pytest.raises(cgstate.IllegalTransition) as refusal:
                    tx.capture(target, lambda warmup: lambda: model.net(static))
                assert (refusal.value.state, refusal.value.event) == (state, "capture_begin")
                assert target.pool is before

        if state == "REPLAYING":
            with entry.lease():
                again()
        else:
            again()
        entry.replay()

    def test_an_entry_of_another_manager_is_refused(self) -> None:
        model = Model()
        mine, theirs = model.manager(), model.manager()
        entry = theirs.entry("low", 1)
        with mine.transaction() as tx, pytest.raises(cgstate.ConfigError, match="another manager"):
            tx.capture(entry, lambda warmup: lambda: None)
        assert entry.state == "EAGER"

    def test_a_transaction_that_is_over_captures_nothing(self) -> None:
        model = Model()
        manager = model.manager()
        with manager.transaction() as tx:
            pass
        with pytest.raises(cgstate.IllegalTransition, match="the transaction is open"):
            tx.capture(manager.entry("low", 1), lambda warmup: lambda: None)
        assert manager.entry("low", 1).state == "EAGER"

    def test_a_transaction_on_a_capturing_stream_is_refused_and_breaks_nothing(self) -> None:
        model = Model()
        first, second = model.manager(), model.manager()
        static = model.dev.zeros(2, WIDTH)
        refused: list[bool] = []

        def body() -> SimTensor:
            for manager in (first, second):
                with pytest.raises(cgstate.CaptureActive), manager.transaction() as inner:
                    inner.capture(manager.entry("inner", 1), lambda warmup: lambda: model.net(static))
            refused.append(True)
            return model.net(static)

        with first.transaction() as tx:
            tx.capture(first.entry("low", 1), lambda warmup: body)
        assert refused
        assert first.entry("low", 1).state == "BOUND"
        assert second.state in ("NEW", "PREPARED")

    def test_an_entry_is_bound_by_its_transaction_and_never_by_hand(self) -> None:
        model = Model()
        manager, static = model.manager(), model.input(2)
        entry, states = manager.entry("low", 1), []

        def refused() -> None:
            states.append(entry.state)
            with pytest.raises(cgstate.IllegalTransition, match="refuses bind"):
                entry.bind()
            assert entry.state is states[-1]

        def work() -> SimTensor:
            if model.backend.capturing():
                refused()  # its capture is open
            return model.net(static)

        refused()  # it has no transaction yet
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: work)
            refused()  # recorded, and not committed
        refused()
        manager.evict("low")
        refused()
        assert states == ["EAGER", "CAPTURING", "CAPTURING", "BOUND", "EVICTED"]


class TestStreams:
    def test_an_adopted_stream_is_captured_on(self) -> None:
        model = Model()
        manager = model.manager()
        static, stream = model.input(2, 5.0), model.dev.new_stream()
        seen: list[int] = []

        def run() -> SimTensor:
            seen.append(model.dev.current_handle())
            return model.net(static)

        entry = manager.entry("low", 1)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: run, stream=stream)
        assert set(seen) == {stream.handle}
        assert model.dev.current_handle() == 0
        entry.replay()
        assert entry.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]
        manager.close()
        with model.dev.on_stream(stream):
            model.net(static).tolist()

    @pytest.mark.parametrize("kind", ["object", "number", "other device", "default stream"])
    def test_a_stream_that_cannot_be_captured_on_is_a_config_error(self, kind: str) -> None:
        model, other = Model(), Model()
        manager = model.manager()
        streams: dict[str, object] = {
            "object": object(),
            "number": 3,
            "other device": other.dev.new_stream(),
            "default stream": model.dev.default_stream,
        }
        entry = manager.entry("low", 1)
        with manager.transaction() as tx:
            before = model.backend.footprint()
            with pytest.raises(cgstate.ConfigError):
                tx.capture(entry, lambda warmup: lambda: None, stream=streams[kind])
            assert model.backend.footprint() == before
        assert entry.state == "EAGER"
        assert manager.stats().components["low"].failures == {}

    def test_one_stream_may_be_adopted_by_several_entries(self) -> None:
        model = Model()
        manager = model.manager()
        statics, stream = [model.input(2, 5.0), model.input(2, 6.0)], model.dev.new_stream()
        entries = [manager.entry("low", n) for n in range(2)]
        with manager.transaction() as tx:
            for entry, static in zip(entries, statics, strict=True):
                tx.capture(entry, lambda warmup, static=static: lambda: model.net(static), stream=stream)  # type: ignore[misc]
        for _ in range(2):
            for entry, static in zip(entries, statics, strict=True):
                entry.replay()
                assert entry.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]
        manager.evict("low")
        manager.reclaim(flush=True)
        assert manager.memory().total == 0

    @pytest.mark.parametrize("isolation", ["per_component", "per_entry", "two managers"])
    def test_one_stream_is_not_adopted_for_two_pools_at_once(self, isolation: str) -> None:
        model = Model()
        manager = model.manager() if isolation == "two managers" else model.manager(isolation=isolation)
        other = model.manager() if isolation == "two managers" else manager
        static, stream = model.input(2), model.dev.new_stream()
        first, second = manager.entry("a", 1), other.entry("b", 1)
        with manager.transaction() as tx:
            tx.capture(first, lambda warmup: lambda: model.net(static), stream=stream)
        refused = pytest.raises(cgstate.ConfigError, match="its library workspace is in graphs there")
        with other.transaction() as tx:
            with refused:
                tx.capture(second, lambda warmup: lambda: model.net(static), stream=stream)
            with refused, tx.recording(second, stream=stream):
                pass
            tx.capture(second, lambda warmup: lambda: model.net(static))
        assert (first.state, second.state) == ("BOUND", "BOUND")
        for evicted in (manager.evict("a"), other.evict("b")):
            assert evicted == 1
        model.dev.synchronize()
        manager.reclaim(flush=True)
        with other.transaction() as tx:
            tx.capture(second, lambda warmup: lambda: model.net(static), stream=stream)
        second.replay()
        assert second.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]


class TestIsolation:
    @pytest.mark.parametrize(("isolation", "pools"), [("shared", 1), ("per_component", 2), ("per_entry", 4)])
    def test_how_far_entries_are_kept_apart(self, isolation: str, pools: int) -> None:
        model = Model()
        manager = model.manager(isolation=isolation)
        static = model.dev.zeros(2, WIDTH)
        entries = [manager.entry(name, n) for name in "ab" for n in range(2)]
        with manager.transaction() as tx:
            for entry in entries:
                tx.capture(entry, lambda warmup: lambda: model.net(static))
        assert len({entry.pool.id for entry in entries}) == pools
        assert len({entry.domain.stream.handle for entry in entries if entry.domain.stream is not None}) == pools
        for entry in entries:
            entry.replay()
            assert entry.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]

    def test_more_entries_than_the_framework_has_streams_have_one_each(self) -> None:
        model = Model()
        manager = model.manager(isolation="per_entry", check=False)
        static = model.dev.zeros(1, WIDTH)
        entries = [manager.entry("low", n) for n in range(40)]
        with manager.transaction() as tx:
            for entry in entries:
                tx.capture(entry, lambda warmup: lambda: model.net(static))
        assert len({entry.domain.stream.handle for entry in entries if entry.domain.stream is not None}) == 40
        manager.evict("low", 7)
        manager.reclaim(flush=True)
        sentinel = model.dev.tensor([3.0] * model.config_cells)
        for entry in entries[:7] + entries[8:]:
            entry.replay()
        model.dev.synchronize()
        assert set(sentinel.tolist()) == {3.0}  # type: ignore[arg-type]
