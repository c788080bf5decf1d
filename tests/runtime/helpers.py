"""A small model on a simulated device of its own, and managers that check their invariants after each operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import cgstate
from cgstate.backends.sim import Schedule, SimBackend, SimConfig, SimDevice, SimTensor, kernels

T = TypeVar("T")
WIDTH = 4
PATIENCE = 20.0
"""Seconds after which a test that waits for a thread gives up: a deadlock, not a slow machine."""


class Model:
    """One device and a pure function on it; several kernels long, with a library workspace, so that overlapping replays show."""

    def __init__(self, *, schedule: Schedule | None = None, config: SimConfig | None = None) -> None:
        self.dev = SimDevice(config, schedule)
        self.backend = SimBackend(self.dev)
        self.weight = self.dev.rand(WIDTH, WIDTH)
        self.config_cells = self.dev.config.workspace_bytes // 8
        self.kept: list[SimTensor] = []

    def net(self, x: SimTensor) -> SimTensor:
        hidden = kernels.tanh(kernels.matmul(x, self.weight))
        return kernels.add(kernels.matmul(hidden, self.weight), kernels.scale(hidden, 0.5))

    def example(self, size: int) -> tuple[SimTensor, ...]:
        return (self.dev.zeros(size, WIDTH),)

    def input(self, size: int, value: float = 1.0) -> SimTensor:
        return self.dev.tensor([[value + row + column / 8 for column in range(WIDTH)] for row in range(size)])

    def routine(
        self, sizes: tuple[int, ...] = (), call: Callable[..., Any] | None = None
    ) -> cgstate.BucketedRoutine[..., SimTensor]:
        return cgstate.BucketedRoutine(call or self.net, self.example, sizes=sizes)

    def component(
        self, name: str = "net", descriptors: tuple[int, ...] = (4, 8), *, sizes: tuple[int, ...] = (), **keys: Any
    ) -> cgstate.Component[..., SimTensor]:
        call = keys.pop("call", None)
        return cgstate.Component(name, self.routine(sizes, call), descriptors, **keys)

    def leased(
        self, name: str = "net", descriptors: tuple[int, ...] = (4, 8), **keys: Any
    ) -> cgstate.LeasedComponent[..., SimTensor]:
        return cgstate.LeasedComponent(name, self.routine(), descriptors, **keys)

    def manager(self, **keys: Any) -> cgstate.GraphManager:
        return cgstate.GraphManager(self.backend, **{"check": True, **keys})

    def serving(self, *components: Any, config: Any = None, **keys: Any) -> cgstate.GraphManager:
        """A manager that has captured ``components``."""
        manager = self.manager(**keys)
        manager.prepare(list(components), config)
        manager.capture_and_bind()
        return manager

    def bind(self, manager: cgstate.GraphManager, *names: str, size: int = 2, call: Callable[..., Any] | None = None) -> list[Any]:
        """Entries of the low-level door, captured in one transaction; for each the entry and its static input."""
        made = []
        with manager.transaction() as tx:
            for name in names:
                entry, static = manager.entry(name, size), self.dev.zeros(size, WIDTH)
                work = call or self.net

                def run(static: SimTensor = static, work: Callable[..., Any] = work) -> Any:
                    return work(static)

                tx.capture(entry, lambda warmup, run=run: run)  # type: ignore[misc]  # mypy cannot infer a defaulted lambda
                self.kept.append(static)  # the graph has its address baked in
                made.append((entry, static))
        return made


def before(component: Any, method: str, act: Callable[[], object]) -> None:
    """Let a method of a component's routine call ``act`` first; before a manager prepares the component."""
    right = getattr(component.routine, method)

    def both(*args: Any, **kwargs: Any) -> Any:
        act()
        return right(*args, **kwargs)

    setattr(component.routine, method, both)


def counts(manager: cgstate.GraphManager, component: str = "net") -> dict[str, int]:
    """Eager answers by reason."""
    return {str(reason): number for reason, number in manager.stats().components[component].fallbacks.items()}


@contextmanager
def running(*works: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Run ``works`` in threads of their own beside the block; raise what they raised, and fail if one hangs."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def elsewhere(work: Callable[[], T]) -> T:
    """The result of ``work``, called in another thread."""
    results: list[T] = []
    with running(lambda: results.append(work())):
        pass
    return results[0]


def reached(event: threading.Event) -> None:
    """Wait for ``event``, not for ever."""
    assert event.wait(PATIENCE), "what was waited for never came"
