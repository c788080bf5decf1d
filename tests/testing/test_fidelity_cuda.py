"""The GPU at hand does what the recorded one did."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

import torch

from cgstate.testing.fidelity import recording, running
from cgstate.testing.fidelity.facts import FACTS

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

OF_THE_WHOLE_DEVICE = frozenset({"P7", "P8"})
"""Facts that are told from what the device has left for everybody."""


def _agree(names: frozenset[str]) -> None:
    recorded = recording.bundled().origin
    if torch.__version__ != recorded.torch or torch.cuda.get_device_name(0) != recorded.device:
        pytest.skip(f"recorded on {recorded}")
    facts = [fact for name, fact in FACTS.items() if name in names]
    report = running.compare_gpu(None, facts, programs=False, tick=lambda done: None)
    assert report.crashes == {}
    assert {verdict.fact.id: verdict.differences for verdict in report.facts if not verdict.agrees} == {}
    assert len(report.facts) == len(facts) == len(names)


def test_every_fact_is_as_it_was_recorded() -> None:
    _agree(frozenset(FACTS) - OF_THE_WHOLE_DEVICE)


def test_what_the_whole_device_tells_is_as_it_was_recorded() -> None:
    if os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1":
        pytest.skip("other processes of this run allocate meanwhile; without -n they do not")
    _agree(OF_THE_WHOLE_DEVICE)
