"""The battery's cases: whatever in the runtime can meet. Each makes its programs on a fresh stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from cgstate.errors import IllegalTransition, NotResident
from cgstate.runtime.component import Component
from cgstate.runtime.manager import GraphManager
from cgstate.testing.schedules.histories import check_history
from cgstate.testing.schedules.program import Case
from cgstate.testing.schedules.reference import Reference
from cgstate.testing.schedules.stage import UNITS, Stage

T = TypeVar("T")
SMALL, LARGE = UNITS, 2 * UNITS
NET = "net[small]"
"""The entry of size `SMALL`, as the reference knows it."""


def evict_under_replay(stage: Stage[T]) -> Case:
    """A component is called while its domain is evicted."""
    net = stage.component("net", SMALL)
    manager = stage.manager(net)

    def evict() -> None:
        stage.history.call("evictor", ("evict",), lambda: manager.evict("net"), int)

    return _explained(stage, {"caller": _calls(stage, net, manager, 2), "evictor": evict}, [NET])


def evict_under_lease(stage: Stage[T]) -> Case:
    """A lease is taken, replayed under and given back while the entry is evicted and captured again."""
    manager = stage.manager()
    stage.capture(manager, "low")
    history = stage.history

    def lease() -> None:
        lease = manager.entry("low", 0).lease()
        with suppress(IllegalTransition):
            history.call("leaser", ("acquire", "low"), lease.__enter__)
            with suppress(IllegalTransition):
                history.call("leaser", ("launch", "low"), lease.replay)
            history.call("leaser", ("release", "low"), lambda: lease.__exit__(None, None, None))

    def evict() -> None:
        history.call("evictor", ("evict",), lambda: manager.evict("low"), int)
        with suppress(IllegalTransition):  # it is leased still
            history.call("evictor", ("capture", "low"), lambda: stage.capture(manager, "low"))

    return _explained(stage, {"leaser": lease, "evictor": evict}, ["low"])


def lazy_miss_against_lazy_miss(stage: Stage[T]) -> Case:
    """Two calls miss the same size at once: one captures it at most, since none may overlap the other's eager work, nor waits."""
    net = stage.component("net", LARGE, lazy=[SMALL])
    manager = stage.manager(net, config={"net": {"max_extra_graphs": 1}})

    def finish() -> None:
        stats = manager.stats().components["net"]
        missed = stats.captures - 1
        assert missed <= 1, f"the same graph was captured {missed} times"
        assert stats.hits >= missed, "who captured did not replay"
        assert stats.hits + sum(stats.fallbacks.values()) == 2, f"two calls were counted as {stats.summary()}"
        assert set(stats.fallbacks) <= {"capture_busy"}, f"a call was eager for another reason: {stats.summary()}"
        stage.finish()

    return Case({"a": lambda: stage.ask(net, SMALL, 1), "b": lambda: stage.ask(net, SMALL, 2)}, finish)


def lazy_miss_at_capacity(stage: Stage[T]) -> Case:
    """Two calls miss two sizes, and there is room for one graph: the other one is evicted for it, or the call is eager."""
    net = stage.component("net", 2 * LARGE, lazy=[SMALL, LARGE])
    manager = stage.manager(net, config={"net": {"max_extra_graphs": 1, "isolation": "per_entry"}})

    def finish() -> None:
        stats = manager.stats().components["net"]
        assert stats.hits + sum(stats.fallbacks.values()) == 2, f"two calls were counted as {stats.summary()}"
        assert set(stats.fallbacks) <= {"capture_busy", "capacity", "unavailable"}, f"eager for another reason: {stats.summary()}"
        stage.finish()

    return Case({"a": lambda: stage.ask(net, SMALL, 1), "b": lambda: stage.ask(net, LARGE, 2)}, finish)


def invalidate_under_replay(stage: Stage[T]) -> Case:
    """Memory that a component depends on moves while it is called."""
    net = stage.component("net", SMALL, dependencies=["kv"])
    manager = stage.manager(net)

    def invalidate() -> None:
        stage.history.call("mover", ("invalidate",), lambda: manager.invalidate("kv"), int)

    return _explained(stage, {"caller": _calls(stage, net, manager, 2), "mover": invalidate}, [NET])


