"""Memory features against each other, and against careless users and unlucky operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimTensor, kernels
from cgstate.backends.sim.faults import InjectedFault
from cgstate.runtime import lazy
from cgstate.runtime.routines import capture_by_routine
from cgstate.runtime.transaction import Transaction
from tests.runtime.failing import Bench
from tests.runtime.helpers import Model, counts, elsewhere

# -- static inputs ------------------------------------------------------------------------------------------------------


def exactly_once(manager: cgstate.GraphManager, component: cgstate.Component[..., SimTensor]) -> int:
    """Estimate and capture; the bytes of static inputs, on which estimate, report and ledger agree."""
    manager.prepare([component])
    estimate = manager.profile_memory()
    report = manager.capture_and_bind()
    assert report.comparison is not None
    assert report.comparison.within
    assert report.memory.total == manager._books.budget.held()
    assert estimate.parts["buffers"] == report.memory.buffers == sum(entry.buffers for entry in report.memory.entries)
    return report.memory.buffers


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
def test_a_pinned_input_is_the_callers_and_charged_to_nobody(isolation: str) -> None:
    model = Model()
    cache = model.dev.rand(512, 4)
    routine = cgstate.BucketedRoutine(
        lambda x, cache: kernels.add(x, kernels.matmul(x, model.weight)), lambda n: (model.dev.zeros(n, 4), cache), pinned=[1]
    )
    with model.manager(isolation=isolation) as manager:
        own = sum(model.backend.nbytes(model.example(size)) for size in (4, 8))
        assert exactly_once(manager, cgstate.Component("net", routine, [4, 8])) == own
        assert manager.set_budget(manager.memory().total) == 0
        manager.evict("net")
        manager.capture_and_bind()  # fits again: nothing of the cache is in the way


def test_static_inputs_that_graphs_share_are_counted_once() -> None:
    model = Model()
    large = model.dev.zeros(8, 4)

    class Sliced(cgstate.BucketedRoutine[..., SimTensor]):
        def allocate_buffers(self, descriptor: int) -> tuple[object, ...]:
            return (large.narrow(0, 0, descriptor),)

    with model.manager() as manager:
        component = cgstate.Component("net", Sliced(model.net, model.example), [2, 4, 8])
        assert exactly_once(manager, component) == model.backend.nbytes(large)


def test_a_component_inside_another_shares_its_isolation_also_in_estimates_and_budgets() -> None:
    model = Model()
    outer = model.component("outer", (4, 8))
    inner = model.component("inner", (4,), sizes=(8,), inside="outer", capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
    config: dict[str, dict[str, object]] = {"outer": {"isolation": "shared"}, "inner": {"max_extra_graphs": 1}}
    with model.manager(isolation="per_entry") as manager:
        manager.prepare([outer, inner], config)
        estimate = manager.profile_memory()
        assert 0 < estimate.lazy < estimate.lower  # no pool of its own, with a workspace in it
        manager.capture_and_bind()
        manager.release()
        with manager.transaction() as tx:  # the only graph of an empty pool
            capture_by_routine(tx, manager.entry("inner", 4), inner.routine)
        books = manager._books
        assert books.budget.need(books.components["inner"], 8) < model.backend.sim.config.workspace_bytes


def test_a_tensor_where_pinned_ones_are_listed_is_refused() -> None:
    torch = pytest.importorskip("torch")
    model = Model()
    tensor = torch.rand(4, 4)
    with model.manager() as manager:
        entry = manager.entry("net", 1)
        with pytest.raises(cgstate.ConfigError, match="pinned must be a sequence"), manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: torch.relu(tensor), pinned=tensor)
        with manager.transaction() as tx:
            tx.capture(entry, lambda warmup: lambda: torch.relu(tensor), pinned=[tensor])


# -- other threads in the middle of a lazy capture ----------------------------------------------------------------------


def test_another_thread_may_reclaim_what_a_failed_lazy_capture_left_before_it_does_so_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench.lazily(isolation="per_entry").serving()
    bench.routine.fail("capture", ValueError("no"))
    abort = Transaction.abort

    def late(self: Transaction) -> None:
        abort(self)
        elsewhere(bench.manager.memory)

    monkeypatch.setattr(Transaction, "abort", late)
    with pytest.raises(ValueError, match="no"):
        bench.component(bench.device.rand(8, 4))
    bench.call(8)
    assert counts(bench.manager, "toy") == {"blocked": 1}
    bench.manager.close()


def test_an_entry_that_comes_back_while_another_thread_reclaims_its_last_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench.lazily(isolation="per_entry").serving()
    bench.call(8)
    bench.component(bench.device.rand(8, 4))
    bench.manager.evict("toy", 8)
    assert bench.books.components["toy"].entries[8].unreclaimed  # still in flight

    def late(*args: Any) -> object:
        bench.device.synchronize()
        elsewhere(bench.manager.memory)
        return capture_by_routine(*args)

    monkeypatch.setattr(lazy, "capture_by_routine", late)
    bench.call(8)
    assert counts(bench.manager, "toy") == {}
    bench.manager.close()


@pytest.mark.parametrize("end", ["release", "close"])
def test_a_miss_that_meets_the_end_of_serving_captures_nothing(end: str) -> None:
    bench = Bench.lazily().serving()
    bench.routine.during["make_lazy_descriptor"] = lambda: elsewhere(getattr(bench.manager, end))
    bench.call(8)
    assert counts(bench.manager, "toy") == {"closed" if end == "close" else "not_serving": 1}
    assert bench.manager.memory().total == 0
    bench.manager.close()


# -- the device fails while bytes are given back ------------------------------------------------------------------------


CLOSING = ["event_synchronize", "has_foreign_graphs", "clear_workspaces", "flush", "stream_close"]


@pytest.mark.parametrize("call", [*CLOSING, "pool_drop"])
def test_a_close_that_could_not_give_everything_back_is_finished_by_the_next(call: str) -> None:
    bench = Bench(isolation="per_entry").serving()
    bench.call(4)
    bench.faults.inject(call)
    if call == "pool_drop":
        bench.manager.close()  # logs it, and goes on
        assert bench.manager.memory().total
    else:
        with pytest.raises(InjectedFault):
            bench.manager.close()
    assert bench.manager.state == "CLOSED"
    bench.manager.close()
    assert bench.manager.memory().total == 0
    bench.quiet()


def test_a_device_lost_without_notice_lets_a_manager_close() -> None:
    bench = Bench(isolation="per_entry").serving()
    bench.call(4)
    bench.device.lose()
    bench.manager.close()
    assert bench.manager.memory().total == 0


def test_a_pool_that_could_not_be_dropped_is_dropped_with_the_next_ones() -> None:
    bench = Bench.lazily(isolation="per_entry").serving()
    bench.call(8)
    bench.manager.evict("toy", 8)
    bench.faults.inject("pool_drop")
    assert bench.manager.reclaim(flush=True).retired
    assert not bench.manager.reclaim(flush=True).retired
    bench.manager.close()


@pytest.mark.parametrize(
    ("call", "error"), [("graph_destroy", KeyboardInterrupt()), ("pool_reserved_bytes", InjectedFault("not now"))]
)
def test_an_interrupted_reclaim_keeps_nobody_from_capturing(call: str, error: BaseException) -> None:
    def reclaim(bench: Bench) -> None:
        bench.manager.evict("toy", 8)
        bench.manager.reclaim(flush=True)

    def fresh() -> Bench:
        bench = Bench.lazily(isolation="per_entry", check=False).serving()
        bench.call(8)
        bench.device.synchronize()
        return bench

    bench = fresh()
    earlier = bench.faults.calls[call]
    reclaim(bench)
    calls = bench.faults.calls[call] - earlier
    assert calls
    for nth in range(1, calls + 1):
        bench = fresh()
        bench.faults.inject(call, nth=nth, error=error)
        with pytest.raises(type(error)):
            reclaim(bench)
        assert bench.books.gate.destroying == 0
        bench.call(8)
        bench.call(16)
        bench.manager.close()


# -- what is suspended --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["profile_memory", "capture_and_bind"])
def test_what_needs_suspended_memory_is_refused_and_works_when_that_is_back(act: str) -> None:
    bench = Bench(component={"dependencies": ["kv"]}).prepared()
    bench.manager.suspend("kv")
    before = bench.footprint()
    ask: Callable[[], object] = getattr(bench.manager, act)
    with pytest.raises(cgstate.NotResident) as refusal:
        ask()
    assert refusal.value.missing == ("kv",)
    assert (bench.manager.state, bench.footprint()) == ("PREPARED", before)
    bench.manager.resume("kv")
    ask()
    bench.manager.close()
