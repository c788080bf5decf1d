"""Transactions: of a runner, of a miss, of a profile."""

from __future__ import annotations

from cgstate.lifecycle.expr import Lit
from cgstate.lifecycle.states import ComponentEvent, ComponentState, EntryEvent, EntryState, ManagerEvent, PoolEvent, PoolState
from cgstate.spec.cells import (
    COMPONENTS,
    ENTRIES,
    FALSE,
    POOLS,
    THE,
    TRUE,
    Kind,
    broken,
    component,
    entry,
    gate_free,
    left,
    of,
    pool,
    recording,
    serving,
    transaction,
    usable,
)
from cgstate.spec.shared import ALL_DONE, OF_ENTRY, RETIRE_POOLS, each_entry, empty, idle, leave, suspended, turn_free
from cgstate.spec.statements import Action, Assign, Do, ForEach, Statement, When
from cgstate.spec.terms import Every, some

C, E, P = ComponentState, EntryState, PoolState
CV, EV, MV, PV = ComponentEvent, EntryEvent, ManagerEvent, PoolEvent

explicit, profiling = transaction.eq(Kind.EXPLICIT), transaction.eq(Kind.PROFILE)
nothing_open = Every("x", ENTRIES, ~recording("x"))
in_transaction = some("x", ENTRIES, entry("state", "x").eq(E.CAPTURING))
old_empty = Every("q", of("old", "domain", "d"), empty("q"))

SERVED = (C.BOUND, C.REPLAYING, C.EVICTED)
"""Components whose misses may capture; others are owed an explicit capture."""

may_capture = (
    (entry("profiled").eq(TRUE) & profiling) | (~entry("profiled").eq(TRUE) & transaction.among(Kind.EXPLICIT, Kind.LAZY)),
    ~transaction.eq(Kind.LAZY) | (component("state").among(*SERVED) & ~in_transaction),
    ~broken | profiling,
    usable,
    component("resident"),
    turn_free,
)
"""Beside what the tables ask: the right transaction, one capture in a lazy one, none after a failure, memory that is there, and no
launch in the pool."""

CAPTURE: tuple[Statement, ...] = (
    Do("entry", EV.capture_begin, "e", OF_ENTRY, {"blocked": FALSE}),
    Do("pool", PV.begin, "p"),
    When(explicit & ~component("state").eq(C.CAPTURING), (Do("component", CV.begin, "c"),)),
)

PASS_DOWN = ForEach(
    "q",
    of("old", "domain", "d"),
    (
        *(Assign(pool(field, "q"), pool(field)) for field in ("state", "graphs", "running")),
        ForEach(
            "x",
            of("entry", "domain", "d"),
            (
                *(Assign(left(field, "x", "q"), left(field, "x")) for field in ("graphs", "attempts", "running")),
                *(Assign(left(field, "x"), Lit(0)) for field in ("graphs", "attempts")),
                Assign(left("running", "x"), FALSE),
            ),
        ),
    ),
)
"""The generation that has retired becomes the old one."""


