"""Torch tensors in the simulated device's memory, and memory outside it that graphs use."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from functools import partial

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.sim import SimConfig, SimPool, allocating_from
from cgstate.backends.sim.errors import SimMemoryError, SimOutOfMemory
from cgstate.errors import ConfigError
from tests.backends.torch_captures import Bench

pytestmark = pytest.mark.torch

KIB = 1024
_from_dlpack: Callable[[object], torch.Tensor] = torch.utils.dlpack.from_dlpack


def test_a_tensor_holds_a_block_until_its_last_view_is_gone() -> None:
    bench = Bench()
    before = bench.sim.allocated_bytes()
    x = bench.backend.place(torch.zeros(100))  # 400 bytes, in steps of 64
    view = x[10:].view(9, 10)
    assert bench.sim.allocated_bytes() == before + 448
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    del x
    assert bench.sim.allocated_bytes() == before + 448
    del view
    assert bench.sim.allocated_bytes() == before


def test_addresses_are_aligned_as_torchs_own() -> None:
    bench = Bench()
    odd = bench.sim.empty(3)  # a simulated neighbour of three cells
    tensors = [bench.backend.place(torch.zeros(length)) for length in (1, 5, 17)]
    assert [tensor.data_ptr() % 64 for tensor in tensors] == [0, 0, 0]
    del odd


def test_memory_comes_from_the_pool_that_allocations_go_to() -> None:
    bench = Bench()
    with bench.sim.on_stream(bench.stream), allocating_from(bench.pool):
        x = bench.backend.place(torch.zeros(4 * KIB // 4))
    assert bench.pool.reserved_bytes() == {bench.stream.handle: 20 * KIB}
    del x
    bench.pool.drop()
    assert bench.sim.flush() == 20 * KIB


def test_outputs_and_temporaries_of_a_capture_come_from_its_pool() -> None:
    bench = Bench()
    x = bench.backend.place(torch.zeros(4 * KIB))
    general = bench.sim.reserved_bytes()
    graph, y = bench.capture(lambda: (x + 1) * 2)
    assert bench.reserved() == bench.sim.reserved_bytes() - general == 2 * 16 * KIB  # large enough for segments of their own
    del y
    graph.destroy()
    bench.pool.drop()
    bench.sim.flush()
    assert bench.sim.reserved_bytes() == general


def test_the_device_runs_out_of_memory() -> None:
    bench = Bench(SimConfig(capacity_bytes=256 * KIB))
    x = bench.backend.place(torch.zeros(64 * KIB // 4))
    with pytest.raises(SimOutOfMemory):
        bench.backend.place(torch.zeros(512 * KIB // 4))

    def body() -> list[torch.Tensor]:
        return [x + index for index in range(5)]

    with pytest.raises(SimOutOfMemory):
        bench.capture(body)
    bench.pool.drop()
    gc.collect()  # the graph was in the frames of the error
    assert float(bench.backend.place(torch.ones(2)).sum()) == 2.0, "as after F6, all goes on"


def test_freed_memory_is_poisoned_in_stream_order() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    y = bench.backend.place(torch.zeros(2))
    graph, _ = bench.capture(partial(y.copy_, x))
    stale = x.untyped_storage().data_ptr() - y.untyped_storage().data_ptr()
    graph.replay()  # queued on the default stream, which x belongs to
    del x
    bench.sim.allocated_bytes()  # somebody comes in, and x is taken back
    assert y.tolist() == [1.0, 1.0], "what was queued before still sees the old values"
    with torch.no_grad():
        seen = y.as_strided((2,), (1,), y.storage_offset())
        assert seen.tolist() == [1.0, 1.0]
    again = bench.backend.place(torch.empty(2).fill_(3.0))
    assert again.data_ptr() - y.data_ptr() == stale
    assert again.tolist() == [3.0, 3.0], "poison that was still to come must not hit the next owner"


def test_poison_is_not_a_number() -> None:
    bench = Bench()
    with torch.no_grad():
        x = bench.backend.place(torch.ones(2))
        del x
        bench.sim.allocated_bytes()
        with bench.backend.allocating_mode():
            y = torch.empty(2)
        assert y.isnan().all()


def test_static_buffers_are_made_in_the_devices_memory() -> None:
    bench = Bench()
    mine = torch.zeros(4)
    with torch.inference_mode(), bench.backend.allocating_mode():
        made = [torch.zeros(4), torch.tensor([1, 2]), torch.arange(3) * 2, torch.empty(2, 3).t(), torch.randn(2)]
        outside = [mine, mine.view(2, 2), mine.add_(1)]
    assert all(type(tensor) is not torch.Tensor for tensor in made)
    assert all(type(tensor) is torch.Tensor for tensor in outside)
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in made)
    assert [tensor.tolist() for tensor in made[:3]] == [[0.0] * 4, [1, 2], [0, 2, 4]]
    assert made[3].stride() == (1, 3)
    assert bench.backend.nbytes(made) == 16 + 16 + 24 + 24 + 8
    made[0].fill_(3)
    assert made[0].tolist() == [3.0] * 4


def test_a_module_is_placed_with_its_ties() -> None:
    bench = Bench()
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    module[2].weight = module[0].weight
    want = [tensor.clone() for tensor in module.state_dict().values()]
    assert bench.backend.place(module) is module
    assert module[2].weight is module[0].weight
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in module.parameters())
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(module.state_dict().values(), want, strict=True))
    assert len({tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())}) == 8


def test_a_placed_module_learns_as_before() -> None:
    bench = Bench()
    module = torch.nn.Linear(2, 1)
    twin = copy.deepcopy(module)
    bench.backend.place(module)
    x = torch.ones(3, 2)
    for model in (module, twin):
        model(x).sum().backward()
    assert module.weight.grad is not None
    assert twin.weight.grad is not None
    assert torch.equal(module.weight.grad.cpu(), twin.weight.grad)


def test_only_tensors_and_modules_can_be_placed() -> None:
    with pytest.raises(ConfigError, match="placed"):
        Bench().backend.place([1.0])


def test_readers_wait_for_the_current_stream() -> None:
    bench = Bench()
    x = bench.backend.place(torch.zeros(2))
    graph, _ = bench.capture(lambda: x.add_(1))
    readers: list[Callable[[], object]] = [
        lambda: x.tolist(),
        lambda: x.cpu().tolist(),
        lambda: x.to("cpu").tolist(),
        lambda: [x[0].item(), float(x[1])],
        lambda: x.clone().tolist(),
        lambda: _from_dlpack(x).tolist(),
        lambda: pickle.loads(pickle.dumps(x)).tolist(),
        lambda: copy.deepcopy(x).tolist(),
        lambda: (x + 0).tolist(),
    ]
    for count, read in enumerate(readers):
        graph.replay()
        assert read() == [count + 1.0] * 2, count
    graph.replay()
    assert "10." in repr(x)
    assert f"{x[0]:.1f}" == "10.0"


def test_a_copy_to_the_host_is_a_copy() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    copies = [x.cpu(), x.to("cpu"), x.to("cpu", torch.float64), bench.backend.clone(x)]
    stays = x.to(x.device)
    x.fill_(5)
    assert [copied.tolist() for copied in copies] == [[1.0, 1.0]] * 4
    assert stays.tolist() == [5.0, 5.0]
    assert type(copy.deepcopy(x)) is type(x)


def test_weights_outside_that_were_freed_are_noticed() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    graph, y = bench.capture(partial(torch.mul, x, weight))
    graph.replay()
    assert y.tolist() == [1.0, 1.0]
    kept = weight.detach()
    del weight
    graph.replay()  # somebody still holds the memory
    del kept
    with pytest.raises(SimMemoryError, match=r"aten::mul.*Parameter \(2,\)"):
        graph.replay()


def test_weights_of_which_only_the_storage_is_held_are_alive() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    weight = torch.full((2,), 3.0)
    kept = bench.backend.storage(weight)
    graph, y = bench.capture(partial(torch.mul, x, weight))
    del weight
    graph.replay()
    assert y.tolist() == [3.0, 3.0]
    del kept
    with pytest.raises(SimMemoryError):
        graph.replay()


def test_several_graphs_over_one_weight_do_not_keep_each_other_content() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    weight = torch.ones(2)
    graphs = [bench.capture(partial(torch.mul, x, weight.view(2)))[0] for _ in range(3)]
    for graph in graphs:
        graph.replay()
    del weight
    for graph in graphs:
        with pytest.raises(SimMemoryError):
            graph.replay()


def test_weights_that_moved_are_noticed() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(2))
    weight = torch.ones(2)
    graph, _ = bench.capture(lambda: x * weight)
    weight.resize_(100_000)
    with pytest.raises(SimMemoryError):
        graph.replay()


def test_without_the_sanitizer_freed_weights_stay_silent() -> None:
    bench = Bench(SimConfig(sanitize=False))
    x = bench.backend.place(torch.ones(2))
    weight = torch.full((2,), 3.0)
    graph, y = bench.capture(partial(torch.mul, x, weight))
    del weight
    graph.replay()
    assert y.tolist() == [3.0, 3.0]


def test_a_graph_over_plain_memory_has_run_when_its_launch_returns() -> None:
    bench = Bench()
    inputs, outputs = torch.zeros(2), torch.zeros(2)
    graph, _ = bench.capture(lambda: outputs.copy_(inputs + 1))
    for value in (1.0, 2.0):
        inputs.fill_(value)  # at once, not in stream order
        graph.replay()
        inputs.fill_(-100.0)
        assert outputs.tolist() == [value + 1] * 2


def test_a_graph_over_parameters_and_arena_memory_is_asynchronous() -> None:
    bench = Bench()
    module = torch.nn.Linear(2, 2).requires_grad_(False)
    x = bench.backend.place(torch.ones(2, 2))
    graph, y = bench.capture(lambda: module(x))
    graph.replay()
    assert bench.sim.step(), "there is still something to run"
    assert torch.equal(y.cpu(), module(x.cpu()))


def test_replays_leave_nothing_behind() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(4))
    graph, _ = bench.capture(lambda: (x * 2).cumsum(0))

    def count(replays: int) -> int:
        for _ in range(replays):
            graph.replay()
            bench.sim.synchronize()
        gc.collect()
        return len(gc.get_objects())

    settled = count(50)
    assert count(500) <= settled


def test_a_dropped_device_takes_its_memory_along() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(4))
    pool: SimPool | None = bench.pool
    del bench
    assert x.tolist() == [1.0] * 4, "a tensor keeps its device"
    del x, pool


def test_static_values_of_other_kinds_are_refused() -> None:
    bench, other = Bench(), Bench()
    bench.backend.check_static([torch.zeros(2), bench.backend.place(torch.zeros(2))])
    with pytest.raises(ConfigError, match="meta"):
        bench.backend.check_static(torch.empty(2, device="meta"))
    with pytest.raises(ConfigError, match="sparse"):
        bench.backend.check_static(torch.zeros(2).to_sparse())
    with pytest.raises(ConfigError, match=other.sim.name):
        bench.backend.check_static(other.backend.place(torch.zeros(2)))
