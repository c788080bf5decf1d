"""Holds vLLM on cgstate against vLLM alone, in one process and one engine, on a real GPU.

python -m benchmarks.vllm --model DIR --out docs/evidence/vllm-h200.json

DIR holds the ``config.json`` of a small dense model; its weights are random. Needs vLLM with its V2 runner, and a GPU. The graphs
that vLLM captured by itself and those that cgstate recorded live side by side, so that the same prompts and timer see both.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import cgstate
import cgstate.integrations.vllm as adapter
import cgstate.trace
from cgstate.integrations.vllm.adapter import MARK
from cgstate.testing.evidence import Row, at_least, at_most, exactly, write

SIZES = [1, 2, 4, 8]
PROMPTS = [[3 + 17 * row, 5 + row, 7 + 3 * row, 11 + row * row] for row in range(max(SIZES))]
STEPS = 32
"""Tokens that each prompt is continued by."""
REPEATS = 9
"""Timed runs of each kind, in turns."""
BARS = {
    "prompts": at_least(len(PROMPTS)),
    "token_mismatches": exactly(0),
    "hidden_mismatches": exactly(0),
    "insensitive": exactly(0),
    "wrong_replays_caught": at_least(2),
    "entries": at_least(len(SIZES)),
    "trace_events": at_least(1),
    "trace_violations": exactly(0),
    "trace_replays_missing": exactly(0),
    "failures_unclean": exactly(0),
    "recaptures_wrong": exactly(0),
    "estimate_within": exactly(1),
    "estimate_over_actual": at_most(1.10),
    "step_ratio": at_most(1.02),
}


@dataclass
class Run:
    """What one pass over the prompts gave.

    Attributes:
        tokens: Of each prompt, those that it was continued by.
        hidden: What each replay of a whole graph left as hidden states, in order.
    """

    tokens: list[list[int]] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)

    def differs(self, other: Run) -> tuple[int, int]:
        """How many prompts got other tokens, and how many replays other hidden states."""
        tokens = sum(mine != theirs for mine, theirs in zip(self.tokens, other.tokens, strict=True))
        paired = list(zip(self.hidden, other.hidden, strict=False))
        unpaired = abs(len(self.hidden) - len(other.hidden))
        return tokens, unpaired + sum(not torch.equal(mine, theirs) for mine, theirs in paired)


class Engine:
    """vLLM with its engine core in this process, and its runner and manager at hand."""

    def __init__(self, model: Path) -> None:
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=0,
            attention_backend="TRITON_ATTN",
            max_model_len=256,
            max_num_seqs=max(SIZES),
            gpu_memory_utilization=0.1,
            enable_prefix_caching=False,
            compilation_config={"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": SIZES},
        )
        self.greedy = SamplingParams(max_tokens=STEPS, temperature=0.0, ignore_eos=True, detokenize=False)
        worker = self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        self.runner: Any = worker.model_runner
        self.device: torch.device = self.runner.device

    @property
    def manager(self) -> Any:
        """vLLM's manager of the model."""
        return self.runner.cudagraph_manager

    @property
    def full(self) -> list[Any]:
        """Descriptors of whole graphs, largest first."""
        return [desc for descs in self.manager._capture_descs.values() for desc in descs if desc.cg_mode.name == "FULL"]

    def generate(self, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
        """The tokens by which the prompts are continued."""
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return [list(answer.outputs[0].token_ids) for answer in self.llm.generate(asked, self.greedy, use_tqdm=False)]

    def run(self, prompts: Sequence[Sequence[int]] = PROMPTS) -> Run:
        """The same, for as many prompts as each graph serves, and the hidden states of every replay."""
        run, manager, replay = Run(), self.manager, type(self.manager).run_fullgraph

        def watched(desc: Any) -> Any:
            result = replay(manager, desc)
            hidden = result[0] if isinstance(result, tuple) else result
            run.hidden.append(hidden[: desc.num_tokens].clone())
            return result

        manager.run_fullgraph = watched
        try:
            for size in reversed(SIZES):  # as many requests as a graph serves, so that no row is padding
                run.tokens += self.generate(prompts[:size])
        finally:
            del manager.run_fullgraph
        return run

    @contextmanager
    def graphs(self, graphs: dict[Any, Any]) -> Iterator[None]:
        """Replay these in the block."""
        before, self.manager.graphs = self.manager.graphs, graphs
        try:
            yield
        finally:
            self.manager.graphs = before

    def capture(self) -> None:
        """Capture what is not captured."""
        from vllm.compilation.monitor import set_cudagraph_capturing_enabled

        set_cudagraph_capturing_enabled(True)
        try:
            self.runner.capture_model()
        finally:
            set_cudagraph_capturing_enabled(False)

    def forget(self) -> None:
        """Drop every graph of vLLM's own, piecewise ones included."""
        from vllm.compilation.cuda_graph import CUDAGraphWrapper

        CUDAGraphWrapper.clear_all_graphs()
        self.manager.release_graphs()
        gc.collect()
        torch.cuda.empty_cache()


# -- weights that matter ------------------------------------------------------------------------------------------------


def enlarge(model: torch.nn.Module) -> None:
    """Give every weight a size at which it changes the result; vLLM's dummy weights are next to nothing."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    with torch.inference_mode():  # in which vLLM may have made them
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, device=weight.device, dtype=torch.float32)
            if "norm" in name:
                value = 1 + 0.2 * noise
            elif weight.dim() == 1:
                value = 0.3 * noise
            elif "embed" in name:
                value = noise
            else:
                value = noise * 1.5 / weight.shape[-1] ** 0.5
            weight.copy_(value.to(weight.dtype))


def insensitive(engine: Engine, right: Run) -> list[str]:
    """What could be wrong without being seen: layers, positions and rows that do not change the result."""
    found = []
    for name, weight in engine.runner.model.named_parameters():
        with torch.inference_mode():
            kept = weight.clone()
            weight.mul_(0.5)
        if not any(right.differs(engine.run())):
            found.append(name)
        with torch.inference_mode():
            weight.copy_(kept)
    for position in range(len(PROMPTS[0])):
        moved = [[*prompt[:position], prompt[position] + 1, *prompt[position + 1 :]] for prompt in PROMPTS]
        if not right.differs(engine.run(moved))[1]:
            found.append(f"position {position}")
    for row in range(len(PROMPTS)):
        changed = [[*prompt[:-1], prompt[-1] + (each == row)] for each, prompt in enumerate(PROMPTS)]
        seen = engine.run(changed)
        if torch.equal(seen.hidden[0][row], right.hidden[0][row]):
            found.append(f"row {row}")
    return found


# -- failures -----------------------------------------------------------------------------------------------------------


class Broken(Exception):
    """What the model raises when it is told to."""


def misbehave(how: str) -> None:
    """What a capture must survive."""
    if how == "raises":
        raise Broken
    torch.cuda.synchronize()


class Failing:
    """The model, which misbehaves while a graph of some size is captured."""

    def __init__(self, model: Any, tokens: int, how: str) -> None:
        self._model, self._tokens, self._how = model, tokens, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        tokens = inputs["input_ids"].shape[0] if inputs.get("input_ids") is not None else 0
        if tokens == self._tokens and torch.cuda.is_current_stream_capturing():
            misbehave(self._how)
        return self._model(*args, **inputs)


def failure(engine: Engine, tokens: int, how: str, right: Run) -> dict[str, object]:
    """One capture that fails half way, and the one after it."""
    model = engine.runner.model
    engine.forget()
    reserved = torch.cuda.memory_reserved()
    engine.runner.model = Failing(model, tokens, how)
    error: BaseException | None = None
    try:
        engine.capture()
    except Exception as raised:
        error = raised
    finally:
        engine.runner.model = model
    clean = not engine.manager.graphs and not engine.manager._graphs_captured
    typed = isinstance(error, cgstate.CaptureFailed) and error.descriptor.num_tokens == tokens  # type: ignore[attr-defined]
    kind = str(getattr(error, "kind", ""))
    del error
    gc.collect()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved() - reserved
    engine.capture()
    again = right.differs(engine.run()) == (0, 0)
    return {"tokens": tokens, "how": how, "kind": kind, "typed": typed, "clean": clean, "left_bytes": left, "right_again": again}


# -- the parts ----------------------------------------------------------------------------------------------------------


def wrong_replays(engine: Engine, right: Run) -> int:
    """Of three deliberately wrong replays, how many the comparison sees."""
    full = engine.full
    graphs = dict(engine.manager.graphs)
    wrong = [
        {**graphs, full[0]: graphs[full[1]]},  # a smaller graph: the last rows are old
        {desc: _Nothing() for desc in graphs},  # none at all: everything is old
        {**graphs, full[0]: graphs[full[-1]]},
    ]
    caught = 0
    for each in wrong:
        with engine.graphs(each):
            caught += right.differs(engine.run()) != (0, 0)
    return caught


class _Nothing:
    def replay(self) -> None:
        """Leave what was there."""


def timed(engine: Engine, sets: dict[str, dict[Any, Any]]) -> dict[str, float]:
    """Nanoseconds of a decode step with each set of graphs: the least of several runs, taken in turns."""
    best = dict.fromkeys(sets, float("inf"))
    for _ in range(REPEATS):
        for name, graphs in sets.items():
            with engine.graphs(graphs):
                torch.cuda.synchronize()
                started = time.perf_counter_ns()
                engine.generate()
                torch.cuda.synchronize()
                best[name] = min(best[name], (time.perf_counter_ns() - started) / STEPS)
    return best


def move(engine: Engine, pool: Any) -> None:
    """Let vLLM capture everything into another pool."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    for wrapper in CUDAGraphWrapper._all_instances:
        wrapper.graph_pool = pool
    engine.manager.pool = pool


def estimated(engine: Engine, *, piecewise: bool) -> Row:
    """What the whole graphs will take, from one capture in a throwaway scope, and what they then take in a pool of their own.

    With ``piecewise``, vLLM's piecewise graphs are captured as well: they come first, and whole graphs use what they have freed.
    """
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    descs = engine.manager._capture_descs
    engine.manager._capture_descs = descs if piecewise else {mode: each for mode, each in descs.items() if mode.name == "FULL"}
    try:
        engine.forget()
        with adapter.measuring(engine.device) as run:
            move(engine, run.pool)
            try:
                engine.capture()
                estimate = run.conclude()
            finally:
                CUDAGraphWrapper.clear_all_graphs()
        move(engine, torch.cuda.graph_pool_handle())
        engine.capture()
    finally:
        engine.manager._capture_descs = descs
    actual = sum(pool.charged for pool in adapter.report())
    within = estimate.lower <= actual <= estimate.upper
    row: Row = {"part": "estimate", "piecewise": piecewise, "graphs": estimate.graphs, "lower": estimate.lower, "actual": actual}
    return {**row, "upper": estimate.upper, "driver": estimate.driver, "within": within, "distrust": "; ".join(estimate.distrust)}


def traced(engine: Engine, folder: Path) -> tuple[Run, int, Any]:
    """One capture, one run and one release in a trace: the run, its replays, and what the check of the trace says."""
    engine.forget()
    before = getattr(engine.manager, MARK)  # keeps vLLM's pool open, in which vLLM has kept tensors
    delattr(engine.manager, MARK)  # options are read when a manager is first met
    config = engine.manager.vllm_config
    config.additional_config = {**(config.additional_config or {}), "cgstate": {"trace": str(folder / "run.jsonl")}}
    engine.capture()
    del before
    run = engine.run()
    engine.manager.release_graphs()
    adapter.close_traces()
    [path] = folder.iterdir()
    records = list(cgstate.trace.read(path))
    report = cgstate.trace.check(records)
    steps = [record for record in records if isinstance(record, cgstate.trace.TransitionRecord) and record.machine == "entry"]
    replays = sum(step.event == "acquire" for step in steps)
    return run, replays, report


def say(part: str) -> None:
    """What comes next: the whole takes minutes."""
    print(f"-- {part}", file=sys.stderr, flush=True)


def measure(engine: Engine) -> tuple[dict[str, float], list[Row]]:
    """Everything, in an order in which each part leaves the engine as the next one needs it."""
    enlarge(engine.runner.model)
    alone = engine.run()
    say("what the result depends on")
    deaf = insensitive(engine, alone)
    repeatable = alone.differs(engine.run())
    vllms = dict(engine.manager.graphs)
    say("the same prompts on cgstate")
    adapter.install()
    engine.manager.graphs, engine.manager._graphs_captured = {}, False
    engine.capture()
    ours = dict(engine.manager.graphs)
    managed = engine.run()
    tokens, hidden = alone.differs(managed)
    caught = wrong_replays(engine, alone)
    say("time of a step")
    steps = timed(engine, {"vllm": vllms, "cgstate": ours})
    vllms.clear()
    say("captures that fail")
    failures = [failure(engine, size, how, alone) for how in ("raises", "synchronizes") for size in (SIZES[-2], SIZES[0])]
    say("release and capture again")
    wrong = 0
    for _ in range(2):
        engine.manager.release_graphs()
        engine.capture()
        wrong += alone.differs(engine.run()) != (0, 0)
    say("the estimate")
    estimates = [estimated(engine, piecewise=piecewise) for piecewise in (False, True)]
    wrong += alone.differs(engine.run()) != (0, 0)
    entries = sum(count for pool in adapter.report() for count in pool.entries.values())
    say("the trace")
    with tempfile.TemporaryDirectory() as folder:
        in_trace, replays, report = traced(engine, Path(folder))
    wrong += alone.differs(in_trace) != (0, 0)
    figures: dict[str, float] = {
        "prompts": len(PROMPTS),
        "replays": len(managed.hidden),
        "token_mismatches": tokens,
        "hidden_mismatches": hidden,
        "unrepeatable": sum(repeatable),
        "insensitive": len(deaf),
        "wrong_replays_caught": caught,
        "entries": entries,
        "trace_events": report.events,
        "trace_violations": report.violations + report.missing,
        "trace_replays_missing": len(in_trace.hidden) - replays,
        "failures": len(failures),
        "failures_unclean": sum(not (each["typed"] and each["clean"] and each["right_again"]) for each in failures),
        "recaptures_wrong": wrong,
        "estimate_within": float(all(each["within"] for each in estimates)),
        "estimate_over_actual": max(float(str(each["upper"])) / max(1, int(str(each["actual"]))) for each in estimates),
        "step_ns_vllm": steps["vllm"],
        "step_ns_cgstate": steps["cgstate"],
        "step_ratio": steps["cgstate"] / steps["vllm"],
    }
    rows: list[Row] = [{"part": "failure", **each} for each in failures]
    rows += [{"part": "insensitive", "what": what} for what in deaf]
    rows += estimates
    return figures, rows


def main() -> int:
    """Measure, print, write; 0 if every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder with the config.json of a small dense model")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/vllm-h200.json"))
    parser.add_argument("--commit", default="", help="the measured commit, where the checkout has no history")
    arguments = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "1", "CGSTATE_VLLM": "0"}
    figures, rows = measure(Engine(arguments.model))
    holds = write(
        arguments.out, command="python -m benchmarks.vllm", commit=arguments.commit, figures=figures, bars=BARS, rows=rows
    )
    for name, figure in figures.items():
        bar = BARS.get(name)
        verdict = "" if bar is None else f"  {bar.text}  {'holds' if bar.holds(figure) else 'BROKEN'}"
        print(f"{name:28} {figure:14.4g}{verdict}")
    for row in rows:
        print(dict(row))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
