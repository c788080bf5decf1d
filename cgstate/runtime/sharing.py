"""Components whose graphs replay inside another one's eager breaks, from the same pool and on the same capture stream.

An entry that is called inside a break would, with a pool of its own, pay for its own blocks: freed ones serve only the stream that
freed them (fact P4). Declared ``inside`` the outer component it belongs to the outer's domain, records into what the outer's graphs
have freed there, and takes the outer call's turn once more while that waits in the break (I5). In return nothing of the outer
graphs may be live across a break: the inner graph may have the same blocks. Otherwise the declaration, or the outer capture, is
refused, whichever comes later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cgstate.backends.base import Graph
from cgstate.errors import ConfigError, LiveAcrossBreak
from cgstate.lifecycle.states import EntryState
from cgstate.runtime.config import ComponentConfig
from cgstate.runtime.domain import Isolation
from cgstate.runtime.segments import Segments

if TYPE_CHECKING:
    from cgstate.runtime.books import Books
    from cgstate.runtime.entry import Entry
    from cgstate.runtime.preparing import AnyComponent
    from cgstate.runtime.record import ComponentRecord


def check_recording(entry: Entry, graph: Graph) -> None:
    """Refuse a new recording of an outer entry that leaves something live where graphs of its pool may replay.

    Raises:
        LiveAcrossBreak: it does.
    """
    inner = next((record for record in entry.manager.components.values() if record.inside is entry.component), None)
    if inner is not None:
        _check(entry, graph, inner.component_id)


def declare(books: Books, record: ComponentRecord, inside: str) -> None:
    """Let a component without a routine replay inside another one's breaks; the lock is held. Again the same: no change.

    Raises:
        ConfigError: the outer component is unknown or isolates each entry, or the component exists and was declared otherwise.
        LiveAcrossBreak: a recording of the outer component leaves something live across a break.
    """
    outer = books.components.get(inside) if isinstance(inside, str) else None
    if outer is None:
        known = sorted(books.components)
        raise ConfigError(f"{record.component_id} is declared inside unknown component {inside!r}; there are {known}")
    if books.components.get(record.component_id) is record:
        if record.inside is not outer:
            now = f"inside {record.inside.component_id}" if record.inside is not None else "on its own"
            raise ConfigError(f"{record.component_id} was declared {now} before; a component stays where it is")
        return
    _check_isolation(record.component_id, outer.outermost.component_id, outer.outermost.config.isolation)
    for entry, graph in _recordings(outer):
        _check(entry, graph, record.component_id)
    record.inside = outer


def check_components(
    books: Books,
    components: Mapping[str, AnyComponent],
    config: Mapping[str, Mapping[str, object]] | None,
    configs: Mapping[str, ComponentConfig],
) -> None:
    """Check what components of `GraphManager.prepare` say about being inside others, before anything is changed.

    Args:
        books: With the components that there are already.
        components: All that were given.
        config: As it was given.
        configs: That of the active ones.

    Raises:
        ConfigError: an outer component is unknown, inside itself, or isolates each entry; or the inner one asks for an isolation
            of its own.
    """
    for name in configs:
        inside = components[name].inside
        if inside is None:
            continue
        if "isolation" in (config or {}).get(name, ()):
            raise ConfigError(f"{name} is inside {inside} and shares its isolation; its own cannot be chosen")
        path = [name]
        while inside is not None:
            if inside in path:
                raise ConfigError(f"{name} is inside itself: {' inside '.join([*path, inside])}")
            path.append(inside)
            if inside not in components and inside not in books.components:
                raise ConfigError(f"{path[-2]} is inside unknown component {inside!r}; there are {sorted(components)}")
            inside = components[inside].inside if inside in components else None
        outermost = path[-1]
        if outermost in configs:
            _check_isolation(name, outermost, configs[outermost].isolation)
        elif outermost in books.components:
            _check_isolation(name, outermost, books.components[outermost].outermost.config.isolation)


def join_components(books: Books, components: Sequence[AnyComponent]) -> None:
    """Put prepared components where they said they are; the lock is held. Inside one that stays eager there is nothing to share."""
    for component in components:
        if component.inside is not None:
            books.components[component.component_id].inside = books.components.get(component.inside)


def _check_isolation(name: str, outer: str, isolation: Isolation) -> None:
    if isolation is Isolation.per_entry:
        raise ConfigError(f"{name} cannot be inside {outer}, whose entries have a pool each; give {outer} another isolation")


def _recordings(record: ComponentRecord) -> Iterator[tuple[Entry, Graph]]:
    """Every recording of a component that may yet be replayed: bound, or to be bound."""
    for entry in record.entries.values():
        if entry.graph is not None:
            yield entry, entry.graph
        elif entry.state is EntryState.CAPTURING:
            yield from ((entry, each.made.graph) for each in entry.transaction.captured if each.entry is entry)


def _check(entry: Entry, graph: Graph, inner: str) -> None:
    for pause in graph.pauses if isinstance(graph, Segments) else ():
        if pause.live or pause.left:
            declared = f", {', '.join(pause.live)} by its own word" if pause.live else ""
            rule = f"nothing of {entry.name} live across {pause.name}, where {inner} replays from its pool"
            raise LiveAcrossBreak("entry", entry.name, entry.state, "share", f"{rule}: {pause.left} bytes are{declared}")
