"""The story: profile, capture, bind as one transaction, serve, extend lazily, evict, fail, recover, close; all of it checked."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Generic, TypeVar

from cgstate.backends.base import Footprint
from cgstate.demo.vocoder import DECODER_SIZES, HOP, MAX_EXTRA_GRAPHS, MAX_FRAMES, PAD, TOLERANCE, VOCABULARY, Parts, Vocoder
from cgstate.errors import CaptureFailed
from cgstate.runtime.domain import Isolation
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.witness import Witness

T = TypeVar("T")

CONFIG: dict[str, dict[str, object]] = {
    "prosody": {},
    "decoder": {"max_extra_graphs": MAX_EXTRA_GRAPHS, "isolation": Isolation.per_entry.value},
}

LONG = (36, 44, 60)
"""Frames of requests that no startup graph of the decoder serves."""

Tick = Callable[[str], None]
"""Told of each served request, with the name of the chapter."""


@dataclass(slots=True)
class Check:
    """How the outputs compared.

    Attributes:
        outputs: Outputs compared.
        by_graph: How many of them a graph had made.
        unequal: Outputs that differ from eager: in any bit on the same padded shapes, or beyond the tolerance unpadded.
        worst: Largest difference to the unpadded eager call.
    """

    outputs: int = 0
    by_graph: int = 0
    unequal: int = 0
    worst: float = 0.0


@dataclass(frozen=True, slots=True)
class Chapter:
    """One step of the story.

    Attributes:
        title: What was done.
        expected: What had to be so afterwards.
        holds: Whether it was.
        facts: Numbers seen, by name.
    """

    title: str
    expected: str
    holds: bool
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demonstration saw."""

    backend: str
    device: str
    seed: int
    requests: int
    seconds: float
    chapters: tuple[Chapter, ...]
    check: Check
    stats: dict[str, object]

    @property
    def passed(self) -> bool:
        """Every chapter held and every output was equal."""
        return all(chapter.holds for chapter in self.chapters) and not self.check.unequal

    def document(self) -> dict[str, object]:
        """For ``--json``."""
        return {**asdict(self), "passed": self.passed}


