"""Calling components: whatever happened before, the answer is what eager would give, and why there was no graph is counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from cgstate.errors import ManagerPoisoned, NotResident
from cgstate.lifecycle.observations import CallAnswer, Obstacle, Outcome, OutputComparison
from cgstate.lifecycle.states import ComponentEvent, EntryEvent, EntryState, ManagerState, PoolEvent
from cgstate.runtime.domain import LIVE
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.record import ComponentRecord
from cgstate.runtime.stats import Fallback
from cgstate.testing.stateful.counting import counted, counts
from cgstate.testing.stateful.errors import Violated
from cgstate.testing.stateful.nesting import Nesting
from cgstate.testing.stateful.play import MOST_HELD, Held, Play
from cgstate.testing.stateful.step import TRIES, Event, Step
from cgstate.testing.stateful.subject import Subject, difference, values

__all__ = ["Call"]

LAZY = frozenset(
    {
        Fallback.capacity,
        Fallback.budget,
        Fallback.blocked,
        Fallback.not_admitted,
        Fallback.rejected,
        Fallback.oom,
        Fallback.foreign,
    }
)
"""Why a miss that may capture can still be answered eagerly."""

OBSTACLES: Mapping[Fallback, Obstacle] = {
    Fallback.miss: Obstacle.miss,
    Fallback.capture_busy: Obstacle.gate_busy,
    Fallback.closed: Obstacle.manager_closed,
    Fallback.rejected: Obstacle.rejected,
    Fallback.oom: Obstacle.oom,
    Fallback.foreign: Obstacle.foreign,
    Fallback.budget: Obstacle.budget,
}


@dataclass(frozen=True)
class Forecast:
    """What a call may come to.

    Attributes:
        graph: Name of the entry that may answer; empty: none may.
        reasons: Why it may be answered eagerly; empty: it may not.
        refusal: The refusal that it must raise, if any.
        counted: Whether anybody counts.
        certain: Whether nothing can be evicted to make room for a capture.
    """

    graph: str = ""
    reasons: frozenset[Fallback] = frozenset()
    refusal: type[Exception] | None = None
    counted: bool = True
    certain: bool = True


@dataclass(frozen=True, repr=False)
class Call(Step):
    """Call a component with one of its samples.

    Attributes:
        component: Its id.
        sample: The number of the sample.
        stream: The stream that the call comes on, by number.
        thread: Who calls.
    """

    component: str
    sample: int = 0
    stream: int = 0
    thread: int = 1

    weight: ClassVar[int] = 60
    captures: ClassVar[bool] = True
    brings: ClassVar[frozenset[Event]] = frozenset(
        {
            EntryEvent.acquire,
            EntryEvent.release,
            EntryEvent.capture_begin,
            EntryEvent.capture_end,
            EntryEvent.bind,
            EntryEvent.capture_fail,
            EntryEvent.replay_fail,
            ComponentEvent.first_lease,
            ComponentEvent.last_release,
            ComponentEvent.lazy_bind,
            PoolEvent.begin,
            PoolEvent.end,
            PoolEvent.fail,
        }
    )

    @classmethod
    def candidates(cls, play: Play) -> Iterable[Step]:
        """Every component with every sample."""
        streams = range(1 + len(play.streams))
        for name, subject in play.subjects.items():
            for sample in range(len(subject.samples)):
                for stream in streams:
                    yield cls(name, sample, stream)
                    yield cls(name, sample, stream, 2)

    @classmethod
    def draw(cls, play: Play, random: Random) -> Step | None:
        """As `Step.draw`, without listing them all."""
        names, streams, drawn = list(play.subjects), 1 + len(play.streams), random.random
        for _ in range(TRIES):
            name = names[int(drawn() * len(names))]
            sample = int(drawn() * len(play.subjects[name].samples))
            step = cls(name, sample, int(drawn() * streams), 1 + int(drawn() * 2))
            if step.legal(play) is not False:
                return step
        return None

    def legal(self, play: Play) -> bool | None:
        """A call is always answered, but where memory is missing or the device is lost."""
        if play.lost:
            return None
        return self.forecast(play).refusal is None

    def forecast(self, play: Play) -> Forecast:
        """What it comes to; worked out once in a situation."""
        key = self.component, self.sample
        if key not in play.forecasts:
            play.forecasts[key] = forecast(play, play.subjects[self.component], self.sample)
        found: Forecast = play.forecasts[key]
        return found

    def run(self, play: Play) -> None:
        """Call, compare with eager, and see that exactly this was counted."""
        subject = play.subjects[self.component]
        if play.lost:
            subject.component(*subject.samples[self.sample])
            raise Violated("it was answered by a device that is lost")
        foreseen = self.forecast(play)
        right = None if foreseen.refusal is not None else play.eager(subject, self.sample)
        before, nesting = counts(play, self.component), Nesting(play, foreseen.graph)
        with play.sync.as_thread(self.thread), play.on(self.stream):
            answer = subject.component(*subject.samples[self.sample])
            lent = answer if isinstance(answer, LeasedOutput) else None
            with play.calm():
                found = values(answer if lent is None else lent.value)
                play.look_back()
        hits, reasons = counted(before, counts(play, self.component))
        if not foreseen.certain:
            play.accept_victims()
            play.accept_failure(foreseen.graph)
        by_graph = hits == 1
        self._judge(play, subject, foreseen, hits, reasons)
        if by_graph:
            nesting.judge()
        apart = difference(found, right)
        play.tally["compared"] += 1
        reason = next(iter(reasons), None)
        play.observe(
            CallAnswer(
                self.component,
                Outcome.graph if by_graph else Outcome.eager,
                OBSTACLES.get(reason) if reason is not None else None,
                reason or "",
                apart <= subject.tolerance,
            )
        )
        if by_graph:
            play.observe(
                OutputComparison(
                    entry=foreseen.graph,
                    repeatable=not subject.tolerance,
                    bitwise=apart == 0.0,
                    padded_error=apart,
                    unpadded_error=apart,
                    tolerance=subject.tolerance,
                )
            )
            self._answered(play, foreseen.graph, lent, found)
            if lent is None:
                play.answer = answer, found
        elif lent is not None:
            lent.release()

    def _judge(self, play: Play, subject: Subject, foreseen: Forecast, hits: int, reasons: Mapping[Fallback, int]) -> None:
        if not foreseen.counted:
            return
        if hits + sum(reasons.values()) != 1:
            raise Violated(f"one call was counted as {hits} graph answers and {dict(reasons)}")
        if hits and not foreseen.graph:
            raise Violated(f"it was answered by a graph, and should be eager: {_words(foreseen.reasons)}")
        if not hits and next(iter(reasons)) not in foreseen.reasons:
            raise Violated(
                f"it was answered eagerly ({_words(reasons)}), and should be: {foreseen.graph or _words(foreseen.reasons)}"
            )

    def _answered(self, play: Play, name: str, lent: LeasedOutput[Any] | None, found: object) -> None:
        """A graph has answered: perhaps one that was captured for it."""
        model = play.model
        if model.entries.get(name) is None or model.entries[name].state not in (EntryState.BOUND, EntryState.REPLAYING):
            play.meet_lazy(name)
            model.bind([name])
        if lent is None:
            play.replayed(name)
        elif len(play.held) < MOST_HELD:
            held = Held(name, self.thread, self.stream, output=lent, expected=found)
            play.held.append(held)
            model.lease(name)
            play.replayed(name, held)
            held.latest = True
        else:
            with play.sync.as_thread(self.thread):
                lent.release()
            play.replayed(name)


def forecast(play: Play, subject: Subject, sample: int) -> Forecast:
    """What the documentation says that a call comes to."""
    model, name = play.model, subject.name
    record = play.books.components.get(name)
    if record is None or play.manager is None:
        return Forecast(reasons=frozenset(Fallback), counted=False)
    if model.manager is ManagerState.CLOSED:
        return _eager(Fallback.closed)
    if model.manager is ManagerState.POISONED:
        return Forecast(refusal=ManagerPoisoned)
    if not model.resident(name):
        return Forecast(refusal=NotResident)
    routine, args = subject.component.routine, subject.samples[sample]
    names = model.available(name)
    available: frozenset[Any] = frozenset([d for d, entry in record.entries.items() if entry.name in names])
    if available == record.available:
        available = record.available  # a routine may remember what it made of a snapshot, and know it by its identity
    with play.calm():
        resolution = routine.resolve_runtime(args, {}, available)
    if resolution.descriptor is not None:
        entry = f"{name}[{resolution.descriptor!r}]"
        if model.gives_lease(entry):
            return Forecast(graph=entry)
        return _eager(Fallback.unavailable if model.serving else Fallback.not_serving)
    if not model.serving:
        return _eager(Fallback.not_serving)
    if not subject.component.capture_mode.allows_lazy:
        return _eager(Fallback.miss)
    if record.state in (EntryState.FAILED, EntryState.CAPTURING, EntryState.EAGER):
        return _eager(Fallback.blocked)
    with play.calm():
        wanted = _wanted(subject, args, resolution.runtime_key, record.declared, available)
    if wanted is None:
        return _eager(Fallback.miss)
    return _lazily(play, f"{name}[{wanted!r}]", has_place=_has_place(record, wanted))


def _has_place(record: ComponentRecord, descriptor: Hashable) -> bool:
    """Whether the component has a place for ``descriptor`` as it is: declared ones keep theirs."""
    extra = [entry for each, entry in record.entries.items() if each not in record.declared]
    taken = sum((entry.state in LIVE) + entry.unreclaimed for entry in extra)
    return record.has_room and (descriptor in record.declared or taken < record.capacity - len(record.declared))


def _wanted(
    subject: Subject, args: tuple[Any, ...], key: Hashable, declared: frozenset[Any], available: frozenset[Any]
) -> Hashable | None:
    """A declared descriptor that serves the call and is not bound, else what the routine makes of the miss."""
    routine = subject.component.routine
    if not declared <= available:
        found: Hashable | None = routine.resolve_runtime(args, {}, declared).descriptor
        if found is not None:
            return found
    made: Hashable | None = routine.make_lazy_descriptor(key)
    return made


def _lazily(play: Play, entry: str, *, has_place: bool) -> Forecast:
    """A miss that may capture: whether it has to depends on the room there is."""
    model = play.model
    lazy = LAZY | {Fallback.vote} if play.ranks.disagree else LAZY
    note = model.entries.get(entry)
    if note is not None and note.state is EntryState.REPLAYING:
        return Forecast(entry, lazy | {Fallback.unavailable})  # retiring: another lease holds it
    if play.transaction is not None:
        return Forecast("", lazy | {Fallback.capture_busy})
    certain = (
        has_place
        and not model.budget
        and not model.suspect
        and play.setup.admit_after == 1
        and not play.evicted_for_room
        and not play.pending_faults
        and not play.ranks.disagree
    )
    return Forecast(entry, frozenset() if certain else lazy | {Fallback.unavailable}, certain=certain)


def _eager(reason: Fallback) -> Forecast:
    return Forecast(reasons=frozenset({reason}))


def _words(reasons: Iterable[Fallback]) -> str:
    return " or ".join(sorted(reasons))
