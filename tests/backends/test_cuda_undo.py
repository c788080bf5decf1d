"""Failed captures on a device: after each, everything is as it was (F1-F6, I12), and what was there before still works."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.cuda import CudaBackend
from cgstate.backends.cuda import generator as default_generator
from cgstate.backends.cuda.graphs import CudaGraph
from cgstate.backends.cuda.pools import CudaPool
from cgstate.backends.cuda.streams import CudaStream
from cgstate.backends.undo import UndoLog
from cgstate.lifecycle.states import FailureKind

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # Those of torch on a graph that is reset inside a capture: breaking the capture is what the test is about.
    pytest.mark.filterwarnings("ignore:CUDA warning:UserWarning"),
]

MIB = 1 << 20


@dataclass
class Scene:
    backend: CudaBackend
    pool: CudaPool
    stream: CudaStream
    x: torch.Tensor
    foreign: torch.cuda.CUDAGraph

    def attempt(self, body: Callable[[], Any], mode: CaptureErrorMode = CaptureErrorMode.thread_local) -> Any:
        """Record as the runtime does it."""
        undo = UndoLog()
        self.backend.keep_generator(undo)
        try:
            graph = self.backend.open_capture(self.pool, self.stream, mode, undo)
            output = body()
            self.backend.close_capture(graph)
        except BaseException:
            undo.fail()
            assert undo.errors == []
            raise
        undo.succeed()
        return graph, output

    def good(self, factor: int) -> tuple[CudaGraph, torch.Tensor]:
        graph, output = self.attempt(lambda: (self.x * factor) + 1)
        return graph, output


def in_thread(act: Callable[[], Any]) -> BaseException | None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors[0] if errors else None


# -- what goes wrong ----------------------------------------------------------------------------------------------------


def work(scene: Scene) -> torch.Tensor:
    """Something worth losing: 64 MiB of temporaries, random numbers, a product."""
    y = scene.x * 2
    z = y + torch.randn(1, device=y.device)
    return z.view(-1, 1024)[:64] @ y.view(-1, 1024)[:64].T


def raises(scene: Scene) -> None:
    work(scene)
    raise ValueError("the routine's own")


def raises_at_once(scene: Scene) -> None:
    raise ValueError("the routine's own")


def raises_on_another_stream(scene: Scene) -> None:
    work(scene)
    torch.cuda.set_stream(torch.cuda.Stream())
    raise ValueError("the routine's own")


def raises_with_a_fork(scene: Scene) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        scene.x * 2
        raise ValueError("the routine's own")


def item(scene: Scene) -> None:
    work(scene).sum().item()


def item_swallowed(scene: Scene) -> None:
    with contextlib.suppress(RuntimeError):
        item(scene)


def out_of_memory(scene: Scene) -> None:
    work(scene)
    torch.empty(1 << 42, device=scene.x.device)


def unjoined(scene: Scene) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        scene.x * 2


def captured_event(scene: Scene) -> None:
    work(scene)
    mark = torch.cuda.Event()
    mark.record()
    mark.query()


def nested(scene: Scene) -> None:
    work(scene)
    scene.backend.open_capture(
        scene.backend.new_pool(), scene.backend.new_stream(exclusive=False), CaptureErrorMode.thread_local, UndoLog()
    )


def foreign_synchronize(scene: Scene) -> None:
    work(scene)
    assert in_thread(torch.cuda.synchronize) is not None
    work(scene)


def foreign_synchronize_at_the_end(scene: Scene) -> None:
    work(scene)
    assert in_thread(torch.cuda.synchronize) is not None


def foreign_reset(scene: Scene) -> None:
    work(scene)
    in_thread(scene.foreign.reset)
    work(scene)


def own_reset(scene: Scene) -> None:
    work(scene)
    scene.foreign.reset()
    work(scene)


M = CaptureErrorMode
CASES: list[tuple[Callable[[Scene], None], CaptureErrorMode, FailureKind | None]] = [
    (raises, M.thread_local, None),
    (raises, M.global_, None),
    (raises_at_once, M.thread_local, None),
    (raises_on_another_stream, M.thread_local, None),
    (raises_with_a_fork, M.thread_local, None),
    (item, M.thread_local, FailureKind.REJECTED),
    (item, M.global_, FailureKind.REJECTED),
    (item, M.relaxed, FailureKind.REJECTED),
    (item_swallowed, M.thread_local, FailureKind.FOREIGN),
    (out_of_memory, M.thread_local, FailureKind.OOM),
    (unjoined, M.thread_local, FailureKind.REJECTED),
    (captured_event, M.thread_local, FailureKind.REJECTED),
    (nested, M.thread_local, FailureKind.FOREIGN),
    (foreign_synchronize, M.thread_local, FailureKind.FOREIGN),
    (foreign_synchronize, M.global_, FailureKind.FOREIGN),
    (foreign_synchronize, M.relaxed, FailureKind.FOREIGN),
    (foreign_synchronize_at_the_end, M.thread_local, FailureKind.FOREIGN),
    (foreign_reset, M.global_, FailureKind.FOREIGN),
    (own_reset, M.thread_local, FailureKind.FOREIGN),
]


# -- the tests ----------------------------------------------------------------------------------------------------------


def make_foreign(x: torch.Tensor) -> torch.cuda.CUDAGraph:
    foreign = torch.cuda.CUDAGraph()
    with torch.cuda.graph(foreign):
        x * 3
    return foreign


def tidy(backend: CudaBackend) -> None:
    gc.collect()
    torch.cuda.synchronize()
    assert backend.clear_workspaces()
    backend.flush()


@pytest.mark.parametrize("live", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize(("body", "mode", "kind"), CASES, ids=[f"{body.__name__}-{mode.value}" for body, mode, _ in CASES])
def test_failure_leaves_everything_as_it_was(
    body: Callable[[Scene], None], mode: CaptureErrorMode, kind: FailureKind | None, live: bool
) -> None:
    backend = CudaBackend()
    tidy(backend)
    base = backend.footprint()
    scene = Scene(
        backend,
        backend.new_pool(),
        backend.new_stream(exclusive=True),
        torch.ones(8 * MIB, device=backend.device),
        torch.cuda.CUDAGraph(),
    )
    backend.prime_workspaces(scene.pool, scene.stream)
    torch.mm(scene.x.view(-1, 1024), torch.ones(1024, 1, device=backend.device))  # the default stream's workspace
    scene.foreign = make_foreign(scene.x)
    sibling = scene.good(5) if live else None

    # A graph that draws random numbers, recorded before, in a pool of its own: its draws have to go on as if nothing happened.
    other = Scene(backend, backend.new_pool(), scene.stream, scene.x, scene.foreign)
    numbers, drawn = other.attempt(partial(torch.randn, 16, device=backend.device))
    torch.manual_seed(4)
    state = torch.cuda.get_rng_state()
    next_eager = torch.randn(16, device=backend.device)
    torch.cuda.set_rng_state(state)
    torch.cuda.synchronize()

    uses = scene.pool.use_count()
    before = backend.footprint()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the kind's business
        scene.attempt(partial(body, scene), mode)
    assert backend.failure_kind(caught.value) is kind
    del caught
    gc.collect()

    # Everything that must be as before.
    after = backend.footprint()
    assert after.stream == before.stream
    assert after.generator == before.generator
    assert not after.capturing
    assert not scene.stream.capturing()
    assert scene.pool.use_count() == uses
    assert after.allocated <= before.allocated
    others = [pool_id for pool_id in before.pools if pool_id != scene.pool.id]
    assert {pool_id: after.pools.get(pool_id) for pool_id in others} == {pool_id: before.pools[pool_id] for pool_id in others}
    assert torch.equal(torch.randn(16, device=backend.device), next_eager)
    assert backend.lost() is None

    # The random graph follows the seed, bit for bit.
    torch.manual_seed(4)
    for _ in range(2):
        expected = torch.randn(16, device=backend.device)
        torch.manual_seed(4)
        numbers.replay()
        assert torch.equal(drawn, expected)
        torch.manual_seed(4)

    # The sibling is right, and the pool records again, as often as one likes.
    for factor in (2, 3, 4):
        graph, output = scene.good(factor)
        scene.x.fill_(factor)
        graph.replay()
        assert output[77].item() == factor * factor + 1
        if sibling is not None:
            sibling[0].replay()
            assert sibling[1][77].item() == 5 * factor + 1
        del output
        graph.destroy()
        assert scene.pool.use_count() == uses

    # Nothing is left in the end.
    for gone in (numbers, sibling[0] if sibling is not None else None):
        if gone is not None:
            gone.destroy()
    pools = (scene.pool, other.pool)
    scene.foreign.reset()
    stream = scene.stream
    del scene, other, sibling, numbers, drawn, graph, next_eager, expected
    for pool in pools:
        pool.drop()
    tidy(backend)
    torch.cuda.set_rng_state(state)
    end = backend.footprint()
    assert end.pools == base.pools
    assert end.reserved <= base.reserved
    assert end.allocated <= base.allocated
    stream.close()


@pytest.mark.parametrize("live", [False, True], ids=["own", "shared"])
def test_a_begin_that_torch_refuses(live: bool) -> None:
    """Somebody routes allocations to the pool: the one refusal that is not foreseen."""
    backend = CudaBackend()
    x = torch.ones(MIB, device=backend.device)
    scene = Scene(backend, backend.new_pool(), backend.new_stream(exclusive=True), x, torch.cuda.CUDAGraph())
    torch.cuda.synchronize()
    graph, _ = scene.good(2)  # so that it is not the anchor that is refused
    if not live:
        graph.destroy()
    uses, mark = scene.pool.use_count(), backend.generator_mark()
    assert scene.pool.mem_pool is not None
    with torch.cuda.use_mem_pool(scene.pool.mem_pool):
        with pytest.raises(RuntimeError, match="already recording") as caught:
            scene.attempt(lambda: work(scene))
        assert backend.failure_kind(caught.value) is FailureKind.FOREIGN
        assert scene.pool.use_count() == uses + 1  # the routing's own
        assert backend.generator_mark() == mark
    assert scene.pool.use_count() == uses
    assert backend.current_handle(backend.index) == 0
    torch.randn(4, device=x.device)
    for factor in (2, 3, 4):
        again, output = scene.good(factor)
        again.replay()
        assert output[3].item() == factor + 1
        again.destroy()
    graph.destroy()
    scene.pool.drop()
    scene.stream.close()


def test_a_begin_that_is_refused_to_the_anchor() -> None:
    backend = CudaBackend()
    x = torch.ones(MIB, device=backend.device)
    scene = Scene(backend, backend.new_pool(), backend.new_stream(exclusive=True), x, torch.cuda.CUDAGraph())
    torch.cuda.synchronize()
    assert scene.pool.mem_pool is not None
    with torch.cuda.use_mem_pool(scene.pool.mem_pool):
        with pytest.raises(RuntimeError, match="already recording"):
            scene.attempt(lambda: work(scene))
    assert scene.pool.use_count() == 1
    torch.randn(4, device=x.device)
    graph, output = scene.good(3)
    graph.replay()
    assert output[3].item() == 4
    graph.destroy()
    scene.pool.drop()
    scene.stream.close()


@pytest.mark.parametrize("body", [item, raises], ids=lambda body: body.__name__)
def test_failure_in_an_adopted_pool(body: Callable[[Scene], None]) -> None:
    backend = CudaBackend()
    x = torch.ones(8 * MIB, device=backend.device)
    torch.mm(x.view(-1, 1024), torch.ones(1024, 1, device=backend.device))
    stream = backend.new_stream(exclusive=True)
    foreign = torch.cuda.CUDAGraph()
    with torch.cuda.graph(foreign):
        theirs = x * 3
    pool = backend.adopt_pool(foreign.pool())
    backend.prime_workspaces(pool, stream)
    scene = Scene(backend, pool, stream, x, foreign)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    before = backend.footprint()
    with pytest.raises((RuntimeError, ValueError)):
        scene.attempt(lambda: body(scene))
    after = backend.footprint()
    assert (after.stream, after.generator, after.capturing) == (before.stream, before.generator, False)
    torch.randn(4, device=x.device)
    for factor in (2, 3):
        graph, output = scene.good(factor)
        graph.replay()
        assert output[3].item() == factor + 1
        graph.destroy()
        foreign.replay()
        assert theirs[3].item() == 3
    foreign.reset()
    stream.close()


def test_where_ending_again_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second road: everything but the pool's further use is put back, and the pool says so."""
    from cgstate.backends.cuda import capture
    from cgstate.errors import PoolRetired

    backend = CudaBackend()
    tidy(backend)
    base = backend.footprint()
    x = torch.ones(8 * MIB, device=backend.device)
    torch.mm(x.view(-1, 1024), torch.ones(1024, 1, device=backend.device))
    scene = Scene(backend, backend.new_pool(), backend.new_stream(exclusive=True), x, torch.cuda.CUDAGraph())
    backend.prime_workspaces(scene.pool, scene.stream)
    torch.cuda.synchronize()
    uses, mark = scene.pool.use_count(), backend.generator_mark()
    monkeypatch.setattr(capture.Capture, "_end_again", lambda self: None)
    undo = UndoLog()
    graph = backend.open_capture(scene.pool, scene.stream, CaptureErrorMode.thread_local, undo)
    with pytest.raises(RuntimeError):
        item(scene)
    undo.fail()
    del graph
    assert [name for name, _ in undo.errors] == ["release the pool"]
    assert "cannot record any more" in str(undo.errors[0][1])
    assert scene.pool.use_count() == uses
    assert backend.generator_mark() == mark
    assert not default_generator.stuck(0)
    torch.randn(4, device=x.device)
    monkeypatch.undo()
    with pytest.raises(PoolRetired, match="still record"):
        scene.good(2)
    pool = scene.pool
    del scene, x, undo
    pool.drop()
    tidy(backend)
    end = backend.footprint()
    assert (end.pools, end.reserved) == (base.pools, base.reserved)


