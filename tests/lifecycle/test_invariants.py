"""Each predicate passes what is right and fails what is wrong: for every one, a violation and its cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cgstate.lifecycle import ComponentState, EntryState, ManagerState, PoolKind, PoolState, predicates
from cgstate.lifecycle.invariants import (
    INVARIANTS,
    Checker,
    OnObservation,
    OnRest,
    OnState,
    OnStep,
    broken_at,
    broken_by,
    broken_in,
    unsettled_in,
)
from cgstate.lifecycle.observations import (
    CallAnswer,
    Destruction,
    FailedCapture,
    Obstacle,
    Outcome,
    OutputComparison,
    PoolTurns,
    Profile,
    Turn,
    Work,
)
from cgstate.lifecycle.world import (
    Act,
    BookView,
    ComponentView,
    DomainView,
    EntryView,
    GateView,
    ManagerView,
    PoolView,
    World,
)

E, C, P, M = EntryState, ComponentState, PoolState, ManagerState


def entry(name: str, state: EntryState, *, leases: int = 0, unreclaimed: int = 0) -> EntryView:
    return EntryView(
        name=name,
        component=name.partition("[")[0],
        descriptor=name.partition("[")[2].rstrip("]"),
        domain="shared",
        pool="shared/1",
        state=state,
        before=E.EAGER,
        leases=leases,
        retiring=False,
        failed=False,
        recorded=False,
        noted=0,
        unreclaimed=unreclaimed,
    )


def component(name: str, state: ComponentState, *, bound: int = 0, leased: int = 0, held: int = 0) -> ComponentView:
    return ComponentView(
        name=name, state=state, bound=bound, leased=leased, held=held, capacity=3, epoch=0, resident=True, pure_lazy=False
    )


SERVING = World(
    gate=GateView(free=True, holder=""),
    manager=ManagerView(M.SERVING, serving=True),
    entries=(
        entry("decoder[64]", E.REPLAYING, leases=2),
        entry("decoder[32]", E.BOUND),
        entry("decoder[16]", E.EVICTED, unreclaimed=1),
        entry("prosody[8]", E.EAGER),
    ),
    components=(component("decoder", C.REPLAYING, bound=2, leased=1, held=3), component("prosody", C.EAGER)),
    pools=(
        PoolView("shared/0", PoolKind.shared, P.GONE, 0, "shared", 0, None),
        PoolView("shared/1", PoolKind.shared, P.LIVE, 3, "shared", 4096, 4096),
        PoolView("host", PoolKind.foreign, P.LIVE, 1, "host", 512, 8192),
    ),
    domains=(DomainView("shared", capturing=0, live=2), DomainView("host", capturing=0, live=0)),
    books=(BookView("negative cache", 8, 8),),
    acquires=5,
    releases=3,
    ledger_bytes=4096 + 512 + 100,
    outside_bytes=100,
)
"""Right in every respect: one entry leased twice, one idle, one waiting for the reclaimer behind those leases, one never used."""


def change(world: World, parts_name: str, at: str, /, **fields: Any) -> World:
    """The World with some fields of one of its parts changed."""
    parts = getattr(world, parts_name)
    assert any(part.name == at for part in parts)
    changed = tuple(part._replace(**fields) if part.name == at else part for part in parts)
    return world._replace(**{parts_name: changed})  # type: ignore[arg-type]


def with_entry(at: str, world: World = SERVING, /, **fields: Any) -> World:
    return change(world, "entries", at, **fields)


def with_component(at: str, world: World = SERVING, /, **fields: Any) -> World:
    return change(world, "components", at, **fields)


def with_pool(at: str, world: World = SERVING, /, **fields: Any) -> World:
    return change(world, "pools", at, **fields)


def with_domain(at: str, world: World = SERVING, /, **fields: Any) -> World:
    return change(world, "domains", at, **fields)


def recording() -> World:
    """The same while ``prosody[8]`` is being captured."""
    world = SERVING._replace(gate=GateView(free=False, holder="prosody[8]"), manager=ManagerView(M.CAPTURING, serving=True))
    world = with_entry("prosody[8]", world, state=E.CAPTURING)
    world = with_component("prosody", world, state=C.CAPTURING, held=1)
    world = with_pool("shared/1", world, state=P.RECORDING, graphs=4, measured=5000)
    return with_domain("shared", world, capturing=1, live=3)


def recorded() -> World:
    """The same with the recording in the transaction's hands."""
    world = recording()._replace(gate=GateView(free=True, holder=""), ledger_bytes=5000 + 512 + 100)
    world = with_entry("prosody[8]", world, recorded=True)
    return with_pool("shared/1", world, state=P.LIVE, charged=5000, measured=5000)


