"""Memory that graphs depend on may go and come back: sleep modes, reloads, rescales (faults of kind K07)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import cgstate
from cgstate.backends.sim import SimGraph, SimTensor, graph_scope, kernels
from cgstate.backends.sim.errors import SimAcceleratorError
from tests.runtime.helpers import WIDTH, Model, before, counts, elsewhere, reached, running


@pytest.fixture
def model() -> Model:
    return Model()


def books(manager: cgstate.GraphManager) -> Any:
    return manager._books


@contextmanager
def unchanged(manager: cgstate.GraphManager) -> Iterator[None]:
    """The block is refused, and changes nothing."""

    def look() -> object:
        mine = books(manager)
        names = sorted(mine.dependencies)
        return (
            manager.state,
            [(name, manager.dependency(name)) for name in names],
            [(entry.name, entry.state, entry.leases) for entry in mine.entries() if entry.state != "EAGER"],
            [(name, record.resident, record.epoch) for name, record in mine.components.items()],
            (mine.busy, mine.draining),
        )

    was = look()
    yield
    assert look() == was


class TestSuspended:
    @pytest.mark.parametrize("door", ["call", "miss", "replay", "lease", "eager component"])
    def test_every_door_refuses_and_names_what_is_missing(self, model: Model, door: str) -> None:
        net = model.component(dependencies=("kv", "weights"))
        alone = model.component("alone", dependencies=("kv", "weights"), capture_mode=cgstate.CaptureMode.PURE_LAZY)
        manager = model.serving(net, alone)
        x, huge = model.input(4), model.input(9)
        manager.suspend("weights", "kv")
        acts: dict[str, Callable[[], object]] = {
            "call": lambda: net(x),
            "miss": lambda: net(huge),
            "replay": lambda: manager.entry("net", 4).replay(),
            "lease": lambda: manager.entry("net", 4).lease().__enter__(),
            "eager component": lambda: alone(x),
        }
        with unchanged(manager), pytest.raises(cgstate.NotResident) as refusal:
            acts[door]()
        assert refusal.value.missing == ("kv", "weights")
        assert "kv, weights" in str(refusal.value)
        manager.resume("weights", "kv")
        if door == "lease":
            with manager.entry("net", 4).lease() as lease:
                lease.replay()
        else:
            acts[door]()

    def test_a_call_that_depends_on_two_needs_both(self, model: Model) -> None:  # B37
        both, one = model.component("both", dependencies=("kv", "weights")), model.component("one", dependencies=("weights",))
        manager = model.serving(both, one, isolation="per_component")
        x = model.input(4)
        manager.suspend("kv", "weights")
        manager.resume("weights")
        assert one(x).tolist() == model.net(x).tolist()
        with pytest.raises(cgstate.NotResident) as refusal:
            both(x)
        assert refusal.value.missing == ("kv",)
        with pytest.raises(cgstate.NotResident):
            manager.entry("both", 4).replay()
        manager.resume("kv")
        assert both(x).tolist() == model.net(x).tolist()
        assert manager.stats().components["both"].captures == 2

    def test_what_does_not_depend_on_it_goes_on(self, model: Model) -> None:
        net, other = model.component(dependencies=("kv",)), model.component("other")
        manager = model.serving(net, other)
        manager.suspend("kv")
        x = model.input(3)
        assert other(x).tolist() == model.net(x).tolist()
        assert manager.stats().components["other"].hits == 1

    def test_nothing_is_captured_while_it_is_gone(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.manager()
        manager.prepare([net])
        manager.suspend("kv")
        for act in (manager.capture_and_bind, manager.profile_memory):
            with unchanged(manager), pytest.raises(cgstate.NotResident):
                act()
        low = manager.entry("low", 1, dependencies=["kv"])
        with pytest.raises(cgstate.NotResident, match="kv"), manager.transaction() as tx:
            tx.capture(low, lambda warmup: lambda: None)
        manager.resume("kv")
        manager.capture_and_bind()
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()

    def test_a_miss_captures_nothing_evicts_nothing_and_is_not_counted(self, model: Model) -> None:
        net = model.component(
            descriptors=(4,), sizes=(8, 16), dependencies=("kv",), capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY
        )
        manager = model.serving(net, config={"net": {"max_extra_graphs": 1}}, isolation="per_entry")
        net(model.input(8))
        manager.suspend("kv")
        was = counts(manager)
        with unchanged(manager), pytest.raises(cgstate.NotResident):
            net(model.input(16))
        assert counts(manager) == was
        manager.resume("kv")
        net(model.input(8))
        assert manager.stats().components["net"].evictions == 0

    @pytest.mark.parametrize("opener", ["user", "manager"])
    def test_inside_a_capture_it_is_refused_as_well(self, model: Model, opener: str) -> None:
        inner = model.component("inner", dependencies=("kv",))
        manager = model.serving(inner)
        manager.suspend("kv")
        x = model.input(4)
        if opener == "user":
            stream = model.dev.new_stream()
            with pytest.raises(cgstate.NotResident), graph_scope(SimGraph(model.dev), stream=stream):
                inner(x)
        else:
            with pytest.raises(cgstate.CaptureFailed) as failure, manager.transaction() as tx:
                tx.capture(manager.entry("outer", 1), lambda warmup: lambda: inner(x))
            assert isinstance(failure.value.__cause__, cgstate.NotResident)

    def test_a_component_recorded_inside_another_makes_that_one_depend_on_its_memory(self, model: Model) -> None:
        inner = model.component("inner", dependencies=("kv",))
        outer = model.component("outer", call=lambda x: inner(x))
        manager = model.serving(inner, outer)
        assert manager.dependency("kv").components == {"inner", "outer"}
        manager.suspend("kv")
        with pytest.raises(cgstate.NotResident):
            manager.entry("outer", 4).replay()
        manager.resume("kv", moved=True)
        assert (outer.state, inner.state) == ("EVICTED", "EVICTED")

    def test_a_closed_manager_does_not_know_any_more(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        manager.suspend("kv")
        manager.close()
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        again = model.serving(net)
        assert again.dependency("kv").resident


class TestDraining:
    def test_it_waits_for_leases_of_others_and_gives_no_new_ones(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        entry = manager.entry("net", 4)
        held, go, refused = threading.Event(), threading.Event(), threading.Event()
        suspended: list[int] = []

        def hold() -> None:
            with entry.lease() as lease:
                held.set()
                reached(go)
                lease.replay()  # the memory is still there
                suspended.append(len(suspended))

        def ask() -> None:
            reached(held)
            while books(manager).components["net"].resident:
                pass
            with pytest.raises(cgstate.NotResident):
                net(model.input(4))
            refused.set()

        def suspend() -> None:
            reached(held)
            manager.suspend("kv", timeout=20)
            assert suspended == [0]

        with running(hold, ask, suspend):
            reached(refused)
            go.set()
        assert not manager.dependency("kv").resident

    def test_it_waits_for_eager_calls_of_others(self, model: Model) -> None:
        inside, go = threading.Event(), threading.Event()
        net = model.component(dependencies=("kv",), overlaps_capture=True)
        manager = model.serving(net)

        def stop() -> None:
            inside.set()
            reached(go)

        before(net, "eager_call", stop)
        done: list[str] = []

        def call() -> None:
            net(model.input(9))
            done.append("called")

        def suspend() -> None:
            reached(inside)
            with unchanged(manager), pytest.raises(cgstate.LeaseOutstanding):
                manager.suspend("kv", timeout=0)
            threading.Timer(0.05, go.set).start()
            manager.suspend("kv")
            done.append("suspended")

        with running(call, suspend):
            pass
        assert done == ["called", "suspended"]

    def test_leases_that_outlast_the_timeout_leave_everything_as_it_was(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        entry = manager.entry("net", 4)

        def suspend() -> None:
            with pytest.raises(cgstate.LeaseOutstanding):
                manager.suspend("kv", timeout=0.01)

        with entry.lease(), unchanged(manager):
            elsewhere(suspend)
        net(model.input(4))
        manager.suspend("kv", timeout=0)

    @pytest.mark.parametrize("how", ["lease", "output", "call"])
    def test_an_own_lease_is_refused_at_once(self, model: Model, how: str) -> None:
        net = model.leased(dependencies=("kv",))
        if how == "call":
            before(net, "copy_runtime_inputs", lambda: suspend())  # padded: the routine copies
        manager = model.serving(net)

        def suspend() -> None:
            with unchanged(manager), pytest.raises(cgstate.LeaseOutstanding):
                manager.suspend("kv")

        if how == "lease":
            with manager.entry("net", 4).lease():
                suspend()
        else:
            with net(model.input(3)):
                if how == "output":
                    suspend()
        manager.suspend("kv")

    def test_a_lease_on_something_else_does_not_matter(self, model: Model) -> None:
        manager = model.serving(model.component(dependencies=("kv",)), model.component("other"))
        with manager.entry("other", 4).lease():
            manager.suspend("kv", timeout=0)

    def test_it_returns_when_the_device_is_done(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        streams = [model.dev.new_stream() for _ in range(3)]
        inputs = [model.input(4), model.input(9), model.input(4)]
        model.dev.synchronize()
        for stream, x in zip(streams, inputs, strict=True):  # graphs and an eager call
            with model.dev.on_stream(stream):
                net(x)
        marks = [stream.record() for stream in streams]
        assert not any(mark.done() for mark in marks)
        manager.suspend("kv")
        assert all(mark.done() for mark in marks)

    def test_it_waits_for_what_an_eager_call_has_left_to_the_device(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        stream = model.dev.new_stream()
        model.dev.synchronize()
        with model.dev.on_stream(stream):
            net(model.input(9))
        mark = stream.record()
        assert not mark.done()
        manager.suspend("kv")
        assert mark.done()

    def test_it_waits_for_an_open_capture(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager, other = model.serving(net), model.manager()
        inside, go, over = threading.Event(), threading.Event(), threading.Event()
        static = model.dev.zeros(4, WIDTH)

        def work() -> SimTensor:
            output = model.net(static)
            if model.backend.capturing():
                inside.set()
                reached(go)
                over.set()
            return output

        def capture() -> None:
            with other.transaction() as transaction:
                transaction.capture(other.entry("own", 1), lambda warmup: work)

        def suspend() -> None:
            reached(inside)
            threading.Timer(0.05, go.set).start()
            manager.suspend("kv")
            assert over.is_set()

        with running(capture, suspend):
            pass
        assert other.entry("own", 1).state == "BOUND"

    def test_what_a_call_in_progress_calls_itself_is_still_answered(self, model: Model) -> None:
        inner = model.component("inner", dependencies=("kv",))
        inside, draining = threading.Event(), threading.Event()

        def call(x: SimTensor) -> SimTensor:
            if not model.backend.capturing() and outer.is_bound:
                inside.set()
                reached(draining)
            return inner(x)

        outer = model.component("outer", dependencies=("kv",), call=call)
        manager = model.serving(inner, outer)
        answers: list[object] = []
        x = model.input(9)
        expected = model.net(x).tolist()

        def suspend() -> None:
            reached(inside)
            manager.suspend("kv")
            answers.append("suspended")

        def watch() -> None:
            reached(inside)
            while not books(manager).draining:
                pass
            draining.set()

        with running(lambda: answers.append(outer(x).tolist()), suspend, watch):
            pass
        assert answers == [expected, "suspended"]


class TestResume:
    def test_a_restore_that_fails_leaves_it_suspended_and_is_tried_again(self, model: Model) -> None:
        net = model.component(dependencies=("kv", "weights"))
        manager = model.serving(net)
        manager.suspend("kv", "weights")
        saved = ["state"]

        def restore() -> None:
            with pytest.raises(cgstate.NotResident):
                net(model.input(4))
            if attempts.pop():
                raise OSError("no room yet")
            saved.pop()

        attempts = [False, True]
        with unchanged(manager), pytest.raises(OSError, match="no room"):
            manager.resume("kv", "weights", restore=restore, moved=["kv"])
        assert saved
        assert manager.resume("kv", "weights", restore=restore, moved=["kv"]) == 2
        assert not saved
        assert (manager.dependency("kv").epoch, manager.dependency("weights").epoch) == (1, 0)

    def test_memory_in_its_place_keeps_the_graphs(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        manager.suspend("kv")
        assert manager.resume("kv", restore=lambda: None) == 0
        net(model.input(4))
        assert manager.stats().components["net"].hits == 1

    def test_memory_that_came_back_elsewhere_retires_what_knew_the_old_place_before_any_call(self, model: Model) -> None:
        # B39, B41: weights come first, then a KV cache in another place; a recurrent state is part of it
        cache = {"kv": model.input(4, 7.0)}
        draft = model.component("draft", (4,), dependencies=("weights", "kv"), call=lambda x: kernels.add(x, cache["kv"]))
        manager = model.serving(draft)
        x = model.input(4)
        old = cache["kv"]
        manager.suspend("weights", "kv")
        manager.resume("weights")
        with pytest.raises(cgstate.NotResident):
            draft(x)

        def wake() -> None:
            cache["kv"] = model.input(4, 100.0)

        manager.resume("kv", restore=wake, moved=True)
        assert (draft.state, manager.entry("draft", 4).state) == ("EVICTED", "EVICTED")
        assert draft(x).tolist() == kernels.add(x, cache["kv"]).tolist() != kernels.add(x, old).tolist()
        manager.capture_and_bind()
        assert draft(x).tolist() == kernels.add(x, cache["kv"]).tolist()
        assert (manager.stats().components["draft"].captures, manager.stats().components["draft"].hits) == (2, 1)

    def test_a_change_costs_one_capture_and_the_larger_of_old_and_new(self, model: Model) -> None:  # B42
        net = model.component(descriptors=(256, 512), dependencies=("weights",))
        manager = model.serving(net, isolation="per_entry")
        base = manager.memory().total
        peaks: list[int] = []
        before(net, "forward_for_capture", lambda: peaks.append(sum(model.backend.footprint().pools.values())))
        manager.suspend("weights")
        assert manager.resume("weights", moved=True) == 2
        manager.capture_and_bind()
        assert peaks
        assert max(peaks) <= base
        assert manager.memory().total == base
        assert manager.stats().components["net"].captures == 4
        manager.capture_and_bind()
        assert manager.stats().components["net"].captures == 4

    def test_discarded_memory_may_be_invalidated_while_it_is_gone(self, model: Model) -> None:
        net = model.component(dependencies=("weights",))
        manager = model.serving(net)
        manager.suspend("weights")
        assert manager.invalidate("weights") == 2
        manager.reclaim(flush=True)
        assert manager.memory().total == 0
        assert manager.resume("weights") == 0
        manager.capture_and_bind()
        net(model.input(4))
        assert manager.stats().components["net"].hits == 1

    def test_a_device_that_was_lost_while_restoring_stays_lost(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        manager.suspend("kv")

        def restore() -> None:
            model.dev.lose()
            model.dev.synchronize()

        with pytest.raises(SimAcceleratorError):
            manager.resume("kv", restore=restore)
        assert manager.state == "POISONED"
        with pytest.raises(cgstate.ManagerPoisoned):
            manager.resume("kv")


class TestMutating:
    def test_graphs_are_gone_before_the_memory_moves_and_calls_are_refused_meanwhile(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        with manager.mutating("kv") as retired:
            assert retired == 2
            assert net.state == "EVICTED"
            assert manager.memory().pools == {}
            with pytest.raises(cgstate.NotResident):
                net(model.input(4))
            with pytest.raises(cgstate.CaptureActive):
                manager.capture_and_bind()
        assert manager.dependency("kv") == cgstate.Dependency("kv", 1, True, frozenset({"net"}))
        net(model.input(4))
        assert manager.stats().components["net"].hits == 0

    @pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (8, 8)], ids=["up", "down", "aside"])
    def test_a_rescale_captures_once_in_every_direction(self, model: Model, sizes: tuple[int, int]) -> None:  # B43
        workspace = {"ws": model.dev.zeros(sizes[0], WIDTH)}
        net = model.component("net", (4,), dependencies=("ws",), call=lambda x: kernels.add(x, workspace["ws"].narrow(0, 0, 4)))
        manager = model.serving(net)
        with manager.mutating("ws"):
            workspace["ws"] = model.dev.zeros(sizes[1], WIDTH).fill_(3.0)
        manager.capture_and_bind()
        x = model.input(4)
        assert net(x).tolist() == kernels.add(x, workspace["ws"].narrow(0, 0, 4)).tolist()
        assert (manager.stats().components["net"].captures, manager.stats().components["net"].hits) == (2, 1)

    def test_a_mutation_that_fails_leaves_eager_answers_and_no_old_graph(self, model: Model) -> None:
        net = model.component(dependencies=("kv",))
        manager = model.serving(net)
        with pytest.raises(KeyError), manager.mutating("kv"):
            raise KeyError
        assert (net.state, manager.dependency("kv").resident, manager.dependency("kv").epoch) == ("EVICTED", True, 1)
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        manager.capture_and_bind()
        net(model.input(4))
        assert manager.stats().components["net"].hits == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("act", "error"),
        {
            "suspend nothing": (lambda m: m.suspend(), cgstate.ConfigError),
            "suspend the unknown": (lambda m: m.suspend("kv", "slots"), cgstate.ConfigError),
            "suspend a list": (lambda m: m.suspend(["kv"]), cgstate.ConfigError),
            "suspend twice": (lambda m: m.suspend("kv", "gone"), cgstate.IllegalTransition),
            "suspend with a wrong timeout": (lambda m: m.suspend("kv", timeout=-1), cgstate.ConfigError),
            "resume nothing": (lambda m: m.resume(), cgstate.ConfigError),
            "resume the unknown": (lambda m: m.resume("slots"), cgstate.ConfigError),
            "resume without suspend": (lambda m: m.resume("kv"), cgstate.IllegalTransition),
            "resume one of each": (lambda m: m.resume("gone", "kv"), cgstate.IllegalTransition),
            "moved is a string": (lambda m: m.resume("gone", moved="gone"), cgstate.ConfigError),
            "moved is another one": (lambda m: m.resume("gone", moved=["kv"]), cgstate.ConfigError),
            "moved is a number": (lambda m: m.resume("gone", moved=3), cgstate.ConfigError),
            "restore is no function": (lambda m: m.resume("gone", restore=3), cgstate.ConfigError),
            "mutate the unknown": (lambda m: m.mutating("slots").__enter__(), cgstate.ConfigError),
            "mutate the suspended": (lambda m: m.mutating("gone").__enter__(), cgstate.IllegalTransition),
            "dependencies are a string": (lambda m: m.entry("low", 1, dependencies="kv"), cgstate.ConfigError),
            "dependencies are numbers": (lambda m: m.entry("low", 1, dependencies=[3]), cgstate.ConfigError),
            "ask for the unknown": (lambda m: m.dependency("slots"), cgstate.ConfigError),
        }.values(),
    )
    def test_it_is_refused_and_changes_nothing(
        self, model: Model, act: Callable[[cgstate.GraphManager], object], error: type[Exception]
    ) -> None:
        manager = model.serving(model.component(dependencies=("kv", "gone")))
        manager.suspend("gone")
        with unchanged(manager), pytest.raises(error):
            act(manager)
        manager.resume("gone")
        manager.suspend("kv", "gone", "kv")
        manager.resume("kv", "gone")

    def test_a_manager_is_told_of_dependencies_that_no_component_names(self, model: Model) -> None:
        with pytest.raises(cgstate.ConfigError):
            model.manager(dependencies="kv")
        manager = model.manager(dependencies=["kv"])
        manager.suspend("kv")
        entry = manager.entry("low", 1, dependencies=["kv"])
        with pytest.raises(cgstate.NotResident), manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: None)
        assert manager.dependency("kv").components == {"low"}

    def test_what_is_known_does_not_depend_on_the_configuration(self, model: Model) -> None:
        manager = model.manager()
        manager.prepare([model.component(dependencies=("kv",)), model.component("off", dependencies=("slots",))], {"net": {}})
        manager.suspend("kv", "slots")
        manager.resume("kv", "slots")

    def test_a_component_in_use_takes_no_suspended_dependency(self, model: Model) -> None:
        manager = model.serving(model.component(), dependencies=["kv"])
        manager.suspend("kv")
        entry = manager.entry("net", 4)
        with entry.lease(), unchanged(manager), pytest.raises(cgstate.LeaseOutstanding):
            manager.entry("net", 4, dependencies=["kv"])
        manager.entry("net", 4, dependencies=["kv"])
        with pytest.raises(cgstate.NotResident):
            entry.replay()

    @pytest.mark.parametrize("act", ["suspend", "resume", "mutating"])
    def test_inside_a_transaction_or_a_capturing_stream_it_is_refused(self, model: Model, act: str) -> None:
        manager = model.serving(model.component(dependencies=("kv",)))
        if act == "resume":
            manager.suspend("kv")

        def run() -> None:
            manager.mutating("kv").__enter__() if act == "mutating" else getattr(manager, act)("kv")

        with manager.transaction(), pytest.raises(cgstate.CaptureActive):
            run()
        if act != "resume":
            with graph_scope(SimGraph(model.dev), stream=model.dev.new_stream()), pytest.raises(cgstate.CaptureActive):
                run()
        run()


class Sleeping(RuleBasedStateMachine):
    """Sleep, wake, reload and calls in any order: a call sees the memory there is, or is refused; captures are never wasted."""

    NAMES = ("kv", "weights")

    @initialize(isolation=st.sampled_from(["shared", "per_component", "per_entry"]))
    def start(self, isolation: str) -> None:
        self.model = Model()
        self.memory = {name: self.model.input(4, 10.0) for name in self.NAMES}
        self.gone: set[str] = set()
        self.stale: set[str] = set()
        self.value = 10.0
        self.uses = {"both": self.NAMES, "one": ("weights",), "none": ()}
        self.components = {
            name: self.model.component(name, (4,), dependencies=names, call=self._work(names)) for name, names in self.uses.items()
        }
        self.manager = self.model.serving(*self.components.values(), isolation=isolation)
        self.expected = dict.fromkeys(self.uses, 1)

    def _work(self, names: tuple[str, ...]) -> Callable[[SimTensor], SimTensor]:
        def work(x: SimTensor) -> SimTensor:
            x = kernels.scale(x, 2.0)
            for name in names:
                x = kernels.add(x, self.memory[name])
            return x

        return work

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    def suspend(self, names: set[str]) -> None:
        if names & self.gone:
            with pytest.raises(cgstate.IllegalTransition):
                self.manager.suspend(*names)
            return
        self.manager.suspend(*names)
        self.gone |= names
        for name in names:
            del self.memory[name]  # an access to memory that went is a fault of the simulator

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), fails=st.booleans())
    def resume(self, names: set[str], fails: bool) -> None:
        def restore() -> None:
            if fails:
                raise OSError("no room")
            self.value += 1
            for name in names:
                self.memory[name] = self.model.input(4, self.value)

        if not names <= self.gone:
            with pytest.raises(cgstate.IllegalTransition):
                self.manager.resume(*names, restore=restore, moved=True)
        elif fails:
            with pytest.raises(OSError, match="no room"):
                self.manager.resume(*names, restore=restore, moved=True)
        else:
            self.manager.resume(*names, restore=restore, moved=True)
            self.gone -= names

    @rule(name=st.sampled_from(NAMES))
    def reload(self, name: str) -> None:
        if name not in self.gone:
            with self.manager.mutating(name):
                self.value += 1
                self.memory[name] = self.model.input(4, self.value)

    @rule()
    def write_in_place(self) -> None:
        for tensor in self.memory.values():
            self.value += 1
            tensor.fill_(self.value)

    @rule(name=st.sampled_from(["both", "one", "none"]), size=st.sampled_from([3, 4]))
    def call(self, name: str, size: int) -> None:
        if size != 4 and self.uses[name]:
            return  # the memory has four rows
        x = self.model.input(size)
        if self.gone & set(self.uses[name]):
            with pytest.raises(cgstate.NotResident):
                self.components[name](x)
        else:
            assert self.components[name](x).tolist() == self._work(self.uses[name])(x).tolist()

    @precondition(lambda self: not self.gone)
    @rule()
    def capture(self) -> None:
        missing = [name for name in self.uses if not self.components[name].is_bound]
        self.manager.capture_and_bind()
        for name in missing:
            self.expected[name] += 1

    @invariant()
    def no_capture_is_wasted(self) -> None:
        if hasattr(self, "manager"):
            stats = self.manager.stats().components
            assert {name: stats[name].captures for name in self.uses} == self.expected

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()
            assert self.manager.memory().total == 0


def test_sleep_wake_and_reload_in_any_order() -> None:
    run_state_machine_as_test(Sleeping, settings=settings(max_examples=40, stateful_step_count=25, deadline=None))
