"""A trace as a TLA+ module, so that TLC says as well whether it obeys the tables: another checker, another language, the same rows.

The module holds the events of the trace as data, and every row of the tables as an action. A step is possible only if the row's
guards hold on what the rows before it have led to. Conditions over what a trace does not tell (parameters of events, whether the
transaction commits) are left out. The invariant `FINISHED` is violated by a trace that is accepted to its last event; if it holds,
the search is as deep as there are events that were accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from cgstate.lifecycle.expr import Value, Var, variables
from cgstate.lifecycle.states import EntryEvent
from cgstate.lifecycle.tables import MACHINE, table_hash
from cgstate.spec.tla import term, value
from cgstate.spec.tlc import Options, Result, Verdict, check
from cgstate.trace.known import FIRST, LAYOUT, LIVE
from cgstate.trace.records import EntityRecord, Head, NoticeRecord, Record, TransitionRecord
from cgstate.trace.replay import find
from cgstate.trace.rows import ROWS, TraceRow

NAME = "CGStateTrace"
FINISHED = "NotFinished"
"""The invariant that an accepted trace violates."""

PLACES = {
    "gate": "gates[Device[Manager[x]]]",
    "pool": "pools[pool]",
    "component": "components[Component[x]]",
    "domain": "domains[Domain[x]]",
    "manager": "managers[Manager[x]]",
}
"""Where a related object's variables are, for the entity ``x``."""
VARIABLES = {"gate": "gates", "component": "components", "domain": "domains"}
"""What rows assign besides the entity itself."""
LARGEST = 2**31 - 1
UNTOLD = frozenset({"transaction.committing"})


def accepted(records: Iterable[Record], options: Options | None = None) -> tuple[int, int]:
    """How many events TLC accepts, and how many there are; all, if the trace obeys the tables.

    Raises:
        ToolMissing: Java or TLC is missing.
        ValueError: TLC came to no verdict.
    """
    text, count = module(records)
    config = f"SPECIFICATION Spec\nINVARIANT {FINISHED}\n"
    result: Result = check({f"{NAME}.tla": text, f"{NAME}.cfg": config}, NAME, options or Options(workers=1, heap_mb=1024))
    if result.verdict is Verdict.violated and result.property == FINISHED:
        return count, count
    if result.verdict is not Verdict.holds:
        raise ValueError(f"TLC has come to no verdict: {result.message or result.property}")
    return result.depth - 1, count


def module(records: Iterable[Record]) -> tuple[str, int]:
    """The module, and how many events it has; where an entity is introduced counts as one.

    Raises:
        TraceError: from the records; see `cgstate.trace.read`.
    """
    belongings: dict[str, dict[str, str]] = {"Manager": {}, "Component": {}, "Domain": {}, "Device": {}}
    events = list(_events(records, belongings))
    lines = [
        f"\\* A recorded run, of the transition tables {table_hash()[:16]}.",
        f"---- MODULE {NAME} ----",
        "EXTENDS Integers, Sequences, FiniteSets, TLC",
        "",
        "VARIABLES at, entries, components, pools, managers, domains, gates, poolOf",
        "vars == <<at, entries, components, pools, managers, domains, gates, poolOf>>",
        "",
        *(f"{name} == {_function(of)}" for name, of in belongings.items()),
        "",
        "Events == <<",
        ",\n".join(f"  {event}" for event in events),
        ">>",
        "",
        "Init ==",
        "  /\\ at = 1",
        "  /\\ entries = <<>> /\\ components = <<>> /\\ pools = <<>> /\\ managers = <<>> /\\ poolOf = <<>>",
        "  /\\ domains = [d \\in {Domain[x] : x \\in DOMAIN Domain} |-> [capturing |-> 0]]",
        "  /\\ gates = [d \\in {Device[x] : x \\in DOMAIN Device} |-> [free |-> TRUE]]",
        "",
        "With(f, x, it) == [y \\in DOMAIN f \\union {x} |-> IF y = x THEN it ELSE f[y]]",
        "",
        *(line for rows in ROWS.values() for row in rows for line in _action(row)),
        *_others(),
        "Next == at <= Len(Events) /\\ at' = at + 1 /\\ LET ev == Events[at] IN",
        *(f'  \\/ ev.what = "{_name(row)}" /\\ {_name(row)}(ev.who)' for rows in ROWS.values() for row in rows),
        '  \\/ ev.what = "introduced" /\\ Introduced(ev)',
        '  \\/ ev.what = "epoch" /\\ Epoch(ev.who, ev.number)',
        '  \\/ ev.what = "resident" /\\ Resident(ev.who, ev.flag)',
        "",
        "Spec == Init /\\ [][Next]_vars",
        f"{FINISHED} == at <= Len(Events)",
        "====",
        "",
    ]
    return "\n".join(lines), len(events)


# -- the events -------------------------------------------------------------------------------------------------------


def _events(records: Iterable[Record], belongings: Mapping[str, dict[str, str]]) -> Iterator[str]:
    rows = {name: find(name) for name in MACHINE}
    for record in records:
        if isinstance(record, Head) and record.dropped:
            raise ValueError("TLC checks whole traces only: of this one the beginning is missing")
        if isinstance(record, EntityRecord):
            _note(record, belongings)
            known = {name: _small(known) for name, known in {**FIRST[record.machine], **record.values}.items()}
            first = _record({name: known[name] for name in LAYOUT[record.machine]})
            yield _record({"what": "introduced", "who": record.entity, "machine": record.machine}, first=first)
        elif isinstance(record, TransitionRecord):
            row = rows[record.machine].get((record.event, record.source, record.target, record.guard))
            what = _name(row) if row is not None else "no row"
            target = {"source": record.source, "target": record.target, "pool": record.pool or ""}
            yield _record({"what": what, "who": record.entity, **target})
        elif isinstance(record, NoticeRecord) and record.what in ("epoch", "resident"):
            told = {"number" if record.what == "epoch" else "flag": record.value}
            yield _record({"what": record.what, "who": record.entity, **told})


