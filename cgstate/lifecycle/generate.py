"""Writes `steps`: one class a machine with one method an event, straight from the tables.

``python -m cgstate.lifecycle.generate`` rewrites the file; a test regenerates it and compares. Generated methods cost 70-130 ns
where interpreting the rows costs microseconds, and mypy reads them like any other code.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from cgstate.lifecycle.expr import Add, Among, And, Eq, Expr, Lit, Lt, Not, Or, Var, constant, node, python, variables
from cgstate.lifecycle.states import ComponentEvent, EntryEvent, EntryState
from cgstate.lifecycle.table import Machine, Row, Set
from cgstate.lifecycle.tables import COMPONENT, ENTRY, MACHINES, table_hash

QUESTIONS = frozenset({EntryEvent.acquire, EntryEvent.bind, EntryEvent.capture_begin, EntryEvent.evict})
"""Events that the runtime asks about before it fires them: one row a source, so the answer is that row's guards."""

OUTPUT = Path(__file__).with_name("steps.py")

HEADER = '''\
# Generated from the tables by `python -m cgstate.lifecycle.generate`; do not edit. Tables: {hash}
"""The transitions of the four machines as methods: what the runtime's entities inherit.

Each method takes the one row that its guards allow, applies its effects and tells the observer; where no row is allowed it raises
the refusal and has changed nothing. Callers hold the device's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, NoReturn, Protocol, TypeAlias

from cgstate.lifecycle.engine import observe, refusal
from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import (
    {enums},
)
from cgstate.lifecycle.table import Machine
from cgstate.lifecycle.tables import {machines}

{constants}

Observer: TypeAlias = "Callable[[Steps, int, str], None]"
"""Called after each step with the entity, the index of the row taken and the state before."""


class Steps:
    """What every stepping entity has."""

    __slots__ = ("observer",)

    machine: ClassVar[Machine]
    observer: Observer | None

    @property
    def name(self) -> str:
        """What refusals and traces call the entity."""
        raise TypeError("every entity names itself")'''


def source() -> str:
    """The text of the module."""
    constants = sorted({name for machine in MACHINES for name in _constants(machine)})
    enums = sorted({enum.__name__ for machine in MACHINES for enum in _enums(machine)})
    lines = [
        HEADER.format(
            hash=table_hash(),
            enums=",\n    ".join(enums),
            machines=", ".join(sorted(machine.name.upper() for machine in MACHINES)),
            constants="\n".join(f"{name}: Final = {name.replace('_', '.', 1)}" for name in constants),
        )
    ]
    for machine in MACHINES:
        lines.extend(_relations(machine))
        lines.extend(_class(machine))
    lines.extend(_shortcuts())
    return "\n".join(lines) + "\n"


def _constants(machine: Machine) -> Iterator[str]:
    def in_expr(expr: Expr) -> Iterator[str]:
        match node(expr):
            case Lit(value) if isinstance(value, StrEnum):
                yield constant(value)
            case Among(operand, values):
                yield from map(constant, values)
                yield from in_expr(operand)
            case Not(operand) | Add(operand, _):
                yield from in_expr(operand)
            case And(left, right) | Or(left, right) | Eq(left, right) | Lt(left, right):
                yield from in_expr(left)
                yield from in_expr(right)
            case _:
                return

    for row in machine.rows:
        yield from map(constant, row.sources)
        if not isinstance(row.target, Var):
            yield constant(row.target)
        for guard in row.guards:
            yield from in_expr(guard.expr)
        for effect in row.effects:
            yield from in_expr(effect.expr)


def _enums(machine: Machine) -> Iterator[type]:
    yield machine.states
    yield machine.events
    for var in (*(var for var, _ in machine.own), *machine.related):
        if isinstance(var.domain[0], StrEnum):
            yield type(var.domain[0])


def _type(var: Var) -> str:
    return type(var.domain[0]).__name__


def _assigned(machine: Machine) -> set[str]:
    return {effect.var.name for row in machine.rows for effect in row.effects}


def _relations(machine: Machine) -> Iterator[str]:
    owners: dict[str, list[Var]] = {}
    for var in machine.related:
        owner, _, attribute = var.name.rpartition(".")
        if owner:
            owners.setdefault(owner, []).append(Var(attribute, var.domain, var.doc))
    assigned = _assigned(machine)
    for owner, attributes in owners.items():
        yield ""
        yield ""
        yield f"class {machine.name.title()}{owner.title()}(Protocol):"
        yield f'    """What the {machine.name} table reads and assigns of the {owner}."""'
        for var in attributes:
            yield ""
            if f"{owner}.{var.name}" in assigned:
                yield f"    {var.name}: {_type(var)}"
                yield f'    """{var.doc.capitalize()}."""'
            else:
                yield "    @property"
                yield f"    def {var.name}(self) -> {_type(var)}:"
                yield f'        """{var.doc.capitalize()}."""'
                yield "        ..."