def close_under_replay(stage: Stage[T]) -> Case:
    """The manager is closed while a component is called: that is answered by a graph, or eagerly."""
    net = stage.component("net", SMALL)
    manager = stage.manager(net)

    def close() -> None:
        stage.history.call("closer", ("close",), manager.close)

    return _explained(stage, {"caller": _calls(stage, net, manager, 2), "closer": close}, [NET])


def close_under_lease(stage: Stage[T]) -> Case:
    """The manager is closed while an entry is replayed by hand."""
    manager = stage.manager()
    entry = stage.capture(manager, "low")
    history = stage.history

    def replay() -> None:
        for _ in range(2):
            with suppress(IllegalTransition):
                history.call("replayer", ("replay", "low"), entry.replay)

    def close() -> None:
        history.call("closer", ("close",), manager.close)

    return _explained(stage, {"replayer": replay, "closer": close}, ["low"])


def capture_against_capture(stage: Stage[T]) -> Case:
    """Two managers capture on one device."""
    managers = first, second = stage.manager(), stage.manager()

    def finish() -> None:
        for manager in managers:
            assert manager.stats().components["low"].captures == 1, f"{manager!r} has not captured"
        stage.finish()

    return Case({"a": lambda: stage.capture(first, "low"), "b": lambda: stage.capture(second, "low")}, finish)


def capture_against_call(stage: Stage[T]) -> Case:
    """A call is answered eagerly while something is captured: neither may break the other (fact S2)."""
    net = stage.component("net", SMALL)
    manager = stage.manager(net)
    return Case({"caller": lambda: stage.ask(net, LARGE, 1), "capturer": lambda: stage.capture(manager, "low")}, stage.finish)


def replay_against_replay(stage: Stage[T]) -> Case:
    """Two graphs of one pool are replayed on two streams."""
    net = stage.component("net", SMALL, LARGE)
    manager = stage.manager(net)
    stream = stage.bench.framework_stream()

    def elsewhere() -> None:
        with stage.bench.on(stream):
            stage.ask(net, LARGE, 2)

    def finish() -> None:
        assert manager.stats().components["net"].hits == 2, "a call was not answered by its graph"
        stage.finish()

    return Case({"here": lambda: stage.ask(net, SMALL, 1), "elsewhere": elsewhere}, finish)


def lease_ends_under_capture(stage: Stage[T]) -> Case:
    """The last lease on an evicted entry ends while another entry is captured, and nothing may be destroyed in a capture."""
    manager = stage.manager()
    entry = stage.capture(manager, "old")  # and never replayed: nothing but the lease keeps it when it is retired
    static = stage.static()
    stage.bench.synchronize()

    def lease() -> None:
        with entry.lease():
            manager.evict("old")

    return Case({"leaser": lease, "capturer": lambda: stage.capture(manager, "new", static)}, stage.finish)


def reclaim_against_replay(stage: Stage[T]) -> Case:
    """Retired graphs are destroyed, and their bytes returned, while others of the same component are replayed."""
    net = stage.component("net", SMALL, LARGE)
    manager = stage.manager(net, config={"net": {"isolation": "per_entry"}})
    stage.ask(net, LARGE, 1)
    manager.evict("net", LARGE)  # on its stream the replay is still to come

    def finish() -> None:
        assert manager.memory().retired == {}, "what was evicted is there still"
        stage.finish()

    return Case({"caller": _calls(stage, net, manager, 2), "reclaimer": lambda: manager.reclaim(flush=True)}, finish)


def reclaim_against_capture(stage: Stage[T]) -> Case:
    """Bytes are given back to the device while another manager captures: in a capture none would come back (S2, S3)."""
    manager, other = stage.manager(), stage.manager()
    stage.capture(manager, "old")
    manager.evict("old")
    static = stage.static()

    def reclaim() -> None:
        retired = manager.reclaim(flush=True).retired
        assert not retired, f"not given back: {retired}"

    return Case({"reclaimer": reclaim, "capturer": lambda: stage.capture(other, "new", static)}, stage.finish)


