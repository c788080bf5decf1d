"""What the battery's cases are played on: a device, managers on it, and a model whose answers are compared with eager ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from cgstate.backends.base import Backend, Stream
from cgstate.runtime.component import CaptureMode, Component
from cgstate.runtime.entry import Entry
from cgstate.runtime.gate import CaptureGate
from cgstate.runtime.manager import GraphManager
from cgstate.testing.schedules.histories import History
from cgstate.testing.schedules.scheduler import Scheduler
from cgstate.testing.sized import Filling, Sized

T = TypeVar("T")

UNITS = 0.5
"""Size of the smallest tensor of a case; others are multiples."""


class Workbench(Filling[T], Protocol[T]):
    """A device that no other run uses, and what is needed to run something on it. T is its tensor type."""

    @property
    def backend(self) -> Backend:
        """The device for managers."""
        ...

    def full(self, units: float, value: float) -> T:
        """A fresh tensor of ``units`` units, some hundred bytes or more each, filled by a kernel of the current stream."""
        ...

    def add(self, x: T, value: float) -> T:
        """``x + value`` in fresh memory."""
        ...

    def values(self, x: T) -> tuple[float, ...]:
        """The distinct values, sorted. Waits for the current stream."""
        ...

    def framework_stream(self) -> Stream:
        """A stream."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """Make ``stream`` current for the block."""
        ...

    def synchronize(self) -> None:
        """Wait for the whole device."""
        ...


class Work(Sized[T], Generic[T]):
    """A pure function in several kernels, whose intermediate results share memory in a pool."""

    def __init__(self, bench: Workbench[T], lazy: Iterable[float] = (), touch: Callable[[str], object] = lambda name: None) -> None:
        """``lazy`` are the sizes that a miss may capture; ``touch`` is called in the middle of whatever uses the device."""
        super().__init__(bench, lazy)
        self._bench = bench
        self._touch = touch

    def eager_call(self, x: T, units: float) -> T:
        """As `Routine.eager_call`."""
        for value in (1, 2):
            x = self._bench.add(x, value)
        self._touch("body")
        return self._bench.add(x, 3)

    def forward_for_capture(self, descriptor: float, buffers: T) -> object:
        """As `Routine.forward_for_capture`."""
        return self.eager_call(buffers, descriptor)

    def copy_runtime_inputs(self, descriptor: float, buffers: T, x: T, units: float) -> None:
        """As `Routine.copy_runtime_inputs`."""
        self._touch("inputs")
        super().copy_runtime_inputs(descriptor, buffers, x, units)


class Stage(Generic[T]):
    """One run of a case.

    Attributes:
        bench: The device.
        history: What the case's operations did, where it records them.
    """

    def __init__(self, bench: Workbench[T], sync: Scheduler, make_manager: Callable[..., GraphManager], *, checked: bool) -> None:
        self.bench = bench
        self.history = History(sync.pause)
        self._sync = sync
        self._make_manager = make_manager
        self._checked = checked
        self._managers: list[GraphManager] = []
        self._answers: list[tuple[T, float, float]] = []
        self._statics: list[T] = []
        self._gate: CaptureGate | None = None

    # -- before -------------------------------------------------------------------------------------------------------

    def manager(
        self, *components: Component[[T, float], T], config: Mapping[str, Mapping[str, object]] | None = None
    ) -> GraphManager:
        """A manager that has captured ``components``."""
        manager = self._make_manager(self.bench.backend, check=self._checked, sync=self._sync)
        self._managers.append(manager)
        self._gate = manager._books.gate
        manager.prepare(components, config)
        manager.capture_and_bind(progress=False)
        return manager

    def component(
        self,
        name: str,
        *sizes: float,
        lazy: Iterable[float] = (),
        dependencies: Iterable[str] = (),
        touch: Callable[[str], object] = lambda name: None,
    ) -> Component[[T, float], T]:
        """A component with a graph for each of ``sizes``, and perhaps for those of ``lazy``; ``touch`` as in `Work`."""
        mode = CaptureMode.PRECAPTURE_LAZY if lazy else CaptureMode.PRECAPTURE
        return Component(name, Work(self.bench, lazy, touch), sizes, capture_mode=mode, dependencies=dependencies)

    def static(self) -> T:
        """An input that graphs of the low-level door have baked in; kept until the end."""
        static = self.bench.full(UNITS, 1)
        self._statics.append(static)
        return static

    def capture(self, manager: GraphManager, name: str, static: T | None = None) -> Entry:
        """Capture, and bind, the entry of the low-level door that has this name. In the middle of its work others may come in."""
        source = static if static is not None else self.static()
        entry = manager.entry(name, 0)
        work = Work(self.bench, touch=self._sync.pause)
        with manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: lambda: work.eager_call(source, UNITS))
        return entry

    def drop(self, manager: GraphManager) -> None:
        """Forget a manager; the case must have forgotten it, too."""
        self._managers.remove(manager)

    # -- meanwhile ----------------------------------------------------------------------------------------------------

    def ask(self, component: Component[[T, float], T], size: float, value: float) -> None:
        """Call a component; the answer is compared at the end."""
        self._answers.append((component(self.bench.full(size, value), size), size, value))

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Compare all answers with eager ones, close all managers, and see that nothing is left.

        Raises:
            AssertionError: an answer is wrong, or something is left.
        """
        self.bench.synchronize()
        work = Work(self.bench)
        for answer, size, value in self._answers:
            right = self.bench.values(work.eager_call(self.bench.full(size, value), size))
            found = self.bench.values(answer)
            assert found == right, f"the answer to {value} of size {size} is {found}, and not {right}"
        for manager in self._managers:
            manager.close()
            assert manager.memory().total == 0, f"{manager!r} still holds {manager.memory()}"
        gate = self._gate
        assert gate is not None
        left = [
            name for name in ("holder", "pending", "calls", "awaited", "waiting", "destroying", "orphans") if getattr(gate, name)
        ]
        assert gate.free, "a capture is still open"
        assert not left, f"the gate still has {left}"
