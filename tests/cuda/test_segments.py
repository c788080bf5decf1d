"""Graphs of segments with eager breaks on a real device: right values, clean failures, and what sharing a stream saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cgstate
from cgstate import Break, run_eagerly

pytestmark = pytest.mark.cuda

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; run with `make test-cuda`", allow_module_level=True)

from benchmarks.sharing import shared_stream_saving  # noqa: E402 - these import torch's CUDA
from cgstate.backends.cuda import CudaBackend  # noqa: E402

WIDTH = 512


@pytest.fixture
def manager() -> Iterator[cgstate.GraphManager]:
    with cgstate.GraphManager(CudaBackend(), check=True, isolation="per_component") as manager:
        yield manager


@pytest.fixture
def weight() -> Any:
    return torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5


def three_segments(source: Any, weight: Any, between: Callable[[str], object] = lambda place: None) -> Callable[[], Any]:
    """A body with a matrix product in each segment and in each break; ``between`` is called at every place with its name."""

    def body() -> Any:
        between("segment 1")
        hidden = torch.tanh(source @ weight)
        mixed = torch.empty_like(hidden)

        def mix() -> None:
            between("break 1")
            mixed.copy_(torch.relu(hidden @ weight.t()))

        yield Break(mix, live={"hidden": hidden, "mixed": mixed})
        both = mixed @ weight + hidden
        between("segment 2")

        def halve() -> None:
            between("break 2")
            both.copy_((both @ weight) * 0.5)

        yield Break(halve)
        between("segment 3")
        return torch.tanh(both @ weight) + mixed

    return body


def test_three_segments_equal_eager_for_other_inputs(manager: cgstate.GraphManager, weight: Any) -> None:
    source = torch.zeros(64, WIDTH, device="cuda")
    body = three_segments(source, weight)
    entry = manager.entry("split", 1)
    with manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: body)
    for seed in range(10):
        source.copy_(torch.randn(64, WIDTH, generator=torch.Generator("cuda").manual_seed(seed), device="cuda"))
        with entry.lease() as lease:
            lease.replay()
            found = lease.output.clone()  # type: ignore[attr-defined]
        assert torch.equal(found, run_eagerly(body()))


def test_a_component_with_breaks_equals_eager_on_two_streams(manager: cgstate.GraphManager, weight: Any) -> None:
    routine = cgstate.BucketedRoutine(lambda x: three_segments(x, weight)(), lambda n: (torch.zeros(n, WIDTH, device="cuda"),))
    component = cgstate.Component("split", routine, [8, 64])
    manager.prepare([component])
    manager.capture_and_bind(progress=False)
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        for step in range(20):
            with torch.cuda.stream(streams[step % 2]):
                x = torch.randn(64 if step % 3 else 8, WIDTH, device="cuda")
                assert torch.equal(component(x), run_eagerly(three_segments(x, weight)()))
    assert manager.stats().components["split"].hits == 20


@pytest.mark.parametrize("kind", ["USER", "REJECTED", "OOM"])
@pytest.mark.parametrize("place", ["segment 2", "break 2"])
def test_a_failure_after_the_first_segment_leaves_the_footprint(
    manager: cgstate.GraphManager, weight: Any, place: str, kind: str
) -> None:
    source = torch.randn(64, WIDTH, device="cuda")
    if (place, kind) == ("break 2", "REJECTED"):
        pytest.skip("waiting for the device is allowed in a break")
    warm = manager.entry("warm", 1)  # libraries and the sibling's pool are there before anything is compared
    with manager.transaction() as transaction:
        transaction.capture(warm, lambda warmup: three_segments(source, weight))
    failing = False

    def spoil(at: str) -> None:
        if not failing or at != place:
            return
        match kind:
            case "USER":
                raise ValueError("boom")
            case "REJECTED":
                source.sum().item()
            case "OOM":
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    def make(warmup: bool) -> Callable[[], Any]:
        nonlocal failing
        failing = not warmup
        return three_segments(source, weight, spoil)

    entry = manager.entry("split", 1)
    torch.cuda.synchronize()
    manager.reclaim(flush=True)
    before = manager.backend.footprint()
    with pytest.raises(cgstate.CaptureFailed) as failure, manager.transaction() as transaction:
        transaction.capture(entry, make)
    assert (failure.value.kind, failure.value.cleanup) == (kind, ())
    torch.cuda.synchronize()
    manager.reclaim(flush=True)
    after = manager.backend.footprint()
    assert (after.stream, after.generator, after.capturing, after.pools) == (
        before.stream,
        before.generator,
        before.capturing,
        before.pools,
    )
    manager.forget_failures()
    with manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: three_segments(source, weight))
    for each in (entry, warm):
        with each.lease() as lease:
            lease.replay()
            assert torch.equal(lease.output, run_eagerly(three_segments(source, weight)()))


def test_sharing_the_capture_stream_saves_bytes_and_changes_no_value() -> None:
    weight = torch.randn(1024, 1024, device="cuda") / 32
    source = torch.randn(8192, 1024, device="cuda")

    def work(x: Any) -> Any:
        return torch.tanh(torch.relu(x @ weight) @ weight)

    with torch.no_grad():
        saving = shared_stream_saving(CudaBackend(), work, source.clone)
    assert saving.equal
    assert saving.saved >= source.nbytes


def test_sharing_is_refused_where_a_tensor_is_live_across_the_break(manager: cgstate.GraphManager, weight: Any) -> None:
    source = torch.randn(64, WIDTH, device="cuda")
    outer = manager.entry("outer", 1)
    manager.entry("inner", 1, inside="outer")

    def body() -> Any:
        hidden = source @ weight
        yield Break(lambda: None, name="attention")
        return hidden @ weight

    with manager.transaction() as transaction:
        with pytest.raises(cgstate.LiveAcrossBreak, match="live across attention"):
            transaction.capture(outer, lambda warmup: body)
    assert outer.state == "EAGER"
