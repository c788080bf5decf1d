"""What the system must satisfy, as data over cells: for the walker, for TLC, and for the Worlds of the lifecycle's own predicates.

`cgstate.lifecycle.rules` judges single steps of single machines. Here stands what only the system can show: counters against what
they count, several machines against each other, and steps seen from outside, whatever action made them.

Left out are what the model does not have: bytes (of I7 the count of recordings is here), values, streams (of I5 the host's side is
here), and everything of I4, I9 and I12 to I14 that is not a state.
"""

from __future__ import annotations

from dataclasses import dataclass

from cgstate.lifecycle.expr import Expr, Lit
from cgstate.lifecycle.states import ComponentState, EntryState, ManagerState, PoolState
from cgstate.spec.cells import (
    COMPONENTS,
    DOMAINS,
    ENTRIES,
    IN_USE,
    LIVE,
    NONE,
    POOLS,
    THE,
    TRUE,
    Kind,
    component,
    domain,
    entry,
    gate_foreign,
    gate_free,
    leases,
    left,
    live,
    manager_state,
    not_lost,
    number,
    of,
    pool,
    recording,
    serving,
    stale,
    transaction,
    usable,
)
from cgstate.spec.shared import domain_leases, draining, suspended
from cgstate.spec.terms import Count, Every, Objects, Plus, Total, cell, implies, then

C, E, M, P = ComponentState, EntryState, ManagerState, PoolState


@dataclass(frozen=True, slots=True)
class Property:
    """A condition with a name.

    Attributes:
        name: For cfg files and reports, e.g. ``I6_live_in_an_open_pool``.
        statement: The same in words.
        expr: The condition; of a step, over cells before and primed cells after it.
    """

    name: str
    statement: str
    expr: Expr


def every(condition: Expr, *parameters: tuple[str, Objects]) -> Expr:
    """For all objects."""
    for name, objects in reversed(parameters):
        condition = Every(name, objects, condition)
    return condition


ENTRY = (("e", ENTRIES), *THE)
COMPONENT = (("c", COMPONENTS),)
DOMAIN = (("d", DOMAINS), ("p", of("now", "domain", "d")))
OLD = (("d", DOMAINS), ("p", of("old", "domain", "d")))
POOL = (("p", POOLS),)
LEFT = (("e", ENTRIES), ("d", of("domain", "entry", "e")), ("p", of("pool", "entry", "e")))
in_component, in_domain = of("entry", "component", "c"), of("entry", "domain", "d")

state, pool_state = entry("state"), pool("state")
bound = Count("x", in_component, entry("state", "x").among(*IN_USE))
replaying = Count("x", in_component, entry("state", "x").eq(E.REPLAYING))
live_here = Count("x", in_domain, live("x"))
open_here = Count("x", in_domain, recording("x"))
captures = Count("x", ENTRIES, recording("x"))
then_captures = Count("x", ENTRIES, then(entry("state", "x")).eq(E.CAPTURING) & ~then(entry("recorded", "x")))
left_graphs = Total("x", in_domain, left("graphs", "x"))
what_is_left = Plus(left("graphs"), left("attempts"))
live_of = Count("x", in_component, live("x"))
left_of = Total("x", in_component, entry("unreclaimed", "x"))
transaction_failed = cell("transaction", "failed")


def now(p: str) -> Expr:
    """Whether a pool is the younger one of its domain; a constant of the shape."""
    return cell("pool", "now", p)


