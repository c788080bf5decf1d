"""A simulator with one rule switched off does not agree with the recording of the GPU, and the comparison names the fact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cgstate.backends.sim import allocator as allocator_module
from cgstate.backends.sim.allocator import Allocator
from cgstate.backends.sim.blocks import FreeList, Pool
from cgstate.backends.sim.capture import Capture, OpenCaptures
from cgstate.backends.sim.device import SimDevice
from cgstate.backends.sim.generator import Generator
from cgstate.backends.sim.graph import SimGraph
from cgstate.backends.sim.memory import DeviceMemory
from cgstate.backends.sim.scope import graph_scope
from cgstate.backends.sim.streams import StreamQueue, StreamTable
from cgstate.backends.sim.work import Launch
from cgstate.backends.sim.workspace import Library
from cgstate.testing.fidelity import recording
from cgstate.testing.fidelity.compare import verdicts_of_simulator
from cgstate.testing.fidelity.facts import FACTS

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A wrong simulator.

    Attributes:
        rule: The rule that is switched off.
        facts: Those that must notice.
        patch: Switches it off.
    """

    rule: str
    facts: tuple[str, ...]
    patch: Patch


def disagreeing(facts: tuple[str, ...]) -> set[str]:
    """Which of ``facts`` the simulator gets wrong."""
    verdicts = verdicts_of_simulator(recording.bundled(), [FACTS[id_] for id_ in facts])
    return {verdict.fact.id for verdict in verdicts if not verdict.agrees}


def nothing(*arguments: Any, **named: Any) -> None:
    """Do nothing, whatever is asked."""


