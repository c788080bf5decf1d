"""Memory: graphs are evicted, what they depend on moves or goes, bytes are limited and given back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from cgstate.lifecycle.states import ComponentEvent, EntryEvent, PoolEvent
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.step import Event, Step
from cgstate.testing.stateful.steps.illegal import attempt_all

__all__ = ["Evict", "ForgetFailures", "Invalidate", "MovePinned", "Mutate", "Reclaim", "Resume", "SetBudget", "Suspend"]

RETIRES = frozenset({EntryEvent.evict, ComponentEvent.last_retired, PoolEvent.retire})
RECLAIMS = frozenset({EntryEvent.reclaim, EntryEvent.forget, PoolEvent.destroyed, PoolEvent.reclaimed})


def takes_orders(play: Play) -> bool:
    """Whether the manager is open and no transaction is."""
    return play.model.open and play.transaction is None


@dataclass(frozen=True, repr=False)
class Evict(Step):
    """Retire the domain of one entry, or all of a component."""

    component: str
    entry: str = ""

    weight: ClassVar[int] = 5
    brings: ClassVar[frozenset[Event]] = RETIRES | RECLAIMS

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every component, and every entry."""
        if play.manager is not None:
            for view in play.world.components:
                yield cls(view.name)
            for entry in play.world.entries:
                yield cls(entry.component, entry.name)

    def legal(self, play: Play) -> bool:
        """Of a manager that takes orders."""
        return takes_orders(play)

    def run(self, play: Play) -> None:
        """Evict; as many entries retire as are in the domains."""
        descriptor = play.entry(self.entry).descriptor if self.entry else None
        found = play.of_manager().evict(self.component, descriptor)
        right = play.model.evict(play.model.domains(self.component, self.entry or None))
        if found != right:
            raise Violated(f"{found} entries were retired, and should have been {right}")


@dataclass(frozen=True, repr=False)
class _OfDependency(Step):
    """Something done with what components depend on."""

    name: str

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every dependency."""
        if play.manager is None or not play.prepared or not play.bed.can.dependencies:
            return ()
        return [cls(name) for name in play.dependencies]

    def retired(self, play: Play, found: int) -> None:
        """The memory has moved, and so have epochs: so many graphs that knew the old place were retired."""
        right = play.model.evict(play.model.dependents(self.name))
        if found != right:
            raise Violated(f"{found} entries were retired, and should have been {right}")
        for view in play.world.components:
            if view.name in play.books.dependencies[self.name].components and play.books.components[view.name].epoch == view.epoch:
                raise Violated(f"the epoch of {view.name} stands still while its memory moves")

    def moved(self, play: Play) -> None:
        """Answers are other ones from now on."""
        play.versions[self.name] = play.versions.get(self.name, 0) + 1


@dataclass(frozen=True, repr=False)
class Invalidate(_OfDependency):
    """Say that memory moves, and then move it."""

    weight: ClassVar[int] = 2
    brings: ClassVar[frozenset[Event]] = RETIRES | RECLAIMS

    def legal(self, play: Play) -> bool:
        """Of a manager that takes orders."""
        return takes_orders(play)

    def run(self, play: Play) -> None:
        """Invalidate, wait for what is in flight, and move."""
        found = play.of_manager().invalidate(self.name)
        if self.name not in play.model.suspended:
            play.idle()
            with play.calm():
                play.bed.bring_back(self.name, elsewhere=True)
            self.moved(play)
        self.retired(play, found)


@dataclass(frozen=True, repr=False)
class Suspend(_OfDependency):
    """Take memory away for a while; the manager says when nothing uses it any more."""

    weight: ClassVar[int] = 2

    def legal(self, play: Play) -> bool:
        """Of memory that is there, while nobody leases what depends on it."""
        model = play.model
        leased = any(self.name in needs and model.leases(component) for component, needs in model.needs.items())
        return takes_orders(play) and self.name not in model.suspended and not leased

    def run(self, play: Play) -> None:
        """Suspend, and overwrite at once."""
        with play.sync.while_waiting(lambda: attempt_all(play)):
            play.of_manager().suspend(self.name, timeout=0.1)
        play.model.suspended.add(self.name)
        with play.calm():
            play.bed.take_away(self.name)
        self.moved(play)


@dataclass(frozen=True, repr=False)
class Resume(_OfDependency):
    """Bring memory back, in its place or elsewhere."""

    elsewhere: bool = False

    weight: ClassVar[int] = 6
    brings: ClassVar[frozenset[Event]] = RETIRES

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every dependency, both ways."""
        for step in super().candidates(play):
            assert isinstance(step, Resume)
            yield step
            yield cls(step.name, True)

    def legal(self, play: Play) -> bool:
        """Of memory that is away."""
        return takes_orders(play) and self.name in play.model.suspended

    def run(self, play: Play) -> None:
        """Resume; the content comes back while it is still suspended."""

        def restore() -> None:
            with play.calm():
                play.bed.bring_back(self.name, elsewhere=self.elsewhere)
            self.moved(play)

        found = play.of_manager().resume(self.name, restore=restore, moved=self.elsewhere)
        play.model.suspended.discard(self.name)
        if self.elsewhere:
            self.retired(play, found)
        elif found:
            raise Violated(f"{found} entries were retired, and nothing had moved")


