"""Graphs that replay inside another one's eager break, from its pool: what that saves, and what it takes (I5, fact P4)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cgstate
from benchmarks.sharing import shared_stream_saving
from cgstate import Break, Fallback, run_eagerly
from cgstate.backends.sim import Drawn, SimConfig, SimTensor, captured, kernels
from tests.runtime.helpers import WIDTH, Model, elsewhere, reached, running

MIB = 1024
"""What the simulator calls so."""


class Nested(Model):
    """An outer function with one break, in which an inner component is called; what crosses it lies outside the pools.

    Attributes:
        carry: By size, what crosses the break.
        inside_break: Called in the break, before the inner component.
        leaves: A tensor of the outer graph stays live across the break.
        declares: It says so.
    """

    def __init__(self, *sizes: int, schedule: Any = None, leaves: bool = False, declares: bool = False) -> None:
        super().__init__(schedule=schedule, config=SimConfig(capacity_bytes=1 << 28))
        self.carry = {size: self.dev.zeros(size, WIDTH) for size in sizes or (4, 8)}
        self.inside_break: Callable[[], object] | None = None
        self.leaves = leaves
        self.declares = declares
        self.inner: Callable[[SimTensor], Any] = self.net

    def body(self, x: SimTensor) -> Any:
        carry = self.carry[x.shape[0]]
        first = self.net(x)
        carry.copy_(first)
        declared = {"first": first} if self.declares else {}
        if not self.leaves:
            del first

        def call() -> None:
            if self.inside_break is not None:
                self.inside_break()
            answer = self.inner(carry)
            if isinstance(answer, cgstate.LeasedOutput):
                with answer:
                    carry.copy_(answer.value)
            else:
                carry.copy_(answer)

        yield Break(call, live=declared, name="attention")
        second = self.net(carry)
        return kernels.add(second, first) if self.leaves else second

    def right(self, size: int, value: float = 1.0) -> Any:
        """What the whole computes."""
        first = self.net(self.input(size, value))
        second = self.net(self.net(first))
        return (kernels.add(second, first) if self.leaves else second).tolist()

    def outer_component(self, **keys: Any) -> cgstate.Component[..., SimTensor]:
        return self.component("outer", tuple(self.carry), call=self.body, **keys)

    def inner_component(self, **keys: Any) -> cgstate.Component[..., SimTensor]:
        inner = self.component("inner", tuple(self.carry), **keys)
        self.inner = inner
        return inner

    def low_level(
        self, manager: cgstate.GraphManager, *, first: str = "outer", inside: str | None = "outer"
    ) -> list[cgstate.Entry]:
        """The two as entries of the low-level door, of size 4, captured in one transaction; the outer one's input is `source`."""
        self.source, carry = self.dev.zeros(4, WIDTH), self.carry[4]
        outer = manager.entry("outer", 4)
        inner = manager.entry("inner", 4, inside=inside)

        def replay(x: SimTensor) -> Any:
            with inner.lease() as lease:
                lease.replay()
                return lease.output.clone()  # type: ignore[attr-defined]

        def body() -> Any:
            parts = self.body(self.source)
            pause = next(parts)

            def at_capture() -> None:
                carry.copy_(self.net(carry))

            yield Break(pause.run, live=pause.live, name=pause.name, at_capture=at_capture)
            return (yield from parts)

        self.inner = replay
        with manager.transaction() as tx:
            makes = {"outer": lambda: body, "inner": lambda: lambda: self.net(carry)}
            for entry in (outer, inner) if first == "outer" else (inner, outer):
                tx.capture(entry, lambda warmup, make=makes[entry.component.component_id]: make())  # type: ignore[misc]
        return [outer, inner]


def hits(manager: cgstate.GraphManager) -> tuple[int, int]:
    stats = manager.stats().components
    return stats["outer"].hits, stats["inner"].hits


def reasons(manager: cgstate.GraphManager) -> dict[Fallback, int]:
    """Why the inner component was answered eagerly, captures apart."""
    found = dict(manager.stats().components["inner"].fallbacks)
    found.pop(Fallback.in_capture, None)
    return found


