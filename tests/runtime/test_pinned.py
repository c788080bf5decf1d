"""Baked addresses: what a graph knows by address is alive and in its place, or its replay is refused (faults of kind K06)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import cgstate
from cgstate.backends.sim import SimTensor, kernels
from cgstate.backends.sim.work import Launch
from tests.runtime.helpers import WIDTH, Model

Work = Callable[[], SimTensor]


def swap(tensor: SimTensor, other: SimTensor) -> None:
    """The same tensor object on other memory, as torch's ``.data`` and ``set_`` make it."""
    tensor.storage, tensor.view, tensor.target, tensor._offset = other.storage, other.view, other.target, other._offset


@pytest.fixture
def model() -> Model:
    return Model()


def captured(manager: cgstate.GraphManager, work: Work, name: str = "low", **options: Any) -> Any:
    """A bound entry that runs ``work``."""
    entry = manager.entry(name, 1)
    with manager.transaction() as tx:
        tx.capture(entry, lambda warmup: work, **options)
    return entry


def bucketed(call: Any, example: Any, **options: Any) -> cgstate.BucketedRoutine[..., SimTensor]:
    return cgstate.BucketedRoutine(call, example, **options)


def answer(entry: Any) -> object:
    entry.replay()
    return entry.output.tolist()


@contextmanager
def refused(entry: Any, *words: str) -> Iterator[None]:
    """The block raises `StaleBinding` with these words, launches nothing and changes nothing."""
    was = (entry.state, entry.leases, entry.hits, entry.turn.latest, entry.turn.owner)
    submitted: list[tuple[object, object]] = []
    device = entry.manager.backend.sim
    submit, device.submit = device.submit, lambda *work: submitted.append(work)
    try:
        with pytest.raises(cgstate.StaleBinding) as refusal:
            yield
    finally:
        device.submit = submit
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
    assert (entry.state, entry.leases, entry.hits, entry.turn.latest, entry.turn.owner) == was
    assert not [work for _, work in submitted if isinstance(work, Launch)]


