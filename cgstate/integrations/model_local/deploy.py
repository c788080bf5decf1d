"""Reads the components' configuration out of a deploy file, which is data: loaded safely, of bounded size, no key given twice."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgstate.errors import ConfigError
from cgstate.integrations.model_local.config import KEY

if TYPE_CHECKING:
    from yaml import SafeLoader
    from yaml.nodes import MappingNode, Node

LIMIT = 1 << 20
"""The largest deploy file that is read, bytes; written out without aliases, it may not be larger either."""


def read_deploy(path: str | Path, *, stage: int | None = None) -> Mapping[str, object] | None:
    """What a deploy file says of the model's components: the mapping under ``model_local_cudagraph``, as it stands.

    Args:
        path: A YAML file, with the mapping at its top, or in one or more of its ``stages``.
        stage: Whose, by ``stage_id``; may be left out where just one stage has it.

    Returns:
        None where the file says nothing.

    Raises:
        ConfigError: no such file, no YAML, too large, a key given twice, no such stage, or several stages to choose from.
    """
    path = Path(path)
    document = _load(path)
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} must hold a mapping, not {type(document).__name__}")
    found = {number: part[KEY] for number, part in _stages(path, document).items() if part.get(KEY) is not None}
    if document.get(KEY) is not None:
        if found:
            raise ConfigError(f"{path}: {KEY} is given at the top and in stages {sorted(found)}; keep one of them")
        return _mapping(f"{path}: {KEY}", document[KEY])
    if stage is not None:
        stages = _stages(path, document)
        if stage not in stages:
            raise ConfigError(f"{path} has no stage {stage!r}; it has {sorted(stages)}")
        found = {number: said for number, said in found.items() if number == stage}
    if len(found) > 1:
        raise ConfigError(f"{path}: stages {sorted(found)} have {KEY}; say which one is meant")
    for number, said in found.items():
        return _mapping(f"{path}: stage {number}: {KEY}", said)
    return None


def _mapping(where: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must map component ids to their options, not {value!r}")
    return value


def _stages(path: Path, document: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The stages by their ids."""
    stages = document.get("stages") or []
    if not isinstance(stages, list):
        raise ConfigError(f"{path}: stages must be a list, not {stages!r}")
    by_id: dict[int, Mapping[str, Any]] = {}
    for place, part in enumerate(stages):
        if not isinstance(part, Mapping):
            raise ConfigError(f"{path}: stages[{place}] must be a mapping, not {part!r}")
        number = part.get("stage_id", place)
        if isinstance(number, bool) or not isinstance(number, int) or number in by_id:
            raise ConfigError(f"{path}: stage_id of stages[{place}] must be a number of its own, not {number!r}")
        by_id[number] = part
    return by_id


def _load(path: Path) -> object:
    try:
        import yaml
    except ImportError:
        raise ConfigError("reading a deploy file needs PyYAML: pip install pyyaml") from None
    try:
        with path.open("rb") as file:
            text = file.read(LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > LIMIT:
        raise ConfigError(f"{path} is larger than {LIMIT} bytes")
    try:
        document: object = yaml.load(text, _strict_loader())
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is no YAML that can be read: {error}") from None
    return document


def _strict_loader() -> type[SafeLoader]:
    """PyYAML's safe loader, which by itself lets the last of two equal keys win in silence."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def get_single_node(self) -> Node | None:
            node = super().get_single_node()
            if node is not None and _written_out(node, {}) > LIMIT:
                raise yaml.YAMLError(f"with its aliases written out it is larger than {LIMIT} characters, or contains itself")
            return node

        def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[object] = set()
            for key, _ in node.value:
                name = getattr(key, "value", None)
                if isinstance(name, str) and name != "<<":
                    if name in seen:
                        raise yaml.YAMLError(f"key {name!r} is given twice{key.start_mark}")
                    seen.add(name)
            return super().construct_mapping(node, deep)

    return StrictLoader


def _written_out(node: Node, known: dict[Node, float]) -> float:
    """At least how many characters a value takes with each alias in it written out; infinite where it contains itself."""
    if node not in known:
        known[node] = inf
        if isinstance(node.value, str):
            known[node] = 1 + len(node.value)
        else:
            parts = (part for item in node.value for part in (item if isinstance(item, tuple) else (item,)))
            known[node] = 1 + sum(_written_out(part, known) for part in parts)
    return known[node]
