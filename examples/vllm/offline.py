"""vLLM offline, with its CUDA graphs on cgstate: generate, look at the pools, check the trace.

python examples/vllm/offline.py MODEL

Needs vLLM with its V2 runner, and a GPU. The engine core runs in this process, so that its graphs can be looked at.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TRACE = Path("graphs.jsonl")


def main(model: str) -> int:
    """Generate some tokens and show what became of the graphs; 0 if the trace obeys the tables."""
    os.environ |= {"CGSTATE_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "1"}

    from vllm import LLM, SamplingParams

    import cgstate.integrations.vllm as adapter
    import cgstate.trace

    llm = LLM(model=model, max_num_seqs=8, additional_config={"cgstate": {"trace": str(TRACE)}})
    for answer in llm.generate(["The state of a graph is", "A pool that is closed"], SamplingParams(max_tokens=32)):
        print(answer.prompt, answer.outputs[0].text)
    for pool in adapter.report():
        print(f"pool {pool.pool}: {pool.reserved} bytes, {pool.charged} of them grown by", dict(pool.entries))
        for guest in pool.guests:
            print(f"  and by vLLM: {guest}")
    estimate = adapter.estimate()
    if estimate is not None:
        print(f"vLLM was told that its FULL graphs take {estimate.lower} to {estimate.upper} bytes")
    adapter.close_traces()
    path = TRACE.with_name(f"{TRACE.stem}.{os.getpid()}{TRACE.suffix}")
    report = cgstate.trace.check(cgstate.trace.read(path))
    print(f"{report.events} events in {path}, {report.violations} violations")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