class TestPinned:
    @pytest.mark.parametrize("check", [True, False])
    @pytest.mark.parametrize("door", ["replay", "lease"])
    def test_a_tensor_that_moved_is_noticed_before_the_launch(self, model: Model, check: bool, door: str) -> None:
        manager = model.manager(check=check)
        a, b = model.input(2, 1.0), model.input(2, 5.0)
        entry = captured(manager, lambda: kernels.add(a, b), pinned=[a, b])
        right = answer(entry)
        here, there = SimTensor(b.storage, 0, b.shape), model.input(2, 9.0)
        model.dev.synchronize()
        swap(b, there)
        with refused(entry, "low[1]", "pinned[1]", hex(here.data_ptr()), hex(there.data_ptr())):
            if door == "replay":
                entry.replay()
            else:
                with entry.lease() as lease:
                    lease.replay()
        swap(b, here)
        assert answer(entry) == right

    def test_what_was_handed_out_does_not_expire_by_a_refusal(self, model: Model) -> None:
        manager = model.manager()
        a = model.input(2)
        entry = captured(manager, lambda: kernels.scale(a, 2.0), pinned=[a])
        with entry.lease() as lease:
            lease.replay()
            here = SimTensor(a.storage, 0, a.shape)
            swap(a, model.input(2, 3.0))
            with pytest.raises(cgstate.StaleBinding):
                lease.replay()
            assert lease.output.tolist() == kernels.scale(here, 2.0).tolist()

    def test_a_place_that_is_assigned_anew_is_pinned_by_a_function(self, model: Model) -> None:  # B33
        slots = {"adapter": model.input(2, 1.0)}
        manager = model.manager()
        x = model.input(2, 2.0)
        entry = captured(manager, lambda: kernels.add(x, slots["adapter"]), pinned=[lambda: slots["adapter"]])
        slots["adapter"].fill_(7.0)  # copied in place: the graph sees it
        assert answer(entry) == kernels.add(x, slots["adapter"]).tolist()
        old, slots["adapter"] = slots["adapter"], model.input(2, 50.0)
        with refused(entry, "pinned[0]"):
            entry.replay()
        slots["adapter"] = old
        answer(entry)
        slots["adapter"] = model.input(2, 60.0)
        manager.evict("low", 1)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: kernels.add(x, slots["adapter"]), pinned=[lambda: slots["adapter"]])
        assert answer(entry) == kernels.add(x, slots["adapter"]).tolist()
        assert manager.stats().components["low"].captures == 2

    @pytest.mark.parametrize("door", ["replay", "lease"])
    @pytest.mark.parametrize(
        ("view", "words"),
        [
            (lambda whole: whole.narrow(0, 0, 2), "shape (2, 4), strides (4, 1)"),
            (lambda whole: whole.t(), "shape (4, 4), strides (1, 4)"),
        ],
        ids=["shape", "strides"],
    )
    def test_another_view_of_the_same_memory_is_noticed_before_the_launch(
        self, model: Model, view: Callable[[SimTensor], SimTensor], words: str, door: str
    ) -> None:
        slots = {"kv": model.dev.rand(4, WIDTH)}
        manager = model.manager()
        whole, x = slots["kv"], model.input(2)
        entry = captured(manager, lambda: kernels.matmul(x, slots["kv"]), pinned=[lambda: slots["kv"]])
        right = answer(entry)
        slots["kv"] = view(whole)
        model.dev.synchronize()
        assert slots["kv"].data_ptr() == whole.data_ptr()
        with refused(entry, "low[1]", "pinned[0]", words):
            if door == "replay":
                entry.replay()
            else:
                with entry.lease() as lease:
                    lease.replay()
        slots["kv"] = whole.t().t()
        assert answer(entry) == right

    @pytest.mark.parametrize("kind", ["dtype", "conjugated", "negated"])
    @pytest.mark.parametrize("first", ["plain", "view"])
    def test_a_view_with_other_values_of_the_same_bytes_is_noticed(self, model: Model, kind: str, first: str) -> None:
        torch = pytest.importorskip("torch")
        whole = torch.rand(2, 2, dtype=torch.complex64)
        plain, view = {
            "dtype": (whole.real, whole.real.view(torch.int32)),
            "conjugated": (whole, whole.conj()),
            "negated": (whole.imag, whole.conj().imag),
        }[kind]
        assert plain.data_ptr() == view.data_ptr()
        slots = {"kv": plain if first == "plain" else view}
        manager = model.manager()
        entry = captured(manager, lambda: plain * 2, pinned=[lambda: slots["kv"]])  # the simulator records no lazy views
        entry.replay()
        model.dev.synchronize()
        slots["kv"] = view if first == "plain" else plain
        with refused(entry, "pinned[0]", "torch.int32" if kind == "dtype" else f"a {kind} view"):
            entry.replay()
        slots["kv"] = plain if first == "plain" else view
        entry.replay()

    def test_an_error_of_such_a_function_is_the_users_own_and_nothing_is_launched(self, model: Model) -> None:
        slots: dict[str, SimTensor] = {"ws": model.input(2)}
        manager = model.manager()
        entry = captured(manager, lambda: kernels.scale(slots["ws"], 2.0), pinned=[lambda: slots["ws"]])
        kept = slots.pop("ws")
        with pytest.raises(KeyError):
            entry.replay()
        assert (entry.state, entry.leases, entry.turn.owner) == ("BOUND", 0, 0)
        slots["ws"] = kept
        answer(entry)

    def test_warm_up_may_still_put_it_in_its_place(self, model: Model) -> None:
        slots: dict[str, SimTensor] = {}
        x = model.input(2)

        def work() -> SimTensor:
            if "ws" not in slots:
                slots["ws"] = model.dev.zeros(2, WIDTH).fill_(4.0)
            return kernels.add(x, slots["ws"])

        manager = model.manager()
        entry = captured(manager, work, pinned=[lambda: slots["ws"]])
        assert answer(entry) == kernels.add(x, slots["ws"]).tolist()

    def test_what_moves_while_it_is_recorded_is_not_bound(self, model: Model) -> None:
        manager = model.manager()
        a = model.input(2)
        before = model.backend.footprint()

        def work() -> SimTensor:
            made = kernels.scale(a, 2.0)
            if model.backend.capturing():
                swap(a, other)
            return made

        other = model.input(2, 3.0)
        entry = manager.entry("low", 1)
        with pytest.raises(cgstate.CaptureFailed, match="moved during the capture"), manager.transaction() as tx:
            tx.capture(entry, lambda warmup: work, pinned=[a])
        assert entry.state == "FAILED"
        gc.collect()
        manager.reclaim(flush=True)
        assert model.backend.footprint().pools == before.pools

    def test_entries_without_pins_keep_the_short_way(self, model: Model) -> None:
        manager = model.manager(check=False)
        a = model.input(2)
        plain, pinned = captured(manager, lambda: kernels.scale(a, 2.0)), None
        pinned = captured(manager, lambda: kernels.scale(a, 2.0), "pinned", pinned=[a])
        assert (plain.fast, pinned.fast) == (True, False)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"pinned": 3}, "sequence of tensors"),
            ({"pinned": [3]}, "not a tensor"),
            ({"pinned": [None]}, "not a tensor"),
            ({"retain": 3}, "sequence of objects"),
        ],
    )
    def test_wrong_arguments_are_refused_before_anything_is_done(self, model: Model, options: Any, says: str) -> None:
        manager = model.manager()
        entry = manager.entry("low", 1)
        with manager.transaction() as tx:
            with pytest.raises(cgstate.ConfigError, match=says):
                tx.capture(entry, lambda warmup: lambda: None, **options)
            assert entry.state == "EAGER"
            a = model.input(2)
            tx.capture(entry, lambda warmup: lambda: kernels.scale(a, 2.0), pinned=[a])
        assert entry.state == "BOUND"