class TestSaving:
    def test_sharing_saves_the_inner_graphs_temporaries_and_changes_no_value(self) -> None:
        model = Model(config=SimConfig(capacity_bytes=1 << 28))
        size = 16 * MIB // 8 // WIDTH

        def work(x: SimTensor) -> SimTensor:
            return kernels.scale(kernels.tanh(kernels.scale(x, 0.5)), 2.0)

        saving = shared_stream_saving(model.backend, work, lambda: model.input(size))
        assert saving.equal
        assert saving.saved >= 16 * MIB

    @pytest.mark.parametrize("isolation", ["shared", "per_component"])
    @pytest.mark.parametrize("order", ["outer first", "inner first"])
    @pytest.mark.parametrize("seed", range(4))
    def test_components_share_pool_stream_and_domain(self, seed: int, order: str, isolation: str) -> None:
        model = Nested(schedule=Drawn(random.Random(seed)))
        components = [model.outer_component(), model.inner_component(inside="outer")]
        manager = model.serving(*components[:: 1 if order == "outer first" else -1], isolation=isolation)
        outer = components[0]
        for number, size in enumerate((4, 8, 4)):
            assert outer(model.input(size, number)).tolist() == model.right(size, number)
        assert hits(manager) == (3, 3)
        assert len({entry.domain for entry in manager._books.entries()}) == 1
        inner = components[1]
        assert inner(model.input(3)).tolist() == model.net(model.input(3)).tolist()  # outside any break
        manager.close()
        assert manager.memory().total == 0

    @pytest.mark.parametrize("first", ["outer", "inner"])
    @pytest.mark.parametrize("check", [True, False])
    def test_low_level_entries_share_as_well(self, check: bool, first: str) -> None:
        model = Nested()
        manager = model.manager(isolation="per_component", check=check)
        outer, inner = model.low_level(manager, first=first)
        assert outer.pool is inner.pool
        assert not inner.fast
        for value in (1.0, 2.0):
            model.source.copy_(model.input(4, value))
            with outer.lease() as lease:
                lease.replay()
                assert lease.output.tolist() == model.right(4, value)  # type: ignore[attr-defined]
        assert hits(manager) == (2, 2)

    def test_estimates_know_of_the_sharing(self) -> None:
        model = Nested()
        manager = model.manager(isolation="per_component")
        manager.prepare([model.outer_component(), model.inner_component(inside="outer")])
        estimate = manager.profile_memory()
        assert estimate.lower <= manager.capture_and_bind().memory.total <= estimate.upper

    def test_a_component_inside_one_that_stays_eager_is_on_its_own(self) -> None:
        model = Nested()
        inner = model.inner_component(inside="outer")
        manager = model.manager()
        manager.prepare([model.outer_component(), inner], {"inner": {}})
        manager.capture_and_bind()
        assert inner(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        assert manager.stats().components["inner"].hits == 1


class TestNesting:
    def test_a_declared_component_is_answered_by_its_graph_inside_the_break(self) -> None:
        model = Nested()
        outer, inner = model.outer_component(), model.inner_component(inside="outer")
        manager = model.serving(outer, inner)
        assert outer(model.input(4)).tolist() == model.right(4)
        assert (hits(manager), reasons(manager)) == ((1, 1), {})

    def test_an_undeclared_one_of_the_same_pool_is_answered_eagerly(self) -> None:
        model = Nested(leaves=True)
        outer, inner = model.outer_component(), model.inner_component()
        manager = model.serving(outer, inner)
        assert outer(model.input(4)).tolist() == model.right(4)
        assert (hits(manager), reasons(manager)) == ((1, 0), {Fallback.turn_held: 1})

    def test_one_with_a_pool_of_its_own_is_answered_by_its_graph(self) -> None:
        model = Nested(leaves=True)
        outer, inner = model.outer_component(), model.inner_component()
        manager = model.serving(outer, inner, isolation="per_component")
        assert outer(model.input(4)).tolist() == model.right(4)
        assert hits(manager) == (1, 1)

    @pytest.mark.parametrize("inside", ["outer", None])
    def test_a_miss_inside_the_break_is_eager(self, inside: str | None) -> None:
        model = Nested()
        inner = model.component("inner", (2,), inside=inside)
        model.inner = inner
        outer = model.outer_component()
        manager = model.serving(outer, inner)
        assert outer(model.input(4)).tolist() == model.right(4)
        assert (hits(manager), reasons(manager)) == ((1, 0), {Fallback.miss: 1})

    @pytest.mark.parametrize(
        ("keys", "config", "expected"),
        [
            ({"inside": "outer"}, {}, (1, {})),
            ({}, {"isolation": "per_component"}, (1, {})),
            ({}, {}, (0, {Fallback.capture_busy: 1})),
        ],
        ids=["inside", "apart", "undeclared"],
    )
    def test_a_lazy_capture_inside_the_break_never_touches_what_crosses_it(self, keys: Any, config: Any, expected: Any) -> None:
        model = Nested(4, leaves="inside" not in keys)
        inner = model.component("inner", (2,), sizes=(4,), capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY, **keys)
        model.inner = inner
        outer = model.outer_component()
        manager = model.manager()
        manager.prepare([outer, inner], {"outer": {}, "inner": {"max_extra_graphs": 1, **config}})
        manager.capture_and_bind()
        # Another thread's first capture makes a library workspace of its own in the pool.
        assert elsewhere(lambda: outer(model.input(4)).tolist()) == model.right(4)
        assert (hits(manager)[1], reasons(manager)) == expected
        assert outer(model.input(4, 2.0)).tolist() == model.right(4, 2.0)

    def test_a_capture_asked_for_inside_the_break_is_refused(self) -> None:
        model = Nested()
        outer, inner = model.outer_component(), model.inner_component(inside="outer")
        manager = model.serving(outer, inner)
        model.inside_break = manager.capture_and_bind
        with pytest.raises(cgstate.CaptureActive):
            outer(model.input(4))
        model.inside_break = None
        assert outer(model.input(4)).tolist() == model.right(4)

    def test_a_call_on_another_stream_inside_the_break_is_eager(self) -> None:
        model = Nested()
        outer, inner = model.outer_component(), model.inner_component(inside="outer")
        side = model.dev.new_stream()

        def on_the_side(x: SimTensor) -> SimTensor:
            done = model.dev.current_stream().record()
            side.wait(done)
            with model.dev.on_stream(side):
                answer = inner(x)
                done = side.record()
            model.dev.current_stream().wait(done)
            model.kept.append(answer)  # memory of the other stream, which would have it again before the copy
            return answer

        model.inner = on_the_side
        manager = model.serving(outer, inner)
        assert outer(model.input(4)).tolist() == model.right(4)
        assert reasons(manager) == {Fallback.turn_held: 1}

    def test_a_low_level_replay_that_is_not_declared_is_refused_inside_the_break(self) -> None:
        model = Nested()
        manager = model.manager()
        outer, _ = model.low_level(manager, inside=None)
        with pytest.raises(cgstate.CaptureActive, match="not inside a call into the pool"):
            outer.replay()
        assert outer.state == "BOUND"

    def test_an_outer_graph_does_not_nest_into_itself(self) -> None:
        model = Nested()
        outer, inner = model.outer_component(), model.inner_component(inside="outer")
        manager = model.serving(outer, inner)
        depth = iter((True, False))
        model.inside_break = lambda: next(depth, False) and outer(model.input(8))
        assert outer(model.input(4)).tolist() == model.right(4)
        assert manager.stats().components["outer"].fallbacks[Fallback.turn_held] == 1

    def test_breaks_nest(self) -> None:
        model = Nested(4)
        carry = model.dev.zeros(4, WIDTH)
        leaf = model.component("leaf", (4,), inside="inner")

        def middle(x: SimTensor) -> Any:
            carry.copy_(model.net(x))
            yield Break(lambda: carry.copy_(leaf(carry)))
            return model.net(carry)

        inner = model.inner_component(inside="outer", call=middle)
        outer = model.outer_component()
        manager = model.serving(outer, inner, leaf)
        expected = model.input(4)
        for _ in range(5):
            expected = model.net(expected)
        assert outer(model.input(4)).tolist() == expected.tolist()
        assert all(component.hits == 1 for component in manager.stats().components.values())
        assert len(manager._books.pools) == 1

    def test_an_output_lent_inside_the_break_has_expired_after_it(self) -> None:
        model = Nested()
        inner = model.leased("inner", (4, 8), inside="outer")
        kept: list[cgstate.LeasedOutput[SimTensor]] = []

        def keep(x: SimTensor) -> SimTensor:
            kept.append(inner(x))
            return kept[-1].value

        model.inner = keep
        outer = model.outer_component()
        manager = model.serving(outer, inner)
        kept.clear()
        assert outer(model.input(4)).tolist() == model.right(4)
        assert kept[0].expired
        kept[0].release()
        assert hits(manager) == (1, 1)

    @pytest.mark.parametrize("error", ["launch", "routine"])
    def test_an_inner_failure_is_the_inner_entrys(self, error: str) -> None:
        model = Nested()
        outer, inner = model.outer_component(), model.inner_component(inside="outer")
        manager = model.serving(outer, inner)
        boom = ValueError("boom")
        if error == "launch":
            model.inside_break = lambda: model.dev.faults.inject("graph_replay", error=boom)
        else:
            model.inside_break = lambda: model.dev.faults.inject("clone", error=boom)
            inner.caller.clone = model.backend.clone  # type: ignore[union-attr]
            inner.caller.tensor = type(None)  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="boom"):
            outer(model.input(4))
        model.inside_break = None
        assert manager.entry("outer", 4).state == "BOUND"
        assert manager.entry("inner", 4).state == ("FAILED" if error == "launch" else "BOUND")
        assert outer(model.input(4)).tolist() == model.right(4)

    def test_an_unrelated_call_from_another_thread_waits_for_the_outer_one(self) -> None:
        model = Nested()
        outer, inner, other = model.outer_component(), model.inner_component(inside="outer"), model.component("other")
        manager = model.serving(outer, inner, other)
        inside, order = threading.Event(), list[str]()

        def pause() -> None:
            inside.set()
            for _ in range(2000):
                with manager._books.gate.lock:
                    if manager._books.gate.waiting:
                        break

        def call() -> None:
            reached(inside)
            assert other(model.input(4)).tolist() == model.net(model.input(4)).tolist()
            order.append("other")

        model.inside_break = pause
        with running(call):
            assert outer(model.input(4)).tolist() == model.right(4)
            model.inside_break = None
        assert manager.stats().components["other"].hits == 1
        assert hits(manager) == (1, 1)

    def test_a_nested_call_leaves_the_outer_ones_claim_against_captures(self) -> None:
        model = Nested()
        outer, inner = model.outer_component(), model.inner_component(inside="outer", overlaps_capture=True)
        manager = model.serving(outer, inner)
        turn = manager.entry("outer", 4).turn
        seen: list[bool] = []

        def look(x: SimTensor) -> SimTensor:
            answer = inner(x)
            seen.append(turn.exclusive)
            return answer

        model.inner = look
        outer(model.input(4))
        assert seen == [True]

    def test_random_numbers_may_be_drawn_on_both_sides(self) -> None:
        model = Nested()

        def noisy(x: SimTensor) -> SimTensor:
            return kernels.add(model.net(x), model.dev.rand(*x.shape))

        def outer_body(x: SimTensor) -> Any:
            carry = model.carry[x.shape[0]]
            carry.copy_(noisy(x))
            yield Break(lambda: carry.copy_(model.inner(carry)))
            return noisy(carry)

        inner = model.inner_component(inside="outer", call=noisy)
        outer = model.component("outer", (4,), call=outer_body)
        manager = model.serving(outer, inner)
        model.dev.manual_seed(3)
        expected = noisy(noisy(noisy(model.input(4)))).tolist()
        model.dev.manual_seed(3)
        assert outer(model.input(4)).tolist() == expected
        assert hits(manager) == (1, 1)


