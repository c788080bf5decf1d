"""What Prometheus scrapes is what the manager counts and holds."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

import cgstate
from tests.runtime.helpers import Model

pytest.importorskip("prometheus_client", reason="the collector is an optional extra")

from prometheus_client import CollectorRegistry, generate_latest

from cgstate.observe.prometheus import ManagerCollector


def scraped(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample, by its name and labels."""
    samples = (sample for family in registry.collect() for sample in family.samples)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def of(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """The samples of a metric, by the values of the labels besides the manager's."""
    found = {}
    for (metric, labels), value in scraped(registry).items():
        if metric == name:
            found["/".join(text for label, text in labels if label != "manager")] = value
    return found


def served() -> tuple[cgstate.GraphManager, Model]:
    """A manager with hits, misses, a lazy capture, an eviction and a failure behind it."""
    model = Model()
    net = model.component("net", (4, 8), sizes=(16,), capture_mode=cgstate.CaptureMode.PRECAPTURE_LAZY)
    manager = model.serving(net, config={"net": {"max_extra_graphs": 1, "isolation": "per_entry"}})
    for size in (4, 3, 16, 40, 40):
        net(model.input(size))
    manager.evict("net", 4)

    def boom() -> None:
        raise ValueError("no")

    with pytest.raises(cgstate.CaptureFailed), manager.transaction() as transaction:
        transaction.capture(manager.entry("other", 1), lambda warmup: boom)
    return manager, model


def test_every_count_of_the_statistics_is_exported() -> None:
    manager, _ = served()
    registry = CollectorRegistry()
    registry.register(ManagerCollector(manager, "m"))
    stats = manager.stats()
    net = stats.components["net"]
    assert of(registry, "cgstate_hits_total") == {name: counts.hits for name, counts in stats.components.items()}
    assert of(registry, "cgstate_captures_total") == {name: counts.captures for name, counts in stats.components.items()}
    assert of(registry, "cgstate_fallbacks_total") == {f"net/{reason}": number for reason, number in net.fallbacks.items()}
    assert of(registry, "cgstate_evictions_total") == {f"{cause}/net": number for cause, number in net.evicted.items()}
    assert of(registry, "cgstate_failures_total") == {"other/USER": 1}
    assert net.hits == 3
    assert net.fallbacks == {cgstate.Fallback.miss: 2}
    assert net.evicted == {cgstate.Eviction.asked: 1}
    assert of(registry, "cgstate_reclaims_total") == {"": stats.reclaims}
    assert of(registry, "cgstate_flushes_total") == {"": stats.flushes}
    assert of(registry, "cgstate_reclaimed_bytes_total") == {"": stats.reclaimed_bytes}
    assert of(registry, "cgstate_stalled_seconds_total") == {"": stats.stalled_ns / 1e9}
    manager.close()


def test_held_bytes_add_up_to_what_the_manager_holds() -> None:
    manager, _ = served()
    registry = CollectorRegistry()
    registry.register(ManagerCollector(manager, "m"))
    held = of(registry, "cgstate_held_bytes")
    assert set(held) == {"live", "stranded", "retired", "buffers"}
    assert sum(held.values()) == manager.memory().total > 0
    assert of(registry, "cgstate_graphs") == {"net": 2}
    manager.close()
    assert sum(of(registry, "cgstate_held_bytes").values()) == 0


def test_one_state_is_the_managers() -> None:
    manager, _ = served()
    registry = CollectorRegistry()
    registry.register(ManagerCollector(manager, "m"))
    states = of(registry, "cgstate_state")
    assert set(states) == {state.value for state in cgstate.ManagerState}
    assert {state for state, value in states.items() if value} == {"SERVING"}
    manager.close()
    assert {state for state, value in of(registry, "cgstate_state").items() if value} == {"CLOSED"}


def test_two_managers_are_told_apart_in_one_registry() -> None:
    (one, _), (two, _) = served(), served()
    registry = CollectorRegistry()
    registry.register(ManagerCollector(one, "one"))
    registry.register(ManagerCollector(two, "two"))
    assert {dict(labels)["manager"] for _, labels in scraped(registry)} == {"one", "two"}
    assert b'cgstate_hits_total{component="net",manager="one"} 3.0' in generate_latest(registry)
    one.close()
    two.close()


def test_a_collector_keeps_no_manager_alive() -> None:
    manager, _ = served()
    registry = CollectorRegistry()
    registry.register(ManagerCollector(manager, "m"))
    manager.close()
    del manager
    gc.collect()
    assert scraped(registry) == {}


def test_importing_the_library_imports_no_prometheus() -> None:
    code = "import sys, cgstate.observe, cgstate.runtime.manager; raise SystemExit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