class Token:
    """Something whose end can be seen."""


class TestRetained:
    @pytest.mark.parametrize("how", ["retained", "closed over"])
    @pytest.mark.parametrize("end", ["evict", "close", "invalidate"])
    def test_it_lives_exactly_as_long_as_the_graph(self, model: Model, how: str, end: str) -> None:
        manager = model.manager()
        a = model.input(2)

        def capture() -> weakref.ref[Token]:
            token = Token()

            def work(kept: Token | None = token if how == "closed over" else None) -> SimTensor:
                return kernels.scale(a, 2.0)

            entry = manager.entry("low", 1, dependencies=["kv"])
            with manager.transaction() as tx:
                tx.capture(entry, lambda warmup: work, retain=[token] if how == "retained" else ())
            return weakref.ref(token)

        gone = capture()
        gc.collect()
        assert gone() is not None
        entry = manager.entry("low", 1)
        with entry.lease() as lease:
            if end != "close":
                manager.evict("low") if end == "evict" else manager.invalidate("kv")
                lease.entry.manager.settle()
                assert gone() is not None, "a lease keeps it"
        model.dev.synchronize()
        if end == "close":
            manager.close()
        else:
            manager.reclaim()
        assert gone() is None

    def test_it_outlives_a_replay_in_flight(self, model: Model) -> None:
        manager = model.manager()
        a = model.input(2)
        token = Token()
        entry = captured(manager, lambda: kernels.scale(a, 2.0), retain=[token])
        gone = weakref.ref(token)
        del token
        model.dev.synchronize()
        entry.replay()
        manager.evict("low")
        manager.reclaim()
        assert gone() is not None
        model.dev.synchronize()
        manager.reclaim()
        assert gone() is None

    @pytest.mark.parametrize("how", ["fails", "is given up"])
    def test_an_attempt_that_is_undone_keeps_nothing(self, model: Model, how: str) -> None:
        manager = model.manager()
        a = model.input(2)

        def attempt() -> weakref.ref[Token]:
            token = Token()

            def work(kept: Token = token) -> SimTensor:
                if how == "fails" and model.backend.capturing():
                    raise ValueError
                return kernels.scale(a, 2.0)

            with pytest.raises((cgstate.CaptureFailed, KeyError)), manager.transaction() as tx:  # noqa: PT012
                tx.capture(manager.entry("low", 1), lambda warmup: work, pinned=[a], retain=[token])
                raise KeyError
            return weakref.ref(token)

        gone = attempt()
        gc.collect()
        manager.reclaim()
        assert gone() is None

    def test_memory_that_nobody_else_holds_is_there_at_each_replay(self, model: Model) -> None:
        manager = model.manager()

        def capture() -> tuple[Any, object]:
            static = model.input(2, 3.0)
            return captured(manager, lambda: model.net(static)), model.net(static).tolist()

        entry, right = capture()
        gc.collect()
        for _ in range(4):
            model.dev.zeros(2, WIDTH).fill_(-1.0)  # would get the memory if it were free
        assert answer(entry) == right


