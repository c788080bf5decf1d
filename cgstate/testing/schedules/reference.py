"""A small reference of one manager, one domain and its entries, which moves by the tables alone.

It knows the rows (`cgstate.lifecycle.tables`) and the interpreter (`cgstate.lifecycle.engine`), and of the runtime only which rows
an operation takes in which order. What an operation does under the lock in one go is one step here.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum

from cgstate.errors import IllegalTransition, ManagerClosed, NotResident
from cgstate.lifecycle import engine
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import (
    ComponentEvent,
    ComponentState,
    EntryEvent,
    EntryState,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolState,
)
from cgstate.lifecycle.table import Machine
from cgstate.lifecycle.tables import COMPONENT, ENTRY, MANAGER, POOL
from cgstate.testing.schedules.histories import OPEN, Operation

Name = str
State = frozenset[tuple[Name, Value]]
"""Every variable by its path, e.g. ``net[2].state``, ``manager.serving``."""
Step = tuple[State, int, Hashable]

LIVE = (EntryState.CAPTURING, EntryState.BOUND, EntryState.REPLAYING)
EVICTABLE = (EntryState.BOUND, EntryState.REPLAYING)


class Reference:
    """Entries of one component, in one domain, of a manager that serves. A `histories.Model`.

    Operations, with what they answer; a refusal answers with its name:

    | operation | answers |
    |---|---|
    | ``acquire E`` | ok |
    | ``launch E`` | ok, under a lease that did not turn bad meanwhile |
    | ``release E`` | ok |
    | ``replay E`` | ok: it takes a lease, launches unless that turned bad meanwhile, and gives it back |
    | ``call E`` | graph; eager, if at some moment there was no lease to be had |
    | ``evict``, ``invalidate`` | how many entries were retired |
    | ``capture E`` | ok: it begins, ends and binds |
    | ``suspend``, ``resume`` | ok; `suspend` refuses new leases first, and waits for the others to end |
    | ``close`` | ok; the same |

    Args:
        entries: Their names.
        bound: Those that are BOUND at the start.
    """

    def __init__(self, entries: Iterable[Name], *, bound: Iterable[Name]) -> None:
        world: dict[Name, Value] = {
            "gate.free": True,
            "component.held": 0,
            "component.capacity": sys.maxsize,
            "component.epoch": 0,
            "component.resident": True,
            "transaction.committing": False,
            "domain.capturing": 0,
        }
        for machine in (MANAGER, COMPONENT, POOL):
            world |= _first(machine, machine.name)
        world |= {"manager.state": ManagerState.SERVING, "manager.serving": True}
        for entry in entries:
            world |= _first(ENTRY, entry)
        self._entries = tuple(entries)
        self._start = frozenset(world.items())
        for entry in bound:
            for progress in range(4):
                [(self._start, _, _)] = self._capture(self._world(self._start), entry, progress)

    def start(self) -> State:
        """As `histories.Model.start`."""
        return self._start

    def steps(self, state: State, operation: Operation, progress: int) -> Iterable[Step]:
        """As `histories.Model.steps`."""
        world = self._world(state)
        match operation:
            case ("acquire", str(entry)):
                return [world.became(0, world.acquire(entry) or "ok")]
            case ("launch", str(entry)):
                return [world.became(0, IllegalTransition.__name__ if world.turned_bad(entry) else "ok")]
            case ("release", str(entry)):
                world.release(entry)
                return [world.became(0, "ok")]
            case ("replay", str(entry)):
                return [self._replay(world, entry, progress)]
            case ("call", str(entry)):
                return [self._call(world, entry, progress)]
            case ("evict",):
                return [world.became(0, world.evict())]
            case ("invalidate",):
                world.add("component.epoch", 1)
                return [world.became(0, world.evict())]
            case ("capture", str(entry)):
                return self._capture(world, entry, progress)
            case ("suspend",):
                return self._suspend(world, progress)
            case ("resume",):
                world["component.resident"] = True
                return [world.became(0, "ok")]
            case ("close",):
                return self._close(world, progress)
            case _:
                raise AssertionError(f"no operation of the reference: {operation}")

    def _world(self, state: State) -> _World:
        return _World(state, self._entries)

    @staticmethod
    def _replay(world: _World, entry: Name, progress: int) -> Step:
        match progress:
            case 0:
                refused = world.acquire(entry)
                return world.became(1, refused or OPEN)
            case 1:
                return world.became(3 if world.turned_bad(entry) else 2, OPEN)
            case _:
                world.release(entry)
                return world.became(progress, "ok" if progress == 2 else IllegalTransition.__name__)

    @staticmethod
    def _call(world: _World, entry: Name, progress: int) -> Step:
        match progress:
            case 0:
                return world.became(2 if world.acquire(entry) else 1, OPEN)
            case 1:
                world.release(entry)
                return world.became(1, "graph")
            case _:
                usable = world["component.resident"] or world["manager.state"] is ManagerState.CLOSED
                return world.became(2, "eager" if usable else NotResident.__name__)

    @staticmethod
    def _capture(world: _World, entry: Name, progress: int) -> list[Step]:
        match progress:
            case 0:
                refused = world.try_step(MANAGER, "manager", ManagerEvent.capture)
            case 1:
                if world["pool.state"] is PoolState.RETIRED:
                    world.update(_first(POOL, "pool"))
                refused = world.try_step(ENTRY, entry, EntryEvent.capture_begin, blocked=False)
                if refused:
                    world.step(MANAGER, "manager", ManagerEvent.fail)
                else:
                    world.step(POOL, "pool", PoolEvent.begin)
                    world.step(COMPONENT, "component", ComponentEvent.begin)
            case 2:
                world.step(ENTRY, entry, EntryEvent.capture_end)
                world.step(POOL, "pool", PoolEvent.end)
                refused = ""
            case _:
                world["transaction.committing"] = True
                refused = world.try_step(ENTRY, entry, EntryEvent.bind)
                world["transaction.committing"] = False
                if refused:
                    world.step(ENTRY, entry, EntryEvent.abort)
                    world.retire_pool()
                world.step(COMPONENT, "component", ComponentEvent.abort if refused else ComponentEvent.commit)
                world.step(MANAGER, "manager", ManagerEvent.fail if refused else ManagerEvent.commit)
                return [world.became(3, refused or "ok")]
        return [world.became(progress + 1, refused or OPEN)]

    @staticmethod
    def _suspend(world: _World, progress: int) -> list[Step]:
        if progress == 0:
            world["component.resident"] = False
            return [world.became(1, OPEN)]
        return [world.became(1, "ok")] if not world.leases else []

    @staticmethod
    def _close(world: _World, progress: int) -> list[Step]:
        if world["manager.state"] is ManagerState.CLOSED:
            return [world.became(0, "ok")]
        if progress == 0:
            refused = world.try_step(MANAGER, "manager", ManagerEvent.drain)
            return [] if refused else [world.became(1, OPEN)]  # refused: a capture is open, and has to end first
        if world.leases:
            return []
        world.evict()
        world.step(MANAGER, "manager", ManagerEvent.close, leases=0)
        return [world.became(1, "ok")]


def _first(machine: Machine, prefix: Name) -> dict[Name, Value]:
    return {f"{prefix}.{name}": value for name, value in engine.initial(machine).items()}


class _World(dict[Name, Value]):
    """A state that is being stepped."""

    def __init__(self, state: State, entries: Sequence[Name]) -> None:
        super().__init__(state)
        self._entries = entries

    def became(self, progress: int, result: Hashable) -> Step:
        """What `histories.Model.steps` returns for it."""
        return frozenset(self.items()), progress, result

    def add(self, name: Name, number: int) -> None:
        """Count a variable up."""
        before = self[name]
        assert isinstance(before, int)
        self[name] = before + number

    @property
    def leases(self) -> int:
        """Those held on all entries."""
        return sum(int(self[f"{entry}.leases"]) for entry in self._entries)

    def step(self, machine: Machine, prefix: Name, event: StrEnum, **parameters: Value) -> None:
        """Take the row of ``event``.

        Raises:
            IllegalTransition: there is none; nothing was changed.
        """
        names = ["state", *(name for name, _ in engine.initial(machine).items() if name != "state")]
        env: dict[str, Value] = {name: self[f"{prefix}.{name}"] for name in names}
        env |= {var.name: self._live() if var.name == "domain.live" else self[var.name] for var in machine.related}
        _, after = engine.step(machine, {**env, **parameters}, event, prefix)
        for name in names:
            self[f"{prefix}.{name}"] = after[name]
        for var in machine.related:
            if var.name != "domain.live":
                self[var.name] = after[var.name]

    def try_step(self, machine: Machine, prefix: Name, event: StrEnum, **parameters: Value) -> str:
        """`step`; the refusal's name if it is refused, else nothing."""
        try:
            self.step(machine, prefix, event, **parameters)
        except IllegalTransition as refusal:
            closed = self["manager.state"] is ManagerState.CLOSED
            return (ManagerClosed if closed else type(refusal)).__name__
        return ""

    def _live(self) -> int:
        return sum(self[f"{entry}.state"] in LIVE for entry in self._entries)

    def acquire(self, entry: Name) -> str:
        """Take a lease; the refusal's name if there is none to be had."""
        refused = self.try_step(ENTRY, entry, EntryEvent.acquire, stream_capturing=False)
        if not refused and self["component.state"] is ComponentState.BOUND:
            self.step(COMPONENT, "component", ComponentEvent.first_lease)
        return refused

    def turned_bad(self, entry: Name) -> bool:
        """Whether what leases on it launch is refused."""
        return bool(self[f"{entry}.retiring"] or self[f"{entry}.failed"])

    def release(self, entry: Name) -> None:
        """Give a lease back."""
        self.step(ENTRY, entry, EntryEvent.release)
        if self[f"{entry}.state"] is EntryState.EVICTED:
            self.retire_pool()
        if not self["component.leased"] and self["component.state"] is ComponentState.REPLAYING:
            self.step(COMPONENT, "component", ComponentEvent.last_release)

    def evict(self) -> int:
        """Retire the domain; how many entries that were."""
        retired = 0
        for entry in self._entries:
            if self[f"{entry}.state"] in EVICTABLE and not self.try_step(ENTRY, entry, EntryEvent.evict):
                retired += 1
        if retired and self["component.state"] is ComponentState.BOUND and not self["component.bound"]:
            self.step(COMPONENT, "component", ComponentEvent.last_retired)
        self.retire_pool()
        return retired

    def retire_pool(self) -> None:
        """Retire the pool if nothing is live in it."""
        self.try_step(POOL, "pool", PoolEvent.retire)
