"""Conformance: the simulator passes the backend's tests, and each way in which a routine can be wrong is found and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cgstate import BucketedRoutine, Resolution
from cgstate.backends.base import Backend
from cgstate.backends.sim import SimBackend, SimDevice, SimTensor, kernels
from cgstate.errors import ConfigError
from cgstate.testing.conformance.backend import BackendConformance
from cgstate.testing.conformance.routine import RoutineRefused, check_routine, examine_routine

Sample = tuple[Any, ...]


class TestTheSimulator(BackendConformance):
    def make_backend(self) -> Backend:
        self.device = SimDevice()
        return SimBackend(self.device)

    def tensor(self, value: float) -> SimTensor:
        return self.device.tensor([value] * 4)

    def twice(self, x: Any) -> SimTensor:
        return kernels.add(x, x)


class Faulty(BucketedRoutine[..., SimTensor]):
    """A bucketed sum of a row and a bias; what is wrong with it is given."""

    def __init__(self, device: SimDevice, wrong: str = "") -> None:
        super().__init__(self.work, lambda size: (device.zeros(size, 2),))
        self.device = device
        self.wrong = wrong
        self.bias = device.tensor([1.0, 2.0])
        self.plan: SimTensor | None = None

    def work(self, x: SimTensor) -> SimTensor:
        return kernels.add(kernels.tanh(x), self.bias)

    def forward_for_capture(self, descriptor: int, buffers: tuple[Any, ...]) -> object:
        (x,) = buffers
        match self.wrong:
            case "work hidden by warm-up":
                if self.plan is None:
                    self.plan = kernels.tanh(x)
                return kernels.add(self.plan, self.bias)
            case "waits for the device":
                return kernels.scale(self.work(x), x.narrow(0, 0, 1).narrow(1, 0, 1).item())
            case "raises":
                raise ValueError("not today")
            case "padding leaks":
                rows = kernels.matmul(self.device.zeros(descriptor, descriptor).fill_(1.0), kernels.add(x, self.bias))
                return kernels.add(rows, self.device.zeros(2))
        return self.work(x)

    def eager_call(self, *args: Any, **kwargs: Any) -> SimTensor:
        (x,) = args
        if self.wrong == "padding leaks":
            size = x.shape[0]
            return kernels.matmul(self.device.zeros(size, size).fill_(1.0), kernels.add(x, self.bias))
        return self.work(x)

    def copy_runtime_inputs(self, descriptor: int, buffers: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
        if self.wrong != "inputs are not copied":
            super().copy_runtime_inputs(descriptor, buffers, *args, **kwargs)

    def output_after_replay(self, descriptor: int, buffers: tuple[Any, ...], output: Any, *args: Any, **kwargs: Any) -> SimTensor:
        if self.wrong == "padding is answered":
            return output  # type: ignore[no-any-return]
        return super().output_after_replay(descriptor, buffers, output, *args, **kwargs)


class StaleTail(Faulty):
    """A sum over all rows, whose copy leaves what an earlier call has written behind a smaller input."""

    def work(self, x: SimTensor) -> SimTensor:
        return kernels.matmul(self.device.zeros(1, x.shape[0]).fill_(1.0), x)

    def eager_call(self, *args: Any, **kwargs: Any) -> SimTensor:
        return self.work(args[0])

    def copy_runtime_inputs(self, descriptor: int, buffers: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
        buffers[0].narrow(0, 0, args[0].shape[0]).copy_(args[0])

    def output_after_replay(self, descriptor: int, buffers: tuple[Any, ...], output: Any, *args: Any, **kwargs: Any) -> SimTensor:
        return output  # type: ignore[no-any-return]


class BakedScalar(Faulty):
    """A product with a number that the descriptor does not name."""

    factor = 2.0

    def resolve_runtime(self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[int]) -> Resolution[int]:
        return super().resolve_runtime(args[:1], kwargs, available)

    def eager_call(self, *args: Any, **kwargs: Any) -> SimTensor:
        return kernels.scale(args[0], args[1])

    def forward_for_capture(self, descriptor: int, buffers: tuple[Any, ...]) -> object:
        return kernels.scale(buffers[0], self.factor)

    def copy_runtime_inputs(self, descriptor: int, buffers: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
        super().copy_runtime_inputs(descriptor, buffers, args[0])


def rows(device: SimDevice, *starts: float) -> SimTensor:
    return device.tensor([[start, start / 2] for start in starts])


def calls(device: SimDevice) -> list[Sample]:
    """Two calls of the graph's own size, and two smaller ones."""
    return [(rows(device, 1.0, 2.0),), (rows(device, -3.0, 4.0),), (rows(device, 5.0),), (rows(device, -6.0),)]


