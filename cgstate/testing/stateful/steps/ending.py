"""How a manager ends, and what comes after it."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from cgstate.lifecycle.states import ComponentEvent, EntryEvent, EntryState, ManagerEvent, ManagerState, PoolEvent
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import Play
from cgstate.testing.stateful.step import Event, Step
from cgstate.testing.stateful.steps.illegal import attempt_all

__all__ = ["Close", "DropManager", "Release", "Renew"]

ENDS = frozenset(
    {
        EntryEvent.evict,
        EntryEvent.reclaim,
        EntryEvent.forget,
        ComponentEvent.forget,
        ComponentEvent.last_retired,
        PoolEvent.retire,
        PoolEvent.destroyed,
        PoolEvent.reclaimed,
        ManagerEvent.drain,
        ManagerEvent.undrain,
    }
)


def retire_everything(play: Play) -> None:
    """Tell the model that nothing is bound any more."""
    for note in play.model.entries.values():
        if note.state is EntryState.BOUND:
            note.state = EntryState.EVICTED
    play.model.suspect = False


@dataclass(frozen=True, repr=False)
class Release(Step):
    """Give every graph and all bytes back; the manager can capture again."""

    weight: ClassVar[int] = 2
    brings: ClassVar[frozenset[Event]] = ENDS | {ManagerEvent.release}

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Whenever there is a manager."""
        return (cls(),) if play.manager is not None else ()

    def legal(self, play: Play) -> bool:
        """Of a manager that serves, while nobody holds a lease."""
        return play.model.manager is ManagerState.SERVING and not play.model.leases() and play.transaction is None

    def run(self, play: Play) -> None:
        """Release; nothing is held afterwards, unless something failed on the way: then it is returned later."""
        gc.collect()
        manager, armed = play.of_manager(), play.pending_faults
        with play.sync.while_waiting(lambda: attempt_all(play)):
            manager.release(timeout=0.1)
        retire_everything(play)
        play.model.manager = ManagerState.PREPARED
        excused = play.engine or play.stingy or play.lost or play.pending_faults < armed
        if (left := manager.memory().total) and not excused:
            raise Violated(f"{left} bytes are held after everything was released")


@dataclass(frozen=True, repr=False)
class Close(Step):
    """Release for good."""

    weight: ClassVar[int] = 1
    brings: ClassVar[frozenset[Event]] = ENDS | {ManagerEvent.close}

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Until it is closed."""
        return (cls(),) if play.manager is not None and play.model.manager is not ManagerState.CLOSED else ()

    def legal(self, play: Play) -> bool:
        """While nobody holds a lease, and no operation is open."""
        return not play.model.leases() and play.transaction is None

    def run(self, play: Play) -> None:
        """Close, twice."""
        gc.collect()
        manager = play.of_manager()
        with play.sync.while_waiting(lambda: attempt_all(play)):
            manager.close(timeout=0.1)
        manager.close()
        retire_everything(play)
        play.model.manager = ManagerState.CLOSED


@dataclass(frozen=True, repr=False)
class DropManager(Step):
    """Forget the manager without closing it: its components are eager, and what it held goes by itself."""

    weight: ClassVar[int] = 1
    brings: ClassVar[frozenset[Event]] = ENDS | {ManagerEvent.close}

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Outside of transactions."""
        return (cls(),) if play.manager is not None and play.transaction is None else ()

    def run(self, play: Play) -> None:
        """Drop it, with everything that holds it."""
        gc.collect()
        play.manager = None
        gc.collect()
        play.model.adopt(play.look())


@dataclass(frozen=True, repr=False)
class Renew(Step):
    """Make another manager, with fresh components; on another device, if the last one was lost."""

    weight: ClassVar[int] = 12
    renews: ClassVar[bool] = True

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """After the end of the last one."""
        gone = play.manager is None or play.model.manager is ManagerState.CLOSED
        return (cls(),) if gone and not play.held and play.transaction is None else ()

    def run(self, play: Play) -> None:
        """See that nothing of the last one is left, and begin anew."""
        play.see_end()
        play.count_manager()
        play.renew()
