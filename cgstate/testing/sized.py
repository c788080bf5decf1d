"""A routine of which a graph is one size: what its calls, its buffers and its answers have in common, whatever it computes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from cgstate.routine import Resolution, Routine

__all__ = ["Filling", "Sized"]

T = TypeVar("T")


class Filling(Protocol[T]):
    """What makes and fills the static inputs. T is its tensor type."""

    def full(self, units: float, value: float) -> T:
        """A fresh tensor of ``units`` units, filled by a kernel of the current stream."""
        ...

    def copy_(self, target: T, source: T) -> None:
        """Overwrite ``target``."""
        ...


class Sized(Routine[[T, float], T, float, T], Generic[T]):
    """A routine whose descriptors are sizes in units; a call gives its input and the size of that.

    Args:
        bench: The device.
        lazy: Sizes that a miss may capture.
    """

    def __init__(self, bench: Filling[T], lazy: Iterable[float]) -> None:
        self._tensors = bench
        self._lazy = frozenset(lazy)

    def resolve_runtime(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[float]
    ) -> Resolution[float]:
        """As `Routine.resolve_runtime`: a size has its own graph, or none."""
        units = args[1]
        assert isinstance(units, float)
        return Resolution(units, units if units in available else None)

    def make_lazy_descriptor(self, runtime_key: Hashable) -> float | None:
        """As `Routine.make_lazy_descriptor`."""
        return runtime_key if isinstance(runtime_key, float) and runtime_key in self._lazy else None

    def allocate_buffers(self, descriptor: float) -> T:
        """As `Routine.allocate_buffers`."""
        return self._tensors.full(descriptor, 0)

    def copy_runtime_inputs(self, descriptor: float, buffers: T, x: T, units: float) -> None:
        """As `Routine.copy_runtime_inputs`."""
        self._tensors.copy_(buffers, x)

    def output_after_replay(self, descriptor: float, buffers: T, output: Any, x: T, units: float) -> T:
        """As `Routine.output_after_replay`."""
        return output  # type: ignore[no-any-return]  # what `forward_for_capture` returned
