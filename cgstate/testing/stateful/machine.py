"""The Hypothesis machine: users subclass it, say which device and which components, and run its ``TestCase``.

    class MyMachine(LifecycleMachine):
        def make_components(self):
            return [Subject(my_component(), samples=[(x,), (y,)])]

    TestMyRunner = MyMachine.TestCase

Hypothesis draws enabled steps only, and some that must be refused; it shrinks a failure to the fewest steps, and prints them as
code that does the same again, with a blob for ``@reproduce_failure``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cgstate.testing.stateful.bed import Bed
from cgstate.testing.stateful.coverage import Coverage
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.setup import CHOICES, Setup
from cgstate.testing.stateful.step import Step
from cgstate.testing.stateful.steps import GROUPS, REFUSABLE, ClosedDoor, KeptEvent, RefusedEvent
from cgstate.testing.stateful.steps.illegal import entities
from cgstate.testing.stateful.walk import steady

__all__ = ["LifecycleMachine", "setups"]

T = TypeVar("T")


def setups() -> st.SearchStrategy[Setup]:
    """Every way to set a run up."""
    choices = {name: st.sampled_from(values) for name, values in CHOICES.items()}
    return st.builds(Setup, **choices, seed=st.integers(0, 1 << 16)).map(Setup.valid)


def _enabled(group: str) -> Callable[[Any], bool]:
    return lambda machine: any(next(kind.legal_ones(machine.play), None) is not None for kind in GROUPS[group])


_NUMBER = st.integers(0, (1 << 16) - 1)
"""Which of several: taken modulo how many there are. Strategies that were made anew for each step would take most of the time."""


def _picked(pick: Callable[[Play, int, int], Step]) -> st.SearchStrategy[Step]:
    """What ``pick`` makes of the present run and two numbers, which shrink to the first of each."""
    return st.tuples(st.runner(), _NUMBER, _NUMBER).map(lambda drawn: pick(drawn[0].play, drawn[1], drawn[2]))


def _step(group: str) -> st.SearchStrategy[Step]:
    """A legal step of a group: first its kind, then what it names."""

    def pick(play: Play, kind: int, which: int) -> Step:
        choices = [found for each in GROUPS[group] if (found := list(each.legal_ones(play)))]
        steps = choices[kind % len(choices)]
        return steps[which % len(steps)]

    return _picked(pick)


def _illegal() -> st.SearchStrategy[Step]:
    """Something that must be refused, or an event that a component keeps its state through."""

    def pick(play: Play, kind: int, which: int) -> Step:
        found: Step | None = None
        if kind % 4 == 1:
            found = _closed_door(play, kind // 4, which)
        elif kind % 4 == 2:
            found = next(_from(which, list(KeptEvent.candidates(play))), None)
        return found or _refused_event(play, kind // 4, which)

    return _picked(pick)


def _refused_event(play: Play, kind: int, which: int) -> Step:
    for name, entity in _from(kind, list(entities(play))):
        for step in _from(which, list(RefusedEvent.of(name, entity))):
            if step.legal(play):
                return step
    raise Violated("there is nothing that any table refuses")


def _closed_door(play: Play, kind: int, which: int) -> Step | None:
    for each in _from(kind, REFUSABLE):
        for step in _from(which, list(each.candidates(play))):
            if step.legal(play) is False:
                return ClosedDoor(step)
    return None


def _from(start: int, items: Sequence[T]) -> Iterator[T]:
    """All of them, once around."""
    return (items[(start + number) % len(items)] for number in range(len(items)))


class LifecycleMachine(Bed, RuleBasedStateMachine):
    """A manager, its components and its device, in any order of everything that can happen to them.

    After each step the books are held against the invariants I1 to I14 and against a plain reference model, and every answer
    against eager. At the end faults stop: then every component must answer, everything must settle, and no byte may be left.

    Override `make_backend`, `make_components`, the hooks of `Bed` and `Bed.on_step`; say in ``can`` what the device cannot do.

    Attributes:
        coverage: What all runs of this class have seen.
        play: The present run.
    """

    coverage: ClassVar[Coverage] = Coverage()
    play: Play

    def __init_subclass__(cls, **keys: Any) -> None:
        super().__init_subclass__(**keys)
        cls.coverage = Coverage()

    def __init__(self) -> None:
        super().__init__()
        self._steady = ExitStack()
        self._steady.enter_context(steady(deep=False))

    @initialize(setup=setups())
    def begin(self, setup: Setup) -> None:
        """Make device, components and manager."""
        self.play = Play(self, setup, type(self).coverage)

    @precondition(_enabled("call"))
    @rule(step=_step("call"))
    def call(self, step: Step) -> None:
        """Call a component."""
        self.play.take(step)

    @precondition(_enabled("lease"))
    @rule(step=_step("lease"))
    def lease(self, step: Step) -> None:
        """Replay, lease, read, give back."""
        self.play.take(step)

    @precondition(_enabled("capture"))
    @rule(step=_step("capture"))
    def capture(self, step: Step) -> None:
        """Prepare, profile, capture, commit."""
        self.play.take(step)

    @precondition(_enabled("memory"))
    @rule(step=_step("memory"))
    def memory(self, step: Step) -> None:
        """Evict, invalidate, suspend, reclaim."""
        self.play.take(step)

    @precondition(_enabled("device"))
    @rule(step=_step("device"))
    def device(self, step: Step) -> None:
        """Let the device work, collect garbage."""
        self.play.take(step)

    @precondition(_enabled("end"))
    @rule(step=_step("end"))
    def end(self, step: Step) -> None:
        """Release, close, drop the manager; make another."""
        self.play.take(step)

    @precondition(_enabled("fault"))
    @rule(step=_step("fault"))
    def fault(self, step: Step) -> None:
        """Break a call, or lose the device."""
        self.play.take(step)

    @rule(step=_illegal())
    def illegal(self, step: Step) -> None:
        """Try what must be refused."""
        self.play.take(step)

    def teardown(self) -> None:
        """Live mode, unless a step has failed already."""
        try:
            if hasattr(self, "play") and not self.play.broken:
                self.play.finish()
        finally:
            if hasattr(self, "play"):
                del self.play
            gc.collect()  # what is left of this example; what was there before it is frozen until the next line
            self._steady.close()
