"""The end: release, close, and waiting for leases before."""

from __future__ import annotations

from cgstate.lifecycle.expr import Lit
from cgstate.lifecycle.states import EntryEvent, ManagerEvent, ManagerState, PoolState
from cgstate.spec.cells import ENTRIES, FALSE, POOLS, Kind, leases, left, manager_state, of, pool, serving, transaction
from cgstate.spec.shared import RETIRE_EVERYTHING, idle
from cgstate.spec.statements import Action, Assign, Do, ForEach, Statement, When

MV = ManagerEvent

quiet = (transaction.eq(Kind.NONE), ~serving, leases.eq(0))

LET_GO: tuple[Statement, ...] = (
    ForEach(
        "p",
        POOLS,
        (
            Assign(pool("state"), Lit(PoolState.GONE)),
            Assign(pool("graphs"), Lit(0)),
            Assign(pool("running"), FALSE),
            ForEach(
                "e",
                of("entry", "pool", "p"),
                (Assign(left("graphs"), Lit(0)), Assign(left("attempts"), Lit(0)), Assign(left("running"), FALSE)),
            ),
        ),
    ),
)
"""Of a lost device nothing is touched any more, only forgotten (F7)."""

ENDINGS = (
    Action("drain", (), (idle,), (Do("manager", MV.drain),), "Release or close begins by refusing new leases."),
    Action("undrain", (), (), (Do("manager", MV.undrain),), "Leases outlasted the wait."),
    Action(
        "release_all",
        (),
        quiet,
        (
            *RETIRE_EVERYTHING,
            Do("manager", MV.release, given={"leases": leases}),
            ForEach("e", ENTRIES, (Do("entry", EntryEvent.forget, "e", optional=True),)),
        ),
        "Everything retires; armed again. Of what has nothing left to reclaim, only the name stays.",
        progress=True,
    ),
    Action(
        "close",
        (),
        quiet,
        (
            When(~manager_state.eq(ManagerState.POISONED), RETIRE_EVERYTHING),
            When(manager_state.eq(ManagerState.POISONED), LET_GO),
            Do("manager", MV.close, given={"leases": leases}),
        ),
        "For good.",
    ),
)
