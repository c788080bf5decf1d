"""The cells: every variable of the system, its first value, and when anybody still reads it.

What the tables own is taken from them. What no table speaks of, but behaviour depends on, is modelled beside: who is in a pool's
turn, retired recordings that wait for the reclaimer, work in flight on the device, captures of others, which transaction is open.

How small the model is depends on what is **not** told apart. These merge only states with the same future:

- A cell that nobody reads before it is written again has its first value (`READ`). In particular nothing of a lost device is ever
  reclaimed, leased or captured: only what is in progress must still come to its end. Shown by a test, which walks a small system
  without this, merges afterwards, and finds the same graph.
- Epochs are only ever compared: an entry is current, or stale (``noted`` differs from ``epoch``). When memory moves, everything
  live becomes stale; where nothing live is stale, both are 0 (by `READ`, so the same test shows that).
- A lease is held by somebody, not by thread 1 or thread 2: no table and no action asks who.
- Whatever is live is in the younger of a domain's two pools, ``now``, since a pool retires with its last live entry (I6, which is
  checked on the step that would break it); so no entry notes its pool.

These leave something out:

- One retired generation of a pool at most, ``old``, waits beside the one in use; the runtime may have more.
- All components depend on the same memory, and replays may overlap captures into other pools (``overlaps_capture``).
- To destroy a recording is one step. In the runtime the gate is kept closed to captures from its first half to its second.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import auto

from cgstate.lifecycle.expr import Expr, Lit, Value, Var
from cgstate.lifecycle.states import ComponentState, EntryState, ManagerState, PoolState, UpperStrEnum
from cgstate.lifecycle.tables import COMPONENT, ENTRY, MANAGER, POOL
from cgstate.spec.terms import Objects, Plus, Total, cell, some

E, C, P, M = EntryState, ComponentState, PoolState, ManagerState


class Kind(UpperStrEnum):
    """Which operation has the manager; CLEARING is a profile whose recordings are dropped, and not gone yet."""

    NONE = auto()
    EXPLICIT = auto()
    LAZY = auto()
    PROFILE = auto()
    CLEARING = auto()
    SUSPENDING = auto()


NOBODY = -1
"""No entry has the turn."""

TRUE, FALSE, NONE = Lit(True), Lit(False), Lit(NOBODY)
ENTRIES, COMPONENTS, DOMAINS, POOLS = (Objects(kind) for kind in ("entry", "component", "domain", "pool"))
SINGLE = ("gate", "manager", "transaction")
"""Kinds of which there is one object."""

FIELDS: Mapping[str, Mapping[str, Value]] = {
    "manager": {"state": M.NEW, **{var.name: first for var, first in MANAGER.own}},
    "transaction": {"kind": Kind.NONE, "failed": False},
    "gate": {"free": True, "foreign": False},
    "component": {
        "state": C.EAGER,
        **{var.name: first for var, first in COMPONENT.own if var.name != "pure_lazy"},
        "held": 0,
        "epoch": 0,
        "resident": True,
    },
    "entry": {
        "state": E.EAGER,
        **{var.name: first for var, first in ENTRY.own if var.name != "concurrent"},
        "holders": 0,
    },
    "domain": {"capturing": 0, "turn": NOBODY},
    "pool": {"state": P.GONE, **{var.name: first for var, first in POOL.own if var.name != "kind"}, "running": False},
    "left": {"graphs": 0, "attempts": 0, "running": False},
}
"""Every cell that changes, by kind of object, with its first value.

