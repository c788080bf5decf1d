"""Memory outside the library whose addresses graphs bake in: KV cache, weights, adapter slots, workspaces of others."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Dependency:
    """A named piece of foreign memory with an epoch.

    Attributes:
        name: Its name, as given to `GraphManager.invalidate`.
        epoch: Moves with every invalidation.
        components: Ids of the components that declared it.
    """

    name: str
    epoch: int = 0
    components: set[str] = field(default_factory=set)
