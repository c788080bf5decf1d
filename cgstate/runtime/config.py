"""The strict configuration: what may be said of a component, parsed at `prepare`, before any device work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cgstate.errors import ConfigError
from cgstate.runtime.domain import Isolation

ExtraGraphs: TypeAlias = "int | Literal['unbounded']"
OPTIONS = frozenset({"isolation", "max_extra_graphs"})
"""Keys that every component has."""


@dataclass(frozen=True, slots=True)
class ComponentConfig:
    """One component's configuration.

    Attributes:
        max_extra_graphs: Lazily captured graphs beyond the declared descriptors; 0 means none.
        isolation: How far its entries are kept apart.
        own: The component's own keys, as given.
    """

    max_extra_graphs: ExtraGraphs = 0
    isolation: Isolation = Isolation.shared
    own: Mapping[str, object] = field(default_factory=dict)


def parse(
    config: Mapping[str, Mapping[str, object]] | None,
    declared: Mapping[str, frozenset[str]],
    isolation: Isolation,
) -> dict[str, ComponentConfig]:
    """Parse the whole mapping.

    Args:
        config: Component id to its keys; None makes every declared component active with defaults.
        declared: Component id to the keys of its own that it supports.
        isolation: The manager's default.

    Returns:
        The active components' configuration. Components that are not named stay eager.

    Raises:
        ConfigError: unknown component, unknown key, wrong type, negative or boolean count.
    """
    if config is None:
        return {component: ComponentConfig(isolation=isolation) for component in declared}
    if not isinstance(config, Mapping):
        raise ConfigError(f"config must map component ids to mappings, not {config!r}")
    parsed: dict[str, ComponentConfig] = {}
    for component, keys in config.items():
        if component not in declared:
            raise ConfigError(f"config names unknown component {component!r}; there are {sorted(declared)}")
        if not isinstance(keys, Mapping):
            raise ConfigError(f"config of {component} must be a mapping, not {keys!r}")
        parsed[component] = _component(component, keys, declared[component], isolation)
    return parsed


def _component(component: str, keys: Mapping[str, object], own: frozenset[str], isolation: Isolation) -> ComponentConfig:
    extra: ExtraGraphs = 0
    mine: dict[str, object] = {}
    for key, value in keys.items():
        if key in own:
            mine[key] = value
        elif key == "max_extra_graphs":
            extra = _count(component, value)
        elif key == "isolation":
            isolation = _isolation(component, value)
        else:
            known = sorted(OPTIONS | own)
            raise ConfigError(f"config of {component} has unknown key {key!r}; it may have {known}")
    return ComponentConfig(extra, isolation, mine)


def _count(component: str, value: object) -> ExtraGraphs:
    if value == "unbounded":
        return "unbounded"
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"max_extra_graphs of {component} must be a count or 'unbounded', not {value!r}")
    return value


def _isolation(component: str, value: object) -> Isolation:
    try:
        return Isolation(value)  # type: ignore[arg-type]  # an enum looks any value up
    except ValueError:
        raise ConfigError(f"isolation of {component} must be one of {[kind.value for kind in Isolation]}, not {value!r}") from None
