"""The standard battery: every case of `cases`, under every schedule up to a bound, on any device.

from cgstate.testing.schedules.battery import CASES, check_case

@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_my_backend_under_schedules(case):
    assert check_case(case, MyBench).complete
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cgstate.runtime.manager import GraphManager
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.schedules.cases import CASES
from cgstate.testing.schedules.exploring import Explored, Make, explore
from cgstate.testing.schedules.program import Case
from cgstate.testing.schedules.scheduler import Scheduler
from cgstate.testing.schedules.stage import Stage, Workbench

__all__ = ["CASES", "check_case", "on_stage"]

T = TypeVar("T")


def on_stage(
    case: Callable[[Stage[T]], Case],
    make_bench: Callable[[], Workbench[T]] = SimBench,  # type: ignore[assignment]  # T is SimTensor then
    *,
    make_manager: Callable[..., GraphManager] = GraphManager,
    checked: bool = True,
) -> Make:
    """A case of the battery for `explore`, `sample` and `replay`.

    Args:
        case: One of `CASES`, or one of yours.
        make_bench: Makes a device for each run.
        make_manager: Makes a manager of a backend, ``check`` and ``sync``.
        checked: Whether managers check their invariants after each operation.
    """

    def make(sync: Scheduler) -> Case:
        return case(Stage(make_bench(), sync, make_manager, checked=checked))

    return make


def check_case(
    case: Callable[[Stage[T]], Case],
    make_bench: Callable[[], Workbench[T]] = SimBench,  # type: ignore[assignment]  # T is SimTensor then
    *,
    preemptions: int = 2,
    limit: int | None = None,
    make_manager: Callable[..., GraphManager] = GraphManager,
    hot: bool = False,
) -> Explored:
    """Run a case under every schedule with at most so many preemptions.

    Args:
        case: One of `CASES`, or one of yours.
        make_bench: Makes a device for each run.
        preemptions: The bound.
        limit: As `explore`.
        make_manager: As `on_stage`.
        hot: Let managers take their hot path: they check nothing themselves then, and programs are stopped at locks alone, before
            taking and after giving back.

    Raises:
        ScheduleFailed: something went wrong under one of them.
    """
    make = on_stage(case, make_bench, make_manager=make_manager, checked=not hot)
    return explore(make, preemptions=preemptions, limit=limit, releases=hot, named_points=not hot)
