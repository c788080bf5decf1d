"""What a refusal says, and which kind it is: typed, without a side effect, cured by the condition that it names."""

from __future__ import annotations

import inspect

import pytest

from cgstate import errors
from cgstate.errors import (
    CaptureActive,
    CaptureFailed,
    CGStateError,
    ConfigError,
    IllegalTransition,
    LeaseOutstanding,
    ManagerClosed,
    ManagerPoisoned,
    NotResident,
    PoolRetired,
    StaleBinding,
)
from cgstate.lifecycle import (
    COMPONENT,
    ENTRY,
    MANAGER,
    POOL,
    ComponentEvent,
    EntryEvent,
    EntryState,
    Machine,
    ManagerEvent,
    ManagerState,
    PoolEvent,
    PoolKind,
    PoolState,
    engine,
)
from cgstate.lifecycle.expr import Value

IDLE: dict[str, Value] = {
    "gate.free": True,
    "pool.state": PoolState.LIVE,
    "pool.kind": PoolKind.shared,
    "component.held": 0,
    "component.capacity": 1,
    "component.bound": 0,
    "component.leased": 0,
    "component.epoch": 0,
    "component.resident": True,
    "transaction.committing": False,
    "domain.capturing": 0,
    "domain.live": 0,
    "manager.serving": True,
    "blocked": False,
    "stream_capturing": False,
    "fence_passed": True,
    "pool_leases": 0,
}
BOUND: dict[str, Value] = {"state": EntryState.BOUND}
LEASED: dict[str, Value] = {"state": EntryState.REPLAYING, "leases": 1}
RECORDED: dict[str, Value] = {"state": EntryState.CAPTURING, "recorded": True, "transaction.committing": True}

REFUSALS: list[tuple[type[IllegalTransition], Machine, str, dict[str, Value], dict[str, Value]]] = [
    # the error, the machine, the event, the situation, what cures it
    (CaptureActive, ENTRY, "capture_begin", {"gate.free": False}, {"gate.free": True}),
    (CaptureActive, ENTRY, "capture_begin", {"pool.state": PoolState.RECORDING}, {"pool.state": PoolState.LIVE}),
    (PoolRetired, ENTRY, "capture_begin", {"pool.state": PoolState.RETIRED}, {"pool.state": PoolState.MINTED}),
    (PoolRetired, ENTRY, "capture_begin", {"pool.state": PoolState.GONE}, {"pool.state": PoolState.MINTED}),
    (IllegalTransition, ENTRY, "capture_begin", {"component.held": 1}, {"component.held": 0}),
    (IllegalTransition, ENTRY, "capture_begin", {"blocked": True}, {"blocked": False}),
    (StaleBinding, ENTRY, "bind", RECORDED | {"component.epoch": 1}, {"component.epoch": 0}),
    (IllegalTransition, ENTRY, "bind", RECORDED | {"pool.kind": PoolKind.throwaway}, {"pool.kind": PoolKind.shared}),
    (NotResident, ENTRY, "acquire", BOUND | {"component.resident": False}, {"component.resident": True}),
    (StaleBinding, ENTRY, "acquire", BOUND | {"component.epoch": 1}, {"component.epoch": 0}),
    (CaptureActive, ENTRY, "acquire", BOUND | {"stream_capturing": True}, {"stream_capturing": False}),
    (IllegalTransition, ENTRY, "acquire", BOUND | {"manager.serving": False}, {"manager.serving": True}),
    (IllegalTransition, ENTRY, "acquire", LEASED | {"retiring": True}, {"retiring": False}),
    (IllegalTransition, ENTRY, "acquire", LEASED | {"failed": True}, {"failed": False}),
    (IllegalTransition, ENTRY, "acquire", LEASED | {"concurrent": False}, {"concurrent": True}),
    (CaptureActive, ENTRY, "evict", BOUND | {"domain.capturing": 1}, {"domain.capturing": 0}),
    (CaptureActive, ENTRY, "reclaim", {"unreclaimed": 1, "gate.free": False}, {"gate.free": True}),
    (LeaseOutstanding, ENTRY, "reclaim", {"unreclaimed": 1, "pool_leases": 1}, {"pool_leases": 0}),
    (IllegalTransition, ENTRY, "bind", {}, RECORDED),
    (IllegalTransition, COMPONENT, "first_lease", {"state": EntryState.BOUND}, {"leased": 1}),
    (IllegalTransition, POOL, "retire", {"domain.live": 1}, {"domain.live": 0}),
    (PoolRetired, POOL, "begin", {"state": PoolState.RETIRED}, {"state": PoolState.MINTED}),
    (PoolRetired, POOL, "begin", {"state": PoolState.GONE}, {"state": PoolState.MINTED}),
    (LeaseOutstanding, MANAGER, "close", {"leases": 1}, {"leases": 0}),
    (LeaseOutstanding, MANAGER, "release", {"state": ManagerState.SERVING, "leases": 1}, {"leases": 0}),
    (ManagerClosed, MANAGER, "prepare", {"state": ManagerState.CLOSED}, {"state": ManagerState.NEW}),
    (ManagerPoisoned, MANAGER, "capture", {"state": ManagerState.POISONED}, {"state": ManagerState.PREPARED}),
]


