"""The backend on a device, where nothing fails: streams, pools, workspaces, graphs, values."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import cgstate
from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.cuda import CudaBackend, pools
from cgstate.backends.cuda.graphs import CudaGraph
from cgstate.backends.cuda.pools import CudaPool, workspaces_of
from cgstate.backends.cuda.streams import CudaStream
from cgstate.backends.undo import UndoLog
from cgstate.errors import CaptureActive, ConfigError, PoolRetired

pytestmark = pytest.mark.cuda

MIB = 1 << 20


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    made = CudaBackend()
    tidy(made)
    yield made
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    tidy(made)


def tidy(backend: CudaBackend) -> None:
    gc.collect()
    backend.clear_workspaces()
    backend.flush()


def record(backend: CudaBackend, pool: CudaPool, stream: CudaStream, body: Callable[[], Any]) -> tuple[CudaGraph, Any]:
    undo = UndoLog()
    try:
        graph = backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
        output = body()
        backend.close_capture(graph)
    except BaseException:
        undo.fail()
        raise
    undo.succeed()
    return graph, output


def in_thread(act: Callable[[], Any]) -> Any:
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(act())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]


# -- the device ---------------------------------------------------------------------------------------------------------


def test_device_names() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert CudaBackend().device == CudaBackend("cuda").device == "cuda:0"
    assert CudaBackend(0).device == CudaBackend("cuda:0").device == "cuda:0"
    for wrong in (99, -1, "cuda:99", "cpu", "nonsense"):
        with pytest.raises(ConfigError):
            CudaBackend(wrong)


def test_footprint_of_nothing_is_stable(backend: CudaBackend) -> None:
    assert backend.footprint() == backend.footprint()
    assert backend.lost() is None


def test_generator_mark_sees_draws_and_nothing_else(backend: CudaBackend) -> None:
    torch.manual_seed(3)
    mark = backend.generator_mark()
    torch.ones(4, device=backend.device).sum()
    assert backend.generator_mark() == mark
    undo = UndoLog()
    backend.keep_generator(undo)
    torch.randn(4, device=backend.device)
    assert backend.generator_mark() != mark
    undo.succeed()
    assert backend.generator_mark() == mark


def test_modes(backend: CudaBackend) -> None:
    with torch.inference_mode(), backend.allocating_mode():
        assert not torch.zeros(1, device=backend.device).is_inference()
        assert not torch.is_grad_enabled()
    with torch.inference_mode(), backend.recording_mode():
        assert torch.zeros(1, device=backend.device).is_inference()
    with backend.recording_mode():
        assert not backend.grad_enabled()
        assert not torch.is_inference_mode_enabled()


# -- streams ------------------------------------------------------------------------------------------------------------


def test_exclusive_streams_are_nobody_else_s(backend: CudaBackend) -> None:
    torchs = {torch.cuda.Stream().cuda_stream for _ in range(64)}
    ours = [backend.new_stream(exclusive=True) for _ in range(8)]
    handles = {stream.handle for stream in ours}
    assert len(handles) == 8
    assert not handles & torchs
    closed = ours[0].handle
    ours[0].close()
    ours[0].close()
    again = [backend.new_stream(exclusive=True) for _ in range(2)]
    assert [stream.handle for stream in again].count(closed) == 1
    for stream in ours[1:] + again:
        stream.close()


def test_a_stream_of_torch_is_not_given_back(backend: CudaBackend) -> None:
    stream = backend.new_stream(exclusive=False)
    stream.close()
    fresh = backend.new_stream(exclusive=True)
    assert fresh.handle != stream.handle
    fresh.close()


def test_current_stream_and_handle(backend: CudaBackend) -> None:
    stream = backend.new_stream(exclusive=True)
    assert backend.current_handle(backend.index) == backend.current_stream().handle == 0
    with backend.on_stream(stream):
        assert backend.current_handle(backend.index) == backend.current_stream().handle == stream.handle
    assert backend.current_handle(backend.index) == 0
    stream.close()


def test_adopting_streams(backend: CudaBackend) -> None:
    mine = torch.cuda.Stream()
    adopted = backend.adopt_stream(mine)
    assert adopted.handle == mine.cuda_stream
    assert backend.adopt_stream(adopted) is adopted
    for wrong in (torch.cuda.default_stream(), 17, None, "stream"):
        with pytest.raises(ConfigError):
            backend.adopt_stream(wrong)


def test_events_order_streams(backend: CudaBackend) -> None:
    first, second = backend.new_stream(exclusive=True), backend.new_stream(exclusive=True)
    cell = torch.zeros(1, device=backend.device)
    torch.cuda.synchronize()
    with backend.on_stream(first):
        torch.cuda._sleep(50_000_000)
        cell.fill_(7)
    mark = first.record()
    assert not mark.done()
    second.wait(mark)
    with backend.on_stream(second):
        copied = cell.clone()
    second.synchronize()
    assert mark.done()
    assert copied.item() == 7
    mark.synchronize()
    first.close()
    second.close()


def test_footprint_inside_a_capture(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(8, device=backend.device)
    torch.cuda.synchronize()

    def body() -> torch.Tensor:
        inside = backend.footprint()
        assert inside.capturing
        assert inside.stream == stream.handle
        return x * 2

    graph, _ = record(backend, pool, stream, body)
    graph.destroy()
    pool.drop()
    stream.close()


def test_capturing_is_asked_without_harm(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(8, device=backend.device)
    torch.cuda.synchronize()

    def body() -> torch.Tensor:
        assert backend.capturing()
        assert stream.capturing()
        assert in_thread(stream.capturing) is True  # a fresh thread has no context
        assert in_thread(backend.capturing) is False
        assert backend.lost() is None
        assert in_thread(backend.lost) is None
        with pytest.raises(CaptureActive):
            stream.synchronize()
        return x * 2

    assert not stream.capturing()
    graph, y = record(backend, pool, stream, body)
    assert not stream.capturing()
    graph.replay()
    assert y.tolist() == [2.0] * 8
    graph.destroy()
    pool.drop()
    stream.close()


# -- graphs and pools ---------------------------------------------------------------------------------------------------


def test_record_replay_destroy_leaves_nothing(backend: CudaBackend) -> None:
    x = torch.ones(4 * MIB, device=backend.device)
    torch.cuda.synchronize()
    base = backend.footprint()
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    assert pool.use_count() == 1
    graph, y = record(backend, pool, stream, lambda: ((x * 2) + 1) * 3)
    assert pool.use_count() == 2
    assert set(pool.reserved_bytes()) == {stream.handle}
    assert sum(pool.reserved_bytes().values()) >= 32 * MIB
    assert backend.footprint().pools[pool.id] == sum(pool.reserved_bytes().values())
    x.fill_(2)
    graph.replay()
    assert y[5].item() == 15
    graph.destroy()
    graph.destroy()
    with pytest.raises(RuntimeError):
        graph.replay()
    assert pool.use_count() == 1
    del y
    pool.drop()
    pool.drop()
    assert pool.use_count() == 0
    assert backend.flush() >= 32 * MIB
    assert pool.reserved_bytes() == {}
    assert backend.footprint() == base
    with pytest.raises(PoolRetired):
        backend.open_capture(pool, stream, CaptureErrorMode.thread_local, UndoLog())
    stream.close()


def test_asking_for_one_pool_s_segments_leaves_the_numbers_of_its_id_alone(backend: CudaBackend) -> None:
    """torch drops references to them that it does not own, and the process crashes when ids are past Python's cached integers."""
    number = int("123456")
    before = sys.getrefcount(number)
    for _ in range(10):
        pools.segments(backend.index, (0, number))
    assert sys.getrefcount(number) == before


