"""Memory outside the library whose addresses graphs bake in: KV cache, weights, adapter slots, workspaces of others.

A dependency is a name with an epoch. Components say which ones their graphs bake in; when such memory moves, the epoch moves, and
the graphs that knew the old place are retired. Whether the memory is there at all is `residency`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgstate.errors import ConfigError
from cgstate.runtime.witness import Notice

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.domain import Domain
    from cgstate.runtime.record import ComponentRecord


@dataclass(frozen=True, slots=True)
class Dependency:
    """A named piece of foreign memory, as it was when asked for.

    Attributes:
        name: Its name.
        epoch: How often it has moved: by `GraphManager.invalidate`, `GraphManager.mutating`, or a `GraphManager.resume` that said
            so.
        resident: Whether it is there; false from `GraphManager.suspend` to `GraphManager.resume`.
        components: Ids of the components whose graphs bake it in.
    """

    name: str
    epoch: int
    resident: bool
    components: frozenset[str]


class DependencyRecord:
    """The books' own record of a dependency; the device's lock guards it."""

    __slots__ = ("components", "epoch", "name", "suspended")

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.suspended = False
        self.components: set[str] = set()

    def snapshot(self) -> Dependency:
        """What users see."""
        return Dependency(self.name, self.epoch, not self.suspended, frozenset(self.components))


def checked_names(what: str, names: object) -> tuple[str, ...]:
    """``names`` as given.

    Raises:
        ConfigError: not a sequence of strings that are not empty. A single string is iterable too, and never meant.
    """
    sequence = isinstance(names, Iterable) and not isinstance(names, str)
    found = tuple(names) if isinstance(names, Iterable) and sequence else ()
    if not sequence or not all(isinstance(name, str) and name for name in found):
        raise ConfigError(f"{what} must be a sequence of names, not {names!r}")
    return found


def declare(books: Books, names: Iterable[str], record: ComponentRecord | None = None) -> None:
    """Know ``names`` from now on, and that a component depends on them; the lock is held."""
    for name in names:
        dependency = books.dependencies.get(name)
        if dependency is None:
            dependency = books.dependencies[name] = DependencyRecord(name)
        if record is not None:
            dependency.components.add(record.component_id)
            record.eager.tracked = True


def declared(books: Books, names: Iterable[object]) -> list[DependencyRecord]:
    """The dependencies of these names, each once; the lock is held.

    Raises:
        ConfigError: nobody declared one of them.
    """
    found: list[DependencyRecord] = []
    for name in names:
        dependency = books.dependencies.get(name) if isinstance(name, str) else None
        if dependency is None:
            raise ConfigError(f"unknown dependency {name!r}; declared are {sorted(books.dependencies)}")
        if dependency not in found:
            found.append(dependency)
    return found


def dependents(books: Books, dependencies: Iterable[DependencyRecord]) -> list[ComponentRecord]:
    """The components that depend on any of these; the lock is held."""
    ids = {component_id for dependency in dependencies for component_id in dependency.components}
    return [record for component_id, record in books.components.items() if component_id in ids]


def invalidate(books: Books, dependencies: Iterable[DependencyRecord]) -> int:
    """Move the epochs and retire every graph that baked the old places in; the lock is held. Returns how many graphs."""
    dependencies = list(dependencies)
    touched = {entry.domain for record in dependents(books, dependencies) for entry in record.entries.values()}
    try:
        for dependency in dependencies:
            dependency.epoch += 1
            for record in dependents(books, (dependency,)):
                record.note_move()
                books.tell(record, Notice.epoch, record.epoch)
        return _retire(books, touched)
    except Exception:
        raise
    except BaseException:  # an interrupt: what does not know the new epoch must not stay bound
        _retire(books, touched)
        raise


def _retire(books: Books, domains: Iterable[Domain]) -> int:
    return sum([books.evict_domain(domain, counted=False) for domain in domains])
