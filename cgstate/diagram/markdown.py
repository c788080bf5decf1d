"""Markdown: the whole of a table, one row a line, with guards, effects, refusals and reasons; and for the overview the acts."""

from __future__ import annotations

from collections.abc import Iterator

from cgstate.diagram.overview import ACTS
from cgstate.diagram.taken import Taken
from cgstate.lifecycle.expr import Add, Among, And, Eq, Expr, Lit, Lt, Not, Or, Var, node
from cgstate.lifecycle.table import Guard, Machine, Row, Set
from cgstate.lifecycle.tables import MACHINES


def machine(table: Machine, taken: Taken | None = None) -> str:
    """A machine's rows and variables."""
    lines = [f"# {table.name}", "", table.doc, ""]
    lines += [f"States: {', '.join(_states(table))}.", ""]
    count = "" if taken is None else " taken |"
    lines += [
        f"| event | from | to | needs | does | why |{count}",
        f"|---|---|---|---|---|---|{'---|' if taken is not None else ''}",
    ]
    lines += (_row(table, row, taken) for row in table.rows)
    lines += ["", *_variables(table)]
    return "\n".join(lines) + "\n"


def overview(taken: Taken | None = None) -> str:
    """What each machine does in each act."""
    names = [table.name for table in MACHINES]
    lines = ["# The four machines step together", "", "| act | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for number, act in enumerate(ACTS, 1):
        cells = []
        for table in MACHINES:
            events = [event for event in act.events if isinstance(event, table.events)]
            cells.append(", ".join(f"`{event}`{_times(table, event, taken)}" for event in events))
        lines.append(f"| {number}. {act.name} | {' | '.join(cells)} |")
    rest = [
        f"{table.name} `{event}`{_times(table, event, taken)}"
        for table in MACHINES
        for event in table.events
        if not any(type(other) is table.events and other == event for act in ACTS for other in act.events)
    ]
    lines += ["", f"Alone: {', '.join(rest)}."]
    return "\n".join(lines) + "\n"


def _states(table: Machine) -> Iterator[str]:
    for state in table.states:
        first, last = " (first)" if state is table.initial else "", " (last)" if state in table.final else ""
        yield f"{state}{first}{last}"


def _row(table: Machine, row: Row, taken: Taken | None) -> str:
    sources = "any" if set(row.sources) == set(table.states) else ", ".join(row.sources)
    target = row.target.value if not isinstance(row.target, Var) else _to(row.target)
    cells = [f"`{row.event}`", sources, target, _needs(row.guards), _does(row.effects), row.doc]
    if taken is not None:
        cells.append(f"{taken.of_row(table, row):,}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _to(target: Var) -> str:
    return "the same" if target.name == "state" else f"`{target.name}`"


def _needs(guards: tuple[Guard, ...]) -> str:
    """Guards by name; the refusal in brackets where it is more than `IllegalTransition`."""
    return "<br>".join(
        guard.name + (f" (`{guard.refusal.__name__}`)" if guard.refusal.__name__ != "IllegalTransition" else "") for guard in guards
    )


def _does(effects: tuple[Set, ...]) -> str:
    return "<br>".join(f"`{effect.var.name} := {_text(effect.expr)}`" for effect in effects)


def _variables(table: Machine) -> Iterator[str]:
    yield "| variable | first | meaning |"
    yield "|---|---|---|"
    for var, first in table.own:
        yield f"| `{var.name}` | {_text(Lit(first))} | {var.doc} |"
    for var in table.related:
        yield f"| `{var.name}` | | {var.doc} |"
    for event, parameters in table.parameters.items():
        for var in parameters:
            yield f"| `{var.name}` | said with `{event}` | {var.doc} |"


def _times(table: Machine, event: str, taken: Taken | None) -> str:
    if taken is None:
        return ""
    count = sum(taken.of_row(table, row) for row in table.rows if row.event == event)
    return f" ×{count:,}" if count else ""


def _text(expr: Expr) -> str:
    """An expression as a person writes it."""
    match node(expr):
        case Var(name):
            return name
        case Lit(value):
            return str(value).lower() if isinstance(value, bool) else str(value)
        case Not(operand):
            return f"not {_text(operand)}"
        case And(left, right):
            return f"{_text(left)} and {_text(right)}"
        case Or(left, right):
            return f"({_text(left)} or {_text(right)})"
        case Eq(left, right):
            return f"{_text(left)} = {_text(right)}"
        case Lt(left, right):
            return f"{_text(left)} < {_text(right)}"
        case Among(operand, values):
            return f"{_text(operand)} in {{{', '.join(values)}}}"
        case Add(operand, number):
            return f"{_text(operand)} {'+' if number >= 0 else '−'} {abs(number)}"
