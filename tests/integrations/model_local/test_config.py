"""Bad input: every mistake of a deployment and of a model is named by its path, what was given, and what is allowed."""

from __future__ import annotations

import re
from typing import Any

import pytest

import cgstate
from cgstate.integrations.model_local import (
    ModelLocalCUDAGraphComponent,
    ModelLocalCUDAGraphDescriptor,
    ModelLocalCUDAGraphManager,
    supports_model_local_cudagraph,
)
from tests.integrations.model_local.helpers import Model, engine, lazy, sizes

PATH = r"model_config\.model_local_cudagraph"
COUNT = "must be a count or 'unbounded'"

REFUSED: list[tuple[Any, str]] = [
    (7, rf"{PATH} must map component ids to their options, not 7"),
    ("first", rf"{PATH} must map component ids to their options, not 'first'"),
    ([], rf"{PATH} must map component ids to their options, not \[\]"),
    ({"frist": {}}, rf"{PATH}\.frist: the model has no component 'frist'; it has \['first', 'second'\]"),
    ({1: {}}, rf"{PATH}\.1: the model has no component 1"),
    ({"first": 4}, rf"{PATH}\.first must be a mapping of options, not 4"),
    ({"first": [4]}, rf"{PATH}\.first must be a mapping of options, not \[4\]"),
    ({"first": True}, rf"{PATH}\.first must be a mapping of options, not True"),
    ({"first": {"max_extra": 4}}, rf"{PATH}\.first\.max_extra: .*unknown key 'max_extra'; it may have .*'max_extra_graphs'"),
    ({"first": {"capture_mode": "pure_lazy"}}, rf"{PATH}\.first\.capture_mode: .*unknown key"),
    ({"first": {3: 4}}, rf"{PATH}\.first\.3: .*unknown key 3"),
    ({"first": {"max_extra_graphs": -1}}, rf"{PATH}\.first\.max_extra_graphs: .*{COUNT}, not -1"),
    ({"first": {"max_extra_graphs": True}}, rf"{PATH}\.first\.max_extra_graphs: .*{COUNT}, not True"),
    ({"first": {"max_extra_graphs": 1.0}}, rf"{PATH}\.first\.max_extra_graphs: .*{COUNT}, not 1.0"),
    ({"first": {"max_extra_graphs": "4"}}, rf"{PATH}\.first\.max_extra_graphs: .*{COUNT}, not '4'"),
    ({"first": {"max_extra_graphs": None}}, rf"{PATH}\.first\.max_extra_graphs: .*{COUNT}, not None"),
    ({"first": {"max_extra_graphs": [1]}}, rf"{PATH}\.first\.max_extra_graphs: .*{COUNT}, not \[1\]"),
    ({"first": {"admit_after": 0}}, rf"{PATH}\.first\.admit_after: .*must be a positive count, not 0"),
    ({"first": {"thrash_protection": 1}}, rf"{PATH}\.first\.thrash_protection: .*must be True or False, not 1"),
    ({"first": {"isolation": "apart"}}, rf"{PATH}\.first\.isolation: .*must be one of \['shared', .*'per_entry'.* not 'apart'"),
    ({"first": {"isolation": "foreign"}}, rf"{PATH}: isolation of first is foreign, and the manager was given no pool"),
    ({"second": {"max_extra_graphs": 4}}, rf"{PATH}\.second\.max_extra_graphs: 4 .*second is precapture; only \['precapture_lazy'"),
    ({"second": {"max_extra_graphs": 0}}, rf"{PATH}\.second\.max_extra_graphs: 0 is given, and second is precapture"),
    ({"second": {"admit_after": 2}}, rf"{PATH}\.second\.admit_after: 2 is given, and second is precapture"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "message"), REFUSED, ids=[str(raw) for raw, _ in REFUSED])
def test_a_wrong_configuration_is_refused_by_its_path(raw: Any, message: str) -> None:
    model = lazy()
    manager = model.manager(raw)
    with pytest.raises(cgstate.ConfigError, match=message):
        manager.prepare(model)
    assert model.first.handle is None
    assert model.right("first", 2)
    manager.close()


def test_after_a_refusal_a_right_configuration_is_taken() -> None:
    model = lazy()
    manager = model.manager({"first": {"isolation": "foreign"}})
    with pytest.raises(cgstate.ConfigError):
        manager.prepare(model)
    good = model.serving({"first": {"max_extra_graphs": 1}})
    assert model.right("first", 6)
    good.close()
    manager.close()


