"""Leases and launches.

A launch is two steps: a lease takes the turn of its pool and looks at its entry once more, and later the work is queued, or the
launch raises. In between, outside the device's lock, anything else may happen.
"""

from __future__ import annotations

from cgstate.lifecycle.states import ComponentEvent, EntryEvent, PoolState
from cgstate.spec.cells import ENTRIES, FALSE, NONE, THE, TRUE, domain, entry, leases, number, pool, threads, usable
from cgstate.spec.shared import OF_ENTRY, RELEASED, idle_lease, turn_free
from cgstate.spec.statements import Action, Assign, Do

CV, EV = ComponentEvent, EntryEvent

LEASES = (
    Action(
        "acquire",
        (("e", ENTRIES), *THE),
        (leases.lt(threads), ~pool("state").eq(PoolState.RECORDING)),
        (
            Do("entry", EV.acquire, "e", OF_ENTRY, {"stream_capturing": FALSE}),
            Do("component", CV.first_lease, "c", optional=True),
            Assign(entry("holders"), entry("holders") + 1),
        ),
        "Somebody takes a lease; it waits while others capture into the pool.",
    ),
    Action(
        "launch",
        (("e", ENTRIES), *THE),
        (
            idle_lease,
            turn_free,
            ~pool("state").eq(PoolState.RECORDING),
            ~entry("retiring"),
            ~entry("failed"),
            usable,
        ),
        (Assign(domain("turn"), number("e")),),
        "Under a lease, a launch has its pool's turn.",
    ),
    Action(
        "launched",
        (("e", ENTRIES), *THE),
        (domain("turn").eq(number("e")),),
        (Assign(domain("turn"), NONE), Assign(pool("running"), TRUE)),
        "The replay is queued on the device.",
        progress=True,
    ),
    Action(
        "fail_launch",
        (("e", ENTRIES), *THE),
        (domain("turn").eq(number("e")),),
        (Assign(domain("turn"), NONE), Do("entry", EV.replay_fail, "e", OF_ENTRY), *RELEASED),
        "The launch raised; that ends the lease.",
    ),
    Action(
        "release",
        (("e", ENTRIES), *THE),
        (idle_lease,),
        (Do("entry", EV.release, "e", OF_ENTRY), *RELEASED),
        "Somebody gives a lease back, or drops it and the next caller does.",
        progress=True,
    ),
)