``holders`` counts the leases in the hands of callers, beside the entry's own ``leases``; ``turn`` is the entry whose launch has the
pool of the domain; ``left``, by entry and pool, is what waits for the reclaimer: recordings, attempts, and whether their fence is
still ahead of the device.
"""


def of(kind: str, owner: str, parameter: str) -> Objects:
    """The objects of ``kind`` that belong to the ``owner`` at ``parameter``."""
    return Objects(kind, (owner, parameter))


def entry(field: str, e: str = "e") -> Var:
    """A cell of an entry."""
    return cell("entry", field, e)


def component(field: str, c: str = "c") -> Var:
    """A cell of a component."""
    return cell("component", field, c)


def pool(field: str, p: str = "p") -> Var:
    """A cell of a pool."""
    return cell("pool", field, p)


def domain(field: str, d: str = "d") -> Var:
    """A cell of a domain."""
    return cell("domain", field, d)


def left(field: str, e: str = "e", p: str = "p") -> Var:
    """A cell of what is left of an entry in a pool."""
    return cell("left", field, e, p)


def number(parameter: str) -> Var:
    """The number of the object that a parameter names."""
    return Var(parameter, ())


THE = (
    ("c", of("component", "entry", "e")),
    ("d", of("domain", "entry", "e")),
    ("p", of("now", "entry", "e")),
)
"""Component and domain of entry ``e``, and the pool in use there."""

gate_free = cell("gate", "free")
gate_foreign = cell("gate", "foreign")
manager_state = cell("manager", "state")
serving = cell("manager", "serving")
transaction = cell("transaction", "kind")
broken = cell("transaction", "failed")
threads = cell("shape", "threads")

LIVE = (E.CAPTURING, E.BOUND, E.REPLAYING)
IN_USE = (E.BOUND, E.REPLAYING)


def live(e: str = "e") -> Expr:
    """Whether a recording of the entry is needed."""
    return entry("state", e).among(*LIVE)


def recording(e: str = "e") -> Expr:
    """Whether the capture of an entry is open right now."""
    return entry("state", e).eq(E.CAPTURING) & ~entry("recorded", e)


def stale(e: str = "e", c: str = "c") -> Expr:
    """Whether an entry has baked in addresses that moved."""
    return live(e) & ~entry("noted", e).eq(component("epoch", c))


leases = Total("x", ENTRIES, entry("leases", "x"))
usable = ~manager_state.among(M.POISONED, M.CLOSED)
not_lost = ~manager_state.eq(M.POISONED)

READ: Mapping[str, Mapping[str, Expr]] = {
    "manager": {"before": manager_state.eq(M.CAPTURING)},
    "transaction": {"failed": transaction.among(Kind.EXPLICIT, Kind.LAZY, Kind.PROFILE) & not_lost},
    "component": {
        "state": usable | component("state").among(C.CAPTURING, C.REPLAYING),
        "before": component("state").eq(C.CAPTURING) & usable,
        "bound": usable | component("state").eq(C.REPLAYING),
        "held": usable,
        "epoch": usable & some("x", of("entry", "component", "c"), stale("x")),
        "resident": usable,
    },
    "entry": {
        "state": usable | entry("state").among(E.CAPTURING, E.REPLAYING),
        "before": entry("state").eq(E.CAPTURING) & usable,
        "noted": usable & live() & some("x", of("entry", "component", "c"), stale("x")),
        "retiring": entry("state").eq(E.REPLAYING) & usable,
        "failed": entry("state").eq(E.REPLAYING) & usable,
        "unreclaimed": usable | (not_lost & ~Total("p", of("pool", "entry", "e"), Plus(left("graphs"), left("attempts"))).eq(0)),
    },
    "pool": {
        "state": not_lost | pool("state").eq(P.RECORDING),
        "graphs": not_lost,
        "before": pool("state").eq(P.RECORDING) & not_lost,
        "running": not_lost & ~pool("state").eq(P.GONE),
    },
    "left": {
        "graphs": not_lost,
        "attempts": not_lost,
        "running": not_lost & (~left("graphs").eq(0) | ~left("attempts").eq(0)),
    },
}
"""By cell, when its value still matters to anybody. Elsewhere it has its first value after every action."""

INDEX: Mapping[str, tuple[tuple[str, Objects], ...]] = {
    "entry": (("e", ENTRIES), *THE),
    "component": (("c", COMPONENTS),),
    "domain": (("d", DOMAINS),),
    "pool": (("p", POOLS),),
    "left": (("e", ENTRIES), ("p", of("pool", "entry", "e"))),
}
"""The parameters of an object in `READ`: its own index first, then what belongs to it."""
OWN = {"entry": 1, "component": 1, "domain": 1, "pool": 1, "left": 2}
"""How many of them are its index."""
