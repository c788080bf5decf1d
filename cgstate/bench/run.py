"""Runs the parts of the measurement, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cgstate.backends.choose import cuda_is_here
from cgstate.bench import capturing, scaling, watching
from cgstate.bench.bed import Bed, Effort, SimBed
from cgstate.bench.parts import Part, PartName
from cgstate.testing.evidence import Bar, at_most

BARS: Mapping[str, Bar] = {
    "call_over_make_graphed_callables": at_most(0.6),
    "call_over_reduce_overhead": at_most(0.25),
    "leased_call_over_make_graphed_callables": at_most(0.6),
    "leased_call_over_reduce_overhead": at_most(0.25),
    "replay_growth_1000_entries": at_most(1.05),
}
"""What is to be reached, on a device. The cloned call is held to the same as the leased one, though its peers clone nothing."""


def bed(backend: str) -> Bed:
    """What ``backend`` names: ``sim``, ``cuda``, or ``auto``, which takes CUDA if there is a device."""
    if backend == "cuda" or (backend == "auto" and cuda_is_here()):
        from cgstate.bench.bed_torch import TorchBed

        return TorchBed()
    return SimBed()


def run(
    on: Bed,
    parts: Iterable[PartName] = tuple(PartName),
    effort: Effort | None = None,
    tick: Callable[[str], object] = lambda name: None,
) -> Part:
    """Measure.

    Args:
        on: Where.
        parts: What.
        effort: How much; None: as much as the bed proposes.
        tick: Told of each part before it runs.
    """
    effort = effort or on.effort
    whole = Part()
    wanted = set(parts)
    for name in PartName:
        if name not in wanted:
            continue
        tick(name.value)
        part = _PARTS[name](on, effort)
        whole.figures |= part.figures
        whole.rows += part.rows
        whole.missing |= part.missing
    return whole


def _peers(on: Bed, effort: Effort) -> Part:
    if isinstance(on, SimBed):
        return Part(missing={"peers": "they exist on a CUDA device only"})
    from cgstate.bench import peers
    from cgstate.bench.bed_torch import TorchBed

    assert isinstance(on, TorchBed)  # the only other bed there is
    return peers.measure(on, effort)


_PARTS: Mapping[PartName, Callable[[Bed, Effort], Part]] = {
    PartName.peers: _peers,
    PartName.scaling: scaling.measure,
    PartName.watching: watching.measure,
    PartName.capturing: capturing.measure,
}
