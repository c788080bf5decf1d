"""The model that a bed plays with unless it has its own: two components over shared weights, whatever its tensors are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from cgstate.breaks import Body, Break
from cgstate.routine import BucketedRoutine
from cgstate.runtime.component import CaptureMode, Component, LeasedComponent
from cgstate.testing.stateful.setup import Setup
from cgstate.testing.stateful.subject import Subject

__all__ = ["DefaultModel"]

SIZES = (1, 2)
SAMPLES = ((1, 1.0), (2, 2.0), (1, -3.0), (3, 4.0), (2, -5.0))
"""Size and first value; no graph serves the largest."""


class Memory(Protocol):
    """A tensor, as far as it is taken away and brought back."""

    def zero_(self) -> object:
        """Write zeros."""
        ...

    def copy_(self, source: Any, /) -> object:
        """Overwrite it."""
        ...


T = TypeVar("T", bound=Memory)


class DefaultModel(ABC, Generic[T]):
    """The memory behind the dependencies ``weights`` and ``cache``, and what is computed with it.

    Args:
        tolerance: The largest difference between a padded answer and an unpadded one; None: every bit.
    """

    def __init__(self, tolerance: float | None = None) -> None:
        self._tolerance = tolerance
        self._content = {"weights": 0.5, "cache": 2.0}
        self._memory = {name: self._fresh(name) for name in self._content}

    @abstractmethod
    def _fresh(self, name: str) -> T:
        """A tensor of what ``name`` holds now; what that is, `_content` says by one number."""

    @abstractmethod
    def _input(self, size: int, value: float) -> T:
        """An argument of ``size`` rows that begins with, or depends on, ``value``."""

    @abstractmethod
    def _example(self, size: int) -> tuple[T, ...]:
        """Static inputs of ``size`` rows."""

    @abstractmethod
    def _net(self, x: T) -> T:
        """From the weights."""

    @abstractmethod
    def _out(self, x: T) -> T:
        """From weights and cache."""

    def subjects(self, setup: Setup) -> list[Subject]:
        """A component that copies its answers, and one that lends them; the second reads a cache, too, and may call the first."""
        if setup.nested:
            return self._nested(setup)
        declared = SIZES[:1] if setup.mode is CaptureMode.PRECAPTURE_LAZY else SIZES
        samples, config, keys = self._samples(), _config(setup), self._keys(setup)
        net = Component("net", self._routine(self._net), declared, dependencies=["weights"], **keys)
        out = LeasedComponent("out", self._routine(self._out), declared, dependencies=["weights", "cache"], **keys)
        return [Subject(net, samples, config), Subject(out, samples, config)]

    def _nested(self, setup: Setup) -> list[Subject]:
        """The same, the first inside the second; it is captured with what is declared, so that it never is in a break."""
        declared = SIZES[:1] if setup.mode is CaptureMode.PRECAPTURE_LAZY else SIZES
        samples, keys = self._samples(), self._keys(setup)
        inner = keys | {"capture_mode": CaptureMode.PRECAPTURE, "inside": "out"}
        net = Component("net", self._routine(self._net), SIZES, dependencies=["weights"], **inner)
        around = Around(net, self._net, self._out, self._example)
        out = LeasedComponent("out", around, declared, dependencies=["weights", "cache"], **keys)
        return [Subject(net, samples), Subject(out, samples, _config(setup), calls=["net"])]

    def _samples(self) -> list[tuple[T]]:
        return [(self._input(*sample),) for sample in SAMPLES]

    def _keys(self, setup: Setup) -> dict[str, Any]:
        return {
            "capture_mode": setup.mode,
            "concurrent_leases": setup.concurrent,
            "collective": setup.ranks,
            "tolerance": self._tolerance,
        }

    def _routine(self, call: Callable[[T], T]) -> BucketedRoutine[[T], T]:
        return BucketedRoutine(call, self._example, sizes=SIZES)

    def take_away(self, name: str) -> None:
        """Overwrite memory."""
        self._memory[name].zero_()

    def bring_back(self, name: str, *, elsewhere: bool) -> None:
        """Put the content back, or new content elsewhere."""
        if elsewhere:
            self._content[name] += 1.0
            self._memory[name] = self._fresh(name)
        else:
            self._memory[name].copy_(self._fresh(name))


def _config(setup: Setup) -> dict[str, object]:
    return {"isolation": setup.isolation.value, "max_extra_graphs": setup.extra, "admit_after": setup.admit_after}


class _Buffers(tuple[object, ...]):
    """Static inputs, with what crosses the break of the graph that is captured on them: it goes when they and the graph have."""

    crossing: Any


class Around(BucketedRoutine[[T], T]):
    """Work around another component, which its graphs call in an eager break; its eager call does without.

    Args:
        inner: That component.
        work: What it computes.
        after: What comes after the break.
        example: As of `BucketedRoutine`; also makes what crosses the break, which lies outside of every pool.
    """

    def __init__(
        self, inner: Component[[T], T], work: Callable[[T], T], after: Callable[[T], T], example: Callable[[int], tuple[T, ...]]
    ) -> None:
        super().__init__(lambda x: after(work(x)), example, sizes=SIZES)
        self._inner = inner
        self._work = work
        self._after = after

    def allocate_buffers(self, descriptor: int) -> _Buffers:
        """As `Routine.allocate_buffers`."""
        buffers = _Buffers(super().allocate_buffers(descriptor))
        (buffers.crossing,) = self.example(descriptor)
        return buffers

    def forward_for_capture(self, descriptor: int, buffers: tuple[object, ...]) -> Body:
        """As `Routine.forward_for_capture`."""
        assert isinstance(buffers, _Buffers)
        return self._body(buffers[0], buffers.crossing)  # type: ignore[arg-type]  # a tensor, as `example` made it

    def _body(self, x: T, crossing: T) -> Body:
        crossing.copy_(x)
        yield Break(
            lambda: crossing.copy_(self._inner(crossing)), name="around", at_capture=lambda: crossing.copy_(self._work(crossing))
        )
        return self._after(crossing)