@dataclass(frozen=True, repr=False)
class Mutate(_OfDependency):
    """Let memory move inside a block."""

    weight: ClassVar[int] = 2
    brings: ClassVar[frozenset[Event]] = RETIRES | RECLAIMS

    def legal(self, play: Play) -> bool:
        """As `Suspend`."""
        return Suspend(self.name).legal(play)

    def run(self, play: Play) -> None:
        """Move it inside the block."""
        with play.of_manager().mutating(self.name, timeout=0) as found:
            with play.calm():
                play.bed.bring_back(self.name, elsewhere=True)
            self.moved(play)
        self.retired(play, found)


@dataclass(frozen=True, repr=False)
class Reclaim(Step):
    """Destroy what is retired and done with, and perhaps give bytes back."""

    flush: bool = False

    weight: ClassVar[int] = 4
    brings: ClassVar[frozenset[Event]] = RECLAIMS

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Both ways."""
        return (cls(False), cls(True)) if play.manager is not None else ()

    def legal(self, play: Play) -> bool:
        """While the manager is open."""
        return play.model.open

    def run(self, play: Play) -> None:
        """Reclaim; what the report adds up is what the ledger says."""
        report = play.of_manager().reclaim(flush=self.flush)
        if report.total < 0:
            raise Violated(f"{report.total} bytes are held")


@dataclass(frozen=True, repr=False)
class SetBudget(Step):
    """Limit the bytes to a share of what is held, or lift the limit."""

    percent: int = 0

    weight: ClassVar[int] = 2
    brings: ClassVar[frozenset[Event]] = RETIRES | RECLAIMS

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """None, less than is held, a little more, twice as much."""
        return [cls(percent) for percent in (0, 60, 105, 200)] if play.manager is not None and play.prepared else ()

    def legal(self, play: Play) -> bool:
        """Of a manager that takes orders."""
        return takes_orders(play)

    def run(self, play: Play) -> None:
        """Set it; only lazy graphs that stand alone may go."""
        manager = play.of_manager()
        held = manager.memory().total if play.model.open else 0
        manager.set_budget(max(1, held * self.percent // 100) if self.percent else None)
        play.model.budget = bool(self.percent)
        play.accept_victims()


@dataclass(frozen=True, repr=False)
class ForgetFailures(Step):
    """Let everything that failed be tried again."""

    weight: ClassVar[int] = 3

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Whenever there is a manager."""
        return (cls(),) if play.manager is not None else ()

    def legal(self, play: Play) -> bool:
        """While the manager is open."""
        return play.model.open

    def run(self, play: Play) -> None:
        """Forget."""
        play.of_manager().forget_failures()
        play.model.suspect = False


@dataclass(frozen=True, repr=False)
class MovePinned(Step):
    """Put another tensor in the place of a pinned one, or that one back: only the graph that has it pinned minds."""

    entry: str

    weight: ClassVar[int] = 10

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every graph that has one."""
        return [cls(name) for name, made in play.handmade.items() if made.pinned is not None and name in play.model.entries]

    def run(self, play: Play) -> None:
        """Move it."""
        pinned = play.handmade[self.entry].pinned
        assert pinned is not None
        if self.entry in play.model.moved:
            pinned.now = pinned.there
            play.model.moved.discard(self.entry)
        else:
            with play.calm():
                pinned.now = play.backend.clone(pinned.there)
            play.model.moved.add(self.entry)
