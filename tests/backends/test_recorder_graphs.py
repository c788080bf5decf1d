"""What a graph of torch operations is: baked addresses and values, memory that is used again, kernels that run later."""

from __future__ import annotations

import threading
from functools import partial
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import Drawn, SimConfig, SimGraph, SimTensor, kernels
from cgstate.backends.sim.errors import SimAcceleratorError, SimMemoryError
from tests.backends.torch_captures import Bench, equal

pytestmark = pytest.mark.torch


def test_a_capture_computes_nothing() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(4))
    total = bench.backend.place(torch.zeros(4))
    graph, _ = bench.capture(lambda: total.add_(x))
    assert total.tolist() == [0.0] * 4
    graph.replay()
    graph.replay()
    assert total.tolist() == [2.0] * 4


def test_a_replay_reads_what_lies_at_the_static_address_now() -> None:
    bench = Bench()
    x = bench.backend.place(torch.zeros(3))
    graph, y = bench.capture(lambda: x * 2)
    address = y.data_ptr()
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value] * 3
        assert y.data_ptr() == address


def test_an_output_is_overwritten_by_the_next_replay() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    graph, y = bench.capture(lambda: x + 1)
    graph.replay()
    kept, copied = y, bench.backend.clone(y)
    x.fill_(7)
    graph.replay()
    assert kept.tolist() == [8.0, 8.0]
    assert copied.tolist() == [2.0, 2.0]


def test_python_values_are_baked_in() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    baked = {"factor": 3.0, "steps": 2}

    def body() -> torch.Tensor:
        y = x
        for _ in range(int(baked["steps"])):
            y = y * baked["factor"]
        return y

    graph, y = bench.capture(body)
    baked.update(factor=100.0, steps=1)
    graph.replay()
    assert y.tolist() == [9.0, 9.0]


def test_a_number_of_the_host_is_baked_in() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    graph, y = bench.capture(lambda: x * torch.tensor(4.0))
    for _ in range(2):
        graph.replay()
        assert y.tolist() == [4.0, 4.0]


def test_temporaries_of_a_capture_share_an_address() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2048))
    addresses = []

    def body() -> torch.Tensor:
        y = x
        for _ in range(8):
            y = y + 1  # the one before the last is free again
            addresses.append(y.data_ptr())
        return y

    graph, y = bench.capture(body)
    assert len(addresses) == 8
    assert len(set(addresses)) == 2
    graph.replay()
    assert y.tolist() == [9.0] * 2048


def test_graphs_of_one_pool_use_the_same_memory() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(64, 64))
    first, a = bench.capture(lambda: (x + 1) * 2)
    after_one = bench.reserved()
    at = a.data_ptr()
    del a
    second, b = bench.capture(lambda: (x + 2) * 2)
    assert b.data_ptr() == at
    assert bench.reserved() == after_one
    second.replay()
    first.replay()
    assert b.tolist()[0][0] == 4.0, "the first graph writes where the second one's output lies"


def test_overlapping_replays_of_one_pool_corrupt_each_other() -> None:
    bench = Bench()
    sim = bench.sim
    x = bench.backend.place(torch.ones(64))
    other = sim.new_stream(exclusive=True)
    first, a = bench.capture(lambda: (x + 1) * 10)
    a_at = a.data_ptr()
    del a
    second, b = bench.capture(lambda: (x + 2) * 10)
    assert b.data_ptr() == a_at
    with sim.on_stream(other):
        second.replay()
    first.replay()  # on the default stream: nothing orders the two
    sim.synchronize()
    assert b.tolist() != [30.0] * 64


def test_a_replay_on_arena_memory_runs_when_the_device_gets_there() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    y = bench.backend.place(torch.zeros(2))
    graph, _ = bench.capture(lambda: y.copy_(x))
    with bench.sim.on_stream(bench.stream):
        graph.replay()
    assert y.tolist() == [0.0, 0.0], "another stream does not wait for it"
    bench.sim.synchronize()
    assert y.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_every_device_schedule_gives_the_same_answer_in_one_stream(seed: int) -> None:
    bench = Bench(schedule=Drawn(Random(seed)))
    x = bench.backend.place(torch.zeros(8))
    graph, y = bench.capture(lambda: torch.softmax(x.view(2, 4), -1).cumsum(0))
    for value in range(3):
        x.copy_(torch.arange(8.0) * value)
        graph.replay()
        assert equal(y, torch.softmax((torch.arange(8.0) * value).view(2, 4), -1).cumsum(0))


