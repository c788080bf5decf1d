"""Capturing: everything that is declared, single graphs by hand in a transaction, and profiles, which leave nothing."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum, auto
from functools import cache
from typing import ClassVar

from cgstate.backends.base import Footprint
from cgstate.breaks import Break as EagerBreak
from cgstate.errors import CaptureActive, CaptureFailed, IllegalTransition
from cgstate.lifecycle.observations import FailedCapture
from cgstate.lifecycle.states import (
    ComponentEvent,
    EntryEvent,
    EntryState,
    FailureKind,
    ManagerEvent,
    ManagerState,
    PoolEvent,
)
from cgstate.testing.stateful.bed import Capabilities
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.play import HAND, GivenUp, Handmade, Pinned, Play
from cgstate.testing.stateful.step import Event, Step
from cgstate.testing.stateful.steps.illegal import attempt_all
from cgstate.testing.stateful.subject import values

__all__ = ["ACTS", "CAPTURES", "Begin", "Capture", "CaptureAll", "Commit", "GiveUp", "How", "Meanwhile", "Prepare"]

ORDERS = (ManagerState.PREPARED, ManagerState.SERVING)
BLOCKED = "not blocked by an earlier failure"
"""The guard of a capture that is refused because of what is remembered."""
CAPTURES = frozenset({EntryEvent.capture_begin, EntryEvent.capture_end, PoolEvent.begin, PoolEvent.end})
FAILS = frozenset(
    {EntryEvent.capture_fail, EntryEvent.abort, PoolEvent.fail, ManagerEvent.fail, ComponentEvent.fail, ComponentEvent.abort}
)


@dataclass(frozen=True, repr=False)
class Prepare(Step):
    """Give the components to the manager."""

    weight: ClassVar[int] = 200
    brings: ClassVar[frozenset[Event]] = frozenset({ManagerEvent.prepare})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Once."""
        return (cls(),) if play.manager is not None else ()

    def legal(self, play: Play) -> bool:
        """Only of a new manager."""
        return play.model.manager is ManagerState.NEW

    def run(self, play: Play) -> None:
        """Prepare."""
        subjects = play.subjects.values()
        if play.model.manager is not ManagerState.NEW:
            play.of_manager().prepare([])
        play.of_manager().prepare(
            [subject.component for subject in subjects], {subject.name: dict(subject.config) for subject in subjects}
        )
        play.model.manager = ManagerState.PREPARED