@pytest.mark.parametrize("call", ["capture_begin", "capture_end"])
def test_an_interrupt_between_torch_and_us(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    backend = CudaBackend()
    x = torch.ones(8 * MIB, device=backend.device)
    scene = Scene(backend, backend.new_pool(), backend.new_stream(exclusive=True), x, torch.cuda.CUDAGraph())
    backend.prime_workspaces(scene.pool, scene.stream)
    scene.good(2)[0].destroy()
    uses, mark = scene.pool.use_count(), backend.generator_mark()
    real = getattr(torch.cuda.CUDAGraph, call)

    def interrupted(*args: Any, **options: Any) -> None:
        real(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, call, interrupted)
        undo = UndoLog()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - either of the two calls
            graph = backend.open_capture(scene.pool, scene.stream, CaptureErrorMode.thread_local, undo)
            work(scene)
            backend.close_capture(graph)
    undo.fail()
    assert undo.errors == []
    assert (scene.pool.use_count(), backend.generator_mark(), backend.current_handle(backend.index)) == (uses, mark, 0)
    torch.randn(4, device=x.device)
    for factor in (2, 3):
        again, output = scene.good(factor)
        again.replay()
        assert output[3].item() == factor + 1
        again.destroy()
    scene.pool.drop()
    scene.stream.close()