@pytest.mark.parametrize(
    ("kind", "machine", "event", "situation", "cure"),
    REFUSALS,
    ids=[f"{machine.name} {event} {kind.__name__}-{n}" for n, (kind, machine, event, _, _) in enumerate(REFUSALS)],
)
def test_a_refusal_has_its_kind_and_its_cure(
    kind: type[IllegalTransition], machine: Machine, event: str, situation: dict[str, Value], cure: dict[str, Value]
) -> None:
    env = IDLE | engine.initial(machine) | situation
    kept = dict(env)
    with pytest.raises(IllegalTransition) as raised:
        engine.step(machine, env, machine.events(event), "it")
    assert type(raised.value) is kind
    assert env == kept
    engine.step(machine, env | cure, machine.events(event), "it")


def test_a_refusal_by_a_guard_says_what_it_needs() -> None:
    env = IDLE | engine.initial(ENTRY) | {"gate.free": False}
    with pytest.raises(CaptureActive) as raised:
        engine.step(ENTRY, env, EntryEvent.capture_begin, "decoder[64]")
    refused = raised.value
    assert (refused.machine, refused.entity, refused.state, refused.event, refused.guard) == (
        "entry",
        "decoder[64]",
        "EAGER",
        "capture_begin",
        "gate free",
    )
    assert str(refused) == "entry decoder[64] is EAGER and refuses capture_begin: it needs: gate free"


def test_a_refusal_by_the_state_says_so() -> None:
    with pytest.raises(IllegalTransition) as raised:
        engine.step(COMPONENT, engine.initial(COMPONENT), ComponentEvent.commit, "decoder")
    assert raised.value.guard == ""
    assert str(raised.value) == "component decoder is EAGER and refuses commit: no such event in state EAGER"


def test_of_several_rows_the_one_that_came_closest_is_named() -> None:
    env = IDLE | engine.initial(POOL) | {"state": PoolState.LIVE, "kind": PoolKind.shared, "domain.live": 1}
    with pytest.raises(IllegalTransition) as raised:
        engine.step(POOL, env, PoolEvent.retire, "shared/1")
    assert raised.value.guard == "no live entry in its domain"
    release = IDLE | engine.initial(ENTRY) | {"state": EntryState.REPLAYING, "leases": 0}
    assert engine.refusal(ENTRY, release, EntryEvent.release, "it").guard == "other leases left"


def test_a_closed_manager_refuses_everything_by_one_name() -> None:
    for event in ManagerEvent:
        env = {**engine.initial(MANAGER), "state": ManagerState.CLOSED, "leases": 0}
        with pytest.raises(ManagerClosed):
            engine.step(MANAGER, env, event, "cuda:0")


def test_every_error_of_ours_is_in_one_tree_and_listed() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__}
    assert defined == set(errors.__all__)
    assert all(issubclass(getattr(errors, name), CGStateError) for name in defined)
    assert issubclass(ConfigError, ValueError)


def test_a_failed_capture_tells_its_cause_and_its_cleanup() -> None:
    failure = CaptureFailed("OOM", "decoder", 64, (("restore the stream", RuntimeError("lost")),))
    assert str(failure) == "capture of decoder[64] failed (OOM)\n  while undoing, 'restore the stream' raised RuntimeError: lost"
    failure.__cause__ = MemoryError("no room")
    assert "failed (OOM): MemoryError: no room\n" in str(failure)
