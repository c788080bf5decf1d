"""What the simulated device costs on one core, and whether a long run stays flat in memory. Needs no GPU.

python -m benchmarks.simulator

An operation is a kernel that was queued or recorded, with the memory for its result taken and given back, and run where the figure
says so. Times are CPU times of this process, garbage collection included; of several rounds the quickest counts, as neighbours
only ever add.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import cgstate
from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim import SimBackend, SimDevice, SimGraph, SimTensor, captured, kernels
from cgstate.backends.sim.memory import load
from cgstate.backends.sim.work import Kernel
from cgstate.demo.vocoder_sim import SimVocoder
from cgstate.testing.evidence import Bar, at_least, at_most

ELEMENTS = 16
"""Of the tensors in the chains."""
CHAIN = 1000
"""Operations of one timing."""
FRAMES = 8
"""Of the vocoder's input."""
ROUNDS = 100
LONG_RUN = 1_000_000

BARS: dict[str, Bar] = {
    "eager_ops_s": at_least(100_000),
    "captured_ops_s": at_least(100_000),
    "replayed_ops_s": at_least(100_000),
    "allocations_s": at_least(100_000),
    "mixture_ops_s": at_least(100_000),
    "replay_grown_bytes": at_most(1 << 20),
    "replay_grown_objects": at_most(100),
    "call_grown_bytes": at_most(1 << 20),
    "call_grown_objects": at_most(100),
}


def measure(long_run: int = LONG_RUN) -> dict[str, float]:
    """Every figure of this file; ``long_run`` is the length of the run whose last nine tenths must not grow."""
    return {**chains(), **mixture(), **growth(long_run)}


def chains() -> dict[str, float]:
    """Operations a second of ``x = relu(x)``, eager, captured and replayed, and allocations a second that are freed at once."""
    device = SimDevice()
    x, stream = device.zeros(ELEMENTS), device.new_stream()

    def eager() -> None:
        chain(x)
        device.synchronize()

    def capture() -> None:
        graph = SimGraph(device)
        with device.on_stream(stream):
            graph.capture_begin(None, CaptureErrorMode.thread_local)
            chain(x)
            graph.capture_end()
        graph.destroy()

    def allocate() -> None:
        for _ in range(CHAIN):
            device.empty(ELEMENTS)

    graph, _ = captured(device, lambda: chain(x, CHAIN // 10), stream)

    def replay() -> None:
        for _ in range(10):
            graph.replay()
        device.synchronize()

    work = {"eager_ops_s": eager, "captured_ops_s": capture, "replayed_ops_s": replay, "allocations_s": allocate}
    return {name: CHAIN / seconds for name, seconds in quickest(work).items()}


def chain(x: SimTensor, length: int = CHAIN) -> SimTensor:
    for _ in range(length):
        x = kernels.relu(x)
    return x


def mixture() -> dict[str, float]:
    """The demo's vocoder, eager: kernels, allocations and frees a second, less what the kernels' own arithmetic takes.

    That is the model's and not the device's, and more than half of the whole: ``mixture_arithmetic_share``.
    """
    device = Observed()
    vocoder = SimVocoder(SimBackend(device), seed=0)
    codes = vocoder.codes(range(1, FRAMES + 1))

    def model() -> None:
        vocoder.synthesize(vocoder.encode(codes))
        device.synchronize()

    model()  # the library makes its workspace
    before = device.faults.calls.copy()
    device.seen = []
    model()
    arithmetic, device.seen = device.seen, None
    done = device.faults.calls - before

    def compute() -> None:
        for kernel, operands in arithmetic:
            kernel(*operands)

    seconds = quickest({"model": model, "arithmetic": compute})
    operations = done["launch"] + 2 * done["allocate"]
    return {
        "mixture_ops_s": operations / (seconds["model"] - seconds["arithmetic"]),
        "mixture_arithmetic_share": seconds["arithmetic"] / seconds["model"],
    }


class Observed(SimDevice):
    """Notes what its kernels compute, and from which values, while ``seen`` is a list."""

    seen: list[tuple[Kernel, list[list[float]]]] | None = None

    def launch(self, name: str, kernel: Kernel, inputs: Sequence[SimTensor], outputs: Sequence[SimTensor]) -> None:
        if self.seen is not None:
            self.synchronize()
            self.seen.append((kernel, [load(self.memory.cells, tensor.view) for tensor in inputs]))
        super().launch(name, kernel, inputs, outputs)


def quickest(work: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """CPU seconds of the quickest round of each; they take turns."""
    seconds = dict.fromkeys(work, float("inf"))
    for _ in range(ROUNDS):
        for name, run in work.items():
            started = time.process_time()
            run()
            seconds[name] = min(seconds[name], time.process_time() - started)
    return seconds


def growth(length: int) -> dict[str, float]:
    """Bytes and objects that the process gains from a tenth of a long run to its end, by ``entry.replay()`` and by calls."""
    backend = SimBackend()
    device = backend.sim
    static, weight = device.zeros(ELEMENTS), device.rand(4, 4)

    def make(warmup: bool) -> Callable[[], SimTensor]:
        return lambda: static.copy_(kernels.relu(static))

    routine = cgstate.BucketedRoutine(lambda x: kernels.relu(kernels.matmul(x, weight)), lambda size: (device.zeros(size, 4),))
    component = cgstate.Component("model", routine, [4])
    figures: dict[str, float] = {}
    with cgstate.GraphManager(backend) as manager:
        manager.prepare([component])
        manager.capture_and_bind(progress=False)
        entry = manager.entry("chain", 1)
        with manager.transaction() as transaction:
            transaction.capture(entry, make)
        x = device.rand(3, 4)
        for name, once in {"replay": entry.replay, "call": lambda: component(x)}.items():
            repeat(once, length // 100, device)
            repeat(once, length // 10 - length // 100, device)
            early = footprint()
            repeat(once, length - length // 10, device)
            late = footprint()
            figures[f"{name}_grown_bytes"] = late[0] - early[0]
            figures[f"{name}_grown_objects"] = late[1] - early[1]
    return figures


def repeat(once: Callable[[], object], times: int, device: SimDevice) -> None:
    for _ in range(times):
        once()
    device.synchronize()


def footprint() -> tuple[int, int]:
    """Resident bytes of this process (Linux), and how many blocks its Python objects take."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096, sys.getallocatedblocks()


def main() -> int:
    """Measure and print; 0 if every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long-run", type=int, default=LONG_RUN, metavar="N", help="length of the run that must stay flat")
    figures = measure(parser.parse_args().long_run)
    broken = 0
    print(f"Python {platform.python_version()} on {platform.machine()}")
    for name, figure in figures.items():
        bar = BARS.get(name)
        holds = bar is None or bar.holds(figure)
        broken += not holds
        print(f"{name:28} {figure:14,.4g}" if figure < 1 else f"{name:28} {figure:14,.0f}", end="")
        print("" if bar is None else f"  {bar.text}  {'holds' if holds else 'BROKEN'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
