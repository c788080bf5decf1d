"""The strict configuration: what may be said of a component, parsed at `prepare`, before any device work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cgstate.errors import ConfigError
from cgstate.runtime.domain import Isolation

ExtraGraphs: TypeAlias = "int | Literal['unbounded']"
OPTIONS = frozenset({"admit_after", "isolation", "max_extra_graphs", "thrash_protection"})
"""Keys that every component has."""


@dataclass(frozen=True, slots=True)
class ComponentConfig:
    """One component's configuration.

    Attributes:
        max_extra_graphs: Lazily captured graphs beyond the declared descriptors: a count or ``"unbounded"``; 0 means none. With
            ``per_entry`` isolation, the least recently used lazy graph makes place where there is none.
        isolation: How far its entries are kept apart: ``"shared"``, ``"per_component"``, ``"per_entry"`` or ``"foreign"``.
        own: The component's own keys, as given.
        admit_after: A lazily wanted descriptor is captured at its n-th miss, n ≥ 1; earlier ones are eager.
        thrash_protection: Whether a descriptor that was evicted to make room has to be missed more often to come back: twice as
            often after each eviction, up to 64 times, and half as often again for each 64 replays that it served.
    """

    max_extra_graphs: ExtraGraphs = 0
    isolation: Isolation = Isolation.shared
    own: Mapping[str, object] = field(default_factory=dict)
    admit_after: int = 1
    thrash_protection: bool = True


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
    after, protection = 1, True
    mine: dict[str, object] = {}
    for key, value in keys.items():
        if key in own:
            mine[key] = value
        elif key == "max_extra_graphs":
            extra = _count(component, value)
        elif key == "isolation":
            isolation = _isolation(component, value)
        elif key == "admit_after":
            after = _misses(component, value)
        elif key == "thrash_protection":
            protection = _flag(component, key, value)
        else:
            known = sorted(OPTIONS | own)
            raise ConfigError(f"config of {component} has unknown key {key!r}; it may have {known}")
    return ComponentConfig(extra, isolation, mine, after, protection)


def _count(component: str, value: object) -> ExtraGraphs:
    if isinstance(value, str) and value == "unbounded":
        return "unbounded"
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"max_extra_graphs of {component} must be a count or 'unbounded', not {value!r}")
    return value


def _misses(component: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"admit_after of {component} must be a positive count, not {value!r}")
    return value


def _flag(component: str, key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} of {component} must be True or False, not {value!r}")
    return value


def _isolation(component: str, value: object) -> Isolation:
    try:
        return Isolation(value)  # type: ignore[arg-type]  # an enum looks any value up
    except ValueError:
        raise ConfigError(f"isolation of {component} must be one of {[kind.value for kind in Isolation]}, not {value!r}") from None
