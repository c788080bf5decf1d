"""A state of the model as a `World`, so that the lifecycle's own predicates can judge it: two formulations that must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cgstate.lifecycle.expr import Value
from cgstate.lifecycle.states import ComponentState, EntryState, ManagerState, PoolState
from cgstate.lifecycle.world import ComponentView, DomainView, EntryView, GateView, ManagerView, PoolView, World
from cgstate.spec.cells import LIVE
from cgstate.spec.compiled import State, System
from cgstate.spec.shape import NOW, SLOTS
from cgstate.spec.terms import cell


def world_of(system: System, state: State) -> World:
    """The World of a state in which the manager is neither closed nor lost; there, cells that nobody reads are not as they were.

    A recording stands for one byte.
    """
    env, shape = system.env(state), system.shape

    def at(kind: str, *index: int) -> Callable[[str], Any]:
        return lambda field: _value(env, kind, field, *index)

    entries = tuple(
        EntryView(
            name=f"entry {number}",
            component=f"component {shape.component_of[number]}",
            descriptor=str(number),
            domain=f"domain {shape.domain_of[number]}",
            pool=_pool_name(SLOTS * shape.domain_of[number] + NOW) if of("state") in LIVE else "",
            state=EntryState(of("state")),
            before=EntryState(of("before")),
            leases=of("leases"),
            retiring=of("retiring"),
            failed=of("failed"),
            recorded=of("recorded"),
            noted=of("noted"),
            unreclaimed=of("unreclaimed"),
        )
        for number in range(shape.count("entry"))
        for of in [at("entry", number)]
    )
    pools = tuple(
        PoolView(
            name=_pool_name(number),
            kind=shape.kind_of(number),
            state=PoolState(of("state")),
            graphs=of("graphs"),
            domain=f"domain {number // SLOTS}",
            charged=of("graphs"),
            measured=None,
        )
        for number in range(shape.count("pool"))
        for of in [at("pool", number)]
    )
    holder = next((entry.name for entry in entries if entry.records), "another manager" if env["gate.foreign"] else "")
    return World(
        gate=GateView(bool(env["gate.free"]), holder),
        manager=ManagerView(ManagerState(str(env["manager.state"])), bool(env["manager.serving"])),
        entries=entries,
        components=tuple(
            ComponentView(
                name=f"component {number}",
                state=ComponentState(of("state")),
                bound=of("bound"),
                leased=of("leased"),
                held=of("held"),
                capacity=shape.entries[number],
                epoch=of("epoch"),
                resident=of("resident"),
                pure_lazy=False,
            )
            for number in range(shape.count("component"))
            for of in [at("component", number)]
        ),
        pools=pools,
        domains=tuple(
            DomainView(
                name=f"domain {number}",
                capturing=_value(env, "domain", "capturing", number),
                live=sum(entry.live for entry in entries if entry.domain == f"domain {number}"),
            )
            for number in range(shape.count("domain"))
        ),
        acquires=sum(_value(env, "entry", "holders", number) for number in range(shape.count("entry"))),
        ledger_bytes=sum(pool.charged for pool in pools),
    )


def _pool_name(number: int) -> str:
    return f"pool {number}"


def _value(env: dict[str, Value], kind: str, field: str, *index: int) -> Any:
    return env[cell(kind, field, *map(str, index)).name]