def test_a_component_has_keys_of_its_own() -> None:
    model = Model(supported_config_keys=["buckets"])
    manager = model.serving({"first": {"buckets": [1, 2]}})
    assert model.right("first", 2)
    manager.close()
    with pytest.raises(cgstate.ConfigError, match=r"second\.buckets: .*unknown key 'buckets'"):
        model.manager({"second": {"buckets": [1, 2]}}).prepare(model)


@pytest.mark.parametrize("mode", ["precapture_lazy", "pure_lazy"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_extra_graphs": 0}, "first.max_extra_graphs is 0: .*vLLM-Omni's proposal reads 0 as no limit; say 'unbounded'"),
        ({}, "first.max_extra_graphs is not given, which means 0: .*say 'unbounded'"),
        (None, "first.max_extra_graphs is not given, which means 0"),
        ({"max_extra_graphs": "unbounded"}, "first.max_extra_graphs is 'unbounded': the memory estimate cannot reserve"),
    ],
)
def test_a_limit_that_upstream_reads_otherwise_is_warned_of(
    mode: str, options: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(capture_mode=mode)
    manager = model.manager({"first": options})
    manager.prepare(model)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(message, record.getMessage())
    manager.close()


@pytest.mark.parametrize("raw", [{"first": {"max_extra_graphs": 3}}, {"second": {}}, {}, None])
def test_what_is_clear_is_not_warned_of(raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = lazy()
    manager = ModelLocalCUDAGraphManager(vllm_config=engine(raw), device="cpu", backend=model.backend)
    manager.prepare(model)
    assert caplog.records == []
    manager.close()


@pytest.mark.parametrize("mode", ["precapture_lazy", "pure_lazy"])
def test_a_lazy_component_without_descriptors_is_refused(mode: str) -> None:
    model = Model(capture_mode=mode, descriptors=[])
    with pytest.raises(cgstate.ConfigError, match=rf"{PATH}\.first: a {mode} component needs descriptors"):
        model.manager({"first": {"max_extra_graphs": 1}}).prepare(model)
    model.manager({"second": {}}).prepare(model)  # where it is not asked for, it stays eager


def test_a_startup_component_without_descriptors_stays_eager(caplog: pytest.LogCaptureFixture) -> None:
    model = Model(descriptors=[])
    manager = model.serving({"first": {}, "second": {}})
    assert "first has no descriptor that can be captured" in caplog.text
    assert model.right("first", 2)
    manager.close()


# -- where the configuration is ------------------------------------------------------------------------------------------


def test_with_vllm_alone_the_configuration_is_in_additional_config() -> None:
    model = Model()
    config = engine(additional={"model_local_cudagraph": {"first": {}}})
    manager = ModelLocalCUDAGraphManager(vllm_config=config, device="cpu", backend=model.backend)
    assert manager.prepare(model).active == ("first",)
    manager.close()
    wrong = engine(additional={"model_local_cudagraph": {"frist": {}}})
    manager = ModelLocalCUDAGraphManager(vllm_config=wrong, device="cpu", backend=model.backend)
    with pytest.raises(cgstate.ConfigError, match=r"additional_config\.model_local_cudagraph\.frist"):
        manager.prepare(model)


def test_one_place_has_to_be_enough() -> None:
    config = engine({"first": {}}, additional={"model_local_cudagraph": {}})
    with pytest.raises(cgstate.ConfigError, match=r"model_config.* and additional_config.* are both given"):
        ModelLocalCUDAGraphManager(vllm_config=config, device="cpu")


def test_a_bare_configuration_says_nothing() -> None:
    model = Model()
    with ModelLocalCUDAGraphManager(vllm_config=object(), device="cpu", backend=model.backend) as manager:
        assert manager.prepare(model).active == ()
        assert not manager.metrics_enabled


def test_warm_up_rounds_follow_the_engine_but_are_enough_to_settle() -> None:
    for asked, most in ((0, 3), (1, 3), (5, 5)):
        model = Model()
        manager = ModelLocalCUDAGraphManager(vllm_config=engine(warmups=asked), device="cpu", backend=model.backend)
        assert manager.graphs._books.warmup_rounds == most
        manager.close()


@pytest.mark.parametrize("device", ["tpu", "", None, 3])
def test_an_unknown_device_is_refused(device: object) -> None:
    with pytest.raises(cgstate.ConfigError, match=r"device must be one of \['cpu', 'cuda'\], not "):
        ModelLocalCUDAGraphManager(vllm_config=engine(), device=device)


def test_an_unknown_isolation_or_backend_is_refused() -> None:
    with pytest.raises(cgstate.ConfigError, match="isolation must be one of"):
        ModelLocalCUDAGraphManager(vllm_config=engine(), device="cpu", isolation="apart")
    with pytest.raises(cgstate.ConfigError, match="backend must be one of"):
        ModelLocalCUDAGraphManager(vllm_config=engine(), device="cpu", backend="gpu")


# -- what the model declares ---------------------------------------------------------------------------------------------


def test_a_model_declares_components_by_saying_so_and_having_the_method() -> None:
    class Says:
        supports_model_local_cudagraph = True

    class Has:
        def get_model_local_cudagraph_components(self) -> tuple[()]:
            return ()

    class Truthy(Has):
        supports_model_local_cudagraph = "yes"

    assert supports_model_local_cudagraph(Model())
    assert not any(supports_model_local_cudagraph(model) for model in (Says(), Has(), Truthy(), object(), None))


def test_a_configuration_for_a_model_without_components_is_refused() -> None:
    manager = ModelLocalCUDAGraphManager(vllm_config=engine({"first": {}}), device="cpu")
    with pytest.raises(cgstate.ConfigError, match=r"first: the model has no component 'first'; it has \[\]"):
        manager.prepare(object())


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda model: None, "must return a sequence, not None"),
        (lambda model: (model.first, "second"), "must return components, not 'second'"),
        (lambda model: (model.first, model.first), "returns 'first' twice"),
    ],
)
def test_what_a_model_declares_is_checked(declare: Any, message: str) -> None:
    model = Model()
    model.components = declare(model)
    with pytest.raises(cgstate.ConfigError, match=rf"get_model_local_cudagraph_components\(\) of Model {message}"):
        model.manager().prepare(model)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"component_id": ""}, "a component id must be a non-empty string, not ''"),
        ({"component_id": 3}, "a component id must be a non-empty string, not 3"),
        ({"routine": object()}, "the routine of net must derive from BaseModelLocalCUDAGraphRoutine, not be a object"),
        ({"descriptors": "ab"}, "descriptors of net must be a sequence, not 'ab'"),
        ({"descriptors": 4}, "descriptors of net must be a sequence, not 4"),
        ({"descriptors": [4]}, "descriptors of net must be ModelLocalCUDAGraphDescriptors, not 4"),
        ({"descriptors": sizes(2, 2)}, "descriptors of net are not unique"),
        ({"descriptors": [ModelLocalCUDAGraphDescriptor[Any]([2])]}, "is not hashable; use a frozen value"),
        ({"descriptors": [ModelLocalCUDAGraphDescriptor("a"), *sizes(2)]}, "cannot be ordered; give it a capture_order_key"),
        ({"capture_order_key": 3}, "capture_order_key of net must be a function, not 3"),
        ({"capture_order_key": lambda each: each.size}, "capture_order_key of net raised AttributeError"),
        ({"clone_output": None}, "clone_output of net must be True or False, not None"),
        ({"collective": 1}, "collective of net must be True or False, not 1"),
        (
            {"capture_mode": "lazy"},
            r"capture_mode of net must be one of \['precapture', 'precapture_lazy', 'pure_lazy'\], not 'lazy'",
        ),
        ({"capture_mode": None}, "capture_mode of net must be one of .*, not None"),
        ({"supported_config_keys": "buckets"}, "supported_config_keys of net must be a sequence of"),
        ({"dependencies": "weights"}, "dependencies of net must be a sequence of"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else given,
)
def test_a_wrong_component_is_refused_where_it_is_made(keys: dict[str, Any], message: str) -> None:
    right = {"component_id": "net", "routine": Model().routines["first"], "descriptors": sizes(2)}
    with pytest.raises(cgstate.ConfigError, match=message):
        ModelLocalCUDAGraphComponent(**{**right, **keys})


def test_keys_that_every_component_has_are_nobodys_own() -> None:
    model = Model(supported_config_keys=["isolation"])
    with pytest.raises(cgstate.ConfigError, match="supported_config_keys of first may not hold"):
        model.manager({"first": {}}).prepare(model)


def test_descriptors_without_an_order_take_a_key() -> None:
    model = Model()
    component = ModelLocalCUDAGraphComponent(
        "net",
        model.routines["first"],
        [ModelLocalCUDAGraphDescriptor("small"), ModelLocalCUDAGraphDescriptor(8)],
        capture_order_key=lambda each: 2 if each.variant == "small" else each.variant,
    )
    assert [each.variant for each in component.capture_descriptors] == [8, "small"]