def found_in(routine: Faulty, samples: list[Sample]) -> list[str]:
    return [finding.method for finding in examine_routine(routine, samples, [2], backend=SimBackend(routine.device))]


def test_a_routine_that_keeps_its_promises_passes() -> None:
    device = SimDevice()
    check_routine(Faulty(device), calls(device), [2], backend=SimBackend(device))


@pytest.mark.parametrize(
    ("wrong", "method", "says"),
    [
        ("work hidden by warm-up", "forward_for_capture", "warm-up"),
        ("waits for the device", "forward_for_capture", ".item()"),
        ("raises", "forward_for_capture", "not today"),
        ("padding leaks", "forward_for_capture", "mask"),
        ("inputs are not copied", "copy_runtime_inputs", "the same whatever argument 0 of a call is"),
        ("padding is answered", "output_after_replay", "shape"),
    ],
)
def test_each_fault_is_traced_to_its_method(wrong: str, method: str, says: str) -> None:
    device = SimDevice()
    routine = Faulty(device, wrong)
    with pytest.raises(RoutineRefused) as refused:
        check_routine(routine, calls(device), [2], backend=SimBackend(device))
    assert [finding.method for finding in refused.value.findings] == [method]
    assert says in str(refused.value)
    assert "fix: " in str(refused.value)


def test_a_tail_of_an_earlier_call_is_found() -> None:
    device = SimDevice()
    assert found_in(StaleTail(device), calls(device)) == ["copy_runtime_inputs"]


def test_a_tail_of_the_only_larger_call_is_found() -> None:
    device = SimDevice()
    assert found_in(StaleTail(device), of_sizes(device, (2, 1))) == ["copy_runtime_inputs"]


