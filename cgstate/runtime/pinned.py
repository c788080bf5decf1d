"""Baked addresses: what a graph reads or writes outside its pool, kept alive, and its place compared before each launch.

A graph knows memory by address alone. What it reads besides its static buffers is kept alive with it until the reclaimer destroys
it, so a baked address never points into memory that was given back. Where a tensor may be *moved* (its storage swapped, or another
tensor put in its place), it is declared pinned: its address is read when it is baked in, and compared on each replay. So is its
layout, as the graph reads those elements in those places: another view of the same memory has other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cgstate.backends.base import Backend
from cgstate.errors import ConfigError, StaleBinding

if TYPE_CHECKING:
    from cgstate.runtime.capture import MakeFunction
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.record import AnyRoutine, ComponentRecord


class Layout(NamedTuple):
    """How the elements of a tensor lie behind its address, of what kind they are, and what torch does to them at each reading."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: object
    conjugated: bool
    negated: bool

    @classmethod
    def of(cls, tensor: Any) -> Layout:
        """Of a tensor, of whichever backend's."""
        lazy = hasattr(tensor, "is_conj")  # torch's, not the simulator's own
        return cls(tensor.shape, tensor.stride(), tensor.dtype, lazy and tensor.is_conj(), lazy and tensor.is_neg())

    def says(self, other: Layout) -> bool:
        """Whether the same elements are in the same places; where there is one element, its distance to the next means nothing."""
        return self == other or self._replace(strides=self._steps()) == other._replace(strides=other._steps())

    def _steps(self) -> tuple[int, ...]:
        return tuple(stride for size, stride in zip(self.shape, self.strides, strict=True) if size != 1)

    def __str__(self) -> str:
        view = ", a conjugated view" * self.conjugated + ", a negated view" * self.negated
        return f"shape {tuple(self.shape)}, strides {self.strides} and {self.dtype}{view}"


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """One baked address.

    Attributes:
        name: What refusals call it.
        source: The tensor, or a function that returns the tensor that is in a place now.
        address: Where it was when the graph was captured, bytes.
        layout: How its elements lay then.
        storage: Keeps the memory that was there, also when the tensor is given other memory in place: so nothing else can come to
            lie at that address, and equal addresses are the same memory.
    """

    name: str
    source: object
    address: int
    layout: Layout
    storage: object

    def problem(self, backend: Backend) -> str:
        """What is wrong with its place, or with how it lies there now; empty if nothing is."""
        return self.problem_of(backend, _tensor(self.source))

    def problem_of(self, backend: Backend, tensor: object) -> str:
        """What is wrong with ``tensor`` in its place; empty if nothing is.

        Raises:
            ConfigError: it is no tensor.
        """
        place, layout = backend.address(tensor), Layout.of(tensor)
        if place == self.address and layout.says(self.layout):
            return ""
        return f"{self.name} at {self.address:#x}, of {self.layout}, as it was captured; now it is at {place:#x}, of {layout}"


@dataclass(frozen=True, slots=True, eq=False)
class Baked:
    """What one graph has baked in from outside its pool.

    Attributes:
        pins: Addresses to compare before each launch.
        retained: What else is kept alive until the graph is destroyed.
    """

    pins: tuple[Pin, ...] = ()
    retained: tuple[object, ...] = ()


NOTHING = Baked()