class Story(Generic[T]):
    """One run of the demonstration."""

    def __init__(self, vocoder: Vocoder[T], *, seed: int, requests: int, tick: Tick, observer: Witness | None) -> None:
        self._vocoder = vocoder
        self._parts = Parts(vocoder)
        self._manager = GraphManager(vocoder.backend, check=True, observer=observer)
        self._rng = random.Random(seed)
        self._seed = seed
        self._requests = requests
        self._tick = tick
        self._check = Check()
        self._chapters: list[Chapter] = []

    def tell(self) -> DemoResult:
        """Run it all."""
        started = time.monotonic()
        before = self._vocoder.backend.footprint()
        self._prepare()
        self._profile()
        self._capture()
        self._serve("served with random sizes", self._requests * 6 // 10)
        self._lazy()
        self._fail()
        self._serve("served eagerly meanwhile", self._requests // 10)
        self._recover()
        self._serve("served again", self._requests - self._requests * 6 // 10 - self._requests // 10)
        stats = self._manager.stats()
        self._close(dict(before.pools))
        return DemoResult(
            backend=self._vocoder.backend.name,
            device=self._vocoder.backend.device,
            seed=self._seed,
            requests=self._requests,
            seconds=time.monotonic() - started,
            chapters=tuple(self._chapters),
            check=self._check,
            stats=asdict(stats),
        )

    # -- chapters -----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        parts = self._parts
        report = self._manager.prepare([parts.prosody, parts.decoder], CONFIG)
        self._note(
            "prepared", "both components are active and still eager", self._states() == ("EAGER", "EAGER"), active=report.active
        )

    def _profile(self) -> None:
        backend = self._vocoder.backend
        before = backend.footprint()
        estimate = self._manager.profile_memory()
        after = backend.footprint()
        clean = self._as_before(before, after)
        self._note(
            "profiled in a throwaway pool",
            "pools, stream and random numbers are as before",
            # Whether the bounds can be trusted is no question here: other processes may use the device as well.
            clean and estimate.lower > 0 and all(sample.error is None for sample in estimate.samples),
            lower_bytes=estimate.lower,
            upper_bytes=estimate.upper,
        )

    def _capture(self) -> None:
        report = self._manager.capture_and_bind(progress=False)
        self._note(
            "captured, bound as one transaction",
            "both components are bound",
            self._states() == ("BOUND", "BOUND"),
            graphs=sum(report.bound.values()),
            bytes=report.memory.total,
        )

    def _lazy(self) -> None:
        unequal = self._check.unequal
        for size in self._sizes():
            if size > max(DECODER_SIZES):
                self._manager.evict("decoder", size)  # what chance has captured so far
        for frames in LONG:  # more sizes than the decoder may hold beyond its startup graphs, each larger than the one before
            self._compare([self._rng.randrange(PAD + 1, VOCABULARY) for _ in range(frames)])
        stats = self._manager.stats().components["decoder"]
        expected = "misses were captured lazily, the least used of those graphs were evicted for others, every output equals eager"
        lazy = stats.captures - len(self._parts.decoder.descriptors)
        self._note(
            "extended lazily",
            expected,
            lazy > 0 and stats.evictions > 0 and self._check.unequal == unequal,
            captured=lazy,
            evicted=stats.evictions,
        )

    def _fail(self) -> None:
        manager, parts, backend = self._manager, self._parts, self._vocoder.backend
        retired = manager.invalidate("weights")
        manager.reclaim(flush=True)
        before = backend.footprint()
        parts.sabotage = True
        try:
            manager.capture_and_bind(progress=False)
            kind = "none"
        except CaptureFailed as failure:
            kind = failure.kind
        finally:
            parts.sabotage = False
        after = backend.footprint()
        clean = self._as_before(before, after)
        self._note(
            "broke a capture on purpose",
            "nothing is half bound; stream, random numbers and pools are as before",
            clean and kind == "REJECTED" and self._states() == ("EVICTED", "FAILED"),
            retired=retired,
            kind=kind,
        )

    def _recover(self) -> None:
        self._manager.forget_failures()
        report = self._manager.capture_and_bind(progress=False)
        self._note("recovered", "both are bound again", self._states() == ("BOUND", "BOUND"), graphs=sum(report.bound.values()))

    def _close(self, before: dict[object, int]) -> None:
        self._manager.close()
        left = sum(size for pool, size in self._vocoder.backend.footprint().pools.items() if pool not in before)
        clean = not left and not self._manager.memory().total
        self._note("closed", "no byte of a graph is left", clean, bytes_left=left)

    @staticmethod
    def _as_before(before: Footprint, after: Footprint) -> bool:
        """Stream and random numbers as they were; no pool more, and none larger."""
        same = (before.stream, before.generator) == (after.stream, after.generator)
        return same and after.pools.items() <= before.pools.items()

    def _states(self) -> tuple[str, str]:
        return self._parts.prosody.state, self._parts.decoder.state

    def _note(self, title: str, expected: str, holds: bool, **facts: object) -> None:
        self._chapters.append(Chapter(title, expected, holds, facts))

    # -- serving ------------------------------------------------------------------------------------------------------

    def _serve(self, title: str, requests: int) -> None:
        sizes: Counter[str] = Counter()
        unequal = self._check.unequal
        by_graph = self._check.by_graph
        for codes in self._draw(requests):
            sizes["graph" if self._compare(codes) else "eager"] += 1
            self._tick(title)
        self._note(
            title,
            "every output equals eager",
            self._check.unequal == unequal,
            requests=requests,
            by_graph=self._check.by_graph - by_graph,
        )

    def _draw(self, requests: int) -> Iterable[list[int]]:
        """Short requests are frequent, long ones are rare."""
        for _ in range(requests):
            frames = min(MAX_FRAMES, 1 + int(self._rng.expovariate(1 / 18)))
            yield [self._rng.randrange(PAD + 1, VOCABULARY) for _ in range(frames)]

    def _compare(self, codes: list[int]) -> bool:
        """Serve one request and check the answer; whether a graph made it."""
        vocoder, parts, check = self._vocoder, self._parts, self._check
        hits = self._hits()
        answer = vocoder.read(parts.decoder(vocoder.codes(codes)))
        by_graph = self._hits() > hits
        frames = len(codes)
        plain = vocoder.read(parts.eager(vocoder.codes(codes)))
        equal = len(answer) == frames * HOP
        if by_graph:
            size = min(size for size in self._sizes() if size >= frames)
            padded = vocoder.read(parts.eager(vocoder.codes(codes + [PAD] * (size - frames))))
            equal = equal and answer == padded[: frames * HOP]
        difference = max((abs(a - b) for a, b in zip(answer, plain, strict=True)), default=0.0) if equal else float("inf")
        check.outputs += 1
        check.by_graph += by_graph
        check.unequal += not (equal and difference <= TOLERANCE)
        check.worst = max(check.worst, difference)
        return by_graph

    def _hits(self) -> int:
        return self._manager.stats().components["decoder"].hits

    def _sizes(self) -> list[int]:
        return [size for size in self._parts.decoder.available_descriptors if isinstance(size, int)]


def run(
    vocoder: Vocoder[T],
    *,
    seed: int,
    requests: int,
    tick: Tick = lambda title: None,
    observer: Witness | None = None,
) -> DemoResult:
    """Run the demonstration on a vocoder.

    Args:
        vocoder: The model, on its device.
        seed: Of the requests.
        requests: How many are served in all.
        tick: Told of each.
        observer: Told of every transition, e.g. a recorder of `cgstate.trace`.
    """
    return Story(vocoder, seed=seed, requests=requests, tick=tick, observer=observer).tell()
