"""A run: a manager on a test bed, the steps it takes, and the judgement after each."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from cgstate.backends.base import Footprint, Stream
from cgstate.errors import CGStateError, ConfigError, IllegalTransition, InvariantViolation, describe
from cgstate.lifecycle.invariants import Checker as Who
from cgstate.lifecycle.invariants import broken_at
from cgstate.lifecycle.states import EntryState, ManagerState, PoolKind
from cgstate.lifecycle.watching import Watch
from cgstate.lifecycle.world import Act, World
from cgstate.routine import Routine
from cgstate.runtime.books import Books
from cgstate.runtime.check import Checker, world_of, wrong_seals
from cgstate.runtime.domain import Isolation
from cgstate.runtime.entry import Entry
from cgstate.runtime.lease import Lease
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.transaction import Transaction
from cgstate.testing.faults import RoutineFault, RoutineFaults
from cgstate.testing.stateful.bed import Bed, EnginePool
from cgstate.testing.stateful.coverage import TOTAL, Coverage, out_of_epoch
from cgstate.testing.stateful.errors import Violated, chain
from cgstate.testing.stateful.model import Model
from cgstate.testing.stateful.ranks import Ranks
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.step import Step
from cgstate.testing.stateful.subject import Subject, difference, values
from cgstate.testing.stateful.sync import sync_of

__all__ = ["HAND", "Handmade", "Held", "Pinned", "Play"]

HAND = "by hand"
"""The component without a routine, whose graphs are captured through the low-level door."""
LIVE = (EntryState.CAPTURING, EntryState.BOUND, EntryState.REPLAYING)
MOST_HELD = 3
"""Leases that a run holds at once at most."""


@dataclass(slots=True)
class Held:
    """Something that keeps an entry leased.

    Attributes:
        name: The entry.
        thread: Who took it.
        stream: The stream it was computed on, by number.
        lease: A lease that was taken by hand; None for an output.
        output: An output of a component; None for a lease.
        expected: What the output must be while it has not expired.
        latest: Whether nothing was replayed in its pool since; None where nobody knows: a launch that failed may have begun.
    """

    name: str
    thread: int
    stream: int = 0
    lease: Lease | None = None
    output: LeasedOutput[Any] | None = None
    expected: object = None
    latest: bool | None = False


@dataclass(slots=True)
class Pinned:
    """A place in which a tensor was when a graph was captured.

    Attributes:
        there: That tensor.
        now: What is in its place now.
    """

    there: Any
    now: Any


@dataclass(slots=True)
class Handmade:
    """A graph of the low-level door.

    Attributes:
        descriptor: Its descriptor.
        buffers: Its static inputs, made as the first component's routine does.
        breaks: How often its eager break has run; None if it has none.
        pinned: The tensor that it has pinned, if any.
    """

    descriptor: Any
    buffers: Any
    breaks: Counter[str] | None = None
    pinned: Pinned | None = None


class Play:
    """One run.

    Args:
        bed: Where it is played.
        setup: How it is set up.
        coverage: Told at the end of the run, or where it breaks off, what it has seen; so is `TOTAL`.

    Attributes:
        coverage: What this run has seen.
        model: What the documentation says of the present manager.
        world: What its books showed after the last step.
        steps: What was done so far.
        seen: What the books show, where a step has looked at its end.
        forecasts: What calls are known to come to in the present situation, by component and sample.
        held: Leases and outputs that are held.
        ranks: The other ranks.
        answer: What a call was last given by a graph to keep, and what it was then; None: nothing yet.
        kept: Static inputs of what was captured by hand: the warm-up of a capture that failed may still run on the device.
        transaction: The open one, with its context manager.
        spoiled: Whether a capture of the open transaction failed, so that it can only be given up.
        evicted_for_room: Whether a lazy capture has evicted another graph, which may have to be missed more often to come back.
        versions: How often memory behind each dependency has moved, gone or come back.
        lost: Whether the device's context may be lost.
        stingy: Whether a call that gives memory back was made to fail, so that the device may have kept it.
        stuck: Whether healing the generator after a failed capture was made to fail: it may be in one until another succeeds.
        leaked: Bytes that ended managers have left.
        broken: Whether a step went wrong.
        tally: What was done so far: captures, replays, evictions, and values that were compared.

    Raises:
        ConfigError: the bed can take dependencies away, and its components have none.
    """

    def __init__(self, bed: Bed, setup: Setup, coverage: Coverage | None = None) -> None:
        self.bed = bed
        self.setup = bed.setup = setup.within(bed.can)
        self.coverage = Coverage()
        self._told = (TOTAL,) if coverage is None else (TOTAL, coverage)
        self.steps: list[Step] = []
        self.leaked = 0
        self.broken = False
        self.tally: Counter[str] = Counter()
        self.lost = True  # there is no device yet
        self.renew()

    def renew(self) -> None:
        """A new manager with fresh components; on a new device, if the last one was lost."""
        bed, setup = self.bed, self.setup
        if self.lost:
            bed.backend = bed.make_backend()
            self.sync = sync_of(bed.backend.device)
            self.engine: EnginePool | None = None
            self.streams: list[Stream] = []
            self.lost = self.stingy = self.stuck = False
        self.backend = bed.backend
        if setup.isolation is Isolation.foreign and self.engine is None:
            self.engine = bed.make_engine()
        if bed.can.streams and not self.streams:
            self.streams = [self.backend.new_stream(exclusive=False)]
        self.routine_faults = RoutineFaults()
        self.subjects: dict[str, Subject] = {subject.name: subject for subject in bed.make_components()}
        if bed.can.dependencies and not self.dependencies:
            raise ConfigError(
                f"{type(bed).__name__} says Capabilities(dependencies=True), and none of its components names a dependency: "
                "name what they depend on, or leave it out"
            )
        if setup.faulty:
            for subject in self.subjects.values():
                self.routine_faults.install(subject.component.routine)
        self.held: list[Held] = []
        self.handmade: dict[str, Handmade] = {}
        self.kept: list[object] = []
        self.answer: tuple[object, object] | None = None
        self.ranks = Ranks()
        self.transaction: tuple[AbstractContextManager[Transaction], Transaction] | None = None
        self.spoiled = False
        self.evicted_for_room = False
        self.versions: dict[str, int] = {}
        self._eager: dict[Hashable, object] = {}
        self.manager: GraphManager | None = GraphManager(
            self.backend,
            isolation=setup.isolation,
            pool=None if self.engine is None else self.engine.given,
            check=setup.watched,
            capture_error_mode=setup.error_mode,
            sync=self.sync,
            vote=self.ranks if setup.ranks else None,
            observer=self.coverage.took if setup.watched else None,
            warmup_rounds=2,
            negative_cache=1,  # small, so that a run sees them full
            stats_detail=1,
        )
        self.books: Books = self.manager._books
        if setup.watched:
            self.books.audit = _Audit(self.books, self.coverage.took)
            self.books.observer = self.books.audit.observe
        self.model = Model()
        self.seen: World | None = None
        self.forecasts: dict[tuple[str, int], Any] = {}
        self._served: dict[Hashable, list[int]] = {}
        self._judged: World | None = None
        self._watch = Watch(Who.stateful)
        for subject in self.subjects.values():
            self.model.needs[subject.name] = frozenset(subject.component.dependencies)
            self.model.concurrent[subject.name] = subject.component.concurrent_leases
            if subject.component.inside is not None:
                self.model.inside[subject.name] = subject.component.inside
        self.world = self.look()

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def dependencies(self) -> tuple[str, ...]:
        """What components say that they depend on."""
        return tuple(sorted({name for subject in self.subjects.values() for name in subject.component.dependencies}))

    @property
    def prepared(self) -> bool:
        """Whether the manager has the components."""
        return bool(self.books.components)

    @property
    def hand_subject(self) -> Subject:
        """The component whose routine makes what is captured by hand."""
        return next(iter(self.subjects.values()))

    @property
    def hand_routine(self) -> Routine[..., Any, Any, Any]:
        """Its routine."""
        return self.hand_subject.component.routine

    @property
    def hand_descriptors(self) -> tuple[Hashable, ...]:
        """What is captured by hand."""
        return self.hand_subject.component.descriptors[:2]

    def hand_samples(self, descriptor: Hashable) -> list[int]:
        """Numbers of the samples that a graph of ``descriptor`` serves."""
        if self.lost:
            return []
        if descriptor not in self._served:
            routine, samples = self.hand_routine, self.hand_subject.samples
            with self.calm():
                found = [routine.resolve_runtime(sample, {}, frozenset({descriptor})).descriptor for sample in samples]
            self._served[descriptor] = [number for number, served in enumerate(found) if served == descriptor]
        return self._served[descriptor]

    def of_manager(self) -> GraphManager:
        """The manager.

        Raises:
            Violated: it was dropped; the step should not have been drawn.
        """
        if self.manager is None:
            raise Violated("there is no manager")
        return self.manager

    def entry(self, name: str) -> Entry:
        """An entry by its name."""
        return next(entry for entry in self.books.entries() if entry.name == name)

    def look(self) -> World:
        """What the books show."""
        audit = self.books.audit
        with self.calm(), self.books.gate.lock:
            if found := list(wrong_seals(self.books)):
                raise Violated("; ".join(found))
            if audit is None:
                return world_of(self.books, acquires=self.books.leases, releases=0)
            return world_of(self.books, acquires=audit.acquires, releases=audit.releases)

    def footprint(self) -> Footprint:
        """What must come back, with nothing left that only waits to be given back; no generator where it may be ``stuck``."""
        with self.calm():
            self.idle()
            self.of_manager().reclaim(flush=True)
            footprint = self.backend.footprint()
        return replace(footprint, generator=None) if self.stuck else footprint

    def idle(self) -> None:
        """Wait for both streams that calls come on."""
        with self.calm():
            self.backend.current_stream().synchronize()
            for stream in self.streams:
                stream.synchronize()

    def on(self, stream: int) -> AbstractContextManager[None]:
        """Make a stream current, by number; 0 is the default."""
        return self.backend.on_stream(self.streams[stream - 1]) if stream else nullcontext()

    def eager(self, subject: Subject, sample: int) -> object:
        """The values that the eager call answers."""
        key = subject.name, sample, tuple(self.versions.get(name, 0) for name in subject.component.dependencies)
        if key not in self._eager or not subject.pure:
            with self.calm():
                self._eager[key] = values(subject.component.routine.eager_call(*subject.samples[sample]))
        return self._eager[key]

    def replayed(self, name: str, by: Held | None = None) -> None:
        """An entry was replayed: whatever else was computed in its pool has expired."""
        domain = self.model.entries[name].domain
        for held in self.held:
            if self.model.entries[held.name].domain == domain:
                held.latest = held is by

    def meet_lazy(self, name: str) -> None:
        """An entry was made for a call."""
        self.model.meet(self.look())
        if name not in self.model.entries:
            raise Violated(f"{name} answered, and the books do not know it")

    def accept_victims(self, *, together: bool = False) -> None:
        """A capture may have evicted lazy entries that stand alone, where it needed room; or ``together`` all of a domain."""
        world = self.look()
        seen = {view.name: view.state for view in world.entries}
        lasting = {entry.name for entry in self.books.entries() if entry.startup}
        alone = {pool.domain for pool in (*self.world.pools, *world.pools) if pool.kind is PoolKind.per_entry}
        if together:
            live = {name: note for name, note in self.model.entries.items() if note.state in LIVE}
            alone |= {note.domain for note in live.values()} - {note.domain for name, note in live.items() if name in lasting}
        for name, note in self.model.entries.items():
            startup = name in lasting
            gone = seen.get(name, EntryState.EAGER) in (EntryState.EVICTED, EntryState.EAGER)
            if note.state is EntryState.BOUND and not startup and note.domain in alone and gone:
                note.state = EntryState.EVICTED
                self.evicted_for_room = True

    def accept_failure(self, name: str) -> None:
        """A lazy capture may have failed: that is remembered, and the entry's state; or been given up, and what is left waits."""
        world = self.look()
        view = next((view for view in world.entries if view.name == name), None)
        if view is None:
            return
        if view.state is EntryState.FAILED:
            self.model.meet(world)
            self.model.entries[name].state = EntryState.FAILED
            self.model.suspect = True
        elif view.state is EntryState.EAGER and view.unreclaimed:
            self.model.meet(world)
            self.model.entries[name].state = EntryState.EAGER

    # -- faults -------------------------------------------------------------------------------------------------------

    @property
    def pending_faults(self) -> int:
        """Injected faults that did not happen yet."""
        if not self.setup.faulty:
            return 0
        injector = getattr(self.backend, "faults", None) if self.bed.can.faults else None
        return self.routine_faults.pending() + (injector.pending() if injector is not None else 0)

    def calm(self) -> AbstractContextManager[object]:
        """Let nothing fail inside the block: what the harness itself does is no part of the run."""
        return _Calm(self) if self.setup.faulty else nullcontext()

    def stop_faults(self) -> None:
        """Let nothing fail any more, and all ranks agree."""
        self.routine_faults.clear()
        self.ranks.disagree = 0
        if self.bed.can.faults:
            self.backend.faults.clear()  # type: ignore[attr-defined]  # the capability says so

    # -- stepping -----------------------------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        """Take one step and judge what came of it.

        Raises:
            Violated: something is wrong; the message says which step.
        """
        self.steps.append(step)
        self.broken = True
        try:
            self._take(step)
            self.broken = False
        finally:
            if self.broken:
                self._tell()
                if self.manager is not None:
                    self.manager._finalizer.detach()  # what is broken is left as it is: cleaning up would fail again, out of sight

    def _take(self, step: Step) -> None:
        before, legal, armed = self.world, step.legal(self), self.pending_faults
        self.seen = None
        error: Exception | None = None
        try:
            step.run(self)
        except (Violated, InvariantViolation) as wrong:
            raise Violated(f"{step}: {wrong}") from wrong
        except Exception as raised:
            error = raised
        troubled = self.lost or self.manager is None or self.pending_faults < armed
        if isinstance(error, IllegalTransition):
            self.coverage.refused(error)
        after = self.world = self.seen or self.look()
        self.forecasts.clear()
        if error is not None and not (troubled and self._explained(error)) and legal is not None:
            self._judge_error(step, legal, error, before, after)
        elif error is None and legal is False and not troubled:
            raise Violated(f"{step} was not refused")
        if troubled or (error is not None and legal is None):
            if error is not None and not self._explained(error):
                raise Violated(f"{step} raised {describe(error)}") from error
            self.model.adopt(after)
            for held in self.held:
                held.latest = None
            self.lost = self.lost or after.manager.state is ManagerState.POISONED
        if error is not None:
            self._forget_frames(error)
        self.judge(step, before, after)
        self.bed.on_step(step, before, after)

    @staticmethod
    def _forget_frames(error: BaseException) -> None:
        """An error that was expected must not keep alive the tensors of the frames that it went through."""
        for each in chain(error):
            each.__traceback__ = None

    def _judge_error(self, step: Step, legal: bool, error: Exception, before: World, after: World) -> None:
        if legal:
            raise Violated(f"{step} raised {describe(error)}") from error
        if not isinstance(error, IllegalTransition):
            raise Violated(f"{step} was refused by {describe(error)}, which is no refusal") from error
        if (was := _essence(before)) != (now := _essence(after)):
            changed = sorted(map(str, was ^ now))
            raise Violated(f"{step} was refused, and changed something: {'; '.join(changed)}") from error

    def _explained(self, error: BaseException) -> bool:
        """Whether an error is one that something which failed may lead to."""
        if isinstance(error, CGStateError) and not isinstance(error, InvariantViolation | AssertionError):
            return True
        if self.backend.failure_kind(error) is not None:
            return True
        return any(isinstance(each, RoutineFault) or type(each).__name__ == "InjectedFault" for each in chain(error))

    def judge(self, step: Step, before: World, after: World) -> None:
        """Hold what the books show against the invariants and the model.

        Raises:
            Violated: they differ.
        """
        found: list[str] = []
        if after != self._judged:  # else nothing has moved since it was found right
            if step.renews:
                in_state = self._watch.broken_in(after)
            else:
                in_state, by_step = self._watch.broken_by(before, after, Act(type(step).__name__, step.concerns(self)))
                found += [str(each) for each in by_step if not (step.captures and each.invariant.id in ("I6", "I8"))]
            found += [str(each) for each in in_state if not (self.stingy and each.invariant.id == "I7")]
            found += out_of_epoch(after)
            self._judged = after
        else:
            self.world = after = self._judged  # the same one, for who knows it by its identity
        self.model.meet(after)
        found += self.model.disagreements(after)
        if found:
            raise Violated(f"{step}: {'; '.join(found)}")

    def look_back(self) -> None:
        """Look once more at the answer that was last given to keep: nothing that came since may have written to it.

        Raises:
            Violated: it is another one now.
        """
        if self.answer is not None:
            answer, then = self.answer
            if difference(values(answer), then):
                raise Violated("an answer that was given to keep is another one since")

    def observe(self, observation: object) -> None:
        """Judge what was seen.

        Raises:
            Violated: an invariant does not allow it.
        """
        found = "; ".join(map(str, broken_at(observation)))
        if found:
            raise Violated(found)

    # -- the end ------------------------------------------------------------------------------------------------------

    def count_manager(self) -> None:
        """Add what the manager counted to the tally, once, at its end."""
        for record in self.books.components.values():
            counters = record.counters
            self.tally["captures"] += counters.captures
            self.tally["replays"] += counters.retired_hits + record.live_hits
            self.tally["evictions"] += sum(counters.evicted.values())

    def see_end(self) -> None:
        """After the manager's end: nothing of it is left on the device.

        Raises:
            Violated: bytes are left in private pools.
        """
        if self.lost:
            return
        self.stop_faults()
        self.idle()
        gc.collect()
        self.books.settle()
        self.handmade.clear()
        self.kept.clear()
        self.backend.flush()
        apart: set[Hashable] = set()
        if self.engine is not None:  # beside its graphs no workspace is cleared (W2, W3), also those that earlier managers left
            gate = self.books.gate
            apart = {self.engine.id, *gate.leftovers, *(spare.handle.id for spare in gate.spares)}
        if not self.books.reclaimer.blocked:
            self._see_nothing_left("the manager's end", apart)

    def see_device(self) -> None:
        """After the run: nothing of it is left on the device, which the next run may share.

        Raises:
            Violated: bytes are left in private pools.
        """
        if self.lost:
            return
        if self.engine is not None:
            self.engine.drop()
        self.books.reclaimer.flush()  # what was kept for as long as the engine had graphs
        self.backend.clear_workspaces()  # no graph is left that could have baked one in
        self.backend.flush()
        self._see_nothing_left("the run")

    def _see_nothing_left(self, after: str, apart: Collection[Hashable] = ()) -> None:
        left = {key: size for key, size in self.backend.footprint().pools.items() if size and key not in apart}
        if left and not self.stingy:
            self.leaked += sum(left.values())
            raise Violated(f"{left} bytes are left in private pools after {after}")

    def finish(self) -> None:
        """Nothing fails any more: everything must answer and settle, and nothing may be left.

        Raises:
            Violated: it does not.
        """
        from cgstate.testing.stateful.live import live

        try:
            live(self)
        except Violated:
            raise
        except Exception as error:
            raise Violated(f"bringing the run to its end raised {describe(error)}") from error
        self.count_manager()
        self.see_device()
        self._tell()

    def _tell(self) -> None:
        """Add what was seen to what others have, once a run."""
        for coverage in self._told:
            coverage.add(self.coverage)


class GivenUp(Exception):
    """Ends a transaction that is to leave everything as it was."""


class _Calm:
    """No faults for a while."""

    __slots__ = ("_injector", "_planned", "_routines", "_was")

    def __init__(self, play: Play) -> None:
        self._injector: Any = getattr(play.backend, "faults", None) if play.bed.can.faults else None
        self._routines = play.routine_faults

    def __enter__(self) -> None:
        self._was, self._routines.quiet = self._routines.quiet, True
        if self._injector is not None:
            self._planned, self._injector.planned = self._injector.planned, []

    def __exit__(self, *_: object) -> None:
        self._routines.quiet = self._was
        if self._injector is not None:
            self._injector.planned = self._planned


class _Audit(Checker):
    """Looks at turns, destructions and transactions as they happen; everything else is looked at after each step."""

    def look(self) -> None:
        """Nothing: `Play.take` looks."""


def _essence(world: World) -> set[tuple[object, ...]]:
    """What a refusal may not change; what is retired may be reclaimed and forgotten meanwhile, and names may be asked for."""
    return {
        (world.manager.state, world.manager.serving, world.gate.free),
        *(
            (each.name, each.state, each.leases, each.retiring, each.failed, each.recorded, each.noted)
            for each in world.entries
            if each.live
        ),
        *(
            (each.name, each.state, each.bound, each.leased, each.epoch, each.resident)
            for each in world.components
            if each.state is not EntryState.EAGER
        ),
    }