def two_captured() -> World:
    """Two entries of one transaction, both recorded."""
    world = with_entry("prosody[8]", recorded(), state=E.CAPTURING)
    return with_entry("decoder[16]", world, state=E.CAPTURING, before=E.EVICTED, recorded=True)


def ended(one: EntryState, other: EntryState, world: World | None = None) -> World:
    return with_entry("decoder[16]", with_entry("prosody[8]", world or two_captured(), state=one), state=other)


ABORT = Act("abort")
COMMIT = Act("commit", frozenset({"prosody[8]", "decoder[16]"}))

WRONG_WORLDS: list[tuple[Callable[[World], Iterator[str]], World, str]] = [
    (predicates.nothing_is_half_bound, with_component("decoder", bound=3), "counts 3 bound entries, and there are 2"),
    (predicates.nothing_is_half_bound, with_component("decoder", state=C.CAPTURING), "decoder is CAPTURING with 2 bound"),
    (predicates.nothing_is_half_bound, with_component("prosody", state=C.BOUND), "prosody is BOUND without a bound entry"),
    (predicates.what_is_live_exists, with_pool("shared/1", graphs=1), "holds 1 recordings for 2 live entries"),
    (predicates.one_capture_at_a_time, SERVING._replace(gate=GateView(free=True, holder="x")), "the gate is free"),
    (predicates.one_capture_at_a_time, SERVING._replace(gate=GateView(free=False, holder="")), "the gate is taken"),
    (predicates.one_capture_at_a_time, with_entry("decoder[16]", recording(), state=E.CAPTURING), "capture of decoder[16] is open"),
    (
        predicates.one_capture_at_a_time,
        with_entry("prosody[8]", recording(), recorded=True),
        "prosody[8] holds the gate and its capture is not open",
    ),
    (predicates.one_capture_at_a_time, with_pool("host", state=P.RECORDING), "host is RECORDING"),
    (predicates.one_capture_at_a_time, with_pool("shared/1", recording(), state=P.LIVE), "shared/1 is LIVE"),
    (predicates.domains_know_their_captures, with_domain("shared", capturing=1), "counts 1 CAPTURING entries, and there are 0"),
    (predicates.retired_pools_are_empty, with_pool("shared/1", state=P.RETIRED), "RETIRED and decoder[64] is REPLAYING in it"),
    (predicates.retired_pools_are_empty, with_pool("host", state=P.RETIRED), "host is foreign"),
    (predicates.retired_pools_are_empty, with_pool("shared/0", graphs=1), "GONE with 1 recordings"),
    (predicates.domains_know_their_live_entries, with_domain("shared", live=3), "counts 3 live entries, and there are 2"),
    (predicates.ledger_is_honest, SERVING._replace(ledger_bytes=4096), "the ledger says 4096 bytes, and 4708 are charged"),
    (predicates.ledger_is_honest, with_pool("shared/1", measured=8192), "is charged 4096 bytes, and has 8192"),
    (predicates.ledger_is_honest, with_pool("host", measured=100), "host is charged 512 bytes, and has 100"),
    (predicates.closed_owes_nothing, SERVING._replace(manager=ManagerView(M.CLOSED, False)), "CLOSED with 4708 bytes"),
    (predicates.only_the_living_are_leased, with_entry("decoder[32]", leases=1), "decoder[32] is BOUND with 1 leases"),
    (predicates.only_the_living_are_leased, with_entry("decoder[64]", state=E.FAILED), "decoder[64] is FAILED with 2 leases"),
    (predicates.only_the_living_are_leased, with_entry("decoder[64]", leases=0), "decoder[64] is REPLAYING with 0 leases"),
    (predicates.leases_are_conserved, SERVING._replace(releases=2), "5 acquires and 2 releases leave 2 leases"),
    (predicates.leases_are_conserved, with_entry("prosody[8]", leases=-1), "prosody[8] has -1 leases"),
    (predicates.components_know_their_leases, with_component("decoder", leased=2), "counts 2 REPLAYING entries"),
    (predicates.components_know_their_leases, with_component("decoder", state=C.BOUND), "decoder is BOUND with 1 REPLAYING"),
    (predicates.capacity_is_kept, with_component("decoder", held=2), "counts 2 graphs held, and there are 3"),
    (predicates.capacity_is_kept, with_component("decoder", capacity=2), "holds 3 graphs and may hold 2"),
    (predicates.books_are_bounded, SERVING._replace(books=(BookView("misses", 9, 8),)), "misses holds 9 of at most 8"),
]

