"""The capture-failure matrix: break a capture in every way people have met, then look whether everything is as before (I12)."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

import cgstate
from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.cuda import CudaBackend

SIZE = 256
GROWTH = 64 << 20
HUGE = 1 << 40

Body = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to break a capture.

    Attributes:
        name: What is done.
        spoil: Done inside the body, after it allocated `GROWTH` bytes.
        kinds: The failure kinds that are right; empty where the capture must succeed.
        mode: The capture's error mode.
        fresh_thread: Capture in a new thread, whose library handles do not exist yet (fact F8).
    """

    name: str
    spoil: Callable[[Tensor], object]
    kinds: frozenset[str]
    mode: CaptureErrorMode = CaptureErrorMode.thread_local
    fresh_thread: bool = False


@dataclass(slots=True)
class Outcome:
    """What was seen after one case in one kind of pool."""

    case: str
    pool: str
    mode: str
    kind: str
    checks: dict[str, bool] = field(default_factory=dict)
    stranded_bytes: int = 0

    @property
    def clean(self) -> bool:
        """Everything as before."""
        return all(self.checks.values())

    def row(self) -> dict[str, object]:
        """For the evidence file."""
        return {
            "case": self.case,
            "pool": self.pool,
            "mode": self.mode,
            "kind": self.kind,
            "stranded_bytes": self.stranded_bytes,
            "clean": self.clean,
            **self.checks,
        }


def _raise(x: Tensor) -> None:
    raise ValueError("the body raises")


def _out_of_memory(x: Tensor) -> Tensor:
    return torch.empty(HUGE, dtype=torch.uint8, device=x.device)


def _nested(x: Tensor) -> None:
    graph = torch.cuda.CUDAGraph()
    _bystanders.append(graph)
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        x.add_(0)  # in place: torch would leak what a failed inner capture allocates (fact F4)


def _foreign_reset(x: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what is done on purpose here
        _bystanders[-1].reset()


_bystanders: list[torch.cuda.CUDAGraph] = []


def _stock_bystander() -> None:
    graph, static = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        static.add_(1)
    _bystanders.append(graph)


def _elsewhere(act: Callable[[], object]) -> Callable[[Tensor], None]:
    """Run ``act`` in another thread, and wait for it; what it raises there is its own affair."""

    def spoil(x: Tensor) -> None:
        def run() -> None:
            try:
                act()
            except RuntimeError:
                return  # the bystander is hurt as well: facts T4, S2

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    return spoil


def _cases() -> Iterator[Case]:
    user, rejected, foreign = frozenset({"USER"}), frozenset({"REJECTED"}), frozenset({"FOREIGN"})
    yield Case("exception in the body", _raise, user)
    yield Case(".item()", lambda x: x.sum().item(), rejected)
    yield Case("out of memory", _out_of_memory, frozenset({"OOM"}))
    yield Case("nested capture", _nested, rejected | foreign)
    yield Case("reset of another graph", _foreign_reset, foreign)
    for mode in CaptureErrorMode:
        yield Case("another thread synchronises the device", _elsewhere(torch.cuda.synchronize), foreign, mode)
    launch = _elsewhere(lambda: torch.zeros(1, device="cuda").cpu())
    yield Case("another thread copies to the host", launch, foreign, CaptureErrorMode.global_)
    yield Case("another thread copies to the host", launch, frozenset(), CaptureErrorMode.thread_local)
    yield Case("another thread copies to the host", launch, frozenset(), CaptureErrorMode.relaxed)
    yield Case("cuBLAS not warmed", lambda x: x.view(16, 16) @ x.view(16, 16), frozenset(), fresh_thread=True)


CASES = tuple(_cases())


def run(case: Case, *, shared: bool) -> Outcome:
    """Run one case; the pool has a live sibling in it if ``shared``."""
    isolation = cgstate.Isolation.shared if shared else cgstate.Isolation.per_entry
    manager = cgstate.GraphManager(CudaBackend(), isolation=isolation, capture_error_mode=case.mode)
    outcome = Outcome(case.name, "shared" if shared else "own", case.mode, "none")
    static = torch.zeros(SIZE, device="cuda")
    sibling, victim = manager.entry("sibling", 1), manager.entry("victim", 1)
    with manager.transaction() as transaction:
        output = transaction.capture(sibling, lambda warmup: lambda: static * 2 + 1)
    assert isinstance(output, Tensor)
    _stock_bystander()
    torch.cuda.synchronize()
    manager.reclaim(flush=True)

    torch.cuda.manual_seed(7)
    expected = [torch.randn(5, device="cuda") for _ in range(3)]
    torch.cuda.manual_seed(7)
    drawn = [torch.randn(5, device="cuda")]
    charged = manager.memory().total
    before = manager.backend.footprint()
    bound_before = sibling.state

    def make(warmup: bool) -> Callable[[], Tensor]:
        return lambda: _work(case, static, warmup=warmup)

    def attempt() -> None:
        try:
            with manager.transaction() as transaction:
                transaction.capture(victim, make)
        except cgstate.CaptureFailed as failure:
            outcome.kind = failure.kind
            outcome.checks["cleanup raised nothing"] = not failure.cleanup

    if case.fresh_thread:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    else:
        attempt()
    after = manager.backend.footprint()
    checks = outcome.checks
    checks["kind as expected"] = outcome.kind in case.kinds if case.kinds else outcome.kind == "none"
    checks["current stream"] = after.stream == before.stream and not after.capturing
    drawn += [torch.randn(5, device="cuda") for _ in range(2)]
    checks["random numbers"] = all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
    if case.kinds:
        growth = sum(after.pools.values()) - sum(before.pools.values())
        outcome.stranded_bytes = growth
        # A pool with a live sibling keeps what the attempt grew, charged (S4); an own pool is as before.
        checks["bytes by pool"] = manager.memory().total - charged == growth if shared else after.pools == before.pools
        checks["siblings keep their state"] = sibling.state is bound_before
        _bystanders.clear()
        _retry(manager, victim, static, checks)
    static.fill_(3)
    sibling.replay()
    checks["siblings answer right"] = bool((output == 7).all())
    del output  # a static output that somebody holds keeps its memory
    _bystanders.clear()
    manager.close()
    checks["nothing left after close"] = manager.memory().total == 0
    return outcome


def _work(case: Case, static: Tensor, *, warmup: bool) -> Tensor:
    scratch = torch.empty(GROWTH, dtype=torch.uint8, device=static.device)
    scratch.zero_()
    if not warmup:
        case.spoil(static)
    return static + 5


def _retry(manager: cgstate.GraphManager, victim: cgstate.Entry, static: Tensor, checks: dict[str, bool]) -> None:
    """The next capture of the same entry succeeds and is right."""
    manager.forget_failures()
    with manager.transaction() as transaction:
        again = transaction.capture(victim, lambda warmup: lambda: static * 10)
    assert isinstance(again, Tensor)
    static.fill_(4)
    victim.replay()
    checks["next capture"] = bool((again == 40).all())


def matrix() -> list[Outcome]:
    """Every case in both kinds of pool."""
    return [run(case, shared=shared) for case in CASES for shared in (False, True)]


def main() -> None:
    """Print every outcome as one JSON row a line."""
    for outcome in matrix():
        print(json.dumps(outcome.row()), flush=True)


if __name__ == "__main__":
    main()
