"""The runtime on a real device: what only CUDA can show."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cgstate

pytestmark = pytest.mark.cuda

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; run with `make test-cuda`", allow_module_level=True)

from benchmarks import failures  # noqa: E402 - these import torch's CUDA
from cgstate.backends.cuda import CudaBackend  # noqa: E402

ROOT = Path(__file__).parents[2]
WIDTH = 1024


@pytest.fixture
def manager() -> Iterator[cgstate.GraphManager]:
    with cgstate.GraphManager(CudaBackend(), check=True) as manager:
        yield manager


def chain(source: Any, weight: Any, steps: int = 30) -> Callable[[bool], Callable[[], Any]]:
    """A graph with large temporaries in the pool, long enough for two of them to overlap on the device."""

    def body() -> Any:
        x = source
        for _ in range(steps):
            x = torch.tanh(x @ weight)
        return x

    return lambda warmup: body


def test_the_demonstration_passes() -> None:
    """In a process of its own: what other tests leave behind must not be taken for foreign graphs."""
    command = [sys.executable, "-W", "ignore", "-m", "cgstate", "demo", "--backend", "cuda", "--seed", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["result"]["check"]["by_graph"] > 100


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, object]]:
    """The whole matrix, in a process of its own: what other tests leave behind must not be taken for foreign graphs."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.failures"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_failed_capture_leaves_everything_as_before(outcomes: list[dict[str, object]]) -> None:
    assert len(outcomes) == 2 * len(failures.CASES)
    assert not [row for row in outcomes if not row["clean"]]