def _class(machine: Machine) -> Iterator[str]:
    owners = dict.fromkeys(var.name.rpartition(".")[0] for var in machine.related if "." in var.name)
    slots = ["state", *(var.name for var, _ in machine.own), *owners]
    yield ""
    yield ""
    yield f"class {machine.name.title()}Steps(Steps):"
    yield f'    """{machine.doc}"""'
    yield ""
    yield "    __slots__ = ("
    yield from (f'        "{slot}",' for slot in slots)
    yield "    )"
    yield ""
    yield f"    machine = {machine.name.upper()}"
    yield f"    state: {machine.states.__name__}"
    for var, _ in machine.own:
        yield f"    {var.name}: {_type(var)}"
        yield f'    """{var.doc.capitalize()}."""'
    for owner in owners:
        yield f"    {owner}: {machine.name.title()}{owner.title()}"
    yield ""
    yield "    def reset_variables(self) -> None:"
    yield '        """Give the state and every own variable its first value."""'
    yield "        self.observer = None"
    yield f"        self.state = {machine.states.__name__}.{machine.initial.name}"
    for var, first in machine.own:
        value = f"{type(first).__name__}.{first.name}" if isinstance(first, StrEnum) else repr(first)
        yield f"        self.{var.name} = {value}"
    for event in machine.events:
        rows = [(index, row) for index, row in enumerate(machine.rows) if row.event is event]
        yield from _method(machine, event, rows)
        if event in QUESTIONS:
            yield from _question(machine, event, rows)
    yield ""
    yield f"    def _refuse(self, event: {machine.events.__name__}, parameters: dict[str, Value]) -> NoReturn:"
    yield f"        env = observe({machine.name.upper()}, self, event, parameters)"
    yield f"        raise refusal({machine.name.upper()}, env, event, self.name)"


def _method(machine: Machine, event: StrEnum, rows: list[tuple[int, Row]]) -> Iterator[str]:
    parameters = machine.parameters.get(event, ())
    names = frozenset(var.name for var in parameters)
    signature = "".join(f", {var.name}: {_type(var)}" for var in parameters)
    yield ""
    yield f"    def {event.value}(self{', *' if parameters else ''}{signature}) -> None:"
    yield f'        """{rows[0][1].doc}"""'
    yield "        state = self.state"
    sources = list(dict.fromkeys(source for _, row in rows for source in row.sources))
    groups: dict[tuple[int, ...], list[StrEnum]] = {}
    for state in sources:
        groups.setdefault(tuple(index for index, row in rows if state in row.sources), []).append(state)
    keyword = "if"
    for indices, members in groups.items():
        if set(members) == set(machine.states):
            condition, pad = "", "        "
        elif len(members) == 1:
            condition, pad = f"        {keyword} state is {constant(members[0])}:", "            "
        else:
            condition, pad = f"        {keyword} state in ({', '.join(map(constant, members))}):", "            "
        if len(condition) > 132:
            yield f"        {keyword} state in ("
            yield from (f"            {constant(member)}," for member in members)
            yield "        ):"
        elif condition:
            yield condition
        keyword = "elif"
        for index in indices:
            row = machine.rows[index]
            body = pad
            if row.guards:
                yield from _condition(row, names, pad)
                body = pad + "    "
            yield from (f"{body}{line}" for line in _assignments(row, names))
            yield f"{body}if self.observer is not None:"
            yield f"{body}    self.observer(self, {index}, state)"
            yield f"{body}return"
            if not row.guards:
                break
    arguments = ", ".join(f'"{var.name}": {var.name}' for var in parameters)
    yield f"        self._refuse({machine.events.__name__}.{event.name}, {{{arguments}}})"


def _question(machine: Machine, event: StrEnum, rows: list[tuple[int, Row]]) -> Iterator[str]:
    parameters = machine.parameters.get(event, ())
    names = frozenset(var.name for var in parameters)
    signature = "".join(f", {var.name}: {_type(var)}" for var in parameters)
    yield ""
    yield f"    def may_{event.value}(self{', *' if parameters else ''}{signature}) -> bool:"
    yield f'        """Whether `{event.value}` would be taken now; changes nothing."""'
    yield "        state = self.state"
    for _, row in rows:
        for source in row.sources:
            yield f"        if state is {constant(source)}:"
            guards = [python(guard.expr, names) for guard in row.guards]
            yield from _spread("            return ", guards, "")
    yield "        return False"