@dataclass(frozen=True, repr=False)
class CaptureAll(Step):
    """Capture every declared graph that is not bound, and bind all of them, or none."""

    weight: ClassVar[int] = 4
    captures: ClassVar[bool] = True
    brings: ClassVar[frozenset[Event]] = (
        CAPTURES
        | FAILS
        | {
            EntryEvent.bind,
            EntryEvent.reclaim,
            ManagerEvent.capture,
            ManagerEvent.commit,
            ComponentEvent.begin,
            ComponentEvent.commit,
        }
    )

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Whenever there is a manager."""
        return (cls(),) if play.manager is not None and play.prepared else ()

    def legal(self, play: Play) -> bool | None:
        """Of a manager that was prepared, with all memory there and no other operation open."""
        model = play.model
        if model.manager not in ORDERS or play.transaction is not None:
            return False
        if model.suspended or model.leases() or model.budget or model.suspect:
            return None
        return not 0 < play.ranks.disagree <= 2 * len(_missing(play))  # asked before each capture, and again before binding

    def concerns(self, play: Play) -> frozenset[str]:
        """Everything that is declared, but for what only misses capture."""
        return frozenset(
            f"{name}[{descriptor!r}]"
            for name, record in play.books.components.items()
            if not record.pure_lazy
            for descriptor in record.startup_order
        )

    def run(self, play: Play) -> None:
        """Capture; after a failure all is as before, but for the entry that failed."""
        model = play.model
        watching = play.pending_faults > 0 and not play.lost and play.manager is not None and model.manager in ORDERS
        before = play.footprint() if watching else None
        try:
            report = play.of_manager().capture_and_bind(progress=False)
        except CaptureFailed as failure:
            model.suspect = True
            mended = failure.kind != FailureKind.DEVICE and not failure.cleanup and not play.stingy
            if before is not None and mended and not model.leases():
                _was_clean(play, f"{failure.component}[{failure.descriptor!r}]", before)
            raise
        except IllegalTransition as refusal:
            _is_for_good(play, refusal)
            raise
        finally:
            _made_room(play)
        model.meet(play.look())
        new = _missing(play)
        if sum(report.bound.values()) != len(new):
            raise Violated(f"{dict(report.bound)} were bound, and {sorted(new)} should have been")
        trusted = report.estimate is not None and report.estimate.trusted
        comparable = trusted and not (play.kept or play.engine or play.stingy)  # nothing else was ever recorded into the pools
        if comparable and report.comparison is not None and not report.comparison.within:
            raise Violated(f"the manager {report.comparison}")
        model.bind(new)
        model.manager = ManagerState.SERVING


def _made_room(play: Play) -> None:
    """An explicit capture evicts for the budget alone."""
    if play.model.budget:
        play.accept_victims(together=True)


def _is_for_good(play: Play, refusal: IllegalTransition) -> None:
    """Only what can never be captured is refused, when it is asked for by name, because it failed before."""
    if refusal.guard == BLOCKED:
        entry = play.entry(refusal.entity)
        failure = play.books.negative.get(entry.component.component_id, entry.descriptor)
        if failure is None or failure.kind not in (FailureKind.REJECTED, FailureKind.DEVICE):
            raise Violated(f"{refusal.entity} may not be tried again, though what failed was {failure}") from refusal


def _missing(play: Play) -> set[str]:
    """Declared entries that are not bound."""
    names = {
        f"{subject.name}[{descriptor!r}]"
        for subject in play.subjects.values()
        for descriptor in subject.component.descriptors
        if not play.books.components[subject.name].pure_lazy
    }
    bound = {name for name in names & play.model.entries.keys() if play.model.entries[name].bound}
    return names - bound


def _was_clean(play: Play, entry: str, before: Footprint) -> None:
    """A failed capture leaves stream, generator and bytes as they were; growth of pools that others live in is charged (I12).

    So is what captures before it in the transaction grew there. Bytes may have become fewer: what only waited to be given back has
    gone.
    """
    gc.collect()
    after = play.footprint()
    kept = {pool.id: pool.wasted for pool in play.books.pools}
    was: dict[str, object] = {"stream": before.stream, "generator": before.generator, "capturing": before.capturing}
    now: dict[str, object] = {"stream": after.stream, "generator": after.generator, "capturing": after.capturing}
    stranded: dict[str, int] = {}
    for key in before.pools.keys() | after.pools.keys():
        old = before.pools.get(key, 0)
        was[f"pool {key}"], now[f"pool {key}"] = old, max(old, after.pools.get(key, 0))
        growth = max(0, after.pools.get(key, 0) - old)
        if growth <= kept.get(key, 0):
            stranded[f"pool {key}"] = growth
    was["reserved"] = before.reserved
    now["reserved"] = max(before.reserved, after.reserved - sum(stranded.values()))
    play.observe(FailedCapture(entry, was, now, stranded))


# -- by hand ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Begin(Step):
    """Begin a transaction of single captures."""

    weight: ClassVar[int] = 10
    brings: ClassVar[frozenset[Event]] = frozenset({ManagerEvent.capture})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Whenever there is a manager."""
        return (cls(),) if play.bed.can.by_hand and play.manager is not None and play.prepared else ()

    def legal(self, play: Play) -> bool:
        """Of a manager that was prepared, with no other operation open."""
        return play.model.manager in ORDERS and play.transaction is None

    def run(self, play: Play) -> None:
        """Enter it."""
        context = play.of_manager().transaction()
        transaction = context.__enter__()
        play.transaction = context, transaction
        play.spoiled = False
        play.model.served = play.model.manager is ManagerState.SERVING
        play.model.manager = ManagerState.CAPTURING


class Meanwhile(StrEnum):
    """What happens while a capture is open, in its body."""

    nothing = auto()
    call = auto()
    """A component is called: its work is recorded inline."""
    replay = auto()
    """A bound entry is replayed: refused."""
    evict = auto()
    """Something is evicted: refused."""
    profile = auto()
    """Memory is profiled: refused."""
    give_back = auto()
    """Every lease ends, and what is retired is reclaimed: nothing is destroyed before the capture is closed."""
    drop = auto()
    """A lent output is dropped, and garbage is collected."""
    attempt = auto()
    """Every event that the tables refuse is attempted."""
    advance = auto()
    """The device works on."""
    read = auto()
    """The body reads a value on the host: that breaks the capture."""
    fail = auto()
    """The body raises."""
    interrupt = auto()
    """The body is interrupted by something that is no error."""


