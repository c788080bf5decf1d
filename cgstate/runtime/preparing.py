"""From declared components and a configuration to records: all of it checked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cgstate.errors import CaptureActive, ConfigError, describe
from cgstate.lifecycle.states import ManagerState
from cgstate.runtime import residency, sharing
from cgstate.runtime.component import CaptureMode, Component, LeasedComponent
from cgstate.runtime.config import ComponentConfig, parse
from cgstate.runtime.dependency import declare
from cgstate.runtime.domain import Isolation
from cgstate.runtime.record import ComponentRecord

if TYPE_CHECKING:
    from cgstate.runtime.books import Books

AnyComponent: TypeAlias = "Component[Any, Any] | LeasedComponent[Any, Any]"


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What `GraphManager.prepare` accepted.

    Attributes:
        active: Ids of the components that will have graphs.
        eager: Ids of those that were not named in the configuration.
        uncovered: By component, the legal inputs that no declared graph serves, as its routine describes them.
    """

    active: tuple[str, ...]
    eager: tuple[str, ...]
    uncovered: Mapping[str, tuple[str, ...]]


def prepare(
    books: Books,
    components: Sequence[AnyComponent],
    config: Mapping[str, Mapping[str, object]] | None,
    taken: list[AnyComponent],
) -> PrepareReport:
    """See `GraphManager.prepare`; adds the active components to those ``taken``."""
    books.check_caller()
    with books.gate.lock:
        if books.profile is not None and books.profile.thread == books.thread_id():
            guard = "its profile to have ended: prepare components before, or capture more in it by `entry` and `transaction`"
            raise books.refuse("prepare", guard, CaptureActive)
    with books.exclusive("prepare"):
        books.check_open("prepare")
        with books.gate.lock:
            if books.state is not ManagerState.NEW:
                books.prepare()  # refuses; the components, some of them prepared already, are not what is wrong
        configs = validate(books, components, config)
        active = [component for component in components if component.component_id in configs]
        with _claimed(active):
            configure(active, configs)
            records = {component.component_id: build(books, component, configs[component.component_id]) for component in active}
            report = PrepareReport(
                active=tuple(records),
                eager=tuple(component.component_id for component in components if component.component_id not in records),
                uncovered=uncovered(components, records),
            )
            try:
                with books.gate.lock:
                    books.components.update(records)
                    sharing.join_components(books, active)
                    for component in components:  # those that stay eager, too: what names are known is no matter of configuration
                        declare(books, component.dependencies, records.get(component.component_id))
                    residency.refresh(records.values())
                    for component in active:
                        component.attach(records[component.component_id])
                    taken.extend(active)
                    books.prepare()  # last: until then it may be said again
            except BaseException:  # an interrupt
                if books.state is ManagerState.NEW:
                    _let_go(books, records, active, taken)
                raise
    return report


@contextmanager
def _claimed(components: Sequence[AnyComponent]) -> Iterator[None]:
    """Keep other managers from these for the block; behind it they are attached, or as they were.

    Raises:
        ConfigError: another manager has one of them, or is about to.
    """
    claim = object()
    try:
        for component in components:
            if not component.claim(claim):
                raise _taken(component)
        yield
    finally:
        try:
            _unclaim(components, claim)
        except BaseException:  # an interrupt
            _unclaim(components, claim)
            raise


def _unclaim(components: Sequence[AnyComponent], claim: object) -> None:
    for component in components:
        component.unclaim(claim)


def _taken(component: AnyComponent) -> ConfigError:
    return ConfigError(f"{component.component_id} belongs to another manager; close that one first")


def _let_go(
    books: Books, records: Mapping[str, ComponentRecord], active: Sequence[AnyComponent], taken: list[AnyComponent]
) -> None:
    """Know nothing of components that were about to be prepared."""
    with books.gate.lock:
        for name in records:
            books.components.pop(name, None)
    for component in active:
        component.detach()
    taken.clear()