INVARIANTS = (
    Property(
        "I1_nothing_is_half_bound",
        "A component counts its bound entries; it is BOUND or REPLAYING exactly while it has one.",
        every(
            implies(
                usable,
                component("bound").eq(bound) & component("state").among(*IN_USE).eq(Lit(0).lt(bound)),
            ),
            *COMPONENT,
        ),
    ),
    Property(
        "I1_captured_in_a_transaction",
        "What is CAPTURING belongs to an open transaction; a profile has entries of its own, and nothing of it is ever bound.",
        every(
            implies(state.eq(E.CAPTURING), transaction.among(Kind.EXPLICIT, Kind.LAZY, Kind.PROFILE))
            & implies(entry("profiled"), ~state.among(*IN_USE) & implies(state.eq(E.CAPTURING), transaction.eq(Kind.PROFILE))),
            *ENTRY,
        )
        & every(implies(component("state").eq(C.CAPTURING), transaction.eq(Kind.EXPLICIT)), *COMPONENT),
    ),
    Property(
        "I2_what_is_live_exists",
        "A pool holds exactly the recordings of its live entries and those that wait for the reclaimer (I7: none is lost).",
        every(implies(not_lost, pool("graphs").eq(Plus(live_here, left_graphs))), *DOMAIN)
        & every(pool("graphs").eq(left_graphs), *OLD),
    ),
    Property(
        "I3_one_capture_at_a_time",
        "One capture is open at most, ours or another's, and has the gate; a pool is RECORDING exactly while one is open in it.",
        captures.lt(2)
        & implies(gate_foreign, captures.eq(0))
        & gate_free.eq(captures.eq(0) & ~gate_foreign)
        & every(pool_state.eq(P.RECORDING).eq(open_here.eq(1)), *DOMAIN),
    ),
    Property(
        "I3_domains_know_their_captures",
        "The count that keeps eviction off a domain with an open transaction is right.",
        every(domain("capturing").eq(Count("x", in_domain, entry("state", "x").eq(E.CAPTURING))), *DOMAIN),
    ),
    Property(
        "I5_turn",
        "Who has a pool's turn holds a lease on an entry of it, and nobody records into it meanwhile.",
        every(
            implies(domain("turn").eq(number("e")), Lit(0).lt(entry("leases")) & ~pool_state.eq(P.RECORDING)),
            *ENTRY,
        ),
    ),
    Property(
        "I6_live_in_an_open_pool",
        "What is live is in a pool that has not retired; the older pool of a domain has.",
        every(implies(live(), implies(not_lost, pool_state.among(P.RECORDING, P.LIVE))), *ENTRY)
        & every(pool_state.among(P.RETIRED, P.GONE), ("d", DOMAINS), ("p", of("old", "domain", "d"))),
    ),
    Property(
        "I6_gone_is_empty",
        "A pool that has gone holds no recording.",
        every(implies(pool_state.eq(P.GONE), pool("graphs").eq(0)), ("p", POOLS)),
    ),
    Property(
        "I7_what_is_left_is_counted",
        "What an entry has left to reclaim is what waits for the reclaimer; a fence that is ahead is behind work in flight.",
        every(entry("unreclaimed").eq(Total("p", of("pool", "entry", "e"), what_is_left)), *ENTRY)
        & every(implies(left("running"), pool("running")), *LEFT),
    ),
    Property(
        "I8_only_the_living_are_leased",
        "An entry is leased exactly while it is REPLAYING; one that is stale gives no further lease.",
        every(
            state.eq(E.REPLAYING).eq(Lit(0).lt(entry("leases")))
            & implies(usable & stale(), state.eq(E.REPLAYING) & entry("retiring")),
            *ENTRY,
        ),
    ),
    Property(
        "I8_what_is_away_is_not_used",
        "Memory that was given away for a while is leased by nobody, recorded by nobody, and the device is done with it.",
        implies(
            suspended & transaction.eq(Kind.NONE) & usable,
            leases.eq(0) & captures.eq(0) & every(~pool("running"), ("p", POOLS)),
        ),
    ),
    Property(
        "I10_leases_are_conserved",
        "The leases that an entry counts are those that somebody holds; no count is negative, and a component counts its own.",
        every(entry("leases").eq(entry("holders")) & ~entry("leases").lt(0), *ENTRY)
        & every(
            component("leased").eq(replaying) & component("state").eq(C.REPLAYING).eq(Lit(0).lt(replaying)),
            *COMPONENT,
        ),
    ),
    Property(
        "I11_capacity_is_kept",
        "Live and not yet reclaimed entries of a component are counted, and fit.",
        every(
            implies(usable, component("held").eq(Plus(live_of, left_of)) & ~component("capacity").lt(component("held"))),
            *COMPONENT,
        ),
    ),
)
"""What holds in every state."""

# -- steps --------------------------------------------------------------------------------------------------------------

ended = transaction.among(Kind.EXPLICIT, Kind.LAZY) & then(transaction).eq(Kind.NONE)
capturing = state.eq(E.CAPTURING)
begins = ~capturing & then(state).eq(E.CAPTURING)
destroyed = then(entry("unreclaimed")).lt(entry("unreclaimed")) & ~then(manager_state).eq(M.POISONED)
less_left = Plus(then(left("graphs", "e", "q")), then(left("attempts", "e", "q"))).lt(
    Plus(left("graphs", "e", "q"), left("attempts", "e", "q"))
)
leased = entry("leases").lt(then(entry("leases")))
launches = ~domain("turn").eq(number("e")) & then(domain("turn")).eq(number("e"))
retired = pool_state.eq(P.RETIRED)

