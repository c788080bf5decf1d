"""Does a trace obey the tables, the step properties and every invariant that a trace can show?

The checker replays each step on what it knows (`replay`), and looks at each device whenever everything there must be at rest:
before a lease is taken or ended, before a capture, and at the end. `docs/trace-format.md` lists what a trace shows and what not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cgstate.lifecycle.invariants import INVARIANTS
from cgstate.lifecycle.states import (
    ComponentState,
    EntryEvent,
    EntryState,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolKind,
    PoolState,
)
from cgstate.lifecycle.tables import MACHINE
from cgstate.runtime.stats import Fallback
from cgstate.runtime.witness import Notice
from cgstate.trace import replay
from cgstate.trace.errors import TraceError
from cgstate.trace.known import LIVE, UNKNOWN, Coverage, Device, Domain, Entity, Transaction, Values
from cgstate.trace.records import EntityRecord, Head, NoticeRecord, Record, TransitionRecord
from cgstate.trace.rows import ROWS, TraceRow

SHOWN = 100
"""Violations that a report tells one by one; all are counted."""

SHOWS = ("I1", "I2", "I3", "I4", "I6", "I8", "I9", "I10", "I11", "I15")
"""Invariants of which a trace shows something."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that an event breaks.

    Attributes:
        seq: Number of the event; 0 for the end of the trace.
        rule: ``table``, ``chain``, ``values``, ``step`` or the id of an invariant.
        entity: Who.
        what: How it is broken.
    """

    seq: int
    rule: str
    entity: str
    what: str

    def __str__(self) -> str:
        where = f"event {self.seq}" if self.seq else "at the end"
        rule = str(INVARIANTS[self.rule]) if self.rule in INVARIANTS else self.rule
        return f"{where}, {self.entity}: {rule}: {self.what}"


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        head: The trace's first line.
        events: Steps and notices, all of them checked.
        entities: Entities met, by machine.
        transactions: Transactions seen.
        answers: Calls answered eagerly, by reason.
        flushed: Bytes given back to the device.
        taken: How often each row was taken, by machine and index.
        broken: The first violations.
        violations: How many there are.
        missing: Events that the recorder did not keep: the trace says nothing of them.
        final: By machine and name, what is known of each entity at the end, in the order of `cgstate.trace.known.LAYOUT`.
    """

    head: Head
    events: int = 0
    entities: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    flushed: int = 0
    taken: Coverage = field(default_factory=Counter)
    broken: list[Broken] = field(default_factory=list)
    violations: int = 0
    missing: int = 0
    final: dict[tuple[str, str], Values] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Nothing is broken in what the trace tells."""
        return not self.violations

    @property
    def whole(self) -> bool:
        """The trace tells everything from the first event to the last."""
        return not self.missing

    @property
    def steps(self) -> Counter[str]:
        """Steps that are rows of a table, by machine."""
        steps: Counter[str] = Counter()
        for (machine, _), count in self.taken.items():
            steps[machine] += count
        return steps

    @property
    def rows(self) -> tuple[int, int]:
        """Rows taken, and rows there are."""
        return len(self.taken), sum(map(len, ROWS.values()))

    def document(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "head": self.head._asdict(),
            "events": self.events,
            "steps": dict(self.steps),
            "entities": dict(self.entities),
            "transactions": self.transactions,
            "answers": dict(self.answers),
            "flushed_bytes": self.flushed,
            "rows_taken": self.rows[0],
            "rows": self.rows[1],
            "missing": self.missing,
            "violations": self.violations,
            "broken": [{"seq": each.seq, "rule": each.rule, "entity": each.entity, "what": each.what} for each in self.broken],
            "holds": self.holds,
            "whole": self.whole,
        }


def check(records: Iterable[Record]) -> Report:
    """Check a whole trace, to its last line.

    Raises:
        TraceError: the records are no trace; from `cgstate.trace.read`, mostly.
    """
    stream = iter(records)
    head = next(stream, None)
    if not isinstance(head, Head):
        raise TraceError("a trace begins with its head")
    checker = Checker(head)
    for record in stream:
        checker.take(record)
    checker.end()
    return checker.report


class Checker:
    """One check, record by record. Use `check`."""

    __slots__ = ("_devices", "_domains", "_entities", "_fine", "_rows", "_taken", "_transactions", "_whole", "report")

    def __init__(self, head: Head) -> None:
        self.report = Report(head, missing=head.dropped)
        self._whole = not head.dropped
        self._taken = {name: [0] * len(rows) for name, rows in ROWS.items()}
        self._fine: set[Values] = set()  # what components may look like at rest
        self._rows = {name: replay.find(name) for name in MACHINE}
        self._entities: dict[tuple[str, str], Entity] = {}
        self._devices: dict[str, Device] = {}
        self._domains: dict[tuple[str, str], Domain] = {}
        self._transactions: dict[tuple[str, str], Transaction] = {}

    def take(self, record: Record) -> None:
        """Check the next record.

        Raises:
            TraceError: it is about an entity that nobody has introduced.
        """
        if isinstance(record, TransitionRecord):
            self._step(record)
        elif isinstance(record, NoticeRecord):
            self._notice(record)
        elif isinstance(record, EntityRecord):
            self._introduce(record)
        elif not isinstance(record, Head):
            self.report.missing += record.dropped

    def end(self) -> None:
        """After the last record: a device whose managers were closed must be at rest, and they must have left nothing."""
        for machine, counts in self._taken.items():
            self.report.taken.update({(machine, index): count for index, count in enumerate(counts) if count})
        self.report.final = {key: entity.values for key, entity in self._entities.items()}
        if not self.report.whole:
            return
        running = {
            each.device for each in self._entities.values() if each.machine == "manager" and each.state != ManagerState.CLOSED
        }
        for device in self._devices.values():
            if device not in running:  # else the recorder may have ended in the middle of an act
                for complaint in self._at_rest(device):
                    self._broken(0, *complaint)
        for complaint in self._unsettled():
            self._broken(0, *complaint)

    # -- one record ---------------------------------------------------------------------------------------------------

    def _introduce(self, record: EntityRecord) -> None:
        key = record.machine, record.entity
        old = self._entities.get(key)
        if old is not None and not _over(old):
            self._broken(self.report.events, "chain", record.entity, f"it is introduced again while it is {old.state}")
        manager = None if record.manager is None else self._entity("manager", record.manager)
        if manager is None:
            device = self._devices.setdefault(record.device or "", Device(record.device or "", whole=self._whole))
        else:
            device = manager.device
        entity = self._entities[key] = Entity(record, device, manager, whole=self._whole)
        self.report.entities[record.machine] += 1
        if record.component is not None:
            entity.component = self._entity("component", record.component)
        if record.domain is not None and manager is not None:
            place = manager.name, record.domain
            domain = self._domains.get(place)
            if domain is None:
                domain = self._domains[place] = Domain(record.domain, whole=self._whole)
            entity.domain = domain
            if record.machine == "entry":
                domain.entries = {each for each in domain.entries if each.name != record.entity}
                domain.entries.add(entity)

    def _notice(self, record: NoticeRecord) -> None:
        report = self.report
        report.events += 1
        if record.what == Notice.flushed:
            self._tick(record, self._entity("manager", record.entity))
            report.flushed += int(record.value)
            return
        component = self._entity("component", record.entity)
        self._tick(record, component)
        if record.what == Notice.answered:
            reason = str(record.value)
            report.answers[reason] += 1
            if reason not in _REASONS:
                self._broken(record.seq, "I9", record.entity, f"a call was answered eagerly for no known reason: {reason}")
        elif record.what == Notice.epoch:
            known = component.get("epoch")
            if isinstance(known, int) and record.value not in (known, known + 1):  # as it is, if this is how one heard of it
                self._broken(record.seq, "I8", record.entity, f"its epoch went from {known} to {record.value}")
            component.put("epoch", record.value)
        else:
            component.put("resident", record.value)

    def _step(self, record: TransitionRecord) -> None:
        seq, t_ns, machine, name, event, source, target, guard, *_ = record
        report = self.report
        report.events += 1
        entity = self._entities.get((machine, name)) or self._entity(machine, name)
        device = entity.device
        if t_ns < device.clock:
            self._broken(seq, "chain", name, "it comes before the event before it")
        device.clock = t_ns
        is_entry = machine == "entry"
        if is_entry and event in _STARTS and device.restless:
            for complaint in self._at_rest(device):
                self._broken(seq, *complaint)
        row = self._rows[machine].get((event, source, target, guard))
        if row is None:
            self._broken(seq, "table", name, f"no row of the {machine} table: {source} --{event}[{guard}]--> {target}")
            entity.put("state", target)
            return
        self._taken[machine][row.index] += 1
        values = entity.values
        if values[0] != source:
            if values[0] is not UNKNOWN:
                self._broken(seq, "chain", name, f"it was {values[0]}, not {source}")
            entity.values = (source, *values[1:])
        if is_entry:
            self._entry(record, row, entity)
        else:
            self._other(record, row, entity)

    def _entry(self, record: TransitionRecord, row: TraceRow, entry: Entity) -> None:
        """A step of an entry, which moves its component, its domain and the gate as well."""
        device, component, domain, manager = entry.device, entry.component, entry.domain, entry.manager
        assert domain is not None
        event = record.event
        if record.pool is not None and (event == EntryEvent.capture_begin or entry.pool is None):
            entry.pool = self._entity("pool", record.pool)
        pool = entry.pool
        values = entry.values
        leases, unreclaimed = values[_LEASES], values[_UNRECLAIMED]
        parameters: tuple[tuple[str, int], ...] = ()
        if event == EntryEvent.reclaim:
            where = set(entry.retired)
            if self._whole and len(where) == 1 and (only := where.pop()) is not None:
                parameters = (("pool_leases", only.leases),)
        outcome = replay.take(
            "entry",
            row.index,
            record.target,
            values,
            device.gate.values,
            pool.values if pool is not None else (),
            component.values,
            domain.values,
            manager.values,
            parameters,
            tuple(record.values.items()) if record.values is not None else (),
        )
        for rule, what in outcome.complaints:
            self._broken(record.seq, rule, record.entity, what)
        entry.values = outcome.own
        device.gate.values = outcome.gate
        if outcome.component is not component.values:
            component.values = outcome.component
            device.moved.add(component)
            device.restless = True
        domain.values = outcome.domain
        was_live, is_live = record.source in LIVE, record.target in LIVE
        known = domain.values[_DOMAIN_LIVE]
        if was_live is not is_live and isinstance(known, int):
            domain.put("live", known + is_live - was_live)
        now = entry.values[_LEASES]
        if isinstance(now, int) and isinstance(leases, int) and now != leases:
            manager.leases += now - leases
            if pool is not None:
                pool.leases += now - leases
        if row.reads:
            now = entry.values[_UNRECLAIMED]
            if isinstance(now, int) and isinstance(unreclaimed, int):
                self._keep(entry, now - unreclaimed)
            self._follow(record, row, entry, pool)
        elif entry.values[_UNRECLAIMED] != unreclaimed:
            self._keep(entry, 1)

    def _keep(self, entry: Entity, change: int) -> None:
        """One more recording of an entry waits for the reclaimer, or one less."""
        if change > 0:
            entry.retired.append(entry.pool)
        elif change < 0 and entry.retired:
            for pool in filter(None, set(entry.retired)):  # which of them is not said
                pool.reclaimed += 1
            entry.retired.pop(0)

    def _follow(self, record: TransitionRecord, row: TraceRow, entry: Entity, pool: Entity | None) -> None:
        """What a step that is no lease means to the gate, the transaction and the domain."""
        device, event = entry.device, record.event
        device.restless = True
        opened = device.holder is entry
        if event == EntryEvent.capture_begin:
            device.holder = entry
        elif opened and (record.target != EntryState.CAPTURING or event == EntryEvent.capture_end):
            device.holder = None
        if event in _ENDS or event == EntryEvent.capture_end:
            recording = pool is not None and pool.state == PoolState.RECORDING
            if self._whole and recording is not opened:
                what = "its pool is not RECORDING" if opened else "its pool is RECORDING still"
                self._broken(record.seq, "I3", record.entity, f"{event}, and {what}")
        if event == EntryEvent.evict and entry.domain is not None:
            device.thinned.add(entry.domain)
        if event in _TRANSACTIONAL:
            if record.transaction is None:
                self._broken(record.seq, "I1", record.entity, f"{event} belongs to no transaction")
            else:
                self._transact(record, row, entry)

    def _transact(self, record: TransitionRecord, row: TraceRow, entry: Entity) -> None:
        assert record.transaction is not None
        key = entry.manager.name, record.transaction
        transaction = self._transactions.get(key)
        if transaction is None:
            transaction = self._transactions[key] = Transaction(record.transaction)
            self.report.transactions += 1
        wrong = ""
        match record.event:
            case EntryEvent.capture_begin:
                transaction.captured.add(entry)
                if transaction.bound:
                    wrong = "a transaction that has bound captures again"
            case EntryEvent.bind:
                entry.device.binding.add(transaction)
                transaction.bound += 1
                if transaction.profiles:
                    wrong = "a profile binds"
                elif transaction.dropped or transaction.failed:
                    wrong = "a transaction binds after it has failed or was given up"
            case EntryEvent.abort if "recorded" in row.guard.split(" & "):
                transaction.dropped += 1
                if transaction.bound:
                    wrong = "a transaction that has bound gives up a recording"
            case EntryEvent.capture_fail:
                transaction.failed += 1
                if transaction.bound:
                    wrong = "a transaction that has bound fails"
                elif transaction.failed > 1 and not transaction.profiles:
                    wrong = "a transaction fails twice"
        if record.event in _ENDS:
            if entry not in transaction.captured and self._whole:
                wrong = wrong or f"{record.event} of an entry that its transaction does not hold"
            transaction.captured.discard(entry)
        if wrong:
            self._broken(record.seq, "I1", record.entity, f"{wrong} ({record.transaction})")

    def _other(self, record: TransitionRecord, row: TraceRow, entity: Entity) -> None:
        """A step of a component, a pool or a manager, which moves nothing else."""
        device, domain = entity.device, entity.domain
        parameters = (("leases", entity.leases),) if record.machine == "manager" and self._whole else ()
        outcome = replay.take(
            record.machine,
            row.index,
            record.target,
            entity.values,
            (),
            (),
            (),
            domain.values if domain is not None else (),
            (),
            parameters,
            tuple(record.values.items()) if record.values is not None else (),
        )
        for rule, what in outcome.complaints:
            self._broken(record.seq, rule, record.entity, what)
        entity.values = outcome.own
        device.restless = True
        if record.machine == "component":
            device.moved.add(entity)
        elif record.machine == "pool":
            if record.target == PoolState.RECORDING:
                device.recording.add(entity)
            else:
                device.recording.discard(entity)
            if record.event == PoolEvent.destroyed:
                if device.gate.values[0] is False:
                    self._broken(record.seq, "I3", record.entity, "a recording was destroyed while a capture was open")
                if not entity.reclaimed and self._whole:
                    self._broken(record.seq, "I2", record.entity, "a recording was destroyed that no entry had given up")
                entity.reclaimed -= 1
        elif record.event == ManagerEvent.device_lost:
            entity.lost = True

    # -- at rest ------------------------------------------------------------------------------------------------------

    def _at_rest(self, device: Device) -> Iterator[tuple[str, str, str]]:
        """What must be so between two acts: counts and states of components, domains, transactions and pools agree."""
        device.restless = False
        if device.moved:
            for component in device.moved:
                if component.values not in self._fine:
                    complaints = list(_half_moved(component))
                    yield from complaints
                    if not complaints and len(self._fine) < replay.REMEMBERED:
                        self._fine.add(component.values)
            device.moved.clear()
        if device.binding:
            for transaction in device.binding:
                for entry in transaction.captured:
                    yield "I1", entry.name, f"it is {entry.state}, and its transaction {transaction.name} has bound others"
            device.binding.clear()
        if device.thinned:
            for domain in device.thinned:
                for entry in domain.entries:
                    marked = entry.state == EntryState.REPLAYING and entry.get("retiring") is not False
                    if entry.usable and not marked:
                        yield "table", entry.name, f"its domain {domain.name} was evicted, and it is {entry.state}"
            device.thinned.clear()
        recording = device.holder.pool if device.holder is not None else None
        if device.recording and device.recording != {recording}:
            names = ", ".join(sorted(pool.name for pool in device.recording))
            yield "I3", device.name, f"{names} is RECORDING, and the open capture is {_capture(device.holder)}"
        elif recording is not None and not device.recording and self._whole:
            yield "I3", device.name, f"the open capture is {_capture(device.holder)}, and its pool is {recording.state}"

    def _unsettled(self) -> Iterator[tuple[str, str, str]]:
        """I15, in the form that a whole trace can show: a manager that was closed, and not lost, has left nothing."""
        for entity in self._entities.values():
            manager = entity.manager
            if manager.state != ManagerState.CLOSED or manager.lost:
                continue
            if entity.machine == "pool":
                left = entity.state != PoolState.GONE and entity.get("kind") != PoolKind.foreign
            elif entity.machine == "entry":
                left = entity.live or bool(entity.values[_UNRECLAIMED])
            else:
                left = entity.machine == "component" and entity.state != ComponentState.EAGER
            if left:
                yield "I15", entity.name, f"its manager is CLOSED, and it is still {entity.state}"

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _tick(self, record: NoticeRecord, entity: Entity) -> None:
        device = entity.device
        if record.t_ns < device.clock:
            self._broken(record.seq, "chain", record.entity, "it comes before the event before it")
        device.clock = record.t_ns

    def _entity(self, machine: str, name: str) -> Entity:
        found = self._entities.get((machine, name))
        if found is None:
            raise TraceError(f"event {self.report.events}: nobody has introduced the {machine} {name}")
        return found

    def _broken(self, seq: int, rule: str, entity: str, what: str) -> None:
        self.report.violations += 1
        if len(self.report.broken) < SHOWN:
            self.report.broken.append(Broken(seq, rule, entity, what))


_STARTS = frozenset(
    event.value for event in (EntryEvent.acquire, EntryEvent.release, EntryEvent.replay_fail, EntryEvent.capture_begin)
)
"""Events with which an act begins: nothing may be half done before them."""
_ENDS = frozenset({EntryEvent.bind.value, EntryEvent.abort.value, EntryEvent.capture_fail.value})
_TRANSACTIONAL = _ENDS | {EntryEvent.capture_begin.value, EntryEvent.capture_end.value}
_LEASES, _UNRECLAIMED = (1 + [var.name for var, _ in MACHINE["entry"].own].index(name) for name in ("leases", "unreclaimed"))
_DOMAIN_LIVE = 1
_REASONS = frozenset(reason.value for reason in Fallback)


def _over(entity: Entity) -> bool:
    """Whether an entity has come to an end, so that another one may have its name."""
    match entity.machine:
        case "entry":
            idle = entity.state in (EntryState.EAGER, UNKNOWN) or (entity.manager.state == ManagerState.CLOSED and not entity.live)
            return idle and not entity.values[_UNRECLAIMED]
        case "component":
            return entity.state in (ComponentState.EAGER, UNKNOWN)
        case "pool":
            return entity.state in (PoolState.GONE, UNKNOWN)
        case _:
            return entity.state in (ManagerState.CLOSED, UNKNOWN)


def _half_moved(component: Entity) -> Iterator[tuple[str, str, str]]:
    """A component is REPLAYING exactly while an entry is, and in use exactly while an entry is bound, or none needs to be."""
    state, bound, leased, lazy = component.state, component.get("bound"), component.get("leased"), component.get("pure_lazy")
    if state is UNKNOWN:
        return
    if isinstance(leased, int) and (leased > 0) != (state == ComponentState.REPLAYING):
        yield "I10", component.name, f"it is {state} with {leased} REPLAYING entries"
    if isinstance(bound, int):
        if bound and not component.usable:
            yield "I1", component.name, f"it is {state} with {bound} bound entries"
        if component.usable and not bound and not lazy:
            yield "I1", component.name, f"it is {state} without a bound entry"


def _capture(holder: Entity | None) -> str:
    return "none" if holder is None else f"that of {holder.name}"