def close_against_capture(stage: Stage[T]) -> Case:
    """A manager is closed while another one captures: nothing of it is left, though nothing can be destroyed in the capture."""
    manager, other = stage.manager(), stage.manager()
    stage.capture(manager, "old")
    static = stage.static()
    return Case({"closer": manager.close, "capturer": lambda: stage.capture(other, "new", static)}, stage.finish)


def suspend_under_call(stage: Stage[T]) -> Case:
    """Memory goes for a while during calls: nobody touches it meanwhile."""
    asleep: list[str] = []

    def touch(name: str) -> None:
        assert not asleep, f"memory is used while it is not there: {name}"

    net = stage.component("net", SMALL, dependencies=["kv"], touch=touch)
    manager = stage.manager(net)

    def sleep() -> None:
        stage.history.call("sleeper", ("suspend",), lambda: manager.suspend("kv"))
        asleep.append("kv")
        stage.history.call("sleeper", ("resume",), lambda: manager.resume("kv", restore=asleep.clear))

    return _explained(stage, {"caller": _calls(stage, net, manager, 2), "sleeper": sleep}, [NET])


def budget_under_replay(stage: Stage[T]) -> Case:
    """The byte budget shrinks, so that a lazy graph has to go, while it is replayed."""
    net = stage.component("net", LARGE, lazy=[SMALL])
    manager = stage.manager(net, config={"net": {"max_extra_graphs": 1, "isolation": "per_entry"}})
    stage.ask(net, SMALL, 1)
    enough = manager.memory().total - 1

    def finish() -> None:
        manager.set_budget(enough)  # what was in use is not any more
        assert manager.memory().total <= enough, "what the budget had no room for was kept"
        stage.finish()

    return Case({"caller": lambda: stage.ask(net, SMALL, 2), "shrinker": lambda: manager.set_budget(enough)}, finish)


def drop_under_replay(stage: Stage[T]) -> Case:
    """The last reference to a manager goes while its component is called; another manager takes what it leaves."""
    net = stage.component("net", SMALL)
    kept = [stage.manager(net)]
    other = stage.manager()
    stage.drop(kept[0])

    def finish() -> None:
        other.reclaim(flush=True)
        assert net.state == "EAGER", f"the component is {net.state} without a manager"
        stage.finish()

    return Case({"caller": lambda: stage.ask(net, SMALL, 1), "dropper": kept.clear}, finish)


def three_meet(stage: Stage[T]) -> Case:
    """A call, an eviction and a capture of the low-level door, all at once."""
    net = stage.component("net", SMALL)
    manager = stage.manager(net)

    def evict() -> None:
        manager.evict("net")

    programs = {"caller": lambda: stage.ask(net, SMALL, 1), "evictor": evict, "capturer": lambda: stage.capture(manager, "low")}
    return Case(programs, stage.finish)


CASES: Sequence[Callable[[Stage[T]], Case]] = (
    evict_under_replay,
    evict_under_lease,
    lazy_miss_against_lazy_miss,
    lazy_miss_at_capacity,
    invalidate_under_replay,
    close_under_replay,
    close_under_lease,
    capture_against_capture,
    capture_against_call,
    replay_against_replay,
    lease_ends_under_capture,
    reclaim_against_replay,
    reclaim_against_capture,
    close_against_capture,
    suspend_under_call,
    budget_under_replay,
    drop_under_replay,
    three_meet,
)


def _calls(stage: Stage[T], net: Component[[T, float], T], manager: GraphManager, number: int) -> Callable[[], None]:
    """A program that calls a component so many times."""

    def calls() -> None:
        for value in range(1, number + 1):
            before = manager.stats().components["net"].hits

            def by_graph(_: None, before: int = before) -> str:
                return "graph" if manager.stats().components["net"].hits > before else "eager"

            with suppress(NotResident):
                stage.history.call("caller", ("call", NET), lambda value=value: stage.ask(net, SMALL, value), by_graph)  # type: ignore[misc]

    return calls


def _explained(stage: Stage[T], programs: dict[str, Callable[[], object]], entries: Sequence[str]) -> Case:
    """A case whose history must be explained by the tables."""

    def finish() -> None:
        check_history(stage.history, Reference(entries, bound=entries))
        stage.finish()

    return Case(programs, finish)
