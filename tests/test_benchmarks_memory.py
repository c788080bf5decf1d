"""The measuring of memory, on the simulator: it runs, and its figures follow from its rows."""

from __future__ import annotations

import pytest

from benchmarks import memory, ordering, rounds
from benchmarks.shapes import Shape, shapes_on
from cgstate.backends.sim import SimBackend
from cgstate.runtime.reclaimer import Reclaimer


@pytest.mark.parametrize("name", ["mlp", "mixture", "mlp, a pool each"])
def test_every_shape_is_within_its_estimate(name: str) -> None:
    row = memory.estimated(*_fresh(name))
    assert row["within"], row
    assert float(row["upper_over_actual"]) <= 1.10
    assert row["trusted"]


def test_largest_first_is_compared_with_other_orders() -> None:
    backend, shape = _fresh("mlp")
    row = ordering.ordered(backend, shape.parts[0], 3)
    assert row["order_ratio"] == row["largest_first"] / row["least"] <= 1.02
    assert row["least"] <= row["most"]


@pytest.mark.parametrize("name", ["mlp", "mixture", "mlp, a pool each"])
def test_a_first_block_never_costs_anything(name: str) -> None:
    row = ordering.compacted(*_fresh(name))
    assert row["compact_saved_bytes"] == row["apart"] - row["compact"] >= 0


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("isolation", memory.ISOLATIONS)
def test_random_rounds_leave_nothing_and_are_right(isolation: str, beside: bool) -> None:
    assert rounds.run(SimBackend(), isolation, 40, beside=beside) == {"rounds": 40, "leaked_bytes": 0, "wrong": 0}


def test_a_workspace_left_by_each_generation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reclaimer, "guests", lambda reclaimer: False)
    monkeypatch.setattr(Reclaimer, "_workspaces_are_ours", lambda reclaimer: False)
    assert rounds.run(SimBackend(), "per_entry", 40, beside=True)["leaked_bytes"] > 0


def test_a_leak_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimBackend()
    right = backend.footprint
    kept = []

    def leaking() -> object:
        kept.append(backend.sim.empty(4096))
        return right()

    monkeypatch.setattr(backend, "footprint", leaking)
    assert rounds.run(backend, "shared", 1)["leaked_bytes"] > 0


def test_sharing_a_stream_saves_bytes() -> None:
    figures = memory.shared_stream(SimBackend())
    assert figures["shared_stream_saved_bytes"] > 0
    assert figures["shared_stream_unequal"] == 0


def _fresh(name: str) -> tuple[SimBackend, Shape]:
    backend = SimBackend()
    return backend, next(shape for shape in shapes_on(backend) if shape.name == name)