RESTLESS: list[tuple[World, str]] = [
    (recording(), "the gate is still held by prosody[8]"),
    (recorded(), "prosody[8] is still CAPTURING"),
    (with_component("prosody", state=C.CAPTURING), "prosody is still CAPTURING"),
    (with_entry("decoder[64]", state=E.BOUND, leases=0), "1 recordings of decoder[16] are not reclaimed"),
    (with_pool("host", kind=PoolKind.shared, state=P.RETIRED), "host is retired and not reclaimed"),
    (SERVING._replace(manager=ManagerView(M.PROFILING, False)), "the manager is still PROFILING"),
]

UNUSABLE: list[tuple[World, str]] = [
    (with_entry("decoder[32]", state=E.EVICTED), "it was EVICTED"),
    (with_entry("decoder[32]", state=E.FAILED), "it was FAILED"),
    (with_entry("decoder[32]", retiring=True), "it was retiring"),
    (with_entry("decoder[32]", failed=True), "it had failed"),
    (with_entry("decoder[32]", noted=1), "its addresses were stale"),
    (with_component("decoder", resident=False), "its memory was suspended"),
    (SERVING._replace(manager=ManagerView(M.SERVING, serving=False)), "the manager was not serving"),
]


def leased(world: World) -> World:
    return with_entry("decoder[32]", world, state=E.REPLAYING, leases=1)


WRONG_STEPS: list[tuple[Callable[[World, World, Act], Iterator[str]], World, World, Act, str]] = [
    (predicates.transaction_is_atomic, two_captured(), ended(E.BOUND, E.EVICTED), ABORT, "prosody[8] is BOUND after abort"),
    (predicates.transaction_is_atomic, two_captured(), ended(E.BOUND, E.CAPTURING), COMMIT, "decoder[16] is CAPTURING after"),
    (predicates.transaction_is_atomic, two_captured(), ended(E.EVICTED, E.EVICTED), ABORT, "prosody[8] is EVICTED after abort"),
    (predicates.transaction_is_atomic, two_captured(), ended(E.FAILED, E.FAILED), ABORT, "failed decoder[16] and prosody[8]"),
    (predicates.transaction_is_atomic, SERVING, ended(E.BOUND, E.EVICTED, SERVING), COMMIT, "prosody[8] is BOUND after commit"),
    (
        predicates.retired_is_for_good,
        with_pool("shared/1", state=P.RETIRED),
        with_pool("shared/1", state=P.LIVE),
        ABORT,
        "abort made shared/1 LIVE after it was retired",
    ),
    (predicates.retired_is_for_good, SERVING, with_pool("shared/0", state=P.RETIRED), ABORT, "shared/0 RETIRED after it was gone"),
    *(
        (predicates.leases_are_given_to_the_living, world, leased(world), Act("acquire"), f"acquire leased decoder[32]: {reason}")
        for world, reason in UNUSABLE
    ),
]