class TestFaults:
    """The rows of faults of this kind, one by one: the right output, or a refusal."""

    @pytest.mark.parametrize("in_place", [False, True], ids=["another tensor", "the same tensor"])
    def test_a_workspace_or_buffer_that_a_larger_eager_call_grows(self, model: Model, in_place: bool) -> None:  # B27, B28
        slots = {"ws": model.dev.zeros(2, WIDTH)}

        def work(x: SimTensor) -> SimTensor:
            rows = x.shape[0]
            if slots["ws"].shape[0] < rows:
                grown = model.dev.zeros(rows, WIDTH)
                if in_place:
                    swap(slots["ws"], grown)
                    slots["ws"].shape = grown.shape
                else:
                    slots["ws"] = grown
            scratch = slots["ws"].narrow(0, 0, rows)
            scratch.copy_(x)
            return kernels.scale(scratch, 2.0)

        manager = model.manager()
        x = model.input(2)
        entry = captured(manager, lambda: work(x), pinned=[slots["ws"]])
        right = answer(entry)
        work(model.input(8))
        model.dev.synchronize()
        for _ in range(4):
            model.dev.zeros(2, WIDTH).fill_(-1.0)
        if in_place:
            with refused(entry, "pinned[0]"):
                entry.replay()
        else:
            assert answer(entry) == right

    @pytest.mark.parametrize("pinned", [False, True], ids=["COPY", "PINNED"])
    def test_an_eager_piece_between_two_graphs_returns_fresh_tensors(self, model: Model, pinned: bool) -> None:  # B30
        boundary = model.dev.zeros(4, WIDTH)
        routine = bucketed(
            kernels.add,
            lambda n: (model.dev.zeros(n, WIDTH), boundary if pinned else model.dev.zeros(n, WIDTH)),
            pinned=[1] if pinned else (),
        )
        second = cgstate.Component("second", routine, [4])
        manager = model.serving(second)
        x = model.input(4)
        for step in range(3):
            fresh = model.input(4, 10.0 * step)
            if pinned:
                with refused(manager.entry("second", 4), "second[4]", "input 1"):
                    second(x, fresh)
                boundary.copy_(fresh)
                model.dev.synchronize()
                assert second(x, boundary).tolist() == kernels.add(x, fresh).tolist()
            else:
                assert second(x, fresh).tolist() == kernels.add(x, fresh).tolist()
        assert manager.stats().components["second"].hits == 3

    def test_weights_that_hooks_move_at_each_call(self, model: Model) -> None:  # B32
        class Offloaded(cgstate.BucketedRoutine[..., SimTensor]):
            def validate_binding(self) -> None:
                raise ValueError("its weights are moved in and out by hooks")

        manager = model.manager()
        net = cgstate.Component("net", Offloaded(model.net, model.example), [4])
        with pytest.raises(cgstate.ConfigError, match="net cannot be bound to graphs: ValueError: its weights are moved"):
            manager.prepare([net])
        assert (manager.state, net.attached) == ("NEW", False)
        manager.prepare([net], {})  # it may stay eager
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()

    @pytest.mark.parametrize("door", ["call", "padded call", "replay"])
    def test_an_adapter_that_is_swapped_under_a_component(self, model: Model, door: str) -> None:  # B33
        adapter = model.input(4, 1.0)
        routine = bucketed(kernels.matmul, lambda n: (model.dev.zeros(n, WIDTH), adapter), pinned=[1])
        net = cgstate.Component("net", routine, [4], dependencies=["adapter"])
        manager = model.serving(net)
        x = model.input(3 if door == "padded call" else 4)

        def act() -> object:
            return manager.entry("net", 4).replay() if door == "replay" else net(x, adapter).tolist()

        adapter.fill_(2.0)
        assert act() in (None, kernels.matmul(x, adapter).tolist())
        model.dev.synchronize()
        swap(adapter, model.input(4, 30.0))
        model.dev.synchronize()
        with refused(manager.entry("net", 4), "input 1"):
            act()
        manager.invalidate("adapter")
        manager.capture_and_bind()
        assert net(x, adapter).tolist() == kernels.matmul(x, adapter).tolist()
        assert manager.stats().components["net"].captures == 2

    def test_a_slice_of_one_graphs_output_used_by_another_in_the_pool(self, model: Model) -> None:  # B35
        manager = model.manager()
        a = model.input(4)
        first = manager.entry("first", 1)
        second = manager.entry("second", 1)

        def capture() -> None:
            with manager.transaction() as tx:
                x = tx.capture(first, lambda warmup: lambda: kernels.scale(a, 2.0))
                assert isinstance(x, SimTensor)
                tx.capture(second, lambda warmup: lambda: model.net(x.narrow(0, 1, 3)))

        capture()
        gc.collect()
        a.copy_(model.input(4, 9.0))
        first.replay()
        second.replay()
        expected = model.net(kernels.scale(a, 2.0).narrow(0, 1, 3)).tolist()
        assert second.output.tolist() == expected  # type: ignore[attr-defined]
        manager.evict("first", 1)
        assert (first.state, second.state) == ("EVICTED", "EVICTED")
        with pytest.raises(cgstate.IllegalTransition):
            second.replay()

    @pytest.mark.parametrize("plan", ["shared", "planned again", "part of the entry"])
    def test_a_planner_that_is_shared_by_shapes(self, model: Model, plan: str) -> None:  # B36
        class Planner:
            plan: SimTensor

            def make(self, size: int) -> SimTensor:
                self.plan = model.dev.zeros(size, WIDTH).fill_(float(size))
                return self.plan

        planner = Planner()
        manager = model.manager()
        inputs = {size: model.input(size) for size in (2, 4)}
        if plan == "shared":
            entries = {}
            for size, x in inputs.items():
                planner.make(size)

                def work(x: SimTensor = x) -> SimTensor:
                    return kernels.add(x, planner.plan)

                entries[size] = captured(manager, work, f"shape {size}", pinned=[lambda: planner.plan])
            assert answer(entries[4]) == kernels.add(inputs[4], planner.plan).tolist()
            with refused(entries[2], "pinned[0]"):
                entries[2].replay()
            return

        class Planned(cgstate.BucketedRoutine[..., SimTensor]):
            def allocate_buffers(self, descriptor: int) -> tuple[object, ...]:
                scratch = planner.make(descriptor)
                return (*super().allocate_buffers(descriptor), scratch)

            def forward_for_capture(self, descriptor: int, buffers: tuple[object, ...]) -> object:
                return kernels.add(*buffers)  # type: ignore[arg-type]

            def copy_runtime_inputs(self, descriptor: int, buffers: Any, *args: Any, **kwargs: Any) -> None:
                super().copy_runtime_inputs(descriptor, buffers[:1], *args, **kwargs)
                if plan == "planned again":
                    buffers[1].copy_(planner.make(descriptor))

        def eager(x: SimTensor) -> SimTensor:
            return kernels.add(x, model.dev.zeros(*x.shape).fill_(float(x.shape[0])))

        routine = Planned(eager, model.example)
        net = cgstate.Component("net", routine, [2, 4])
        manager.prepare([net])
        manager.capture_and_bind()
        for size in (4, 2, 4, 2):
            x = inputs[size]
            assert net(x).tolist() == eager(x).tolist()
        assert manager.stats().components["net"].hits == 4


