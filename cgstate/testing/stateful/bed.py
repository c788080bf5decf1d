"""The test bed: which device and which components a run plays with. Users override what is theirs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from cgstate.backends.base import Backend
from cgstate.testing.stateful.setup import DEFAULT, Setup
from cgstate.testing.stateful.subject import Subject

if TYPE_CHECKING:
    from cgstate.lifecycle.world import World
    from cgstate.testing.stateful.step import Step

__all__ = ["Bed", "Capabilities", "EnginePool"]


@dataclass(frozen=True)
class Capabilities:
    """What a device, or a model, can be asked for; rules that need what is switched off are not drawn.

    Attributes:
        faults: The backend has an injector as `cgstate.backends.sim.faults.Faults`, at its attribute ``faults``.
        clock: `Bed.advance` moves the device; else it moves by itself.
        loss: `Bed.lose` loses the device's context, and `Bed.make_backend` makes another.
        streams: Calls may come on a second stream.
        by_hand: Graphs are also captured through the low-level door, from the first component's routine.
        profile: Memory may be profiled.
        segments: What is captured by hand may be recorded in segments, with an eager break between them.
        pins: It may have tensors pinned: the first argument of the first component's first sample is one.
        foreign: Components may be put into a pool of the host engine's.
        nested: Components may be declared inside others: those of the default model, and what is captured by hand.
        dependencies: `Bed.take_away` and `Bed.bring_back` do what they say for every dependency that a component names; one at
            least does.
    """

    faults: bool = False
    clock: bool = False
    loss: bool = False
    streams: bool = True
    by_hand: bool = True
    profile: bool = True
    segments: bool = True
    pins: bool = True
    foreign: bool = True
    nested: bool = True
    dependencies: bool = False


@dataclass(frozen=True)
class EnginePool:
    """A memory pool of the host engine's.

    Attributes:
        id: As the device's allocator knows it.
        given: What a manager is given.
        drop: Lets the engine keep it open no longer.
    """

    id: Hashable
    given: object
    drop: Callable[[], None]


class Bed:
    """A simulated device, and two components of two graphs each that share weights.

    Override `make_backend` for a device of yours, `make_components` for routines of yours; then say in ``can`` what they can do.

    Attributes:
        can: What may be drawn.
        setup: How this run is set up; there before `make_backend` is called.
        backend: The present device; there before `make_components` is called.
    """

    can: ClassVar[Capabilities] = Capabilities(faults=True, clock=True, loss=True, dependencies=True)

    setup: Setup = DEFAULT
    backend: Backend

    def make_backend(self) -> Backend:
        """A device for one run, or for what follows after the last one was lost."""
        from cgstate.backends.sim import Drawn, SimBackend, SimConfig, SimDevice

        return SimBackend(SimDevice(SimConfig(workspace_bytes=1024), Drawn(Random(self.setup.seed))))

    def make_components(self) -> Sequence[Subject]:
        """Fresh components for one manager; nothing of them is shared but their memory on the device."""
        from cgstate.testing.stateful.simulated import SimModel

        self.model: Any = SimModel(self.backend)
        subjects: list[Subject] = self.model.subjects(self.setup)
        return subjects

    @classmethod
    def held_bytes(cls) -> int:
        """Bytes that are in use on the device that all runs share, with nothing left to give back; 0 where each has its own."""
        return 0

    def make_engine(self) -> EnginePool:
        """A pool of the host engine's on the present device, kept open by the engine until it is dropped."""
        pool = self.backend.new_pool()
        return EnginePool(pool.id, pool.id, pool.drop)

    def advance(self, steps: int) -> None:
        """Let the device do ``steps`` pieces of work."""
        device = self._simulated()
        for _ in range(steps):
            device.step()

    def lose(self) -> None:
        """Lose the device's context (fact F7)."""
        self._simulated().lose()

    def take_away(self, dependency: str) -> None:
        """Overwrite memory behind a dependency that is suspended now."""
        self.model.take_away(dependency)

    def bring_back(self, dependency: str, *, elsewhere: bool) -> None:
        """Put the content back: in its place, or other content in another place."""
        self.model.bring_back(dependency, elsewhere=elsewhere)

    def on_step(self, step: Step, before: World, after: World) -> None:
        """Called after each step that was checked: for checks of your own."""

    def _simulated(self) -> Any:
        return self.backend.sim  # type: ignore[attr-defined]  # `make_backend` was not overridden, or `can` says too much
