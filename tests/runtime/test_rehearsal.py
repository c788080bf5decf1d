"""Graphs that an estimate runs instead of capturing them: they hold the same, and nothing is left of them (K03, I4)."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator

import pytest

from cgstate import Break, CaptureActive, CaptureFailed, ConfigError, ManagerState
from cgstate.backends.sim import SimTensor, kernels
from cgstate.backends.sim.faults import InjectedFault
from cgstate.runtime.memory.planning import ALL, CAPTURED, MOST
from tests.runtime.failing import Bench
from tests.runtime.helpers import Model, before, counts
from tests.runtime.shapes import Shape, linear, manager_of
from tests.runtime.test_segments import Split

SIZES = (2, 4, 8, 16, 32)


class Running(Bench):
    """A bench whose graphs of 8 rows and less are run, not captured, by an estimate."""

    def __init__(self) -> None:
        super().__init__(descriptors=SIZES)
        self.prepared()
        self.rows: list[int] = []
        self.lost = False
        work = self.routine.work

        def seen(x: SimTensor) -> SimTensor:
            self.rows.append(x.shape[0])
            if self.lost and x.shape[0] == 8:
                self.device.lose()
            return work(x)

        self.routine.work = seen  # type: ignore[method-assign]


def test_few_graphs_are_all_run_and_two_of_them_captured() -> None:
    bench = Running()
    estimate = bench.manager.profile_memory()
    assert len(estimate.samples) == CAPTURED == 2
    assert estimate.rehearsed == len(SIZES) - CAPTURED
    assert set(bench.rows) == set(SIZES)
    comparison = bench.manager.capture_and_bind().comparison
    assert comparison is not None
    assert comparison.lower == comparison.actual
    assert comparison.ratio <= 1.07


@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
def test_of_many_graphs_some_are_run(isolation: str) -> None:
    model = Model()
    manager = model.manager(isolation=isolation)
    manager.prepare([model.component(descriptors=tuple(range(1, 2 * MOST)))])
    estimate = manager.profile_memory()
    assert len(estimate.samples) == CAPTURED
    assert 0 < estimate.rehearsed < MOST
    comparison = manager.capture_and_bind().comparison
    assert comparison is not None
    assert comparison.within, str(comparison)


@pytest.mark.parametrize("isolation", ["shared", "per_component", "per_entry"])
def test_a_thorough_profile_runs_every_graph(isolation: str) -> None:
    outputs = [Shape([linear(30)] * 3, [linear(3)], range(10, 1000 + step, step), alive=2) for step in (10, 300, 990)]
    for shapes in (outputs[:1], outputs[1:2], outputs[2:], outputs):
        manager = manager_of(*shapes, isolation=isolation, check=False)
        estimate = manager.profile_memory(thorough=True)
        assert estimate.trusted
        assert len(estimate.samples) + estimate.rehearsed >= estimate.graphs
        comparison = manager.capture_and_bind().comparison
        assert comparison is not None
        assert comparison.within
        assert comparison.ratio <= 1.07
    with pytest.raises(ConfigError, match="thorough must be"):
        manager_of(*outputs).profile_memory(thorough=1)  # type: ignore[arg-type]


def test_one_throwaway_pool_is_gone_before_there_is_another() -> None:
    model, pools = Model(), list[int]()

    def work(x: SimTensor) -> SimTensor:
        pools.append(sum(map(bool, model.backend.footprint().pools.values())))
        return model.net(x)

    manager = model.manager(check=False)
    sizes = tuple(range(2, 2 * ALL + 4, 2))
    manager.prepare([model.component(name, sizes, call=work) for name in ("one", "other")])
    assert manager.profile_memory().rehearsed > 2 * (len(sizes) - CAPTURED)
    assert max(pools) == 1


def test_every_run_is_cleaned_up_by_the_routine() -> None:
    bench = Running()
    bench.manager.profile_memory()
    calls = bench.routine.calls
    assert calls["after_capture"] == calls["context exit"] == calls["context enter"] == len(SIZES)


def test_a_graph_that_cannot_be_run_is_a_doubt_and_the_others_are_run() -> None:
    bench = Running()
    work, footprint, states = bench.routine.work, bench.footprint(), bench.states()

    def failing(x: SimTensor) -> SimTensor:
        if x.shape[0] == 8:
            raise ValueError("not this one")
        return work(x)

    bench.routine.work = failing  # type: ignore[method-assign]
    estimate = bench.manager.profile_memory()
    assert not estimate.trusted
    (reason,) = estimate.distrust
    assert "toy[8] could not be run" in reason
    assert "not this one" in reason
    assert estimate.rehearsed == len(SIZES) - CAPTURED - 1
    assert bench.rows[-1] == min(SIZES)
    assert (bench.footprint(), bench.states()) == (footprint, states)
    bench.quiet()


def test_an_interrupt_goes_through_and_leaves_nothing() -> None:
    bench = Running()
    bench.manager.profile_memory()
    footprint, states = bench.footprint(), bench.states()
    work = bench.routine.work

    def interrupted(x: SimTensor) -> SimTensor:
        answer = work(x)
        if x.shape[0] == 4:
            raise KeyboardInterrupt
        return answer

    bench.routine.work = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.manager.profile_memory()
    assert (bench.footprint(), bench.states()) == (footprint, states)
    bench.quiet()
    bench.routine.work = work  # type: ignore[method-assign]
    assert bench.manager.profile_memory().trusted


def test_a_device_that_is_lost_in_a_run_poisons_the_manager() -> None:
    bench = Running()
    bench.lost = True
    with pytest.raises(CaptureFailed, match="DEVICE"):
        bench.manager.profile_memory()
    assert bench.manager.state is ManagerState.POISONED


def test_a_warm_up_that_never_settles_is_a_doubt_of_a_run_as_well() -> None:
    bench = Running()
    work, leaked = bench.routine.work, list[SimTensor]()

    def leaking(x: SimTensor) -> SimTensor:
        if x.shape[0] == 8:
            leaked.append(bench.device.zeros(8))
        return work(x)

    bench.routine.work = leaking  # type: ignore[method-assign]
    (reason,) = bench.manager.profile_memory().distrust
    assert "the warm-up of toy[8] did not settle" in reason


def test_what_a_size_leaves_at_its_first_use_is_no_memory_of_the_pool() -> None:
    bench = Running()
    work, caches = bench.routine.work, dict[int, SimTensor]()

    def caching(x: SimTensor) -> SimTensor:
        size = x.shape[0]
        if size in (4, 32) and size not in caches:
            caches[size] = bench.device.zeros(size, 64)
        return work(x)

    bench.routine.work = caching  # type: ignore[method-assign]
    estimate = bench.manager.profile_memory()
    assert estimate.trusted
    assert estimate.rehearsed == len(SIZES) - CAPTURED
    assert bench.footprint().pools == {}
    comparison = bench.manager.capture_and_bind().comparison
    assert comparison is not None
    assert comparison.lower == comparison.actual


@pytest.mark.parametrize("number", [1, 2])
def test_what_only_a_first_use_takes_is_not_estimated(number: int) -> None:
    """As work that is tuned when it first meets a size; with several components the rehearsal has a pool of its own."""
    model = Model()
    met = set[tuple[int, int]]()

    def tuned(which: int) -> Callable[[SimTensor], SimTensor]:
        def work(x: SimTensor) -> SimTensor:
            if (which, x.shape[0]) not in met:
                met.add((which, x.shape[0]))
                model.dev.zeros(256, 256)
            return model.net(x)

        return work

    manager = model.manager()
    manager.prepare([model.component(f"tuned {which}", SIZES, call=tuned(which)) for which in range(number)])
    estimate = manager.profile_memory()
    assert estimate.trusted
    assert estimate.rehearsed
    comparison = manager.capture_and_bind().comparison
    assert comparison is not None
    assert comparison.within
    assert comparison.ratio <= 1.07


def test_random_numbers_that_runs_draw_are_not_missed() -> None:
    bench = Running()
    work = bench.routine.work
    bench.routine.work = lambda x: kernels.add(work(x), bench.device.rand(*x.shape))  # type: ignore[method-assign]
    mark = bench.backend.generator_mark()
    assert bench.manager.profile_memory().rehearsed
    assert bench.backend.generator_mark() == mark


def test_a_component_that_is_called_in_a_run_is_eager_as_in_a_capture() -> None:
    model = Model()
    inner = model.component("inner")
    outer = model.component("outer", SIZES)
    x = model.input(4)
    before(outer, "forward_for_capture", lambda: inner(x))
    manager = model.manager()
    manager.prepare([inner, outer])
    assert manager.profile_memory().rehearsed
    assert set(counts(manager, "inner")) == {"in_capture"}


@pytest.mark.parametrize("sizes", [SIZES, tuple(range(1, 41))], ids=["few", "many"])
def test_bodies_with_breaks_are_run_with_the_breaks_outside_of_the_pool(sizes: tuple[int, ...]) -> None:
    model = Split()
    taken: list[SimTensor] = []

    def allocate() -> None:
        taken[:] = [model.dev.zeros(512, 512)]

    model.during["break 1"] = allocate
    manager = model.manager()
    manager.prepare([model.split(descriptors=sizes)])
    estimate = manager.profile_memory()
    assert estimate.rehearsed
    assert estimate.upper < taken[0].nbytes
    taken.clear()
    comparison = manager.capture_and_bind().comparison
    assert comparison is not None
    assert comparison.within or not estimate.trusted, str(comparison)


def test_few_graphs_of_whatever_sizes_hold_what_runs_held() -> None:
    drawn, exact = random.Random(7), 0
    for _ in range(20):
        model = Model()
        manager = model.manager(check=False)
        manager.prepare([model.component(descriptors=tuple(drawn.sample(range(1, 400), drawn.randint(4, MOST))))])
        estimate = manager.profile_memory()
        held = manager.capture_and_bind().memory
        pools, buffers = held.total - held.buffers, estimate.parts["buffers"]
        assert estimate.lower - buffers <= pools <= estimate.upper - buffers <= 1.07 * pools
        exact += pools == estimate.upper - buffers
    assert exact > 10


def test_what_breaks_declare_live_is_not_kept() -> None:
    model = Model()

    def body(x: SimTensor) -> Iterator[Break]:
        hidden = model.net(x)
        yield Break(lambda: None, name="mix", live={"hidden": hidden})
        return model.net(hidden)  # type: ignore[return-value]  # what the generator returns

    manager = model.manager()
    manager.prepare([model.component(descriptors=tuple(range(1, 41)), call=body)])
    estimate = manager.profile_memory(thorough=True)
    held = manager.capture_and_bind().memory
    assert estimate.trusted
    assert held.total - held.buffers == estimate.upper - estimate.parts["buffers"]


def test_memory_that_others_give_back_meanwhile_is_no_output() -> None:
    model = Model()
    taken, warmed = [model.dev.zeros(1024, 1024)], set[int]()

    def free(x: SimTensor) -> SimTensor:
        size = x.shape[0]
        if size < 60 and size in warmed:
            taken.clear()
        warmed.add(size)
        return model.net(x)

    manager = model.manager()
    manager.prepare([model.component(descriptors=tuple(range(1, 100)), call=free)])
    estimate = manager.profile_memory()
    assert not taken
    comparison = manager.capture_and_bind().comparison
    assert comparison is not None
    assert comparison.within or not estimate.trusted
    assert comparison.ratio < 1.1


def test_garbage_of_earlier_runs_stays_where_it_is_as_in_a_capture() -> None:
    bench = Running()
    work, enabled = bench.routine.work, set[bool]()

    def collecting(x: SimTensor) -> SimTensor:
        if x.shape[0] == 4:
            enabled.add(gc.isenabled())
        return work(x)

    bench.routine.work = collecting  # type: ignore[method-assign]
    bench.manager.profile_memory()
    assert enabled == {False}
    assert gc.isenabled()


def test_many_small_outputs_are_foreseen_as_small() -> None:
    shape = Shape([], [linear(4)] * 3, range(1, 19), alive=2, inputs=linear(160))
    manager = manager_of(shape, check=False)
    estimate = manager.profile_memory()
    held = manager.capture_and_bind().memory
    pools, buffers = held.total - held.buffers, estimate.parts["buffers"]
    assert estimate.lower - buffers <= pools <= estimate.upper - buffers <= 1.10 * pools


@pytest.mark.parametrize("call", ["hold", "prime_workspaces", "pool_segments"])
def test_a_device_call_that_fails_in_a_rehearsal_is_a_doubt(call: str) -> None:
    counted = Bench(descriptors=tuple(range(1, 41))).prepared()
    calls = counted.faults.calls.copy()
    counted.manager.profile_memory()
    made = (counted.faults.calls - calls)[call]
    bench = Bench(descriptors=tuple(range(1, 41))).prepared()
    footprint, states = bench.footprint(), bench.states()
    bench.faults.inject(call, nth=made - 1)
    estimate = bench.manager.profile_memory()
    assert not estimate.trusted
    assert (bench.footprint(), bench.states()) == (footprint, states)
    bench.quiet()


def test_what_cannot_be_undone_is_a_doubt() -> None:
    bench = Running()
    work = bench.routine.work
    bench.routine.work = lambda x: kernels.add(work(x), bench.device.rand(*x.shape))  # type: ignore[method-assign]
    bench.faults.inject("undo: restore the generator", nth=1 + 1 + CAPTURED)  # of the static inputs, of the captures
    assert "could not be run" in str(bench.manager.profile_memory().distrust)


def test_a_capture_of_the_same_thread_in_between_is_refused() -> None:
    bench = Running()
    before(bench.component, "forward_for_capture", lambda: refused.append(type(_error(bench.manager.capture_and_bind))))
    refused: list[type] = []
    bench.manager.profile_memory()
    assert set(refused) == {CaptureActive}


def _error(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None


def test_an_interrupt_is_not_lost_to_what_the_clean_up_raises() -> None:
    bench = Running()
    work = bench.routine.work

    def interrupted(x: SimTensor) -> SimTensor:
        if x.shape[0] == 4:
            bench.routine.fail("after_capture", ValueError("too late"))
            raise KeyboardInterrupt
        return work(x)

    bench.routine.work = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.manager.profile_memory()
    bench.quiet()


def test_a_placeholder_without_memory_is_a_doubt_among_captures_as_well() -> None:
    bench = Bench(descriptors=tuple(range(1, 41))).prepared()
    bench.routine.fail("allocate_buffers", ValueError("not this one"), nth=7)  # so that its pool is captured
    bench.faults.inject("hold")
    estimate = bench.manager.profile_memory()
    assert estimate.rehearsed == 0
    assert any("could not be run" in reason for reason in estimate.distrust)
    bench.quiet()


def test_a_thorough_profile_is_not_widened_by_what_was_thought_before() -> None:
    """Fewer graphs may hold more: of two components, whose second one fits where a third graph of the first has been."""
    drawn = random.Random(3)
    for _ in range(40):
        shapes = [
            Shape(
                [linear(drawn.choice([5, 20, 60])) for _ in range(drawn.randint(1, 4))],
                [linear(drawn.choice([0.5, 3]))],
                [64 * (index + 1) for index in range(drawn.randint(2, 6))],
                alive=2,
            )
            for _ in range(drawn.randint(1, 3))
        ]
        manager = manager_of(*shapes, check=False)
        estimate = manager.profile_memory(thorough=True)
        held = manager.capture_and_bind().memory
        pools, buffers = held.total - held.buffers, estimate.parts["buffers"]
        assert estimate.lower - buffers == pools == estimate.upper - buffers


@pytest.mark.parametrize("names", [("toy",), ("one", "other")])
@pytest.mark.parametrize("thorough", [False, True])
def test_a_rehearsal_that_is_broken_off_is_no_bound(names: tuple[str, ...], thorough: bool) -> None:
    counted = Bench(*names, descriptors=SIZES).prepared()
    calls = counted.faults.calls["prime_workspaces"]
    right = counted.manager.profile_memory(thorough=thorough)
    bench = Bench(*names, descriptors=SIZES).prepared()
    bench.faults.inject("prime_workspaces", nth=counted.faults.calls["prime_workspaces"] - calls)  # the last is a rehearsal's
    estimate = bench.manager.profile_memory(thorough=thorough)
    assert not estimate.trusted
    assert estimate.upper >= right.upper


def test_what_the_device_does_not_say_at_the_end_of_a_rehearsal_is_never_trusted() -> None:
    counted = Bench(descriptors=SIZES, check=False).prepared()
    before_it = counted.faults.calls["pool_reserved_bytes"]
    counted.manager.profile_memory()
    asked = counted.faults.calls["pool_reserved_bytes"] - before_it
    assert asked > 2
    for nth in range(1, asked + 1):
        bench = Bench(descriptors=SIZES, check=False).prepared()
        bench.faults.inject("pool_reserved_bytes", nth=nth)
        try:
            trusted = bench.manager.profile_memory().trusted
        except Exception:
            trusted = False
        assert not trusted, nth


def test_static_inputs_whose_random_numbers_are_missed_are_no_ground_to_trust_on() -> None:
    bench = Running()
    bench.faults.inject("undo: restore the generator")  # the first is that of the static inputs, which are only made
    with pytest.raises(InjectedFault):
        bench.manager.profile_memory()
    bench.quiet()
    assert bench.manager.profile_memory().trusted