def _condition(row: Row, names: frozenset[str], pad: str) -> Iterator[str]:
    guards = [python(guard.expr, names) for guard in row.guards]
    if len(guards) == 1 and isinstance(row.guards[0].expr, Or):
        guards = [guards[0].removeprefix("(").removesuffix(")")]
    yield from _spread(f"{pad}if ", guards, ":")


def _spread(before: str, guards: list[str], after: str) -> Iterator[str]:
    """A conjunction on one line, or on one line each where that would be too long."""
    line = f"{before}{' and '.join(guards)}{after}"
    if len(line) <= 132:
        yield line
        return
    pad = " " * (len(before) - len(before.lstrip()))
    yield f"{before}("
    yield f"{pad}    {guards[0]}"
    yield from (f"{pad}    and {guard}" for guard in guards[1:])
    yield f"{pad}){after}"


def _assignments(row: Row, names: frozenset[str], root: str = "self") -> Iterator[str]:
    # The state comes last: effects read the values from before the step, the state among them.
    for effect in row.effects:
        yield _assignment(effect, names, root)
    if not isinstance(row.target, Var):
        if (row.target,) != row.sources:
            yield f"{root}.state = {constant(row.target)}"
    elif row.target.name != "state":
        yield f"{root}.state = {root}.{row.target.name}"


def _assignment(effect: Set, names: frozenset[str], root: str) -> str:
    if isinstance(effect.expr, Add) and effect.expr.operand == effect.var:
        sign = "+" if effect.expr.number >= 0 else "-"
        return f"{root}.{effect.var.name} {sign}= {abs(effect.expr.number)}"
    return f"{root}.{effect.var.name} = {python(effect.expr, names, root)}"


# -- shortcuts: the rows of an undisturbed replay, for the hot path ------------------------------------------------------


def _row(machine: Machine, event: StrEnum, source: StrEnum, target: StrEnum) -> Row:
    (row,) = (row for row in machine.rows_for(source, event) if row.target == target)
    return row


def _facts(row: Row, root: str, given: frozenset[str] = frozenset()) -> list[str]:
    """The row's guards as source, but for those that are only about facts that are given to be in its favour."""
    return [python(guard.expr, root=root) for guard in row.guards if not {var.name for var in variables(guard.expr)} <= given]


def _shortcuts() -> Iterator[str]:
    bound, replaying = EntryState.BOUND, EntryState.REPLAYING
    acquire = _row(ENTRY, EntryEvent.acquire, bound, replaying)
    release = _row(ENTRY, EntryEvent.release, replaying, bound)
    first = _row(COMPONENT, ComponentEvent.first_lease, bound, replaying)
    last = _row(COMPONENT, ComponentEvent.last_release, replaying, bound)
    not_capturing = frozenset({"stream_capturing"})
    ready = [f"entry.state is {constant(bound)}", *_facts(acquire, "entry", not_capturing)]
    back = [f"entry.state is {constant(replaying)}", *_facts(release, "entry")]
    yield ""
    yield ""
    yield "def is_ready(entry: EntrySteps) -> bool:"
    yield '    """Whether `acquire` would take an idle entry, on a stream that is not capturing."""'
    yield from _spread("    return ", ready, "")
    yield ""
    yield ""
    yield "def lend(entry: EntrySteps, component: ComponentSteps) -> bool:"
    yield '    """`acquire` on an idle entry and `first_lease` on its component, in one; tells no observer.'
    yield ""
    yield "    False, with nothing changed, where that is not the row to take."
    yield '    """'
    yield from _spread("    if ", ready, ":")
    yield from (f"        {line}" for line in _assignments(acquire, frozenset(), "entry"))
    yield from _spread("        if ", [f"component.state is {constant(bound)}", *_facts(first, "component")], ":")
    yield from (f"            {line}" for line in _assignments(first, frozenset(), "component"))
    yield "        return True"
    yield "    return False"
    yield ""
    yield ""
    yield "def take_back(entry: EntrySteps, component: ComponentSteps) -> bool:"
    yield '    """`release` to idle and `last_release` to bound, in one; tells no observer.'
    yield ""
    yield "    False, with nothing changed, where that is not the row to take."
    yield '    """'
    yield from _spread("    if ", back, ":")
    yield from (f"        {line}" for line in _assignments(release, frozenset(), "entry"))
    yield from _spread("        if ", [f"component.state is {constant(replaying)}", *_facts(last, "component")], ":")
    yield from (f"            {line}" for line in _assignments(last, frozenset(), "component"))
    yield "        return True"
    yield "    return False"


if __name__ == "__main__":
    OUTPUT.write_text(source())