STEPS = (
    Property(
        "I1_atomic_bind",
        "When a transaction ends, all that it has captured is bound, or all is as before; nothing else binds.",
        implies(
            ended & usable,
            every(implies(capturing, then(state).eq(E.BOUND)), *ENTRY)
            | every(implies(capturing, then(state).eq(entry("before"))), *ENTRY),
        )
        & every(implies(capturing & then(state).eq(E.BOUND), ended & ~transaction_failed), *ENTRY),
    ),
    Property(
        "I2_destroyed_when_unused",
        "A recording is destroyed with the gate free, no lease on its pool, and the device done with it.",
        every(
            implies(
                destroyed,
                gate_free
                & Every(
                    "q",
                    of("pool", "entry", "e"),
                    implies(less_left, ~left("running", "e", "q") & (~now("q") | domain_leases.eq(0))),
                ),
            ),
            *ENTRY,
        ),
    ),
    Property(
        "I3_quiet_capture",
        "A capture begins with the gate free, and no pool is dropped while one is open.",
        implies(captures.lt(then_captures) | then(gate_foreign) & ~gate_foreign, gate_free)
        & every(implies(retired & then(pool_state).eq(P.GONE) & ~then(manager_state).eq(M.POISONED), gate_free), *POOL),
    ),
    Property(
        "I5_one_turn_after_the_other",
        "A turn goes to nobody before it goes to another, and work is queued on the device only out of a turn.",
        every(
            implies(~domain("turn").eq(NONE), then(domain("turn")).eq(domain("turn")) | then(domain("turn")).eq(NONE))
            & implies(~pool("running") & then(pool("running")), ~domain("turn").eq(NONE) & then(domain("turn")).eq(NONE)),
            *DOMAIN,
        ),
    ),
    Property(
        "I6_retired_is_for_good",
        "A retired pool goes, or makes room for the next generation and goes then; a pool retires with its last live entry.",
        every(
            implies(
                retired,
                then(pool_state).among(P.RETIRED, P.GONE)
                | Every("q", of("old", "domain", "d"), then(pool("state", "q")).eq(P.RETIRED) & pool("state", "q").eq(P.GONE)),
            )
            & implies(
                then(pool_state).eq(P.RETIRED),
                Every("x", in_domain, ~then(entry("state", "x")).among(*LIVE)),
            ),
            *DOMAIN,
        )
        & every(implies(retired, then(pool_state).among(P.RETIRED, P.GONE)), *OLD),
    ),
    Property(
        "I6_no_capture_into_a_retired_pool",
        "A capture opens in a pool that is open, or in a fresh one.",
        every(
            implies(
                ~pool_state.eq(P.RECORDING) & then(pool_state).eq(P.RECORDING),
                pool_state.among(P.MINTED, P.LIVE) | then(pool("graphs")).eq(1),
            ),
            *DOMAIN,
        ),
    ),
    Property(
        "I8_leased_while_usable",
        "A lease is given only on what is bound, unmarked, current and resident, by a manager that serves.",
        every(
            implies(
                leased,
                state.among(*IN_USE) & ~entry("retiring") & ~entry("failed") & ~stale() & component("resident") & serving,
            ),
            *ENTRY,
        ),
    ),
    Property(
        "I8_dead_never_replays",
        "A launch takes the turn only of an entry that is leased, not retiring, not failed, on a device that is not lost.",
        every(implies(launches, state.eq(E.REPLAYING) & ~entry("retiring") & ~entry("failed") & usable), *ENTRY),
    ),
    Property(
        "I11_room_before_capture",
        "An entry begins to capture only where its component has room and its memory is there.",
        every(implies(begins, component("held").lt(component("capacity")) & component("resident") & usable), *ENTRY),
    ),
    Property(
        "end_is_final",
        "A lost device never serves again, and a closed manager stays closed.",
        implies(manager_state.eq(M.CLOSED), then(manager_state).eq(M.CLOSED))
        & implies(~not_lost, then(manager_state).among(M.POISONED, M.CLOSED)),
    ),
)
"""What holds for every step."""

# -- what must be possible, and what must happen ---------------------------------------------------------------------------

everything_gone = every(left("graphs").eq(0) & left("attempts").eq(0), *LEFT) & every(pool_state.eq(P.GONE), *POOL)
all_eager = every(state.eq(E.EAGER), ("e", ENTRIES)) & every(component("state").eq(C.EAGER), *COMPONENT)

GOALS = (
    (
        Property(
            "can_close",
            "From every state the manager can be closed, with nothing left.",
            manager_state.eq(M.CLOSED) & gate_free & everything_gone,
        ),
        TRUE,
    ),
    (
        Property(
            "can_start_anew", "While the device works, everything can become EAGER again.", usable & all_eager & everything_gone
        ),
        usable,
    ),
)
"""What can be reached from every state, or from every one that the second condition picks."""

SETTLED = Property(
    "I15_settled",
    "Once nobody starts anything new: no capture and no transaction is open, no lease is held, nobody waits, and what has retired "
    "has been reclaimed.",
    transaction.eq(Kind.NONE)
    & gate_free
    & leases.eq(0)
    & ~draining
    & every(domain("turn").eq(NONE), ("d", DOMAINS))
    & every(left("graphs").eq(0) & left("attempts").eq(0), *LEFT)
    & every(pool_state.among(P.MINTED, P.LIVE, P.GONE) & ~pool("running"), *POOL)
    & implies(manager_state.eq(M.PREPARED), every(~state.among(E.EVICTED, E.FAILED), ("e", ENTRIES))),
)
"""Where steps of progress, and nothing else, must lead."""