def validate(
    books: Books, components: Sequence[AnyComponent], config: Mapping[str, Mapping[str, object]] | None
) -> dict[str, ComponentConfig]:
    """The active components' configuration.

    Raises:
        ConfigError: anything is wrong with components or configuration.
    """
    declared: dict[str, AnyComponent] = {}
    if not isinstance(components, Sequence):
        raise ConfigError(f"prepare takes a sequence of components, not {components!r}")
    for component in components:
        if not isinstance(component, Component | LeasedComponent):
            raise ConfigError(f"prepare takes components, not {component!r}")
        if component.component_id in declared or component.component_id in books.components:
            raise ConfigError(f"component id {component.component_id!r} is used twice")
        if component.attached:
            raise _taken(component)
        declared[component.component_id] = component
    configs = parse(config, {name: component.supported_config_keys for name, component in declared.items()}, books.isolation)
    sharing.check_components(books, declared, config, configs)
    for name, parsed in configs.items():
        component = declared[name]
        if parsed.isolation is Isolation.foreign and books.foreign is None:
            raise ConfigError(f"isolation of {name} is foreign, and the manager was given no pool")
        _check_binding(component)
        for key, asked in {"max_extra_graphs": parsed.max_extra_graphs != 0, "admit_after": parsed.admit_after != 1}.items():
            if asked and not component.capture_mode.allows_lazy:
                raise ConfigError(f"{key} of {name} needs a lazy capture mode; it is {component.capture_mode}")
        for descriptor in component.descriptors:
            try:
                component.routine.validate_descriptor(descriptor)
            except Exception as error:
                raise ConfigError(f"the routine of {name} rejects its descriptor {descriptor!r}: {error}") from error
    return configs


def configure(components: Sequence[AnyComponent], configs: Mapping[str, ComponentConfig]) -> None:
    """Give each routine the component's own keys: the one thing that cannot be taken back, after all that could be checked.

    Raises:
        ConfigError: a routine rejects them; those before it have taken theirs.
    """
    for component in components:
        own = configs[component.component_id].own
        try:
            component.routine.configure(own)
        except Exception as error:
            raise ConfigError(
                f"the routine of {component.component_id} rejects its configuration {dict(own)!r}: {describe(error)}"
            ) from error


def _check_binding(component: AnyComponent) -> None:
    pinned = component.routine.pinned
    counts = isinstance(pinned, Sequence) and all(isinstance(at, int) and not isinstance(at, bool) and at >= 0 for at in pinned)
    if not counts or len(set(pinned)) != len(pinned):
        raise ConfigError(f"pinned inputs of {component.component_id} must be different positions, not {pinned!r}")
    try:
        component.routine.validate_binding()
    except Exception as error:
        raise ConfigError(f"the routine of {component.component_id} cannot be bound to graphs: {describe(error)}") from error


def build(books: Books, component: AnyComponent, config: ComponentConfig) -> ComponentRecord:
    """The record of one active component."""
    return ComponentRecord(
        books,
        component.component_id,
        component.routine,
        config,
        startup_order=component.descriptors,
        order_key=component.capture_order_key,
        allows_lazy=component.capture_mode.allows_lazy,
        pure_lazy=component.capture_mode is CaptureMode.PURE_LAZY,
        overlaps_capture=component.overlaps_capture,
        collective=component.collective,
        concurrent_leases=component.concurrent_leases,
    )


def uncovered(components: Sequence[AnyComponent], active: Mapping[str, ComponentRecord]) -> dict[str, tuple[str, ...]]:
    """What stays eager for want of a graph, so that nobody learns it from a profile of the running service."""
    gaps = {
        component.component_id: tuple(
            component.routine.uncovered(
                frozenset(component.descriptors),
                lazy=component.capture_mode.allows_lazy and active[component.component_id].capacity > len(component.descriptors),
            )
        )
        for component in components
        if component.component_id in active
    }
    return {name: gap for name, gap in gaps.items() if gap}
