"""Examines a routine: replays with inputs other than those captured, in several orders, against the eager call.

What differs is traced to a method by asking more: does it matter what was called before, does every argument reach the static
inputs, does the work give the right answer when it runs eagerly on them, does it matter that the call was padded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cgstate.backends.base import Backend
from cgstate.backends.sim.values import is_tensor, tensors_in
from cgstate.errors import CaptureFailed, CGStateError, ConfigError, describe
from cgstate.lifecycle.states import FailureKind
from cgstate.routine import Routine, resolves_by_shape
from cgstate.runtime.component import Component
from cgstate.runtime.entry import Entry
from cgstate.runtime.manager import GraphManager
from cgstate.testing.stateful.subject import difference, values

__all__ = ["Finding", "RoutineRefused", "check_routine", "examine_routine"]

AnyRoutine = Routine[..., Any, Any, Any]
Sample = tuple[Any, ...]


@dataclass(frozen=True)
class Finding:
    """One promise that a routine does not keep.

    Attributes:
        method: The method to look at.
        what: What was seen.
        fix: What to do about it.
    """

    method: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.method}: {self.what}\n  fix: {self.fix}"


class RoutineRefused(CGStateError, AssertionError):
    """A routine does not keep its promises.

    Attributes:
        findings: Which.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = tuple(findings)


def check_routine(
    routine: AnyRoutine,
    samples: Sequence[Sample],
    descriptors: Sequence[Hashable],
    *,
    backend: Backend | None = None,
    tolerance: float = 0.0,
) -> None:
    """Refuse a routine whose graphs would answer otherwise than its eager call.

    Args:
        routine: The routine.
        samples: Arguments of calls, each a tuple. For each graph at least two whose eager answers differ; where calls are padded,
            some that are smaller than the graph; and some that differ in every argument that calls can differ in.
        descriptors: The graphs to capture.
        backend: Where; None: a simulated device, on which torch code runs on the CPU.
        tolerance: The largest allowed difference to the eager call; 0: every bit.

    Raises:
        RoutineRefused: something was found; it names the method and the fix.
        ConfigError: the samples cannot show anything: no graph serves any two that differ.
    """
    findings = examine_routine(routine, samples, descriptors, backend=backend, tolerance=tolerance)
    if findings:
        raise RoutineRefused(findings)


def examine_routine(
    routine: AnyRoutine,
    samples: Sequence[Sample],
    descriptors: Sequence[Hashable],
    *,
    backend: Backend | None = None,
    tolerance: float = 0.0,
) -> tuple[Finding, ...]:
    """What `check_routine` finds.

    Raises:
        ConfigError: as `check_routine`.
    """
    if backend is None:
        from cgstate.backends.sim import SimBackend

        backend = SimBackend()
    component = Component("under test", routine, descriptors, tolerance=tolerance or None)
    manager = GraphManager(backend, isolation="per_entry")
    try:
        manager.prepare([component])
        try:
            manager.capture_and_bind(progress=False)
        except CaptureFailed as failure:
            return (_not_captured(failure),)
        examination = _Examination(routine, component, manager, backend, tolerance)
        return tuple(dict.fromkeys(examination.findings(samples)))
    finally:
        manager.close()


def _not_captured(failure: CaptureFailed) -> Finding:
    cause = "" if failure.__cause__ is None else describe(failure.__cause__)
    if failure.kind == FailureKind.USER:
        return Finding(
            "forward_for_capture", f"it raised while it was recorded: {cause}", "make it run on the static buffers alone"
        )
    return Finding(
        "forward_for_capture",
        f"it cannot be recorded ({failure.kind}): {cause}",
        "let nothing in it wait for the device: no .item(), no .cpu(), no branch on a value; what must, goes into "
        "prepare_for_capture, copy_runtime_inputs, or between the segments as a Break",
    )


