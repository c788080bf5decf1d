"""The estimate: what capturing everything will hold, with what was measured to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One graph captured while profiling.

    Attributes:
        component: Component id.
        descriptor: Its descriptor, as text.
        pool_bytes: What the throwaway pool held after it, with the samples before it in that pool, bytes.
        grown_bytes: What the pool grew by it, library workspaces included.
        output_bytes: What stays lent out after it: its static output, and whatever else it keeps.
        buffer_bytes: Its static inputs.
        seconds: How long warm-up and capture took.
        settled: Whether a warm-up round left no new allocation behind, so that nothing lazily made was made in the graph.
        error: Why it could not be captured; None if it could.
    """

    component: str
    descriptor: str
    pool_bytes: int
    grown_bytes: int
    output_bytes: int
    buffer_bytes: int
    seconds: float = field(compare=False)
    settled: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What capturing will hold: segments of pools, library workspaces in them, and static inputs.

    Attributes:
        lower: Bytes that it holds at least.
        upper: Bytes that it holds at most, if it is captured in the same order.
        parts: The lower bound by part, bytes: ``pools`` (segments, without workspaces), ``workspaces`` (of libraries, in the pools)
            and ``buffers`` (static inputs).
        samples: What was captured to know.
        graphs: How many graphs will be captured; the estimate is zero only if none.
        driver: Bytes that the driver is likely to hold for them beside the allocator, some of which it may have kept from graphs
            before (fact P8); in neither bound.
        lazy: Bytes that ``max_extra_graphs`` may add later, each like the largest sample of its component; in neither bound.
        lazy_untold: Ids of the components that ``lazy`` leaves out, as that cannot be told of them: no sample, or no limit.
        seconds: How long profiling took.
        distrust: Why the bounds may not hold; empty where nothing speaks against them.
        rehearsed: How often a graph was run, without being recorded, to know.
        widest: Bytes that the warm-up of one graph took at most, where that was looked at for each.
        rounding: Bytes by which the segments that static inputs lie in may be larger than they; in neither bound.
    """

    lower: int
    upper: int
    parts: Mapping[str, int]
    samples: tuple[Sample, ...]
    graphs: int
    driver: int = field(compare=False)
    lazy: int
    seconds: float = field(compare=False)
    distrust: tuple[str, ...] = ()
    lazy_untold: tuple[str, ...] = ()
    rehearsed: int = 0
    widest: int = 0
    rounding: int = 0

    @property
    def warmup(self) -> int:
        """Bytes that warming up takes beside, at most, while it is captured and not afterwards; in neither bound.

        It does the same work as the capture, outside of the pool, where nothing of other graphs is free; the largest graphs of each
        component are among the samples. Where one block was found for a set of which none is the largest, that was looked at for
        each; elsewhere a graph that is not among the samples may take more.
        """
        return max((self.widest, *(sample.grown_bytes for sample in self.samples)))

    @property
    def needed(self) -> int:
        """Bytes that have to be free for the capture at most: `upper`, `warmup`, `driver` and `rounding` together."""
        return self.upper + self.warmup + self.driver + self.rounding

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against the bounds."""
        return not self.distrust

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "warmup": self.warmup, "needed": self.needed, "trusted": self.trusted}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The estimate against what was held after the capture, bytes.

    Attributes:
        lower: The estimate's lower bound.
        actual: What is held.
        upper: The estimate's upper bound.
    """

    lower: int
    actual: int
    upper: int

    @property
    def within(self) -> bool:
        """Whether both bounds held."""
        return self.lower <= self.actual <= self.upper

    @property
    def ratio(self) -> float:
        """Upper bound over actual; 1 where nothing was captured and nothing expected."""
        return self.upper / self.actual if self.actual else 1.0 if not self.upper else float("inf")

    def __str__(self) -> str:
        verdict = "within" if self.within else "above" if self.actual > self.upper else "below"
        return f"holds {self.actual} bytes, {verdict} the estimate of {self.lower} to {self.upper}"
