"""Profiles: they measure what captures will take, and leave nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from cgstate.errors import CaptureFailed
from cgstate.lifecycle.observations import Profile
from cgstate.lifecycle.states import EntryEvent, EntryState, ManagerEvent, ManagerState, PoolEvent
from cgstate.runtime.memory import MemoryEstimate
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import HAND, Play
from cgstate.testing.stateful.step import Event, Step
from cgstate.testing.stateful.steps.capturing import ACTS, CAPTURES, FAILING, Meanwhile
from cgstate.testing.stateful.steps.illegal import attempt_all

__all__ = ["ProfileByHand", "ProfileMemory"]

PROFILES = CAPTURES | {
    EntryEvent.abort,
    EntryEvent.capture_fail,
    EntryEvent.reclaim,
    EntryEvent.forget,
    ManagerEvent.profile_begin,
    ManagerEvent.profile_end,
    PoolEvent.fail,
    PoolEvent.retire,
    PoolEvent.destroyed,
    PoolEvent.reclaimed,
}


@dataclass(frozen=True, repr=False)
class ProfileMemory(Step):
    """Estimate what everything will take; nothing of it is left."""

    weight: ClassVar[int] = 2
    captures: ClassVar[bool] = True
    brings: ClassVar[frozenset[Event]] = PROFILES

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Whenever there is a manager."""
        return (cls(),) if play.bed.can.profile and play.manager is not None and play.prepared else ()

    def legal(self, play: Play) -> bool | None:
        """Of a manager that was prepared and does not serve."""
        if play.model.manager is not ManagerState.PREPARED or play.transaction is not None:
            return False
        return None if play.model.suspended or play.model.suspect or play.model.leases() else True

    def run(self, play: Play) -> None:
        """Profile between two readings of everything that must come back."""
        _leaves_nothing(play, play.of_manager().profile_memory)


@dataclass(frozen=True, repr=False)
class ProfileByHand(Step):
    """Capture one graph by hand inside of a profile; the entry that it stands in for stays as it is.

    Attributes:
        number: Which of the first component's descriptors.
        meanwhile: What else happens while the capture is open. Of ``attempt``, more when it is recorded.
    """

    number: int = 0
    meanwhile: Meanwhile = Meanwhile.nothing

    weight: ClassVar[int] = 3
    captures: ClassVar[bool] = True
    brings: ClassVar[frozenset[Event]] = PROFILES

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Two descriptors, and what needs nothing but the capture itself."""
        if play.bed.can.by_hand:
            for _ in ProfileMemory.candidates(play):
                for number in range(len(play.hand_descriptors)):
                    for meanwhile in (Meanwhile.nothing, Meanwhile.attempt, Meanwhile.fail, Meanwhile.read):
                        yield cls(number, meanwhile)

    def legal(self, play: Play) -> bool | None:
        """As `ProfileMemory`, without a limit of bytes that could refuse the capture."""
        return None if play.model.budget and ProfileMemory().legal(play) else ProfileMemory().legal(play)

    def run(self, play: Play) -> None:
        """Profile between two readings, as `ProfileMemory`."""
        _leaves_nothing(play, lambda: self._profile(play))

    def _profile(self, play: Play) -> MemoryEstimate:
        manager, descriptor = play.of_manager(), play.hand_descriptors[self.number]
        with manager.profile() as profile:
            entry = manager.entry(HAND, descriptor, dependencies=play.hand_subject.component.dependencies)
            with play.calm():
                buffers = play.hand_routine.allocate_buffers(descriptor)

            def make(warmup: bool) -> Callable[[], object]:
                def work() -> object:
                    with play.calm():
                        output = play.hand_routine.forward_for_capture(descriptor, buffers)
                    if not warmup:
                        ACTS[self.meanwhile](play, output)
                    return output

                return work

            try:
                with manager.transaction() as transaction:
                    transaction.capture(entry, make)
                    if self.meanwhile is Meanwhile.attempt:
                        attempt_all(play)
            except CaptureFailed:
                if self.meanwhile not in FAILING:
                    play.kept.append(buffers)  # what has failed may still run on the device
                    raise
            else:
                if self.meanwhile in FAILING:
                    raise Violated("the capture went well, and should have failed")
        return profile.estimate


def _leaves_nothing(play: Play, profile: Callable[[], MemoryEstimate]) -> None:
    """Profile between two readings of everything that must come back."""
    quiet = play.model.manager is ManagerState.PREPARED and not play.lost and play.transaction is None
    before, armed = _readings(play) if quiet else {}, play.pending_faults
    estimate = profile()
    after = _readings(play)
    if play.stingy and play.pending_faults < armed:  # what was to give bytes back has failed, and nobody does it again
        after |= {reading: before[reading] for reading in _BYTES & before.keys()}
    bound = tuple(entry.name for entry in play.books.entries() if entry.state is EntryState.BOUND)
    play.observe(Profile(before, after, bound))
    if not 0 <= estimate.lower <= estimate.upper:
        raise Violated(f"the estimate is from {estimate.lower} to {estimate.upper} bytes")


_BYTES = frozenset({"pools", "reserved", "allocated"})
"""Readings that tell of memory."""


def _readings(play: Play) -> dict[str, object]:
    gc.collect()
    with play.calm():
        play.backend.clear_workspaces()  # those of eager work; no graph is alive that could have baked one in
    footprint = play.footprint()
    homes = {home.pool.id for home in play.books.homes() if home.pool is not None}  # beside graphs of others they are used again
    homes |= {spare.handle.id for spare in play.books.gate.spares}
    kept = sum(size for key, size in footprint.pools.items() if key in homes)
    return {
        "stream": footprint.stream,
        "generator": footprint.generator,
        "capturing": footprint.capturing,
        "pools": {key: size for key, size in footprint.pools.items() if size and key not in homes},
        "reserved": footprint.reserved - kept,
        "allocated": footprint.allocated,
        "entries": sorted((entry.name, str(entry.state)) for entry in play.books.entries() if entry.state is not EntryState.EAGER),
    }
