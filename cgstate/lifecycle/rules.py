"""The rules of single steps and of refusals, and the goals, as literal as the tables that they judge.

A rule repeats on purpose what a row says: whoever changes one of them meets the other. `properties` says how they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cgstate.lifecycle import tables as t
from cgstate.lifecycle.explore import Exploration
from cgstate.lifecycle.expr import Lit
from cgstate.lifecycle.properties import (
    Acceptance,
    Goal,
    StepProperty,
    by,
    comes_to,
    enters,
    every_row_is_taken,
    grows,
    implies,
    leaves,
    step_of,
    then,
)
from cgstate.lifecycle.states import ComponentEvent as CV
from cgstate.lifecycle.states import ComponentState as C
from cgstate.lifecycle.states import EntryEvent as EV
from cgstate.lifecycle.states import EntryState as E
from cgstate.lifecycle.states import ManagerEvent as MV
from cgstate.lifecycle.states import ManagerState as M
from cgstate.lifecycle.states import PoolEvent as PV
from cgstate.lifecycle.states import PoolKind
from cgstate.lifecycle.states import PoolState as P

ALWAYS = Lit(True)

e, c, p, m = t.same(E), t.same(C), t.same(P), t.same(M)
throwaway = t.pool_kind.eq(PoolKind.throwaway)

STEP_PROPERTIES = (
    StepProperty(
        "entry",
        "a capture begins with the gate, within capacity, unblocked, and clears all marks",
        by(EV.capture_begin) | enters(E.CAPTURING),
        (
            by(EV.capture_begin),
            e.among(E.EAGER, E.EVICTED, E.FAILED),
            then(e).eq(E.CAPTURING),
            t.gate_free,
            ~then(t.gate_free),
            ~t.pool_state.among(P.RECORDING, P.RETIRED, P.GONE),
            t.held.lt(t.capacity),
            grows(t.held, 1),
            grows(t.domain_capturing, 1),
            ~t.blocked,
            then(t.before).eq(e),
            then(t.noted).eq(t.epoch),
            ~then(t.recorded),
            ~then(t.retiring),
            ~then(t.failed),
        ),
    ),
    StepProperty(
        "entry",
        "an attempt ends bound, failed, or as if it had not been",
        by(EV.bind, EV.abort, EV.capture_fail) | leaves(E.CAPTURING),
        (
            by(EV.bind, EV.abort, EV.capture_fail),
            e.eq(E.CAPTURING),
            implies(by(EV.bind), then(e).eq(E.BOUND)),
            implies(by(EV.abort), then(e).eq(t.before)),
            implies(by(EV.capture_fail), ~t.recorded),
            implies(by(EV.capture_fail) & throwaway, then(e).eq(t.before)),
            implies(by(EV.capture_fail) & ~throwaway, then(e).eq(E.FAILED)),
            implies(~by(EV.bind), grows(t.unreclaimed, 1)),
            implies(~t.recorded, then(t.gate_free)),
            grows(t.domain_capturing, -1),
            ~then(t.recorded),
        ),
    ),
    StepProperty(
        "entry",
        "the gate is freed by the open capture only",
        ~t.gate_free & then(t.gate_free),
        (e.eq(E.CAPTURING), ~t.recorded, implies(by(EV.capture_end), then(t.recorded))),
    ),
    StepProperty(
        "entry",
        "a recording is handed over once, and the gate with it",
        by(EV.capture_end) | (~t.recorded & then(t.recorded)),
        (by(EV.capture_end), e.eq(E.CAPTURING), then(e).eq(E.CAPTURING), ~t.recorded, then(t.recorded), then(t.gate_free)),
    ),
    StepProperty(
        "entry",
        "BOUND is entered only by bind, or by release from REPLAYING",
        enters(E.BOUND),
        (
            (by(EV.bind) & e.eq(E.CAPTURING)) | (by(EV.release) & e.eq(E.REPLAYING)),
            implies(by(EV.bind), t.recorded),
            implies(by(EV.bind), t.committing),
            implies(by(EV.bind), t.noted.eq(t.epoch)),
            implies(by(EV.bind), ~throwaway),
            implies(by(EV.bind), grows(t.entries_bound, 1)),
            implies(by(EV.release), ~t.retiring),
            implies(by(EV.release), ~t.failed),
        ),
    ),
    StepProperty(
        "entry",
        "an eviction is at once, or waits for the last lease; its domain is quiet",
        by(EV.evict),
        (
            t.domain_capturing.eq(0),
            ~t.retiring,
            (e.eq(E.BOUND) & then(e).eq(E.EVICTED)) | (e.eq(E.REPLAYING) & then(e).eq(E.REPLAYING)),
            implies(e.eq(E.REPLAYING), then(t.retiring)),
        ),
    ),
    StepProperty(
        "entry",
        "EVICTED is entered only without leases, by an eviction or back from an attempt",
        enters(E.EVICTED),
        (
            then(t.leases).eq(0),
            by(EV.evict, EV.release, EV.abort, EV.capture_fail),
            implies(by(EV.release), t.retiring),
            implies(by(EV.release), ~t.failed),
        ),
    ),
    StepProperty(
        "entry",
        "FAILED is left only by a permitted retry or by forget",
        leaves(E.FAILED),
        ((by(EV.capture_begin) & then(e).eq(E.CAPTURING)) | (by(EV.forget) & then(e).eq(E.EAGER)), ~t.blocked),
    ),
    StepProperty(
        "entry",
        "FAILED is entered only by a failure, or back from an attempt",
        enters(E.FAILED),
        (
            by(EV.capture_fail, EV.replay_fail, EV.release, EV.abort),
            implies(by(EV.release), t.failed),
            implies(by(EV.replay_fail), then(t.failed)),
        ),
    ),
    StepProperty(
        "entry",
        "EAGER is entered with nothing left, or back from an attempt",
        by(EV.forget) | enters(E.EAGER),
        (
            by(EV.forget, EV.abort, EV.capture_fail),
            e.among(E.FAILED, E.EVICTED, E.CAPTURING),
            then(e).eq(E.EAGER),
            implies(by(EV.forget), t.unreclaimed.eq(0)),
            implies(by(EV.forget), ~then(t.retiring)),
            implies(by(EV.forget), ~then(t.failed)),
        ),
    ),
    StepProperty(
        "entry",
        "a lease is given only on a usable entry",
        by(EV.acquire) | t.leases.lt(then(t.leases)),
        (
            by(EV.acquire),
            e.among(E.BOUND, E.REPLAYING),
            grows(t.leases, 1),
            t.serving,
            t.resident,
            t.noted.eq(t.epoch),
            ~t.stream_capturing,
            ~t.retiring,
            ~t.failed,
            t.leases.eq(0) | t.concurrent,
            implies(t.leases.eq(0), grows(t.entries_leased, 1)),
        ),
    ),
    StepProperty(
        "entry",
        "a lease ends by release or by a failed launch, one at a time",
        by(EV.release, EV.replay_fail) | then(t.leases).lt(t.leases),
        (
            by(EV.release, EV.replay_fail),
            grows(t.leases, -1),
            implies(by(EV.replay_fail), then(t.failed)),
            implies(then(t.leases).eq(0), grows(t.entries_leased, -1)),
        ),
    ),
    StepProperty(
        "entry",
        "an entry is leased exactly while it is REPLAYING",
        ALWAYS,
        (
            implies(then(e).eq(E.REPLAYING), Lit(0).lt(then(t.leases))),
            implies(~then(e).eq(E.REPLAYING), then(t.leases).eq(0)),
        ),
    ),
    StepProperty(
        "entry",
        "the last release settles what was asked for meanwhile, and failure beats retirement",
        leaves(E.REPLAYING),
        (
            implies(t.failed, then(e).eq(E.FAILED)),
            implies(by(EV.replay_fail), then(e).eq(E.FAILED)),
            implies(by(EV.release) & t.retiring & ~t.failed, then(e).eq(E.EVICTED)),
        ),
    ),
    StepProperty(
        "entry",
        "a bound recording that is given up goes to the reclaimer",
        leaves(E.BOUND, E.REPLAYING),
        (grows(t.unreclaimed, 1), grows(t.entries_bound, -1)),
    ),
    StepProperty(
        "entry",
        "an entry is marked retiring only by an eviction that has to wait",
        ~t.retiring & then(t.retiring),
        (by(EV.evict), e.eq(E.REPLAYING)),
    ),
    StepProperty(
        "entry",
        "marks stay until the entry starts again",
        (t.retiring & ~then(t.retiring)) | (t.failed & ~then(t.failed)),
        (by(EV.capture_begin, EV.forget),),
    ),
    StepProperty(
        "entry",
        "a recording is reclaimed with the gate free, no lease on its memory and the device done",
        by(EV.reclaim) | then(t.unreclaimed).lt(t.unreclaimed),
        (
            by(EV.reclaim),
            Lit(0).lt(t.unreclaimed),
            t.gate_free,
            t.pool_leases.eq(0),
            t.fence_passed,
            then(e).eq(e),
            grows(t.unreclaimed, -1),
            grows(t.held, -1),
        ),
    ),
    StepProperty(
        "component",
        "a component in use keeps its state through any transaction",
        c.among(C.BOUND, C.REPLAYING) & by(CV.begin, CV.commit, CV.abort, CV.fail),
        (then(c).eq(c),),
    ),
    StepProperty(
        "component",
        "a transaction takes in what is not in use, and remembers where it came from",
        (by(CV.begin) & ~c.among(C.BOUND, C.REPLAYING)) | enters(C.CAPTURING),
        (by(CV.begin), c.among(C.EAGER, C.EVICTED, C.FAILED), then(c).eq(C.CAPTURING), then(t.c_before).eq(c)),
    ),
    StepProperty(
        "component",
        "a transaction ends for whom it took in, and for whom it left in use",
        by(CV.commit, CV.abort, CV.fail),
        (c.among(C.CAPTURING, C.BOUND, C.REPLAYING),),
    ),
    StepProperty(
        "component",
        "a transaction ends as it says",
        c.eq(C.CAPTURING),
        (
            by(CV.commit, CV.abort, CV.fail),
            implies(by(CV.commit), then(c).eq(C.BOUND)),
            implies(by(CV.abort), then(c).eq(t.c_before)),
            implies(by(CV.fail), then(c).eq(C.FAILED)),
        ),
    ),
    StepProperty(
        "component",
        "BOUND is entered with an entry, or where all come lazily",
        by(CV.lazy_bind) | enters(C.BOUND),
        (
            then(c).eq(C.BOUND),
            by(CV.commit, CV.last_release, CV.lazy_bind),
            implies(by(CV.last_release), c.eq(C.REPLAYING)),
            implies(by(CV.last_release), t.leased.eq(0)),
            implies(by(CV.lazy_bind), c.eq(C.EVICTED)),
            Lit(0).lt(t.bound) | t.pure_lazy,
        ),
    ),
    StepProperty(
        "component",
        "REPLAYING is entered from BOUND by a lease",
        by(CV.first_lease) | enters(C.REPLAYING),
        (by(CV.first_lease), c.eq(C.BOUND), then(c).eq(C.REPLAYING), Lit(0).lt(t.leased)),
    ),
    StepProperty(
        "component",
        "REPLAYING is left with no lease, for BOUND or EVICTED",
        by(CV.last_release) | leaves(C.REPLAYING),
        (by(CV.last_release), c.eq(C.REPLAYING), then(c).among(C.BOUND, C.EVICTED), t.leased.eq(0)),
    ),
    StepProperty(
        "component",
        "EVICTED is entered with no entry left, or back from a transaction",
        by(CV.last_retired) | enters(C.EVICTED),
        (
            then(c).eq(C.EVICTED),
            by(CV.last_release, CV.last_retired, CV.abort),
            implies(by(CV.last_retired), c.eq(C.BOUND)),
            implies(~by(CV.abort), t.bound.eq(0)),
            implies(~by(CV.abort), ~t.pure_lazy),
        ),
    ),
    StepProperty(
        "component",
        "FAILED is entered by a failure, or back from a transaction",
        enters(C.FAILED),
        (by(CV.fail, CV.abort), c.eq(C.CAPTURING)),
    ),
    StepProperty(
        "component",
        "FAILED is left by another attempt or by forget",
        leaves(C.FAILED),
        (by(CV.begin, CV.forget),),
    ),
    StepProperty(
        "component",
        "EAGER is entered from what holds no entry",
        by(CV.forget) | enters(C.EAGER),
        (
            by(CV.forget, CV.abort),
            then(c).eq(C.EAGER),
            ~c.eq(C.REPLAYING),
            implies(by(CV.forget), c.among(C.FAILED, C.EVICTED, C.BOUND)),
            implies(c.eq(C.BOUND), t.bound.eq(0)),
            implies(c.eq(C.BOUND), t.pure_lazy),
        ),
    ),
    StepProperty(
        "pool",
        "one recording at a time, into a pool that was not retired",
        by(PV.begin) | enters(P.RECORDING),
        (by(PV.begin), p.among(P.MINTED, P.LIVE), then(p).eq(P.RECORDING), then(t.p_before).eq(p), grows(t.graphs, 1)),
    ),
    StepProperty(
        "pool",
        "a recording stays, or is as if it had not been",
        p.eq(P.RECORDING) | by(PV.end, PV.fail),
        (
            p.eq(P.RECORDING),
            (by(PV.end) & then(p).eq(P.LIVE)) | (by(PV.fail) & then(p).eq(t.p_before)),
            implies(by(PV.fail), grows(t.graphs, -1)),
        ),
    ),
    StepProperty(
        "pool",
        "recordings go one at a time, by failure or by the reclaimer",
        by(PV.destroyed) | then(t.graphs).lt(t.graphs),
        (
            by(PV.fail, PV.destroyed),
            grows(t.graphs, -1),
            Lit(0).lt(t.graphs),
            implies(by(PV.destroyed), then(p).eq(p)),
            implies(by(PV.destroyed), p.among(P.LIVE, P.RETIRED)),
        ),
    ),
    StepProperty(
        "pool",
        "a pool retires only as the last step of its domain's retirement, and only ours",
        by(PV.retire) | enters(P.RETIRED),
        (by(PV.retire), p.among(P.MINTED, P.LIVE), then(p).eq(P.RETIRED), ~t.kind.eq(PoolKind.foreign), t.domain_live.eq(0)),
    ),
    StepProperty(
        "pool",
        "GONE is entered from RETIRED",
        by(PV.reclaimed) | enters(P.GONE),
        (p.eq(P.RETIRED),),
    ),
    StepProperty(
        "pool",
        "a retired pool is never opened again, and goes when its last recording has gone",
        p.among(P.RETIRED, P.GONE),
        (
            then(p).among(P.RETIRED, P.GONE),
            implies(p.eq(P.GONE), then(p).eq(P.GONE)),
            implies(by(PV.reclaimed), enters(P.GONE)),
            implies(enters(P.GONE), by(PV.reclaimed)),
            implies(enters(P.GONE), t.graphs.eq(0)),
        ),
    ),
    StepProperty(
        "manager",
        "serving starts with a commit, or goes on after leases outlasted a wait",
        ~t.m_serving & then(t.m_serving),
        ((by(MV.commit) & m.eq(M.CAPTURING)) | (by(MV.undrain) & m.eq(M.SERVING)),),
    ),
    StepProperty(
        "manager",
        "serving ends by being asked to, or with the device",
        t.m_serving & ~then(t.m_serving),
        (by(MV.drain, MV.release, MV.close, MV.device_lost),),
    ),
    StepProperty(
        "manager",
        "only a manager that has committed and was not given up serves",
        then(t.m_serving),
        (then(m).among(M.SERVING, M.CAPTURING),),
    ),
    StepProperty(
        "manager",
        "profiling starts and ends at PREPARED",
        by(MV.profile_begin, MV.profile_end) | enters(M.PROFILING) | leaves(M.PROFILING),
        (
            implies(by(MV.profile_begin), then(m).eq(M.PROFILING)),
            implies(by(MV.profile_end), m.eq(M.PROFILING)),
            implies(then(m).eq(M.PROFILING), m.eq(M.PREPARED) & by(MV.profile_begin)),
            implies(m.eq(M.PROFILING), (then(m).eq(M.PREPARED) & by(MV.profile_end)) | then(m).eq(M.POISONED)),
        ),
    ),
    StepProperty(
        "manager",
        "an explicit transaction begins where nobody drains, and remembers where it came from",
        by(MV.capture) | enters(M.CAPTURING),
        (
            by(MV.capture),
            m.among(M.PREPARED, M.SERVING),
            implies(m.eq(M.SERVING), t.m_serving),
            then(m).eq(M.CAPTURING),
            then(t.m_before).eq(m),
        ),
    ),
    StepProperty(
        "manager",
        "an explicit transaction ends as it says",
        by(MV.commit, MV.fail) | leaves(M.CAPTURING),
        (
            m.eq(M.CAPTURING),
            by(MV.commit, MV.fail, MV.device_lost),
            implies(by(MV.commit), then(m).eq(M.SERVING)),
            implies(by(MV.commit), then(t.m_serving)),
            implies(by(MV.fail), then(m).eq(t.m_before)),
        ),
    ),
    StepProperty(
        "manager",
        "release and close wait for leases",
        by(MV.release, MV.close),
        (
            t.m_leases.eq(0),
            ~then(t.m_serving),
            implies(by(MV.release), m.eq(M.SERVING) & then(m).eq(M.PREPARED)),
            implies(by(MV.close), then(m).eq(M.CLOSED)),
            implies(by(MV.close), ~m.among(M.PROFILING, M.CAPTURING, M.CLOSED)),
        ),
    ),
    StepProperty(
        "manager",
        "a manager is prepared once",
        by(MV.prepare) | leaves(M.NEW),
        (m.eq(M.NEW), implies(by(MV.prepare), then(m).eq(M.PREPARED)), by(MV.prepare, MV.device_lost, MV.close)),
    ),
    StepProperty(
        "manager",
        "draining moves nothing but serving",
        by(MV.drain, MV.undrain),
        (
            m.eq(M.SERVING) & then(m).eq(M.SERVING),
            implies(by(MV.drain), t.m_serving & ~then(t.m_serving)),
            implies(by(MV.undrain), ~t.m_serving & then(t.m_serving)),
        ),
    ),
    StepProperty(
        "manager",
        "a lost device poisons, whatever was going on",
        by(MV.device_lost) | enters(M.POISONED),
        (by(MV.device_lost), then(m).eq(M.POISONED), ~then(t.m_serving)),
    ),
    StepProperty(
        "manager",
        "POISONED is left only by close, and CLOSED never",
        m.among(M.POISONED, M.CLOSED),
        (
            then(m).among(M.POISONED, M.CLOSED),
            implies(m.eq(M.CLOSED), then(m).eq(M.CLOSED)),
            implies(enters(M.CLOSED), by(MV.close)),
        ),
    ),
)
"""The rules of single steps, by machine."""

in_use = c.among(C.BOUND, C.REPLAYING)

ACCEPTANCES = (
    Acceptance(
        "entry",
        EV.capture_begin,
        e.among(E.EAGER, E.EVICTED, E.FAILED)
        & t.gate_free
        & t.pool_state.among(P.MINTED, P.LIVE)
        & t.held.lt(t.capacity)
        & ~t.blocked,
    ),
    Acceptance("entry", EV.capture_end, e.eq(E.CAPTURING) & ~t.recorded),
    Acceptance("entry", EV.bind, e.eq(E.CAPTURING) & t.recorded & t.committing & t.noted.eq(t.epoch) & ~throwaway),
    Acceptance("entry", EV.abort, e.eq(E.CAPTURING)),
    Acceptance("entry", EV.capture_fail, e.eq(E.CAPTURING) & ~t.recorded),
    Acceptance(
        "entry",
        EV.acquire,
        (e.eq(E.BOUND) | (e.eq(E.REPLAYING) & t.concurrent & ~t.retiring & ~t.failed))
        & t.serving
        & t.resident
        & t.noted.eq(t.epoch)
        & ~t.stream_capturing,
    ),
    Acceptance("entry", EV.release, e.eq(E.REPLAYING)),
    Acceptance("entry", EV.replay_fail, e.eq(E.REPLAYING)),
    Acceptance("entry", EV.evict, (e.eq(E.BOUND) | (e.eq(E.REPLAYING) & ~t.retiring)) & t.domain_capturing.eq(0)),
    Acceptance("entry", EV.reclaim, Lit(0).lt(t.unreclaimed) & t.gate_free & t.pool_leases.eq(0) & t.fence_passed),
    Acceptance("entry", EV.forget, e.among(E.FAILED, E.EVICTED) & t.unreclaimed.eq(0)),
    Acceptance("component", CV.begin, ~c.eq(C.CAPTURING)),
    Acceptance("component", CV.commit, in_use | (c.eq(C.CAPTURING) & (Lit(0).lt(t.bound) | t.pure_lazy))),
    Acceptance("component", CV.abort, in_use | c.eq(C.CAPTURING)),
    Acceptance("component", CV.fail, in_use | c.eq(C.CAPTURING)),
    Acceptance("component", CV.first_lease, c.eq(C.BOUND) & Lit(0).lt(t.leased)),
    Acceptance("component", CV.last_release, c.eq(C.REPLAYING) & t.leased.eq(0) & ~t.bound.lt(0)),
    Acceptance("component", CV.last_retired, c.eq(C.BOUND) & t.bound.eq(0) & ~t.pure_lazy),
    Acceptance("component", CV.lazy_bind, c.eq(C.EVICTED) & Lit(0).lt(t.bound)),
    Acceptance("component", CV.forget, c.among(C.FAILED, C.EVICTED) | (c.eq(C.BOUND) & t.bound.eq(0) & t.pure_lazy)),
    Acceptance("pool", PV.begin, p.among(P.MINTED, P.LIVE)),
    Acceptance("pool", PV.end, p.eq(P.RECORDING)),
    Acceptance("pool", PV.fail, p.eq(P.RECORDING)),
    Acceptance("pool", PV.destroyed, p.among(P.LIVE, P.RETIRED) & Lit(0).lt(t.graphs)),
    Acceptance("pool", PV.retire, p.among(P.MINTED, P.LIVE) & ~t.kind.eq(PoolKind.foreign) & t.domain_live.eq(0)),
    Acceptance("pool", PV.reclaimed, p.eq(P.RETIRED) & t.graphs.eq(0)),
    Acceptance("manager", MV.prepare, m.eq(M.NEW)),
    Acceptance("manager", MV.profile_begin, m.eq(M.PREPARED)),
    Acceptance("manager", MV.profile_end, m.eq(M.PROFILING)),
    Acceptance("manager", MV.capture, m.eq(M.PREPARED) | (m.eq(M.SERVING) & t.m_serving)),
    Acceptance("manager", MV.commit, m.eq(M.CAPTURING)),
    Acceptance("manager", MV.fail, m.eq(M.CAPTURING)),
    Acceptance("manager", MV.drain, m.eq(M.SERVING) & t.m_serving),
    Acceptance("manager", MV.undrain, m.eq(M.SERVING) & ~t.m_serving),
    Acceptance("manager", MV.release, m.eq(M.SERVING) & t.m_leases.eq(0)),
    Acceptance("manager", MV.device_lost, ~m.eq(M.CLOSED)),
    Acceptance("manager", MV.close, m.among(M.NEW, M.PREPARED, M.SERVING, M.POISONED) & t.m_leases.eq(0)),
)
"""When each event is owed: with the rules of steps, which say when it is not, they leave no choice."""

GOALS = (
    *(Goal(machine.name, "every row is taken", every_row_is_taken) for machine in t.MACHINES),
    Goal("entry", "from everywhere EAGER can be reached", partial(comes_to, frozenset({E.EAGER}), ALWAYS)),
    Goal("component", "from everywhere EAGER can be reached", partial(comes_to, frozenset({C.EAGER}), ALWAYS)),
    Goal("pool", "a pool of ours can go", partial(comes_to, frozenset({P.GONE}), ~t.kind.eq(PoolKind.foreign))),
    Goal("pool", "a foreign pool comes to rest", partial(comes_to, frozenset({P.MINTED, P.LIVE}), t.kind.eq(PoolKind.foreign))),
    Goal("manager", "from everywhere CLOSED can be reached", partial(comes_to, frozenset({M.CLOSED}), ALWAYS)),
)
"""What must be possible."""


def broken_steps(exploration: Exploration) -> Iterator[str]:
    """What the steps of the explored machine break."""
    rules = [rule for rule in STEP_PROPERTIES if rule.machine == exploration.machine.name]
    for edge in exploration.edges:
        if edge.rows:
            step = step_of(edge.env, edge.event, edge.after)
            for rule in rules:
                yield from rule.violations(step)


def wrong_refusals(exploration: Exploration) -> Iterator[str]:
    """Where the explored machine refuses an event that it owes."""
    owed = {each.event: each for each in ACCEPTANCES if each.machine == exploration.machine.name}
    for edge in exploration.edges:
        if not edge.rows:
            yield from owed[edge.event].violations(edge.env)


def missed_goals(exploration: Exploration) -> Iterator[str]:
    """The goals that the explored machine does not reach."""
    for goal in GOALS:
        if goal.machine == exploration.machine.name:
            yield from goal.violations(exploration)
