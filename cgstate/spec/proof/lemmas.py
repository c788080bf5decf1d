"""The invariants that z3 shows to be inductive over single rows of the tables, for any number of entries, components and pools.

Each is a condition over arbitrary objects. Together they hold at first, and each row of each table keeps each of them, so they hold
for ever, whatever the runtime composes its steps of. What needs several machines to step at once (a component is BOUND exactly
while it has a bound entry) is no invariant of single rows; that is for the walker and TLC.

A **strengthening** is there because another one needs it: its sentence says which, and for what.

Counters are sums over any number of entries, which first-order logic does not speak of. So instead of the sum its change is proven:
a row of the entry table moves the counter of its component or domain by exactly what the entry itself contributes more or less, and
no other table moves it. With the sum right at first, it stays right.
"""

from __future__ import annotations

from dataclasses import dataclass

from cgstate.lifecycle.expr import Expr, Lit, variables
from cgstate.lifecycle.states import EntryState, ManagerState, PoolKind, PoolState
from cgstate.spec.cells import (
    COMPONENTS,
    ENTRIES,
    IN_USE,
    POOLS,
    component,
    entry,
    gate_free,
    live,
    manager_state,
    number,
    of,
    pool,
    recording,
    serving,
)
from cgstate.spec.terms import Objects, cell, implies, parts

NOTHING = Lit(0)
E, M, P = EntryState, ManagerState, PoolState


@dataclass(frozen=True, slots=True)
class Lemma:
    """An invariant of single rows.

    Attributes:
        name: Its name; with an id where it is part of an invariant of the design.
        statement: The same in words.
        parameters: The objects that it speaks of, arbitrary ones.
        holds: The condition.
        needed_by: For a strengthening, what cannot be proven without it; empty otherwise.
    """

    name: str
    statement: str
    parameters: tuple[tuple[str, Objects], ...]
    holds: Expr
    needed_by: str = ""

    @property
    def variables(self) -> frozenset[str]:
        """The variables that it speaks of, as ``kind.field``."""
        return frozenset(_variable(var.name) for var in variables(self.holds))


@dataclass(frozen=True, slots=True)
class Counter:
    """A variable that counts.

    Attributes:
        owner: ``component`` or ``domain``: of which kind the counting object is.
        field: The variable.
        statement: What it counts.
        counted: Whether entry ``x`` counts as one.
        more: What it counts for besides.
    """

    owner: str
    field: str
    statement: str
    counted: Expr
    more: Expr = NOTHING

    @property
    def name(self) -> str:
        """E.g. ``domain.capturing counts entries that are CAPTURING``."""
        return f"{self.owner}.{self.field} counts {self.statement}"


def _variable(name: str) -> str:
    kind, _, field = parts(name)
    return f"{kind}.{field}"


X = (("x", ENTRIES),)
X_POOL = (*X, ("p", of("now", "entry", "x")))
state = entry("state", "x")
before_begin = (E.EAGER, E.EVICTED, E.FAILED)
manager_before = cell("manager", "before")