def test_the_argument_that_is_not_copied_is_named() -> None:
    class FirstOnly(Faulty):
        def eager_call(self, *args: Any, **kwargs: Any) -> SimTensor:
            return kernels.add(*args)

        def allocate_buffers(self, descriptor: int) -> tuple[Any, ...]:
            return self.device.zeros(descriptor, 2), self.device.zeros(descriptor, 2)

        def resolve_runtime(
            self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[int]
        ) -> Resolution[int]:
            return super().resolve_runtime(args[:1], kwargs, available)

        def forward_for_capture(self, descriptor: int, buffers: tuple[Any, ...]) -> object:
            return kernels.add(*buffers)

        def copy_runtime_inputs(self, descriptor: int, buffers: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
            super().copy_runtime_inputs(descriptor, buffers[:1], args[0])

    device = SimDevice()
    samples = [(rows(device, 1.0, 2.0), rows(device, 3.0, 4.0)), (rows(device, 5.0, 6.0), rows(device, 7.0, 8.0))]
    (finding,) = examine_routine(FirstOnly(device), samples, [2], backend=SimBackend(device))
    assert finding.method == "copy_runtime_inputs"
    assert "whatever argument 1 of a call is" in finding.what


class Forgetful(StaleTail):
    """A sum over the rows that a mask lets in; its copy leaves one write out."""

    def __init__(self, device: SimDevice, forgets: str) -> None:
        super().__init__(device)
        self.forgets = forgets

    def allocate_buffers(self, descriptor: int) -> tuple[Any, ...]:
        return self.device.zeros(descriptor, 2), self.device.zeros(1, descriptor).fill_(1.0)

    def forward_for_capture(self, descriptor: int, buffers: tuple[Any, ...]) -> object:
        inputs, mask = buffers
        return kernels.matmul(mask, inputs)

    def copy_runtime_inputs(self, descriptor: int, buffers: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
        (x,), (inputs, mask) = args, buffers
        size = x.shape[0]
        if self.forgets != "to copy":
            inputs.narrow(0, 0, size).copy_(x)
        if self.forgets != "to open the mask":
            mask.narrow(1, 0, size).fill_(1.0)
        if size < descriptor:
            mask.narrow(1, size, descriptor - size).zero_()


ORDERS = [(3, 4), (4, 3), (1, 3, 4), (3, 4, 4)]


def of_sizes(device: SimDevice, sizes: tuple[int, ...]) -> list[Sample]:
    return [(rows(device, *(float(place + row + 1) for row in range(size))),) for place, size in enumerate(sizes)]


@pytest.mark.parametrize("sizes", ORDERS)
@pytest.mark.parametrize(("forgets", "says"), [("to open the mask", "was called before"), ("to copy", "argument 0")])
def test_a_write_that_is_forgotten_is_found_in_any_order_of_sizes(forgets: str, says: str, sizes: tuple[int, ...]) -> None:
    device = SimDevice()
    (finding,) = examine_routine(Forgetful(device, forgets), of_sizes(device, sizes), [4], backend=SimBackend(device))
    assert finding.method == "copy_runtime_inputs"
    assert says in finding.what


@pytest.mark.parametrize("sizes", ORDERS)
def test_work_that_the_warm_up_hides_is_found_in_any_order_of_sizes(sizes: tuple[int, ...]) -> None:
    device = SimDevice()
    routine = Faulty(device, "work hidden by warm-up")
    (finding,) = examine_routine(routine, of_sizes(device, sizes), [4], backend=SimBackend(device))
    assert finding.method == "forward_for_capture"
    assert "warm-up" in finding.what


def test_padding_that_leaks_is_not_taken_for_warm_up_where_no_sample_has_the_graphs_size() -> None:
    device = SimDevice()
    (finding,) = examine_routine(Faulty(device, "padding leaks"), of_sizes(device, (1, 2, 3)), [4], backend=SimBackend(device))
    assert finding.method == "forward_for_capture"
    assert "no sample has its own size" in finding.what
    assert "warm-up" not in finding.what
    assert "mask" in finding.fix


@pytest.mark.parametrize("sizes", ORDERS)
def test_a_mask_that_is_written_anew_passes(sizes: tuple[int, ...]) -> None:
    device = SimDevice()
    assert not examine_routine(Forgetful(device, "nothing"), of_sizes(device, sizes), [4], backend=SimBackend(device))


def test_a_number_that_was_baked_in_is_named() -> None:
    device = SimDevice()
    samples: list[Sample] = [(rows(device, 1.0, 2.0), 2.0), (rows(device, 3.0, 4.0), 2.0), (rows(device, 1.0, 2.0), 7.0)]
    (finding,) = examine_routine(BakedScalar(device), samples, [2], backend=SimBackend(device))
    assert finding.method == "resolve_runtime"
    assert "argument 1 (7.0 and 2.0)" in finding.what


def test_samples_that_can_show_nothing_are_refused() -> None:
    device = SimDevice()
    with pytest.raises(ConfigError, match="can show nothing"):
        check_routine(Faulty(device), [(rows(device, 1.0),), (rows(device, 1.0),)], [2], backend=SimBackend(device))


@pytest.mark.torch
def test_plain_torch_modules_are_examined_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 4)
    good: BucketedRoutine[..., Any] = BucketedRoutine(layer, lambda size: (torch.zeros(size, 4),))
    bad: BucketedRoutine[..., Any] = BucketedRoutine(_centred(layer), lambda size: (torch.zeros(size, 4),))
    samples: list[Sample] = [(torch.rand(size, 4),) for size in (1, 2, 4, 4)]
    with torch.no_grad():
        check_routine(good, samples, [4], tolerance=1e-5)
        (finding,) = examine_routine(bad, samples, [4], tolerance=1e-5)
    assert finding.method == "forward_for_capture"
    assert "padded positions" in finding.what


def _centred(layer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        y = layer(x)
        return y - y.mean(dim=0)

    return call
