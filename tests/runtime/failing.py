"""A routine that fails on demand, and a bench that says whether everything is as it was; for the tests of failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from cgstate import CaptureMode, Component, GraphManager, Resolution, Routine
from cgstate.backends.base import Footprint
from cgstate.backends.sim import SimBackend, SimConfig, SimDevice, SimTensor, kernels
from cgstate.lifecycle.states import PoolState
from cgstate.runtime.books import Books

KIB = 1024

Hook = Callable[["Toy", int, SimTensor], object]
ToyComponent = Component[[SimTensor], SimTensor]


class Undecided:
    """What arrays answer to a comparison: neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")


class Odd:
    """A value that compares as arrays do, or raises in the method that is named; ``other``: only beside another one."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def _do(self, method: str) -> None:
        if self.broken == method:
            raise RuntimeError("boom")

    def __hash__(self) -> int:
        self._do("__hash__")
        return 1

    def __repr__(self) -> str:
        self._do("__repr__")
        return "odd"

    def __eq__(self, other: object) -> Any:
        self._do("__eq__")
        if self.broken in ("other", "__repr__", "__hash__"):
            if self is other:
                return True
            raise RuntimeError("boom")
        return Undecided()


class Toy(Routine[[SimTensor], SimTensor, int, SimTensor]):
    """A matrix product on padded rows. `fail` makes the nth call of a method raise; `body` is extra work while recording.

    Attributes:
        calls: How often each method was called; ``warmup`` and ``capture`` are the two kinds of ``forward_for_capture``.
        lazy: Sizes that a miss may capture.
        rejected: Descriptors that it refuses.
        during: Run once at the beginning of a method's next call, by name.
    """

    def __init__(self, device: SimDevice, *, lazy: tuple[int, ...] = ()) -> None:
        self.device = device
        self.lazy = lazy
        self.weight = device.rand(4, 4)
        self.calls: Counter[str] = Counter()
        self.body: Hook | None = None
        self.rejected: set[int] = set()
        self.during: dict[str, Callable[[], object]] = {}
        self._failures: dict[str, tuple[int, BaseException]] = {}

    def fail(self, method: str, error: BaseException, nth: int = 1) -> None:
        """Let the nth call of a method from now on raise, once."""
        self._failures[method] = (self.calls[method] + nth, error)

    def cure(self) -> None:
        """Fail no more."""
        self._failures.clear()
        self.body = None

    def _called(self, method: str) -> None:
        self.calls[method] += 1
        if method in self.during:
            self.during.pop(method)()
        nth, error = self._failures.get(method, (0, None))
        if error is not None and self.calls[method] == nth:
            del self._failures[method]
            raise error

    def work(self, x: SimTensor) -> SimTensor:
        """What it computes, told to nobody."""
        return kernels.relu(kernels.matmul(x, self.weight))

    def eager_call(self, x: SimTensor) -> SimTensor:
        self._called("eager_call")
        return self.work(x)

    def validate_runtime_inputs(self, x: SimTensor) -> None:
        self._called("validate_runtime_inputs")

    def resolve_runtime(self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        self._called("resolve_runtime")
        (x,) = args
        assert isinstance(x, SimTensor)
        size = x.shape[0]
        return Resolution(size, min((d for d in available if d >= size), default=None))

    def make_lazy_descriptor(self, runtime_key: Hashable) -> int | None:
        self._called("make_lazy_descriptor")
        assert isinstance(runtime_key, int)
        return min((size for size in self.lazy if size >= runtime_key), default=None)

    def validate_descriptor(self, descriptor: int) -> None:
        self._called("validate_descriptor")
        if descriptor in self.rejected:
            raise ValueError(f"{descriptor} will not do")

    def allocate_buffers(self, descriptor: int) -> SimTensor:
        self._called("allocate_buffers")
        return self.device.zeros(descriptor, 4)

    def prepare_for_capture(self, descriptor: int, buffers: SimTensor) -> None:
        self._called("prepare_for_capture")

    def capture_context(self, descriptor: int, buffers: SimTensor) -> AbstractContextManager[object]:
        @contextmanager
        def context() -> Iterator[None]:
            self._called("context enter")
            yield
            self._called("context exit")

        return context()

    def forward_for_capture(self, descriptor: int, buffers: SimTensor) -> object:
        recording = self.device.current_stream().queue.capture is not None
        output = self.work(buffers)
        self._called("capture" if recording else "warmup")
        if recording and self.body is not None:
            self.body(self, descriptor, buffers)
        return output

    def after_capture(self, descriptor: int, buffers: SimTensor) -> None:
        self._called("after_capture")

    def copy_runtime_inputs(self, descriptor: int, buffers: SimTensor, x: SimTensor) -> None:
        self._called("copy_runtime_inputs")
        rows = x.shape[0]
        buffers.narrow(0, 0, rows).copy_(x)
        buffers.narrow(0, rows, descriptor - rows).zero_()

    def output_after_replay(self, descriptor: int, buffers: SimTensor, output: object, x: SimTensor) -> SimTensor:
        self._called("output_after_replay")
        assert isinstance(output, SimTensor)
        return output.narrow(0, 0, x.shape[0])


class Bench:
    """One simulated device, a manager with ``check=True``, and components of `Toy`, one unless more are named."""

    def __init__(
        self,
        *names: str,
        descriptors: tuple[int, ...] = (4, 8, 16),
        mode: CaptureMode = CaptureMode.PRECAPTURE,
        lazy: tuple[int, ...] = (),
        config: Mapping[str, object] | None = None,
        component: Mapping[str, Any] | None = None,
        backend: SimBackend | None = None,
        **manager: Any,
    ) -> None:
        self.backend = backend or SimBackend(SimDevice(SimConfig(capacity_bytes=4096 * KIB)))
        self.device = self.backend.sim
        self.faults = self.device.faults
        self.manager = GraphManager(self.backend, **{"check": True, **manager})
        names = names or ("toy",)
        self.routines = {name: Toy(self.device, lazy=lazy) for name in names}
        self.components: dict[str, ToyComponent] = {
            name: Component(name, routine, descriptors, capture_mode=mode, **(component or {}))
            for name, routine in self.routines.items()
        }
        self.config = None if config is None else {name: dict(config) for name in names}
        self.device.synchronize()

    @classmethod
    def lazily(cls, *, extra: int | str = 2, lazy: tuple[int, ...] = (8, 16), **manager: Any) -> Self:
        """One startup graph of 4 rows; larger ones by misses."""
        return cls(descriptors=(4,), mode=CaptureMode.PRECAPTURE_LAZY, lazy=lazy, config={"max_extra_graphs": extra}, **manager)

    @property
    def routine(self) -> Toy:
        """The first."""
        return next(iter(self.routines.values()))

    @property
    def component(self) -> ToyComponent:
        """The first."""
        return next(iter(self.components.values()))

    @property
    def books(self) -> Books:
        """What the manager keeps to itself."""
        return self.manager._books

    def prepared(self) -> Self:
        """Prepare."""
        self.manager.prepare(list(self.components.values()), self.config)
        return self

    def serving(self) -> Self:
        """Prepare and capture."""
        self.prepared().manager.capture_and_bind()
        return self

    def call(self, size: int) -> None:
        """Call the first component with ``size`` rows; the answer equals eager."""
        x = self.device.rand(size, 4)
        assert self.component(x).tolist() == self.routine.work(x).tolist(), size

    def answers(self, *sizes: int) -> None:
        """Every component equals eager."""
        for name, component in self.components.items():
            for size in sizes or (1, 4, 5, 16, 17):
                x = self.device.rand(size, 4)
                assert component(x).tolist() == self.routines[name].work(x).tolist(), f"{name} of {size}"

    def states(self) -> dict[str, str]:
        """The state of everything, by name."""
        books = self.books
        return {
            "manager": str(books.state),
            **{name: str(record.state) for name, record in books.components.items()},
            **{entry.name: str(entry.state) for entry in books.entries() if entry.state != "EAGER"},
        }

    def footprint(self) -> Footprint:
        """What a clean failure must leave as it was, with the device idle and unused memory given back."""
        if self.manager.state not in ("CLOSED", "POISONED"):
            self.manager.reclaim(flush=True)
        return self.backend.footprint()

    def uses(self) -> dict[object, int | None]:
        """Use counts of the pools that are alive."""
        return {pool.id: pool.handle.use_count() for pool in self.books.pools}

    def quiet(self) -> None:
        """Nothing is held, open, waited for or left to be done, on the device neither."""
        assert not self.device.captures
        assert not self.device.generator.capturing
        self.quiet_books()

    def quiet_books(self) -> None:
        """The runtime holds nothing and waits for nothing."""
        books, gate = self.books, self.books.gate
        assert gate.free
        assert (gate.holder, gate.pending, gate.destroying, gate.waiting, gate.random.owner) == (0, 0, 0, 0, 0)
        assert (gate.calls, books.busy, books.leases, books.held_leases) == ({}, 0, 0, set())
        for pool in books.pools:
            assert pool.turn.owner == 0
            assert pool.state is not PoolState.RECORDING
        for domain in books.domains.values():
            assert domain.capturing == 0
        for entry in books.entries():
            assert entry.state != "CAPTURING"
        for record in books.components.values():
            assert record.state != "CAPTURING"
        assert books.state not in ("CAPTURING", "PROFILING")
        if books.audit is not None:
            books.audit.look()
