"""What a transition table is: rows of (event, sources, target, guards, effects, doc) over declared variables.

Pure data with lookups; `tables` holds the four literal tables, `engine` runs one, `lint` judges one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from cgstate.errors import IllegalTransition, TableError
from cgstate.lifecycle.expr import Expr, Var, python, variables


@dataclass(frozen=True, slots=True)
class Guard:
    """A named condition of a row.

    Attributes:
        name: What must hold, as a person says it; a refusal carries it.
        expr: The condition.
        refusal: The error raised when this guard says no.
    """

    name: str
    expr: Expr
    refusal: type[IllegalTransition] = IllegalTransition


@dataclass(frozen=True, slots=True)
class Set:
    """An effect: assign to a variable. All effects of a row read the values from before the step."""

    var: Var
    expr: Expr


@dataclass(frozen=True, slots=True)
class Row:
    """One transition.

    Attributes:
        event: The event.
        sources: States it may be taken from.
        target: The state afterwards; a `Var` when the state before is returned to.
        guards: All must hold.
        effects: Assignments, all at once.
        doc: Why the row is there.
    """

    event: StrEnum
    sources: tuple[StrEnum, ...]
    target: StrEnum | Var
    guards: tuple[Guard, ...] = ()
    effects: tuple[Set, ...] = ()
    doc: str = ""

    @property
    def label(self) -> str:
        """A stable name: event, sources, target and the guards' names."""
        target = self.target.name if isinstance(self.target, Var) else self.target.value
        guards = " & ".join(guard.name for guard in self.guards)
        return f"{'|'.join(self.sources)} --{self.event}[{guards}]--> {target}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A whole table.

    Attributes:
        name: ``entry``, ``component``, ``pool`` or ``manager``.
        states: The state enum.
        events: The event enum.
        initial: The first state.
        own: Variables of the entity, with their first value.
        related: Variables of related objects that guards read and effects may assign.
        parameters: Per event, the facts that the caller brings along.
        rows: The transitions.
        overlaps: Pairs of row labels that may be enabled together on purpose; the linter refuses any other.
        final: States that need no way out.
        doc: What the machine describes.
    """

    name: str
    states: type[StrEnum]
    events: type[StrEnum]
    initial: StrEnum
    own: tuple[tuple[Var, bool | int | StrEnum], ...]
    related: tuple[Var, ...]
    parameters: dict[StrEnum, tuple[Var, ...]]
    rows: tuple[Row, ...]
    final: frozenset[StrEnum] = frozenset()
    overlaps: frozenset[tuple[str, str]] = frozenset()
    doc: str = ""
    _index: dict[tuple[StrEnum, StrEnum], tuple[Row, ...]] = field(init=False, default_factory=dict, compare=False, repr=False)
    _reads: dict[tuple[StrEnum, StrEnum], tuple[str, ...]] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        known = {"state"} | {var.name for var, _ in self.own} | {var.name for var in self.related}
        for row in self.rows:
            local = known | {var.name for var in self.parameters.get(row.event, ())}
            for var in self.variables_of(row):
                if var.name not in local:
                    raise TableError(f"{self.name}: row {row.label} reads undeclared variable {var.name}")
            for source in row.sources:
                self._index[source, row.event] = (*self._index.get((source, row.event), ()), row)
        for key, rows in self._index.items():
            names = (var.name for row in rows for guard in row.guards for var in variables(guard.expr))
            self._reads[key] = tuple(dict.fromkeys(names))

    @staticmethod
    def variables_of(row: Row) -> Iterator[Var]:
        """Variables that a row reads or assigns."""
        for guard in row.guards:
            yield from variables(guard.expr)
        for effect in row.effects:
            yield effect.var
            yield from variables(effect.expr)
        if isinstance(row.target, Var):
            yield row.target

    def rows_for(self, state: StrEnum, event: StrEnum) -> tuple[Row, ...]:
        """Rows that could be taken from ``state`` on ``event``, in table order."""
        return self._index.get((state, event), ())

    def read_for(self, state: StrEnum, event: StrEnum) -> tuple[str, ...]:
        """Names of the variables that the guards of these rows read."""
        return self._reads.get((state, event), ())

    def fingerprint(self) -> str:
        """SHA-256 over everything that gives the table its meaning; docs are left out."""
        digest = hashlib.sha256()
        for line in self._meaning():
            digest.update(line.encode())
            digest.update(b"\n")
        return digest.hexdigest()

    def _meaning(self) -> Iterator[str]:
        yield f"{self.name} {self.initial} {','.join(self.states)} {','.join(sorted(self.final))}"
        for var, first in self.own:
            yield f"own {var.name} {first!r}"
        for row in self.rows:
            names = frozenset(var.name for var in self.parameters.get(row.event, ()))
            guards = " & ".join(f"{g.name}: {python(g.expr, names)} -> {g.refusal.__name__}" for g in row.guards)
            effects = "; ".join(f"{e.var.name} := {python(e.expr, names)}" for e in row.effects)
            yield f"{row.label} | {guards} | {effects}"
        yield from sorted(f"overlap {' and '.join(sorted(pair))}" for pair in self.overlaps)
