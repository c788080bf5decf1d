"""Leases of the low-level door, and outputs that are lent: taken, replayed, read, given back, dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from cgstate.errors import OutputExpired
from cgstate.lifecycle.states import ComponentEvent, EntryEvent, EntryState, ManagerState
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.nesting import Nesting
from cgstate.testing.stateful.play import MOST_HELD, Held, Play
from cgstate.testing.stateful.step import Event, Step
from cgstate.testing.stateful.subject import difference, values

__all__ = ["Drop", "GiveBack", "Read", "Replay", "ReplayLeased", "Take"]


def _entries(play: Play) -> list[str]:
    """Names of the entries that there are, in an order that does not depend on the run."""
    return sorted(view.name for view in play.world.entries if not view.name.endswith("while profiling"))


@dataclass(frozen=True, repr=False)
class Take(Step):
    """Take a lease, in one of two threads."""

    entry: str
    thread: int = 1

    weight: ClassVar[int] = 12
    brings: ClassVar[frozenset[Event]] = frozenset({EntryEvent.acquire, ComponentEvent.first_lease})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every entry."""
        if len(play.held) < MOST_HELD and play.manager is not None:
            for name in _entries(play):
                yield cls(name, 1)
                yield cls(name, 2)

    def legal(self, play: Play) -> bool:
        """Of an entry that is bound, unmarked and current, of a manager that serves, with its memory there."""
        return play.model.gives_lease(self.entry)

    def run(self, play: Play) -> None:
        """Enter the lease."""
        lease = play.entry(self.entry).lease()
        with play.sync.as_thread(self.thread):
            lease.__enter__()
        play.held.append(Held(self.entry, self.thread, lease=lease))
        play.model.lease(self.entry)


@dataclass(frozen=True, repr=False)
class Replay(Step):
    """Replay an entry through the hot path; with values where it was captured by hand."""

    entry: str
    sample: int = 0
    thread: int = 1

    weight: ClassVar[int] = 20
    brings: ClassVar[frozenset[Event]] = frozenset({EntryEvent.acquire, EntryEvent.release, EntryEvent.replay_fail})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every entry; one captured by hand with every sample that fits."""
        if play.manager is None:
            return
        for name in _entries(play):
            made = play.handmade.get(name)
            if made is None:
                yield cls(name)
            else:
                yield from (cls(name, sample) for sample in play.hand_samples(made.descriptor))

    def legal(self, play: Play) -> bool:
        """As a lease, with what is pinned in its place."""
        return play.model.replays(self.entry)

    def run(self, play: Play) -> None:
        """Write the inputs, replay, and compare the output if it can be told what it must be."""
        entry, made, nesting = play.entry(self.entry), play.handmade.get(self.entry), Nesting(play, self.entry)
        with play.sync.as_thread(self.thread):
            if made is None or not play.model.replays(self.entry):
                entry.replay()
            else:
                subject = play.hand_subject
                args, right = subject.samples[self.sample], play.eager(subject, self.sample)
                with play.calm():
                    play.hand_routine.copy_runtime_inputs(made.descriptor, made.buffers, *args)
                before = 0 if made.breaks is None else made.breaks.total()
                with entry.lease() as lease:
                    lease.replay()
                    if made.breaks is not None and (times := made.breaks.total() - before) != 1:
                        raise Violated(f"the eager break of {self.entry} ran {times} times in one replay")
                    with play.calm():
                        output = play.hand_routine.output_after_replay(made.descriptor, made.buffers, lease.output, *args)
                    apart = difference(values(output), right)
                play.tally["compared"] += 1
                if not apart <= subject.tolerance:
                    raise Violated(f"{self.entry} differs from eager by {apart}")
        nesting.judge()
        play.replayed(self.entry)


@dataclass(frozen=True, repr=False)
class _OfHeld(Step):
    """Something done with what is held."""

    number: int = 0

    def held(self, play: Play) -> Held:
        """What it is done with."""
        return play.held[self.number]


@dataclass(frozen=True, repr=False)
class ReplayLeased(_OfHeld):
    """Replay under a lease that is held."""

    weight: ClassVar[int] = 6
    brings: ClassVar[frozenset[Event]] = frozenset({EntryEvent.replay_fail})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every lease."""
        return (cls(number) for number, held in enumerate(play.held) if held.lease is not None)

    def legal(self, play: Play) -> bool:
        """While the entry is not retiring or failed, what is pinned in its place, and the device not lost."""
        model, name = play.model, self.held(play).name
        note = model.entries[name]
        replays = note.state is EntryState.REPLAYING and not note.marked and name not in model.moved
        return replays and model.manager is not ManagerState.POISONED

    def run(self, play: Play) -> None:
        """Replay."""
        held = self.held(play)
        assert held.lease is not None
        nesting = Nesting(play, held.name)
        with play.sync.as_thread(held.thread):
            try:
                held.lease.replay()
            except BaseException:
                if not held.lease.thread:
                    play.held.remove(held)
                raise
        nesting.judge()
        play.replayed(held.name, held)
        held.latest = True


@dataclass(frozen=True, repr=False)
class Read(_OfHeld):
    """Read the output of something held: it is there until its pool replays again, and then it says so."""

    weight: ClassVar[int] = 6

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Everything held."""
        return (cls(number) for number in range(len(play.held)))

    def run(self, play: Play) -> None:
        """Read."""
        held = self.held(play)
        unknown = held.latest is None
        there = held.latest and not play.model.entries[held.name].retiring
        try:
            with play.on(held.stream):
                output = held.output.value if held.output is not None else held.lease.output if held.lease is not None else None
                found = values(output)
        except OutputExpired:
            if there:
                raise Violated(f"the output of {held.name} expired before its pool replayed again") from None
            return
        if not there and not unknown:
            raise Violated(f"the output of {held.name} could be read after it had expired")
        if held.output is None or not there:
            return
        play.tally["compared"] += 1
        if not (apart := difference(found, held.expected)) <= 0.0:
            raise Violated(f"the output of {held.name} has changed by {apart} before it expired")


@dataclass(frozen=True, repr=False)
class GiveBack(_OfHeld):
    """End what is held."""

    weight: ClassVar[int] = 8
    brings: ClassVar[frozenset[Event]] = frozenset(
        {EntryEvent.release, ComponentEvent.last_release, ComponentEvent.last_retired, EntryEvent.reclaim}
    )

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Everything held."""
        return (cls(number) for number in range(len(play.held)))

    def run(self, play: Play) -> None:
        """Release; once it is gone, releasing again does nothing."""
        held = play.held.pop(self.number)
        with play.sync.as_thread(held.thread):
            if held.output is not None:
                held.output.release()
                held.output.release()
            elif held.lease is not None:
                held.lease.__exit__(None, None, None)
                held.lease.__exit__(None, None, None)
        play.model.release(held.name)


@dataclass(frozen=True, repr=False)
class Drop(_OfHeld):
    """Forget a lent output without releasing it: whoever comes next ends its lease."""

    weight: ClassVar[int] = 3
    brings: ClassVar[frozenset[Event]] = frozenset({EntryEvent.release})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every output."""
        return (cls(number) for number, held in enumerate(play.held) if held.output is not None)

    def run(self, play: Play) -> None:
        """Drop it, and let somebody come."""
        held = play.held.pop(self.number)
        name = held.name
        del held
        gc.collect()  # the frames of a failure that went by may hold it, and be as old as the fault that was planned for it
        if play.books.gate.dropped:
            play.books.settle()
        play.model.release(name)
