"""Plain modules of torch under a manager on the simulator: nothing of the runtime knows that they are not on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

import cgstate
from cgstate.backends.sim import SimBackend
from cgstate.backends.sim.recorder.tensor import ArenaTensor

pytestmark = pytest.mark.torch

SIZES = (2, 4, 8)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 6)).eval().requires_grad_(False)


def routine(of: nn.Module) -> cgstate.BucketedRoutine[[Tensor], Tensor]:
    return cgstate.BucketedRoutine(of, lambda size: (torch.zeros(size, 6),), sizes=(16, 32, 64))


def padded(of: nn.Module, x: Tensor, size: int) -> Tensor:
    answer: Tensor = of(torch.cat([x, torch.zeros(size - len(x), 6)]))[: len(x)]
    return answer


@pytest.mark.parametrize("isolation", ["shared", "per_entry"])
@pytest.mark.parametrize("inference", [False, True])
def test_a_component_serves_lazily_and_evicts(isolation: str, inference: bool) -> None:
    backend, model = SimBackend(), module()
    manager = cgstate.GraphManager(backend, check=True)
    decoder = cgstate.Component("decoder", routine(model), SIZES, capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
    manager.prepare([decoder], {"decoder": {"max_extra_graphs": 1, "isolation": isolation}})
    with torch.inference_mode(inference):
        estimate = manager.profile_memory()
        assert estimate.trusted
        report = manager.capture_and_bind(progress=False)
        assert report.bound == {"decoder": 3}
        assert estimate.lower <= report.memory.total <= estimate.upper
        stream = backend.new_stream(exclusive=False)
        with backend.on_stream(stream):
            for length in (1, 2, 3, 5, 8, 10, 20, 12, 40):
                x = torch.randn(length, 6)
                size = min(size for size in (*SIZES, 16, 32, 64) if size >= length)
                answer = decoder(x)
                assert type(answer) is Tensor
                assert torch.equal(answer, padded(model, x, size)) or torch.equal(answer, model(x))
    counts = manager.stats().components["decoder"]
    assert counts.hits >= 5
    assert counts.captures > 3
    manager.close()
    assert not any(backend.footprint().pools.values())
    assert not manager.memory().total


def test_a_leased_output_lies_in_the_devices_memory_and_expires() -> None:
    model = module()
    manager = cgstate.GraphManager(SimBackend(), check=True)
    decoder = cgstate.LeasedComponent("decoder", routine(model), [4])
    manager.prepare([decoder], {"decoder": {}})
    manager.capture_and_bind(progress=False)
    x = torch.randn(4, 6)
    with decoder(x) as leased:
        assert isinstance(leased.value, ArenaTensor)
        assert torch.equal(leased.value.cpu(), model(x))
    with decoder(x * 2) as again:
        assert torch.equal(again.value.cpu(), model(x * 2))
    with pytest.raises(cgstate.OutputExpired):
        _ = leased.value
    manager.close()


def test_calls_that_autograd_would_record_are_eager() -> None:
    model = module().requires_grad_(True)
    manager = cgstate.GraphManager(SimBackend(), check=True)
    decoder = cgstate.Component("decoder", routine(model), [4])
    manager.prepare([decoder], {"decoder": {}})
    manager.capture_and_bind(progress=False)
    assert decoder(torch.randn(4, 6)).requires_grad
    with torch.no_grad():
        assert not decoder(torch.randn(4, 6)).requires_grad
    counts = manager.stats().components["decoder"]
    assert (counts.hits, sum(counts.fallbacks.values())) == (1, 1)
    manager.close()


AUTOCASTS = (None, torch.bfloat16, torch.float16)


@contextmanager
def autocast(to: torch.dtype | None) -> Iterator[None]:
    with torch.autocast("cpu", to or torch.bfloat16, enabled=to is not None):
        yield


@pytest.mark.parametrize("captured", AUTOCASTS)
@pytest.mark.parametrize("called", AUTOCASTS)
def test_a_graph_serves_calls_of_the_autocast_that_it_was_captured_under(
    captured: torch.dtype | None, called: torch.dtype | None
) -> None:
    model = nn.Linear(6, 6).requires_grad_(False)
    manager = cgstate.GraphManager(SimBackend(), check=True)
    decoder = cgstate.Component("decoder", routine(model), [4], capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
    manager.prepare([decoder], {"decoder": {"max_extra_graphs": 1}})
    with autocast(captured):
        manager.capture_and_bind(progress=False)
    x, longer = torch.randn(4, 6), torch.randn(16, 6)
    with autocast(called):
        answer, expected = decoder(x), model(x)
        assert answer.dtype is expected.dtype
        assert torch.equal(answer, expected)
        lazily = decoder(longer)
        assert lazily.dtype is expected.dtype, "it was captured as it is called"
        assert torch.equal(lazily, model(longer))
    counts = manager.stats().components["decoder"]
    assert dict(counts.fallbacks) == ({} if called is captured else {cgstate.Fallback.autocast: 1})
    assert counts.hits == (2 if called is captured else 1)
    manager.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_graph_that_is_captured_anew_under_another_autocast_in_the_midst_of_a_call_does_not_serve_it(sealed: bool) -> None:
    model = nn.Linear(6, 6).requires_grad_(False)
    manager = cgstate.GraphManager(SimBackend(), check=not sealed)
    decoder = cgstate.Component("decoder", routine(model), [4])
    manager.prepare([decoder])
    x = torch.randn(4, 6)
    with autocast(torch.bfloat16):
        manager.capture_and_bind(progress=False)
        assert decoder(x).dtype is torch.bfloat16
        caller = decoder.caller
        assert caller is not None
        ask = caller.thread_id

        def anew() -> None:
            manager.evict("decoder")
            manager.capture_and_bind(progress=False)
            decoder(x)

        def ask_late() -> int:
            caller.thread_id = ask
            other = Thread(target=anew)  # where there is no autocast
            other.start()
            other.join()
            return ask()

        caller.thread_id = ask_late  # right before the lock is taken
        answer = decoder(x)
        assert answer.dtype is torch.bfloat16
        assert torch.equal(answer, model(x))
    counts = manager.stats().components["decoder"]
    assert (counts.hits, dict(counts.fallbacks)) == (2, {cgstate.Fallback.autocast: 1})
    manager.close()


@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_does_not_read_the_weights_that_autocast_keeps_for_the_callers_block(kept: bool) -> None:
    model = nn.Linear(6, 6)  # autocast keeps what it has converted of weights that may have gradients
    manager = cgstate.GraphManager(SimBackend(), check=True)
    decoder = cgstate.Component("decoder", routine(model), [4])
    manager.prepare([decoder])
    x = torch.randn(4, 6)
    with torch.no_grad():
        with autocast(torch.bfloat16):
            if kept:
                model(x)
            manager.capture_and_bind(progress=False)
            assert torch.is_autocast_cache_enabled()
        with autocast(torch.bfloat16):
            assert torch.equal(decoder(x), model(x))
            model.weight.mul_(2)
        with autocast(torch.bfloat16):
            assert torch.equal(decoder(x), model(x)), "and it converts the weights at each replay"
    assert manager.stats().components["decoder"].hits == 2
    manager.close()


class Casting(nn.Linear):
    """Its autocast was made beforehand, as one that decorates a method, and keeps the weights that it has converted."""

    casting = torch.autocast("cpu", torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        with self.casting:
            return super().forward(x)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("outside", [None, torch.bfloat16])
def test_a_graph_does_not_read_the_weights_that_an_autocast_of_the_works_own_keeps(kept: bool, outside: torch.dtype | None) -> None:
    model = Casting(6, 6)
    manager = cgstate.GraphManager(SimBackend(), check=True)
    decoder = cgstate.Component("decoder", routine(model), [4])
    manager.prepare([decoder])
    x = torch.randn(4, 6)
    with torch.no_grad():
        expected = model(x)
        with autocast(outside):
            if kept:
                model(x)
            manager.capture_and_bind(progress=False)
            assert torch.equal(model(x), expected), "nor does the caller read the graph's, which nobody has written yet"
        for _ in range(2):
            with autocast(outside):
                assert torch.equal(decoder(x), model(x))
            model.weight.mul_(2)
    assert manager.stats().components["decoder"].hits == 2
    manager.close()


def test_a_recorded_block_does_not_read_the_weights_that_the_engines_warm_up_has_left_with_autocast() -> None:
    model = Casting(6, 6)
    backend = SimBackend()
    manager = cgstate.GraphManager(backend, check=True)
    x = backend.place(torch.randn(4, 6))
    answer = backend.place(torch.zeros(4, 6, dtype=torch.bfloat16))
    entry = manager.entry("decoder", 4)
    with torch.no_grad():
        with autocast(torch.bfloat16):
            model(x)
            with manager.transaction() as capturing, capturing.recording(entry):
                answer.copy_(model(x))
        model.weight.mul_(2)
        entry.replay()
        assert torch.equal(answer.cpu(), model(x).cpu())
    manager.close()


def test_a_graph_that_draws_answers_as_eager_does() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).requires_grad_(False)
    manager = cgstate.GraphManager(SimBackend(), check=True)
    decoder = cgstate.Component("decoder", routine(model), [4])
    manager.prepare([decoder], {"decoder": {}})
    torch.manual_seed(5)
    before = torch.get_rng_state()
    manager.profile_memory()
    manager.capture_and_bind(progress=False)
    assert torch.equal(torch.get_rng_state(), before), "profile, warm-up and capture cost the caller no random number"
    x = torch.randn(4, 6)
    for seed in range(2):
        torch.manual_seed(seed)
        answer = decoder(x)
        torch.manual_seed(seed)
        assert torch.equal(answer, model(x))
    manager.close()


class _Peeks(nn.Module):
    """Looks at a value in captures only, as code does that was written for eager."""

    def __init__(self, backend: SimBackend) -> None:
        super().__init__()
        self.backend = backend
        self.of = module()

    def forward(self, x: Tensor) -> Tensor:
        noisy = x + torch.rand_like(x) * 0
        if self.backend.capturing() and noisy.sum().item() > 0:
            return x
        y: Tensor = self.of(noisy)
        return y


def test_a_capture_that_fails_leaves_everything_as_it_was() -> None:
    backend = SimBackend()
    manager = cgstate.GraphManager(backend, check=True)
    broken = cgstate.Component("broken", routine(_Peeks(backend)), [4])
    sound = cgstate.Component("sound", routine(module()), [4])
    manager.prepare([sound, broken], {"sound": {}, "broken": {}})
    before = backend.footprint()
    with pytest.raises(cgstate.CaptureFailed, match="_local_scalar_dense") as failed:
        manager.capture_and_bind(progress=False)
    assert failed.value.kind == "REJECTED"
    after = backend.footprint()
    assert (after.stream, after.generator, after.capturing) == (before.stream, before.generator, False)
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    x = torch.randn(4, 6)
    assert torch.equal(broken(x), broken(x))
    assert (sound.state, broken.state) == ("EAGER", "FAILED")
    manager.close()


def test_low_level_entries_take_torch_functions() -> None:
    manager = cgstate.GraphManager(SimBackend(), check=True)
    static, model = torch.zeros(3, 6), module()
    entry = manager.entry("runner", 3)
    with manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: lambda: model(static))
    entry.replay()
    for _ in range(2):
        static.copy_(torch.randn(3, 6))
        with entry.lease() as lease:
            lease.replay()
            output = lease.output
            assert isinstance(output, Tensor)
            assert torch.equal(output.cpu(), model(static))
            del output
    manager.close()


@pytest.mark.parametrize("thorough", [False, True])
def test_torch_code_is_estimated_by_captures_alone(thorough: bool) -> None:
    """Run without being recorded it takes no memory of the simulated device."""
    model, sizes = module(), tuple(range(1, 30))
    manager = cgstate.GraphManager(SimBackend(), check=True)
    manager.prepare([cgstate.Component("decoder", routine(model), sizes)])
    estimate = manager.profile_memory(thorough=thorough)
    assert estimate.rehearsed == 0
    assert len(estimate.samples) == len(sizes) if thorough else len(estimate.samples) < len(sizes)
    comparison = manager.capture_and_bind(progress=False).comparison
    assert comparison is not None
    assert comparison.within
