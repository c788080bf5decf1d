"""The demonstration, as a program and at the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cgstate.backends.sim import SimBackend, SimTensor, kernels
from cgstate.cli.demo import LARGEST_SEED
from cgstate.demo import job
from cgstate.demo.vocoder import TOLERANCE
from cgstate.demo.vocoder_sim import SimVocoder


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("requests", [50, 80])
def test_every_seed_and_length_passes(seed: int, requests: int) -> None:
    result = job.run(SimVocoder(SimBackend(), seed), seed=seed, requests=requests)
    assert result.passed, [chapter for chapter in result.chapters if not chapter.holds]
    assert result.check.outputs == requests + len(job.LONG)
    assert result.check.worst <= TOLERANCE


@pytest.mark.torch
@pytest.mark.parametrize("seed", [1, 2])
def test_the_torch_vocoder_runs_on_the_simulator(seed: int) -> None:
    pytest.importorskip("torch")
    from cgstate.demo.vocoder_torch import TorchVocoder

    result = job.run(TorchVocoder(SimBackend(), seed), seed=seed, requests=50)
    assert result.passed, [chapter for chapter in result.chapters if not chapter.holds]
    assert result.check.outputs == 50 + len(job.LONG)
    assert result.check.by_graph > 25
    assert result.check.worst <= TOLERANCE


@pytest.mark.torch
def test_the_model_is_chosen_at_the_command_line() -> None:
    pytest.importorskip("torch")
    done = command("--backend", "sim", "--model", "torch", "--requests", "50", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["passed"] is True
    assert not done.stderr


def test_a_graph_that_computes_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    vocoder = SimVocoder(SimBackend(), 0)
    honest = vocoder.synthesize

    def synthesize(features: SimTensor) -> SimTensor:
        samples = honest(features)
        return kernels.scale(samples, 1.001) if vocoder.backend.capturing() else samples

    monkeypatch.setattr(vocoder, "synthesize", synthesize)
    result = job.run(vocoder, seed=0, requests=50)
    assert result.check.unequal == result.check.by_graph > 0
    assert not result.passed


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "cgstate", "demo", *arguments], capture_output=True, text=True, check=False)


def test_json_is_one_document_on_stdout() -> None:
    done = command("--backend", "sim", "--requests", "50", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["result"]["passed"] is True
    assert {"schema", "table_hash", "cgstate", "command"} <= set(document)
    assert not done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--requests", "3"], 2),
        (["--requests", "x"], 2),
        (["--nonsense"], 2),
        (["--backend", "abacus"], 2),
        (["--backend", "sim", "--seed", "-1"], 2),
        (["--backend", "sim", "--model", "sim", "--seed", str(1 << 64)], 2),
        (["--backend", "cuda", "--model", "sim"], 2),
    ],
)
def test_a_users_mistake_is_exit_2_without_a_traceback(arguments: list[str], code: int) -> None:
    done = command(*arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_torch_takes_the_largest_seed() -> None:
    torch = pytest.importorskip("torch")
    assert torch.Generator().manual_seed(LARGEST_SEED).initial_seed() == LARGEST_SEED


@pytest.mark.parametrize("how", [(), ("--json",)], ids=["summary", "json"])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")
def test_an_answer_that_nobody_gets_is_no_verdict(how: tuple[str, ...]) -> None:
    arguments = [sys.executable, "-m", "cgstate", "demo", "--backend", "sim", "--requests", "50", *how]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "cgstate: stdout: No space left on device\n")


def test_the_summary_needs_no_unicode() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = [sys.executable, "-m", "cgstate", "demo", "--backend", "sim", "--requests", "50"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "all equal" in done.stdout


def test_the_version_is_printed() -> None:
    done = subprocess.run([sys.executable, "-m", "cgstate", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cgstate 0.")


def test_a_missing_device_is_exit_4_and_one_line() -> None:
    from cgstate.backends.choose import cuda_is_here

    if cuda_is_here():
        pytest.skip("there is a CUDA device here")
    done = command("--backend", "cuda")
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