class _Examination:
    """One routine, captured and not called yet."""

    def __init__(
        self, routine: AnyRoutine, component: Component[..., Any], manager: GraphManager, backend: Backend, tolerance: float
    ) -> None:
        self._routine = routine
        self._component = component
        self._manager = manager
        self._backend = backend
        self._tolerance = tolerance
        self._untouched = {
            descriptor: self._copied(manager.entry("under test", descriptor)) for descriptor in component.available_descriptors
        }
        """The static inputs of each graph, each with a copy of what was in it before any call."""

    def findings(self, samples: Sequence[Sample]) -> Iterator[Finding]:
        """Everything that is wrong, sorted by graph."""
        served: dict[Hashable, list[Sample]] = {}
        alike: dict[object, Hashable] = {}
        by_shape = resolves_by_shape(self._routine)
        for sample in samples:
            resolution = self._routine.resolve_runtime(sample, {}, self._component.available_descriptors)
            if by_shape and all(map(is_tensor, sample)):
                look = tuple((value.shape, value.dtype) for value in sample)
                if alike.setdefault(look, resolution) != resolution:
                    yield Finding(
                        "resolve_runtime",
                        f"it is marked by_shape, and says {alike[look]} and {resolution} to calls of the same shapes and dtypes",
                        "take the mark off: it may look at more than that then",
                    )
                    return
            if resolution.descriptor is not None:
                served.setdefault(resolution.descriptor, []).append(sample)
        telling = False
        for descriptor, ours in served.items():
            rights = [self._eager(sample) for sample in ours]
            telling = telling or any(not self._same(rights[0], right) for right in rights[1:])
            yield from self._of_graph(self._manager.entry("under test", descriptor), ours, rights)
        if not telling:
            raise ConfigError("the samples can show nothing: no graph serves two of them whose eager answers differ")

    def _of_graph(self, entry: Entry, samples: list[Sample], rights: list[object]) -> Iterator[Finding]:
        """One graph: every sample after every other one."""
        for sample, right in zip(samples, rights, strict=True):
            if not self._same(self._eager(sample), right):
                yield Finding(
                    "eager_call",
                    "called twice with the same arguments it answers differently, though no random number was asked for",
                    "let it depend on its arguments and on declared dependencies only",
                )
                return
        answers = {
            (first, second): self._after(samples[first], samples[second])
            for first in range(len(samples))
            for second in range(len(samples))
        }
        wrong = sorted({second for (_, second), answer in answers.items() if not self._same(answer, rights[second])})
        if not wrong:
            return
        for second in wrong:
            if (shapes := (_shape(answers[second, second]), _shape(rights[second])))[0] != shapes[1]:
                yield Finding(
                    "output_after_replay",
                    f"it answers with shape {shapes[0]}, and eager_call with {shapes[1]}",
                    "cut the padding off every output",
                )
                return
        yield self._reason(entry, samples, rights, answers, wrong)

    def _reason(
        self,
        entry: Entry,
        samples: list[Sample],
        rights: list[object],
        answers: dict[tuple[int, int], object],
        wrong: list[int],
    ) -> Finding:
        name = entry.name
        for second in wrong:
            by_past = [self._as_first(entry, samples[second]), *(answers[first, second] for first in range(len(samples)))]
            if not all(self._same(answer, by_past[0]) for answer in by_past):
                return Finding(
                    "copy_runtime_inputs",
                    f"an answer of {name} depends on what was called before: part of the static inputs is left over from that call",
                    "overwrite all of them: zero the tail behind a smaller input, or write the mask anew",
                )
        if baked := self._baked_value(samples, wrong):
            return Finding(
                "resolve_runtime",
                f"{name} serves calls that differ in argument {baked[0]} ({baked[1]!r} and {baked[2]!r}), which was baked in",
                "make the value part of the descriptor, or write it to a static tensor in copy_runtime_inputs",
            )
        if (place := self._not_written(entry, samples, rights)) is not None:
            return Finding(
                "copy_runtime_inputs",
                f"the static inputs of {name} are the same whatever argument {place} of a call is",
                "write every argument to the static buffers that forward_for_capture reads",
            )
        eagerly = [self._on_buffers(entry, sample) for sample in samples]
        if all(self._same(eagerly[second], rights[second]) for second in wrong):
            return Finding(
                "forward_for_capture",
                f"run on the same buffers without a graph it is right, and {name} is not: it computes with something that is "
                "replaced, or was worked out on the host",
                "read nothing but the buffers and memory that stays in its place; name memory that may move as a dependency; a "
                "Python number, such as a length, is baked in: write it to a buffer, or make it part of the descriptor",
            )
        full = _size(values(entry.output))
        if all(_size(rights[each]) < full for each in wrong):
            what, fix = (
                f"{name} is right for calls of its own size, and wrong for smaller ones: padded positions change the real ones",
                "mask them: write a mask or a length in copy_runtime_inputs, and use it",
            )
            if not any(_size(right) == full for right in rights):
                what = f"{name} is wrong for calls that are smaller than it, and no sample has its own size"
                fix = f"{fix}; a sample of its own size would tell that from other work than eager_call's"
            return Finding("forward_for_capture", what, fix)
        return Finding(
            "forward_for_capture",
            f"run on the buffers of {name} it answers otherwise than eager_call: it computes something else, or keeps what an "
            "earlier run, such as the warm-up, has worked out",
            "compute from the buffers what eager_call computes from the arguments, in each run; keep nothing between runs",
        )

    def _baked_value(self, samples: list[Sample], wrong: list[int]) -> tuple[int, object, object] | None:
        """An argument that is no tensor, and in which a wrong call differs from another one of the graph."""
        for second in wrong:
            for other in samples:
                for place, (one, two) in enumerate(zip(samples[second], other, strict=False)):
                    if _plain(one) and _plain(two) and one != two:
                        return place, one, two
        return None

    def _not_written(self, entry: Entry, samples: list[Sample], rights: list[object]) -> int | None:
        """The place of an argument that the eager answer depends on, and the static inputs do not."""
        for sample, right in zip(samples, rights, strict=True):
            for place in range(len(sample)):
                if place not in self._routine.pinned and self._matters(blank := self._blanked(sample, place), right):
                    written = self._written(entry, sample)
                    if written is not None and difference(written, self._written(entry, blank)) == 0.0:
                        return place
        return None

    def _matters(self, sample: Sample, other: object) -> bool:
        """Whether the eager call takes these arguments, and answers otherwise than ``other``."""
        try:
            return not self._same(self._eager(sample), other)
        except Exception:
            return False

    def _blanked(self, sample: Sample, place: int) -> Sample:
        """The same arguments, the tensors of one of them replaced by zeros."""
        blank = self._backend.clone(sample[place])
        for tensor in tensors_in(blank):
            tensor.zero_()
        return (*sample[:place], blank, *sample[place + 1 :])

    # -- asking -------------------------------------------------------------------------------------------------------

    def _eager(self, sample: Sample) -> object:
        return values(self._routine.eager_call(*sample))

    def _after(self, first: Sample, second: Sample) -> object:
        """The answer to the second call, right after the first."""
        values(self._component(*first))
        return values(self._component(*second))

    def _as_first(self, entry: Entry, sample: Sample) -> object:
        """The answer to a call that finds in the static inputs what was in them before any call."""
        for tensor, untouched in self._untouched[entry.descriptor]:
            with suppress(RuntimeError):  # what cannot be written, as an expanded tensor, no call has written either
                tensor.copy_(untouched)
        return values(self._component(*sample))

    def _copied(self, entry: Entry) -> list[tuple[Any, Any]]:
        """Static inputs of a graph with copies of them; not the pinned ones, which are the caller's and may be large."""
        pinned = set(map(id, self._routine.pinned_inputs(entry.descriptor, entry.buffers)))
        return [(each, self._backend.clone(each)) for each in tensors_in(entry.buffers) if id(each) not in pinned]

    def _on_buffers(self, entry: Entry, sample: Sample) -> object:
        """What the work gives on the graph's own buffers, without the graph; None if it raises."""
        routine, descriptor, buffers = self._routine, entry.descriptor, entry.buffers
        try:
            routine.copy_runtime_inputs(descriptor, buffers, *sample)
            output = routine.forward_for_capture(descriptor, buffers)
            return values(routine.output_after_replay(descriptor, buffers, output, *sample))
        except Exception:
            return None

    def _written(self, entry: Entry, sample: Sample) -> object:
        """What a call leaves in the static inputs; None where that cannot be told."""
        if not self._untouched[entry.descriptor]:
            return None  # the routine keeps them elsewhere
        try:
            self._routine.copy_runtime_inputs(entry.descriptor, entry.buffers, *sample)
            return values(entry.buffers)
        except Exception:
            return None

    def _same(self, one: object, other: object) -> bool:
        return difference(one, other) <= self._tolerance


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _shape(value: object) -> object:
    if isinstance(value, list):
        return (len(value), _shape(value[0])) if value else (0,)
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    return ()


def _size(value: object) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return sum(map(_size, value.values())) if isinstance(value, dict) else 1
