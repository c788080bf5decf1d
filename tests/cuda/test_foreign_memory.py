"""Memory that is not ours, on a real device: pinned addresses, residency, and the host engine's pool."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import cgstate

pytestmark = pytest.mark.cuda

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; run with `make test-cuda`", allow_module_level=True)

from cgstate.backends.cuda import CudaBackend  # noqa: E402 - imports torch's CUDA

WIDTH = 256


@pytest.fixture
def backend() -> CudaBackend:
    return CudaBackend()


@pytest.fixture
def manager(backend: CudaBackend) -> Iterator[cgstate.GraphManager]:
    with cgstate.GraphManager(backend, check=True) as manager:
        yield manager


def random(rows: int) -> Any:
    return torch.randn(rows, WIDTH, device="cuda")


def test_a_tensor_whose_data_was_swapped_is_refused_before_the_launch(manager: cgstate.GraphManager) -> None:
    x, weight = random(8), random(WIDTH)
    entry = manager.entry("low", 1)
    with manager.transaction() as tx:
        output = tx.capture(entry, lambda warmup: lambda: x @ weight, pinned=[weight])
    entry.replay()
    right = x @ weight
    assert torch.equal(output, right)
    old = weight.data
    weight.data = random(WIDTH)
    with pytest.raises(cgstate.StaleBinding, match=r"pinned\[0\]"):
        entry.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, right)
    assert entry.state == "BOUND"
    weight.data = old
    entry.replay()


def test_memory_that_only_the_graph_knows_is_not_given_to_anybody_else(manager: cgstate.GraphManager) -> None:
    def capture() -> Any:
        static = torch.full((64, WIDTH), 3.0, device="cuda")
        with manager.transaction() as tx:
            return tx.capture(manager.entry("low", 1), lambda warmup: lambda: static * 2)

    output = capture()
    gc.collect()
    sentinels = [torch.full((64, WIDTH), -1.0, device="cuda") for _ in range(16)]
    manager.entry("low", 1).replay()
    assert torch.equal(output, torch.full_like(output, 6.0))
    assert all(bool((sentinel == -1).all()) for sentinel in sentinels)


def test_a_pinned_input_is_read_where_it_is(manager: cgstate.GraphManager) -> None:
    kv = random(16)

    def call(kv: Any, x: Any) -> Any:
        return x + kv[: x.shape[0]]

    routine: cgstate.BucketedRoutine[..., Any] = cgstate.BucketedRoutine(
        call, lambda n: (kv, torch.zeros(n, WIDTH, device="cuda")), pinned=[0]
    )
    net = cgstate.Component("net", routine, [4, 8])
    manager.prepare([net])
    manager.capture_and_bind(progress=False)
    with torch.no_grad():
        for rows in (3, 4, 8):
            kv.normal_()
            x = random(rows)
            assert torch.equal(net(kv, x), call(kv, x))
        with pytest.raises(cgstate.StaleBinding, match="input 0"):
            net(kv.clone(), random(4))
    assert manager.stats().components["net"].hits == 3


def test_a_suspended_cache_may_be_given_back_and_come_back_elsewhere(manager: cgstate.GraphManager) -> None:
    cache = {"kv": random(1024)}

    def call(x: Any) -> Any:
        for _ in range(50):
            x = x + cache["kv"].mean(0)
        return x

    routine: cgstate.BucketedRoutine[..., Any] = cgstate.BucketedRoutine(call, lambda n: (torch.zeros(n, WIDTH, device="cuda"),))
    net = cgstate.Component("net", routine, [4, 8], dependencies=["kv"])
    manager.prepare([net])
    manager.capture_and_bind(progress=False)
    before = manager.memory().total
    with torch.no_grad():
        x = random(4)
        net(x)
        manager.suspend("kv")
        assert torch.cuda.current_stream().query(), "the device is done with what reads it"
        del cache["kv"]
        with pytest.raises(cgstate.NotResident, match="kv"):
            net(x)

        def restore() -> None:
            cache["kv"] = random(2048)

        assert manager.resume("kv", restore=restore, moved=True) == 2
        torch.testing.assert_close(net(x), call(x))
        manager.capture_and_bind(progress=False)
        torch.testing.assert_close(net(x), call(x))
    assert manager.memory().total == before
    assert manager.stats().components["net"].captures == 4


class Engine:
    """A host engine that has a graph in a global pool."""

    def __init__(self) -> None:
        self.source = random(256)
        self.weight = random(WIDTH) / WIDTH**0.5
        torch.mm(self.source, self.weight)
        self.pool = torch.cuda.graph_pool_handle()
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, pool=self.pool):
            self.output = torch.tanh(self.source @ self.weight) @ self.weight
        self.graph.replay()
        torch.cuda.synchronize()
        self.right = self.output.clone()

    def check(self) -> None:
        self.output.zero_()
        self.graph.replay()
        assert torch.equal(self.output, self.right)


def test_the_engines_pool_serves_both_and_outlives_our_graphs(backend: CudaBackend) -> None:
    engine = Engine()
    layer = torch.nn.Linear(WIDTH, WIDTH).cuda().requires_grad_(False)
    net = cgstate.Component("net", cgstate.BucketedRoutine(layer, lambda n: (torch.zeros(n, WIDTH, device="cuda"),)), [8, 64])
    with cgstate.GraphManager(backend, check=True, pool=engine.pool, isolation="foreign") as manager:
        manager.prepare([net])
        manager.capture_and_bind(progress=False)
        for _ in range(2):
            for rows in (5, 8, 60):
                x = random(rows)
                torch.testing.assert_close(net(x), layer(x))
                engine.check()
            report = manager.memory()
            assert 0 < report.pools["foreign"] <= report.foreign["foreign"]
            manager.evict("net")
            manager.reclaim(flush=True)
            sentinels = [torch.full((256, WIDTH), -1.0, device="cuda") for _ in range(16)]
            engine.check()
            assert all(bool((sentinel == -1).all()) for sentinel in sentinels)
            manager.capture_and_bind(progress=False)
    engine.check()
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again, pool=engine.pool):
        kept = engine.source * 2
    again.replay()
    assert torch.equal(kept, engine.source * 2)


def test_a_pool_that_its_engine_let_go_is_named_and_the_generator_is_unharmed(backend: CudaBackend) -> None:
    engine = Engine()
    entry_input = random(4)
    with cgstate.GraphManager(backend, check=True, pool=engine.pool, isolation="foreign") as manager:
        engine.graph.reset()
        with pytest.raises(cgstate.CaptureFailed) as failure, manager.transaction() as tx:
            tx.capture(manager.entry("low", 1), lambda warmup: lambda: entry_input * 2)
        assert isinstance(failure.value.__cause__, cgstate.PoolRetired)
        torch.randn(4, device="cuda")
    del engine


def test_a_mem_pool_of_the_engines_is_taken_as_well(backend: CudaBackend) -> None:
    mem_pool = torch.cuda.MemPool()
    x = random(4)
    with cgstate.GraphManager(backend, check=True, pool=mem_pool, isolation="foreign") as manager:
        entry = manager.entry("low", 1)
        with manager.transaction() as tx:
            output = tx.capture(entry, lambda warmup: lambda: x * 2)
        entry.replay()
        assert torch.equal(output, x * 2)
        manager.evict("low")
        torch.cuda.synchronize()
        manager.reclaim(flush=True)
        assert mem_pool.use_count() == 1


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
def test_captures_beside_a_graph_of_others_hold_no_more_and_are_estimated(backend: CudaBackend, isolation: str) -> None:
    weight, bias, x = random(WIDTH), random(1)[0], random(8)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x @ weight  # its workspace is in no private pool
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        theirs = x @ weight
    graph.replay()
    right = theirs.clone()

    def model(x: Any) -> Any:
        return torch.nn.functional.linear(torch.relu(x @ weight), weight, bias)

    net = cgstate.Component("net", cgstate.BucketedRoutine(model, lambda n: (random(n),)), [16, 64, 256])
    inputs = [random(16), random(64), random(256)]
    with cgstate.GraphManager(backend, isolation=isolation, check=True) as manager, torch.no_grad():
        manager.prepare([net])
        manager.profile_memory()
        comparison = manager.capture_and_bind(progress=False).comparison
        assert comparison is not None
        assert comparison.within, str(comparison)
        assert comparison.ratio <= 1.10
        held = manager.memory().total
        for _ in range(4):
            manager.evict("net")
            manager.reclaim(flush=True)
            sentinels = [torch.full((1 << 18,), -1.0, device="cuda") for _ in range(64)]
            manager.capture_and_bind(progress=False)
            assert manager.memory().total == held
            for each in inputs:
                torch.testing.assert_close(net(each), model(each), rtol=0, atol=0)
            graph.replay()
            assert torch.equal(theirs, right)
            assert all(bool((sentinel == -1).all()) for sentinel in sentinels)
