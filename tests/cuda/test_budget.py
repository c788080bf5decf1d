"""The byte budget on a real device: never exceeded; refusals leave nothing, and survivors of evictions stay right (W2)."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import cgstate

pytestmark = pytest.mark.cuda

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; run with `make test-cuda`", allow_module_level=True)

from cgstate.backends.cuda import CudaBackend  # noqa: E402 - it imports torch's CUDA

WIDTH, FIRST, SIZES = 512, 8, (16, 32, 64, 128)
MIB = 1 << 20


class Exact(cgstate.BucketedRoutine[..., Any]):
    """Every call wants the graph of its own size: eager then has the very same shapes."""

    def resolve_runtime(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[int]
    ) -> cgstate.Resolution[int]:
        return super().resolve_runtime(args, kwargs, available & {args[0].shape[0]})  # type: ignore[attr-defined]


class Serving:
    """A few linear layers, one startup graph, each graph in a pool of its own; larger sizes by misses."""

    def __init__(self, **keys: Any) -> None:
        gc.collect()
        torch.cuda.empty_cache()  # what other tests left must not be taken for graphs of somebody else's
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda().requires_grad_(False)
        routine = Exact(self.layers, lambda n: (torch.zeros(n, WIDTH, device="cuda"),), sizes=SIZES)
        self.component = cgstate.Component("layers", routine, [FIRST], capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
        self.manager = cgstate.GraphManager(CudaBackend(), isolation="per_entry", check=True)
        self.manager.prepare([self.component], {"layers": {"max_extra_graphs": "unbounded", **keys}})
        self.manager.capture_and_bind(progress=False)

    def ask(self, size: int) -> None:
        """A call whose answer equals eager; the device is idle afterwards."""
        x = torch.randn(size, WIDTH, device="cuda")
        assert torch.equal(self.component(x), self.layers(x)), size
        torch.cuda.synchronize()

    @property
    def stats(self) -> cgstate.ComponentStats:
        return self.manager.stats().components["layers"]


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving(thrash_protection=False)
    yield made
    made.manager.close()


def test_what_is_held_never_exceeds_the_budget_and_survivors_stay_right_over_freed_memory(serving: Serving) -> None:
    budget = 3 * serving.manager.memory().total + 3 * MIB  # all of these graphs fit into the same few segments
    serving.manager.set_budget(budget)
    sentinels: list[Any] = []
    for number in range(24):
        serving.ask(SIZES[number % len(SIZES)])
        assert serving.manager.memory().total <= budget
        sentinels.append(torch.full((8 * MIB,), number % 251, dtype=torch.uint8, device="cuda"))  # over what was freed, if anything
        for size in sorted(serving.component.available_descriptors):  # type: ignore[type-var]
            serving.ask(int(str(size)))
        assert all(bool((sentinel == index % 251).all()) for index, sentinel in enumerate(sentinels))
    assert serving.stats.evicted.get(cgstate.Eviction.budget, 0) >= 2
    assert FIRST in serving.component.available_descriptors


def test_a_refused_recording_leaves_everything_as_before_and_is_not_made_again(serving: Serving) -> None:
    backend = serving.manager.backend
    x = torch.randn(16, WIDTH, device="cuda")
    expected = serving.layers(x)
    serving.manager.set_budget(serving.manager.memory().total + MIB)
    serving.manager.forget_failures()  # also what the smaller graph cost, from which this refusal would be foreseen
    serving.manager.reclaim(flush=True)
    before = backend.footprint()
    assert torch.equal(serving.component(x), expected)
    torch.cuda.synchronize()
    serving.manager.reclaim(flush=True)
    after = backend.footprint()
    assert (after.stream, after.generator, after.capturing, after.pools) == (
        before.stream,
        before.generator,
        before.capturing,
        before.pools,
    )
    for _ in range(3):
        serving.ask(16)
    assert serving.stats.failures == {cgstate.FailureKind.BUDGET: 1}
    assert serving.stats.fallbacks[cgstate.Fallback.budget] == 4
    serving.manager.set_budget(None)
    serving.ask(16)
    assert serving.component.available_descriptors == {FIRST, 16}


def test_an_explicit_capture_over_the_budget_binds_nothing_and_says_what_it_needs(serving: Serving) -> None:
    budget = serving.manager.memory().total + MIB
    serving.manager.set_budget(budget)
    entry = serving.manager.entry("low", 1)
    source = torch.zeros(8 * MIB, device="cuda")
    with pytest.raises(cgstate.CaptureFailed) as failed, serving.manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: lambda: source + 1)
    cause = failed.value.__cause__
    assert failed.value.kind == cgstate.FailureKind.BUDGET
    assert isinstance(cause, cgstate.BudgetExceeded)
    assert cause.need >= 32 * MIB
    assert cause.budget == budget < cause.have + cause.need
    assert serving.manager.memory().total <= budget
    serving.ask(FIRST)


def test_two_graphs_that_fight_for_the_bytes_of_one_capture_ever_more_rarely() -> None:
    serving = Serving()
    with serving.manager:
        serving.manager.set_budget(2 * serving.manager.memory().total + 2 * MIB)
        for number in range(200):
            serving.ask(SIZES[2 + number % 2])
        assert serving.stats.captures <= 2 + 2 * 7
        assert serving.stats.fallbacks[cgstate.Fallback.not_admitted] > 0