LEMMAS = (
    Lemma(
        "I3 an open capture has the gate",
        "While the capture of an entry is open, the gate is not free.",
        X,
        implies(recording("x"), ~gate_free),
    ),
    Lemma(
        "I3 one capture at a time",
        "No two captures are open.",
        (*X, ("y", ENTRIES)),
        implies(recording("x") & recording("y"), number("x").eq(number("y"))),
    ),
    Lemma(
        "a recording is held only while capturing",
        "Only an entry that is CAPTURING has a recording in a transaction.",
        X,
        implies(entry("recorded", "x"), state.eq(E.CAPTURING)),
        needed_by="I3: a capture that begins with the mark of the last one would count as ended at once.",
    ),
    Lemma(
        "I6 live in an open pool",
        "The pool of an entry that is CAPTURING, BOUND or REPLAYING has not retired.",
        X_POOL,
        implies(live("x"), ~pool("state").among(P.RETIRED, P.GONE)),
    ),
    Lemma(
        "I6 gone is empty",
        "A pool that has gone holds no recording.",
        (("p", POOLS),),
        implies(pool("state").eq(P.GONE), pool("graphs").eq(0)),
    ),
    Lemma("recordings are not negative", "No pool has lost more recordings than it had.", (("p", POOLS),), ~pool("graphs").lt(0)),
    Lemma(
        "a pool that records has a recording",
        "While a capture is open in a pool, it counts already.",
        (("p", POOLS),),
        implies(pool("state").eq(P.RECORDING), Lit(0).lt(pool("graphs"))),
        needed_by="recordings are not negative: a capture that fails is counted off again.",
    ),
    Lemma(
        "a failed recording returns to an open pool",
        "The state that a pool returns to is MINTED or LIVE.",
        (("p", POOLS),),
        pool("before").among(P.MINTED, P.LIVE),
        needed_by="I6: a failure must not retire the pool of its siblings.",
    ),
    Lemma(
        "I4 nothing profiled is bound",
        "What is in a throwaway pool is not BOUND or REPLAYING.",
        X_POOL,
        implies(state.among(*IN_USE), ~pool("kind").eq(PoolKind.throwaway)),
    ),
    Lemma(
        "I8 leased while replaying",
        "An entry has leases exactly while it is REPLAYING.",
        X,
        state.eq(E.REPLAYING).eq(Lit(0).lt(entry("leases", "x"))),
    ),
    Lemma("I10 leases are not negative", "No lease ends twice.", X, ~entry("leases", "x").lt(0)),
    Lemma(
        "I8 the bound are unmarked",
        "What is BOUND, or about to be, is neither retiring nor failed: so the first lease needs no guard for that.",
        X,
        implies(state.among(E.CAPTURING, E.BOUND), ~entry("retiring", "x") & ~entry("failed", "x")),
    ),
    Lemma(
        "an attempt returns to where it may begin",
        "The state that an entry returns to is one that a capture begins from.",
        X,
        entry("before", "x").among(*before_begin),
        needed_by="I8: an abort must not make a bound or leased entry out of nothing.",
    ),
    Lemma(
        "a component returns to where it may begin",
        "The state that a component returns to is one that a transaction takes it in from.",
        (("c", COMPONENTS),),
        component("before").among(*before_begin),
        needed_by="the rules of the component: an abort must not make it BOUND or REPLAYING without an entry.",
    ),
    Lemma(
        "I7 what is left is not negative",
        "Nothing is reclaimed twice.",
        X,
        ~entry("unreclaimed", "x").lt(0),
    ),
    Lemma(
        "I11 capacity is kept",
        "A component never holds more than it may.",
        (("c", COMPONENTS),),
        ~component("capacity").lt(component("held")),
    ),
    Lemma(
        "only who has committed serves",
        "A manager that serves is SERVING, or CAPTURING some more.",
        (),
        implies(serving, manager_state.among(M.SERVING, M.CAPTURING)),
    ),
    Lemma(
        "a first transaction does not serve",
        "A transaction that began when PREPARED leads back there, and does not serve before it has committed.",
        (),
        manager_before.among(M.PREPARED, M.SERVING)
        & implies(manager_state.eq(M.CAPTURING) & manager_before.eq(M.PREPARED), ~serving),
        needed_by="only who has committed serves: a failure leads back to PREPARED.",
    ),
)

COUNTERS = (
    Counter("component", "bound", "entries that are BOUND or REPLAYING", state.among(*IN_USE)),
    Counter("component", "leased", "entries that are REPLAYING", state.eq(E.REPLAYING)),
    Counter(
        "component",
        "held",
        "live entries, and recordings that wait for the reclaimer",
        live("x"),
        entry("unreclaimed", "x"),
    ),
    Counter("domain", "capturing", "entries that are CAPTURING", state.eq(E.CAPTURING)),
)
