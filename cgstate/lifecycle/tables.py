"""The lifecycle, whole: four literal tables.

Theory of operation. An **entry** is one graph of one component; a **component** is a call site that has entries; a **pool** is the
private memory they record into; the **manager** owns all three. They step together, each by its own table: a capture takes the
gate and begins on entry and pool, a commit binds every entry of a transaction, a lease moves an entry and, if it is the first, its
component. Whatever one table needs to know of another object it reads through a related variable (``gate.free``,
``pool.kind``), so every condition stands here and nowhere else.

Everything that knows the lifecycle derives from these rows: the runtime's steps (`steps`, generated), the interpreter (`engine`),
the linter, the `transitions` view, and the hot path. After a change here
run ``python -m cgstate.lifecycle.generate`` and ``python -m cgstate.runtime.generate``.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

from cgstate.errors import (
    CaptureActive,
    IllegalTransition,
    LeaseOutstanding,
    ManagerClosed,
    ManagerPoisoned,
    NotResident,
    PoolRetired,
    StaleBinding,
)
from cgstate.lifecycle.expr import Lit, Var
from cgstate.lifecycle.states import (
    ComponentEvent,
    ComponentState,
    EntryEvent,
    EntryState,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolKind,
    PoolState,
)
from cgstate.lifecycle.table import Guard, Machine, Row, Set

__all__ = ["COMPONENT", "ENTRY", "MACHINES", "MANAGER", "POOL"]

BOOL = (False, True)
FEW = (0, 1, 2)
TRUE, FALSE, ZERO, ONE = Lit(True), Lit(False), Lit(0), Lit(1)


def add(var: Var, number: int = 1) -> Set:
    """The effect ``var := var + number``."""
    return Set(var, var + number)


def same(states: type[StrEnum]) -> Var:
    """The target of a row that leaves the state as it is."""
    return Var("state", tuple(states))


# -- entry ------------------------------------------------------------------------------------------------------------

E, EV = EntryState, EntryEvent

leases = Var("leases", (*FEW, 3), "leases held on this entry")
retiring = Var("retiring", BOOL, "evicted while leased: no new lease, EVICTED at the last release")
failed = Var("failed", BOOL, "a launch failed: no new lease, FAILED at the last release")
recorded = Var("recorded", BOOL, "the open transaction holds this entry's recording")
before = Var("before", (E.EAGER, E.EVICTED, E.FAILED), "the state that abort returns to")
noted = Var("noted", (0, 1), "the component's epoch at capture_begin: addresses are baked in from here on")
unreclaimed = Var("unreclaimed", FEW, "retired recordings of this entry that are not destroyed yet")
concurrent = Var("concurrent", BOOL, "whether several leases may be held at once")

gate_free = Var("gate.free", BOOL, "no capture is open on the device")
pool_state = Var("pool.state", tuple(PoolState), "state of the pool it records into")
pool_kind = Var("pool.kind", tuple(PoolKind), "kind of that pool")
held = Var("component.held", FEW, "live + capturing + not yet reclaimed entries of the component")
capacity = Var("component.capacity", (1, 2), "how many of them the component may hold")
entries_bound = Var("component.bound", FEW, "entries of the component that are BOUND or REPLAYING")
entries_leased = Var("component.leased", FEW, "entries of the component that are REPLAYING")
epoch = Var("component.epoch", (0, 1), "moves whenever memory that the component depends on moves")
resident = Var("component.resident", BOOL, "all memory that the component depends on is resident")
committing = Var("transaction.committing", BOOL, "the transaction holds every recording and binds them now")
domain_capturing = Var("domain.capturing", FEW, "entries of the domain that are CAPTURING")
serving = Var("manager.serving", BOOL, "the manager has committed and was not released, closed or poisoned since")

blocked = Var("blocked", BOOL, "the negative cache or the failure's kind forbids an attempt now")
stream_capturing = Var("stream_capturing", BOOL, "the caller's stream is being captured")
pool_leases = Var("pool_leases", FEW, "leases held on entries of the pool that the recording is in")
fence_passed = Var("fence_passed", BOOL, "the device has finished the last replay")

CAPTURE_GUARDS = (
    Guard("gate free", gate_free, CaptureActive),
    Guard("pool not retired", ~pool_state.among(PoolState.RETIRED, PoolState.GONE), PoolRetired),
    Guard("pool not recording", ~pool_state.eq(PoolState.RECORDING), CaptureActive),
    Guard("within capacity", held.lt(capacity)),
    Guard("not blocked by an earlier failure", ~blocked),
)
CAPTURE_EFFECTS = (
    Set(before, same(E)),
    Set(noted, epoch),
    Set(gate_free, FALSE),
    Set(retiring, FALSE),
    Set(failed, FALSE),
    add(held),
    add(domain_capturing),
)
ATTEMPT_OVER = (add(domain_capturing, -1), add(unreclaimed))
LAST_LEASE_OVER = (Set(leases, ZERO), add(entries_leased, -1))
RETIRED = (add(entries_bound, -1), add(unreclaimed))

USABLE = (
    Guard("manager serving", serving),
    Guard("dependencies resident", resident, NotResident),
    Guard("epochs current", noted.eq(epoch), StaleBinding),
    Guard("caller's stream not capturing", ~stream_capturing, CaptureActive),
)
OTHER_LEASES = Guard("other leases left", ONE.lt(leases))
LAST_LEASE = Guard("last lease", leases.eq(1))
NOT_FAILED, FAILED_MARK = Guard("not failed", ~failed), Guard("failed", failed)
NOT_RETIRING, RETIRING = Guard("not retiring", ~retiring), Guard("retiring", retiring)
QUIET_DOMAIN = Guard("no entry of the domain is capturing", domain_capturing.eq(0), CaptureActive)

ENTRY = Machine(
    name="entry",
    doc="The lifecycle record of one (component, descriptor).",
    states=EntryState,
    events=EntryEvent,
    initial=E.EAGER,
    own=(
        (leases, 0),
        (retiring, False),
        (failed, False),
        (recorded, False),
        (before, E.EAGER),
        (noted, 0),
        (unreclaimed, 0),
        (concurrent, True),
    ),
    related=(
        gate_free,
        pool_state,
        pool_kind,
        held,
        capacity,
        entries_bound,
        entries_leased,
        epoch,
        resident,
        committing,
        domain_capturing,
        serving,
    ),
    parameters={
        EV.capture_begin: (blocked,),
        EV.acquire: (stream_capturing,),
        EV.reclaim: (pool_leases, fence_passed),
    },
    rows=(
        Row(
            EV.capture_begin,
            (E.EAGER, E.EVICTED, E.FAILED),
            E.CAPTURING,
            CAPTURE_GUARDS,
            CAPTURE_EFFECTS,
            "Notes the epochs whose addresses will be baked in, and takes the gate. An evicted entry's old recording may still "
            "wait for the reclaimer; a failed one is tried again when its kind allows.",
        ),
        Row(
            EV.capture_end,
            (E.CAPTURING,),
            E.CAPTURING,
            (Guard("not recorded yet", ~recorded),),
            (Set(recorded, TRUE), Set(gate_free, TRUE)),
            "The recording goes to the transaction; the next capture may begin.",
        ),
        Row(
            EV.bind,
            (E.CAPTURING,),
            E.BOUND,
            (
                Guard("transaction holds its recording", recorded),
                Guard("transaction commits", committing),
                Guard("epochs still current", noted.eq(epoch), StaleBinding),
                Guard("pool not a throwaway", ~pool_kind.eq(PoolKind.throwaway)),
            ),
            (Set(recorded, FALSE), add(domain_capturing, -1), add(entries_bound)),
            "All entries of the transaction in one step (I1).",
        ),
        Row(
            EV.abort,
            (E.CAPTURING,),
            before,
            (Guard("recorded", recorded),),
            (*ATTEMPT_OVER, Set(recorded, FALSE)),
            "The transaction gives up, or only profiles: the recording goes to the reclaimer.",
        ),
        Row(
            EV.abort,
            (E.CAPTURING,),
            before,
            (Guard("capture open", ~recorded),),
            (*ATTEMPT_OVER, Set(gate_free, TRUE)),
            "Interrupted while open, by something that is no failure of this entry.",
        ),
        Row(
            EV.capture_fail,
            (E.CAPTURING,),
            E.FAILED,
            (Guard("capture open", ~recorded), Guard("pool not a throwaway", ~pool_kind.eq(PoolKind.throwaway))),
            (*ATTEMPT_OVER, Set(gate_free, TRUE)),
            "The attempt failed and was undone; its kind says when to try again.",
        ),
        Row(
            EV.capture_fail,
            (E.CAPTURING,),
            before,
            (Guard("capture open", ~recorded), Guard("pool a throwaway", pool_kind.eq(PoolKind.throwaway))),
            (*ATTEMPT_OVER, Set(gate_free, TRUE)),
            "A failure while profiling goes into the estimate and marks nothing.",
        ),
        Row(
            EV.acquire,
            (E.BOUND,),
            E.REPLAYING,
            USABLE,
            (add(leases), add(entries_leased)),
            "The first lease. BOUND entries are never retiring or failed, so those marks need no guard here.",
        ),
        Row(
            EV.acquire,
            (E.REPLAYING,),
            E.REPLAYING,
            (*USABLE, NOT_RETIRING, NOT_FAILED, Guard("concurrent leases allowed", concurrent)),
            (add(leases),),
            "A further lease; the pool's turn orders the replays themselves (I5).",
        ),
        Row(
            EV.release,
            (E.REPLAYING,),
            E.REPLAYING,
            (OTHER_LEASES,),
            (add(leases, -1),),
            "Others still read.",
        ),
        Row(
            EV.release,
            (E.REPLAYING,),
            E.BOUND,
            (LAST_LEASE, NOT_RETIRING, NOT_FAILED),
            LAST_LEASE_OVER,
            "Idle again. The device may still run; its completion is the reclaimer's business.",
        ),
        Row(
            EV.release,
            (E.REPLAYING,),
            E.EVICTED,
            (LAST_LEASE, RETIRING, NOT_FAILED),
            (*LAST_LEASE_OVER, *RETIRED),
            "The eviction that waited for this lease.",
        ),
        Row(
            EV.release,
            (E.REPLAYING,),
            E.FAILED,
            (LAST_LEASE, FAILED_MARK),
            (*LAST_LEASE_OVER, *RETIRED),
            "A launch had failed; failure beats retirement.",
        ),
        Row(
            EV.replay_fail,
            (E.REPLAYING,),
            E.REPLAYING,
            (OTHER_LEASES,),
            (add(leases, -1), Set(failed, TRUE)),
            "The launch itself raised; this is the lease's release.",
        ),
        Row(
            EV.replay_fail,
            (E.REPLAYING,),
            E.FAILED,
            (LAST_LEASE,),
            (*LAST_LEASE_OVER, *RETIRED, Set(failed, TRUE)),
            "The same with no lease left.",
        ),
        Row(
            EV.evict,
            (E.BOUND,),
            E.EVICTED,
            (QUIET_DOMAIN,),
            RETIRED,
            "Retiring makes nobody wait; the recording goes to the reclaimer.",
        ),
        Row(
            EV.evict,
            (E.REPLAYING,),
            E.REPLAYING,
            (QUIET_DOMAIN, NOT_RETIRING),
            (Set(retiring, TRUE),),
            "No new lease from here on; leased outputs expire; EVICTED at the last release.",
        ),
        Row(
            EV.reclaim,
            tuple(E),
            same(E),
            (
                Guard("something to reclaim", ZERO.lt(unreclaimed)),
                Guard("gate free", gate_free, CaptureActive),
                Guard("no lease on its pool", pool_leases.eq(0), LeaseOutstanding),
                Guard("last replay complete", fence_passed),
            ),
            (add(unreclaimed, -1), add(held, -1)),
            "The reclaimer destroyed one retired recording (I2, I3). The entry itself may be in any state by then.",
        ),
        Row(
            EV.forget,
            (E.FAILED, E.EVICTED),
            E.EAGER,
            (Guard("all reclaimed", unreclaimed.eq(0)),),
            (Set(retiring, FALSE), Set(failed, FALSE)),
            "Nothing is left of it but its name.",
        ),
    ),
)

# -- component --------------------------------------------------------------------------------------------------------

C, CV = ComponentState, ComponentEvent

bound = Var("bound", FEW, "entries that are BOUND or REPLAYING")
leased = Var("leased", FEW, "entries that are REPLAYING")
pure_lazy = Var("pure_lazy", BOOL, "bound without entries: all of them come lazily")
c_before = Var("before", (C.EAGER, C.EVICTED, C.FAILED), "the state that abort returns to")

IDLE = Guard("no entry leased", leased.eq(0))
LEFT = Guard("an entry is left, or all come lazily", ZERO.lt(bound) | pure_lazy)
NONE_LEFT = Guard("no entry is left", bound.eq(0) & ~pure_lazy)
KEEPS = "Keeps its state through any later transaction."

COMPONENT = Machine(
    name="component",
    doc="A named call site that runs eagerly or by one of its entries.",
    states=ComponentState,
    events=ComponentEvent,
    initial=C.EAGER,
    own=((bound, 0), (leased, 0), (pure_lazy, False), (c_before, C.EAGER)),
    related=(),
    parameters={},
    rows=(
        Row(
            CV.begin,
            (C.EAGER, C.EVICTED, C.FAILED),
            C.CAPTURING,
            (),
            (Set(c_before, same(C)),),
            "A transaction takes it in.",
        ),
        Row(CV.begin, (C.BOUND, C.REPLAYING), same(C), (), (), KEEPS),
        Row(CV.commit, (C.CAPTURING,), C.BOUND, (LEFT,), (), "Bound together with its siblings (I1)."),
        Row(CV.commit, (C.BOUND, C.REPLAYING), same(C), (), (), KEEPS),
        Row(CV.abort, (C.CAPTURING,), c_before, (), (), "A sibling failed, or the transaction was given up."),
        Row(CV.abort, (C.BOUND, C.REPLAYING), same(C), (), (), KEEPS),
        Row(CV.fail, (C.CAPTURING,), C.FAILED, (), (), "One of its own entries failed."),
        Row(CV.fail, (C.BOUND, C.REPLAYING), same(C), (), (), KEEPS),
        Row(CV.first_lease, (C.BOUND,), C.REPLAYING, (Guard("an entry is leased", ZERO.lt(leased)),), (), "In use."),
        Row(CV.last_release, (C.REPLAYING,), C.BOUND, (IDLE, LEFT), (), "Idle again."),
        Row(CV.last_release, (C.REPLAYING,), C.EVICTED, (IDLE, NONE_LEFT), (), "The last lease was on a retiring entry."),
        Row(CV.last_retired, (C.BOUND,), C.EVICTED, (NONE_LEFT,), (), "Its last entry was retired."),
        Row(CV.lazy_bind, (C.EVICTED,), C.BOUND, (Guard("an entry is bound", ZERO.lt(bound)),), (), "Back by a miss."),
        Row(CV.forget, (C.FAILED, C.EVICTED), C.EAGER, (), (), "Released: as if never captured."),
        Row(
            CV.forget,
            (C.BOUND,),
            C.EAGER,
            (Guard("all entries come lazily, and none is left", bound.eq(0) & pure_lazy),),
            (),
            "The same for one that is bound without entries.",
        ),
    ),
)

# -- pool -------------------------------------------------------------------------------------------------------------

P, PV = PoolState, PoolEvent

kind = Var("kind", tuple(PoolKind), "whose pool it is")
graphs = Var("graphs", FEW, "recordings in it that are not destroyed yet")
p_before = Var("before", (P.MINTED, P.LIVE), "the state that a failed recording returns to")
domain_live = Var("domain.live", FEW, "entries of the domain that are CAPTURING, BOUND or REPLAYING")

POOL = Machine(
    name="pool",
    doc="A private memory pool, anchored while a manager serves (P3); a retired id is never opened again (P1).",
    states=PoolState,
    events=PoolEvent,
    initial=P.MINTED,
    own=((kind, PoolKind.shared), (graphs, 0), (p_before, P.MINTED)),
    related=(domain_live,),
    parameters={},
    rows=(
        Row(
            PV.begin,
            (P.MINTED, P.LIVE),
            P.RECORDING,
            (),
            (Set(p_before, same(P)), add(graphs)),
            "One recording at a time (F5).",
        ),
        Row(PV.end, (P.RECORDING,), P.LIVE, (), (), "Recorded."),
        Row(
            PV.fail,
            (P.RECORDING,),
            p_before,
            (),
            (add(graphs, -1),),
            "Undone; what it grew stays in a pool with others (S4).",
        ),
        Row(
            PV.destroyed,
            (P.LIVE, P.RETIRED),
            same(P),
            (Guard("a recording is left", ZERO.lt(graphs)),),
            (add(graphs, -1),),
            "The reclaimer destroyed one recording; the anchor keeps the pool open (P3).",
        ),
        Row(
            PV.retire,
            (P.MINTED, P.LIVE),
            P.RETIRED,
            (
                Guard("the pool is ours", ~kind.eq(PoolKind.foreign)),
                Guard("no live entry in its domain", domain_live.eq(0)),
            ),
            (),
            "The last step of its domain's retirement, release or close (I6).",
        ),
        Row(
            PV.reclaimed,
            (P.RETIRED,),
            P.GONE,
            (Guard("every recording destroyed", graphs.eq(0)),),
            (),
            "The anchor is dropped; the bytes return at the next flush.",
        ),
    ),
    final=frozenset({P.GONE}),
)

# -- manager ----------------------------------------------------------------------------------------------------------

M, MV = ManagerState, ManagerEvent

m_serving = Var("serving", BOOL, "has committed and was not released, closed or poisoned since")
m_before = Var("before", (M.PREPARED, M.SERVING), "the state that a failed transaction returns to")
m_leases = Var("leases", FEW, "leases held on any of its entries")

NO_LEASE = Guard("no lease held", m_leases.eq(0), LeaseOutstanding)
NOT_CLOSED = tuple(state for state in M if state is not M.CLOSED)
LOST = "The context is lost for the process (F7); nothing is ever run on it again."

MANAGER = Machine(
    name="manager",
    doc="Owns components, entries and pools of one device. Lazy capture moves nothing here.",
    states=ManagerState,
    events=ManagerEvent,
    initial=M.NEW,
    own=((m_serving, False), (m_before, M.PREPARED)),
    related=(),
    parameters={MV.release: (m_leases,), MV.close: (m_leases,)},
    rows=(
        Row(MV.prepare, (M.NEW,), M.PREPARED, (), (), "Components and configuration are accepted."),
        Row(
            MV.profile_begin,
            (M.PREPARED,),
            M.PROFILING,
            (),
            (),
            "Into a throwaway pool; nothing made here can be bound.",
        ),
        Row(MV.profile_end, (M.PROFILING,), M.PREPARED, (), (), "Everything made inside is gone (I4)."),
        Row(
            MV.capture,
            (M.PREPARED,),
            M.CAPTURING,
            (),
            (Set(m_before, same(M)),),
            "The startup transaction.",
        ),
        Row(
            MV.capture,
            (M.SERVING,),
            M.CAPTURING,
            (Guard("not draining", m_serving),),
            (Set(m_before, same(M)),),
            "A further one. What is bound already goes on serving.",
        ),
        Row(MV.commit, (M.CAPTURING,), M.SERVING, (), (Set(m_serving, TRUE),), "All bound."),
        Row(MV.fail, (M.CAPTURING,), m_before, (), (), "All undone."),
        Row(
            MV.drain,
            (M.SERVING,),
            same(M),
            (Guard("serving", m_serving),),
            (Set(m_serving, FALSE),),
            "release() and close() begin by refusing new leases.",
        ),
        Row(
            MV.undrain,
            (M.SERVING,),
            same(M),
            (Guard("draining", ~m_serving),),
            (Set(m_serving, TRUE),),
            "Leases outlasted the wait: serving goes on as if nothing had been asked.",
        ),
        Row(
            MV.release,
            (M.SERVING,),
            M.PREPARED,
            (NO_LEASE,),
            (Set(m_serving, FALSE),),
            "Everything retired; armed again.",
        ),
        Row(MV.device_lost, NOT_CLOSED, M.POISONED, (), (Set(m_serving, FALSE),), LOST),
        Row(
            MV.close,
            (M.NEW, M.PREPARED, M.SERVING, M.POISONED),
            M.CLOSED,
            (NO_LEASE,),
            (Set(m_serving, FALSE),),
            "For good. An open transaction or profile ends first.",
        ),
    ),
    final=frozenset({M.CLOSED}),
)

MACHINES = (ENTRY, COMPONENT, POOL, MANAGER)
MACHINE = {machine.name: machine for machine in MACHINES}
"""The same by name."""

STATE_REFUSALS: dict[StrEnum, type[IllegalTransition]] = {
    ManagerState.CLOSED: ManagerClosed,
    ManagerState.POISONED: ManagerPoisoned,
    PoolState.RETIRED: PoolRetired,
    PoolState.GONE: PoolRetired,
}
"""The error for a state that has no row for the event, where there is a better word than `IllegalTransition`."""


def table_hash() -> str:
    """SHA-256 over the four tables: what evidence, traces and generated files were made from."""
    return hashlib.sha256("".join(machine.fingerprint() for machine in MACHINES).encode()).hexdigest()