class Baking:
    """Stands for the function that makes the work of one capture, and notes what that bakes in.

    Args:
        backend: The device.
        make: The function that it stands for.
        sources: Pinned tensors by name, asked for just before the capture opens: warm-up may still put them in their places.
        retain: What to keep alive, besides pinned tensors.
        retain_function: Whether to keep the recorded function, with all that it closes over.
    """

    def __init__(
        self,
        backend: Backend,
        make: MakeFunction,
        sources: Callable[[], Mapping[str, object]] | None,
        *,
        retain: tuple[object, ...] = (),
        retain_function: bool = False,
    ) -> None:
        self._backend = backend
        self._make = make
        self._sources = sources
        self._retain = retain
        self._retain_function = retain_function
        self._baked = NOTHING

    def __call__(self, warmup: bool) -> Callable[[], object]:
        """As `MakeFunction`."""
        function = self._make(warmup)
        if not warmup:
            pins = [] if self._sources is None else [self._pin(name, source) for name, source in self._sources().items()]
            kept = (*self._retain, function) if self._retain_function else self._retain
            if pins or kept:
                self._baked = Baked(tuple(pins), kept)
        return function

    def forget(self) -> None:
        """The capture failed: keep nothing alive, whoever keeps this object."""
        self._make, self._sources, self._retain, self._baked = _nothing_made, None, (), NOTHING

    def _pin(self, name: str, source: object) -> Pin:
        tensor = _tensor(source)
        address = self._backend.address(tensor)
        return Pin(name, source, address, Layout.of(tensor), self._backend.storage(tensor))

    def finish(self) -> Baked:
        """What was baked in, once the recording is made.

        Raises:
            ConfigError: something moved while it was recorded, or became another view, so that the graph may know either.
        """
        for pin in self._baked.pins:
            if problem := pin.problem(self._backend):
                raise ConfigError(f"a pinned tensor moved during the capture; it needs {problem}")
        return self._baked


def by_position(backend: Backend, pinned: Iterable[object]) -> Callable[[], Mapping[str, object]] | None:
    """The sources of `Transaction.capture`; None if there are none.

    Raises:
        ConfigError: not a sequence of tensors and functions.
    """
    if not isinstance(pinned, Iterable) or _is_tensor(backend, pinned):  # its rows are new views, which never move
        raise ConfigError(f"pinned must be a sequence of tensors, not {pinned!r}")
    sources = {f"pinned[{position}]": source for position, source in enumerate(pinned)}
    for source in sources.values():
        if not callable(source):
            backend.address(source)
    return (lambda: sources) if sources else None


def by_input(routine: AnyRoutine, entry: Entry) -> Callable[[], Mapping[str, object]] | None:
    """The pinned inputs of a routine, as sources; None if it has none."""
    if not routine.pinned:
        return None

    def sources() -> Mapping[str, object]:
        tensors = routine.pinned_inputs(entry.descriptor, entry.buffers)
        return {f"input {position}": tensor for position, tensor in zip(routine.pinned, tensors, strict=True)}

    return sources


def check(entry: Entry) -> None:
    """Compare every baked address, in the entry's turn and without the lock: it asks the user's own tensors and functions.

    Raises:
        StaleBinding: one of them moved, or is another view of what is there. Nothing was changed; it works again once that is back.
    """
    backend = entry.manager.backend
    for pin in entry.baked.pins:
        if problem := pin.problem(backend):
            raise StaleBinding("entry", entry.name, entry.state, "replay", problem)


def copying(record: ComponentRecord, routine: AnyRoutine) -> Callable[..., None]:
    """How a component's inputs get into its buffers: by the routine, and first looked at if it has pinned ones."""
    return partial(_look_and_copy, record, routine) if routine.pinned else routine.copy_runtime_inputs


def _look_and_copy(
    record: ComponentRecord, routine: AnyRoutine, descriptor: Any, buffers: Any, /, *args: Any, **kwargs: Any
) -> None:
    """Compare the call's pinned inputs with what the graph has baked in, then copy the others.

    Raises:
        StaleBinding: one of them lies elsewhere, or is another view of what is there. Nothing was changed or launched.
        ConfigError: one of them is no tensor.
    """
    entry = record.entries[descriptor]
    check(entry)
    for position, pin in zip(routine.pinned, entry.baked.pins, strict=True):
        given = args[position] if position < len(args) else None
        if problem := pin.problem_of(record.manager.backend, given):
            raise StaleBinding("entry", entry.name, entry.state, "replay", problem)
    routine.copy_runtime_inputs(descriptor, buffers, *args, **kwargs)


def _nothing_made(warmup: bool) -> Callable[[], object]:
    raise RuntimeError("a capture that failed was asked for its work")  # unreachable: nothing records after its undoing


def _is_tensor(backend: Backend, value: object) -> bool:
    try:
        backend.address(value)
    except ConfigError:
        return False
    return True


def _tensor(source: object) -> object:
    return source() if callable(source) else source
