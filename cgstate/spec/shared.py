"""What several actions do: a pool retires, a recording goes to the reclaimer, a lease ends, a domain is evicted."""

from __future__ import annotations

from cgstate.lifecycle.expr import Expr, Lit
from cgstate.lifecycle.states import ComponentEvent, EntryEvent, EntryState, ManagerState, PoolEvent
from cgstate.spec.cells import (
    COMPONENTS,
    DOMAINS,
    FALSE,
    NONE,
    THE,
    TRUE,
    Kind,
    domain,
    entry,
    left,
    live,
    manager_state,
    number,
    of,
    pool,
    serving,
    transaction,
)
from cgstate.spec.statements import Assign, Do, ForEach, Statement, When
from cgstate.spec.terms import Count, Every, Objects, Total, cell

CV, EV, PV = ComponentEvent, EntryEvent, PoolEvent

OF_ENTRY = {"component": "c", "domain": "d", "pool": "p"}
"""What the entry table calls related, as parameters."""

draining = manager_state.eq(ManagerState.SERVING) & ~serving
"""Release or close has the manager, and waits for leases."""
suspended = ~Every("y", COMPONENTS, cell("component", "resident", "y"))
idle = transaction.eq(Kind.NONE) & ~draining
"""Nobody has the manager for an operation that must not overlap another."""

domain_live = Count("x", of("entry", "domain", "d"), live("x"))
domain_leases = Total("x", of("entry", "domain", "d"), entry("leases", "x"))

RETIRE_POOL: tuple[Statement, ...] = (Do("pool", PV.retire, "p", {"domain": "d"}, {"domain.live": domain_live}, optional=True),)
"""The pool in use goes when nothing live is left in its domain; its own table says whether."""

RETIRE_POOLS = ForEach("d", DOMAINS, (ForEach("p", of("now", "domain", "d"), RETIRE_POOL),))


def leave(what: str) -> tuple[Statement, ...]:
    """A recording, or what is left of an attempt, goes to the reclaimer; its fence is behind all that was launched so far."""
    return (Assign(left(what), left(what) + 1), When(pool("running"), (Assign(left("running"), TRUE),)))


RETIRED: tuple[Statement, ...] = (*leave("graphs"), Do("component", CV.last_retired, "c", optional=True), *RETIRE_POOL)
"""An entry has become EVICTED or FAILED."""

RELEASED: tuple[Statement, ...] = (
    Assign(entry("holders"), entry("holders") - 1),
    When(entry("state").among(EntryState.EVICTED, EntryState.FAILED), RETIRED),
    Do("component", CV.last_release, "c", optional=True),
)
"""What the end of a lease brings about."""


ALL_DONE: tuple[Statement, ...] = (
    Assign(pool("running"), FALSE),
    ForEach("x", of("entry", "pool", "p"), (Assign(left("running", "x"), FALSE),)),
)
"""The device has finished what was queued for a pool."""


def each_entry(objects: Objects, *body: Statement) -> ForEach:
    """For each entry ``e``, with its component ``c``, its domain ``d`` and the pool ``p`` in use there."""
    statements = body
    for name, those in reversed(THE):
        statements = (ForEach(name, those, statements),)
    return ForEach("e", objects, statements)


EVICT_DOMAIN = each_entry(
    of("entry", "domain", "d"),
    Do("entry", EV.evict, "e", OF_ENTRY, optional=True, then=(When(entry("state").eq(EntryState.EVICTED), RETIRED),)),
)
EVICT_ALL = ForEach("d", DOMAINS, (EVICT_DOMAIN,))

RETIRE_EVERYTHING: tuple[Statement, ...] = (
    EVICT_ALL,
    RETIRE_POOLS,
    ForEach("c", COMPONENTS, (Do("component", CV.forget, "c", optional=True),)),
)
"""What release and close have in common."""


def empty(p: str) -> Expr:
    """Whether a pool has gone, and nothing of it waits for the reclaimer."""
    nothing = left("graphs", "x", p).eq(0) & left("attempts", "x", p).eq(0)
    return pool("state", p).eq("GONE") & Every("x", of("entry", "pool", p), nothing)


turn_free = domain("turn").eq(NONE)
idle_lease = Lit(1).lt(entry("holders")) | (Lit(0).lt(entry("holders")) & ~domain("turn").eq(number("e")))
"""Somebody holds a lease on entry ``e`` and is not in the middle of a launch."""
