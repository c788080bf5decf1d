"""Turns: replays that share a pool, or the generator, never overlap, on whichever streams and threads they come (I5, fact T1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import Drawn, InOrder, SimStream, SimTensor, captured, kernels
from cgstate.runtime.stats import Fallback
from cgstate.runtime.turn import NO_STREAM, Turn
from tests.runtime.helpers import Model, before, counts, running

SEEDS = range(12)
ROUNDS = 6


def drawn(seed: int) -> Model:
    return Model(schedule=Drawn(random.Random(seed)))


class TestTwoStreams:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_calls_on_two_streams_answer_as_eager_does(self, seed: int) -> None:
        model = drawn(seed)
        net, other = model.component("net"), model.component("other")
        manager = model.serving(net, other, check=bool(seed % 2))
        streams = [model.dev.new_stream() for _ in range(2)]
        pick = random.Random(seed)
        answers: list[tuple[SimTensor, SimStream, object]] = []
        for number in range(ROUNDS):
            stream, size = pick.choice(streams), pick.choice((3, 4, 7, 8))
            with model.dev.on_stream(stream):
                answers.append((pick.choice((net, other))(model.input(size, number)), stream, (size, number)))
        expected = [model.net(model.input(*key)).tolist() for _, _, key in answers]  # type: ignore[misc]
        for (answer, stream, _), right in zip(answers, expected, strict=True):
            with model.dev.on_stream(stream):
                assert answer.tolist() == right
        assert sum(c.hits for c in manager.stats().components.values()) == ROUNDS

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry", "two managers"])
    def test_graphs_that_share_static_inputs_take_turns_whichever_pools_they_are_in(self, seed: int, isolation: str) -> None:
        model = drawn(seed)
        whole = model.dev.zeros(8, 4)

        def component(name: str, *sizes: int) -> cgstate.Component[..., SimTensor]:
            return cgstate.Component(name, cgstate.BucketedRoutine(model.net, lambda size: (whole.narrow(0, 0, size),)), sizes)

        if isolation == "two managers":
            nets = [component("a", 4), component("b", 8)]
            managers = [model.serving(net, check=bool(seed % 2)) for net in nets]
        else:
            nets = [component("a", 4, 8)] * 2 if isolation == "per_entry" else [component("a", 4), component("b", 8)]
            managers = [model.serving(*dict.fromkeys(nets), isolation=isolation, check=bool(seed % 2))]
        streams, inputs = [model.dev.new_stream() for _ in nets], [model.input(4, 0.01), model.input(8, 0.3)]
        right = [model.net(x).tolist() for x in inputs]
        model.dev.synchronize()
        for _ in range(ROUNDS):
            answers = []
            for net, stream, x in zip(nets, streams, inputs, strict=True):
                with model.dev.on_stream(stream):
                    answers.append(net(x))
            model.dev.synchronize()
            assert [answer.tolist() for answer in answers] == right
        assert sum(c.hits for manager in managers for c in manager.stats().components.values()) == 2 * ROUNDS

    def test_static_inputs_of_a_generation_that_is_gone_bind_nobody_to_its_turn(self) -> None:
        model = Model()
        own = {size: model.dev.zeros(size, 4) for size in (2, 4, 8)}
        net = cgstate.Component(
            "net",
            cgstate.BucketedRoutine(model.net, lambda size: (own[size],)),
            [2, 4, 8],
            capture_mode=cgstate.CaptureMode.PURE_LAZY,
        )
        manager = model.serving(net, config={"net": {"max_extra_graphs": 4}})
        net(model.input(4))
        x, stream = model.input(8), model.dev.new_stream()
        net(x)
        with model.dev.on_stream(stream):
            net(x)
        manager.evict("net")  # what is in flight keeps the old pool, and so its turn
        answers = [net(model.input(size)) for size in (2, 4)]
        assert [answer.tolist() for answer in answers] == [model.net(model.input(size)).tolist() for size in (2, 4)]
        assert (manager.stats().components["net"].hits, manager.stats().components["net"].failures) == (5, {})
        manager.close()

    def test_graphs_with_turns_of_their_own_do_not_begin_to_share_static_inputs(self) -> None:
        model = Model()
        whole = model.dev.zeros(8, 4)
        own = {4: model.dev.zeros(4, 4), 8: whole}
        a = cgstate.Component("a", cgstate.BucketedRoutine(model.net, lambda size: (whole,)), [8])
        lazy = cgstate.CaptureMode.PRECAPTURE_LAZY
        b = cgstate.Component(
            "b", cgstate.BucketedRoutine(model.net, lambda size: (own[size],), sizes=(8,)), [4], capture_mode=lazy
        )
        manager = model.serving(a, b, isolation="per_component", config={"a": {}, "b": {"max_extra_graphs": 1}})
        before = manager.memory().total
        for _ in range(3):  # a call never fails for that
            assert b(model.input(8)).tolist() == model.net(model.input(8)).tolist()
        assert counts(manager, "b") == {"rejected": 1, "blocked": 2}
        assert manager.stats().components["b"].failures == {"REJECTED": 1}
        manager.reclaim(flush=True)
        assert manager.memory().total <= before + 22 * 1024
        assert b(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        assert a(model.input(8)).tolist() == model.net(model.input(8)).tolist()
        manager.close()

    def test_an_explicit_capture_of_them_says_what_is_wrong_each_time(self) -> None:
        model = Model()
        whole = model.dev.zeros(8, 4)
        own = {4: model.dev.zeros(4, 4), 8: whole}
        a = cgstate.Component("a", cgstate.BucketedRoutine(model.net, lambda size: (whole,)), [8])
        smallest_first = cgstate.Component(
            "b", cgstate.BucketedRoutine(model.net, lambda size: (own[size],)), [4, 8], capture_order_key=lambda size: -size
        )
        manager = model.manager(isolation="per_component")
        manager.prepare([a, smallest_first])
        for _ in range(2):
            with pytest.raises(cgstate.CaptureFailed) as failed:
                manager.capture_and_bind()
            assert isinstance(failed.value.__cause__, cgstate.ConfigError)
            assert "let all share one pool, or give it static inputs of its own" in str(failed.value.__cause__)
        own[8] = model.dev.zeros(8, 4)
        manager.capture_and_bind()
        assert smallest_first(model.input(8)).tolist() == model.net(model.input(8)).tolist()

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("order", [("a", "b", "both"), ("a", "both", "b"), ("both", "a", "b")])
    def test_what_two_others_read_is_read_in_turn_with_both_or_not_at_all(self, order: tuple[str, ...], seed: int) -> None:
        model = drawn(seed)
        statics = {"a": model.dev.zeros(4, 4), "b": model.dev.zeros(4, 4)}

        def component(name: str) -> cgstate.Component[..., SimTensor]:
            def work(*inputs: SimTensor) -> SimTensor:
                return model.net(inputs[0] if len(inputs) == 1 else kernels.add(*inputs))

            mine = tuple(statics[each] for each in sorted(statics) if name in (each, "both"))
            return cgstate.Component(name, cgstate.BucketedRoutine(work, lambda size: mine), [4])

        nets = {name: component(name) for name in order}
        manager = model.manager(isolation="per_component")
        manager.prepare(list(nets.values()))
        if order[-1] == "both":
            with pytest.raises(cgstate.CaptureFailed, match="do not take turns with those"):
                manager.capture_and_bind()
            return
        manager.capture_and_bind()
        x, y = model.input(4, 0.1), model.input(4, 0.5)
        calls = {"a": (x,), "b": (y,), "both": (y, x)}
        streams = {name: model.dev.new_stream() for name in order}
        right = {name: model.net(x if name == "a" else y if name == "b" else kernels.add(x, y)).tolist() for name in order}
        model.dev.synchronize()
        for _ in range(ROUNDS):
            answers = {}
            for name, net in nets.items():
                with model.dev.on_stream(streams[name]):
                    answers[name] = net(*calls[name])
            model.dev.synchronize()
            assert {name: answer.tolist() for name, answer in answers.items()} == right

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("door", ["replay", "lease"])
    def test_low_level_replays_on_two_streams_do_not_corrupt(self, seed: int, door: str) -> None:
        model = drawn(seed)
        manager = model.manager(check=bool(seed % 2))
        (a, a_in), (b, b_in) = model.bind(manager, "a", "b")
        a_in.copy_(model.input(2, 1.0))
        b_in.copy_(model.input(2, 2.0))
        model.dev.synchronize()
        streams = [model.dev.new_stream() for _ in range(2)]
        kept: list[tuple[SimTensor, SimStream, float]] = []
        for _ in range(ROUNDS):
            for entry, stream, value in ((a, streams[0], 1.0), (b, streams[1], 2.0)):
                with model.dev.on_stream(stream):
                    if door == "lease":
                        with entry.lease() as lease:
                            lease.replay()
                    else:
                        entry.replay()
                    # The turn is over; the next replay waits for this stream, and so for the copy.
                    kept.append((entry.output.clone(), stream, value))
        for copy, stream, value in kept:
            with model.dev.on_stream(stream):
                assert copy.tolist() == model.net(model.input(2, value)).tolist()

    def test_the_same_replays_without_turns_corrupt_on_this_simulator(self) -> None:
        wrong = 0
        for seed in SEEDS:
            model = drawn(seed)
            pool, stream = model.dev.new_pool(), model.dev.new_stream()
            inputs = [model.input(2, 1.0), model.input(2, 2.0)]
            model.net(inputs[0])
            with model.dev.on_stream(stream):
                model.net(inputs[0])
            graphs = [captured(model.dev, partial(model.net, x), stream, pool.id) for x in inputs]
            model.dev.synchronize()
            streams = [model.dev.new_stream() for _ in range(2)]
            kept = []
            for _ in range(ROUNDS):
                for (graph, output), side, x in zip(graphs, streams, inputs, strict=True):
                    with model.dev.on_stream(side):
                        graph.replay()
                        kept.append((output.clone(), side, x))
            for copy, side, x in kept:
                with model.dev.on_stream(side):
                    found = copy.tolist()
                wrong += found != model.net(x).tolist()
        assert wrong > len(SEEDS), "a simulator on which this is right cannot show that turns are needed"

    @pytest.mark.parametrize("seed", SEEDS)
    def test_threads_with_streams_of_their_own_do_not_corrupt(self, seed: int) -> None:
        model = drawn(seed)
        net, other = model.component("net"), model.component("other")
        manager = model.serving(net, other, check=bool(seed % 2))

        def work(component: cgstate.Component[..., SimTensor], first: float) -> Callable[[], None]:
            stream = model.dev.new_stream()

            def calls() -> None:
                with model.dev.on_stream(stream):
                    for number in range(ROUNDS):
                        x = model.input(4, first + number)
                        assert component(x).tolist() == model.net(x).tolist()

            return calls

        with running(work(net, 1.0), work(other, 100.0), work(net, 200.0)):
            pass
        assert sum(c.hits for c in manager.stats().components.values()) == 3 * ROUNDS

    def test_the_first_replay_waits_for_the_capture_that_made_it(self) -> None:
        model = drawn(3)
        manager = model.manager()
        [(entry, static)] = model.bind(manager, "low")
        waits = model.dev.faults.calls["stream_wait"]
        with model.dev.on_stream(model.dev.new_stream()):
            entry.replay()
            assert model.dev.faults.calls["stream_wait"] == waits + 1
            assert entry.output.tolist() == model.net(static).tolist()

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_warm_up_in_the_pool_waits_for_replays_in_flight_on_other_streams(self, seed: int) -> None:
        """The library workspace of the capture stream lies in the pool; the graphs have it baked in, and warm-up writes it (W1)."""
        model = drawn(seed)
        manager = model.manager()
        [(entry, static)] = model.bind(manager, "a")
        static.copy_(model.input(2, 3.0))
        model.dev.synchronize()
        side = model.dev.new_stream()
        with model.dev.on_stream(side):
            entry.replay()
            copy = entry.output.clone()
        model.bind(manager, "b")
        with model.dev.on_stream(side):
            assert copy.tolist() == model.net(model.input(2, 3.0)).tolist()


class TestCost:
    @pytest.mark.parametrize("check", [True, False])
    def test_nothing_is_recorded_while_everything_comes_on_one_stream(self, check: bool) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net, check=check)
        entry, x = manager.entry("net", 4), model.input(4)
        net(x)
        entry.replay()
        earlier = dict(model.dev.faults.calls)
        for _ in range(10):
            net(x)
            entry.replay()
        after = model.dev.faults.calls
        for name in ("stream_record", "stream_wait", "current_stream", "stream_synchronize", "event_done", "synchronize"):
            assert after[name] == earlier.get(name, 0), name
        assert after["graph_replay"] - earlier["graph_replay"] == 20

    def test_a_change_of_stream_costs_one_event(self) -> None:
        model = Model()
        manager = model.manager()
        [(entry, _)] = model.bind(manager, "low")
        entry.replay()
        earlier = model.dev.faults.calls.copy()
        with model.dev.on_stream(model.dev.new_stream()):
            for _ in range(3):
                entry.replay()
        spent = model.dev.faults.calls - earlier
        assert (spent["stream_record"], spent["stream_wait"]) == (1, 1)


class TestRandomNumbers:
    def dropout(self, model: Model) -> Callable[[SimTensor], SimTensor]:
        return lambda x: kernels.add(model.net(x), model.dev.rand(*x.shape))

    @pytest.mark.parametrize("seed", range(4))
    def test_graphs_that_draw_are_ordered_across_pools(self, seed: int) -> None:
        model = drawn(seed)
        manager = model.manager(isolation="per_entry")
        (a, _), (b, _) = model.bind(manager, "a", "b", call=self.dropout(model))
        assert a.pool is not b.pool
        streams = [model.dev.new_stream() for _ in range(2)]
        for entry, stream in zip((a, b), streams, strict=True):
            with model.dev.on_stream(stream):
                entry.replay()
        earlier = model.dev.faults.calls.copy()
        for entry, stream in zip((a, b), streams, strict=True):
            with model.dev.on_stream(stream):
                entry.replay()
        assert (model.dev.faults.calls - earlier)["stream_wait"] == 2, "each waits for the other one's stream"
        assert a.gate.random.last_handle == streams[1].handle

    def test_graphs_that_draw_nothing_are_not_ordered_across_pools(self) -> None:
        model = Model()
        manager = model.manager(isolation="per_entry")
        (a, _), (b, _) = model.bind(manager, "a", "b")
        streams = [model.dev.new_stream() for _ in range(2)]
        for _ in range(2):
            earlier = model.dev.faults.calls.copy()
            for entry, stream in zip((a, b), streams, strict=True):
                with model.dev.on_stream(stream):
                    entry.replay()
        assert (model.dev.faults.calls - earlier)["stream_wait"] == 0

    def test_a_replay_draws_what_the_eager_call_would_have_drawn(self) -> None:
        model = Model()
        manager = model.manager()
        work = self.dropout(model)
        [(entry, static)] = model.bind(manager, "low", call=work)
        static.copy_(model.input(2))
        model.dev.manual_seed(5)
        eager = [work(static).tolist() for _ in range(3)]
        model.dev.manual_seed(5)
        graph = []
        for _ in range(3):
            entry.replay()
            graph.append(entry.output.tolist())
        assert graph == eager
        assert len({str(values) for values in graph}) == 3

    def test_a_capture_waits_for_a_drawing_replay_to_be_launched_and_the_replay_for_the_capture(self) -> None:
        """Between the turn and the launch no capture may open: the generator would refuse the replay (fact S2)."""
        model = Model()
        manager = model.manager()
        [(entry, _)] = model.bind(manager, "low", call=self.dropout(model))
        gate = entry.gate
        graph_replay = entry.launch
        seen: list[bool] = []

        def launch() -> None:
            with gate.lock:
                seen.append(gate.blocks_capture(-1))
            graph_replay()

        entry.launch = launch
        entry.replay()
        assert seen == [True]
        with gate.lock:
            assert not gate.blocks_capture(-1)


class TestNesting:
    def test_a_call_from_inside_a_call_into_the_same_pool_is_eager_and_counted(self) -> None:
        model = Model()
        inner = model.component("inner")
        outer = model.component("outer")
        answers: list[Any] = []

        before(outer, "copy_runtime_inputs", lambda: answers.append(inner(model.input(4, 7.0))))
        manager = model.serving(inner, outer)
        assert outer(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        assert answers[0].tolist() == model.net(model.input(4, 7.0)).tolist()
        assert manager.stats().components["inner"].fallbacks == {Fallback.turn_held: 1}

    def test_a_low_level_replay_from_inside_a_call_into_the_same_pool_is_refused(self) -> None:
        model = Model()
        outer = model.component("outer")
        refused: list[bool] = []

        def replay() -> None:
            with pytest.raises(cgstate.CaptureActive, match="not inside a call into the pool"):
                entry.replay()
            refused.append(True)

        before(outer, "copy_runtime_inputs", replay)
        manager = model.serving(outer)
        entry = manager.entry("outer", 8)
        assert outer(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        assert refused
        assert (entry.state.value, entry.leases) == ("BOUND", 0)

    def test_an_idle_lease_holds_no_turn(self) -> None:
        model = Model(schedule=InOrder())
        net = model.component()
        manager = model.serving(net)
        with manager.entry("net", 4).lease() as lease:
            lease.replay()
            done: list[Any] = []
            with running(lambda: done.append(net(model.input(8)).tolist())):
                pass
            assert done == [model.net(model.input(8)).tolist()]


class InterruptedList(list[Any]):
    """A list in which an interrupt comes right after something was taken out."""

    def clear(self) -> None:
        super().clear()
        raise KeyboardInterrupt

    def pop(self, *place: Any) -> Any:
        super().pop(*place)
        raise KeyboardInterrupt


class TestAnInterrupt:
    def test_does_not_make_a_mark_forgotten_that_nothing_has_waited_for(self) -> None:
        model = Model()
        stream, turn = model.dev.new_stream(), Turn("pool")
        turn.waits = InterruptedList()
        for _ in range(2):
            mark = stream.record()
            with suppress(KeyboardInterrupt):
                turn.disturb(stream, mark)
            assert turn.last_handle == NO_STREAM
            assert turn.waits == [(stream, mark)]

    def test_of_the_wait_itself_lets_no_other_stream_pass(self) -> None:
        model = Model()
        captures, mine = model.dev.new_stream(), model.dev.new_stream()
        turn = Turn("pool")
        turn.waits = InterruptedList()
        turn.disturb(captures, captures.record())
        with model.dev.on_stream(mine), suppress(KeyboardInterrupt):
            turn.follow(mine.handle, model.backend)
        assert turn.waits or turn.last_stream is mine, "the next stream waits for the marks, or for the stream that has waited"
