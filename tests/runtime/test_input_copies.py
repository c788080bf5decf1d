"""Inputs get into static ones by as few launches as torch offers, with the values that plain copies would leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cgstate
from cgstate.backends.sim import SimBackend
from cgstate.routine import BucketedRoutine

pytestmark = pytest.mark.torch

BUCKET = 8
DTYPES = (torch.float32, torch.int64, torch.float32, torch.bool, torch.int64)


class Launches(TorchDispatchMode):
    """Names of the operations that would launch something, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in ("narrow", "slice"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def launches() -> Iterator[list[str]]:
    with torch.no_grad(), Launches() as mode:
        yield mode.names


def of(dtypes: tuple[torch.dtype, ...], dim: int = 0) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Makes random tensors of a size."""

    def make(size: int) -> tuple[torch.Tensor, ...]:
        shape = (size, 3) if dim == 0 else (3, size)
        return tuple(torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype) for dtype in dtypes)

    return make


def routine(dtypes: tuple[torch.dtype, ...], **options: Any) -> BucketedRoutine[..., Any]:
    return BucketedRoutine(lambda *inputs: inputs[0], of(dtypes, options.get("dim", 0)), **options)


def allocated(bucketed: BucketedRoutine[..., Any], size: int = BUCKET) -> tuple[Any, ...]:
    return bucketed.allocate_buffers(size)


def holds(buffers: tuple[Any, ...], values: tuple[Any, ...], dim: int = 0) -> bool:
    """Whether static inputs have these values in front, and zeros behind."""
    size = values[0].shape[dim]
    return all(
        torch.equal(buffer.narrow(dim, 0, size), value) and not buffer.narrow(dim, size, BUCKET - size).any()
        for buffer, value in zip(buffers, values, strict=True)
    )


@pytest.mark.parametrize("inputs", [2, 4, 16])
def test_inputs_of_one_dtype_take_one_launch(inputs: int) -> None:
    dtypes = (torch.float32,) * inputs
    bucketed, values = routine(dtypes), of(dtypes)(BUCKET)
    buffers = allocated(bucketed)
    with launches() as names:
        bucketed.copy_exact_inputs(buffers, values)
    assert names == ["_foreach_copy_"]
    assert holds(buffers, values)


def test_padded_inputs_of_one_dtype_take_one_launch_and_one_for_the_zeros() -> None:
    dtypes = (torch.float32,) * 4
    bucketed, make = routine(dtypes), of(dtypes)
    buffers = allocated(bucketed)
    bucketed.copy_runtime_inputs(BUCKET, buffers, *make(BUCKET))
    values = make(5)
    with launches() as names:
        bucketed.copy_runtime_inputs(BUCKET, buffers, *values)
    assert names == ["_foreach_copy_", "_foreach_zero_"]
    assert holds(buffers, values)


@pytest.mark.parametrize("size", [BUCKET, 5])
def test_inputs_of_several_dtypes_take_one_launch_for_each(size: int) -> None:
    bucketed, values = routine(DTYPES), of(DTYPES)(size)
    buffers = allocated(bucketed)
    with launches() as names:
        bucketed.copy_runtime_inputs(BUCKET, buffers, *values)
    copies = [name for name in names if "copy" in name]
    assert sorted(copies) == ["_foreach_copy_", "_foreach_copy_", "copy_"]
    assert holds(buffers, values)
    assert [buffer.dtype for buffer in buffers] == list(DTYPES)


@pytest.mark.parametrize("size", [BUCKET, 5])
@pytest.mark.parametrize("dim", [0, 1])
def test_inputs_of_any_memory_format_arrive(size: int, dim: int) -> None:
    dtypes = (torch.float32,) * 3
    bucketed, values = routine(dtypes, dim=dim, output_dim=dim), of(dtypes, dim)(size)
    strided = (values[0], values[1].t().contiguous().t(), torch.stack([values[2]] * 2, dim=-1)[..., 0])
    assert not strided[1].is_contiguous()
    buffers = allocated(bucketed)
    bucketed.copy_runtime_inputs(BUCKET, buffers, *strided)
    assert holds(buffers, values, dim)


def test_a_single_input_is_copied_as_ever() -> None:
    bucketed, make = routine((torch.float32,)), of((torch.float32,))
    buffers = allocated(bucketed)
    for size, expected in {BUCKET: ["copy_"], 5: ["copy_", "zero_"]}.items():
        values = make(size)
        with launches() as names:
            bucketed.copy_runtime_inputs(BUCKET, buffers, *values)
        assert names == expected
        assert holds(buffers, values)


def test_dtypes_that_torch_has_no_fused_kernel_for_are_copied_one_by_one() -> None:
    dtypes = (torch.uint16, torch.uint16)
    bucketed: BucketedRoutine[..., Any] = BucketedRoutine(
        lambda *inputs: inputs[0], lambda size: tuple(torch.zeros(size, dtype=each) for each in dtypes)
    )
    buffers = allocated(bucketed, 2)
    values = tuple(torch.tensor([number, 65535], dtype=torch.uint16) for number in (1, 2))
    with launches() as names:
        bucketed.copy_exact_inputs(buffers, values)
    assert names == ["copy_", "copy_"]
    assert [buffer.tolist() for buffer in buffers] == [[1, 65535], [2, 65535]]


def test_pinned_inputs_are_left_alone() -> None:
    dtypes = (torch.float32,) * 4
    bucketed, make = routine(dtypes, pinned=[1]), of(dtypes)
    buffers = allocated(bucketed)
    before = buffers[1].clone()
    values = make(5)
    bucketed.copy_runtime_inputs(BUCKET, buffers, *values)
    assert torch.equal(buffers[1], before)
    assert holds((buffers[0], *buffers[2:]), (values[0], *values[2:]))


def test_other_buffers_than_were_allocated_are_seen_as_what_they_are() -> None:
    """A subclass may use some of them only."""
    bucketed, make = routine(DTYPES), of(DTYPES)
    buffers, values = allocated(bucketed), make(5)
    bucketed.copy_runtime_inputs(BUCKET, buffers[:1], values[0])
    assert holds(buffers[:1], values[:1])
    assert not any(buffer.any() for buffer in buffers[1:])
    with pytest.raises(ValueError, match="2 inputs for 1 static ones"):
        bucketed.copy_runtime_inputs(BUCKET, buffers[:1], *values[:2])


@pytest.mark.parametrize("size", [BUCKET, 5])
@pytest.mark.parametrize("placed", [True, False], ids=["on the device", "from the host"])
def test_a_call_of_many_inputs_answers_as_eager(size: int, placed: bool) -> None:
    backend = SimBackend()

    def total(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([each.float() for each in inputs]).sum(0)

    def example(rows: int) -> tuple[torch.Tensor, ...]:
        return tuple(map(backend.place, of(DTYPES)(rows)))

    component: cgstate.Component[..., Any] = cgstate.Component("total", BucketedRoutine(total, example), [BUCKET])
    with torch.no_grad(), cgstate.GraphManager(backend, check=True) as manager:
        manager.prepare([component])
        manager.capture_and_bind(progress=False)
        for _ in range(2):
            values = of(DTYPES)(size)
            given = tuple(map(backend.place, values)) if placed else values
            assert component(*given).tolist() == total(*values).tolist()
        assert manager.stats().components["total"].hits == 2


def test_a_routine_of_ones_own_may_copy_exact_inputs_in_its_way() -> None:
    seen: list[int] = []

    class Counting(BucketedRoutine[..., Any]):
        def copy_exact_inputs(self, buffers: tuple[object, ...], args: tuple[object, ...]) -> None:
            seen.append(len(args))
            cgstate.Routine.copy_exact_inputs(self, buffers, args)  # one by one

    backend = SimBackend()
    device = backend.sim
    counting = Counting(lambda *given: given[0], lambda rows: (device.zeros(rows, 2), device.zeros(rows, 2)))
    component: cgstate.Component[..., Any] = cgstate.Component("two", counting, [2])
    with cgstate.GraphManager(backend) as manager:
        manager.prepare([component])
        manager.capture_and_bind(progress=False)
        one, two = device.rand(2, 2), device.rand(2, 2)
        assert component(one, two).tolist() == one.tolist()
    assert seen == [2]
