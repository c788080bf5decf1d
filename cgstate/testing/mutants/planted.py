"""The faults that people have met, as mutants: planted in the system that the tables make up, and in the runtime.

A kind is a ``K`` number, as in `cgstate.testing.stateful.planted` and `cgstate.testing.schedules.planted`, whose bugs are all here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cgstate.lifecycle.expr import Expr, Lit
from cgstate.lifecycle.states import EntryState, PoolState
from cgstate.runtime.calling import Caller
from cgstate.runtime.capturing import Capture
from cgstate.runtime.failure import Failure, NegativeCache
from cgstate.runtime.memory.scope import ProfileTransaction
from cgstate.runtime.record import ComponentRecord
from cgstate.runtime.transaction import Transaction
from cgstate.spec import shared, transactions
from cgstate.spec.cells import FALSE, POOLS, broken, entry, gate_free, leases, left, pool
from cgstate.spec.statements import Action, Assign, Do, ForEach, Statement, When
from cgstate.spec.system import ACTIONS
from cgstate.spec.terms import Every
from cgstate.testing.mutants.mutant import RuntimeMutant, SystemMutant
from cgstate.testing.mutants.operators import slug
from cgstate.testing.plantings import Patch
from cgstate.testing.schedules.planted import RACES
from cgstate.testing.stateful.planted import PLANTED

__all__ = ["runtime_mutants", "system_mutants"]

Edit = Callable[[Action], Action]
KINDS = {"K14": "ranks apart", **{each.kind: each.name for each in (*PLANTED, *RACES)}}
"""What each kind is called."""


# -- in the system --------------------------------------------------------------------------------------------------------


def _without(*conditions: Expr) -> Edit:
    """The action does not ask for these conditions."""

    def edit(action: Action) -> Action:
        return replace(action, require=tuple(each for each in action.require if each not in conditions))

    return edit


def _never(action: Action) -> Action:
    """The action is impossible."""
    return replace(action, require=(*action.require, FALSE))


def _rewriting(rewrite: Callable[[Statement], Statement | None]) -> Edit:
    """The action's statements, inner ones too, each replaced by what ``rewrite`` makes of it; None: it is gone."""

    def each(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        done = []
        for statement in statements:
            if isinstance(statement, When | ForEach | Do):
                statement = replace(statement, then=each(statement.then))
            new = rewrite(statement)
            if new is not None:
                done.append(new)
        return tuple(done)

    return lambda action: replace(action, statements=each(action.statements))


def _not_done(machine: str, event: str) -> Edit:
    """A machine does not take an event."""
    return _rewriting(lambda each: None if isinstance(each, Do) and (each.machine, each.event) == (machine, event) else each)


def _told(event: str, **given: Expr) -> Edit:
    """A machine that takes an event is told something wrong."""
    return _rewriting(
        lambda each: replace(each, given={**each.given, **given}) if isinstance(each, Do) and each.event == event else each
    )


def _not_noted(action: Action) -> Action:
    """What is left of an attempt does not go to the reclaimer."""
    return _rewriting(lambda each: None if isinstance(each, Assign) and each.to == left("attempts") else each)(action)


def _nothing_retired(action: Action) -> Action:
    """No domain is evicted."""
    return _rewriting(lambda each: None if each == shared.EVICT_ALL else each)(action)


def _closes_over_leases(action: Action) -> Action:
    """The manager is told that there are no leases."""
    return _told("close", leases=Lit(0))(_without(leases.eq(0))(action))


def _binds_what_is_recorded(action: Action) -> Action:
    """Only what is recorded is bound, and captures may still be open."""
    capturing = entry("state").eq(EntryState.CAPTURING)

    def rewrite(each: Statement) -> Statement:
        if isinstance(each, When) and each.condition == capturing:
            return replace(each, condition=capturing & entry("recorded"))
        return each

    return _rewriting(rewrite)(_without(transactions.nothing_open)(action))


CAPTURES = ("capture", "capture_anew")
RECLAIMS = ("reclaim_graphs_now", "reclaim_graphs_old")

SYSTEM_FAULTS: tuple[tuple[str, str, tuple[str, ...], Edit], ...] = (
    ("K01", "a profile records into pools that serve", CAPTURES, _without(transactions.may_capture[0])),
    ("K01", "a pool is retired with its last graph, live entries or not", ("abort",), _told("retire", **{"domain.live": Lit(0)})),
    ("K02", "a commit binds what is recorded while a capture is open", ("commit",), _binds_what_is_recorded),
    ("K02", "a transaction commits after one of its captures failed", ("commit",), _without(~broken)),
    ("K02", "what is left of a failed attempt is lost", ("fail_capture",), _not_noted),
    ("K04", "what is destroyed is not refunded", RECLAIMS, _not_done("pool", "destroyed")),
    ("K05", "graphs are destroyed while they are leased", RECLAIMS, _told("reclaim", pool_leases=Lit(0))),
    ("K05", "graphs are destroyed before their fence", RECLAIMS, _told("reclaim", fence_passed=Lit(True))),
    ("K05", "a launch does not look at its lease again", ("launch",), _without(~entry("retiring"), ~entry("failed"))),
    ("K06", "nothing is retired when memory moves", ("invalidate",), _nothing_retired),
    ("K07", "memory goes while it is leased", ("suspended",), _without(leases.eq(0))),
    ("K07", "memory goes while the device uses it", ("suspended",), _without(Every("q", POOLS, ~pool("running", "q")))),
    ("K09", "work is queued out of turn", ("launch",), _without(shared.turn_free)),
    ("K10", "a capture begins while another manager's is open", ("foreign_capture",), _without(gate_free)),
    ("K10", "a capture begins while a launch has the pool", CAPTURES, _without(shared.turn_free)),
    ("K11", "a pool is dropped while a capture is open", ("drop_pool",), _without(gate_free)),
    ("K12", "a launch goes into a pool that is being recorded into", ("launch",), _without(~pool("state").eq(PoolState.RECORDING))),
    ("K15", "closing does not wait for leases", ("close",), _closes_over_leases),
    ("K17", "a refused close leaves the manager draining", ("undrain",), _never),
    ("K17", "a transaction cannot be given up", ("abort",), _never),
)
"""Kind, story, the actions that are changed, and how."""


def system_mutants() -> Iterator[SystemMutant]:
    """The system with each fault planted."""
    for kind, story, names, edit in SYSTEM_FAULTS:
        actions = tuple(edit(each) if each.name in names else each for each in ACTIONS)
        yield SystemMutant(f"system/{kind}/{slug(story)}", "system-fault", f"{kind} {KINDS[kind]}", story, actions)


# -- in the runtime -------------------------------------------------------------------------------------------------------


def _each_is_bound_by_itself() -> Patch:
    right = Capture.end

    def end(self: Capture) -> None:
        right(self)
        transaction = self.entry.transaction
        if not transaction.profiles:
            with transaction.books.gate.lock:
                transaction.committing = True
                transaction._bind(self)
                transaction.committing = False
                self.entry.component.refresh()
                transaction.captured.remove(self)

    return patch.object(Capture, "end", end)


def _profiles_record_what_is_served() -> Patch:
    return patch.object(ProfileTransaction, "resolve", Transaction.resolve)


def _failures_are_final() -> Patch:
    return patch.object(Failure, "blocks", lambda self, **how: True)


def _success_forgives_nothing() -> Patch:
    return patch.object(NegativeCache, "forget", lambda self, *whose: None)


def _outputs_are_no_copies() -> Patch:
    right = Caller.__init__

    def made(self: Caller, *given: Any, **named: Any) -> None:
        right(self, *given, **named)
        if self.clone is not None:
            self.clone, self.tensor = (lambda value: value), Caller  # no value is one, so that `clone` is asked

    return patch.object(Caller, "__init__", made)


def _ranks_are_not_asked() -> Patch:
    right = ComponentRecord.__init__

    def made(self: ComponentRecord, *given: Any, **named: Any) -> None:
        right(self, *given, **{**named, "collective": False})

    return patch.object(ComponentRecord, "__init__", made)


def _epochs_stand_still() -> Patch:
    return patch.object(ComponentRecord, "note_move", lambda self: self.manager.unseal())


RUNTIME_FAULTS: tuple[tuple[str, str, Callable[[], Patch]], ...] = (
    *((each.kind, each.story, each.planting) for each in PLANTED),
    ("K01", "a profile records what is served, in its pool", _profiles_record_what_is_served),
    ("K02", "each graph is bound before all are captured", _each_is_bound_by_itself),
    ("K06", "an epoch stands still while memory moves", _epochs_stand_still),
    ("K08", "a call hands out the static output, not a copy", _outputs_are_no_copies),
    ("K14", "other ranks are not asked for their vote", _ranks_are_not_asked),
    ("K16", "no failure is ever forgiven", _failures_are_final),
    ("K16", "what failed is remembered after all was released", _success_forgives_nothing),
)


def runtime_mutants() -> Iterator[RuntimeMutant]:
    """The runtime with each fault planted; races last."""
    for kind, story, planting in RUNTIME_FAULTS:
        yield RuntimeMutant(f"runtime/{kind}/{slug(story)}", "runtime-fault", f"{kind} {KINDS[kind]}", story, planting)
    for race in RACES:
        subject = f"{race.kind} {race.name}"
        yield RuntimeMutant(f"race/{race.kind}/{slug(race.story)}", "race", subject, race.story, race.planting, race.case)
