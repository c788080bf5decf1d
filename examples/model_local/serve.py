"""Serves the talker as an engine's worker would: load, profile, capture, serve random lengths, sleep, wake up, shut down.

Runs on the simulator where there is no GPU: ``python -m examples.model_local.serve``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cgstate.integrations.model_local import ModelLocalWorkerMixin, read_deploy
from examples.model_local.talker import HIDDEN, HOP, Talker

DEPLOY = Path(__file__).with_name("deploy.yaml")


class Runner:
    """As much of an engine's model runner as this example needs; an engine would capture its language model here."""

    model: Talker

    def __init__(self, device: str) -> None:
        self.device = device

    def load_model(self) -> None:
        """Random weights."""
        self.model = Talker().to(self.device)

    def capture_model(self) -> int:
        """Bytes that the engine's own graphs hold: none here."""
        return 0

    @torch.inference_mode()
    def execute_model(self, hidden: Tensor) -> Tensor:
        """One utterance."""
        audio: Tensor = self.model(hidden)
        return audio


class EngineWorker:
    """As much of an engine's worker."""

    def __init__(self, vllm_config: Any, device: str) -> None:
        self.vllm_config = vllm_config
        self.device = device
        self.model_runner = Runner(device)

    def load_model(self) -> None:
        """Load the weights."""
        self.model_runner.load_model()

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache."""
        return 1 << 30

    def compile_or_warm_up_model(self) -> None:
        """Capture, as the last step of warm-up."""
        self.model_runner.capture_model()

    def sleep(self, level: int = 1) -> None:
        """Here, an engine moves weights to the host and drops the KV cache."""

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Here, it brings them back."""

    def shutdown(self) -> None:
        """Let go of everything."""


class Worker(ModelLocalWorkerMixin, EngineWorker):
    """The same with model-local graphs. With vLLM, put the mixin before its own worker in the same way."""


def utterances(worker: Worker, lengths: Iterable[int]) -> bool:
    """Speak utterances of these lengths; whether all are what the model says without graphs, as far as floats go."""
    runner = worker.model_runner
    right = True
    for length in lengths:
        hidden = torch.randn(length, HIDDEN, device=runner.device)
        audio = runner.execute_model(hidden)
        codes = torch.cat([runner.model.predictor(part) for part in hidden.split(8)])
        right = right and audio.shape == (length * HOP,) and torch.allclose(audio, runner.model.vocoder(codes), atol=1e-5)
    return right


def main() -> bool:
    """Run the whole life of a worker; whether all audio was right."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(model_local_cudagraph=read_deploy(DEPLOY, stage=1)),
        observability_config=SimpleNamespace(cudagraph_metrics=True),
    )
    worker = Worker(config, "cuda" if torch.cuda.is_available() else "cpu")
    worker.load_model()
    print(f"for the KV cache: {worker.determine_available_memory()} bytes")
    worker.compile_or_warm_up_model()
    draw = random.Random(0)
    right = utterances(worker, [draw.randint(1, 100) for _ in range(30)])
    worker.sleep()
    worker.wake_up()
    right = utterances(worker, [draw.randint(1, 32) for _ in range(10)]) and right
    for component, counts in worker.model_local_metrics().items():
        print(component, counts)
    worker.shutdown()
    print("all audio is right" if right else "some audio is WRONG")
    return right


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
