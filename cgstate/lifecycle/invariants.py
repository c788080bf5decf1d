"""What must always hold: I1 to I15 as named predicates.

A predicate (`predicates`) looks at one `World`, at two Worlds with the act between them, at an observation, or at a World at rest.
One invariant may need more than one. None is here that cannot fail: a test shows each a violation and its cure.

Whoever checks builds Worlds and observations and asks `broken_in`, `broken_by`, `broken_at` or `unsettled_in` for violations.

What single steps of a table must satisfy stands in `properties`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

from cgstate.lifecycle import predicates
from cgstate.lifecycle.observations import CallAnswer, Destruction, FailedCapture, OutputComparison, PoolTurns, Profile
from cgstate.lifecycle.world import Act, World

T = TypeVar("T")


class Checker(StrEnum):
    """Who checks an invariant."""

    model = auto()
    stateful = auto()
    runtime = auto()


@dataclass(frozen=True, slots=True)
class OnState:
    """Holds in every World."""

    violations: Callable[[World], Iterator[str]]


@dataclass(frozen=True, slots=True)
class OnStep:
    """Holds between every World and the next, given the act between them."""

    violations: Callable[[World, World, Act], Iterator[str]]


@dataclass(frozen=True, slots=True)
class OnObservation(Generic[T]):
    """Holds for every observation of one class."""

    observed: type[T]
    violations: Callable[[T], Iterator[str]]


@dataclass(frozen=True, slots=True)
class OnRest:
    """Holds in a World that has come to rest: nothing runs, and the reclaimer was called since. The bounded form of liveness."""

    violations: Callable[[World], Iterator[str]]


Predicate: TypeAlias = OnState | OnStep | OnObservation[Any] | OnRest


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant.

    Attributes:
        id: ``I1`` to ``I15``.
        name: Its short name.
        statement: What always holds, in words.
        checkers: Who checks it.
        predicates: What each of them can evaluate.
    """

    id: str
    name: str
    statement: str
    checkers: frozenset[Checker]
    predicates: tuple[Predicate, ...]

    def __str__(self) -> str:
        return f"{self.id} {self.name}"


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that is broken, with the witness."""

    invariant: Invariant
    witness: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.witness}"


MODEL, STATEFUL, RUNTIME = Checker.model, Checker.stateful, Checker.runtime

_REGISTER = (
    Invariant(
        "I1",
        "atomic-bind",
        "When a transaction ends, all its entries are BOUND, or all are in the state they had before, the failing one FAILED; "
        "no call in between sees a mixture.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (OnStep(predicates.transaction_is_atomic), OnState(predicates.nothing_is_half_bound)),
    ),
    Invariant(
        "I2",
        "no-destroy-in-use",
        "A graph or buffer is destroyed only with no lease on its domain and its last replay complete on the device.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (OnState(predicates.what_is_live_exists), OnObservation(Destruction, predicates.destroyed_when_unused)),
    ),
    Invariant(
        "I3",
        "quiet-capture",
        "While a capture is open no other capture opens on that device, and no graph of ours is destroyed, dropped objects and "
        "the garbage collector included.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (
            OnState(predicates.one_capture_at_a_time),
            OnState(predicates.domains_know_their_captures),
            OnObservation(Destruction, predicates.destroyed_outside_captures),
        ),
    ),
    Invariant(
        "I4",
        "profile-leaves-nothing",
        "After profiling: pools, bytes, entries, streams, generator and counters as before; nothing profiled is bound.",
        frozenset({STATEFUL}),
        (OnObservation(Profile, predicates.profile_leaves_nothing),),
    ),
    Invariant(
        "I5",
        "pool-turn",
        "Static-input write, replay and clone of one call into a pool are ordered with those of every other call into it, on the "
        "host and between streams; the turn covers just these, is never held by an idle lease, and is re-entrant on the same "
        "thread and stream. Foreign graphs in a foreign pool are outside it.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (
            OnObservation(PoolTurns, predicates.turns_do_not_overlap),
            OnObservation(PoolTurns, predicates.turns_are_ordered_on_the_device),
            OnObservation(PoolTurns, predicates.turns_are_for_work),
        ),
    ),
    Invariant(
        "I6",
        "pool-id",
        "No capture opens a retired id; a persistent pool retires only as the last step of its domain's retirement, release() or "
        "close(), never because its last graph was reset.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (
            OnState(predicates.retired_pools_are_empty),
            OnState(predicates.domains_know_their_live_entries),
            OnStep(predicates.retired_is_for_good),
        ),
    ),
    Invariant(
        "I7",
        "ledger",
        "Bytes charged = bytes of live, stranded and retired-not-reclaimed resources, measured on the pools' own segments; 0 "
        "after close.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (OnState(predicates.ledger_is_honest), OnState(predicates.closed_owes_nothing)),
    ),
    Invariant(
        "I8",
        "dead-never-replays",
        "EVICTED, FAILED or out-of-epoch entries are never replayed.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (OnState(predicates.only_the_living_are_leased), OnStep(predicates.leases_are_given_to_the_living)),
    ),
    Invariant(
        "I9",
        "always-answers",
        "A component call returns what eager would, or raises the routine's own error, NotResident, StaleBinding, the launch "
        "error or ManagerPoisoned. A miss, a busy gate, a closed manager, and a lazy capture that ends REJECTED, OOM, FOREIGN or "
        "BUDGET are answered eagerly and counted with the reason.",
        frozenset({STATEFUL}),
        (OnObservation(CallAnswer, predicates.calls_are_answered),),
    ),
    Invariant(
        "I10",
        "lease-conservation",
        "Every acquire has exactly one release; leases ≥ 0.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (OnState(predicates.leases_are_conserved), OnState(predicates.components_know_their_leases)),
    ),
    Invariant(
        "I11",
        "capacity",
        "Live + capturing + not-yet-reclaimed ≤ capacity; eviction comes before capture, so the peak is bounded too.",
        frozenset({MODEL, STATEFUL, RUNTIME}),
        (OnState(predicates.capacity_is_kept),),
    ),
    Invariant(
        "I12",
        "clean-failure",
        "After any failed capture: current stream, default generator, allocator routing, pools' use counts and other entries are "
        "as before; bytes too, except that what the attempt grew in a pool with other live entries stays there, charged as "
        "stranded until the domain retires; eager work and the next capture succeed.",
        frozenset({STATEFUL}),
        (OnObservation(FailedCapture, predicates.failure_is_clean),),
    ),
    Invariant(
        "I13",
        "bounded-books",
        "Statistics, negative cache and traces are bounded; totals stay exact.",
        frozenset({STATEFUL, RUNTIME}),
        (OnState(predicates.books_are_bounded),),
    ),
    Invariant(
        "I14",
        "same-answer",
        "Graph output equals eager output for inputs other than those captured with: bit for bit on the same (padded) shapes "
        "where the eager call is itself repeatable, else and against the unpadded call within the routine's stated tolerance.",
        frozenset({STATEFUL}),
        (OnObservation(OutputComparison, predicates.outputs_agree),),
    ),
    Invariant(
        "I15",
        "settled",
        "Every retirement is reclaimed, every transaction ends, every waiter proceeds, given further calls.",
        frozenset({MODEL}),
        (OnRest(predicates.everything_has_settled),),
    ),
)

INVARIANTS = {invariant.id: invariant for invariant in _REGISTER}
"""By id, in order."""


def broken_in(checker: Checker, world: World) -> Iterator[Violation]:
    """What one World violates of the invariants that ``checker`` checks."""
    for invariant, predicate in registered(OnState, checker):
        for witness in predicate.violations(world):
            yield Violation(invariant, witness)


def broken_by(checker: Checker, before: World, after: World, act: Act) -> Iterator[Violation]:
    """What an act violates of the invariants that ``checker`` checks, seen from the Worlds before and after it."""
    for invariant, predicate in registered(OnStep, checker):
        for witness in predicate.violations(before, after, act):
            yield Violation(invariant, witness)


def broken_at(observation: object) -> Iterator[Violation]:
    """What an observation violates, whoever made it."""
    for invariant, predicate in _concerned(type(observation)):  # type: ignore[arg-type]  # classes have a hash
        for witness in predicate.violations(observation):
            yield Violation(invariant, witness)


@cache
def _concerned(observed: type[object]) -> tuple[tuple[Invariant, OnObservation[Any]], ...]:
    """The predicates for one class of observations."""
    return tuple(each for each in registered(OnObservation) if issubclass(observed, each[1].observed))


def unsettled_in(world: World) -> Iterator[Violation]:
    """What has not come to rest in a World that should have."""
    for invariant, predicate in registered(OnRest):
        yield from (Violation(invariant, witness) for witness in predicate.violations(world))


@cache
def registered(shape: type[T], checker: Checker | None = None) -> tuple[tuple[Invariant, T], ...]:
    """The predicates of one shape, each with its invariant; of all invariants, or of those that ``checker`` checks."""
    return tuple(
        (invariant, predicate)
        for invariant in _REGISTER
        if checker is None or checker in invariant.checkers
        for predicate in invariant.predicates
        if isinstance(predicate, shape)
    )
