"""The strict configuration: what a deployment may say of a model's components, each mistake named by its path."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from cgstate.errors import ConfigError
from cgstate.integrations.model_local.interface import ModelLocalCUDAGraphComponent
from cgstate.runtime import config as library
from cgstate.runtime.component import CaptureMode
from cgstate.runtime.domain import Isolation

log = logging.getLogger("cgstate")

KEY = "model_local_cudagraph"
LAZY_ONLY = frozenset({"max_extra_graphs", "admit_after", "thrash_protection"})
"""Options that say something of lazy captures only."""


def find(vllm_config: object) -> tuple[str, object]:
    """What the engine's configuration says, and where it says it.

    vLLM-Omni keeps it in ``model_config.model_local_cudagraph``; with vLLM alone it goes into ``additional_config``.

    Returns:
        The path for error messages, and the raw value; None where nothing is said.

    Raises:
        ConfigError: both places say something.
    """
    additional = getattr(vllm_config, "additional_config", None)
    places = {
        f"model_config.{KEY}": getattr(getattr(vllm_config, "model_config", None), KEY, None),
        f"additional_config.{KEY}": additional.get(KEY) if isinstance(additional, Mapping) else None,
    }
    said = {path: raw for path, raw in places.items() if raw is not None}
    if len(said) > 1:
        raise ConfigError(f"{' and '.join(said)} are both given; keep one of them")
    return next(iter(said.items()), (KEY, None))


def parse(
    path: str, raw: object, components: Sequence[ModelLocalCUDAGraphComponent], isolation: Isolation
) -> dict[str, Mapping[str, object]]:
    """The options of the active components, as `cgstate.GraphManager.prepare` takes them.

    Args:
        path: Where the configuration comes from.
        raw: Component id to its options, or to None for the defaults; None: no component is active.
        components: All of the model's.
        isolation: How far entries are kept apart where nothing else is said.

    Raises:
        ConfigError: unknown component, unknown key, wrong type, negative count, or an option that the component's capture mode does
            not support. The message names the path, what was given and what is allowed.
    """
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path} must map component ids to their options, not {raw!r}")
    declared = {component.component_id: component for component in components}
    parsed: dict[str, Mapping[str, object]] = {}
    for name, options in raw.items():
        if name not in declared:
            raise ConfigError(f"{path}.{name}: the model has no component {name!r}; it has {sorted(declared)}")
        parsed[name] = _options(f"{path}.{name}", {} if options is None else options, declared[name], isolation)
    return parsed


def _options(path: str, options: object, component: ModelLocalCUDAGraphComponent, isolation: Isolation) -> Mapping[str, object]:
    name, mode = component.component_id, component.capture_mode
    if not isinstance(options, Mapping):
        raise ConfigError(f"{path} must be a mapping of options, not {options!r}")
    for key, value in options.items():
        try:
            library.parse({name: {key: value}}, {name: component.supported_config_keys}, isolation)
        except ConfigError as error:
            raise ConfigError(f"{path}.{key}: {error}") from None
        if key in LAZY_ONLY and not mode.allows_lazy:
            lazy = [each.value for each in CaptureMode if each.allows_lazy]
            raise ConfigError(f"{path}.{key}: {value!r} is given, and {name} is {mode.value}; only {lazy} components have it")
    if mode.allows_lazy:
        if not component.descriptors:
            raise ConfigError(f"{path}: a {mode.value} component needs descriptors, to know what its graphs take; it declares none")
        _warn_of_the_limit(path, options)
    return options


def _warn_of_the_limit(path: str, options: Mapping[str, object]) -> None:
    """Say how 0, nothing and no limit are read, where vLLM-Omni's proposal reads or promises otherwise."""
    extra = options.get("max_extra_graphs")
    if extra is None:
        log.warning(
            "%s.max_extra_graphs is not given, which means 0: no graph beyond the declared ones. vLLM-Omni's proposal means no "
            "limit by it; say 'unbounded' for that",
            path,
        )
    elif extra == 0:
        log.warning(
            "%s.max_extra_graphs is 0: no graph beyond the declared ones. vLLM-Omni's proposal reads 0 as no limit; "
            "say 'unbounded' for that",
            path,
        )
    elif extra == "unbounded":
        log.warning("%s.max_extra_graphs is 'unbounded': the memory estimate cannot reserve anything for lazy graphs", path)
