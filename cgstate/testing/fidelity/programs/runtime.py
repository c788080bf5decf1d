"""Runtime programs: a `cgstate.GraphManager` with ``check=True`` on a device, through both of its doors.

Left out, or made equal, because devices differ there without a matter of a lifecycle: how many workspaces the libraries of a device
have, so bytes of a pool are those beyond what priming leaves in an empty one; for the same reason live allocations are looked at
only after the end, and nothing is captured on a stream of the user's, which is not primed at all. A GPU's priming leaves a small
segment, and the simulator's does not; so every body begins with a small allocation, and that segment counts as left by priming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from cgstate import CaptureMode, Component, Entry, GraphManager, Lease
from cgstate.errors import CaptureFailed, IllegalTransition
from cgstate.runtime.memory.report import PoolMemory
from cgstate.runtime.transaction import Transaction
from cgstate.testing.fidelity.bench import Bench, OwnedPool, RawGraph
from cgstate.testing.fidelity.programs.body import Body
from cgstate.testing.fidelity.programs.machine import Machine
from cgstate.testing.fidelity.programs.program import Json, Seen, Step
from cgstate.testing.fidelity.programs.scripted import Scripted

T = TypeVar("T")

_SMALL_UNITS = 0.5
_SMALL: list[Json] = [["full", "small", _SMALL_UNITS, 0], ["free", "small"]]
_KEEP: Json = ["add_", "x", 0]
_GROW: Json = ["full", "r", 2.0, 0]


class RuntimeMachine(Machine[T]):
    """Carries out runtime programs.

    Attributes:
        manager: The present one; the first step makes it.
        components: The declared ones of the present manager, by id.
        routines: Theirs.
        leases: Held leases by name.
        bystanders: Raw graphs that the manager does not know of, alive or reset.
        growing: Names of those that are alive and whose pool holds memory. While there are any, a manager leaves the workspaces
            alone (fact W2).
    """

    manager: GraphManager

    def __init__(self, bench: Bench[T]) -> None:
        super().__init__(bench)
        self.components: dict[str, Component[[T, float], T]] = {}
        self.routines: dict[str, Scripted[T]] = {}
        self.leases: dict[str, Lease] = {}
        self.bystanders: dict[str, RawGraph] = {}
        self.growing: set[str] = set()
        self._primed = self._bytes_of_priming()
        self._managers: list[GraphManager] = []

    def _bytes_of_priming(self) -> int:
        """What the library workspaces and one small segment take in a pool that holds nothing else."""
        backend = self.bench.backend
        pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
        backend.prime_workspaces(pool, stream)
        with backend.on_stream(stream), self.bench.allocating_from(cast(OwnedPool, pool)):
            self.bench.full(_SMALL_UNITS, 0)
        size = sum(pool.reserved_bytes().values())
        pool.drop()
        backend.clear_workspaces()
        backend.flush()
        stream.close()
        return size

    # -- doing --------------------------------------------------------------------------------------------------------

    def body(self, operations: list[Json], x: T) -> Body[T]:
        """A body on this machine; what it resets is a bystander."""
        return self._plain_body([*_SMALL, *operations], x)

    def _plain_body(self, operations: list[Json], x: T) -> Body[T]:
        return Body(self, operations, x, self._reset_bystander)

    def _act(self, step: Step) -> Json:
        match step:
            case {"op": "manage", "isolation": str(isolation), "mode": str(mode)}:
                self.manager = GraphManager(
                    self.bench.backend,
                    isolation=isolation,
                    capture_error_mode=mode,
                    compact=False,  # a step runs its work as often as it says, and its pool has what that took
                    check=True,
                )
                self._managers.append(self.manager)
                self.components.clear()
                self.routines.clear()
            case {"op": "prepare", "components": list(components)}:
                config = dict(self._declare(component) for component in components)
                report = self.manager.prepare(list(self.components.values()), config)
                return {"active": list(report.active), "eager": list(report.eager)}
            case {"op": "profile"}:
                return self._profile()
            case {"op": "capture all"}:
                return dict(self.manager.capture_and_bind(progress=False).bound)
            case {"op": "capture", "entries": list(entries), "abort": bool(abort)}:
                return self._capture(entries, abort=abort)
            case {"op": "replay", "entry": [str(component), str() | float() as descriptor], "on": str(on)}:
                with self.on(on):
                    self._entry(component, descriptor).replay()
            case {"op": "read", "entry": [str(component), str() | float() as descriptor], "on": str(on)}:
                with self.on(on), self._entry(component, descriptor).lease() as lease:
                    lease.replay()
                    return self._outputs(lease.output)
            case {"op": "lease" | "replay lease" | "read lease" | "end lease"}:
                return self._lease(step)
            case {"op": "call", "component": str(component), "units": float(units), "value": int(value), "on": str(on)}:
                with self.on(on):
                    return self.values(self.components[component](self.bench.full(units, value), units))
            case {"op": "spoil", "component": str(component), "with": list(operation)}:
                self.routines[component].spoiled = operation
            case {"op": "bystander", "name": str(name), "x": str(x), "on": str(on), "grows": bool(grows)}:
                self.bystanders[name] = graph = self.bench.graph()
                if grows:
                    self.growing.add(name)
                work = self._plain_body([_KEEP, _GROW] if grows else [_KEEP], self.tensors[x])
                self.bench.capture(graph, work, stream=self.streams[on])
            case {"op": "reset", "name": str(name)}:
                self._reset_bystander(name)
            case _:
                return "done" if self._managed(step) else self._common(step)
        return "done"

    def _reset_bystander(self, name: str) -> None:
        self.growing.discard(name)
        self.bystanders[name].reset()

    def _managed(self, step: Step) -> bool:
        """The steps that are one call of the manager; whether it was one."""
        manager = self.manager
        match step:
            case {"op": "evict", "component": str(component), "descriptor": str() | float() | None as descriptor}:
                manager.evict(component, descriptor)
            case {"op": "invalidate", "name": str(name)}:
                manager.invalidate(name)
            case {"op": "forget failures", "component": str() | None as component}:
                manager.forget_failures(component)
            case {"op": "reclaim", "flush": bool(flush)}:
                manager.reclaim(flush=flush)
            case {"op": "release"}:
                manager.release(timeout=0)
            case {"op": "close"}:
                manager.close(timeout=60)
            case _:
                return False
        return True

    def _declare(self, component: Json) -> tuple[str, dict[str, object]]:
        """Make a component; its id and its configuration."""
        match component:
            case {
                "id": str(name),
                "sizes": list(sizes),
                "lazy": list(lazy),
                "when": str(when),
                "extra": int(extra),
                "isolation": str(isolation),
                "dependencies": list(dependencies),
                "body": list(body),
            }:
                pass
            case _:
                raise AssertionError(f"not a component: {component}")
        routine = Scripted(self.bench, self.body, body, frozenset(_float(size) for size in lazy))
        self.routines[name] = routine
        self.components[name] = Component(
            name,
            routine,
            [_float(size) for size in sizes],
            capture_mode=CaptureMode(when),
            dependencies=[str(each) for each in dependencies],
        )
        config: dict[str, object] = {"isolation": isolation}
        if extra:
            config["max_extra_graphs"] = extra
        return name, config

    def _profile(self) -> Json:
        estimate = self.manager.profile_memory()
        homes = [home.pool.bytes() for home in self.manager._books.homes() if home.pool is not None]
        workspaces = max(homes, default=self._primed)
        return {
            "graphs": estimate.graphs,
            "buffers": self.units(estimate.parts["buffers"]),
            "samples": [
                [sample.component, sample.descriptor, sample.error is None, self.units(max(0, sample.pool_bytes - workspaces))]
                for sample in estimate.samples
            ],
        }

    def _entry(self, component: str, descriptor: str | float) -> Entry:
        return self.manager.entry(component, descriptor)

    def _capture(self, entries: list[Json], *, abort: bool) -> Json:
        noted: list[Json] = []
        try:
            with self.manager.transaction() as transaction:
                for each in entries:
                    noted += self._capture_one(transaction, each)
                if abort:
                    raise _Abort
        except _Abort:
            return ["aborted", *noted]
        return ["committed", *noted]

    def _capture_one(self, transaction: Transaction, wanted: Json) -> list[Json]:
        match wanted:
            case {
                "entry": [str(component), str() | float() as descriptor],
                "x": str(x),
                "body": list(body),
                "in warm-up": list() | None as warm_up,
                "dependencies": list(dependencies),
            }:
                pass
            case _:
                raise AssertionError(f"not a capture: {wanted}")
        recorded = self.body(body, self.tensors[x])
        rehearsed = self.body(warm_up if warm_up is not None else body, self.tensors[x])
        entry = self.manager.entry(component, descriptor, dependencies=[str(each) for each in dependencies])
        transaction.capture(entry, lambda warmup: rehearsed if warmup else recorded)
        return recorded.noted

    def _lease(self, step: Step) -> Json:
        match step:
            case {"op": "lease", "name": str(name), "entry": [str(component), str() | float() as descriptor]}:
                lease = self._entry(component, descriptor).lease()
                lease.__enter__()
                self.leases[name] = lease
            case {"op": "replay lease", "name": str(name), "on": str(on)}:
                with self.on(on):
                    self.leases[name].replay()
            case {"op": "read lease", "name": str(name)}:
                return self._outputs(self.leases[name].output)
            case {"op": "end lease", "name": str(name)}:
                self.leases.pop(name).__exit__(None, None, None)
        return "done"

    def _outputs(self, output: Any) -> Json:
        if not isinstance(output, dict):
            return self.values(output)
        return {name: self.drawn(part) if name == "random" else self.values(part) for name, part in sorted(output.items())}

    def _refusal(self, error: Exception) -> Json:
        match error:
            case CaptureFailed():
                cause = None if error.__cause__ is None else self._refusal_of_cause(error.__cause__)
                return ["CaptureFailed", str(error.kind), cause, [name for name, _ in error.cleanup]]
            case IllegalTransition():
                return [type(error).__name__, error.machine, str(error.event), error.guard]
        return super()._refusal(error)

    def _refusal_of_cause(self, error: BaseException) -> Json:
        return self._refusal(error) if isinstance(error, Exception) else type(error).__name__

    def _clean_up(self) -> Iterator[Callable[[], object]]:
        yield self.bench.restore_stream
        for lease in self.leases.values():
            yield lambda lease=lease: lease.__exit__(None, None, None)  # type: ignore[misc]  # mypy cannot infer it
        self.leases.clear()
        for graph in self.bystanders.values():
            yield graph.reset
        yield self.bench.flush
        for manager in self._managers:
            yield manager.close

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self) -> Seen:
        seen = super()._look()
        manager = self.manager
        memory = manager.memory()
        reserved, _, pools = self._held()
        seen["manager"] = manager.state.value
        seen["outside the pools"] = reserved
        seen["pools with memory"] = pools
        seen["live pools"] = self._beyond_priming(pool for pool in memory.details if not pool.retired)
        seen["retired pools"] = self._beyond_priming(pool for pool in memory.details if pool.retired)
        seen["buffers"] = self.units(memory.buffers)
        stats = manager.stats()
        seen["reclaims"] = stats.reclaims
        seen["flushes"] = stats.flushes
        for name, counts in stats.components.items():
            seen[f"counts of {name}"] = {
                "hits": counts.hits,
                "captures": counts.captures,
                "evictions": counts.evictions,
                **{f"eager: {reason}": count for reason, count in sorted(counts.fallbacks.items())},
                **{f"failed: {kind}": count for kind, count in sorted(counts.failures.items())},
            }
        seen.update(self._states())
        return seen

    def _beyond_priming(self, pools: Iterable[PoolMemory]) -> Json:
        guests = [home.guest for home in self.manager._books.homes() if home.guest is not None]
        elsewhere = {guest.name for guest in guests if guest is not None}
        primed = {pool: 0 if pool.name in elsewhere else self._primed for pool in pools}
        return {pool.name: self.units(max(0, pool.reserved - size)) for pool, size in primed.items()}

    def _states(self) -> Seen:
        """The state of every component and entry that is not as it was made."""
        books = self.manager._books
        states: Seen = {}
        for name, record in books.components.items():
            states[name] = record.state.value
            for entry in record.entries.values():
                marks = [mark for mark, set_ in (("retiring", entry.retiring), ("failed", entry.failed)) if set_]
                states[entry.name] = " ".join([entry.state.value, *marks])
        return states


class _Abort(Exception):
    """Ends a transaction that is to be given up."""


def _float(value: Json) -> float:
    assert isinstance(value, float)
    return value