def test_two_threads_on_two_streams_replay_graphs_of_one_pool_and_stay_right(manager: cgstate.GraphManager) -> None:
    sources = [torch.randn(WIDTH, WIDTH, device="cuda") for _ in range(2)]
    weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5
    entries = [manager.entry("chain", index) for index in range(2)]
    with manager.transaction() as transaction:
        for entry, source in zip(entries, sources, strict=True):
            transaction.capture(entry, chain(source, weight))
    expected = [chain(source, weight)(False)() for source in sources]
    torch.cuda.synchronize()
    wrong: list[int] = []
    together = threading.Barrier(2)

    def serve(index: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(30):
                together.wait()
                with entries[index].lease() as lease:
                    lease.replay()
                stream.synchronize()
        together.wait()

    threads = [threading.Thread(target=serve, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, entry in enumerate(entries):
        entry.replay()
        with entry.lease() as lease:
            lease.replay()
            if not torch.equal(lease.output, expected[index]):
                wrong.append(index)
    assert not wrong


def autocast(enabled: bool) -> Any:
    return torch.autocast("cuda", torch.bfloat16, enabled=enabled)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_a_graph_serves_calls_under_its_own_autocast(manager: cgstate.GraphManager, captured: bool, called: bool) -> None:
    layer = torch.nn.Linear(256, 256).cuda()  # autocast keeps what it has converted of weights that may have gradients
    routine = cgstate.BucketedRoutine(layer, lambda n: (torch.zeros(n, 256, device="cuda"),))
    component = cgstate.Component("layer", routine, [8])
    manager.prepare([component])
    x = torch.randn(8, 256, device="cuda")
    with torch.no_grad():
        with autocast(captured):
            layer(x)
            manager.capture_and_bind(progress=False)
        taken = [torch.full((256, 256), 7.0, dtype=torch.bfloat16, device="cuda") for _ in range(8)]  # what autocast has let go of
        for _ in range(2):
            with autocast(called):
                answer, expected = component(x), layer(x)
            assert answer.dtype is expected.dtype
            assert torch.equal(answer, expected)
            layer.weight.mul_(2)
    counts = manager.stats().components["layer"]
    assert (counts.hits, counts.fallbacks.get(cgstate.Fallback.autocast, 0)) == ((2, 0) if called is captured else (0, 2))
    del taken


@pytest.mark.parametrize("outside", [False, True])
def test_a_graph_does_not_read_the_weights_that_an_autocast_of_the_works_own_keeps(
    manager: cgstate.GraphManager, outside: bool
) -> None:
    layer = torch.nn.Linear(256, 256).cuda()
    casting = torch.autocast("cuda", torch.bfloat16)  # made beforehand, as one that decorates a method, it keeps weights

    def work(x: Any) -> Any:
        with casting:
            return layer(x)

    routine = cgstate.BucketedRoutine(work, lambda n: (torch.zeros(n, 256, device="cuda"),))
    component = cgstate.Component("layer", routine, [8])
    manager.prepare([component])
    x = torch.randn(8, 256, device="cuda")
    with torch.no_grad():
        expected = work(x)
        with autocast(outside):
            work(x)
            manager.capture_and_bind(progress=False)
            assert torch.equal(work(x), expected), "nor does the caller read the graph's, which nobody has written yet"
        taken = [torch.full((256, 256), 7.0, dtype=torch.bfloat16, device="cuda") for _ in range(8)]  # what autocast has let go of
        for _ in range(2):
            with autocast(outside):
                assert torch.equal(component(x), work(x))
            layer.weight.mul_(2)
    assert manager.stats().components["layer"].hits == 2
    del taken


def test_component_calls_from_two_threads_and_streams_equal_eager() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda().requires_grad_(False)
    routine = cgstate.BucketedRoutine(layers, lambda n: (torch.zeros(n, 256, device="cuda"),))
    component = cgstate.Component("layers", routine, [8, 64, 512])
    with cgstate.GraphManager(CudaBackend(), check=True) as manager:
        manager.prepare([component])
        manager.capture_and_bind(progress=False)
        wrong: list[str] = []

        def serve(seed: int) -> None:
            stream = torch.cuda.Stream()
            generator = torch.Generator(device="cuda").manual_seed(seed)
            with torch.cuda.stream(stream), torch.no_grad():
                for step in range(60):
                    size = (8, 64, 512)[(seed + step) % 3]
                    x = torch.randn(size, 256, device="cuda", generator=generator)
                    if not torch.equal(component(x), layers(x)):
                        wrong.append(f"{seed} {step}")

        threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert manager.stats().components["layers"].hits == 120


def test_a_graph_that_draws_random_numbers_follows_the_seed_as_eager_does(manager: cgstate.GraphManager) -> None:
    entry = manager.entry("noise", 1)
    with manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: lambda: torch.randn(16, device="cuda"))
    torch.cuda.manual_seed(11)
    eager = torch.randn(16, device="cuda")
    torch.cuda.manual_seed(11)
    with entry.lease() as lease:
        lease.replay()
        assert torch.equal(lease.output, eager)


def test_capturing_does_not_move_the_callers_random_numbers(manager: cgstate.GraphManager) -> None:
    torch.cuda.manual_seed(5)
    expected = torch.randn(8, device="cuda")
    torch.cuda.manual_seed(5)
    with manager.transaction() as transaction:
        transaction.capture(manager.entry("noise", 1), lambda warmup: lambda: torch.randn(16, device="cuda"))
    assert torch.equal(torch.randn(8, device="cuda"), expected)


def test_an_evicted_entry_of_its_own_gives_its_bytes_back_and_the_others_stay_right() -> None:
    with cgstate.GraphManager(CudaBackend(), isolation="per_entry", check=True) as manager:
        source, weight = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda") / 16
        entries = [manager.entry("chain", index) for index in range(3)]
        with manager.transaction() as transaction:
            for entry in entries:
                transaction.capture(entry, chain(source, weight, 5))
        expected = chain(source, weight, 5)(False)()
        held = manager.memory().total
        manager.evict("chain", 0)
        assert manager.reclaim(flush=True).total < held
        sentinel = torch.full((32 << 20,), 7, dtype=torch.uint8, device="cuda")
        for entry in entries[1:]:
            with entry.lease() as lease:
                lease.replay()
                assert torch.equal(lease.output, expected)
        assert bool((sentinel == 7).all())
        with pytest.raises(cgstate.IllegalTransition):
            entries[0].replay()


def test_a_manager_dropped_without_close_leaves_no_pool_behind() -> None:
    backend = CudaBackend()
    before = set(backend.footprint().pools)
    manager = cgstate.GraphManager(backend)
    static = torch.zeros(64, device="cuda")
    with manager.transaction() as transaction:
        transaction.capture(manager.entry("a", 1), lambda warmup: lambda: static + 1)
    del manager, transaction
    gc.collect()
    with cgstate.GraphManager(backend) as second:
        with second.transaction() as transaction:
            transaction.capture(second.entry("a", 1), lambda warmup: lambda: static + 2)
        second.reclaim(flush=True)
    assert set(backend.footprint().pools) <= before


LOST = """
import torch, cgstate
from cgstate.backends.cuda import CudaBackend
manager = cgstate.GraphManager(CudaBackend())
routine = cgstate.BucketedRoutine(lambda x: x * 2, lambda n: (torch.zeros(n, device="cuda"),))
component = cgstate.Component("c", routine, [8])
manager.prepare([component])
manager.capture_and_bind(progress=False)
x = torch.zeros(8, device="cuda")
torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")]
try:
    torch.cuda.synchronize()
except RuntimeError:
    pass
try:
    component(x)
except (RuntimeError, cgstate.ManagerPoisoned):
    pass
assert manager.state == "POISONED", manager.state
for act in (lambda: component(x), manager.capture_and_bind, manager.profile_memory):
    try:
        act()
    except cgstate.ManagerPoisoned:
        continue
    raise SystemExit("answered on a dead context")
manager.close()
print("poisoned and closed")
"""


def test_a_lost_device_poisons_the_manager_and_close_still_works() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LOST], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "poisoned and closed" in done.stdout, done.stderr


def test_the_readme_example_runs() -> None:
    text = (ROOT / "README.md").read_text()
    example = text.split("```python\n", 1)[1].split("```", 1)[0]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", example], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "bytes at most" in done.stdout