class TestInputs:
    def cache(self, model: Model, **options: Any) -> tuple[cgstate.Component[..., SimTensor], SimTensor]:
        kv = model.dev.zeros(16, WIDTH).fill_(3.0)
        routine = bucketed(
            lambda kv, x: kernels.add(x, kv.narrow(0, 0, x.shape[0])),
            lambda n: (kv, model.dev.zeros(n, WIDTH)),
            pinned=[0],
            **options,
        )
        return cgstate.Component("net", routine, [4, 8]), kv

    def test_a_pinned_input_is_neither_copied_padded_nor_zeroed(self, model: Model) -> None:
        net, kv = self.cache(model)
        manager = model.serving(net)
        assert kv.tolist() == [[3.0] * WIDTH] * 16
        for size in (3, 4, 7):
            kv.fill_(float(size))
            x = model.input(size)
            assert net(kv, x).tolist() == kernels.add(x, kv.narrow(0, 0, size)).tolist()
        assert manager.stats().components["net"].hits == 3

    @pytest.mark.parametrize("wrong", ["elsewhere", "another shape", "no tensor"])
    def test_another_one_is_refused_before_anything_is_written(self, model: Model, wrong: str) -> None:
        net, kv = self.cache(model)
        manager = model.serving(net)
        x = model.input(4)
        right = net(kv, x).tolist()
        given: Any = {"elsewhere": model.dev.zeros(16, WIDTH), "another shape": kv.narrow(0, 0, 8), "no tensor": 3}[wrong]
        if wrong == "no tensor":
            with pytest.raises(cgstate.ConfigError, match="not a tensor"):
                net(given, x)
        else:
            model.dev.synchronize()
            with refused(manager.entry("net", 4), "input 0", str(tuple(given.shape))):
                net(given, x)
        assert net(kv, x).tolist() == right
        assert counts_of(manager) == {}

    @pytest.mark.parametrize("size", [3, 4])
    def test_other_strides_are_refused(self, model: Model, size: int) -> None:
        kv = model.dev.rand(WIDTH, WIDTH)
        routine = bucketed(kernels.matmul, lambda n: (model.dev.zeros(n, WIDTH), kv), pinned=[1])
        net = cgstate.Component("net", routine, [4])
        manager = model.serving(net)
        x = model.input(size)
        with refused(manager.entry("net", 4), "strides (1, 4)", "strides (4, 1)"):
            net(x, kv.t())
        assert net(x, kv.t().t()).tolist() == kernels.matmul(x, kv).tolist()

    def test_torch_tensors_in_another_view_are_refused(self, model: Model) -> None:
        torch = pytest.importorskip("torch")
        kv, line = torch.rand(4, 4), torch.rand(1, 4)
        routine = cgstate.BucketedRoutine(lambda x, kv, line: x @ kv + line, lambda n: (torch.zeros(n, 4), kv, line), pinned=[1, 2])
        net = cgstate.Component("net", routine, [4])
        manager = model.serving(net)
        x = torch.rand(4, 4)
        for other, word in ((kv.t(), "strides (1, 4)"), (kv.view(torch.int32), "torch.int32"), (kv[:2], "shape (2, 4)")):
            with refused(manager.entry("net", 4), "input 1", word):
                net(x, other, line)
        same = line.as_strided((1, 4), (1, 1))  # one row: how far it is to the next is nothing
        assert torch.equal(net(x, kv, same), x @ kv + line)

    @pytest.mark.parametrize("kind", ["conjugated", "negated"])
    def test_a_conjugated_or_negated_view_of_the_pinned_memory_is_refused(self, model: Model, kind: str) -> None:
        torch = pytest.importorskip("torch")
        whole = torch.rand(4, 4, dtype=torch.complex64)
        kv, view = (whole, whole.conj()) if kind == "conjugated" else (whole.imag, whole.conj().imag)
        routine = cgstate.BucketedRoutine(lambda x, kv: x + kv, lambda n: (torch.zeros(n, 4, dtype=kv.dtype), kv), pinned=[1])
        net = cgstate.Component("net", routine, [4])
        manager = model.serving(net)
        x = torch.rand(4, 4, dtype=kv.dtype)
        with refused(manager.entry("net", 4), "input 1", f"a {kind} view"):
            net(x, view)
        assert torch.equal(net(x, kv), x + kv)
        assert manager.stats().components["net"].hits == 1

    def test_what_is_not_covered_is_eager_with_any_tensor(self, model: Model) -> None:
        net, kv = self.cache(model)
        model.serving(net)
        other, x = model.dev.zeros(16, WIDTH), model.input(9)
        assert net(other, x).tolist() == kernels.add(x, other.narrow(0, 0, 9)).tolist()
        assert net(kv, x).tolist() == kernels.add(x, kv.narrow(0, 0, 9)).tolist()

    def test_lazy_captures_pin_as_well(self, model: Model) -> None:
        kv = model.dev.zeros(16, WIDTH)
        routine = bucketed(
            lambda x, kv: kernels.add(x, kv.narrow(0, 0, x.shape[0])),
            lambda n: (model.dev.zeros(n, WIDTH), kv),
            pinned=(1,),
            sizes=(4, 8),
        )
        net = cgstate.Component("net", routine, [4], capture_mode=cgstate.CaptureMode.PURE_LAZY)
        manager = model.serving(net)
        x = model.input(4)
        net(x, kv)
        net(x, kv)
        assert manager.stats().components["net"].captures == 1
        with pytest.raises(cgstate.StaleBinding):
            net(x, kv.clone())

    @pytest.mark.parametrize("pinned", [3, [-1], [True], ["kv"], [None]])
    def test_wrong_positions_are_refused(self, model: Model, pinned: Any) -> None:
        with pytest.raises(cgstate.ConfigError, match="pinned"):
            cgstate.BucketedRoutine(model.net, model.example, pinned=pinned)

    @pytest.mark.parametrize("pinned", [[0], [1], [0, 1]])
    def test_positions_that_the_example_does_not_have_fail_the_capture(self, model: Model, pinned: list[int]) -> None:
        net = cgstate.Component("net", cgstate.BucketedRoutine(model.net, model.example, pinned=pinned), [4])
        manager = model.manager()
        manager.prepare([net])
        with pytest.raises(cgstate.CaptureFailed, match="example must return the pinned arguments"):
            manager.capture_and_bind()

    @pytest.mark.parametrize("pinned", [(0, 0), (-1,), (True,), 3])
    def test_positions_of_a_routine_are_looked_at_when_it_is_prepared(self, model: Model, pinned: Any) -> None:
        net = model.component()
        net.routine.pinned = pinned
        with pytest.raises(cgstate.ConfigError, match="pinned inputs of net"):
            model.manager().prepare([net])


