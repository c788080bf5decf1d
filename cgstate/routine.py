"""What a model implements so that a component can run by graphs.

`Routine` is the whole contract, with a default for every method that has a sensible one. `BucketedRoutine` implements it for the
common case: pad one dimension of the inputs to the next captured size, trim the outputs back.

Nothing here knows managers, entries or devices. Methods are called in this order:

capture
    ``validate_descriptor``, ``allocate_buffers``, then, inside ``capture_context``: ``prepare_for_capture`` and
    ``forward_for_capture`` for each warm-up round and once more while the graph records; ``after_capture`` comes last, if there
    were buffers.

call
    ``validate_runtime_inputs``, ``resolve_runtime``; on a hit ``copy_runtime_inputs``, the replay, ``output_after_replay``; on a
    miss perhaps ``make_lazy_descriptor`` and a capture; else ``eager_call``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from types import FunctionType
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from cgstate.breaks import run_eagerly
from cgstate.copying import Copies
from cgstate.errors import ConfigError
from cgstate.nested import opened

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D", bound=Hashable)
B = TypeVar("B")

F = TypeVar("F", bound=Callable[..., object])

__all__ = ["BucketedRoutine", "Resolution", "Routine", "by_shape"]


class Resolution(NamedTuple, Generic[D]):
    """Which graph a call wants.

    Attributes:
        runtime_key: Everything about the call that a graph would bake in, hashable; statistics are kept by it.
        descriptor: The available descriptor that serves the call, or None for a miss.
        exact: The static buffers are a tuple of tensors, one for each positional argument and of its very shape and dtype, and the
            static output is the answer; no input is pinned. Then neither `Routine.copy_runtime_inputs` nor
            `Routine.output_after_replay` is called: the runtime copies a single input itself, and several by
            `Routine.copy_exact_inputs`.
    """

    runtime_key: Hashable
    descriptor: D | None
    exact: bool = False


def by_shape(resolve_runtime: F) -> F:
    """Say of a `Routine.resolve_runtime` that nothing of tensors matters to it but their shapes and dtypes: no value, no device.

    Then it is asked once for all calls whose tensors look the same, until other descriptors are available. A call that has a
    keyword argument, or an argument that is no tensor, asks each time. It is said of one function: who overrides it says it again,
    where it is still true.

    Raises:
        ConfigError: not a function.
    """
    if not isinstance(resolve_runtime, FunctionType):
        raise ConfigError(f"by_shape decorates the function resolve_runtime, not {resolve_runtime!r}")
    resolve_runtime.by_shape = resolve_runtime  # type: ignore[attr-defined]  # itself: a wrapper may have copied the mark
    return resolve_runtime


def resolves_by_shape(routine: Routine[..., Any, Any, Any]) -> bool:
    """Whether `by_shape` was said of what the routine resolves by."""
    function = getattr(routine.resolve_runtime, "__func__", None)
    return function is not None and getattr(function, "by_shape", None) is function


class Routine(ABC, Generic[P, R, D, B]):
    """One component's work, eager and as a graph. Generic over its signature, its descriptors D and its static buffers B.

    Attributes:
        pinned: Positions of inputs that are not copied. The graph has the addresses of `pinned_inputs` baked in, and a call with
            any other tensor there, or another view of the same memory, raises `StaleBinding` before anything is launched.
    """

    pinned: Sequence[int] = ()

    @abstractmethod
    def eager_call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The model's own answer, without a graph."""

    def validate_runtime_inputs(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Refuse a call that neither a graph nor eager could serve, by raising. Host work only."""
        return

    @abstractmethod
    def resolve_runtime(self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[D]) -> Resolution[D]:
        """Choose a graph for a call. Host work only.

        ``available`` is a snapshot: the same object as before means that nothing changed; equal ones may be different objects.
        Decorate it with `by_shape` where nothing but shapes and dtypes matters.
        """

    def make_lazy_descriptor(self, runtime_key: Hashable) -> D | None:
        """The descriptor to capture for a missed key, or None to stay eager."""
        return None

    def validate_descriptor(self, descriptor: D) -> None:
        """Refuse a descriptor that cannot be captured, by raising. Cheap and stable: the refusal is remembered.

        Declared ones are asked about at `GraphManager.prepare` as well, before `configure`.
        """
        return

    def validate_binding(self) -> None:
        """Refuse to have graphs at all, by raising: e.g. hooks move the weights at each call, so that no address would last.

        Called once at `GraphManager.prepare`, before anything is changed.
        """
        return

    def configure(self, options: Mapping[str, object]) -> None:
        """Take the component's own keys of the configuration (its ``supported_config_keys``), or refuse them by raising.

        Called once at `GraphManager.prepare`, before the manager is changed, and after everything else of every component was
        checked. Where a later component refuses its own keys, this one has taken them: it is called again at the next attempt.
        """
        return

    def uncovered(self, descriptors: frozenset[D], *, lazy: bool) -> Iterable[str]:
        """Legal inputs that no graph will serve, in words, for the report of `GraphManager.prepare`.

        Args:
            descriptors: What is captured at startup.
            lazy: Whether misses may capture more.
        """
        return ()

    @abstractmethod
    def allocate_buffers(self, descriptor: D) -> B:
        """Make the static inputs of one graph, on the caller's stream: ordinary tensors whose addresses the graph bakes in."""

    def pinned_inputs(self, descriptor: D, buffers: B) -> Sequence[object]:
        """The tensors at the positions of `pinned`, in that order: the caller's own, not made by `allocate_buffers`."""
        return ()

    def prepare_for_capture(self, descriptor: D, buffers: B) -> None:
        """Put fresh per-entry state in place; before each warm-up round and before the capture, outside the graph."""
        return

    def capture_context(self, descriptor: D, buffers: B) -> AbstractContextManager[object]:
        """What warm-up and capture run inside, e.g. a forward context."""
        return nullcontext()

    @abstractmethod
    def forward_for_capture(self, descriptor: D, buffers: B) -> object:
        """The work to record, reading only ``buffers`` and the model. Its return value is the graph's static output.

        May be a generator function that yields `cgstate.Break`s: these run eagerly at each replay, between the segments that are
        recorded. What crosses a break lies in static tensors: in ``buffers``, or made by a segment and still held when it yields.

        The output is a tensor, or tensors in tuples, lists, dicts, dataclasses and classes that are registered with torch's pytree.
        Another object that holds tensors is refused while warming up, unless the routine has an `output_after_replay` of its own:
        what is inside could neither be cloned nor trimmed.
        """

    def after_capture(self, descriptor: D, buffers: B) -> None:
        """Undo `prepare_for_capture`; runs however the capture ended."""
        return

    @abstractmethod
    def copy_runtime_inputs(self, descriptor: D, buffers: B, *args: P.args, **kwargs: P.kwargs) -> None:
        """Write a call's inputs into the static buffers, on the current stream."""

    def copy_exact_inputs(self, buffers: B, args: tuple[object, ...]) -> None:
        """Copy several inputs into static ones of their very shapes and dtypes, where `Resolution.exact` says that they are."""
        for buffer, value in zip(cast("tuple[_Tensor, ...]", buffers), args, strict=True):
            buffer.copy_(value)

    @abstractmethod
    def output_after_replay(self, descriptor: D, buffers: B, output: object, *args: P.args, **kwargs: P.kwargs) -> R:
        """The call's answer as views of the static output; the component clones it, unless it leases it.

        Cloned are the tensors in whatever `forward_for_capture` may return: nothing of an object of another class.
        """

    def parameters(self) -> Iterable[object]:
        """Tensors that autograd might want gradients for; a call that autograd would record runs eagerly."""
        return ()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_Signature: TypeAlias = "tuple[tuple[int, ...], Hashable]"


def _signature(value: object) -> _Signature:
    """Shape and dtype of a tensor; of anything else, the name of its type."""
    kind: Hashable = getattr(value, "dtype", type(value).__qualname__)
    return tuple(getattr(value, "shape", ())), kind


class _Tensor(Protocol):
    """The few tensor methods that bucketing needs; torch tensors and simulated tensors have them."""

    @property
    def shape(self) -> Sequence[int]: ...
    def narrow(self, dim: int, start: int, length: int, /) -> _Tensor: ...
    def copy_(self, source: object, /) -> object: ...
    def zero_(self) -> object: ...


class BucketedRoutine(Routine[P, R, int, "tuple[object, ...]"]):
    """Graphs for a list of sizes of one dimension.

    A call of size n is padded with zeros to the smallest captured size that holds it; outputs are trimmed back. Valid for work in
    which padded positions do not change the real ones.

    Args:
        call: The work, e.g. an ``nn.Module``; its positional arguments must all be tensors that have the bucketed dimension.
        example: Makes example arguments of a given size; shapes, dtypes and devices of the static buffers are taken from it. Other
            dimensions than the bucketed one may differ from size to size: a call hits where all but that one are equal.
        sizes: Sizes that lazy capture may use. A missed size is captured as the smallest of them that holds it.
        dim: The bucketed dimension of every argument.
        output_dim: The dimension of every output tensor that grows with it; None if outputs need no trimming.
        output_scale: Output elements for each input element along that dimension, e.g. a decoder's upsampling factor.
        max_size: The largest size that calls may have, if known; sizes up to it that no graph serves are reported.
        pinned: Positions of arguments that are used where they are, such as a KV cache: ``example`` gives the very tensors that
            calls will give, they need not have the bucketed dimension, and are neither copied, padded nor zeroed. One at least is
            not pinned.
    """

    def __init__(
        self,
        call: Callable[P, R],
        example: Callable[[int], tuple[object, ...]],
        *,
        sizes: Iterable[int] = (),
        dim: int = 0,
        output_dim: int | None = 0,
        output_scale: int = 1,
        max_size: int | None = None,
        pinned: Iterable[int] = (),
    ) -> None:
        self.call = call
        self.example = example
        if not callable(call) or not callable(example):
            raise ConfigError(f"call and example must be functions, not {call!r} and {example!r}")
        allowed = list(sizes) if isinstance(sizes, Iterable) else [sizes]
        if not isinstance(sizes, Iterable) or not all(map(_is_count, allowed)):
            raise ConfigError(f"sizes must be positive integers, not {sizes!r}")
        if not _is_count(output_scale) or not (max_size is None or _is_count(max_size)):
            raise ConfigError(f"output_scale and max_size must be positive integers, not {output_scale!r} and {max_size!r}")
        for each in (dim, 0 if output_dim is None else output_dim):
            if isinstance(each, bool) or not isinstance(each, int):
                raise ConfigError(f"a dimension must be an integer, not {each!r}")
        places = list(pinned) if isinstance(pinned, Iterable) else [pinned]
        if not isinstance(pinned, Iterable) or not all(_is_count(place) or place == 0 for place in places):
            raise ConfigError(f"pinned must be positions of arguments, not {pinned!r}")
        self.pinned = tuple(sorted(set(places)))
        self._sized = next(place for place in count() if place not in self.pinned)
        self.sizes = tuple(sorted(set(allowed)))
        self.dim = dim
        self.output_dim = output_dim
        self.output_scale = output_scale
        self.max_size = max_size
        self._examples: dict[int, tuple[_Signature, ...]] = {}
        self._copies: Copies | None = None

    def eager_call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the module as it is, breaks included if it has any."""
        answer = self.call(*args, **kwargs)
        return cast(R, run_eagerly(answer)) if isinstance(answer, Generator) else answer

    @by_shape
    def resolve_runtime(self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        """The smallest available size whose static inputs hold the call.

        A call hits only with inputs of the shapes and dtypes of that size's own example, but for the bucketed dimension: a copy
        would broadcast or convert others in silence.
        Keyword arguments never hit, they would be baked in. Pinned inputs have no say: whether they are the right ones is compared
        before the launch. Who overrides this says `by_shape` again where that is still true: it takes some microseconds.
        """
        if kwargs or not args:
            return Resolution(tuple(sorted(kwargs)), None)
        given = {place: _signature(value) for place, value in enumerate(args) if place not in self.pinned}
        sizes = {shape[self.dim] for shape, _ in given.values() if -len(shape) <= self.dim < len(shape)}
        if len(sizes) == 1:
            [size] = sizes
            larger = [bucket for bucket in available if bucket >= size]
            while larger:
                bucket = min(larger)
                if self._holds(bucket, size, given, len(args)):
                    return Resolution(size, bucket, exact=bucket == size and self._copies_plainly())
                larger.remove(bucket)
            if self._holds(self.make_lazy_descriptor(size), size, given, len(args)):
                return Resolution(size, None)
        return Resolution(tuple(map(_signature, args)), None)

    def _copies_plainly(self) -> bool:
        """Whether nobody has put work of their own around copying in and out."""
        hooks = ("copy_runtime_inputs", "output_after_replay")
        plain = all(getattr(getattr(self, hook), "__func__", None) is getattr(BucketedRoutine, hook) for hook in hooks)
        return plain and not self.pinned

    def _holds(self, bucket: int | None, size: int, given: Mapping[int, _Signature], count: int) -> bool:
        """Whether inputs of a size go into a bucket's static ones; None: into those made last, only to know what to call them."""
        if bucket is None:
            example = next(reversed(self._examples.values()), ())
        elif bucket in self._examples:
            example = self._examples[bucket]
        else:  # not captured yet, or by an `allocate_buffers` of somebody else's
            example = self._examples[bucket] = tuple(map(_signature, self.example(bucket)))
        held: dict[int, _Signature] = {}
        for place, (shape, dtype) in enumerate(example):
            if place not in self.pinned:
                lengths = list(shape)
                if -len(shape) <= self.dim < len(shape):
                    lengths[self.dim] = size
                held[place] = tuple(lengths), dtype
        return len(example) == count and held == given

    def make_lazy_descriptor(self, runtime_key: Hashable) -> int | None:
        """The smallest allowed size that holds the missed one."""
        if not isinstance(runtime_key, int):
            return None
        position = bisect_left(self.sizes, runtime_key)
        return self.sizes[position] if position < len(self.sizes) else None

    def validate_descriptor(self, descriptor: int) -> None:
        """Sizes are positive integers."""
        if not _is_count(descriptor):
            raise ConfigError(f"a size must be a positive integer, not {descriptor!r}")

    def uncovered(self, descriptors: frozenset[int], *, lazy: bool) -> Iterable[str]:
        """Sizes above the largest graph, lazy ones included if there may be any."""
        largest = max((*descriptors, *(self.sizes if lazy else ())))
        if self.max_size is not None and self.max_size > largest:
            yield f"sizes {largest + 1} to {self.max_size}"

    def allocate_buffers(self, descriptor: int) -> tuple[object, ...]:
        """Example arguments of the bucket's size, zeroed, are the static inputs; pinned ones are left as they are."""
        buffers = self.example(descriptor)
        if not isinstance(buffers, tuple | list):
            raise ConfigError(f"example must return a tuple of tensors, not a {type(buffers).__name__}")
        if self.pinned and not self._sized < len(buffers) > self.pinned[-1]:
            raise ConfigError(f"example must return the pinned arguments {self.pinned} and others, not {len(buffers)}")
        for place, buffer in enumerate(buffers):
            if place not in self.pinned:
                shape = cast(_Tensor, buffer).shape
                if not -len(shape) <= self.dim < len(shape) or shape[self.dim] != descriptor:
                    raise ConfigError(
                        f"argument {place} of the example is not {descriptor} long in dimension {self.dim}: {tuple(shape)}"
                    )
                cast(_Tensor, buffer).zero_()
        self._examples[descriptor] = tuple(map(_signature, buffers))
        self._copies = Copies(buffers, self.pinned)
        return tuple(buffers)

    def pinned_inputs(self, descriptor: int, buffers: tuple[object, ...]) -> Sequence[object]:
        """Those of the example's tensors that stay where they are."""
        return [buffers[place] for place in self.pinned]

    def forward_for_capture(self, descriptor: int, buffers: tuple[object, ...]) -> object:
        """Record the module on the static inputs."""
        return cast("Callable[..., object]", self.call)(*buffers)

    def copy_runtime_inputs(self, descriptor: int, buffers: tuple[object, ...], *args: P.args, **kwargs: P.kwargs) -> None:
        """Copy the call's inputs to the front of the static ones and zero the rest."""
        size = cast(_Tensor, args[self._sized]).shape[self.dim]
        copies = self._how_to_copy(buffers, args)
        if size == descriptor:
            copies.exactly(buffers, args)
        else:
            copies.padded(buffers, args, self.dim, size, descriptor)

    def copy_exact_inputs(self, buffers: tuple[object, ...], args: tuple[object, ...]) -> None:
        """Copy inputs of one dtype by one launch, where torch has that."""
        self._how_to_copy(buffers, args).exactly(buffers, args)

    def _how_to_copy(self, buffers: tuple[object, ...], args: tuple[object, ...]) -> Copies:
        """As chosen for the buffers that were allocated, if these are as many: a subclass may have others."""
        if len(buffers) != len(args):
            raise ValueError(f"{len(args)} inputs for {len(buffers)} static ones")
        copies = self._copies
        return copies if copies is not None and copies.count == len(buffers) else Copies(buffers, self.pinned)

    def output_after_replay(
        self, descriptor: int, buffers: tuple[object, ...], output: object, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Trim every output tensor to the call's own size."""
        size = cast(_Tensor, args[self._sized]).shape[self.dim]
        if size == descriptor or self.output_dim is None:
            return cast(R, output)
        return cast(R, self._trim(output, size * self.output_scale))

    def _trim(self, output: object, length: int) -> object:
        if callable(getattr(output, "narrow", None)):
            assert self.output_dim is not None
            return cast(_Tensor, output).narrow(self.output_dim, 0, length)
        layer = opened(output)
        if layer is None:
            return output  # None, a number: the same for every size
        return layer.make([self._trim(part, length) for part in layer.parts])

    def parameters(self) -> Iterable[object]:
        """The parameters of an ``nn.Module``."""
        parameters = getattr(self.call, "parameters", None)
        return parameters() if callable(parameters) else ()
