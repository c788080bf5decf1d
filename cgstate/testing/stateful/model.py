"""The plain reference: what states entries have, by the words of the documentation alone, in plain dictionaries.

It knows no table and no code of the runtime. Steps tell it what they did (`Model.bind`, `Model.evict`, ...), and after each step
what the runtime's books show must be what it says (`Model.disagreements`). It does not know when the device finishes, nor how many
bytes anything takes: where the outcome depends on these, steps ask the books, and what they find must be one of those allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cgstate.lifecycle.states import EntryState, ManagerState
from cgstate.lifecycle.world import EntryView, World

__all__ = ["Model", "Note"]

E, M = EntryState, ManagerState
BOUND = (E.BOUND, E.REPLAYING)


@dataclass(slots=True)
class Note:
    """What is known of one entry.

    Attributes:
        component: Its component.
        domain: Its domain.
        state: Its state.
        before: The state that giving a capture up returns to.
        leases: Leases held on it.
        retiring: Evicted while leased.
        failed: A launch failed while others leased it.
    """

    component: str
    domain: str
    state: EntryState = E.EAGER
    before: EntryState = E.EAGER
    leases: int = 0
    retiring: bool = False
    failed: bool = False

    @property
    def bound(self) -> bool:
        """Whether it has a graph that calls may use."""
        return self.state in BOUND

    @property
    def marked(self) -> bool:
        """Whether it gives no lease any more."""
        return self.retiring or self.failed


class Model:
    """One manager.

    Attributes:
        manager: Its state.
        served: Whether the open transaction began while the manager was serving.
        entries: By name.
        needs: By component, the dependencies it has.
        inside: By component, the one in whose eager breaks its graphs replay: they stand and fall with the graphs of that one.
        suspended: Dependencies that are not there now.
        moved: Entries for which a pinned tensor does not lie where it was captured.
        concurrent: Whether one entry may be leased twice, by component.
        suspect: Whether some failure may be remembered, so that attempts may be refused.
        budget: Whether bytes are limited.
    """

    def __init__(self) -> None:
        self.manager = M.NEW
        self.served = False
        self.entries: dict[str, Note] = {}
        self.needs: dict[str, frozenset[str]] = {}
        self.inside: dict[str, str] = {}
        self.concurrent: dict[str, bool] = {}
        self.suspended: set[str] = set()
        self.moved: set[str] = set()
        self.suspect = False
        self.budget = False

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the manager takes orders."""
        return self.manager not in (M.CLOSED, M.POISONED)

    @property
    def serving(self) -> bool:
        """Whether entries may be leased."""
        return self.manager is M.SERVING or (self.manager is M.CAPTURING and self.served)

    def resident(self, component: str) -> bool:
        """Whether all that a component needs is there."""
        return self.suspended.isdisjoint(self.needs.get(component, ()))

    def leases(self, component: str | None = None) -> int:
        """Leases held, on a component's entries or on all."""
        return sum(note.leases for note in self.entries.values() if component in (None, note.component))

    def gives_lease(self, name: str) -> bool:
        """Whether an entry would give one more lease."""
        note = self.entries.get(name)
        if note is None or note.state not in BOUND or note.marked or not self.serving or not self.resident(note.component):
            return False
        return not note.leases or self.concurrent.get(note.component, True)

    def replays(self, name: str) -> bool:
        """Whether an entry would give one more lease, and that would replay."""
        return name not in self.moved and self.gives_lease(name)

    def available(self, component: str) -> frozenset[str]:
        """Names of a component's entries that are bound and not on their way out."""
        notes = self.entries.items()
        return frozenset(name for name, note in notes if note.component == component and note.state in BOUND and not note.marked)

    # -- being told ---------------------------------------------------------------------------------------------------

    def bind(self, names: Iterable[str]) -> None:
        """Entries were captured, and bound."""
        for name in names:
            note = self.entries[name]
            note.state, note.retiring, note.failed = E.BOUND, False, False

    def record(self, name: str) -> None:
        """An entry was recorded in an open transaction."""
        note = self.entries[name]
        note.state, note.before, note.retiring, note.failed = E.CAPTURING, note.state, False, False

    def lease(self, name: str) -> None:
        """An entry was leased."""
        note = self.entries[name]
        note.state = E.REPLAYING
        note.leases += 1

    def release(self, name: str) -> None:
        """A lease ended."""
        note = self.entries[name]
        note.leases -= 1
        if not note.leases:
            note.state = E.FAILED if note.failed else E.EVICTED if note.retiring else E.BOUND

    def evict(self, domains: Iterable[str]) -> int:
        """Domains were evicted; how many entries that concerns."""
        gone = set(domains)
        retired = 0
        for note in self.entries.values():
            if note.domain in gone and note.state in BOUND and not note.retiring:
                retired += 1
                if note.state is E.BOUND:
                    note.state = E.EVICTED
                else:
                    note.retiring = True
        return retired

    def domains(self, component: str, name: str | None = None) -> frozenset[str]:
        """The domains of a component's entries, or of one; not those of stand-ins that a profile which was cut short has left."""
        mine = {each: note for each, note in self.entries.items() if note.component == component}
        return frozenset(
            note.domain for each, note in mine.items() if name in (None, each) and not each.endswith("while profiling")
        )

    def dependents(self, dependency: str) -> frozenset[str]:
        """The domains of the components that need something."""
        users = {component for component, needs in self.needs.items() if dependency in needs}
        return frozenset(note.domain for note in self.entries.values() if note.component in users)

    def end_transaction(self, *, bound: bool) -> None:
        """The open transaction has bound everything, or given it up."""
        for name, note in self.entries.items():
            if note.state is E.CAPTURING:
                if bound:
                    self.bind([name])
                else:
                    note.state = note.before
        self.manager = M.SERVING if bound or self.served else M.PREPARED

    # -- comparing ----------------------------------------------------------------------------------------------------

    def meet(self, world: World) -> None:
        """Note entries that were named for the first time, and forget those that are gone."""
        seen = {view.name for view in world.entries}
        for view in world.entries:
            if view.name not in self.entries:
                self.entries[view.name] = Note(view.component, view.domain)
        for name in self.entries.keys() - seen:
            if self.entries[name].state in (E.EVICTED, E.FAILED, E.EAGER):
                del self.entries[name]

    def adopt(self, world: World) -> None:
        """Believe the books: what a step did could not be told beforehand."""
        self.manager = world.manager.state
        self.suspect = True
        self.entries = {
            view.name: Note(view.component, view.domain, view.state, view.before, view.leases, view.retiring, view.failed)
            for view in world.entries
        }

    def disagreements(self, world: World) -> Iterator[str]:
        """In what the books and the model differ."""
        if world.manager.state is not self.manager:
            yield f"the manager is {world.manager.state}, and should be {self.manager}"
        if world.manager.serving != self.serving:
            yield f"whether the manager serves is {world.manager.serving}, and should be {self.serving}"
        views = {view.name: view for view in world.entries}
        for name, note in self.entries.items():
            view = views.get(name)
            if view is None:
                yield f"{name} is gone, and should be {note.state}"
            elif view.state is not note.state and not _forgotten(note, view):
                yield f"{name} is {view.state}, and should be {note.state}"
            elif note.leases != view.leases:
                yield f"{name} has {view.leases} leases, and should have {note.leases}"
            elif view.state is E.REPLAYING and (view.retiring, view.failed) != (note.retiring, note.failed):
                yield f"{name} is marked (retiring, failed) {view.retiring, view.failed}, not {note.retiring, note.failed}"
            elif view.state is not note.state:
                note.state = view.state
        for inner, outer in self.inside.items():
            if len(apart := self.domains(inner) | self.domains(outer)) > 1:
                yield f"{inner} is inside {outer}, and they are kept apart: {', '.join(sorted(apart))}"
        for component in world.components:
            if component.resident != self.resident(component.name):
                yield f"{component.name} is {'' if component.resident else 'not '}resident, and should be otherwise"


def _forgotten(note: Note, view: EntryView) -> bool:
    """Whether a retired entry has only been forgotten since: nothing was left of it."""
    return view.state is E.EAGER and note.state in (E.EVICTED, E.FAILED) and not view.unreclaimed