def _note(record: EntityRecord, belongings: Mapping[str, dict[str, str]]) -> None:
    """Say what an entity belongs to; names of one machine are not names of another's."""
    manager = record.manager or record.entity
    belongings["Manager"][_key(record)] = manager
    if record.device is not None:
        belongings["Device"][manager] = record.device
    if record.component is not None:
        belongings["Component"][_key(record)] = record.component
    if record.domain is not None:
        belongings["Domain"][_key(record)] = f"{manager} {record.domain}"


def _small(number: Value) -> Value:
    """TLC counts in 32 bits; what is larger stands for no limit."""
    return min(number, LARGEST) if type(number) is int else number


def _key(record: EntityRecord) -> str:
    return f"{record.machine} {record.entity}"


def _record(fields: Mapping[str, Value], **texts: str) -> str:
    written = {name: json.dumps(each) if type(each) is str else value(each) for name, each in fields.items()} | texts
    return f"[{', '.join(f'{name} |-> {text}' for name, text in written.items())}]"


def _function(of: Mapping[str, str]) -> str:
    """A function from names to names."""
    return " @@ ".join(f"({json.dumps(name)} :> {json.dumps(to)})" for name, to in of.items()) or "<<>>"


# -- the rows ---------------------------------------------------------------------------------------------------------


def _name(row: TraceRow) -> str:
    return f"{row.machine}_{row.index}_{row.row.event}"


def _action(row: TraceRow) -> Iterator[str]:
    """A row as an action of the entity ``who``."""
    machine = MACHINE[row.machine]
    function = {"entry": "entries", "component": "components", "pool": "pools", "manager": "managers"}[row.machine]
    untold = UNTOLD | {var.name for var in machine.parameters.get(row.row.event, ())}
    guards = [guard for guard in row.row.guards if untold.isdisjoint(var.name for var in variables(guard.expr))]
    effects: dict[str, list[str]] = {}
    for effect in row.row.effects:
        head, _, field = effect.var.name.rpartition(".")
        effects.setdefault(head, []).append(f"!.{field} = {term(effect.expr)}")
    effects.setdefault("", []).append("!.state = Events[at].target")
    read = {var.name for guard in guards for var in variables(guard.expr)}
    read |= {var.name for effect in row.row.effects for var in variables(effect.expr)} | {"state"}
    if isinstance(row.row.target, Var):
        read.add(row.row.target.name)
    yield f"{_name(row)}(who) =="
    yield f'  LET x == "{row.machine} " \\o who'
    if row.machine == "entry":
        begins = row.row.event is EntryEvent.capture_begin
        yield f"      pool == {'Events[at].pool' if begins else 'poolOf[who]'}"
    for name in sorted(read):
        yield f"      {term_name(name)} == {_place(name, function)}"
    yield "  IN"
    yield f"    /\\ state \\in {{{', '.join(value(source) for source in row.row.sources)}}} /\\ state = Events[at].source"
    for guard in guards:
        yield f"    /\\ {term(guard.expr)} \\* {guard.name}"
    target = term(row.row.target) if isinstance(row.row.target, Var) else value(row.row.target)
    yield f"    /\\ Events[at].target = {target}"
    for head, assigned in effects.items():
        whole, index = (function, "who") if not head else (VARIABLES[head], PLACES[head].split("[", 1)[1][:-1])
        yield f"    /\\ {whole}' = [{whole} EXCEPT ![{index}] = [@ EXCEPT {', '.join(assigned)}]]"
    changed = {function} | {VARIABLES[head] for head in effects if head}
    if row.machine == "entry" and row.row.event is EntryEvent.capture_begin:
        yield "    /\\ poolOf' = With(poolOf, who, pool)"
        changed.add("poolOf")
    yield f"    /\\ UNCHANGED <<{', '.join(each for each in _ALL if each not in changed)}>>"
    yield ""


def term_name(name: str) -> str:
    """A variable of the tables as the module calls it."""
    return name.replace(".", "_")


def _place(name: str, function: str) -> str:
    head, _, field = name.rpartition(".")
    if not head:
        return f"{function}[who].{field}"
    if name == "domain.live":
        live = ", ".join(json.dumps(state) for state in sorted(LIVE))
        mine = 'Domain["entry " \\o e] = Domain[x] /\\ entries[e].state'
        return f"Cardinality({{e \\in DOMAIN entries : {mine} \\in {{{live}}}}})"
    return f"{PLACES[head]}.{field}"


_ALL = ("entries", "components", "pools", "managers", "domains", "gates", "poolOf")


def _others() -> Iterator[str]:
    """What is no row: an entity is met, memory moves, goes or comes back."""
    yield "Introduced(ev) =="
    for machine, function in {"entry": "entries", "component": "components", "pool": "pools", "manager": "managers"}.items():
        rest = ", ".join(each for each in _ALL if each != function)
        yield f'  \\/ ev.machine = "{machine}" /\\ {function}\' = With({function}, ev.who, ev.first) /\\ UNCHANGED <<{rest}>>'
    rest = ", ".join(each for each in _ALL if each != "components")
    yield ""
    for name, field in (("Epoch", "epoch"), ("Resident", "resident")):
        yield f"{name}(who, it) == components' = [components EXCEPT ![who].{field} = it] /\\ UNCHANGED <<{rest}>>"
    yield ""