class TestRefusal:
    def test_sharing_a_pool_across_which_a_tensor_is_live_corrupts_on_this_simulator(self) -> None:
        model = Model()
        pool, stream = model.dev.new_pool(), model.dev.new_stream()
        source, carry = model.input(4), model.dev.zeros(4, WIDTH)

        def first() -> list[SimTensor]:
            hidden = model.net(source)
            carry.copy_(hidden)
            return [hidden]

        def outer_eager() -> Any:
            [hidden] = first()
            return kernels.add(model.net(model.net(carry)), hidden).tolist()

        with model.dev.on_stream(stream):
            model.net(source)
        expected = outer_eager()
        one, held = captured(model.dev, first, stream, pool.id)
        two, output = captured(model.dev, lambda: kernels.add(model.net(carry), held[0]), stream, pool.id)
        held.clear()  # as the frame of a body that has ended
        inner, answer = captured(model.dev, partial(model.net, carry), stream, pool.id)
        one.replay()
        inner.replay()
        carry.copy_(answer)
        two.replay()
        assert output.tolist() != expected

    @pytest.mark.parametrize("declares", [True, False])
    def test_the_outer_capture_is_refused_and_nothing_changed(self, declares: bool) -> None:
        model = Nested(leaves=True, declares=declares)
        outer, inner = model.outer_component(), model.inner_component(inside="outer")
        manager = model.manager()
        manager.prepare([outer, inner])
        manager.reclaim(flush=True)
        footprint = model.backend.footprint()
        with pytest.raises(cgstate.LiveAcrossBreak) as refused:
            manager.capture_and_bind()
        assert "outer[8] live across attention, where inner replays" in str(refused.value)
        assert ("first" in str(refused.value)) == declares
        assert (manager.state, outer.state, inner.state) == ("PREPARED", "EAGER", "EAGER")
        assert {entry.state.value for entry in manager._books.entries()} == {"EAGER"}
        assert manager.stats().components["outer"].failures == {}
        manager.reclaim(flush=True)
        assert model.backend.footprint() == footprint
        model.leaves = model.declares = False  # cured
        manager.capture_and_bind()
        assert outer(model.input(4)).tolist() == model.right(4)
        assert hits(manager) == (1, 1)

    def test_what_a_body_declares_counts_where_nothing_is_seen(self) -> None:
        model = Nested(declares=True)
        manager = model.manager()
        manager.prepare([model.outer_component(), model.inner_component(inside="outer")])
        with pytest.raises(cgstate.LiveAcrossBreak, match="first by its own word"):
            manager.capture_and_bind()

    def test_an_estimate_of_what_is_refused_says_so_and_leaves_nothing(self) -> None:
        model = Nested(leaves=True)
        manager = model.manager()
        manager.prepare([model.outer_component(), model.inner_component(inside="outer")])
        manager.reclaim(flush=True)
        footprint = model.backend.footprint()
        estimate = manager.profile_memory()
        assert any("live across attention" in reason for reason in estimate.distrust)
        assert (manager.state, model.backend.footprint()) == ("PREPARED", footprint)

    def test_a_transaction_goes_on_after_the_refusal(self) -> None:
        model = Nested(leaves=True)
        manager = model.manager()
        outer, inner = manager.entry("outer", 4), manager.entry("inner", 4, inside="outer")
        static = model.input(4)
        with manager.transaction() as tx:
            tx.capture(inner, lambda warmup: lambda: model.net(static))
            with pytest.raises(cgstate.LiveAcrossBreak):
                tx.capture(outer, lambda warmup: lambda: model.body(static))
        assert (outer.state, inner.state) == ("EAGER", "BOUND")
        inner.replay()
        assert inner.output.tolist() == model.net(static).tolist()  # type: ignore[attr-defined]

    @pytest.mark.parametrize("when", ["bound", "in the same transaction"])
    def test_a_declaration_that_comes_later_is_refused(self, when: str) -> None:
        model = Nested(leaves=True)
        manager = model.manager()
        outer, static = manager.entry("outer", 4), model.input(4)
        components = set(manager._books.components)

        def declare() -> None:
            with pytest.raises(cgstate.LiveAcrossBreak, match=r"outer\[4\] live across attention, where late replays"):
                manager.entry("late", 4, inside="outer")
            assert set(manager._books.components) == components

        with manager.transaction() as tx:
            tx.capture(outer, lambda warmup: lambda: model.body(static))
            if when != "bound":
                declare()
        if when == "bound":
            declare()
        manager.evict("outer")
        manager.reclaim()
        assert manager.entry("late", 4, inside="outer").domain is outer.domain  # cured: nothing is recorded any more

    def test_a_lazy_capture_that_is_refused_is_answered_eagerly_and_remembered(self) -> None:
        model = Nested(4, 8)
        outer = model.component("outer", (4,), call=model.body, sizes=(8,), capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
        inner = model.inner_component(inside="outer")
        manager = model.manager()
        manager.prepare([outer, inner], {"outer": {"max_extra_graphs": 1}, "inner": {}})
        manager.capture_and_bind()
        model.leaves = True
        for _ in range(2):
            assert outer(model.input(8)).tolist() == model.right(8)
        found = manager.stats().components["outer"].fallbacks
        assert (found[Fallback.rejected], found[Fallback.blocked]) == (1, 1)

    @pytest.mark.parametrize(
        ("inside", "config", "match"),
        [
            ("nobody", None, "inside unknown component 'nobody'"),
            ("inner", None, "inside itself: inner inside inner"),
            ("outer", {"outer": {}, "inner": {"isolation": "shared"}}, "shares its isolation"),
            ("outer", {"outer": {"isolation": "per_entry"}, "inner": {}}, "entries have a pool each"),
        ],
    )
    def test_where_a_component_cannot_be(self, inside: str, config: Any, match: str) -> None:
        model = Nested()
        manager = model.manager()
        components = [model.outer_component(), model.inner_component(inside=inside)]
        with pytest.raises(cgstate.ConfigError, match=match):
            manager.prepare(components, config)
        assert (manager.state, manager._books.components) == ("NEW", {})

    def test_components_inside_each_other_are_refused(self) -> None:
        model = Nested()
        manager = model.manager()
        with pytest.raises(cgstate.ConfigError, match="outer inside inner inside outer"):
            manager.prepare([model.outer_component(inside="inner"), model.inner_component(inside="outer")])

    def test_the_low_level_door_refuses_what_cannot_be(self) -> None:
        model = Nested()
        manager = model.manager()
        manager.entry("outer", 4)
        manager.entry("apart", 4)
        manager.entry("inner", 4, inside="outer")
        manager.entry("inner", 8, inside="outer")
        manager.entry("inner", 8)
        for component, inside in (("late", "nobody"), ("late", 3), ("inner", "apart"), ("apart", "outer"), ("outer", "outer")):
            with pytest.raises(cgstate.ConfigError):
                manager.entry(component, 4, inside=inside)  # type: ignore[arg-type]
        assert set(manager._books.components) == {"outer", "apart", "inner"}
        isolated = model.manager(isolation="per_entry")
        isolated.entry("outer", 4)
        with pytest.raises(cgstate.ConfigError, match="entries have a pool each"):
            isolated.entry("inner", 4, inside="outer")

    def test_inside_names_a_component(self) -> None:
        with pytest.raises(cgstate.ConfigError, match="must be the id of a component"):
            Model().component(inside=3)


def test_eager_code_runs_the_same_body() -> None:
    model = Nested()
    assert run_eagerly(model.body(model.input(4))).tolist() == model.right(4)  # type: ignore[attr-defined]