RIGHT_STEPS: list[tuple[World, World, Act]] = [
    (SERVING, SERVING, Act("nothing")),
    (SERVING, leased(SERVING), Act("acquire")),
    (two_captured(), ended(E.BOUND, E.BOUND), COMMIT),
    (two_captured(), ended(E.BOUND, E.BOUND), Act("commit")),
    (two_captured(), ended(E.EAGER, E.EVICTED), ABORT),
    (two_captured(), ended(E.FAILED, E.EVICTED), ABORT),
    (two_captured(), ended(E.FAILED, E.CAPTURING), Act("capture_fail")),
    (SERVING, ended(E.BOUND, E.BOUND, SERVING), COMMIT),
    (with_pool("shared/1", state=P.RETIRED), with_pool("shared/1", state=P.GONE), Act("reclaimed")),
    (SERVING, SERVING._replace(pools=SERVING.pools[1:]), Act("forgot a pool that is gone")),
    (SERVING._replace(entries=SERVING.entries[:1]), SERVING, Act("made entries")),
]


def turn(call: str, began: int, ended: int, *, thread: int = 1, stream: int = 7, waited_for: frozenset[int] = frozenset()) -> Turn:
    return Turn(call, thread, stream, began, ended, frozenset({Work.write, Work.replay, Work.clone}), waited_for)


READINGS = {"bytes of shared/1": 4096, "current stream": "default", "generator": 7}
PROFILE = Profile(before=READINGS, after=READINGS)
FAILED = FailedCapture("decoder[64]", before=READINGS, after=READINGS)
OUTPUT = OutputComparison("decoder[64]", repeatable=True, bitwise=True, padded_error=0.0, unpadded_error=0.01, tolerance=0.02)
DESTROYED = Destruction("graph of decoder[16]", leases=0, replays_done=True, captures_open=0)
ANSWER = CallAnswer("decoder", Outcome.graph, as_eager=True)

RIGHT_OBSERVATIONS: list[object] = [
    DESTROYED,
    PROFILE,
    FAILED,
    replace(FAILED, after=READINGS | {"bytes of shared/1": 5120}, stranded={"bytes of shared/1": 1024}),
    OUTPUT,
    replace(OUTPUT, repeatable=False, bitwise=False, padded_error=0.02, unpadded_error=0.02),
    ANSWER,
    CallAnswer("decoder", Outcome.eager, Obstacle.miss, counted="miss", as_eager=True),
    CallAnswer("decoder", Outcome.routine_error, Obstacle.gate_busy, counted="capture_busy"),
    CallAnswer("decoder", Outcome.not_resident),
    PoolTurns("shared/1", ()),
    PoolTurns("shared/1", (turn("a", 1, 2), turn("b", 3, 4, thread=2))),
    PoolTurns("shared/1", (turn("b", 3, 4, stream=8, waited_for=frozenset({7})), turn("a", 1, 2))),
    PoolTurns("shared/1", (turn("outer", 1, 4), turn("inner", 2, 3), turn("next", 5, 6))),
]

