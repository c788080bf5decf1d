"""The stateful harness: it walks without finding anything, sees every row and every outcome, and finds what is planted."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from hypothesis.vendor.pretty import pretty

from cgstate import BucketedRoutine, CaptureMode, Component, ConfigError
from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import kernels
from cgstate.lifecycle.tables import MACHINES
from cgstate.lifecycle.world import World
from cgstate.runtime.domain import Isolation
from cgstate.runtime.memory.scope import _Before as Before
from cgstate.runtime.stats import Fallback
from cgstate.spec.compiled import System
from cgstate.spec.shape import Shape
from cgstate.spec.walk import walk as explore
from cgstate.spec.world import world_of
from cgstate.testing.stateful import planted as bugs
from cgstate.testing.stateful.bed import Bed, Capabilities
from cgstate.testing.stateful.coverage import DEFENSIVE, TOTAL, Coverage, contradicted, every_outcome, out_of_epoch
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.failing import WalkFailed, parse_token, played, token
from cgstate.testing.stateful.fuzzing import fuzz
from cgstate.testing.stateful.machine import LifecycleMachine
from cgstate.testing.stateful.play import HAND, Play
from cgstate.testing.stateful.setup import CHOICES, Setup
from cgstate.testing.stateful.step import Step
from cgstate.testing.stateful.steps import (
    DOORS,
    KINDS,
    Begin,
    Break,
    BreakRoutine,
    Call,
    Capture,
    CaptureAll,
    Close,
    ClosedDoor,
    Commit,
    DeclareInside,
    Disagree,
    Evict,
    ForgetFailures,
    GiveBack,
    GiveUp,
    How,
    Meanwhile,
    MovePinned,
    Prepare,
    ProfileByHand,
    ProfileMemory,
    Release,
    Replay,
    ReplayLeased,
    Suspend,
    Take,
)
from cgstate.testing.stateful.steps.device import LASTING
from cgstate.testing.stateful.subject import Subject, difference, values
from cgstate.testing.stateful.sync import PlayedSync, WaitsForEver
from cgstate.testing.stateful.tables import walk_tables
from cgstate.testing.stateful.walk import steady, walk, walk_once

RUNS = 60


class ShippedMachine(LifecycleMachine):
    """As a user has it: nothing overridden."""


def test_hypothesis_finds_nothing_in_the_runtime() -> None:
    run_state_machine_as_test(
        ShippedMachine, settings=settings(max_examples=20, stateful_step_count=30, derandomize=True, database=None, deadline=None)
    )
    assert ShippedMachine.coverage.rows_covered > len(MACHINES)


def test_walks_find_nothing_and_leave_nothing() -> None:
    walked = walk(seed=500, runs=RUNS)
    assert walked.runs == RUNS
    assert walked.steps > 60 * RUNS


def test_a_walk_is_taken_again_by_its_seed() -> None:
    with steady():
        first, second = (walk_once(Bed, 7).steps for _ in range(2))
    assert [repr(step) for step in first] == [repr(step) for step in second]


def test_the_tables_alone_are_walked_fast() -> None:
    walked = walk_tables(steps=20_000)
    assert walked.steps == 20_000
    assert len(walked.taken) > 15


def test_every_event_of_every_table_is_brought_about_by_some_step() -> None:
    brought = {event for kind in KINDS for event in kind.brings}
    assert {event for machine in MACHINES for event in machine.events} <= brought


def test_every_way_to_set_a_run_up_is_drawn() -> None:
    setups = [Setup.drawn(Random(seed)) for seed in range(300)]
    for name, choices in CHOICES.items():
        assert {getattr(setup, name) for setup in setups} == set(choices)


# -- what is planted is found ---------------------------------------------------------------------------------------------


KINDS_OF_FAULTS = {f"K{number:02}" for number in range(1, 18)} - {"K14"}


def test_each_kind_of_fault_has_something_planted() -> None:
    assert {each.kind for each in bugs.PLANTED} == KINDS_OF_FAULTS


QUICK = [each for each in bugs.PLANTED if each.kind in {"K02", "K04", "K05", "K07", "K08", "K13", "K15"}]


@pytest.mark.parametrize("planted", QUICK, ids=lambda each: each.story)
def test_what_is_planted_is_found(planted: bugs.Planted) -> None:
    assert 0 < bugs.examples_until_found(planted, seed=0, most=100) <= 100


def test_a_failure_is_printed_as_few_steps_that_fail_again() -> None:
    bug = next(each for each in bugs.PLANTED if each.kind == "K15")
    with bug.planting(), pytest.raises(WalkFailed) as failed:
        walk(seed=0, runs=20)
    assert len(failed.value.steps) <= 8
    assert "played(Bed(), Setup(" in str(failed.value)
    with steady(), bug.planting(), pytest.raises(Violated):
        played(Bed(), failed.value.setup, failed.value.steps)
    code = str(failed.value).split("fails:\n")[1].split("whole walk:")[0]
    with bug.planting(), pytest.raises(Violated):
        exec(code, {})
    with steady():
        played(Bed(), failed.value.setup, failed.value.steps)


def test_the_steps_that_are_printed_fail_without_the_end_of_the_run() -> None:
    bug = next(each for each in bugs.PLANTED if each.kind == "K04")
    with bug.planting(), pytest.raises(WalkFailed) as failed:
        walk(seed=0, runs=20)
    run = Play(Bed(), failed.value.setup)
    *before, last = failed.value.steps
    with steady(), bug.planting():
        for step in before:
            run.take(step)
        with pytest.raises(Violated):
            run.take(last)


def test_steps_print_for_hypothesis_as_the_code_that_makes_them() -> None:
    assert pretty(Call("net", 3)) == "Call(component='net', sample=3)"


def test_a_failure_names_the_bed_that_it_was_found_on() -> None:
    class Mine(Bed):
        pass

    bug = next(each for each in bugs.PLANTED if each.kind == "K15")
    with bug.planting(), pytest.raises(WalkFailed, match=r"played\(Mine\(\), Setup\("):
        walk(Mine, seed=0, runs=20)


def test_a_token_is_good_for_its_own_tables_only() -> None:
    assert parse_token(token(12, 60)) == (12, 60)
    with pytest.raises(ConfigError, match="other tables"):
        parse_token("walk-12-60-00000000")
    with pytest.raises(ConfigError, match="no token"):
        parse_token("hello")


# -- what a step is -------------------------------------------------------------------------------------------------------


def play(*steps: Step, setup: Setup | None = None) -> Play:
    run = Play(Bed(), setup or Setup())
    for step in steps:
        run.take(step)
    return run


def test_steps_print_as_the_code_that_makes_them() -> None:
    step = ClosedDoor(Call("net", 3, stream=1))
    assert repr(step) == "ClosedDoor(step=Call(component='net', sample=3, stream=1))"
    assert eval(repr(step)) == step
    setup = replace(Setup(), extra=0, faulty=True)
    assert repr(setup) == "Setup(extra=0, faulty=True)"
    assert eval(repr(setup)) == setup


def test_what_must_be_refused_and_is_not_is_a_violation() -> None:
    run = play(Prepare(), CaptureAll())
    with pytest.raises(Violated, match="was not refused"):
        run.take(ClosedDoor(Evict("net")))


def test_what_is_refused_and_must_not_be_is_a_violation() -> None:
    run = play(Prepare())

    class Refused(Release):
        def legal(self, play: Play) -> bool:
            return True

    with pytest.raises(Violated, match="IllegalTransition"):
        run.take(Refused())


def test_books_that_differ_from_the_model_are_a_violation() -> None:
    run = play(Prepare(), CaptureAll())
    run.model.evict(run.model.domains("net"))
    with pytest.raises(Violated, match=r"net\[1\] is BOUND, and should be EVICTED"):
        run.take(Call("out"))


def test_a_wrong_answer_is_a_violation() -> None:
    run = play(Prepare(), CaptureAll(), Call("net"))
    run._eager = {key: [[0.0, 0.0]] for key in run._eager}
    with pytest.raises(Violated, match="I9"):
        run.take(Call("net"))


def test_hooks_see_every_step() -> None:
    seen: list[str] = []

    class Watched(Bed):
        def on_step(self, step: Step, before: World, after: World) -> None:
            seen.append(type(step).__name__)

    run = Play(Watched(), Setup())
    run.take(Prepare())
    run.finish()
    assert seen[0] == "Prepare"
    assert seen[-1] == "Close"


def test_what_a_device_lacks_is_not_drawn() -> None:
    class Bare(Bed):
        can = Capabilities(streams=False, by_hand=False, profile=False, foreign=False, segments=False, pins=False)

    walked = walk(Bare, seed=3, runs=10)
    assert not walked.coverage.rows["manager", 1], "profile_begin"
    run = Play(Bare(), Setup(faulty=True))
    run.take(Prepare())
    drawn = {type(step).__name__ for kind in DOORS for step in kind.legal_ones(run)}
    assert not drawn & {"ProfileMemory", "Begin", "Advance", "Lose", "Break", "Suspend", "Invalidate"}


def test_what_others_can_do_is_drawn_as_well() -> None:
    seen: set[object] = set()

    class Watched(Bed):
        def on_step(self, step: Step, before: World, after: World) -> None:
            step = step.step if isinstance(step, ClosedDoor) else step
            seen.update({type(step), (type(step), getattr(step, "how", None)), (type(step), getattr(step, "meanwhile", None))})

    walk(Watched, seed=0, runs=200)
    assert set(KINDS) - {ClosedDoor} <= seen
    assert {(Capture, how) for how in How} <= seen
    assert {(Capture, meanwhile) for meanwhile in Meanwhile} <= seen


def test_conditions_that_no_run_is_asked_for_fail_in_no_state_of_the_model() -> None:
    graph = explore(System(Shape((1,), threads=2)))
    assert graph.complete
    shown = [out for state in graph.states for out in out_of_epoch(world_of(graph.system, state))]
    assert not shown
    assert {guard.removesuffix(" current") for _, _, guard in DEFENSIVE} == {"epochs", "epochs still"}


def test_an_entry_out_of_epoch_is_a_violation() -> None:
    run = play(Prepare(), CaptureAll())
    run.entry("net[1]").noted += 1
    with pytest.raises(Violated, match=r"net\[1\] is BOUND, and what it has baked in has moved"):
        run.take(Call("out"))


def test_a_component_of_other_ranks_is_captured_when_all_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (Prepare(), Disagree(3), ClosedDoor(CaptureAll()), CaptureAll(), Disagree(1), Call("net", 1))
    run = play(*steps, setup=Setup(ranks=True))
    assert run.ranks.disagree == 0
    assert run.books.components["net"].counters.fallbacks[Fallback.vote] == 1
    run.finish()
    monkeypatch.setattr("cgstate.testing.stateful.ranks.Ranks.agree", lambda *ballot: True)
    with pytest.raises(Violated, match="was not refused"):
        play(*steps, setup=Setup(ranks=True))


BY_HAND = (Prepare(), Begin())
"""What comes before captures by hand."""
GRAPH = "by hand[1]"


def test_a_pinned_tensor_that_moved_keeps_its_graph_from_replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (*BY_HAND, Capture(how=How.pinned), Commit(), Replay(GRAPH), MovePinned(GRAPH), ClosedDoor(Replay(GRAPH)))
    play(*steps, MovePinned(GRAPH), Replay(GRAPH)).finish()
    monkeypatch.setattr("cgstate.runtime.pinned.check", lambda entry: None)
    with pytest.raises(Violated, match="was not refused"):
        play(*steps)


@pytest.mark.parametrize("step", ["heal the generator", "release the pool"])
@pytest.mark.parametrize("then", [ProfileByHand(meanwhile=Meanwhile.fail), ProfileMemory()], ids=["in the profile", "before it"])
def test_what_an_injected_fault_left_undone_is_not_laid_to_a_profile(step: str, then: Step) -> None:
    fails = [Begin(), Capture(meanwhile=Meanwhile.fail), GiveUp(), ForgetFailures()]
    again = [] if isinstance(then, ProfileByHand) else fails
    run = play(Prepare(), *fails, Break(f"undo: {step}"), *again, then, setup=Setup(faulty=True))
    assert not run.pending_faults
    run.finish()


@pytest.mark.parametrize("then", [ProfileByHand(meanwhile=Meanwhile.fail), ProfileMemory()], ids=["by hand", "of all"])
def test_a_generator_that_a_profile_leaves_in_a_capture_is_a_violation(monkeypatch: pytest.MonkeyPatch, then: Step) -> None:
    run, restore = play(Prepare()), Before.restore

    def restored(self: Before) -> None:
        restore(self)
        run.bed.backend.sim.generator.capturing = True  # type: ignore[attr-defined]  # the simulator

    monkeypatch.setattr(Before, "restore", restored)
    with pytest.raises(Violated, match="I4 profile-leaves-nothing: generator was"):
        run.take(then)


def test_an_undo_step_without_which_nothing_goes_well_any_more_is_broken_only_after_it_was_done() -> None:
    run = play(Prepare(), Begin(), Capture(meanwhile=Meanwhile.fail), setup=Setup(faulty=True))
    breaks = [step for step in Break.candidates(run) if isinstance(step, Break)]
    drawn = {(step.call, step.when) for step in breaks if step.call.startswith("undo: ")}
    assert {call for call, _ in drawn} > {call for call, when in drawn if when == "before"} > set()
    assert {call for call, when in drawn if when == "after"} - {call for call, when in drawn if when == "before"} == LASTING


def test_an_eager_break_runs_once_a_replay() -> None:
    run = play(*BY_HAND, Capture(how=How.segments), Commit(), Replay(GRAPH), Replay(GRAPH))

    run.handmade[GRAPH].breaks = Counter()
    with pytest.raises(Violated, match="ran 0 times in one replay"):
        run.take(Replay(GRAPH))


# -- inside of others -----------------------------------------------------------------------------------------------------


def planted(story: str) -> bugs.Planted:
    return next(each for each in bugs.PLANTED if each.story == story)


class Flat(Bed):
    """Nothing is inside of anything."""

    can = replace(Bed.can, nested=False)


INSIDE = (
    "in an eager break nothing is answered by its graph",
    "who is declared inside another is kept apart from it",
    "what is live across a break may be overwritten there",
)


@pytest.mark.parametrize("story", INSIDE)
def test_what_is_wrong_inside_of_others_is_found_by_nothing_else(story: str) -> None:
    assert bugs.examples_until_found(planted(story), seed=0, most=100)
    assert not bugs.examples_until_found(planted(story), seed=0, most=100, bed=Flat)


NESTED = Setup(isolation=Isolation.per_component, nested=True)


def test_a_component_is_answered_by_its_graph_in_the_break_of_another() -> None:
    steps = (Prepare(), CaptureAll(), Call("out"))
    run = play(*steps, setup=NESTED)
    assert run.books.components["net"].live_hits == 1
    for step in (Replay("out[1]"), GiveBack(), Take("out[1]"), ReplayLeased()):
        run.take(step)
    assert run.books.components["net"].live_hits == 3
    run.finish()
    with planted(INSIDE[0]).planting(), pytest.raises(Violated, match="net should be answered once by its graph in the break"):
        play(*steps, setup=NESTED)


@pytest.mark.parametrize("last", [Replay("out[1]"), ReplayLeased()], ids=lambda step: type(step).__name__)
def test_who_is_not_answered_by_its_graph_in_a_replay_by_hand_is_found_as_well(last: Step) -> None:
    run = play(Prepare(), CaptureAll(), Take("out[1]"), setup=NESTED)
    with planted(INSIDE[0]).planting(), pytest.raises(Violated, match="net should be answered once by its graph in the break"):
        run.take(last)


def test_who_is_inside_stands_and_falls_with_the_other() -> None:
    run = play(Prepare(), CaptureAll(), Evict("out"), setup=NESTED)
    assert {note.state for note in run.model.entries.values()} == {"EVICTED"}
    assert run.model.entries.keys() == {"net[1]", "net[2]", "out[1]"}
    run.finish()
    with planted(INSIDE[1]).planting(), pytest.raises(Violated, match="net is inside out, and they are kept apart: "):
        play(Prepare(), CaptureAll(), setup=NESTED)


def test_what_would_be_overwritten_in_a_break_is_not_captured() -> None:
    setup = Setup(mode=CaptureMode.PRECAPTURE, extra=0)
    steps = (*BY_HAND, Capture(), DeclareInside(), ClosedDoor(Capture(1, how=How.segments)))
    play(*steps, Capture(1, Meanwhile.fail, How.segments), GiveUp(), setup=setup).finish()
    with planted(INSIDE[2]).planting(), pytest.raises(Violated, match="was not refused"):
        play(*steps, setup=setup)


@pytest.mark.parametrize("bound", [True, False])
def test_nothing_is_declared_inside_of_what_has_something_live_across_its_break(bound: bool) -> None:
    steps = (*BY_HAND, Capture(how=How.segments), *([Commit()] if bound else []), ClosedDoor(DeclareInside()))
    run = play(*steps)
    after: tuple[Step, ...] = (Evict(HAND), DeclareInside(), DeclareInside())
    for step in after if bound else (Commit(), *after):
        run.take(step)
    run.finish()
    with planted(INSIDE[2]).planting(), pytest.raises(Violated, match="was not refused"):
        play(*steps)


def test_nothing_is_inside_of_what_has_a_pool_for_each_entry() -> None:
    assert not Setup(isolation=Isolation.per_entry, nested=True).valid().nested
    assert not NESTED.within(Flat.can).nested
    assert NESTED.valid() == NESTED.within(Bed.can) == NESTED
    apart = play(*BY_HAND, Capture(), setup=Setup(isolation=Isolation.per_entry))
    assert not list(DeclareInside.candidates(apart))


def test_what_only_misses_capture_is_no_part_of_the_transaction_of_the_others() -> None:
    setup = replace(NESTED, mode=CaptureMode.PURE_LAZY, admit_after=2, concurrent=False, watched=False, seed=330)
    run = play(Prepare(), CaptureAll(), Evict("net", "net[1]"), setup=setup)
    calls = (Call("out"), Call("out", 2, stream=1), Evict("net"), Call("out", 4, thread=2), Call("out", 4, stream=1), GiveBack())
    for step in (*calls, CaptureAll()):
        run.take(step)
    run.finish()


def test_a_close_that_could_not_wait_may_keep_bytes() -> None:
    setup = Setup(concurrent=False, error_mode=CaptureErrorMode.global_, faulty=True, seed=11944)
    run = play(Prepare(), BreakRoutine("capture_context", nth=2), CaptureAll(), CaptureAll(), setup=setup)
    for step in (Break("event_synchronize"), Close()):
        run.take(step)
    assert run.world.manager.state == "CLOSED"
    run.finish()


# -- its parts ------------------------------------------------------------------------------------------------------------


def test_a_row_that_was_taken_contradicts_the_rows_beside_it() -> None:
    entry = next(machine for machine in MACHINES if machine.name == "entry")
    last = next(number for number, row in enumerate(entry.rows) if row.label.startswith("REPLAYING --release[last lease & not ret"))
    assert {outcome.guard for outcome in contradicted("entry", last)} == {"other leases left", "retiring", "failed"}


def test_nothing_seen_is_nothing_covered() -> None:
    coverage = Coverage()
    assert coverage.rows_covered == 0
    assert not coverage.outcomes()
    assert set(coverage.outcomes_missed()) < set(every_outcome())
    assert Coverage.unpacked(coverage.packed()) == coverage


def test_what_runs_have_seen_is_counted_once() -> None:
    before = Counter(TOTAL.rows)
    walked = walk(seed=500, runs=3)
    assert TOTAL.rows - before == walked.coverage.rows


def test_what_a_run_has_seen_that_breaks_off_is_counted_once() -> None:
    before, coverage = Counter(TOTAL.rows), Coverage()
    run = Play(Bed(), Setup(), coverage)
    for step in (Prepare(), CaptureAll()):
        run.take(step)
    with pytest.raises(Violated, match="was not refused"):
        run.take(ClosedDoor(Evict("net")))
    assert coverage.rows_covered > len(MACHINES)
    assert TOTAL.rows - before == coverage.rows


def test_waiting_for_nobody_is_a_deadlock() -> None:
    sync = PlayedSync()
    condition = sync.condition(sync.lock())
    before = sync.now
    assert condition.wait(0.5) is False
    assert sync.now > before + 400_000_000
    with pytest.raises(WaitsForEver):
        condition.wait()


def test_answers_are_compared_number_by_number() -> None:
    assert difference([1.0, [2.0]], [1.0, [2.5]]) == 0.5
    assert difference([1.0], [1.0, 2.0]) == float("inf")
    assert difference([float("nan")], [1.0]) == difference([1.0], [float("nan")]) == float("inf")
    assert difference([float("nan"), 1.0], [float("nan"), 1.5]) == 0.5
    assert difference([float("nan"), 1.0], [1.0, float("nan")]) == float("inf")
    with pytest.raises(ConfigError, match="tolist"):
        values(object())


def test_memory_that_is_taken_away_may_be_overwritten_with_nan() -> None:
    class Poisoned(Bed):
        def take_away(self, dependency: str) -> None:
            self.model._memory[dependency].fill_(float("nan"))

    run = Play(Poisoned(), Setup())
    for step in (Prepare(), Suspend("weights"), Close(), Call("net")):
        run.take(step)
    assert "nan" in repr(run.eager(run.subjects["net"], 0))
    run.finish()


def test_a_bed_that_takes_away_what_nobody_depends_on_is_refused() -> None:
    class Independent(Bed):
        can = Capabilities(dependencies=True)

        def make_components(self) -> list[Subject]:
            device = self._simulated()
            routine = BucketedRoutine(kernels.relu, lambda size: (device.zeros(size),))
            return [Subject(Component("mine", routine, [2]), [(device.tensor([1.0, -1.0]),)])]

    with pytest.raises(ConfigError, match=r"Independent says Capabilities\(dependencies=True\), and none"):
        walk(Independent, runs=1)


def test_a_subject_needs_samples() -> None:
    subject = Bed()
    subject.backend = subject.make_backend()
    (net, _) = subject.make_components()
    with pytest.raises(ConfigError, match="samples"):
        Subject(net.component, [])


def test_the_walks_need_neither_hypothesis_nor_torch() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = sys.modules['torch'] = None\n"
        "from cgstate.testing.stateful.walk import walk; walk(runs=1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fuzzing_collects_failures() -> None:
    bug = next(each for each in bugs.PLANTED if each.kind == "K15")
    with bug.planting():
        report = fuzz(examples=40, steps=20)
    assert not report.holds
    assert len(report.failures) == 5
    assert report.document()["violations"] == 5


def test_a_user_brings_components_of_their_own() -> None:
    from cgstate.backends.sim import SimBackend

    class Mine(Bed):
        can = Capabilities(faults=True, clock=True)

        def make_components(self) -> list[Subject]:
            assert isinstance(self.backend, SimBackend)
            device = self.backend.sim
            routine = BucketedRoutine(kernels.relu, lambda size: (device.zeros(size),))
            return [Subject(Component("mine", routine, [2, 4]), [(device.tensor([1.0, -1.0]),), (device.tensor([2.0]),)])]

    assert walk(Mine, runs=15).runs == 15
