"""The configuration is parsed strictly before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from cgstate import CaptureMode, Component, ConfigError, GraphManager, Isolation, LeasedComponent, ManagerState
from cgstate.runtime.config import ComponentConfig, parse
from tests.runtime.failing import Bench, Odd

WRONG: dict[str, Any] = {
    "unknown component": {"tyo": {}},
    "unknown key": {"toy": {"max_extra_graph": 1}},
    "another component's key": {"toy": {"their_own": 1}},
    "not a mapping": [],
    "a string": "toy",
    "a component without a mapping": {"toy": None},
    "a component with a list": {"toy": [("max_extra_graphs", 1)]},
    "a boolean count": {"toy": {"max_extra_graphs": True}},
    "False as a count": {"toy": {"max_extra_graphs": False}},
    "a negative count": {"toy": {"max_extra_graphs": -1}},
    "a float count": {"toy": {"max_extra_graphs": 1.0}},
    "no count": {"toy": {"max_extra_graphs": None}},
    "a count in words": {"toy": {"max_extra_graphs": "Unbounded"}},
    "an array as a count": {"toy": {"max_extra_graphs": Odd("")}},
    "a list as a count": {"toy": {"max_extra_graphs": [1]}},
    "zero misses": {"toy": {"admit_after": 0}},
    "negative misses": {"toy": {"admit_after": -1}},
    "a boolean number of misses": {"toy": {"admit_after": True}},
    "a float number of misses": {"toy": {"admit_after": 2.0}},
    "no number of misses": {"toy": {"admit_after": None}},
    "misses in words": {"toy": {"admit_after": "2"}},
    "protection as a number": {"toy": {"thrash_protection": 1}},
    "protection in words": {"toy": {"thrash_protection": "no"}},
    "no protection said so": {"toy": {"thrash_protection": None}},
    "unknown isolation": {"toy": {"isolation": "none"}},
    "a number as isolation": {"toy": {"isolation": 1}},
    "a list as isolation": {"toy": {"isolation": ["shared"]}},
    "a key that is no name": {"toy": {1: 1}},
    "a component that is no name": {1: {}},
    "the second of two": {"toy": {"max_extra_graphs": 1}, "other": {"max_extra_graphs": "x"}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_configuration_is_refused_before_any_device_work(name: str) -> None:
    bench = Bench("toy", "other", mode=CaptureMode.PRECAPTURE_LAZY)
    components = list(bench.components.values())
    before, states, calls = bench.footprint(), bench.states(), bench.faults.calls.copy()
    with pytest.raises(ConfigError):
        bench.manager.prepare(components, WRONG[name])
    assert bench.faults.calls - calls == {}
    assert bench.manager.state is ManagerState.NEW
    assert (bench.states(), bench.footprint()) == (states, before)
    assert not any(component.attached for component in components)
    bench.manager.prepare(components)
    bench.manager.capture_and_bind()
    bench.answers()


@pytest.mark.parametrize("key", ["max_extra_graphs", "admit_after"])
@pytest.mark.parametrize("count", [2, 4, "unbounded"])
def test_what_is_about_lazy_graphs_needs_a_lazy_mode(key: str, count: object) -> None:
    bench = Bench()
    with pytest.raises(ConfigError, match=key):
        bench.manager.prepare([bench.component], {"toy": {key: count}})
    bench.manager.prepare([bench.component], {"toy": {"max_extra_graphs": 0, "admit_after": 1, "thrash_protection": False}})


def test_components_that_are_not_named_stay_eager() -> None:
    bench = Bench("a", "b")
    report = bench.manager.prepare(list(bench.components.values()), {"b": {}})
    assert (report.active, report.eager) == (("b",), ("a",))
    bench.manager.capture_and_bind()
    assert (bench.components["a"].state, bench.components["b"].state) == ("EAGER", "BOUND")
    bench.answers()
    assert set(bench.manager.stats().components) == {"b"}


@pytest.mark.parametrize(("config", "active"), [(None, ("a", "b")), ({}, ())])
def test_no_configuration_is_all_and_an_empty_one_is_none(config: Mapping[str, Any] | None, active: tuple[str, ...]) -> None:
    bench = Bench("a", "b")
    assert bench.manager.prepare(list(bench.components.values()), config).active == active
    bench.manager.capture_and_bind()
    bench.answers()


def test_a_component_may_have_keys_of_its_own() -> None:
    parsed = parse({"a": {"window": [1], "max_extra_graphs": 2}}, {"a": frozenset({"window"})}, Isolation.shared)
    assert parsed == {"a": ComponentConfig(2, Isolation.shared, {"window": [1]})}


@pytest.mark.parametrize("key", ["max_extra_graphs", "isolation", "admit_after", "thrash_protection"])
def test_a_component_may_not_take_a_key_of_the_librarys(key: str) -> None:
    bench = Bench()
    with pytest.raises(ConfigError, match=key):
        Component("a", bench.routine, [4], supported_config_keys=[key])


@pytest.mark.parametrize("value", [Isolation.per_entry, "per_entry"])
def test_isolation_is_taken_by_name_or_member(value: object) -> None:
    bench = Bench()
    bench.manager.prepare([bench.component], {"toy": {"isolation": value}})
    bench.manager.capture_and_bind()
    assert len(bench.manager.memory().pools) == 3


MANAGERS: dict[str, dict[str, Any]] = {
    name: {key: value}
    for key, values in cast(
        dict[str, list[Any]],
        {
            "warmup_rounds": [0, -1, True, 1.5, "3", None],
            "negative_cache": [0, -1, True, 2.0, None],
            "stats_detail": [0, -1, False, "x"],
            "summary_every": [-1, True, 1.0, None],
            "budget_bytes": [0, -1, True, 1.5, "1GiB"],
            "check": [1, "yes", None],
            "compact": [1, "yes", None],
            "owner_thread": [1, "no", None],
            "isolation": ["none", 1, None, ["shared"]],
            "capture_error_mode": ["strict", 2, None],
            "backend": ["gpu", 5, None, object()],
            "vote": [5, "yes", object()],
            "observer": [5, "yes"],
            "sync": [5, None],
        },
    ).items()
    for value in values
    for name in [f"{key}={value!r}" if type(value) is not object else f"{key}=object"]
}


@pytest.mark.parametrize("name", MANAGERS)
def test_a_manager_is_not_made_of_wrong_arguments(name: str) -> None:
    bench = Bench()
    with pytest.raises(ConfigError):
        GraphManager(**{"backend": bench.backend, **MANAGERS[name]})
    bench.serving().answers()


COMPONENTS: dict[str, Callable[[Bench, Any], object]] = {
    "no id": lambda b, kind: kind("", b.routine, [4]),
    "a number as id": lambda b, kind: kind(5, b.routine, [4]),
    "no routine": lambda b, kind: kind("a", None, [4]),
    "a function as routine": lambda b, kind: kind("a", b.routine.work, [4]),
    "a routine's class": lambda b, kind: kind("a", type(b.routine), [4]),
    "no descriptors": lambda b, kind: kind("a", b.routine, []),
    "descriptors that are no list": lambda b, kind: kind("a", b.routine, 4),
    "None as descriptors": lambda b, kind: kind("a", b.routine, None),
    "None as a descriptor": lambda b, kind: kind("a", b.routine, [None]),
    "an unhashable descriptor": lambda b, kind: kind("a", b.routine, [[4]]),
    "a descriptor compared by address": lambda b, kind: kind("a", b.routine, [object()]),
    "a descriptor that is a function": lambda b, kind: kind("a", b.routine, [lambda: 0]),
    "a descriptor whose hash raises": lambda b, kind: kind("a", b.routine, [Odd("__hash__")]),
    "a descriptor whose comparison raises": lambda b, kind: kind("a", b.routine, [Odd("__eq__")]),
    "a descriptor whose comparison is an array": lambda b, kind: kind("a", b.routine, [Odd("")]),
    "descriptors that compare with themselves alone": lambda b, kind: kind("a", b.routine, [Odd("other"), Odd("other")]),
    "a descriptor whose text raises": lambda b, kind: kind("a", b.routine, [Odd("__repr__")]),
    "a descriptor unequal to itself": lambda b, kind: kind("a", b.routine, [float("nan")]),
    "descriptors twice": lambda b, kind: kind("a", b.routine, [4, 4]),
    "descriptors equal by value": lambda b, kind: kind("a", b.routine, [4, 4.0]),
    "descriptors without an order": lambda b, kind: kind("a", b.routine, [4, "x"]),
    "descriptors of no order": lambda b, kind: kind("a", b.routine, [1j, 2j]),
    "an order key that is no function": lambda b, kind: kind("a", b.routine, [4, 8], capture_order_key=5),
    "an order key that raises": lambda b, kind: kind("a", b.routine, [4, 8], capture_order_key=lambda d: d.size),
    "a mode in words": lambda b, kind: kind("a", b.routine, [4], capture_mode="precapture"),
    "a string as config keys": lambda b, kind: kind("a", b.routine, [4], supported_config_keys="window"),
    "a string as dependencies": lambda b, kind: kind("a", b.routine, [4], dependencies="kv_cache"),
    "a name of nothing among the dependencies": lambda b, kind: kind("a", b.routine, [4], dependencies=[""]),
    "inside of nothing": lambda b, kind: kind("a", b.routine, [4], inside=""),
    "a number among the dependencies": lambda b, kind: kind("a", b.routine, [4], dependencies=[5]),
    "a flag in words": lambda b, kind: kind("a", b.routine, [4], overlaps_capture="no"),
    "collective as a number": lambda b, kind: kind("a", b.routine, [4], collective=1),
    "concurrent leases as a number": lambda b, kind: kind("a", b.routine, [4], concurrent_leases=2),
    "a negative tolerance": lambda b, kind: kind("a", b.routine, [4], tolerance=-1.0),
    "a tolerance in words": lambda b, kind: kind("a", b.routine, [4], tolerance="small"),
    "a boolean tolerance": lambda b, kind: kind("a", b.routine, [4], tolerance=True),
}


@pytest.mark.parametrize("kind", [Component, LeasedComponent])
@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_is_not_made_of_wrong_arguments(name: str, kind: Any) -> None:
    bench = Bench()
    with pytest.raises(ConfigError):
        COMPONENTS[name](bench, kind)
    bench.serving().answers()


def test_descriptors_are_captured_largest_first() -> None:
    bench = Bench()
    component = Component("a", bench.routine, iter([4, 16, 8]), capture_order_key=None)
    assert component.descriptors == (16, 8, 4)
    assert Component("b", bench.routine, [4, 16, 8], capture_order_key=lambda size: -size).descriptors == (4, 8, 16)