FAILING = frozenset({Meanwhile.read, Meanwhile.fail, Meanwhile.interrupt})


class How(StrEnum):
    """How a graph is captured by hand."""

    whole = auto()
    segments = auto()
    """In two segments, with an eager break between them that must run once a replay."""
    pinned = auto()
    """With a tensor pinned, whose place is compared before each replay."""


@dataclass(frozen=True, repr=False)
class Capture(Step):
    """Capture one graph by hand in the open transaction.

    Attributes:
        number: Which of the first component's descriptors.
        meanwhile: What else happens while the capture is open.
        how: How it is captured.
    """

    number: int = 0
    meanwhile: Meanwhile = Meanwhile.nothing
    how: How = How.whole

    weight: ClassVar[int] = 40
    brings: ClassVar[frozenset[Event]] = CAPTURES | FAILS

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Two descriptors, and everything that may happen meanwhile; in segments and pinned while little else does."""
        return () if play.transaction is None else _captures(len(play.hand_descriptors), play.bed.can)

    def name(self, play: Play) -> str:
        """The entry."""
        return f"{HAND}[{play.hand_descriptors[self.number]!r}]"

    def legal(self, play: Play) -> bool | None:
        """Of an entry that is not in use, while all captures of the transaction went well; nothing live may be overwritten."""
        note = play.model.entries.get(self.name(play))
        if play.spoiled or play.model.manager is not ManagerState.CAPTURING:
            return False
        if note is not None and note.state not in (EntryState.EAGER, EntryState.EVICTED, EntryState.FAILED):
            return False
        if not play.model.resident(HAND if HAND in play.model.needs else play.hand_subject.name):
            return False
        if play.model.budget or play.model.suspect:
            return None
        leaves_live = self.how is How.segments and self.meanwhile not in FAILING
        return not (leaves_live and HAND in play.model.inside.values())

    def run(self, play: Play) -> None:
        """Capture, and let the rest happen in the body."""
        assert play.transaction is not None
        _, transaction = play.transaction
        descriptor, name = play.hand_descriptors[self.number], self.name(play)
        needs = play.hand_subject.component.dependencies
        entry = play.of_manager().entry(HAND, descriptor, dependencies=needs)
        play.model.needs[HAND] = frozenset(needs)
        play.model.meet(play.look())
        with play.calm():
            buffers = play.hand_routine.allocate_buffers(descriptor)
        play.kept.append(buffers)
        act, pending = ACTS[self.meanwhile], play.pending_faults
        fails = self.meanwhile in FAILING
        handmade = Handmade(descriptor, buffers)
        pinned: list[Callable[[], object]] = []
        ran: Counter[str] = Counter()
        if self.how is How.segments:
            handmade.breaks = ran
        if self.how is How.pinned:
            there = play.hand_subject.samples[0][0]
            place = handmade.pinned = Pinned(there, there)
            pinned.append(lambda: place.now)

        def make(warmup: bool) -> Callable[[], object]:
            def work() -> object:
                with play.calm():
                    output = play.hand_routine.forward_for_capture(descriptor, buffers)
                if not warmup:
                    act(play, output)
                return output

            def in_segments() -> Generator[EagerBreak, None, object]:
                first = work()
                yield EagerBreak(lambda: ran.update(["ran"]), live={"first": first})
                return work()

            return in_segments if self.how is How.segments else work

        try:
            transaction.capture(entry, make, pinned=pinned)
        except CaptureFailed as failure:
            play.spoiled = True
            if not fails:
                raise
            refused = failure.kind == FailureKind.BUDGET and play.model.budget  # perhaps before it began
            play.model.entries[name].state = entry.state if refused else EntryState.FAILED
            play.model.suspect = True
            wanted = FailureKind.REJECTED if self.meanwhile is Meanwhile.read else FailureKind.USER
            if failure.kind != wanted and not play.model.budget and play.pending_faults == pending:
                raise Violated(f"the failure's kind is {failure.kind}, and should be {wanted}") from failure
            return
        except _Interrupt:
            play.spoiled = True
            return
        finally:
            _made_room(play)
            play.books.settle()  # whoever comes next ends the lease of an output that was dropped meanwhile
        if fails:
            raise Violated("the capture went well, and should have failed")
        play.handmade[name] = handmade
        play.model.moved.discard(name)
        play.model.record(name)


@cache
def _captures(descriptors: int, can: Capabilities) -> tuple[Capture, ...]:
    """Every capture of so many descriptors."""
    meanwhile = [each for each in Meanwhile if each is not Meanwhile.advance or can.clock]
    hows = [How.segments] * can.segments + [How.pinned] * can.pins
    ways = [(each, How.whole) for each in meanwhile]
    ways += [(each, how) for how in hows for each in (Meanwhile.nothing, Meanwhile.call, Meanwhile.fail)]
    return tuple(Capture(number, each, how) for number in range(descriptors) for each, how in ways)


class _Interrupt(BaseException):
    """As a keyboard interrupt: no failure of what it interrupts."""


def _call(play: Play, output: object) -> None:
    for subject in play.subjects.values():
        if play.model.resident(subject.name):
            with play.calm():
                subject.component(*subject.samples[0])
            return


def _replay(play: Play, output: object) -> None:
    for name in sorted(play.model.entries):
        if play.model.replays(name):
            _refused(play, play.entry(name).replay)
            return


def _evict(play: Play, output: object) -> None:
    _refused(play, lambda: play.of_manager().evict(next(iter(play.subjects))))


def _profile(play: Play, output: object) -> None:
    _refused(play, play.of_manager().profile_memory)


def _refused(play: Play, door: Callable[[], object]) -> None:
    """A door is closed while a capture of the same thread is open."""
    try:
        door()
    except CaptureActive as refusal:
        play.coverage.refused(refusal)
    else:
        raise Violated("it was not refused while a capture was open")


def _give_back(play: Play, output: object) -> None:
    while play.held:
        held = play.held.pop()
        with play.sync.as_thread(held.thread):
            if held.lease is not None:
                held.lease.__exit__(None, None, None)
            elif held.output is not None:
                held.output.release()
        play.model.release(held.name)
    play.of_manager().reclaim()


def _drop(play: Play, output: object) -> None:
    for held in play.held:
        if held.output is not None:
            play.held.remove(held)
            play.model.release(held.name)
            break
    else:
        return
    del held
    gc.collect()


def _attempt(play: Play, output: object) -> None:
    attempt_all(play)


def _advance(play: Play, output: object) -> None:
    play.bed.advance(3)


def _read(play: Play, output: object) -> None:
    values(output)


def _fail(play: Play, output: object) -> None:
    raise RuntimeError("the body gives up")


def _interrupt(play: Play, output: object) -> None:
    raise _Interrupt


ACTS: dict[Meanwhile, Callable[[Play, object], None]] = {
    Meanwhile.nothing: lambda play, output: None,
    Meanwhile.call: _call,
    Meanwhile.replay: _replay,
    Meanwhile.evict: _evict,
    Meanwhile.profile: _profile,
    Meanwhile.give_back: _give_back,
    Meanwhile.drop: _drop,
    Meanwhile.attempt: _attempt,
    Meanwhile.advance: _advance,
    Meanwhile.read: _read,
    Meanwhile.fail: _fail,
    Meanwhile.interrupt: _interrupt,
}


@dataclass(frozen=True, repr=False)
class Commit(Step):
    """Bind everything that the transaction captured."""

    weight: ClassVar[int] = 12
    brings: ClassVar[frozenset[Event]] = frozenset({EntryEvent.bind, ManagerEvent.commit, ComponentEvent.commit})

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """In a transaction none of whose captures failed."""
        return (cls(),) if play.transaction is not None and not play.spoiled else ()

    def run(self, play: Play) -> None:
        """Leave it well."""
        assert play.transaction is not None
        context, _ = play.transaction
        play.transaction = None
        context.__exit__(None, None, None)
        play.model.end_transaction(bound=True)


@dataclass(frozen=True, repr=False)
class GiveUp(Step):
    """Leave the transaction by an exception: everything is as before."""

    weight: ClassVar[int] = 6
    brings: ClassVar[frozenset[Event]] = FAILS | {EntryEvent.reclaim, PoolEvent.destroyed, PoolEvent.retire, PoolEvent.reclaimed}

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """In a transaction."""
        return (cls(),) if play.transaction is not None else ()

    def run(self, play: Play) -> None:
        """Leave it badly."""
        assert play.transaction is not None
        context, _ = play.transaction
        play.transaction = None
        if context.__exit__(GivenUp, GivenUp(), None):
            raise Violated("the exception that ended the transaction was swallowed")
        play.model.end_transaction(bound=False)