def counts_of(manager: cgstate.GraphManager) -> dict[str, int]:
    return {str(reason): number for reason, number in manager.stats().components["net"].fallbacks.items() if number}


class Baked(RuleBasedStateMachine):
    """Memory grows, is swapped, dropped and written in any order: a replay gives the right output, or is refused."""

    @initialize(check=st.booleans())
    def start(self, check: bool) -> None:
        self.model = Model()
        self.manager = self.model.manager(check=check)
        self.x = self.model.input(2)
        self.slots = {"by name": self.model.input(2, 1.0), "by object": self.model.input(2, 2.0)}
        self.generation = 0
        self.capture()

    def work(self, temporary: SimTensor) -> SimTensor:
        fixed = kernels.add(self.x, kernels.scale(temporary, 2.0))
        return kernels.add(fixed, kernels.add(self.slots["by name"], self.slots["by object"]))

    def capture(self) -> None:
        temporary = self.model.input(2, 20.0)
        pinned = [lambda: self.slots["by name"], self.slots["by object"]]
        self.entry = captured(self.manager, lambda: self.work(temporary), pinned=pinned)
        self.places = {name: tensor.data_ptr() for name, tensor in self.slots.items()}

    @rule(name=st.sampled_from(["by name", "by object"]))
    def move(self, name: str) -> None:
        self.generation += 1
        new = self.model.input(2, 100.0 + self.generation)
        if name == "by name":
            self.slots[name] = new
        else:
            swap(self.slots[name], new)

    @rule(name=st.sampled_from(["by name", "by object"]))
    def write(self, name: str) -> None:
        self.generation += 1
        self.slots[name].fill_(float(self.generation))

    @rule()
    def allocate(self) -> None:
        self.generation += 1
        self.model.dev.zeros(2, WIDTH).fill_(-1.0)

    @rule()
    def flush(self) -> None:
        gc.collect()
        self.model.dev.flush()

    @rule()
    def recapture(self) -> None:
        self.manager.evict("low")
        self.capture()

    @rule()
    def replay(self) -> None:
        moved = {name for name, tensor in self.slots.items() if tensor.data_ptr() != self.places[name]}
        if moved:
            with pytest.raises(cgstate.StaleBinding):
                self.entry.replay()
            return
        assert answer(self.entry) == self.work(self.model.input(2, 20.0)).tolist()

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()


def test_no_replay_reads_a_wrong_generation() -> None:
    run_state_machine_as_test(Baked, settings=settings(max_examples=30, stateful_step_count=25, deadline=None))