TRANSACTIONS = (
    Action("prepare", (), (idle,), (Do("manager", MV.prepare),), "Components and configuration are accepted."),
    Action(
        "begin",
        (),
        (idle,),
        (Do("manager", MV.capture), Assign(transaction, Lit(Kind.EXPLICIT)), Assign(broken, FALSE)),
        "A runner opens a transaction.",
    ),
    Action(
        "begin_lazy",
        (),
        (idle, serving, ~suspended, some("c", COMPONENTS, component("state").among(*SERVED)), gate_free),
        (Assign(transaction, Lit(Kind.LAZY)), Assign(broken, FALSE)),
        "A miss captures; it moves nothing of the manager.",
    ),
    Action(
        "begin_profile",
        (),
        (idle,),
        (Do("manager", MV.profile_begin), Assign(transaction, Lit(Kind.PROFILE)), Assign(broken, FALSE)),
        "Bytes are measured in a throwaway pool.",
    ),
    Action(
        "capture",
        (("e", ENTRIES), *THE),
        may_capture,
        CAPTURE,
        "A capture begins in the pool that its domain has.",
    ),
    Action(
        "capture_anew",
        (("e", ENTRIES), *THE),
        (*may_capture, pool("state").among(P.RETIRED, P.GONE), empty("p") | old_empty),
        (
            When(~empty("p"), (PASS_DOWN,)),
            Assign(pool("state"), Lit(P.MINTED)),
            Assign(pool("graphs"), Lit(0)),
            Assign(pool("running"), FALSE),
            *CAPTURE,
        ),
        "A capture begins in a fresh pool: there was none, or its generation has retired.",
    ),
    Action(
        "end_capture",
        (("e", ENTRIES), *THE),
        (),
        (Do("entry", EV.capture_end, "e", OF_ENTRY), Do("pool", PV.end, "p"), *ALL_DONE),
        "The recording goes to the transaction. It was ordered after the work in flight in the pool, and waited for.",
        progress=True,
    ),
    Action(
        "fail_capture",
        (("e", ENTRIES), *THE),
        (),
        (
            Do("entry", EV.capture_fail, "e", OF_ENTRY),
            Do("pool", PV.fail, "p"),
            *leave("attempts"),
            When(explicit, (Do("component", CV.fail, "c", optional=True),)),
            Assign(broken, TRUE),
        ),
        "The device, the routine or another thread made the capture fail; it was undone.",
    ),
    Action(
        "interrupt_capture",
        (("e", ENTRIES), *THE),
        (recording(),),
        (
            Do("entry", EV.abort, "e", OF_ENTRY),
            Do("pool", PV.fail, "p"),
            *leave("attempts"),
            Assign(broken, TRUE),
        ),
        "Somebody pressed Ctrl-C.",
    ),
    Action(
        "commit",
        (),
        (transaction.among(Kind.EXPLICIT, Kind.LAZY), ~broken, usable, nothing_open, in_transaction | explicit),
        (
            each_entry(
                ENTRIES,
                When(
                    entry("state").eq(E.CAPTURING),
                    (
                        Do("entry", EV.bind, "e", OF_ENTRY, {"transaction.committing": TRUE}),
                        When(component("state").eq(C.EVICTED), (Do("component", CV.lazy_bind, "c"),)),
                    ),
                ),
            ),
            ForEach(
                "c",
                COMPONENTS,
                (
                    When(
                        explicit & component("state").among(C.CAPTURING, C.BOUND, C.REPLAYING),
                        (Do("component", CV.commit, "c"),),
                    ),
                ),
            ),
            When(explicit, (Do("manager", MV.commit),)),
            Assign(transaction, Lit(Kind.NONE)),
        ),
        "All are bound in one step (I1).",
        progress=True,
    ),
    Action(
        "abort",
        (),
        (transaction.among(Kind.EXPLICIT, Kind.LAZY, Kind.PROFILE), nothing_open),
        (
            each_entry(
                ENTRIES,
                When(entry("state").eq(E.CAPTURING), (Do("entry", EV.abort, "e", OF_ENTRY), *leave("graphs"))),
            ),
            ForEach(
                "c",
                COMPONENTS,
                (
                    When(
                        explicit & component("state").among(C.CAPTURING, C.BOUND, C.REPLAYING),
                        (Do("component", CV.abort, "c"),),
                    ),
                ),
            ),
            RETIRE_POOLS,
            When(explicit, (Do("manager", MV.fail, optional=True),)),
            When(~profiling, (Assign(transaction, Lit(Kind.NONE)),)),
            When(profiling, (Assign(transaction, Lit(Kind.CLEARING)),)),
        ),
        "All is dropped, every state is as before; the only way out of a profile.",
        progress=True,
    ),
    Action(
        "end_profile",
        (),
        (
            transaction.eq(Kind.CLEARING),
            Every(
                "x", ENTRIES, ~entry("profiled", "x").eq(TRUE) | (entry("unreclaimed", "x").eq(0) & entry("state", "x").eq(E.EAGER))
            ),
            Every("q", POOLS, ~pool("kind", "q").eq("throwaway") | pool("state", "q").eq(P.GONE)),
        ),
        (Do("manager", MV.profile_end, optional=True), Assign(transaction, Lit(Kind.NONE))),
        "Everything made inside is gone (I4).",
        progress=True,
    ),
)