def test_views_share_memory_and_cost_no_kernel() -> None:
    bench = Bench()
    x = bench.backend.place(torch.arange(12.0))

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        matrix = x.view(3, 4)
        return matrix.t(), matrix[1:, ::2].unsqueeze(0)

    graph, (a, b) = bench.capture(body)
    assert graph.nodes == 0
    x.mul_(2)
    assert equal(a, (torch.arange(12.0) * 2).view(3, 4).t())
    assert equal(b, (torch.arange(12.0) * 2).view(3, 4)[1:, ::2].unsqueeze(0))


def test_in_place_operations_give_the_same_tensor() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(4))
    seen = []

    def body() -> torch.Tensor:
        y = x.clone()
        seen.append(y.add_(1) is y)
        seen.append(torch.mul(y, 2, out=y) is y)
        y[1:3].zero_()
        y[0] = 5
        return y

    graph, y = bench.capture(body)
    graph.replay()
    assert seen == [True, True]
    assert y.tolist() == [5.0, 0.0, 0.0, 4.0]


def test_a_key_value_cache_is_filled_in_place() -> None:
    bench = Bench()
    cache = bench.backend.place(torch.zeros(4, 2))
    slot = bench.backend.place(torch.zeros(1, dtype=torch.int64))
    key = bench.backend.place(torch.zeros(1, 2))
    graph, total = bench.capture(lambda: cache.index_copy_(0, slot, key).sum(0))
    for at in (2, 0):
        slot.fill_(at)
        key.fill_(at + 1.0)
        graph.replay()
    assert cache.tolist() == [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0], [0.0, 0.0]]
    assert total.tolist() == [4.0, 4.0]


def test_lists_and_several_results() -> None:
    bench = Bench()
    x = bench.backend.place(torch.zeros(2, 6))

    def body(x: torch.Tensor) -> object:
        values, indices = x.topk(2)
        return torch.cat([x, values], 1), torch.stack(x.split(2, 1)), indices, [part * 2 for part in x.unbind()]

    graph, outputs = bench.capture(lambda: body(x))
    data = torch.randn(2, 6)
    x.copy_(data)
    graph.replay()
    assert equal(outputs, body(data))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.complex64]
)
def test_types(dtype: torch.dtype) -> None:
    bench = Bench()
    data = torch.arange(6).view(2, 3).to(dtype)
    x = bench.backend.place(torch.zeros(2, 3, dtype=dtype))
    graph, outputs = bench.capture(lambda: (x * x + 1, x.t().contiguous(), x == x.flip(0)))
    x.copy_(data)
    graph.replay()
    assert equal(outputs, (data * data + 1, data.t().contiguous(), data == data.flip(0)))


@pytest.mark.parametrize("inference", [False, True])
def test_factories_are_kernels(inference: bool) -> None:
    bench = Bench()

    def body() -> tuple[torch.Tensor, ...]:
        return torch.zeros(3), torch.full((2,), 7), torch.arange(4), torch.ones(2, 2).triu(), torch.empty(2).fill_(1)

    with torch.inference_mode(inference):
        graph, outputs = bench.capture(body)
        for output in outputs:
            output.fill_(9)
        graph.replay()
        assert equal(outputs, body())


def test_a_side_stream_takes_part() -> None:
    bench = Bench()
    sim = bench.sim
    side = sim.new_stream(exclusive=True)
    x = bench.backend.place(torch.ones(4))

    def body() -> torch.Tensor:
        side.wait(sim.current_stream().record())
        with sim.on_stream(side):
            y = x * 2
        z = x * 3
        sim.current_stream().wait(side.record())
        return y + z

    graph, y = bench.capture(body)
    graph.replay()
    assert y.tolist() == [5.0] * 4


def test_work_on_another_stream_of_the_capturing_thread_is_eager() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    seen = []

    def body() -> torch.Tensor:
        with bench.sim.on_stream(bench.sim.default_stream):
            seen.append((x * 2, torch.zeros(2)))
        return x + 1

    graph, _ = bench.capture(body)
    assert graph.nodes == 1
    assert [type(tensor) for tensor in seen[0]] == [torch.Tensor, torch.Tensor]
    assert torch.equal(seen[0][0], torch.full((2,), 2.0))