def replaced(owner: object, name: str, value: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def wrapped(owner: type, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Replace a method by ``wrapper``, which gets the old one before its own arguments."""
    old = getattr(owner, name)

    def method(*arguments: Any, **named: Any) -> Any:
        return wrapper(old, *arguments, **named)

    return replaced(owner, name, method)


def retain_without_latch(old: Callable[..., None], self: Allocator, pool_id: Any) -> None:
    pool = self._pools.get(pool_id)
    if pool is not None and pool.use_count == 0:
        pool.use_count = 1
    else:
        old(self, pool_id)


def retain_on_host_without_latch(old: Callable[..., None], self: Allocator, pool_id: Any) -> None:
    if self._host_uses.get(pool_id) == 0:
        del self._host_uses[pool_id]
    old(self, pool_id)


def retain_once(old: Callable[..., None], self: Allocator, pool_id: Any) -> None:
    """A pool that counts its owner only."""
    if self.use_count(pool_id) == 0:
        old(self, pool_id)
    else:
        self._pools[pool_id].use_count += 0


def end_cleanly(*undo: str) -> Callable[..., None]:
    def capture_end(old: Callable[..., None], self: SimGraph) -> None:
        try:
            old(self)
        except BaseException:
            for name in undo:
                getattr(self, name)()
            raise

    return capture_end


def leave_and_restore(old: Callable[..., None], self: graph_scope, *error: Any) -> None:
    try:
        old(self, *error)
    finally:
        self._device.set_stream(self._before)


def leave_open(old: Callable[..., None], self: graph_scope, kind: Any, error: Any, trace: Any) -> None:
    if error is None:
        old(self, kind, error, trace)


def replay_once(old: Callable[..., None], self: SimGraph) -> None:
    old(self)
    if self._recording is not None:
        self._recording.operations = ()


def enter_without(name: str) -> Patch:
    def enter(old: Callable[..., None], self: graph_scope) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SimDevice, name, nothing)
            old(self)

    return wrapped(graph_scope, "__enter__", enter)


def forbids_owner_only(old: Callable[..., bool], self: Capture, host: Any) -> bool:
    return self._owner is host and old(self, host)


def one_free_list(old: Callable[..., FreeList], self: Pool, stream: int, small: bool) -> FreeList:
    return old(self, 0, small)


def return_all_unused(old: Callable[..., int], self: Allocator) -> int:
    uses = {pool_id: pool.use_count for pool_id, pool in self._pools.items()}
    pools = dict(self._pools)
    for pool in pools.values():
        pool.use_count = 0
    returned = old(self)
    for pool_id, pool in pools.items():
        pool.use_count = uses[pool_id]
        if uses[pool_id]:
            self._pools[pool_id] = pool
    return returned


def whole_launch(old: Callable[..., bool], self: Launch, cells: Any) -> bool:
    while not old(self, cells):
        pass
    return True


def replay_of_nothing(old: Callable[..., None], self: SimGraph) -> None:
    if self._recording is not None:
        old(self)


def destroy_when_idle(old: Callable[..., None], self: SimGraph) -> None:
    self._device.executor.finish_all()
    old(self)


def settle_without_waiting(old: Callable[..., bool], self: SimDevice) -> bool:
    return not self.captures


def one_workspace(old: Callable[..., Any], self: Library) -> Any:
    with self._device.on_stream(self._device.default_stream):
        return old(self)


def handle_in_a_capture(old: Callable[..., int], self: Library, queue: StreamQueue) -> int:
    return old(self, StreamQueue(queue.handle))


def returned_driver_memory(old: Callable[..., None], self: DeviceMemory, size: int) -> None:
    old(self, size)
    self.driver_bytes = self._graph_bytes


MUTANTS = (
    Mutant("a pool without uses is latched", ("P1",), wrapped(Allocator, "retain", retain_without_latch)),
    Mutant("its twin in host memory is latched", ("P1", "P3"), wrapped(Allocator, "retain_on_host", retain_on_host_without_latch)),
    Mutant("the context's flush opens the twin", ("P1", "P3"), enter_without("flush_host")),
    Mutant("each graph is a use of its pool", ("P3",), wrapped(Allocator, "retain", retain_once)),
    Mutant("a freed block belongs to its stream", ("P4",), wrapped(Pool, "free_list", one_free_list)),
    Mutant("a large segment is a multiple of two units", ("P5", "P9"), replaced(allocator_module, "SEGMENT_ROUND", 48 * 128)),
    Mutant("an open pool keeps its unused segments", ("P6", "S4"), wrapped(Allocator, "return_unused", return_all_unused)),
    Mutant("entering a capture flushes", ("P5", "P7"), enter_without("flush")),
    Mutant("the driver takes memory for graphs", ("P8",), replaced(DeviceMemory, "charge_graph", nothing)),
    Mutant("the driver keeps that memory", ("P8",), wrapped(DeviceMemory, "discharge_graph", returned_driver_memory)),
    Mutant("the smallest free block that fits is used again", ("P9",), replaced(FreeList, "take", nothing)),
    Mutant("an exception in the body ends the capture", ("F1", "F6", "S4"), wrapped(graph_scope, "__exit__", leave_open)),
    Mutant("an open capture holds the generator", ("F2", "P2", "S2"), replaced(Generator, "begin_capture", nothing)),
    Mutant("no stream may be waited for in its capture", ("F2",), replaced(OpenCaptures, "refuse_waiting_for", nothing)),
    Mutant("a broken capture leaves its stream current", ("F3",), wrapped(graph_scope, "__exit__", leave_and_restore)),
    Mutant("a broken capture goes on recording to its pool", ("F5",), wrapped(SimGraph, "capture_end", end_cleanly("undo_route"))),
    Mutant(
        "a broken capture keeps its use of the pool",
        ("F4",),
        wrapped(SimGraph, "capture_end", end_cleanly("undo_route", "undo_pool_use")),
    ),
    Mutant("other processes take memory", ("F6",), replaced(DeviceMemory, "foreign_bytes", property(lambda self: 0, nothing))),
    Mutant("an assertion on the device loses the context", ("F7",), replaced(SimDevice, "_lose", nothing)),
    Mutant("the library makes no handle in a capture", ("F8",), wrapped(Library, "_handle", handle_in_a_capture)),
    Mutant("there must be a recording to replay", ("F9",), wrapped(SimGraph, "replay", replay_of_nothing)),
    Mutant("replays that overlap interleave", ("T1",), wrapped(Launch, "step", whole_launch)),
    Mutant("a reset does not wait", ("T2", "S3"), wrapped(SimGraph, "destroy", destroy_when_idle)),
    Mutant("a reset breaks an open capture", ("T3",), replaced(OpenCaptures, "break_by_destruction", nothing)),
    Mutant("mode global is about every thread", ("T4",), wrapped(Capture, "forbids", forbids_owner_only)),
    Mutant("every replay writes the output anew", ("T1", "T5"), wrapped(SimGraph, "replay", replay_once)),
    Mutant("a workspace belongs to one stream", ("W1", "W4"), wrapped(Library, "workspace", one_workspace)),
    Mutant("a clear frees workspaces, also those in use", ("W2", "W3", "W4", "W5"), replaced(Library, "clear", nothing)),
    Mutant("memory that was returned cannot be touched", ("W2",), replaced(SimGraph, "_judge_stale", nothing)),
    Mutant("the framework's streams share handles", ("S1", "W5"), replaced(StreamTable, "pooled", StreamTable.new_exclusive)),
    Mutant("waiting for the device breaks captures", ("S2",), replaced(OpenCaptures, "refuse_device_wait", nothing)),
    Mutant("returning memory waits for the device", ("S3", "T2"), wrapped(SimDevice, "settle", settle_without_waiting)),
)


def test_the_simulator_as_it_is_agrees_in_every_fact() -> None:
    assert disagreeing(tuple(FACTS)) == set()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_rule_switched_off_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)
    assert disagreeing(mutant.facts) == set(mutant.facts)


def test_every_fact_has_a_mutant_that_it_must_notice() -> None:
    assert {fact for mutant in MUTANTS for fact in mutant.facts} == set(FACTS)
