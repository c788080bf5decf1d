"""Retiring, reclaiming, and memory that moves or goes away for a while."""

from __future__ import annotations

from cgstate.lifecycle.expr import Expr, Lit
from cgstate.lifecycle.states import EntryEvent, ManagerState, PoolEvent
from cgstate.spec.cells import (
    COMPONENTS,
    DOMAINS,
    ENTRIES,
    FALSE,
    IN_USE,
    POOLS,
    TRUE,
    Kind,
    component,
    entry,
    gate_free,
    leases,
    left,
    manager_state,
    not_lost,
    of,
    pool,
    transaction,
    usable,
)
from cgstate.spec.shared import ALL_DONE, EVICT_ALL, EVICT_DOMAIN, OF_ENTRY, domain_leases, idle, suspended
from cgstate.spec.statements import Action, Assign, Do, ForEach, Statement
from cgstate.spec.terms import Every, some

EV, PV = EntryEvent, PoolEvent

LEFT = (
    ("e", ENTRIES),
    ("c", of("component", "entry", "e")),
    ("d", of("domain", "entry", "e")),
)
unused: dict[str, Expr] = {"pool_leases": domain_leases, "fence_passed": ~left("running")}
"""Where a recording is in the pool in use. In the old pool nothing is live, so nothing is leased there."""
unused_old: dict[str, Expr] = {"pool_leases": Lit(0), "fence_passed": ~left("running")}


def reclaim(what: str, which: str, given: dict[str, Expr], doc: str) -> Action:
    """The reclaimer destroys one recording, or what is left of one attempt, in the pool in use or in the old one."""
    return Action(
        f"reclaim_{what}_{which}",
        (*LEFT, ("p", of(which, "entry", "e"))),
        (~left(what).eq(0), not_lost),
        (
            Do("entry", EV.reclaim, "e", OF_ENTRY, given),
            *((Do("pool", PV.destroyed, "p"),) if what == "graphs" else ()),
            Assign(left(what), left(what) - 1),
        ),
        doc,
        progress=True,
    )


def each_component(statement: Statement) -> ForEach:
    """For every component."""
    return ForEach("c", COMPONENTS, (statement,))


RETIREMENTS = (
    Action(
        "evict",
        (("d", DOMAINS),),
        (idle, usable, some("x", of("entry", "domain", "d"), entry("state", "x").among(*IN_USE) & ~entry("retiring", "x"))),
        (EVICT_DOMAIN,),
        "A whole domain retires.",
    ),
    reclaim("graphs", "now", unused, "The reclaimer destroys a recording."),
    reclaim("graphs", "old", unused_old, "The same in the pool that has retired before."),
    reclaim("attempts", "now", unused, "The reclaimer lets go of what is left of an attempt."),
    reclaim("attempts", "old", unused_old, "The same in the pool that has retired before."),
    Action(
        "drop_pool",
        (("p", POOLS),),
        (gate_free, not_lost),
        (Do("pool", PV.reclaimed, "p"), ForEach("p", POOLS, ALL_DONE)),
        "The bytes of a retired pool return, which waits for the device (S3).",
        progress=True,
    ),
    Action(
        "forget",
        (("e", ENTRIES),),
        (manager_state.eq(ManagerState.PREPARED), idle),
        (Do("entry", EV.forget, "e"),),
        "After a release nothing is left of an entry but its name.",
        progress=True,
    ),
    Action(
        "invalidate",
        (),
        (idle, usable),
        (
            each_component(Assign(component("epoch"), Lit(1))),
            ForEach("e", ENTRIES, (Assign(entry("noted"), Lit(0)),)),
            EVICT_ALL,
        ),
        "Memory that every graph has baked in is about to move.",
    ),
    Action(
        "suspend",
        (),
        (idle, usable, ~suspended),
        (each_component(Assign(component("resident"), FALSE)), Assign(transaction, Lit(Kind.SUSPENDING))),
        "Memory that every component depends on is about to be given away: no new lease from here on.",
    ),
    Action(
        "suspended",
        (),
        (transaction.eq(Kind.SUSPENDING), usable, leases.eq(0), gate_free, Every("q", POOLS, ~pool("running", "q"))),
        (Assign(transaction, Lit(Kind.NONE)),),
        "Nothing uses it any more, on the host and on the device: it may go.",
        progress=True,
    ),
    Action(
        "give_up_suspending",
        (),
        (transaction.eq(Kind.SUSPENDING),),
        (each_component(Assign(component("resident"), TRUE)), Assign(transaction, Lit(Kind.NONE))),
        "Leases outlasted the wait, or the device is lost.",
        progress=True,
    ),
    Action(
        "resume",
        (),
        (idle, usable, suspended),
        (each_component(Assign(component("resident"), TRUE)),),
        "The memory is back.",
    ),
)