WRONG_OBSERVATIONS: list[tuple[Callable[[Any], Iterator[str]], object, str]] = [
    (predicates.destroyed_when_unused, replace(DESTROYED, leases=1), "destroyed with 1 leases held"),
    (predicates.destroyed_when_unused, replace(DESTROYED, replays_done=False), "before its last replay was complete"),
    (predicates.destroyed_outside_captures, replace(DESTROYED, captures_open=1), "while a capture was open"),
    (predicates.profile_leaves_nothing, replace(PROFILE, after=READINGS | {"generator": 8}), "generator was 7 and is 8"),
    (predicates.profile_leaves_nothing, replace(PROFILE, after=READINGS | {"pool": 1}), "pool was absent and is 1"),
    (predicates.profile_leaves_nothing, replace(PROFILE, after={}), "current stream was default and is absent"),
    (predicates.profile_leaves_nothing, replace(PROFILE, bound=("decoder[64]",)), "decoder[64] is bound to something"),
    (
        predicates.turns_do_not_overlap,
        PoolTurns("p", (turn("a", 1, 3), turn("b", 2, 4, thread=2))),
        "b began in p in the turn of a",
    ),
    (predicates.turns_do_not_overlap, PoolTurns("p", (turn("a", 1, 3), turn("b", 2, 4))), "b began in p in the turn of a"),
    (
        predicates.turns_do_not_overlap,
        PoolTurns("p", (turn("a", 1, 4), turn("b", 2, 3, stream=8, waited_for=frozenset({7})))),
        "b began in p in the turn of a",
    ),
    (
        predicates.turns_do_not_overlap,
        PoolTurns("p", (turn("a", 1, 9), turn("b", 2, 3), turn("c", 4, 5, thread=2))),
        "c began in p in the turn of a",
    ),
    (
        predicates.turns_are_ordered_on_the_device,
        PoolTurns("p", (turn("a", 1, 2), turn("b", 3, 4, stream=8))),
        "b on stream 8 does not wait for a on stream 7 in p",
    ),
    (
        predicates.turns_are_for_work,
        PoolTurns("p", (replace(turn("idle lease", 1, 9), work=frozenset()),)),
        "idle lease held the turn of p for nothing",
    ),
    (predicates.calls_are_answered, replace(ANSWER, outcome=Outcome.other_error), "raised an error that it may not raise"),
    (predicates.calls_are_answered, replace(ANSWER, as_eager=False), "returned something else than eager does"),
    (
        predicates.calls_are_answered,
        CallAnswer("decoder", Outcome.stale_binding, Obstacle.oom, counted="oom"),
        "met oom and ended as stale_binding, not eagerly",
    ),
    (predicates.calls_are_answered, CallAnswer("decoder", Outcome.eager, Obstacle.miss), "met miss, and no reason was counted"),
    (predicates.failure_is_clean, replace(FAILED, after=READINGS | {"generator": 8}), "generator was 7 and is 8"),
    (
        predicates.failure_is_clean,
        replace(FAILED, after=READINGS | {"bytes of shared/1": 5120}),
        "bytes of shared/1 was 4096 and is 5120",
    ),
    (
        predicates.failure_is_clean,
        replace(FAILED, after=READINGS | {"bytes of shared/1": 5120}, stranded={"bytes of shared/1": 1000}),
        "bytes of shared/1 was 5096 and is 5120",
    ),
    (predicates.failure_is_clean, replace(FAILED, eager_works=False), "eager work fails"),
    (predicates.failure_is_clean, replace(FAILED, next_capture_works=False), "the next capture fails"),
    (predicates.outputs_agree, replace(OUTPUT, bitwise=False), "differs from eager in some bit"),
    (predicates.outputs_agree, replace(OUTPUT, repeatable=False, padded_error=0.03), "differs from eager by 0.03"),
    (predicates.outputs_agree, replace(OUTPUT, unpadded_error=float("nan")), "differs from unpadded eager by nan"),
]

# -- what holds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checker", Checker)
@pytest.mark.parametrize("world", [SERVING, recording(), recorded()], ids=["serving", "recording", "recorded"])
def test_a_right_world_breaks_nothing(checker: Checker, world: World) -> None:
    assert list(map(str, broken_in(checker, world))) == []


@pytest.mark.parametrize("checker", Checker)
@pytest.mark.parametrize(("before", "after", "act"), RIGHT_STEPS)
def test_a_right_step_breaks_nothing(checker: Checker, before: World, after: World, act: Act) -> None:
    assert list(map(str, broken_by(checker, before, after, act))) == []


@pytest.mark.parametrize("observation", RIGHT_OBSERVATIONS)
def test_a_right_observation_breaks_nothing(observation: object) -> None:
    assert list(map(str, broken_at(observation))) == []


def test_a_world_at_rest_is_settled() -> None:
    assert list(map(str, unsettled_in(SERVING))) == []


# -- what does not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("predicate", "world", "witness"), WRONG_WORLDS)
def test_a_wrong_world_is_found(predicate: Callable[[World], Iterator[str]], world: World, witness: str) -> None:
    assert any(witness in text for text in predicate(world)), list(predicate(world))
    assert list(predicate(SERVING)) == []


