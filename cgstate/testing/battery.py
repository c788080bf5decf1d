"""Everything that can be asked of a runner's components, as one class for pytest.

    class TestMyRunner(Battery):
        def make_components(self):
            return [Subject(my_component(), samples=[(x,), (y,)])]

What it runs can be had one by one: `check_routine`, `cgstate_walk`, `LifecycleMachine`, `every_fault`, and `schedules.explore`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test

from cgstate.testing.conformance.routine import check_routine
from cgstate.testing.meetings import Meeting, meetings
from cgstate.testing.stateful.bed import Bed, Capabilities
from cgstate.testing.stateful.machine import LifecycleMachine
from cgstate.testing.stateful.subject import Subject

__all__ = ["Battery"]


class Battery(Bed):
    """A bed whose components are put to every test there is.

    Say what they are in `make_components`, and more in ``can`` and the other hooks of `Bed`, where there is more.
    """

    can: ClassVar[Capabilities] = Capabilities(faults=True, clock=True)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Let every meeting that the components can play be a test."""
        if "meeting" in metafunc.fixturenames:
            metafunc.parametrize("meeting", meetings(self.can), ids=lambda meeting: meeting.__name__)

    def test_routines_answer_as_eager(self) -> None:
        """Graphs of each routine, the lazy ones of its samples included, replay in every order of calls."""
        self.backend = self.make_backend()
        telling = [subject for subject in self.make_components() if subject.pure]
        if not telling:
            pytest.skip("no component answers by its arguments alone")
        for subject in telling:
            try:
                check_routine(
                    subject.component.routine,
                    subject.samples,
                    graphs_of(subject),
                    backend=self.backend,
                    tolerance=subject.tolerance,
                )
            except Exception as error:
                error.add_note(f"the component is {subject.name}")
                raise

    def test_walks_find_nothing(self, cgstate_walk: Callable[[type[Bed]], object]) -> None:
        """Anything happens in any order."""
        cgstate_walk(type(self))

    def test_hypothesis_finds_nothing(self) -> None:
        """The same, drawn and made shorter by Hypothesis."""
        machine: Any = type(type(self).__name__, (type(self), LifecycleMachine), {})
        run_state_machine_as_test(machine)

    def test_faults_do_no_harm(self, cgstate_faults: Callable[[type[Bed]], object]) -> None:
        """Whatever is called fails, before or after it has done its work."""
        if not self.can.faults:
            pytest.skip("nothing of its backend can be broken")
        cgstate_faults(type(self))

    def test_threads_meet_well(self, meeting: Meeting, cgstate_explore: Callable[..., None]) -> None:
        """One thread calls while another comes in anywhere."""
        cgstate_explore(partial(meeting, type(self)), preemptions=1)


def graphs_of(subject: Subject) -> list[Any]:
    """What a component's samples can be served by: its declared descriptors, and those that a miss may capture."""
    routine, declared = subject.component.routine, subject.component.descriptors
    found = dict.fromkeys(declared)
    if subject.component.capture_mode.allows_lazy:
        for sample in subject.samples:
            resolved = routine.resolve_runtime(sample, {}, frozenset(declared))
            made = None if resolved.descriptor is not None else routine.make_lazy_descriptor(resolved.runtime_key)
            if made is not None:
                found[made] = None
    return list(found)
