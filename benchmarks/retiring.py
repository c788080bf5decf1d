"""What retiring costs those who replay meanwhile, and what returning the bytes stalls (fact S3)."""

from __future__ import annotations

import threading
import time
from statistics import median
from typing import Any

import torch

from cgstate import GraphManager
from cgstate.backends.cuda import CudaBackend

VICTIMS = 64
PAUSE = 0.004
"""Seconds between two retirements, so that their sum does not look like one long one."""


def measure() -> dict[str, float]:
    """Replay in one thread while another one retires graphs of other domains, then returns their bytes; microseconds.

    ``retire_added_us``: the middle wait of a replay with retirements going on, less that without; ``retire_added_p99_us``: the same
    of the worst hundredth; ``flush_stall_us``: how long returning the bytes took; ``flush_wait_us``: the longest replay meanwhile.
    """
    weight = torch.randn(512, 512, device="cuda")
    with GraphManager(CudaBackend(), isolation="per_entry") as manager:
        inputs: list[Any] = [torch.zeros(64, 512, device="cuda") for _ in range(VICTIMS + 1)]
        with manager.transaction() as transaction:
            for number, source in enumerate(inputs):
                transaction.capture(manager.entry(f"entry {number}", 1), lambda warmup, x=source: lambda: x @ weight)  # type: ignore[misc]
        survivor = manager.entry("entry 0", 1)
        waits: list[float] = []
        stop = threading.Event()

        def replay() -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    started = time.perf_counter()
                    survivor.replay()
                    stream.synchronize()
                    waits.append(time.perf_counter() - started)

        thread = threading.Thread(target=replay)
        thread.start()
        try:
            time.sleep(0.2)
            waits.clear()
            time.sleep(VICTIMS * PAUSE)
            quiet = sorted(waits)
            waits.clear()
            for number in range(1, VICTIMS + 1):
                manager.evict(f"entry {number}")
                time.sleep(PAUSE)
            busy = sorted(waits)
            before = manager.stats().stalled_ns
            waits.clear()
            manager.reclaim(flush=True)
            time.sleep(0.01)
            flushed = list(waits)
        finally:
            stop.set()
            thread.join()
        stalled = manager.stats().stalled_ns - before
    return {
        "retire_added_us": 1e6 * (median(busy) - median(quiet)),
        "retire_added_p99_us": 1e6 * (busy[len(busy) * 99 // 100] - quiet[len(quiet) * 99 // 100]),
        "flush_stall_us": stalled / 1e3,
        "flush_wait_us": 1e6 * max(flushed),
    }
