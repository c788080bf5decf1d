"""Faults: methods of routines raise on demand, and scenarios are played with every fault that they could meet."""

from __future__ import annotations

import pytest

from cgstate import BucketedRoutine, ConfigError
from cgstate.backends.sim import SimDevice, SimTensor, kernels
from cgstate.runtime.domain import Isolation
from cgstate.testing.everyfault import every_fault, faults_of
from cgstate.testing.faults import METHODS, RoutineFault, RoutineFaults
from cgstate.testing.stateful import planted as bugs
from cgstate.testing.stateful.bed import Bed, Capabilities
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.steps import Break, BreakRoutine, Call, CaptureAll, Evict, GiveBack, Prepare, ProfileMemory, Release

SCENARIO = (Prepare(), ProfileMemory(), CaptureAll(), Call("net"), Call("net", 1), Call("out"), GiveBack(), Release(), CaptureAll())


def routine_with_faults() -> tuple[BucketedRoutine[..., SimTensor], RoutineFaults, SimTensor]:
    device = SimDevice()
    routine: BucketedRoutine[..., SimTensor] = BucketedRoutine(kernels.relu, lambda size: (device.zeros(size),))
    faults = RoutineFaults()
    faults.install(routine)
    return routine, faults, device.tensor([1.0])


def test_a_method_raises_before_or_after_its_work_once() -> None:
    routine, faults, x = routine_with_faults()
    for when in ("before", "after"):
        faults.inject("eager_call", when=when, nth=2)
        routine.eager_call(x)
        with pytest.raises(RoutineFault, match=f"{when} eager_call"):
            routine.eager_call(x)
        assert faults.pending() == 0
        routine.eager_call(x)


def test_quiet_calls_are_let_through_uncounted() -> None:
    routine, faults, x = routine_with_faults()
    faults.inject("eager_call")
    faults.quiet = True
    routine.eager_call(x)
    faults.quiet = False
    assert faults.pending() == 1
    faults.clear()
    routine.eager_call(x)


def test_what_no_routine_has_cannot_be_broken() -> None:
    with pytest.raises(ValueError, match="no call number 1 of a method 'dance'"):
        RoutineFaults().inject("dance")


def test_every_call_of_a_scenario_is_broken_before_and_after_and_twice() -> None:
    plans = list(faults_of(SCENARIO, Bed, Setup(faulty=True)))
    alone = {(plan[0].call, plan[0].when) for plan in plans if len(plan) == 1 and isinstance(plan[0], Break)}
    for call in ("open_capture", "close_capture", "new_pool", "graph_replay", "graph_destroy", "launch", "end_stream_capture"):
        assert {(call, "before"), (call, "after")} <= alone
    assert any(len(plan) == 2 and all(isinstance(fault, Break) for fault in plan) for plan in plans)
    assert {plan[0].method for plan in plans if isinstance(plan[0], BreakRoutine)} == set(METHODS)
    undone = {fault.call for plan in plans for fault in plan if isinstance(fault, Break) and fault.call.startswith("undo: ")}
    assert "undo: end the capture" in undone


def test_no_fault_breaks_an_invariant_and_everything_answers_afterwards() -> None:
    chosen = frozenset({"open_capture", "close_capture", "graph_replay", "new_stream", "forward_for_capture", "after_capture"})
    report = every_fault(SCENARIO, only=chosen)
    assert report.failures == ()
    assert report.happened > 40


RETIRING = (Prepare(), CaptureAll(), Call("net"), Call("net", 1), Evict("net"), CaptureAll(), Release())
GIVES_AND_TAKES = frozenset({"new_pool", "new_stream", "pool_drop", "prime_workspaces", "stream_capturing", "flush"})


@pytest.mark.parametrize("isolation", Isolation)
def test_no_fault_is_worse_where_entries_are_kept_apart(isolation: Isolation) -> None:
    report = every_fault(RETIRING, setup=Setup(isolation=isolation), only=GIVES_AND_TAKES)
    assert report.failures == ()
    assert report.tried > 50
    assert report.happened > 30


def test_what_is_not_undone_is_found() -> None:
    bug = next(each for each in bugs.PLANTED if each.kind == "K02")
    with bug.planting():
        report = every_fault(SCENARIO, only=frozenset({"close_capture", "forward_for_capture"}))
    assert report.failures


def test_a_bed_without_an_injector_is_refused() -> None:
    class Bare(Bed):
        can = Capabilities()

    with pytest.raises(ConfigError, match="no injector"):
        every_fault(SCENARIO, bed=Bare)
