"""Graphs of segments with eager breaks: recorded, replayed, undone and evicted as one (I1, I2, I5, I12)."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from cgstate import Break, run_eagerly
from cgstate.backends.sim import Drawn, InOrder, Schedule, SimTensor, kernels
from cgstate.backends.sim.faults import InjectedFault
from cgstate.runtime.segments import Segments
from tests.runtime.helpers import PATIENCE, WIDTH, Model, counts, reached, running

Hook = Callable[[], object]


class Split(Model):
    """The model with two eager breaks in it. `during` hooks into a place of the body, by its name.

    Attributes:
        during: Called at a place, each time: ``segment 1`` to ``segment 3``, ``break 1``, ``break 2``.
        ran: The places, in the order in which they ran on the host.
    """

    PLACES = ("segment 1", "break 1", "segment 2", "break 2", "segment 3")

    def __init__(self, *, schedule: Schedule | None = None) -> None:
        super().__init__(schedule=schedule)
        self.during: dict[str, Hook] = {}
        self.ran: list[str] = []

    def at(self, place: str) -> None:
        self.ran.append(place)
        if place in self.during:
            self.during[place]()

    def body(self, x: SimTensor) -> Any:
        self.at("segment 1")
        hidden = self.net(x)
        mixed = hidden.new_empty(hidden.shape)

        def mix() -> None:
            self.at("break 1")
            mixed.copy_(kernels.tanh(kernels.scale(hidden, 0.25)))

        yield Break(mix, live={"hidden": hidden, "mixed": mixed}, name="mix")
        self.at("segment 2")
        both = kernels.add(self.net(mixed), hidden)

        def double() -> None:
            self.at("break 2")
            both.copy_(kernels.scale(both, 2.0))

        yield Break(double)
        self.at("segment 3")
        return kernels.add(self.net(both), mixed)

    def whole(self, x: SimTensor) -> SimTensor:
        """What the body computes, without hooks."""
        during, self.during = self.during, {}
        try:
            result = run_eagerly(self.body(x))
        finally:
            self.during = during
        assert isinstance(result, SimTensor)
        return result

    def split(self, name: str = "net", descriptors: tuple[int, ...] = (4, 8), **keys: Any) -> cgstate.Component[..., SimTensor]:
        return self.component(name, descriptors, call=self.body, **keys)

    def captured(self, manager: cgstate.GraphManager, name: str = "split", size: int = 2) -> tuple[cgstate.Entry, SimTensor]:
        """An entry of the low-level door, and its static input."""
        entry, static = manager.entry(name, size), self.dev.zeros(size, WIDTH)
        self.kept.append(static)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: self.body(static))
        return entry, static

    def replayed(self, entry: cgstate.Entry, static: SimTensor, value: float) -> bool:
        """Whether a replay gives what eager gives."""
        static.copy_(self.input(static.shape[0], value))
        with entry.lease() as lease:
            lease.replay()
            assert isinstance(lease.output, SimTensor)
            copy = lease.output.clone()
        return copy.tolist() == self.whole(self.input(static.shape[0], value)).tolist()


def quiet(manager: cgstate.GraphManager) -> bool:
    """Nobody holds, waits for or nests in anything."""
    gate, pools = manager._books.gate, manager._books.pools
    turns = [*(pool.turn for pool in pools), gate.random]
    held = any(turn.owner or turn.breaking or turn.outer for turn in turns)
    return not held and not gate.calls and not gate.awaited and gate.free and not manager._books.leases


class TestReplay:
    @pytest.mark.parametrize("check", [True, False])
    @pytest.mark.parametrize("seed", range(6))
    def test_replays_equal_eager_for_other_inputs(self, seed: int, check: bool) -> None:
        model = Split(schedule=Drawn(random.Random(seed)))
        manager = model.manager(check=check)
        entry, static = model.captured(manager)
        assert all(model.replayed(entry, static, float(value)) for value in range(4))
        assert isinstance(entry.graph, Segments)
        assert len(entry.graph.graphs) == 3
        manager.close()

    def test_a_component_takes_a_body_where_it_takes_a_function(self) -> None:
        model = Split()
        net = model.split()
        manager = model.serving(net)
        for size in (1, 4, 5, 8):
            assert net(model.input(size)).tolist() == model.whole(model.input(size)).tolist()
        assert net(model.input(9)).tolist() == model.whole(model.input(9)).tolist()
        assert (manager.stats().components["net"].hits, counts(manager)) == (4, {"miss": 1})

    def test_breaks_run_between_the_segments_and_segments_do_not_run_on_the_host(self) -> None:
        model = Split()
        manager = model.manager()
        entry, _ = model.captured(manager)
        model.ran.clear()
        entry.replay()
        assert model.ran == ["break 1", "break 2"]

    def test_breaks_run_on_the_callers_stream_and_without_gradients(self) -> None:
        model = Split()
        manager = model.manager()
        entry, _ = model.captured(manager)
        seen: list[tuple[int, bool]] = []
        model.during["break 1"] = lambda: seen.append((model.dev.current_handle(), model.backend.grad_enabled()))
        side = model.dev.new_stream()
        entry.replay()
        with model.dev.on_stream(side):
            entry.replay()
        assert seen == [(0, False), (side.handle, False)]
        assert model.backend.grad_enabled()

    def test_a_break_finds_values_while_the_graph_is_recorded(self) -> None:
        model = Split()
        manager = model.manager()
        static, seen = model.input(2, 3.0), []

        def body() -> Any:
            hidden = model.net(static)
            yield Break(lambda: seen.append(hidden.tolist()))
            return model.net(hidden)

        with manager.transaction() as tx:
            tx.capture(manager.entry("low", 1), lambda warmup: body)
        assert seen == [model.net(static).tolist()] * len(seen)
        assert len(seen) > 1

    def test_another_function_may_stand_in_for_the_break_at_capture(self) -> None:
        model = Model()
        manager = model.manager()
        static, ran = model.input(2), []

        def body() -> Any:
            hidden = model.net(static)
            yield Break(lambda: ran.append("replay"), at_capture=lambda: ran.append("capture"))
            return hidden

        entry = manager.entry("low", 1)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: body)
        assert set(ran) == {"capture"}
        ran.clear()
        entry.replay()
        assert ran == ["replay"]

    def test_a_body_without_breaks_is_an_ordinary_graph(self) -> None:
        model = Model()
        manager = model.manager(check=False)
        static = model.input(2)

        def body() -> Any:
            yield from ()
            return model.net(static)

        entry = manager.entry("low", 1)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: body)
        assert not isinstance(entry.graph, Segments)
        assert entry.fast
        entry.replay()
        assert entry.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]

    def test_ordinary_entries_keep_the_short_way(self) -> None:
        model = Split()
        manager = model.manager(check=False)
        [(plain, _)] = model.bind(manager, "plain")
        segmented, _ = model.captured(manager)
        assert (plain.fast, segmented.fast) == (True, False)

    def test_random_numbers_come_as_they_would_eagerly(self) -> None:
        model = Model()
        manager = model.manager()
        static, mixed = model.input(2), model.dev.zeros(2, WIDTH)

        def body() -> Any:
            hidden = kernels.add(model.net(static), model.dev.rand(2, WIDTH))
            yield Break(lambda: mixed.copy_(kernels.add(hidden, model.dev.rand(2, WIDTH))))
            return kernels.add(mixed, model.dev.rand(2, WIDTH))

        entry = manager.entry("low", 1)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: body)
        model.dev.manual_seed(7)
        eager = [run_eagerly(body()).tolist() for _ in range(2)]  # type: ignore[attr-defined]
        model.dev.manual_seed(7)
        found = []
        for _ in range(2):
            entry.replay()
            found.append(entry.output.tolist())  # type: ignore[attr-defined]
        assert found == eager
        assert quiet(manager)

    def test_outputs_of_a_component_are_copies(self) -> None:
        model = Split()
        net = model.split()
        manager = model.serving(net)
        first = net(model.input(4, 1.0))
        right = first.tolist()
        net(model.input(4, 5.0))
        assert first.tolist() == right
        assert manager.stats().components["net"].hits == 2

    @pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
    def test_each_isolation_serves_segments_and_gives_everything_back(self, isolation: str) -> None:
        model = Split()
        net, other = model.split(), model.split("other", (2, 4))
        manager = model.serving(net, other, isolation=isolation)
        for size in (2, 4, 8):
            assert net(model.input(size)).tolist() == model.whole(model.input(size)).tolist()
            assert other(model.input(2, size)).tolist() == model.whole(model.input(2, size)).tolist()
        manager.close()
        assert manager.memory().total == 0


class TestCaptureFailure:
    @staticmethod
    def fault(model: Split, kind: str) -> Hook:
        def act() -> None:
            match kind:
                case "raises":
                    raise ValueError("boom")
                case "synchronises":
                    model.dev.synchronize()
                case "out of memory":
                    model.dev.zeros(1 << 24)
                case "interrupted":
                    raise KeyboardInterrupt

        return act

    @pytest.mark.parametrize(
        ("place", "kind", "when"),
        [
            *itertools.product(Split.PLACES, ("raises", "out of memory", "interrupted"), ("recording", "warming up")),
            *itertools.product(("segment 1", "segment 2", "segment 3"), ("synchronises",), ("recording",)),  # allowed elsewhere
        ],
    )
    def test_a_failure_anywhere_undoes_everything(self, place: str, kind: str, when: str) -> None:
        model = Split()
        manager = model.manager()
        entry, static = manager.entry("split", 2), model.dev.zeros(2, WIDTH)
        act = self.fault(model, kind)

        def make(warmup: bool) -> Callable[[], object]:
            if warmup == (when == "warming up"):
                model.during[place] = act
            return lambda: model.body(static)

        manager.reclaim(flush=True)
        before = model.backend.footprint()
        expected = KeyboardInterrupt if kind == "interrupted" else cgstate.CaptureFailed
        with pytest.raises(expected) as raised, manager.transaction() as tx:
            tx.capture(entry, make)
        if isinstance(raised.value, cgstate.CaptureFailed):
            kinds = {"raises": "USER", "synchronises": "REJECTED", "out of memory": "OOM"}
            assert (raised.value.kind, raised.value.cleanup) == (kinds[kind], ())
        assert entry.state == ("EAGER" if kind == "interrupted" else "FAILED")
        manager.reclaim(flush=True)
        assert model.backend.footprint() == before
        assert quiet(manager)
        assert not model.dev.captures
        model.during.clear()
        manager.forget_failures()
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: model.body(static))
        assert model.replayed(entry, static, 2.0)

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize(
        ("call", "nth"),
        [
            *itertools.product(("open_capture", "close_capture", "pool_segments", "stream_synchronize"), (1, 2, 3)),
            *itertools.product(("graph_replay",), (1, 2)),  # the last segment is not run
        ],
    )
    def test_a_fault_of_any_call_to_the_device_undoes_everything(self, call: str, when: Any, nth: int) -> None:
        model = Split()
        manager = model.manager()
        entry, static = manager.entry("split", 2), model.dev.zeros(2, WIDTH)
        [(plain, plain_in)] = model.bind(manager, "plain")  # a live entry in the same pool
        manager.reclaim(flush=True)
        before = model.backend.footprint()
        model.dev.faults.inject(call, when=when, nth=nth)
        with pytest.raises(cgstate.CaptureFailed) as failure, manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: model.body(static))
        assert failure.value.cleanup == ()
        manager.reclaim(flush=True)
        after = model.backend.footprint()
        assert (after.allocated, after.stream, after.generator) == (before.allocated, before.stream, before.generator)
        manager.forget_failures()
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: model.body(static))
        model.dev.faults.clear()
        assert quiet(manager)
        assert model.replayed(entry, static, 2.0)
        plain.replay()
        assert plain.output.tolist() == model.net(plain_in).tolist()

    def test_a_body_waiting_at_its_break_is_closed(self) -> None:
        model = Split()
        manager = model.manager()
        static, ended = model.input(2), []

        def body() -> Any:
            try:
                hidden = model.net(static)
                yield Break(self.fault(model, "raises"))
                return hidden
            finally:
                ended.append(model.dev.current_handle())

        with pytest.raises(cgstate.CaptureFailed), manager.transaction() as tx:
            tx.capture(manager.entry("low", 1), lambda warmup: (lambda: model.net(static)) if warmup else body)
        assert ended == [0], "after everything else was put back"

    def test_what_a_body_delegates_to_lets_go_as_well(self) -> None:
        model = Split()
        manager = model.manager()
        static = model.input(2)

        def inner() -> Any:
            hidden = model.net(static)
            yield Break(lambda: None)
            more = kernels.add(hidden, static)
            raise ValueError(f"boom {more}")

        def body() -> Any:
            first = model.net(static)
            return kernels.add((yield from inner()), first)

        manager.reclaim(flush=True)
        before = model.backend.footprint()
        with pytest.raises(cgstate.CaptureFailed) as kept, manager.transaction() as tx:
            tx.capture(manager.entry("low", 1), lambda warmup: (lambda: model.net(static)) if warmup else body)
        manager.reclaim(flush=True)
        assert model.backend.footprint() == before, "while the error is still at hand"
        del kept

    def test_what_is_yielded_must_be_a_break(self) -> None:
        model = Model()
        manager = model.manager()

        def body() -> Any:
            yield 3

        with pytest.raises(cgstate.CaptureFailed, match=r"yields cgstate\.Break, not 3"), manager.transaction() as tx:
            tx.capture(manager.entry("low", 1), lambda warmup: body)

    def test_a_break_that_leaves_its_stream_current_is_refused_and_cured(self) -> None:
        model = Split()
        manager = model.manager()
        entry, static = model.captured(manager)
        side = model.dev.new_stream()
        model.during["break 1"] = lambda: model.dev.set_stream(side)
        with pytest.raises(cgstate.IllegalTransition, match="mix leaves its stream current"):
            entry.replay()
        model.dev.set_stream(model.dev.default_stream)
        assert entry.state == "BOUND"
        assert quiet(manager)
        model.during.clear()
        assert model.replayed(entry, static, 2.0)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"run": 3},
            {"run": print, "live": [1]},
            {"run": print, "live": {1: 2}},
            {"run": print, "name": 3},
            {"run": print, "at_capture": 1},
        ],
    )
    def test_a_break_takes_functions_and_names(self, arguments: dict[str, Any]) -> None:
        with pytest.raises(cgstate.ConfigError):
            Break(**arguments)


class TestReplayFailure:
    @pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
    @pytest.mark.parametrize("door", ["replay", "lease", "call", "leased"])
    def test_an_error_in_a_break_is_the_routines_own(self, door: str, error: BaseException) -> None:
        model = Split()
        make = model.leased if door == "leased" else model.component
        net = make("net", (4,)) if door == "leased" else model.split("net", (4,))
        if door == "leased":
            net.routine = model.routine(call=model.body)  # type: ignore[assignment]
        manager = model.serving(net)
        entry = manager.entry("net", 4)

        def boom() -> None:
            raise error

        model.during["break 2"] = boom

        def under_lease() -> None:
            with entry.lease() as lease:
                lease.replay()

        doors: dict[str, Hook] = {"replay": entry.replay, "lease": under_lease}
        with pytest.raises(type(error)) as raised:
            doors.get(door, lambda: net(model.input(4)))()
        assert raised.value is error
        assert (entry.state, net.state, quiet(manager)) == ("BOUND", "BOUND", True)
        assert manager.stats().components["net"].failures == {}
        model.during.clear()
        if door != "leased":
            assert net(model.input(4)).tolist() == model.whole(model.input(4)).tolist()  # type: ignore[union-attr]

    def test_a_lease_outlives_an_error_in_a_break(self) -> None:
        model = Split()
        manager = model.manager()
        entry, static = model.captured(manager)
        model.during["break 1"] = TestCaptureFailure.fault(model, "raises")
        with entry.lease() as lease:
            with pytest.raises(ValueError, match="boom"):
                lease.replay()
            with pytest.raises(cgstate.OutputExpired):
                _ = lease.output
            model.during.clear()
            lease.replay()
            assert lease.output.tolist() == model.whole(static).tolist()  # type: ignore[attr-defined]

    @pytest.mark.parametrize("nth", [1, 2, 3])
    def test_a_launch_that_raises_fails_the_entry(self, nth: int) -> None:
        model = Split()
        net = model.split()
        manager = model.serving(net)
        entry = manager.entry("net", 4)
        model.dev.faults.inject("graph_replay", nth=nth)
        with pytest.raises(InjectedFault):
            net(model.input(4))
        assert (entry.state, quiet(manager)) == ("FAILED", True)
        assert net(model.input(4)).tolist() == model.whole(model.input(4)).tolist()  # the larger one serves

    def test_a_device_lost_in_a_break_poisons(self) -> None:
        model = Split()
        manager = model.manager()
        entry, _ = model.captured(manager)

        def lose() -> None:
            model.dev.lose()
            model.dev.synchronize()

        model.during["break 1"] = lose
        with pytest.raises(Exception, match="device-side assert"):
            entry.replay()
        assert manager.state == "POISONED"


class TestRetirement:
    @pytest.mark.parametrize("place", ["break 1", "break 2"])
    @pytest.mark.parametrize("act", ["evict", "invalidate"])
    def test_an_entry_retired_inside_its_own_break_finishes(self, act: str, place: str) -> None:
        model = Split()
        net = model.split(dependencies=("kv",))
        manager = model.serving(net)
        model.during[place] = lambda: manager.evict("net") if act == "evict" else manager.invalidate("kv")
        right = model.whole(model.input(4)).tolist()
        assert net(model.input(4)).tolist() == right
        model.during.clear()
        assert net.state == "EVICTED"
        assert net(model.input(4)).tolist() == right  # eagerly
        manager.reclaim(flush=True)
        assert manager.memory().total == 0
        manager.capture_and_bind()
        assert net(model.input(4)).tolist() == right

    def test_an_entry_evicted_by_another_thread_while_it_replays_finishes(self) -> None:
        model = Split()
        net = model.split()
        manager = model.serving(net, isolation="per_entry")
        inside, evicted = threading.Event(), threading.Event()

        def pause() -> None:
            inside.set()
            reached(evicted)

        def evict() -> None:
            reached(inside)
            manager.evict("net", 4)
            manager.reclaim()
            evicted.set()

        model.during["break 1"] = pause
        with running(evict):
            answer = net(model.input(4))
        model.during.clear()
        assert answer.tolist() == model.whole(model.input(4)).tolist()
        assert manager.entry("net", 4).state == "EVICTED"
        assert net(model.input(8)).tolist() == model.whole(model.input(8)).tolist()

    def test_a_destroyed_graph_lets_go_of_its_breaks(self) -> None:
        model = Split()
        manager = model.manager()

        class Held:
            pass

        held = Held()
        gone = weakref.ref(held)
        static = model.input(2)

        def work(held: object) -> Callable[[], Any]:
            def body() -> Any:
                hidden = model.net(static)
                yield Break(lambda: held)
                return hidden

            return body

        made = [work(held)]
        with manager.transaction() as tx:
            tx.capture(manager.entry("low", 1), lambda warmup: made[0])
        del held
        made.clear()
        assert gone() is not None
        manager.evict("low")
        manager.reclaim(flush=True)
        gc.collect()
        assert gone() is None

    @pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
    def test_profiling_leaves_nothing_and_bounds_what_is_captured(self, isolation: str) -> None:
        model = Split()
        net = model.split()
        manager = model.manager(isolation=isolation)
        manager.prepare([net])
        manager.profile_memory()
        before = model.backend.footprint()
        estimate = manager.profile_memory()
        assert model.backend.footprint() == before
        assert (net.state, quiet(manager)) == ("EAGER", True)
        actual = manager.capture_and_bind().memory.total
        assert estimate.lower <= actual <= estimate.upper


class TestThreads:
    def test_another_entry_of_the_pool_waits_for_all_segments(self) -> None:
        model = Split(schedule=InOrder())
        manager = model.manager()
        entry, static = model.captured(manager)
        [(plain, plain_in)] = model.bind(manager, "plain")
        plain_in.copy_(model.input(2, 9.0))
        model.dev.synchronize()
        inside, waits = threading.Event(), threading.Event()
        done: list[str] = []

        def pause() -> None:
            inside.set()
            reached(waits)
            gate = manager._books.gate
            for _ in range(2000):
                with gate.lock:
                    if gate.waiting:
                        break
            done.append("break")

        def other() -> None:
            reached(inside)
            waits.set()
            with model.dev.on_stream(model.dev.new_stream()), plain.lease() as lease:
                lease.replay()
                done.append("other")
                assert lease.output.tolist() == model.net(plain_in).tolist()

        model.during["break 1"] = pause
        with running(other):
            assert model.replayed(entry, static, 4.0)
        assert done == ["break", "other"]

    @pytest.mark.parametrize("seed", range(6))
    def test_threads_on_streams_of_their_own_stay_right(self, seed: int) -> None:
        model = Split(schedule=Drawn(random.Random(seed)))
        net, plain = model.split(), model.component("plain")
        manager = model.serving(net, plain, check=bool(seed % 2))

        def work(component: Any, right: Callable[[SimTensor], SimTensor], first: float) -> Hook:
            stream = model.dev.new_stream()

            def calls() -> None:
                with model.dev.on_stream(stream):
                    for number in range(4):
                        x = model.input(4, first + number)
                        assert component(x).tolist() == right(x).tolist()

            return calls

        with running(work(net, model.whole, 1.0), work(plain, model.net, 50.0), work(net, model.whole, 90.0)):
            pass
        assert sum(c.hits for c in manager.stats().components.values()) == 12
        assert quiet(manager)

    def test_a_capture_by_another_thread_waits_for_the_break(self) -> None:
        model = Split()
        manager = model.manager(isolation="per_component")
        entry, _ = model.captured(manager)
        inside = threading.Event()
        order: list[str] = []

        def pause() -> None:
            inside.set()
            gate = manager._books.gate
            for _ in range(2000):
                with gate.lock:
                    if gate.pending:
                        break
            order.append("break")

        def late(x: SimTensor) -> SimTensor:
            order.append("capture")
            return model.net(x)

        def capture() -> None:
            reached(inside)
            model.bind(manager, "late", call=late)

        model.during["break 2"] = pause
        with running(capture):
            entry.replay()
        assert order[0] == "break"
        assert "capture" in order

    def test_breaks_that_call_into_each_others_pools_do_not_wait_for_ever(self) -> None:
        model = Model()
        manager = model.manager()
        meet = threading.Barrier(2, timeout=PATIENCE)
        components: dict[str, Any] = {}

        def crossing(leaf: str) -> Callable[[SimTensor], Any]:
            carry = model.dev.zeros(4, WIDTH)

            def body(x: SimTensor) -> Any:
                carry.copy_(model.net(x))

                def cross() -> None:
                    meet.wait()
                    carry.copy_(components[leaf](carry))

                yield Break(cross, at_capture=lambda: carry.copy_(model.net(carry)))
                return model.net(carry)

            return body

        # "a" and "leaf a" have one pool, "b" and "leaf b" the other; each outer one calls the other's leaf.
        for name in ("a", "b"):
            components[name] = model.component(name, (4,), call=crossing("leaf b" if name == "a" else "leaf a"))
        components["leaf a"] = model.component("leaf a", (4,), inside="a")
        components["leaf b"] = model.component("leaf b", (4,))
        manager.prepare(list(components.values()), {"a": {"isolation": "per_component"}, "b": {}, "leaf a": {}, "leaf b": {}})
        manager.capture_and_bind()
        expected = model.net(model.net(model.net(model.input(4)))).tolist()
        streams = {name: model.dev.new_stream() for name in ("a", "b")}

        def call(name: str) -> Hook:
            def act() -> None:
                with model.dev.on_stream(streams[name]):
                    assert components[name](model.input(4)).tolist() == expected

            return act

        with running(call("a"), call("b")):
            pass
        stats = manager.stats().components
        assert (stats["a"].hits, stats["b"].hits, quiet(manager)) == (1, 1, True)
        leaves = [stats[f"leaf {name}"] for name in ("a", "b")]
        assert sum(leaf.hits for leaf in leaves) + sum(leaf.fallbacks.get(cgstate.Fallback.turn_held, 0) for leaf in leaves) == 2
        assert sum(leaf.fallbacks.get(cgstate.Fallback.turn_held, 0) for leaf in leaves) == 1, "one of them gave way"
