"""The GPU at hand does what the recorded one did."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from cgstate.testing.fidelity import recording, running
from cgstate.testing.fidelity.facts import FACTS

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_every_fact_is_as_it_was_recorded() -> None:
    recorded = recording.bundled().origin
    if torch.__version__ != recorded.torch or torch.cuda.get_device_name(0) != recorded.device:
        pytest.skip(f"recorded on {recorded}")
    report = running.compare_gpu(None, list(FACTS.values()), programs=False, tick=lambda done: None)
    assert report.crashes == {}
    assert {verdict.fact.id: verdict.differences for verdict in report.facts if not verdict.agrees} == {}
    assert len(report.facts) == len(FACTS)