@pytest.mark.parametrize(("predicate", "before", "after", "act", "witness"), WRONG_STEPS)
def test_a_wrong_step_is_found(
    predicate: Callable[[World, World, Act], Iterator[str]], before: World, after: World, act: Act, witness: str
) -> None:
    assert any(witness in text for text in predicate(before, after, act)), list(predicate(before, after, act))


@pytest.mark.parametrize(("predicate", "observation", "witness"), WRONG_OBSERVATIONS)
def test_a_wrong_observation_is_found(predicate: Callable[[Any], Iterator[str]], observation: object, witness: str) -> None:
    assert any(witness in text for text in predicate(observation)), list(predicate(observation))


@pytest.mark.parametrize(("world", "witness"), RESTLESS)
def test_what_has_not_settled_is_found(world: World, witness: str) -> None:
    assert witness in list(predicates.everything_has_settled(world))


def test_what_a_lease_holds_back_may_wait() -> None:
    waiting = with_entry("decoder[16]", unreclaimed=2)
    assert list(predicates.everything_has_settled(waiting)) == []


# -- the register -------------------------------------------------------------------------------------------------------


def test_the_invariants_are_those_of_the_design() -> None:
    names = "atomic-bind no-destroy-in-use quiet-capture profile-leaves-nothing pool-turn pool-id ledger dead-never-replays "
    names += "always-answers lease-conservation capacity clean-failure bounded-books same-answer settled"
    assert [(invariant.id, invariant.name) for invariant in INVARIANTS.values()] == [
        (f"I{number}", name) for number, name in enumerate(names.split(), 1)
    ]
    assert list(INVARIANTS) == [invariant.id for invariant in INVARIANTS.values()]


@pytest.mark.parametrize(
    ("checker", "numbers"),
    [
        (Checker.model, [1, 2, 3, 5, 6, 7, 8, 10, 11, 15]),
        (Checker.stateful, list(range(1, 15))),
        (Checker.runtime, [1, 2, 3, 5, 6, 7, 8, 10, 11, 13]),
    ],
)
def test_who_checks_is_as_the_design_says(checker: Checker, numbers: list[int]) -> None:
    assert [number for number, invariant in INVARIANTS.items() if checker in invariant.checkers] == [
        f"I{which}" for which in numbers
    ]


def test_every_registered_predicate_is_shown_to_fail_above() -> None:
    failing = {
        *(predicate for predicate, _, _ in WRONG_WORLDS),
        *(predicate for predicate, *_ in WRONG_STEPS),
        *(predicate for predicate, _, _ in WRONG_OBSERVATIONS),
        predicates.everything_has_settled,
    }
    assert {predicate.violations for invariant in INVARIANTS.values() for predicate in invariant.predicates} == failing


@pytest.mark.parametrize("invariant", INVARIANTS.values(), ids=str)
def test_an_invariant_says_what_it_is_about(invariant: Any) -> None:
    assert invariant.statement.endswith(".")
    assert invariant.predicates
    assert all(isinstance(predicate, OnState | OnStep | OnObservation | OnRest) for predicate in invariant.predicates)


def test_a_violation_is_reported_under_its_invariant() -> None:
    (violation,) = broken_in(Checker.runtime, with_component("decoder", capacity=2))
    assert str(violation) == "I11 capacity: decoder holds 3 graphs and may hold 2"
    assert violation.invariant is INVARIANTS["I11"]


def test_a_checker_looks_only_at_its_own() -> None:
    world = SERVING._replace(books=(BookView("misses", 9, 8),))
    assert [violation.invariant.id for violation in broken_in(Checker.runtime, world)] == ["I13"]
    assert list(broken_in(Checker.model, world)) == []


def test_steps_and_observations_are_reported_under_their_invariants() -> None:
    (step,) = broken_by(Checker.model, SERVING, with_pool("shared/0", state=P.RETIRED), ABORT)
    assert step.invariant.id == "I6"
    found = broken_at(Destruction("graph", leases=1, replays_done=True, captures_open=1))
    assert [violation.invariant.id for violation in found] == ["I2", "I3"]
    assert {violation.invariant.id for violation in unsettled_in(recorded())} == {"I15"}