def test_capture_again_after_the_last_graph_is_gone(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(MIB, device=backend.device)
    torch.cuda.synchronize()
    sizes = []
    for round_ in range(4):
        graph, y = record(backend, pool, stream, partial(torch.mul, x, round_))
        graph.replay()
        assert y[0].item() == round_
        del y
        graph.destroy()
        if round_ == 2:
            backend.flush()
        assert pool.use_count() == 1
        sizes.append(sum(pool.reserved_bytes().values()))
        torch.randn(4, device=backend.device)
    assert len(set(sizes)) == 1
    pool.drop()
    stream.close()


def test_graphs_share_a_pool(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(4 * MIB, device=backend.device)
    torch.cuda.synchronize()
    graphs = [record(backend, pool, stream, partial(lambda n: (x[: n * MIB] * 2 + 1).sum(), n)) for n in (4, 2, 1)]
    assert pool.use_count() == 4
    for (graph, y), n in zip(graphs, (4, 2, 1), strict=True):
        graph.replay()
        assert y.item() == 3 * n * MIB
    for graph, _ in graphs:
        graph.destroy()
    pool.drop()
    stream.close()


@pytest.mark.parametrize("width", [1, 5])
def test_random_numbers_replay_as_eager_draws_them(backend: CudaBackend, width: int) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(64, device=backend.device)
    torch.manual_seed(1)
    mark = backend.generator_mark()
    graph, y = record(
        backend,
        pool,
        stream,
        lambda: torch.stack([torch.nn.functional.dropout(x) + torch.randn(64, device=x.device) for _ in range(width)]),
    )
    assert backend.generator_mark() == mark
    torch.manual_seed(9)
    eager = [
        torch.stack([torch.nn.functional.dropout(x) + torch.randn(64, device=x.device) for _ in range(width)]) for _ in range(3)
    ]
    after = torch.randn(4, device=x.device)
    torch.manual_seed(9)
    for expected in eager:
        graph.replay()
        assert torch.equal(y, expected)
    assert torch.equal(torch.randn(4, device=x.device), after)
    graph.destroy()
    pool.drop()
    stream.close()


def test_handles_that_are_forgotten_inside_a_capture_do_not_break_it(backend: CudaBackend) -> None:
    x = torch.ones(MIB, device=backend.device)
    torch.cuda.synchronize()
    base = backend.footprint()
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    other = backend.new_pool()
    forgotten: list[Any] = [other, *record(backend, other, stream, lambda: x * 2)]
    del other

    def body() -> torch.Tensor:
        forgotten.clear()
        gc.collect()
        return x * 3

    graph, y = record(backend, pool, stream, body)
    graph.replay()
    assert y[0].item() == 3
    del y
    graph.destroy()
    pool.drop()
    backend.flush()
    assert backend.footprint() == base
    stream.close()


def test_destroy_inside_a_capture_is_put_off(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(MIB, device=backend.device)
    torch.cuda.synchronize()
    old, _ = record(backend, pool, stream, lambda: x * 2)

    def body() -> torch.Tensor:
        old.destroy()
        assert pool.use_count() == 3
        return x * 3

    graph, y = record(backend, pool, stream, body)
    assert pool.use_count() == 2
    graph.replay()
    assert y[0].item() == 3
    graph.destroy()
    pool.drop()
    stream.close()


def test_foreign_graphs_are_seen(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(MIB, device=backend.device)
    torch.cuda.synchronize()
    graph, _ = record(backend, pool, stream, lambda: x * 2)
    assert not backend.has_foreign_graphs(frozenset({pool.id}))
    assert backend.has_foreign_graphs(frozenset())
    foreign = torch.cuda.CUDAGraph()
    with torch.cuda.graph(foreign):
        kept = x * 3
    assert backend.has_foreign_graphs(frozenset({pool.id}))
    del kept
    foreign.reset()
    backend.flush()
    assert not backend.has_foreign_graphs(frozenset({pool.id}))
    graph.destroy()
    pool.drop()
    assert not backend.has_foreign_graphs(frozenset())  # dropped, but its bytes are still cached
    stream.close()


def test_adopting_pools(backend: CudaBackend) -> None:
    stream = backend.new_stream(exclusive=True)
    x = torch.ones(MIB, device=backend.device)
    torch.cuda.synchronize()
    foreign = torch.cuda.CUDAGraph()
    with torch.cuda.graph(foreign):
        theirs = x * 3
    pool = backend.adopt_pool(foreign.pool())
    assert pool.use_count() is None
    backend.prime_workspaces(pool, stream)
    graph, y = record(backend, pool, stream, lambda: x * 2)  # type: ignore[arg-type]
    graph.replay()
    assert y[0].item() == 2
    foreign.replay()
    assert theirs[0].item() == 3
    graph.destroy()
    pool.drop()
    foreign.replay()
    assert theirs[0].item() == 3
    mem_pool = torch.cuda.MemPool()
    assert backend.adopt_pool(mem_pool).use_count() == 1
    assert backend.adopt_pool(mem_pool).id == mem_pool.id
    for wrong in ((0, 0), "pool", 3, None, (1, 2, 3)):
        with pytest.raises(ConfigError):
            backend.adopt_pool(wrong)
    foreign.reset()
    stream.close()


def test_an_open_capture_of_anybody_is_respected(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(8, device=backend.device)
    torch.cuda.synchronize()
    foreign = torch.cuda.CUDAGraph()
    with torch.cuda.graph(foreign):
        undo = UndoLog()
        with pytest.raises(CaptureActive):
            backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
        undo.fail()
        assert undo.errors == []
        with pytest.raises(CaptureActive):
            CudaBackend()
        kept = x * 3
    foreign.replay()
    assert kept.tolist() == [3.0] * 8

    def body() -> torch.Tensor:
        undo = UndoLog()
        with pytest.raises(CaptureActive):
            backend.open_capture(backend.new_pool(), backend.new_stream(exclusive=False), CaptureErrorMode.relaxed, undo)
        undo.fail()
        with pytest.raises(CaptureActive):
            backend.prime_workspaces(pool, stream)
        refused = in_thread(lambda: backend.open_capture(pool, stream, CaptureErrorMode.relaxed, UndoLog()))
        assert isinstance(refused, CaptureActive)
        return x * 2

    graph, y = record(backend, pool, stream, body)
    graph.replay()
    assert y.tolist() == [2.0] * 8
    foreign.reset()
    graph.destroy()
    pool.drop()
    stream.close()


def test_the_work_may_leave_another_stream_current(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    x = torch.ones(8, device=backend.device)
    torch.cuda.synchronize()

    def body() -> torch.Tensor:
        y = x * 2
        torch.cuda.set_stream(torch.cuda.Stream())
        return y

    graph, y = record(backend, pool, stream, body)
    assert backend.current_handle(backend.index) == 0
    graph.replay()
    assert y.tolist() == [2.0] * 8
    graph.destroy()
    pool.drop()
    stream.close()


def test_an_empty_graph_is_warned_of_and_works(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    with pytest.warns(UserWarning, match="empty"):
        graph, _ = record(backend, pool, stream, lambda: None)
    graph.replay()
    graph.destroy()
    # The same where warnings are errors: then torch's own end of the capture seems to have failed.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="empty"):
            record(backend, pool, stream, lambda: None)
    assert pool.use_count() == 1
    torch.randn(4, device=backend.device)
    graph, _ = record(backend, pool, stream, lambda: torch.ones(4, device=backend.device))
    graph.destroy()
    pool.drop()
    stream.close()


# -- workspaces ---------------------------------------------------------------------------------------------------------


def test_workspaces_are_made_inside_the_pool(backend: CudaBackend) -> None:
    x = torch.ones(64, 64, device=backend.device)
    torch.cuda.synchronize()
    base = backend.footprint()
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    backend.prime_workspaces(pool, stream)
    first = pool.reserved_bytes()[stream.handle]
    assert first >= 8 * MIB
    backend.prime_workspaces(pool, stream)
    assert pool.reserved_bytes()[stream.handle] == first
    assert pool.use_count() == 1
    graph, y = record(backend, pool, stream, lambda: torch.nn.functional.linear(x, x, x[0]))
    graph.replay()
    assert y[0, 0].item() == 65
    assert pool.reserved_bytes()[stream.handle] == first
    graph.destroy()
    del y
    pool.drop()
    assert backend.clear_workspaces()
    backend.flush()
    assert backend.footprint() == base
    stream.close()


def test_every_thread_has_workspaces_of_its_own(backend: CudaBackend) -> None:
    pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
    backend.prime_workspaces(pool, stream)
    first = pool.reserved_bytes()[stream.handle]
    assert in_thread(lambda: backend.prime_workspaces(pool, stream)) is None
    assert pool.reserved_bytes()[stream.handle] >= first + 8 * MIB
    pool.drop()
    stream.close()


@pytest.mark.parametrize("library", ["cublas", "cublaslt"])
def test_a_workspace_from_elsewhere_is_never_cleared_under_a_pool(backend: CudaBackend, library: str) -> None:
    pool, stream = backend.new_pool(), backend.adopt_stream(torch.cuda.Stream())
    x = torch.ones(64, 64, device=backend.device)
    torch.cuda.synchronize()
    with backend.on_stream(stream):
        torch.mm(x, x) if library == "cublas" else torch.nn.functional.linear(x, x, x[0])
    backend.prime_workspaces(pool, stream)
    assert library in {workspace[-1] for workspace, born_inside in workspaces_of[pool.id].items() if not born_inside}
    assert not backend.clear_workspaces()
    pool.drop()
    assert backend.clear_workspaces()


# -- values -------------------------------------------------------------------------------------------------------------


def test_what_torch_negates_or_conjugates_later_is_cloned_and_copied_as_it_reads(backend: CudaBackend) -> None:
    x = torch.randn(8, 4, dtype=torch.complex64, device=backend.device)
    lazily = x.conj().imag, x.real, x.conj(), x
    assert [part.is_neg() for part in lazily[:2]] == [True, False]
    for copied, part in zip(backend.clone(lazily), lazily, strict=True):
        torch.testing.assert_close(copied, part, rtol=0, atol=0)
        assert copied.data_ptr() != part.data_ptr()

    def model(a: Any, b: Any) -> Any:
        return a - 2 * b

    routine = cgstate.BucketedRoutine(model, lambda n: tuple(torch.zeros(n, 4, device=backend.device) for _ in range(2)))
    with cgstate.GraphManager(backend) as manager:
        net = cgstate.Component("net", routine, [8])
        manager.prepare([net])
        manager.capture_and_bind(progress=False)
        torch.testing.assert_close(net(*lazily[:2]), model(*lazily[:2]), rtol=0, atol=0)
        assert manager.stats().components["net"].hits == 1


def test_clone_runs_on_the_current_stream(backend: CudaBackend) -> None:
    stream = backend.new_stream(exclusive=True)
    x = torch.zeros(MIB, device=backend.device)
    outputs = x, {"a": [x[:2]]}
    backend.clone(outputs)  # loads its kernels, for which the device may have to be idle
    torch.cuda.synchronize()
    with backend.on_stream(stream):
        torch.cuda._sleep(500_000_000)
        x.fill_(3)
        copied, nested = backend.clone(outputs)
        mark = stream.record()
    assert not mark.done()
    mark.synchronize()
    assert copied[7].item() == 3
    assert nested["a"][0].tolist() == [3.0, 3.0]
    assert backend.nbytes((x, x[1:], copied)) == 8 * MIB
    assert backend.requires_grad([x.clone().requires_grad_()])
    assert not backend.requires_grad([x])
    stream.close()