def test_another_thread_may_take_part_in_a_relaxed_capture_and_end_it() -> None:
    bench = Bench()
    sim, x = bench.sim, bench.backend.place(torch.ones(2))
    graph = SimGraph(sim)
    outputs: list[torch.Tensor] = []

    def elsewhere() -> None:
        with torch.no_grad(), sim.on_stream(bench.stream):
            outputs.append(torch.cat([x]) * 2)
            graph.capture_end()

    with torch.no_grad(), sim.on_stream(bench.stream):
        graph.capture_begin(bench.pool.id, CaptureErrorMode.relaxed)
        outputs.append(x + 1)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    graph.replay()
    assert [output.tolist() for output in outputs] == [[2.0, 2.0], [2.0, 2.0]]
    assert type(torch.zeros(2)) is torch.Tensor, "this thread records no longer"
    bench.capture(lambda: x + 1)
    assert _get_current_dispatch_mode_stack() == []


def test_modes_of_the_user_survive_a_capture_that_ends_inside_them() -> None:
    class Counting(TorchDispatchMode):
        seen = 0

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    with torch.no_grad(), Counting() as outer:
        graph = SimGraph(bench.sim)
        bench.sim.set_stream(bench.stream)
        graph.capture_begin(bench.pool.id, CaptureErrorMode.relaxed)
        with Counting() as inner:
            y = x + 1
            graph.capture_end()
            bench.sim.set_stream(bench.sim.default_stream)
            torch.zeros(2)
        torch.zeros(2)
    assert (outer.seen, inner.seen) == (2, 2)
    graph.replay()
    assert y.tolist() == [2.0, 2.0]


def test_of_compiled_code_the_operations_are_recorded_that_it_was_compiled_from() -> None:
    compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend="eager")
    bench = Bench()
    inputs, x = torch.ones(2), bench.backend.place(torch.ones(2))
    compiled(inputs)
    graph, y = bench.capture(lambda: compiled(inputs))
    assert graph.nodes == 2
    inputs.add_(1)
    graph.replay()
    assert equal(y, torch.tanh(inputs) * 2)
    with bench.backend.recording_mode():  # as a warm-up does
        assert equal(compiled(x), torch.tanh(torch.ones(2)) * 2)


def test_simulated_kernels_and_torch_meet_in_one_graph() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    a = bench.sim.tensor([1.0, 2.0])

    def body() -> tuple[torch.Tensor, SimTensor]:
        return x + 1, kernels.scale(a, 3)

    graph, (y, b) = bench.capture(body)
    graph.replay()
    assert y.tolist() == [2.0, 2.0]
    assert b.tolist() == [3.0, 6.0]


def test_a_graph_whose_memory_was_given_back_is_noticed() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    graph, _ = bench.capture(partial(torch.mul, x, 2))
    del x
    with pytest.raises(SimMemoryError, match="aten::mul"):
        graph.replay()


def test_without_the_sanitizer_it_reads_what_lies_there_now() -> None:
    bench = Bench(SimConfig(sanitize=False))
    x = bench.backend.place(torch.ones(2))
    at = x.data_ptr()
    graph, y = bench.capture(partial(torch.mul, x, 2))
    del x
    other = bench.backend.place(torch.full((2,), 50.0))
    assert other.data_ptr() == at
    graph.replay()
    assert y.tolist() == [100.0, 100.0]


def test_an_index_out_of_range_loses_the_context() -> None:
    bench = Bench()
    table = bench.backend.place(torch.zeros(4, 2))
    index = bench.backend.place(torch.tensor([0]))
    graph, _ = bench.capture(lambda: torch.nn.functional.embedding(index, table))
    index.fill_(99)
    graph.replay()
    with pytest.raises(SimAcceleratorError, match="710"):
        bench.sim.synchronize()


def test_writes_to_memory_that_overlaps_are_refused_as_eager_refuses_them() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(4))

    def body() -> torch.Tensor:
        with pytest.raises(RuntimeError, match="single memory location"):
            x.expand(2, 4).add_(1)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].add_(x[:-1])
        x[:1].expand(3).fill_(7)  # idempotent, and so allowed
        return x[2:].mul_(x[:2])

    graph, y = bench.capture(body)
    graph.replay()
    assert x.tolist() == [7.0, 1.0, 7.0, 1.0]
    assert equal(y, torch.tensor([7.0, 1.0]))


def test_wrong_shapes_raise_an_error_of_torch_and_harm_nothing() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2, 3))

    def body() -> torch.Tensor:
        with pytest.raises(RuntimeError, match=r"reduction dim|cannot be multiplied"):
            x @ x
        return x + 1

    graph, y = bench.capture(body)
    graph.replay()
    assert y.tolist() == [[2.0] * 3] * 2
